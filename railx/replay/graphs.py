"""Graphs of ranks: operations with dependencies, as traces of other programs hold them.

A graph has no order of its own but its dependencies. What a node costs is stored as
counts (operations, bytes), so that one graph is priced on many devices and networks. A
file of it is one Parquet table with a row for each node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from railx.errors import UserError
from railx.fabric.circuits import COMMUNICATION
from railx.io import (
    as_numbers,
    as_words,
    read_metadata,
    read_table,
    write_table,
    written_by,
)
from railx.vocabulary.arrays import Array, as_integers

#: The kinds of nodes, by the number in their column.
NODE_KINDS: tuple[str, ...] = ("compute", *COMMUNICATION)
COMPUTE = 0
#: The columns of nodes with their types and defaults (None: required).
NODE_COLUMNS: Mapping[str, tuple[Any, int | None]] = {
    "rank": (np.int32, None),
    "number": (np.int64, None),
    "kind": (np.int8, None),
    "stream": (np.int32, 0),
    "operations": (np.int64, 0),
    "memory_bytes": (np.int64, 0),
    "duration_ns": (np.int64, -1),
    "bytes": (np.int64, 0),
    "group": (np.int32, -1),
    "peer": (np.int32, -1),
    "tag": (np.int64, -1),
}


@dataclass(frozen=True, eq=False)
class RankGraphs:
    """The nodes of all ranks and their dependencies.

    ``columns``: one entry per node, the nodes of a rank together and in the order in
    which the rank issues them (ranks ascend).

    * ``rank``; ``number``: of the node in its source, for messages.
    * ``kind``: a number of :data:`NODE_KINDS`.
    * ``stream`` (compute): nodes of one stream of a rank run one at a time.
    * ``operations``, ``memory_bytes`` (compute): counts as the source states them.
    * ``duration_ns``: measured time, -1 where the source has none.
    * ``bytes`` (communication): as the source states them.
    * ``group`` (collectives): a number of ``groups``. The n-th collective of a group on
      one member is the n-th on all.
    * ``peer``, ``tag`` (send, recv): the other rank; the n-th send of (rank, peer, tag)
      meets the n-th receive of it.

    ``dependencies[offsets[i]:offsets[i + 1]]`` are the nodes (as positions in the
    columns, of the same rank) that must end before node ``i`` begins. ``names``: one
    for each node, or empty.
    """

    columns: Mapping[str, Array]
    offsets: Array
    dependencies: Array
    groups: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        nodes = len(self)
        unlike = {name: len(v) for name, v in self.columns.items() if len(v) != nodes}
        if set(self.columns) != set(NODE_COLUMNS) or unlike or len(self.offsets) != nodes + 1:
            raise UserError(
                f"columns: got {sorted(self.columns)} with lengths unlike {nodes} in {unlike};"
                f" allowed: {', '.join(NODE_COLUMNS)}, one entry for each node"
            )

    def __len__(self) -> int:
        return len(self.columns["rank"])

    @property
    def ranks(self) -> int:
        """How many ranks there are: 0 to the highest that has a node."""
        return int(self.columns["rank"][-1]) + 1 if len(self) else 0


_AFTER, _NAME, _GROUPS = "after", "name", "graph_groups"


def write_graph_table(
    path: str | Path, graphs: RankGraphs, *, notes: Mapping[str, Any] | None = None
) -> None:
    """Write graphs: their columns, ``kind`` as a word, ``name``, and ``after``.

    ``after`` are the rows of the nodes that must end before. ``notes`` (JSON values)
    travel with them.
    """
    columns: dict[str, Any] = {name: pa.array(values) for name, values in graphs.columns.items()}
    columns["kind"] = as_words(graphs.columns["kind"].astype(np.int32), NODE_KINDS)
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
    with written_by(path, "railx import --out"):
        columns = {
            name: as_integers(table[name], kind)
            for name, (kind, _) in NODE_COLUMNS.items()
            if name != "kind"
        }
        columns["kind"] = as_numbers(table["kind"], NODE_KINDS).astype(NODE_COLUMNS["kind"][0])
        lists = table[_AFTER].combine_chunks()
        after = [values.to_numpy().astype(np.int64) for values in (lists.offsets, lists.values)]
        groups, names = tuple(map(tuple, metadata[_GROUPS])), tuple(table[_NAME].to_pylist())
        graphs = RankGraphs(columns, after[0], after[1], groups, names)
        faulty = _fault(graphs)
        notes = dict(metadata.get("notes") or {})
    if faulty:
        raise UserError(f"got {path} with {faulty}; allowed: a file of railx import --out")
    return graphs, notes


def _fault(graphs: RankGraphs) -> str:
    """What no graphs have; empty where there is nothing."""
    columns, nodes, ranks = graphs.columns, len(graphs), graphs.ranks
    if not nodes:
        return "no nodes"
    if columns["rank"][0] < 0 or (np.diff(columns["rank"]) < 0).any():
        return "ranks out of order"
    if ranks > nodes or max(map(max, graphs.groups), default=0) >= ranks:
        return "ranks without nodes"
    limits = {"peer": ranks, "group": len(graphs.groups), "kind": len(NODE_KINDS)}
    for name, limit in limits.items():
        if columns[name].min() < -1 or columns[name].max() >= limit:
            return f"{name} {columns[name].max()}"
    messages = np.isin(columns["kind"], (NODE_KINDS.index("send"), NODE_KINDS.index("recv")))
    for name, needed in (("peer", messages), ("group", (columns["kind"] != COMPUTE) & ~messages)):
        if (columns[name][needed] < 0).any():
            return f"an operation without a {name}"
    if not ((graphs.dependencies >= 0) & (graphs.dependencies < nodes)).all():
        return "nodes after missing ones"
    return ""
