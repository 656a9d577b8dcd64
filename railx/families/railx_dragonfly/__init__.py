"""Network family ``railx_dragonfly``: RailX set to a Dragonfly."""

from railx.families.family import Family
from railx.families.railx_dragonfly import checks, graph, routing
from railx.families.railx_dragonfly.bill import BILL
from railx.families.railx_dragonfly.settings import RailXDragonflySettings
from railx.vocabulary.placement import place_nodes

__all__ = ["FAMILY", "RailXDragonflySettings"]

FAMILY = Family(
    name="railx_dragonfly",
    settings=RailXDragonflySettings,
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
    place=place_nodes,
    bill=BILL,
)
