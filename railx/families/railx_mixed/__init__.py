"""Network family ``railx_mixed``: RailX with lines of mixed parts."""

from railx.families.family import Family
from railx.families.railx_mixed import graph, routing
from railx.families.railx_mixed.settings import RailXMixedSettings

__all__ = ["FAMILY", "RailXMixedSettings"]

FAMILY = Family(
    name="railx_mixed",
    settings=RailXMixedSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
)
