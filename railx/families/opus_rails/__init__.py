"""Network family ``opus_rails``: servers whose ranks are joined in optical rings."""

from railx.families.family import Family
from railx.families.opus_rails import graph, routing
from railx.families.opus_rails.bill import BILL
from railx.families.opus_rails.lines import LINES
from railx.families.opus_rails.settings import OpusRailsSettings

__all__ = ["FAMILY", "OpusRailsSettings"]

FAMILY = Family(
    name="opus_rails",
    settings=OpusRailsSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
    bill=BILL,
    lines=LINES,
)
