"""What every RailX setting shares: nodes of m x m chips on a grid, rails of each line plugged into their own optical switch.

A RailX setting differs from another only in the rings that the optical switches close, so a setting is given by one ring of line
positions per rail and dimension. Source: RailX (abstract) and its public simulator (node layout, rail numbering).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from railx.topology.model import INTERNAL, Circuits, Links, Topology, chip_nodes, join_links, kind_code

__all__ = ["Grid", "LineWiring", "build_grid", "grid_halves", "line_circuits", "line_wiring", "mesh_links"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """The numbers a RailX grid is built from.

    ``columns`` by ``rows`` nodes of ``m`` x ``m`` chips with ``n`` ports a side; r = m * n rails a side. ``internal_width``: rate
    of an internal lane over the rate of an external port. Node (X, Y) is number Y * columns + X; its chip (x, y) adds y * m + x.
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


@dataclass(frozen=True, eq=False)
class LineWiring:
    """The two links between every ordered pair of positions of a line of L nodes, in a fixed order (minus side first).

    ``rail`` (int[L, L, 2]): the rail of link k from a to b; ``plus`` (bool[L, L, 2]): whether it leaves a on its plus side. The
    diagonal holds rail -1.
    """

    rail: IntArray
    plus: NDArray[np.bool_]

    @property
    def length(self) -> int:
        return len(self.rail)


def build_grid(family: str, settings: dict[str, object], grid: Grid, rings_x: IntArray, rings_y: IntArray) -> Topology:
    """Build a RailX topology: ``rings_x`` (r, columns) and ``rings_y`` (r, rows) hold the ring of line positions of each rail."""
    x_links, x_circuits = _rails(grid, 0, rings_x)
    y_links, y_circuits = _rails(grid, 1, rings_y)
    circuits = Circuits(
        **{name: np.concatenate([getattr(x_circuits, name), getattr(y_circuits, name)]) for name in Circuits.__dataclass_fields__}
    )
    return Topology(
        family=family,
        settings=settings,
        chips=grid.chips,
        nodes=grid.nodes,
        switches=0,
        chip_node=chip_nodes(grid.chips, grid.m**2),
        links=join_links([_internal(grid), x_links, y_links]),
        circuits=circuits,
    )


def mesh_links(m: int) -> IntArray:
    """The directed links of an m x m mesh as pairs of local chips (shape (4 m (m - 1), 2)); chip (x, y) is y * m + x."""
    chip = np.arange(m * m).reshape(m, m)
    pairs = np.concatenate(
        [
            np.stack([chip[:, :-1].ravel(), chip[:, 1:].ravel()], axis=1),
            np.stack([chip[:-1].ravel(), chip[1:].ravel()], axis=1),
        ]
    )
    return np.concatenate([pairs, pairs[:, ::-1]])


def line_wiring(topology: Topology, dimension: int) -> LineWiring:
    """The links between every pair of nodes of a line of an all-to-all setting, read from the circuits of its first line.

    ``dimension``: 0 for rows, 1 for columns. Raises ValueError where the lines differ from each other or a pair has not two links.
    """
    circuits = topology.circuits
    if circuits is None:
        raise ValueError(f"{topology.family}: a topology without optical circuits has no line wiring")
    a, b, rail = line_circuits(circuits, dimension).T
    length = int(a.max()) + 1
    ends = np.concatenate([np.stack([a, b, np.ones_like(a), rail], axis=1), np.stack([b, a, np.zeros_like(a), rail], axis=1)])
    ends = ends[np.lexsort(ends.T[::-1])]
    pairs = np.bincount(ends[:, 0] * length + ends[:, 1], minlength=length**2).reshape(length, length)
    if not (pairs == 2 * (1 - np.eye(length, dtype=np.int64))).all():
        raise ValueError("circuits: not an all-to-all setting, some pair of nodes in a line does not have exactly two links")
    wiring = LineWiring(rail=np.full((length, length, 2), -1), plus=np.zeros((length, length, 2), dtype=np.bool_))
    off_diagonal = ~np.eye(length, dtype=np.bool_)
    wiring.rail[off_diagonal] = ends[:, 3].reshape(-1, 2)
    wiring.plus[off_diagonal] = ends[:, 2].reshape(-1, 2) == 1
    return wiring


def line_circuits(circuits: Circuits, dimension: int) -> IntArray:
    """The circuits of one line as (position with the plus side, position with the minus side, rail); shape (r L, 3).

    ``dimension``: 0 for rows, 1 for columns. Raises ValueError where the lines of the dimension are not all wired alike.
    """
    own = circuits.dimension == dimension
    lines = int(circuits.line[own].max()) + 1
    columns = (circuits.port_a[own] // 2, circuits.port_b[own] // 2, circuits.rail[own])
    by_line = np.stack(columns, axis=1).astype(np.int64).reshape(lines, -1, 3)
    if not (by_line == by_line[0]).all():
        raise ValueError(f"circuits: the {'rows' if dimension == 0 else 'columns'} are not all wired alike")
    one_line: IntArray = by_line[0]
    return one_line


def grid_halves(grid: Grid) -> NDArray[np.int8]:
    """Cut the longer dimension of the grid of nodes in the middle: half of each chip, 0 (the smaller one) or 1."""
    node = np.arange(grid.nodes)
    position, length = (node % grid.columns, grid.columns) if grid.columns >= grid.rows else (node // grid.columns, grid.rows)
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


def _rails(grid: Grid, dimension: int, rings: IntArray) -> tuple[Links, Circuits]:
    """Links and circuits of one dimension; arrays are laid out as (line, rail, place in the ring, direction)."""
    lines = grid.rows if dimension == 0 else grid.columns
    line = np.arange(lines)[:, None, None]
    rail = np.arange(grid.rails)[None, :, None]
    a, b = rings[None, :, :], np.roll(rings, -1, axis=1)[None, :, :]
    line, rail, a, b = np.broadcast_arrays(line, rail, a, b)
    node_a, node_b = (line * grid.columns + p if dimension == 0 else p * grid.columns + line for p in (a, b))
    beside = rail // grid.n  # the chip row (x) or chip column (y) that owns the rail
    last = grid.m - 1
    plus = beside * grid.m + last if dimension == 0 else last * grid.m + beside
    minus = beside * grid.m if dimension == 0 else beside
    from_chip, to_chip = node_a * grid.m**2 + plus, node_b * grid.m**2 + minus
    rows = 2 * line.size
    links = Links(
        src=np.stack([from_chip, to_chip], axis=-1).ravel().astype(np.int32),
        dst=np.stack([to_chip, from_chip], axis=-1).ravel().astype(np.int32),
        kind=np.full(rows, kind_code("rail_x" if dimension == 0 else "rail_y"), dtype=np.int8),
        gbps=np.full(rows, grid.port_gbps),
        latency_ns=np.full(rows, grid.external_latency_ns),
        rail=np.repeat(rail.ravel(), 2).astype(np.int32),
        lanes=np.ones(rows, dtype=np.int32),
    )
    switches_before = grid.rows * grid.rails if dimension == 1 else 0
    circuits = Circuits(
        ocs=(switches_before + line * grid.rails + rail).ravel().astype(np.int32),
        port_a=(2 * a).ravel().astype(np.int32),
        port_b=(2 * b + 1).ravel().astype(np.int32),
        rail=rail.ravel().astype(np.int32),
        dimension=np.full(line.size, dimension, dtype=np.int8),
        line=line.ravel().astype(np.int32),
        node_a=node_a.ravel().astype(np.int32),
        node_b=node_b.ravel().astype(np.int32),
    )
    return links, circuits
