"""RailX set to a Dragonfly: a row of nodes is a group, all-to-all on its X rails.

The Y rails of different columns differ. In a Dragonfly the routers of a group share the
links to the other groups (Kim, Dally, Scott and Abts, ISCA 2008). Here the nodes of a
row share them: the Y rails of column 0 join each row to some other rows, those of
column 1 to others, and all columns together join every pair of rows. A packet goes
along its row to a column that leads to its row, up or down that column, and along the
other row: at most 3 inter-node hops. With r rails per side and C columns there are C r
Y rails with 2 ports per node, so that up to 2 C r + 1 rows can be joined, where the
plain all-to-all of a column ends at r + 1. The mapping is derived; RailX's abstract
names only the flexibility. Its price: a Y rail need not be one ring over the whole
column.

Design of the columns. A Y rail shifts every row by one difference d (row y to row y + d
modulo the number of rows G), which is a union of gcd(G, d) rings, so that one switch
can close it. The differences are 1, 2, ..., floor(G/2), then G - 1, G - 2, ... down to
the half. They are given out in turn to the rails of column 0, then of column 1, and so
on, and start again after G - 1. After floor(G/2) rails every pair of rows is joined.
Since d and -d are the same links, the links between two rows differ by at most one over
all pairs (d = G/2 joins its pairs twice at once). A shift of all rows is a symmetry of
the network.

Layout: nodes (X, Y) = Y * columns + X, chips and rails as in
:mod:`railx.vocabulary.grid`. Routers read ``row_wiring(settings)`` (rails that join two
columns of a row), ``differences(settings)`` (the shift of each column and rail), and
``rail_ports(topology)`` (the link row behind a rail of a node).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_dragonfly.settings import RailXDragonflySettings, _row, grid_of
from railx.vocabulary.grid import LineWiring, build_lines, grid_halves, successor_arcs
from railx.vocabulary.line_parts import (
    LinePart,
    line_parts,
    line_successors,
    part_wiring,
)
from railx.vocabulary.topology import Topology, check_size

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "differences",
    "grid_of",
    "halves",
    "node_hop_counts",
    "ports_per_chip",
    "row_part",
    "row_wiring",
    "symmetric_sources",
]

IntArray = NDArray[np.int64]


def row_part(settings: RailXDragonflySettings) -> LinePart:
    """The all-to-all of a row as the one part of its rails."""
    return line_parts((_row(settings),))[0]


def row_wiring(settings: RailXDragonflySettings) -> LineWiring:
    """The links between every ordered pair of columns of a row.

    2 for each copy of its all-to-all.
    """
    return part_wiring(row_part(settings), settings.rings)


def differences(settings: RailXDragonflySettings) -> IntArray:
    """By how many rows each Y rail of each column goes up from its plus side.

    Shape (columns, r), values 1 to rows - 1.
    """
    rows, rails = settings.rows, settings.m * settings.n
    half = rows // 2
    order = np.concatenate([np.arange(1, half + 1), np.arange(rows - 1, half, -1)])
    return order[np.arange(settings.columns * rails) % (rows - 1)].reshape(settings.columns, rails)


def check(settings: RailXDragonflySettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("rows", grid_of(settings).link_rows)


def build(settings: RailXDragonflySettings) -> Topology:
    """Build the topology.

    Columns of one row are joined twice per copy, every pair of rows in at least one
    column.
    """
    grid = grid_of(settings)
    next_x = line_successors((row_part(settings),), grid.columns, settings.rings)
    next_y = (np.arange(grid.rows) + differences(settings)[:, :, None]) % grid.rows
    arcs_x = successor_arcs(np.broadcast_to(next_x, (grid.rows, *next_x.shape)))
    return build_lines(settings, grid, arcs_x, successor_arcs(next_y))


def halves(settings: RailXDragonflySettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the longer dimension is cut in the middle.

    In a large network that is the groups.
    """
    return grid_halves(grid_of(settings))


def bisection_ports(settings: RailXDragonflySettings) -> int:
    """Ports in one direction across that cut.

    2 min(d, G - d) for each Y rail of difference d, or the row's pairs across.
    """
    if settings.columns >= settings.rows:
        half = settings.columns // 2
        return 2 * row_part(settings).copies * half * (settings.columns - half) * settings.rows
    d = differences(settings)
    return int(2 * np.minimum(d, settings.rows - d).sum())


def node_hop_counts(settings: RailXDragonflySettings) -> IntArray:
    """How many ordered pairs of chips are h inter-node hops apart (index h).

    Shifts of all rows are symmetries, so the sources of row 0 say it all. Within a row:
    1 hop. To a row d further: 1 hop in the own column where that column has difference
    d or -d, 2 where two of its differences make d. Else 2 hops where the source's or
    the destination's column has it, else 3.
    """
    rows, columns = settings.rows, settings.columns
    joins: NDArray[np.bool_] = np.zeros((columns, rows), dtype=np.bool_)
    d = differences(settings)
    column = np.arange(columns)[:, None]
    joins[column, d] = joins[column, rows - d] = True
    source, target = joins[:, None, 1:], joins[None, :, 1:]
    hops = np.where(source | target, 2, 3)
    own = np.arange(columns)
    later = (
        np.arange(rows)[:, None] - np.arange(rows)
    ) % rows  # later[d, e]: what is left of d after e
    twice: NDArray[np.bool_] = np.zeros_like(joins)
    np.logical_and(joins[:, None, :], joins[:, later]).any(axis=2, out=twice)
    hops[own, own] = np.where(joins[:, 1:], 1, 3 - twice[:, 1:].astype(np.int64))
    counts = np.bincount(hops.ravel(), minlength=4)
    counts[:2] += columns, columns * (columns - 1)
    return counts[: int(counts.nonzero()[0].max()) + 1] * rows * settings.m**4


def ports_per_chip(settings: RailXDragonflySettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n


def symmetric_sources(settings: RailXDragonflySettings) -> IntArray:
    """Nodes that stand for all: those of the first group, as the groups are alike."""
    return np.arange(settings.columns)
