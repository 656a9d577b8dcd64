"""Network family ``dragonfly``: groups of switches with links between all groups."""

from railx.families.dragonfly import graph, routing
from railx.families.dragonfly.bill import BILL
from railx.families.dragonfly.settings import DragonflySettings
from railx.families.family import Family

__all__ = ["FAMILY", "DragonflySettings"]

FAMILY = Family(
    name="dragonfly",
    settings=DragonflySettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    node_hop_counts=graph.node_hop_counts,
    bill=BILL,
)
