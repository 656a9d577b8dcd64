"""Network family ``rail_optimised``: servers, rail switches for ranks, a spine."""

from railx.families.family import Family
from railx.families.rail_optimised import graph, routing
from railx.families.rail_optimised.bill import BILL
from railx.families.rail_optimised.lines import LINES
from railx.families.rail_optimised.settings import RailOptimisedSettings

__all__ = ["FAMILY", "RailOptimisedSettings"]

FAMILY = Family(
    name="rail_optimised",
    settings=RailOptimisedSettings,
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
