"""Network family ``railx_hyperx``: RailX set to a 2D HyperX."""

from railx.families.family import Family
from railx.families.railx_hyperx import graph, routing
from railx.families.railx_hyperx.settings import RailXHyperXSettings

__all__ = ["FAMILY", "RailXHyperXSettings"]

FAMILY = Family(
    name="railx_hyperx",
    settings=RailXHyperXSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
)
