"""Network family ``hammingmesh``: boards of chips with a switch for every line."""

from railx.families.hammingmesh.graph import (
    BoardRings,
    HammingMeshSettings,
    bisection_ports,
    build,
    check,
    halves,
    node_hop_counts,
    ports,
    resize,
)
from railx.families.hammingmesh.routing import groups_of, route
from railx.families.node_grids import node_grid_family
from railx.vocabulary.counts import Bill

__all__ = ["FAMILY", "HammingMeshSettings"]

FAMILY = node_grid_family(
    "hammingmesh",
    HammingMeshSettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    routings=("min", "balanced", "adaptive"),
    route=route,
    grouped_routings=("min", "balanced", "adaptive"),
    groups=groups_of,
    node_hop_counts=node_hop_counts,
    grid_rings=lambda settings, topology: BoardRings(topology, settings.grid),
    bill=Bill(ports=ports, resize=resize, copper=("row", "column")),
)
