"""Network family ``imported``: any connected network, read from a file."""

from railx.families.family import Family
from railx.families.imported.graph import (
    ImportedSettings,
    bisection_ports,
    build,
    check,
    halves,
    ports_per_chip,
    route,
)
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS

__all__ = ["FAMILY", "ImportedSettings", "route"]

FAMILY = Family(
    name="imported",
    settings=ImportedSettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=ports_per_chip,
    routings=HOP_ROUTINGS,
    route=route,
)
