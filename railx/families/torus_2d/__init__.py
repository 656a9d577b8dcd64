"""Network family ``torus_2d``: a plain 2D torus of chips."""

from railx.families.family import Family
from railx.families.torus_2d import graph, routing
from railx.families.torus_2d.settings import Torus2DSettings

__all__ = ["FAMILY", "Torus2DSettings"]

FAMILY = Family(
    name="torus_2d",
    settings=Torus2DSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
)
