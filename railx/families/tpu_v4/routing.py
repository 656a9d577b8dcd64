"""Dimension order on the 3D torus of cubes: x, y, then z.

Rings have two virtual channels each; the cubes make no difference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.tpu_v4.graph import chip_places
from railx.families.tpu_v4.settings import TpuV4Settings
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
    assert isinstance(settings, TpuV4Settings)
    columns, rows, _ = settings.lengths
    x, y, z = chip_places(settings)
    return route_rings(
        topology, routing, settings.lengths, destinations, (z * rows + y) * columns + x
    )


def groups(settings: TpuV4Settings, routing: str) -> int:
    """A place of each ring."""
    return sum(settings.lengths)
