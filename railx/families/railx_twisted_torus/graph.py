"""RailX set to a 2a x a twisted torus: column wraps are shifted by half a row.

Going up from row a - 1 of column X leads to row 0 of column X + a (Camara, Moreto,
Vallejo, Beivide, Miguel-Alonso, Martinez and Navaridas, "Twisted Torus Topologies for
Enhanced Interconnection Networks", IEEE TPDS 2010; RailX simulator, its 2D twisted
torus). Rows are rings of 2a nodes as in the plain torus.

Going up from row a - 1 of column X leads to row 0 of column X + a (Camara, Moreto,
Vallejo, Beivide, Miguel-Alonso, Martinez and Navaridas, "Twisted Torus Topologies for
Enhanced Interconnection Networks", IEEE TPDS 2010; RailX simulator, its 2D twisted
torus). Rows are rings of 2a nodes as in the plain torus.

How optical switches can do it. A switch joins ports of its own line only, and in the
plain layout of RailX a Y switch serves one column, so that no circuit can change the
column. Columns X and X + a always close one ring of 2a nodes together, and no smaller
set of columns is closed under the wrap. So this setting assumes that **the columns X
and X + a are cabled to the same Y switches**: a grid of a x a crossings with two nodes
each. A Y switch then holds 2 ports x 2a nodes = 4a, just what the X switch of a row of
2a nodes holds, and there are a r of each kind. This cabling is an assumption; the
abstract of RailX does not say how its authors do it.

Nodes: (X, Y) is number Y * 2a + X, chips and rails as in :mod:`railx.vocabulary.grid`;
all r rails of a line carry the same ring. On the line of the column pair c (0 <= c < a)
position p is node (c, p) for p < a and node (c + a, p - a) for p >= a. ``wrap:
straight`` closes each column on the same cabling instead: the plain 2a x a torus, to
compare with and to reconfigure from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings, grid_of
from railx.vocabulary.grid import build_lines, grid_halves, ring_arcs, successor_arcs
from railx.vocabulary.topology import Topology, check_size

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "grid_of",
    "halves",
    "node_hop_counts",
    "ports_per_chip",
    "symmetric_sources",
    "wrap_shift",
]


def wrap_shift(settings: RailXTwistedTorusSettings) -> int:
    """By how many columns the wrap of a column is shifted.

    Both up and down: half of x_scale is its own opposite.
    """
    return settings.y_scale if settings.wrap == "twisted" else 0


def check(settings: RailXTwistedTorusSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("x_scale", grid_of(settings).link_rows)


def build(settings: RailXTwistedTorusSettings) -> Topology:
    """Build the topology.

    Rail i of every row and of every column pair carries the same ring (or the pair's
    two rings).
    """
    grid = grid_of(settings)
    a = settings.y_scale
    up = (np.arange(2 * a) + 1) % (2 * a)
    if settings.wrap == "straight":
        up[[a - 1, 2 * a - 1]] = 0, a
    ring_x = np.tile(np.arange(grid.columns), (grid.rails, 1))
    arcs_y = successor_arcs(np.broadcast_to(up, (a, grid.rails, 2 * a)))
    return build_lines(
        settings,
        grid,
        ring_arcs(ring_x, grid.rows),
        arcs_y,
        paired_columns=True,
    )


def halves(settings: RailXTwistedTorusSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the rows are cut in the middle.

    Columns 0..a-1 and a..2a-1.
    """
    return grid_halves(grid_of(settings), 0)


def bisection_ports(settings: RailXTwistedTorusSettings) -> int:
    """Ports in one direction across that cut.

    r rails at both boundaries of a rows and, twisted, at the wrap of 2a columns.
    """
    rails, a = settings.m * settings.n, settings.y_scale
    return 2 * rails * a + (2 * rails * a if settings.wrap == "twisted" else 0)


def ports_per_chip(settings: RailXTwistedTorusSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n


def node_hop_counts(settings: RailXTwistedTorusSettings) -> NDArray[np.int64]:
    """How many ordered pairs of chips are h inter-node hops apart (index h).

    Node 0 stands for all. A node at (dx, dy) has the images (dx + k shift, dy - k
    rows). The shortest path is the best of them for k = -1, 0 and 1, each taken the
    shorter path round its row.
    """
    columns, rows = settings.x_scale, settings.y_scale
    dx, dy = np.meshgrid(np.arange(columns), np.arange(rows))
    around = [(dx + k * wrap_shift(settings)) % columns for k in (-1, 0, 1)]
    lengths = [
        np.minimum(x, columns - x) + abs(dy - k * rows)
        for k, x in zip((-1, 0, 1), around, strict=True)
    ]
    hops = np.minimum.reduce(lengths)
    return np.bincount(hops.ravel()) * columns * rows * settings.m**4


def symmetric_sources(settings: RailXTwistedTorusSettings) -> NDArray[np.int64]:
    """Nodes that stand for all: node 0, as a shift of all nodes is a symmetry."""
    return np.array([0])
