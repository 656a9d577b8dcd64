"""RailX set to a Dragonfly: a row of nodes is a group, all-to-all on its X rails.

In a Dragonfly the routers of a group share the links to the other groups (Kim, Dally,
Scott and Abts, ISCA 2008). Here the nodes of a row share them: the Y rails of column 0
join each row to some other rows, those of column 1 to others, and all columns together
join every pair of rows. A packet goes along its row to a column that leads to the
destination's row, up or down that column, and along the other row: at most 3 inter-node
hops. With r rails per side and C columns there are C r Y rails with 2 ports per node,
which join up to 2 C r + 1 rows, where the plain all-to-all of a column ends at r + 1.
The mapping is this project's; RailX's abstract names only the flexibility. Its price: a
Y rail need not be one ring over the full column.

Design of the columns. A Y rail shifts every row by a difference d (row y to row y + d
modulo the number of rows G), a union of gcd(G, d) rings, so that one switch can close
it. The differences are 1, 2, ..., floor(G/2), then G - 1, G - 2, ... down to the half.
The rails of column 0 take them in turn, then those of column 1, and so on, starting
again after G - 1. After floor(G/2) rails every pair of rows is joined. Since d and -d
are the same links, the links between two rows differ by at most one over all pairs (d =
G/2 joins its pairs twice at once). A shift of all rows is a symmetry of the network.

Layout: nodes (X, Y) = Y * columns + X, chips and rails as in
:mod:`railx.vocabulary.grid`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.family import check_radix
from railx.families.node_grids import (
    AllToAllSettings,
    all_rail_lines,
    best_grid,
    grid_ports,
    longest_line,
)
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.arrays import BoolArray, IntArray
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.counts import Ports, dragonfly_hops
from railx.vocabulary.grid import LineWiring, build_lines, successor_arcs
from railx.vocabulary.line_parts import (
    LinePart,
    PartSettings,
    check_rails,
    check_rings,
    line_parts,
    line_successors,
    part_wiring,
)
from railx.vocabulary.topology import Circuits, Topology, check_size

__all__ = [
    "RailXDragonflySettings",
    "bisection_ports",
    "build",
    "check",
    "check_circuits",
    "node_hop_counts",
    "ports",
    "resize",
    "row_differences",
    "row_wiring",
    "symmetric_sources",
]


@dataclass(frozen=True)
class RailXDragonflySettings(AllToAllSettings):
    """RailX set to a Dragonfly: every row of nodes is a group."""

    family: Literal["railx_dragonfly"]

    columns: Annotated[int, AtLeast(2)] = 5
    """Nodes of a group; columns - 1 divides r = m * n, for r / (columns - 1) copies of
    the all-to-all of a row."""
    rows: Annotated[int, AtLeast(2)] = 13
    """Groups, at most 2 m n columns + 1."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.columns, self.rows

    def __post_init__(self) -> None:
        super().__post_init__()
        rails = self.rails
        check_rails(rails)
        if rails % (self.columns - 1):
            sizes = sorted(
                (d + 1 for d in range(1, rails + 1) if rails % d == 0),
                key=lambda size: (abs(size - self.columns), size),
            )
            raise SettingsError(
                "columns",
                f"got {self.columns}; allowed: a number whose columns - 1 divides m * n = {rails}"
                f" rails; the nearest are {' and '.join(map(str, sorted(sizes[:2])))}",
            )
        check_rings("columns", (_row(self),), self.rings)
        most = 2 * rails * self.columns + 1
        if self.rows > most:
            raise SettingsError(
                "rows",
                f"got {self.rows}; allowed: at most {most}, {self.columns} columns of {rails} rails"
                f" cannot join more; the nearest are {most - 1} and {most}",
            )
        check_radix(self.ocs_radix, max(self.shape))


def _row(settings: RailXDragonflySettings) -> PartSettings:
    return PartSettings("all_to_all", settings.rails, settings.columns, 1)


# Graph


def row_part(settings: RailXDragonflySettings) -> LinePart:
    """The all-to-all of a row as a part with all its rails."""
    return line_parts((_row(settings),))[0]


def row_wiring(settings: RailXDragonflySettings) -> LineWiring:
    """The links between every ordered pair of columns of a row, 2 per copy of the
    all-to-all.
    """
    return part_wiring(row_part(settings), settings.rings)


def row_differences(settings: RailXDragonflySettings) -> IntArray:
    """Rows that the Y rails of each column go up by: (columns, r), 1 to rows - 1."""
    rows, rails = settings.rows, settings.rails
    half = rows // 2
    order = np.concatenate([np.arange(1, half + 1), np.arange(rows - 1, half, -1)])
    return order[np.arange(settings.columns * rails) % (rows - 1)].reshape(settings.columns, rails)


