"""Routing of family ``rail_optimised``: inside the server first, then along a rail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.rail_optimised.settings import RailOptimisedSettings
from railx.vocabulary.routing.rails import ROUTINGS, RailNetwork, route_rails
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """``min`` and ``adaptive`` as in
    :func:`railx.vocabulary.routing.rails.route_rails`.
    """
    settings = topology.settings
    assert isinstance(settings, RailOptimisedSettings)
    network = RailNetwork(
        chips_per_server=settings.chips_per_server,
        servers=settings.servers,
        servers_per_pod=settings.servers_per_pod,
        planes=settings.planes,
        rail_switches=settings.rail_switches,
        spines=settings.spines,
        spine_delay_ns=2 * (settings.global_latency_ns - settings.scale_up_latency_ns),
    )
    return route_rails(topology, network, routing, destinations)
