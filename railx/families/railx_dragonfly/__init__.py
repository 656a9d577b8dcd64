"""Network family ``railx_dragonfly``: RailX set to a Dragonfly."""

from railx.families.family import Family
from railx.families.railx_dragonfly import graph, routing
from railx.families.railx_dragonfly.settings import RailXDragonflySettings

__all__ = ["FAMILY", "RailXDragonflySettings"]

FAMILY = Family(
    name="railx_dragonfly",
    settings=RailXDragonflySettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
    node_hop_counts=graph.node_hop_counts,
)
