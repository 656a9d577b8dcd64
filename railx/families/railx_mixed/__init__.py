"""Network family ``railx_mixed``: RailX with lines of mixed parts."""

from railx.families.family import Family
from railx.families.railx_mixed import checks, graph, placement, routing
from railx.families.railx_mixed.settings import RailXMixedSettings
from railx.vocabulary.line_graphs import circuit_line_graphs

__all__ = ["FAMILY", "RailXMixedSettings"]

FAMILY = Family(
    name="railx_mixed",
    settings=RailXMixedSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
    line_graphs=circuit_line_graphs,
    check_circuits=checks.check_circuits,
    place=placement.place,
)
