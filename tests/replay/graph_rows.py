"""Graphs of a few nodes, written row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from railx.replay.graphs import NODE_COLUMNS, NODE_KINDS, RankGraphs

__all__ = ["graphs_of_rows", "row"]


def row(rank: int, kind: str, *after: int, **columns: int) -> tuple[dict[str, int], Any]:
    """A node after other rows of its rank."""
    return {"rank": rank, "kind": NODE_KINDS.index(kind), **columns}, after


def graphs_of_rows(
    rows: list[tuple[dict[str, int], Any]], groups: tuple[tuple[int, ...], ...] = ()
) -> RankGraphs:
    """Graphs of rows whose ranks ascend."""
    columns = {
        name: np.array(
            [
                said.get(name, number if name == "number" else default)
                for number, (said, _) in enumerate(rows)
            ],
            kind,
        )
        for name, (kind, default) in NODE_COLUMNS.items()
    }
    counts = [len(after) for _, after in rows]
    return RankGraphs(
        columns,
        np.cumsum([0, *counts]),
        np.array([before for _, after in rows for before in after], np.int64),
        groups,
    )
