"""Dimension order on RailX set to a torus of nodes.

Its chips form one large torus, whose links run inside the nodes or along rails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_torus.settings import RailXTorusSettings
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "chip_grid", "groups", "route"]

ROUTINGS = ("min", "balanced")

IntArray = NDArray[np.int64]


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """X first, the shorter path round a ring.

    Both routings send half of the packets in each direction where both are equally
    long.

    Under ``min`` a packet is on virtual channel 1 until it takes the wrap link of its
    ring and on 0 from there on, and so again in y (RailX simulator, ``XY``). Under
    ``balanced`` one that does not take it draws its channel
    (:func:`railx.vocabulary.routing.rings.route_rings`). The n parallel lanes inside a
    node and the n rails of a chip's side are one pool of channels.
    """
    settings = topology.settings
    assert isinstance(settings, RailXTorusSettings)
    grid = chip_grid(settings.m, settings.x_scale, settings.y_scale)
    position = np.argsort(grid.ravel())
    return route_rings(topology, routing, grid.shape[::-1], destinations, position, split_ties=True)


def chip_grid(m: int, columns: int, rows: int) -> IntArray:
    """The chip at each place of the whole plane of chips: int[m * rows, m * columns].

    For ``columns`` by ``rows`` nodes of m x m.
    """
    y, x = np.indices((m * rows, m * columns))
    chip: IntArray = (y // m * columns + x // m) * m * m + y % m * m + x % m
    return chip


def groups(settings: RailXTorusSettings, routing: str) -> int:
    """A place of each ring of chips."""
    return settings.m * (settings.x_scale + settings.y_scale)
