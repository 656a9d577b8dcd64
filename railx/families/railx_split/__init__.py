"""Network family ``railx_split``: RailX with lines split in all-to-all parts and rings."""

from railx.families.family import Family
from railx.families.railx_split import graph, routing
from railx.families.railx_split.settings import RailXSplitSettings

__all__ = ["FAMILY", "RailXSplitSettings"]

FAMILY = Family(
    name="railx_split",
    settings=RailXSplitSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    switched=True,
)
