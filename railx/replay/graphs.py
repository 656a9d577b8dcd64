"""Graphs of ranks: operations with dependencies, as traces of other programs hold them.

A graph has no order of its own but its dependencies. What a node costs is stored as
counts (operations, bytes), so that one graph is priced on many devices and networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.errors import UserError
from railx.fabric.operation_kinds import COMMUNICATION

__all__ = ["COMPUTE", "NODE_COLUMNS", "NODE_KINDS", "RankGraphs"]

Array = npt.NDArray[Any]

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
