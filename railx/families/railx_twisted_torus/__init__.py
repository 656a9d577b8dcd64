"""Network family ``railx_twisted_torus``: RailX set to a twisted torus."""

from railx.families.family import Family
from railx.families.railx_twisted_torus import graph, routing
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings

__all__ = ["FAMILY", "RailXTwistedTorusSettings"]

FAMILY = Family(
    name="railx_twisted_torus",
    settings=RailXTwistedTorusSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
    node_hop_counts=graph.node_hop_counts,
)
