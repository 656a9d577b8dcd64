"""Dimension order on a plain 2D torus: x, then y, two virtual channels per ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.torus_2d.settings import Torus2DSettings
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "groups", "route"]

ROUTINGS = ("min", "balanced")


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """The shorter path round each ring.

    ``min`` goes up where both paths round are equally long, ``balanced`` splits those
    packets evenly. Packets that take no wrap link are on the first virtual channel
    under ``min`` and draw one of the two under ``balanced``.
    """
    settings = topology.settings
    assert isinstance(settings, Torus2DSettings)
    return route_rings(topology, routing, (settings.x_scale, settings.y_scale), destinations)


def groups(settings: Torus2DSettings, routing: str) -> int:
    """A place of each ring."""
    return settings.x_scale + settings.y_scale
