"""Network family ``railx_twisted_torus``: RailX set to a twisted torus."""

from railx.families.family import Family
from railx.families.railx_twisted_torus import checks, graph, loads, placement, routing
from railx.families.railx_twisted_torus.bill import BILL
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings

__all__ = ["FAMILY", "RailXTwistedTorusSettings"]

FAMILY = Family(
    name="railx_twisted_torus",
    settings=RailXTwistedTorusSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
    node_hop_counts=graph.node_hop_counts,
    symmetric_sources=graph.symmetric_sources,
    check_circuits=checks.check_circuits,
    loads=loads.uniform_loads,
    place=placement.place,
    bill=BILL,
)
