"""The graphs of a row and of a column.

For grids whose rows are all wired alike and whose columns are: the graph of nodes is
their product.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.grid import line_circuits
from railx.vocabulary.topology import Topology

__all__ = ["LineGraph", "circuit_line_graphs", "ring_line_graphs"]

IntArray = NDArray[np.int64]

#: Length of a line and the directed edges (int[edges, 2]) between its places.
LineGraph: TypeAlias = tuple[int, IntArray]


def circuit_line_graphs(topology: Topology) -> list[LineGraph]:
    """A row and a column as the optical circuits join their nodes."""
    circuits = topology.circuits
    assert circuits is not None
    lines = (line_circuits(circuits, dimension)[:, :2] for dimension in (0, 1))
    return [(int(line.max()) + 1, np.concatenate([line, line[:, ::-1]])) for line in lines]


def ring_line_graphs(*lengths: int) -> list[LineGraph]:
    """Rings of these lengths."""
    graphs = []
    for length in lengths:
        place = np.arange(length)
        following, before = np.roll(place, -1), np.roll(place, 1)
        edges = np.concatenate([np.stack([place, following]), np.stack([place, before])], axis=1)
        graphs.append((length, edges.T))
    return graphs
