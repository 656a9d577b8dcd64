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

__all__ = ["FAMILY", "DragonflySettings"]


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
    plane=lambda of: (build(replace(of, planes=1)), of.planes),
    node_hop_counts=node_hop_counts,
    job_places=any_chips(lambda of: of.chips, domain_chips=lambda of: of.p * of.a),
    bill=Bill(ports=ports, resize=resize, copper=("leaf", "local")),
)
