"""Network family ``hammingmesh``: boards of chips with a switch for every line."""

from railx.families.family import Family
from railx.families.hammingmesh import graph, routing
from railx.families.hammingmesh.settings import HammingMeshSettings

__all__ = ["FAMILY", "HammingMeshSettings"]

FAMILY = Family(
    name="hammingmesh",
    settings=HammingMeshSettings,
    build=graph.build,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    node_hop_counts=graph.node_hop_counts,
)
