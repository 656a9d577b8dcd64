"""Network family ``railx_dragonfly``: RailX set to a Dragonfly."""

from railx.families.node_grids import (
    in_node_lanes_per_chip,
    node_grid_family,
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
from railx.families.railx_dragonfly.routing import groups, route
from railx.vocabulary.counts import Bill
from railx.vocabulary.placement import node_placement

__all__ = ["FAMILY", "RailXDragonflySettings"]

FAMILY = node_grid_family(
    "railx_dragonfly",
    RailXDragonflySettings,
    build=build,
    check=check,
    bisection_ports=bisection_ports,
    route=route,
    grouped_routings=("min", "balanced"),
    groups=groups,
    node_hop_counts=node_hop_counts,
    symmetric_sources=symmetric_sources,
    check_circuits=check_circuits,
    placement=lambda settings, topology, sizes: node_placement(topology, sizes),
    bill=Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip),
)
