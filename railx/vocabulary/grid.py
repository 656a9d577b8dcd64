"""A RailX grid: nodes of m x m chips, joined by rails.

Every rail of a line is plugged into a separate optical switch. RailX settings differ
only in the circuits that the optical switches close. Arcs describe them: each leads
from the plus side of a position of a line to the minus side of another. An optical
switch closes any matching of its ports, so a rail is any set of disjoint rings over the
nodes of its line. Link rows: the internal ones first, then two rows (plus to minus,
minus to plus) for each circuit, in the order of the circuits. Source: RailX (abstract)
and its public simulator (node layout, rail numbering).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.vocabulary.arrays import BoolArray, IntArray
from railx.vocabulary.topology import (
    INTERNAL,
    Circuits,
    FamilySettings,
    Links,
    Topology,
    duplex_links,
    join_rows,
    plus_to_minus_circuits,
    topology_of,
)


@dataclass(frozen=True)
class Grid:
    """The sizes of a RailX grid.

    ``columns`` by ``rows`` nodes of ``m`` x ``m`` chips with ``n`` ports per side make
    r = m * n rails per side. ``internal_width``: rate of an internal lane over the rate
    of an external port. Node (X, Y) is number Y * columns + X; its chip (x, y) adds y *
    m + x.
    """

    m: int
    n: int
    columns: int
    rows: int
    port_gbps: float
    internal_width: float
    internal_latency_ns: float
    external_latency_ns: float

    @property
    def rails(self) -> int:
        return self.m * self.n

    @property
    def nodes(self) -> int:
        return self.columns * self.rows

    @property
    def chips(self) -> int:
        return self.nodes * self.m**2

    @property
    def link_rows(self) -> int:
        """Directed rows of the link table."""
        return self.nodes * (4 * self.m * (self.m - 1) + 4 * self.rails)


class Arcs(NamedTuple):
    """Circuits before they get ports.

    An arc joins the plus side of position ``a`` of line ``line`` to the minus side of
    ``b`` on rail ``rail``. All arrays (int64) have the same length. On a rail a
    position is the start of at most one arc and the end of at most one.
    """

    line: IntArray
    rail: IntArray
    a: IntArray
    b: IntArray


@dataclass(frozen=True, eq=False)
class RailPorts:
    """The link and the neighbour behind each external port.

    Arrays of shape (2, nodes, r, 2) by dimension (0: x), node, rail and side (1: plus).
    ``link``: the row of ``topology.links`` that leaves the node there; ``neighbour``:
    the node at its other end. -1 where no circuit uses the port.
    """

    link: IntArray
    neighbour: IntArray


@dataclass(frozen=True, eq=False)
class LineWiring:
    """The k links between every ordered pair of positions of a line of L nodes.

    They are ordered by side (minus first), then by rail. ``rail`` (int[L, L, k]): the
    rail of each link from a to b, -1 on the diagonal; ``plus`` (bool[L, L, k]): whether
    the link leaves a on its plus side. k is 2 where each rail of a line is used once
    (:func:`line_wiring`).
    """

    rail: IntArray
    plus: BoolArray

    @property
    def length(self) -> int:
        return len(self.rail)


def build_lines(
    settings: FamilySettings,
    grid: Grid,
    arcs_x: Arcs,
    arcs_y: Arcs,
    *,
    paired_columns: bool = False,
) -> Topology:
    """Build a RailX topology from the arcs that its optical switches close.

    ``paired_columns``: columns X and X + columns/2 are cabled to the same optical
    switches. A column line then has 2 rows positions: 0..rows-1 in column X, then
    rows..2 rows - 1 in column X + columns/2 (see :func:`line_nodes`).
    """
    x_links, x_circuits = _rails(grid, 0, arcs_x, paired_columns)
    y_links, y_circuits = _rails(grid, 1, arcs_y, paired_columns)
    return topology_of(
        settings,
        [_internal(grid), x_links, y_links],
        chips=grid.chips,
        chips_per_node=grid.m**2,
        circuits=join_rows([x_circuits, y_circuits]),
    )


def ring_arcs(rings: IntArray, lines: int) -> Arcs:
    """The arcs of a ring per rail, the same on all ``lines``; rings: int[r, L]."""
    line = np.arange(lines)[:, None, None]
    rail = np.arange(len(rings))[None, :, None]
    arrays = np.broadcast_arrays(line, rail, rings[None], np.roll(rings, -1, axis=1)[None])
    return Arcs(*(array.ravel() for array in arrays))


def successor_arcs(successors: IntArray) -> Arcs:
    """The arcs of ``successors`` (int[lines, r, L]), the next position on each ring."""
    lines, rails, length = successors.shape
    line, rail, a = (axis.ravel() for axis in np.indices((lines, rails, length)))
    return Arcs(line, rail, a, successors.ravel().astype(np.int64))


def line_nodes(
    grid: Grid, dimension: int, line: IntArray, position: IntArray, *, paired_columns: bool = False
) -> IntArray:
    """The node at a position of a row (dimension 0) or a column or column pair (1)."""
    if dimension == 0:
        return line * grid.columns + position
    if not paired_columns:
        return position * grid.columns + line
    return position % grid.rows * grid.columns + position // grid.rows * (grid.columns // 2) + line


def port_chip(rail: IntArray, plus: BoolArray | bool, m: int, n: int, dimension: int) -> IntArray:
    """The local chip of a port: rail i is on chip row (x) or column (y) i // n."""
    beside, edge = rail // n, np.where(plus, m - 1, 0)
    return beside * m + edge if dimension == 0 else edge * m + beside


