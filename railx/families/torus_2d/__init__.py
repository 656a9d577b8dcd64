"""Network family ``torus_2d``: a plain 2D torus of chips."""

from railx.families.family import Family
from railx.families.torus_2d import graph, loads, placement, rings, routing
from railx.families.torus_2d.bill import BILL
from railx.families.torus_2d.settings import Torus2DSettings

__all__ = ["FAMILY", "Torus2DSettings"]

FAMILY = Family(
    name="torus_2d",
    settings=Torus2DSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    grouped_routings=("min", "balanced"),
    groups=routing.groups,
    line_graphs=graph.line_graphs,
    loads=loads.uniform_loads,
    longest_path_ns=loads.longest_path_ns,
    grid_rings=rings.grid_rings,
    place=placement.place,
    bill=BILL,
)
