"""Network family ``imported``: any connected network, read from a file."""

from railx.families.family import Family
from railx.families.imported import graph, routing
from railx.families.imported.settings import ImportedSettings

__all__ = ["FAMILY", "ImportedSettings"]

FAMILY = Family(
    name="imported",
    settings=ImportedSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
)