def check(settings: RailXDragonflySettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("rows", settings.grid.link_rows)


def build(settings: RailXDragonflySettings) -> Topology:
    """Build the topology.

    Columns of a row are joined twice per copy, every pair of rows in at least one
    column.
    """
    grid = settings.grid
    next_x = line_successors((row_part(settings),), grid.columns, settings.rings)
    next_y = (np.arange(grid.rows) + row_differences(settings)[:, :, None]) % grid.rows
    arcs_x = successor_arcs(np.broadcast_to(next_x, (grid.rows, *next_x.shape)))
    return build_lines(settings, grid, arcs_x, successor_arcs(next_y))


def bisection_ports(settings: RailXDragonflySettings) -> int:
    """Ports in one direction across that cut.

    2 min(d, G - d) for each Y rail of difference d, or the row's pairs across.
    """
    if settings.columns >= settings.rows:
        half = settings.columns // 2
        return 2 * row_part(settings).copies * half * (settings.columns - half) * settings.rows
    d = row_differences(settings)
    return int(2 * np.minimum(d, settings.rows - d).sum())


def node_hop_counts(settings: RailXDragonflySettings) -> IntArray:
    """Ordered pairs of chips that are h inter-node hops apart (index h).

    Shifts of all rows are symmetries, so the sources of row 0 suffice. Within a row: 1
    hop. To a row d further within a column: 1 hop where that column has difference d or
    -d, 2 where two of its differences make d. Else 2 hops where the source's or the
    destination's column has it, else 3.
    """
    rows, columns = settings.rows, settings.columns
    joins: BoolArray = np.zeros((columns, rows), dtype=np.bool_)
    d = row_differences(settings)
    column = np.arange(columns)[:, None]
    joins[column, d] = joins[column, rows - d] = True
    source, target = joins[:, None, 1:], joins[None, :, 1:]
    hops = np.where(source | target, 2, 3)
    # later[d, e]: the difference that remains of d after e
    later = (np.arange(rows)[:, None] - np.arange(rows)) % rows
    twice: BoolArray = np.zeros_like(joins)
    np.logical_and(joins[:, None, :], joins[:, later]).any(axis=2, out=twice)
    hops[column[:, 0], column[:, 0]] = np.where(joins[:, 1:], 1, 3 - twice[:, 1:].astype(np.int64))
    counts = np.bincount(hops.ravel(), minlength=4)
    counts[:2] += columns, columns * (columns - 1)
    return counts[: int(counts.nonzero()[0].max()) + 1] * rows * settings.m**4


def symmetric_sources(settings: RailXDragonflySettings) -> IntArray:
    """The nodes of the first group represent all, as the groups are alike."""
    return np.arange(settings.columns)


def check_circuits(settings: RailXDragonflySettings, circuits: Circuits) -> None:
    """Check the circuits of the groups; ValueError names the first fault.

    Every port belongs to its node. Every pair of columns of a row is joined, and every
    pair of rows in some column.
    """
    check_ports(circuits, settings.grid, paired=False)
    check_part(circuits, 0, row_part(settings), directed=settings.rings == "directed")
    _check_groups(circuits, settings)


def _check_groups(circuits: Circuits, settings: RailXDragonflySettings) -> None:
    """Every pair of rows is joined in some column."""
    in_columns = circuits.dimension == 1
    joined = np.eye(settings.rows, dtype=np.bool_)
    a, b = (port[in_columns] // 2 for port in (circuits.port_a, circuits.port_b))
    joined[a, b] = joined[b, a] = True
    if not joined.all():
        row_a, row_b = np.argwhere(~joined)[0].tolist()
        raise ValueError(
            f"circuits: no column joins rows {row_a} and {row_b}; allowed: every pair of rows in at"
            " least one column"
        )


# Bill of materials


def ports(settings: RailXDragonflySettings) -> Ports:
    """Components of the grid, and its bandwidths in ports per chip."""
    grid = settings.grid
    groups = grid.rows
    bisection = 4 * grid.rails * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1))
    return grid_ports(
        grid,
        all_to_all=min(2 * grid.n / grid.m / hops for hops in _hops(settings)),
        bisection=bisection / grid.m**2,
    )


def resize(settings: RailXDragonflySettings, chips: int) -> RailXDragonflySettings:
    """The Dragonfly of :func:`railx.families.node_grids.best_grid`, on every rail of a
    row.
    """
    rails, longest = settings.rails, longest_line(settings)
    return best_grid(
        settings,
        chips,
        [
            (columns * rows, (columns, rows))
            for columns in all_rail_lines(rails, longest)
            for rows in range(2, min(longest, 2 * rails * columns + 1) + 1)
        ],
        lambda shape: _shaped(settings, *shape),
        ports,
    )


def _shaped(settings: RailXDragonflySettings, columns: int, rows: int) -> RailXDragonflySettings:
    rings = "undirected" if columns in (4, 6) else settings.rings
    return replace(settings, columns=columns, rows=rows, rings=rings)


def _hops(settings: RailXDragonflySettings) -> tuple[float, float]:
    return dragonfly_hops(settings.columns, settings.rows, settings.m**2)
