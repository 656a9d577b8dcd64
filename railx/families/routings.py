"""Which routings each family of topologies offers, and the table of any of them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from railx.families.dragonfly import routing as dragonfly
from railx.families.fat_tree import routing as fat_tree
from railx.families.hammingmesh import routing as hammingmesh
from railx.families.hyperx import routing as hyperx
from railx.families.mesh_2d import routing as mesh_2d
from railx.families.opus_rails import routing as opus_rails
from railx.families.railx_dragonfly import routing as railx_dragonfly
from railx.families.railx_hyperx import routing as railx_hyperx
from railx.families.railx_mixed import routing as railx_mixed
from railx.families.railx_split import routing as railx_split
from railx.families.railx_torus import routing as railx_torus
from railx.families.railx_twisted_torus import routing as railx_twisted_torus
from railx.families.torus_2d import routing as torus_2d
from railx.families.torus_3d import routing as torus_3d
from railx.families.tpu_v4 import routing as tpu_v4
from railx.settings import SettingsError
from railx.vocabulary.routing import rails
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

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
