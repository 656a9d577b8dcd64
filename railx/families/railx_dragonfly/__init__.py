"""Network family ``railx_dragonfly``: RailX set to a Dragonfly."""

from railx.families.family import Family
from railx.families.node_grids import (
    LINE_PLACES,
    halves,
    in_node_lanes_per_chip,
    inside,
    ports_per_chip,
)
from railx.families.railx_dragonfly.graph import (
    RailXDragonflySettings,
    bisection_ports,
    build,
    check,
    check_circuits,
    node_hop_counts,
    ports,
    resize,
    symmetric_sources,
)
from railx.families.railx_dragonfly.routing import route
from railx.vocabulary.counts import Bill
from railx.vocabulary.placement import node_placement

__all__ = ["FAMILY", "RailXDragonflySettings"]

FAMILY = Family(
    name="railx_dragonfly",
    settings=RailXDragonflySettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=ports_per_chip,
    has_nodes=True,
    inside=inside,
    job_places=LINE_PLACES,
    routings=("min", "balanced"),
    route=route,
    switched=True,
    node_hop_counts=node_hop_counts,
    symmetric_sources=symmetric_sources,
    check_circuits=check_circuits,
    placement=lambda settings, topology, sizes: node_placement(topology, sizes),
    bill=Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip),
)
