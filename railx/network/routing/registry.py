"""Which routings each family of topologies offers, and the table of any of them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from railx.network.routing import (
    dragonfly,
    fat_tree,
    hammingmesh,
    hyperx,
    mesh_2d,
    opus_rails,
    rails,
    railx_dragonfly,
    railx_hyperx,
    railx_mixed,
    railx_split,
    railx_torus,
    railx_twisted_torus,
    torus_2d,
    torus_3d,
    tpu_v4,
)
from railx.network.routing.table import RoutingTable
from railx.settings import SettingsError
from railx.topology import Topology

__all__ = ["build_routing", "routings_of"]

#: A family's module has ROUTINGS (the names it offers, ``min`` first) and
#: route(topology, routing, destinations) -> RoutingTable.
_ROUTERS: dict[str, ModuleType] = {
    "dragonfly": dragonfly,
    "fat_tree": fat_tree,
    "hammingmesh": hammingmesh,
    "hyperx": hyperx,
    "mesh_2d": mesh_2d,
    "opus_rails": opus_rails,
    "rail_only": rails,
    "rail_optimised": rails,
    "railx_dragonfly": railx_dragonfly,
    "railx_hyperx": railx_hyperx,
    "railx_mixed": railx_mixed,
    "railx_split": railx_split,
    "railx_torus": railx_torus,
    "railx_twisted_torus": railx_twisted_torus,
    "torus_2d": torus_2d,
    "torus_3d": torus_3d,
    "tpu_v4": tpu_v4,
}


def routings_of(family: str) -> tuple[str, ...]:
    """The routings that a family offers."""
    names: tuple[str, ...] = _ROUTERS[family].ROUTINGS
    return names


def build_routing(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """The table of a routing, to all chips or to ``destinations`` alone; SettingsError
    names the routings on offer.
    """
    offered = routings_of(topology.family)
    if routing not in offered:
        raise SettingsError(
            "routing", f"got {routing!r}; allowed on {topology.family}: {', '.join(offered)}"
        )
    table: RoutingTable = _ROUTERS[topology.family].route(topology, routing, destinations)
    return table
