"""Network family ``hyperx``: routers all joined along each dimension of a grid."""

from railx.families.family import Family
from railx.families.hyperx import graph, routing
from railx.families.hyperx.settings import HyperXSettings

__all__ = ["FAMILY", "HyperXSettings"]

FAMILY = Family(
    name="hyperx",
    settings=HyperXSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    node_hop_counts=graph.node_hop_counts,
)
