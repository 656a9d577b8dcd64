"""Graphs as one Parquet table: a row for each node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from railx.errors import UserError
from railx.io import read_metadata, read_table, write_table
from railx.replay.graphs import NODE_COLUMNS, NODE_KINDS, RankGraphs

__all__ = ["is_graph_table", "read_graph_table", "write_graph_table"]

_AFTER, _NAME, _GROUPS = "after", "name", "graph_groups"


def write_graph_table(
    path: str | Path, graphs: RankGraphs, *, notes: Mapping[str, Any] | None = None
) -> None:
    """Write graphs: their columns, ``kind`` as a word, ``name``, and ``after``.

    ``after`` are the rows of the nodes that must end before. ``notes`` (JSON values)
    travel with them.
    """
    columns: dict[str, Any] = {name: pa.array(values) for name, values in graphs.columns.items()}
    columns["kind"] = pa.DictionaryArray.from_arrays(
        pa.array(graphs.columns["kind"].astype(np.int32)), pa.array(NODE_KINDS)
    )
    columns[_AFTER] = pa.LargeListArray.from_arrays(
        pa.array(graphs.offsets.astype(np.int64)), pa.array(graphs.dependencies.astype(np.int64))
    )
    columns[_NAME] = pa.array(graphs.names or [""] * len(graphs), pa.string()).dictionary_encode()
    metadata = {_GROUPS: [list(group) for group in graphs.groups], "notes": dict(notes or {})}
    write_table(path, pa.table(columns), metadata=metadata)


def is_graph_table(path: str | Path) -> bool:
    """Whether a file is a table of graphs; OSError where it cannot be read."""
    try:
        return _GROUPS in read_metadata(path)
    except ValueError:
        return False


def read_graph_table(path: str | Path) -> tuple[RankGraphs, dict[str, Any]]:
    """The graphs and the notes that :func:`write_graph_table` wrote; UserError naming
    the fault.
    """
    metadata, table = read_metadata(path), read_table(path)
    if _GROUPS not in metadata or not {*NODE_COLUMNS, _AFTER, _NAME} <= set(table.column_names):
        raise UserError(f"got {path}, no file of graphs; allowed: one of railx import --out")
    columns = {
        name: np.ascontiguousarray(table[name].to_numpy(), dtype=kind)
        for name, (kind, _) in NODE_COLUMNS.items()
        if name != "kind"
    }
    number_of = {word: number for number, word in enumerate(NODE_KINDS)}
    words = table["kind"].to_pylist()
    columns["kind"] = np.array([number_of[word] for word in words], NODE_COLUMNS["kind"][0])
    after = table[_AFTER].combine_chunks()
    graphs = RankGraphs(
        columns,
        after.offsets.to_numpy().astype(np.int64),
        after.values.to_numpy().astype(np.int64),
        tuple(tuple(group) for group in metadata[_GROUPS]),
        tuple(table[_NAME].to_pylist()),
    )
    return graphs, metadata["notes"]
