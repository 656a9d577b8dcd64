"""Network family ``railx_split``: RailX with lines split in all-to-all parts."""

from railx.families.family import Family
from railx.families.railx_split import checks, graph, loads, routing
from railx.families.railx_split.bill import BILL
from railx.families.railx_split.settings import RailXSplitSettings
from railx.vocabulary.line_graphs import circuit_line_graphs
from railx.vocabulary.placement import place_nodes

__all__ = ["FAMILY", "RailXSplitSettings"]

FAMILY = Family(
    name="railx_split",
    settings=RailXSplitSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    grouped_routings=("min", "balanced"),
    groups=routing.groups,
    switched=True,
    line_graphs=circuit_line_graphs,
    check_circuits=checks.check_circuits,
    loads=loads.uniform_loads,
    place=place_nodes,
    bill=BILL,
)
