"""Network family ``railx_torus``: RailX set to a 2D torus."""

from railx.families.family import Family
from railx.families.railx_torus import graph, routing
from railx.families.railx_torus.settings import RailXTorusSettings

__all__ = ["FAMILY", "RailXTorusSettings"]

FAMILY = Family(
    name="railx_torus",
    settings=RailXTorusSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
)