def rail_ports(topology: Topology) -> RailPorts:
    """The links and neighbours behind every external port of every node.

    Raises ValueError for a topology without optical circuits.
    """
    circuits, links = _circuits(topology, "rails"), topology.links
    first = len(links) - 2 * len(circuits)  # internal links come first, then two rows per circuit
    rails = int(circuits.rail.max()) + 1
    ports = RailPorts(*(np.full((2, topology.nodes, rails, 2), -1) for _ in range(2)))
    row = first + 2 * np.arange(len(circuits))
    for side, node, neighbour in (
        (1, circuits.node_a, circuits.node_b),
        (0, circuits.node_b, circuits.node_a),
    ):
        at = (circuits.dimension, node, circuits.rail, side)
        ports.link[at] = row + (1 - side)
        ports.neighbour[at] = neighbour
    return ports


def _circuits(topology: Topology, what: str) -> Circuits:
    if topology.circuits is None:
        raise UserError(f"{topology.family}: a topology without optical circuits has no {what}")
    return topology.circuits


def rail_of_links(topology: Topology) -> IntArray:
    """The rail of each link row (int[links]), -1 inside nodes."""
    rails = np.repeat(_circuits(topology, "rails").rail.astype(np.int64), 2)
    return np.concatenate([np.full(len(topology.links) - len(rails), -1), rails])


def mesh_links(m: int) -> IntArray:
    """The directed links of an m x m mesh of chips y * m + x: int[links, 2]."""
    chip = np.arange(m * m).reshape(m, m)
    pairs = np.concatenate(
        [
            np.stack([chip[:, :-1].ravel(), chip[:, 1:].ravel()], axis=1),
            np.stack([chip[:-1].ravel(), chip[1:].ravel()], axis=1),
        ]
    )
    return np.concatenate([pairs, pairs[:, ::-1]])


def line_wiring(topology: Topology, dimension: int) -> LineWiring:
    """The links between every pair of nodes of a line of an all-to-all setting.

    They are read from the circuits of its first line. ``dimension``: 0 for rows, 1 for
    columns. Raises ValueError where lines differ or a pair does not have two links.
    """
    a, b, rail = line_circuits(_circuits(topology, "line wiring"), dimension).T
    return pair_wiring(a, b, rail, 2)


