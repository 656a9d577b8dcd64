"""Network family ``dragonfly``: groups of switches with links between all groups."""

from dataclasses import replace

from railx.families.dragonfly.graph import (
    DragonflySettings,
    bisection_ports,
    build,
    check,
    halves,
    node_hop_counts,
    ports,
    ports_per_chip,
    resize,
)
from railx.families.dragonfly.routing import route
from railx.families.family import Family, any_chips
from railx.vocabulary.counts import Bill
from railx.vocabulary.routing.analysis import PairLoads
from railx.vocabulary.routing.planes import table_loads
from railx.vocabulary.topology import Topology

__all__ = ["FAMILY", "DragonflySettings"]


def pair_loads(settings: DragonflySettings, topology: Topology, routing: str) -> PairLoads | None:
    """Those of a plane, as all planes carry the same; None where there is only one."""
    if settings.planes == 1:
        return None
    alone = replace(settings, planes=1)
    plane = build(alone)
    return table_loads(plane, route(alone, plane, routing), settings.planes)


FAMILY = Family(
    name="dragonfly",
    settings=DragonflySettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=ports_per_chip,
    routings=("min", "adaptive", "valiant"),
    route=route,
    pair_loads=pair_loads,
    node_hop_counts=node_hop_counts,
    job_places=any_chips(lambda of: of.chips, domain_chips=lambda of: of.p * of.a),
    bill=Bill(ports=ports, resize=resize, copper=("leaf", "local")),
)
