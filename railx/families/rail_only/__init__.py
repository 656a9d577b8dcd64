"""Network family ``rail_only``: servers whose ranks meet at rail switches alone."""

from railx.families.family import Family
from railx.families.rail_only import graph, routing
from railx.families.rail_only.bill import BILL
from railx.families.rail_only.lines import LINES
from railx.families.rail_only.settings import RailOnlySettings

__all__ = ["FAMILY", "RailOnlySettings"]

FAMILY = Family(
    name="rail_only",
    settings=RailOnlySettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    bill=BILL,
    lines=LINES,
)
