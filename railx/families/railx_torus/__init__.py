"""Network family ``railx_torus``: RailX set to a 2D torus."""

from railx.families.family import Family
from railx.families.railx_torus import checks, graph, loads, placement, rings, routing
from railx.families.railx_torus.bill import BILL
from railx.families.railx_torus.lines import LINES
from railx.families.railx_torus.settings import RailXTorusSettings
from railx.vocabulary.line_graphs import circuit_line_graphs

__all__ = ["FAMILY", "RailXTorusSettings"]

FAMILY = Family(
    name="railx_torus",
    settings=RailXTorusSettings,
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
    longest_path_ns=loads.longest_path_ns,
    grid_rings=rings.grid_rings,
    place=placement.place,
    bill=BILL,
    lines=LINES,
)
