"""Which routings each family of topologies offers, and the table of any of them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from railx.network.routing import railx_hyperx, torus_2d
from railx.network.routing.table import RoutingTable
from railx.settings import SettingsError
from railx.topology import Topology

__all__ = ["build_routing", "routings_of"]

#: A family's module has ROUTINGS (the names it offers, ``min`` first) and route(topology, routing, destinations) -> RoutingTable.
_ROUTERS: dict[str, ModuleType] = {
    "railx_hyperx": railx_hyperx,
    "torus_2d": torus_2d,
}


def routings_of(family: str) -> tuple[str, ...]:
    """The routings that a family offers."""
    names: tuple[str, ...] = _ROUTERS[family].ROUTINGS
    return names


def build_routing(topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None) -> RoutingTable:
    """The table of a routing, to all chips or to ``destinations`` alone; SettingsError names the routings on offer."""
    offered = routings_of(topology.family)
    if routing not in offered:
        raise SettingsError("routing", f"got {routing!r}; allowed on {topology.family}: {', '.join(offered)}")
    table: RoutingTable = _ROUTERS[topology.family].route(topology, routing, destinations)
    return table
