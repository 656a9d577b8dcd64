"""Network family ``hyperx``: routers all joined along each dimension of a grid."""

from railx.families.family import Family
from railx.families.hyperx import graph, rings, routing
from railx.families.hyperx.bill import BILL
from railx.families.hyperx.settings import HyperXSettings

__all__ = ["FAMILY", "HyperXSettings"]

FAMILY = Family(
    name="hyperx",
    settings=HyperXSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    node_hop_counts=graph.node_hop_counts,
    chip_rings=rings.chip_rings,
    bill=BILL,
)
