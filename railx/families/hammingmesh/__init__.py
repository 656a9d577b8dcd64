"""Network family ``hammingmesh``: boards of chips with a switch for every line."""

from railx.families.family import Family
from railx.families.hammingmesh.graph import (
    HammingMeshSettings,
    bisection_ports,
    build,
    check,
    grid_rings,
    halves,
    node_hop_counts,
    ports,
    resize,
)
from railx.families.hammingmesh.routing import route
from railx.families.node_grids import LINE_PLACES, grid_placement, inside, ports_per_chip
from railx.vocabulary.counts import Bill

__all__ = ["FAMILY", "HammingMeshSettings"]

FAMILY = Family(
    name="hammingmesh",
    settings=HammingMeshSettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=ports_per_chip,
    has_nodes=True,
    inside=inside,
    job_places=LINE_PLACES,
    routings=("min", "balanced", "adaptive"),
    route=route,
    node_hop_counts=node_hop_counts,
    grid_rings=grid_rings,
    placement=grid_placement,
    bill=Bill(ports=ports, resize=resize, copper=("row", "column")),
)