def pair_wiring(a: IntArray, b: IntArray, rail: IntArray, links: int) -> LineWiring:
    """The ``links`` links between every ordered pair of positions, from arcs a -> b.

    Raises ValueError where a pair has more or fewer.
    """
    length = int(max(a.max(), b.max())) + 1
    ends = np.concatenate(
        [
            np.stack([a, b, np.ones_like(a), rail], axis=1),
            np.stack([b, a, np.zeros_like(a), rail], axis=1),
        ]
    )
    ends = ends[np.lexsort(ends.T[::-1])]
    pairs = np.bincount(ends[:, 0] * length + ends[:, 1], minlength=length**2).reshape(
        length, length
    )
    if not (pairs == links * (1 - np.eye(length, dtype=np.int64))).all():
        raise ValueError(
            "circuits: not an all-to-all setting, some pair of nodes in a line does not have"
            f" exactly {'two' if links == 2 else links} links"
        )
    shape = (length, length, links)
    wiring = LineWiring(rail=np.full(shape, -1), plus=np.zeros(shape, dtype=np.bool_))
    off_diagonal = ~np.eye(length, dtype=np.bool_)
    wiring.rail[off_diagonal] = ends[:, 3].reshape(-1, links)
    wiring.plus[off_diagonal] = ends[:, 2].reshape(-1, links) == 1
    return wiring


def line_circuits(circuits: Circuits, dimension: int) -> IntArray:
    """The circuits of a line: rows (plus-side position, minus-side position, rail).

    ``dimension``: 0 for rows, 1 for columns. Raises ValueError where the lines of the
    dimension differ.
    """
    rows = circuits.dimension == dimension
    lines = int(circuits.line[rows].max()) + 1
    columns = (circuits.port_a[rows] // 2, circuits.port_b[rows] // 2, circuits.rail[rows])
    by_line = np.stack(columns, axis=1).astype(np.int64).reshape(lines, -1, 3)
    if not (by_line == by_line[0]).all():
        raise ValueError(
            f"circuits: the {'rows' if dimension == 0 else 'columns'} are not all wired alike"
        )
    first_line: IntArray = by_line[0]
    return first_line


def longest_halves(shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Half (0 or 1) along the longest dimension of a grid; the first runs fastest."""
    longest = shape.index(max(shape))
    position = np.indices(shape[::-1])[len(shape) - 1 - longest]
    half: NDArray[np.int8] = (position >= max(shape) // 2).astype(np.int8).ravel()
    return half


def grid_halves(grid: Grid, dimension: int | None = None) -> NDArray[np.int8]:
    """Half (0: the smaller, or 1) of each chip, across ``dimension`` or the longer."""
    if dimension is None:
        dimension = 0 if grid.columns >= grid.rows else 1
    node = np.arange(grid.nodes)
    position, length = (
        (node % grid.columns, grid.columns) if dimension == 0 else (node // grid.columns, grid.rows)
    )
    return np.repeat((position >= length // 2).astype(np.int8), grid.m**2)


def _internal(grid: Grid) -> Links:
    mesh = mesh_links(grid.m)
    base = np.arange(grid.nodes)[:, None] * grid.m**2
    rows = grid.nodes * len(mesh)
    return Links(
        src=(base + mesh[:, 0]).ravel().astype(np.int32),
        dst=(base + mesh[:, 1]).ravel().astype(np.int32),
        kind=np.full(rows, INTERNAL, dtype=np.int8),
        gbps=np.full(rows, grid.port_gbps * grid.internal_width),
        latency_ns=np.full(rows, grid.internal_latency_ns),
        rail=np.full(rows, -1, dtype=np.int32),
        lanes=np.full(rows, grid.n, dtype=np.int32),
    )


def _rails(grid: Grid, dimension: int, arcs: Arcs, paired_columns: bool) -> tuple[Links, Circuits]:
    """Links (there and back) and circuits of a dimension in the order of the arcs."""
    line, rail, a, b = arcs
    node_a, node_b = (
        line_nodes(grid, dimension, line, p, paired_columns=paired_columns) for p in (a, b)
    )
    src, dst = (
        node * grid.m**2 + port_chip(rail, plus, grid.m, grid.n, dimension)
        for node, plus in ((node_a, True), (node_b, False))
    )
    kind, latency_ns = f"rail_{'xy'[dimension]}", grid.external_latency_ns
    links = duplex_links(src, dst, kind, grid.port_gbps, latency_ns, rail=rail)
    switches_before = grid.rows * grid.rails if dimension == 1 else 0
    circuits = plus_to_minus_circuits(
        a,
        b,
        ocs=switches_before + line * grid.rails + rail,
        rail=rail,
        dimension=dimension,
        line=line,
        node_a=node_a,
        node_b=node_b,
    )
    return links, circuits
