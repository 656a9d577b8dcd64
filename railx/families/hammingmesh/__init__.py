"""Network family ``hammingmesh``: boards of chips with a switch for every line."""

from railx.families.family import Family
from railx.families.hammingmesh import graph, placement, rings, routing
from railx.families.hammingmesh.bill import BILL
from railx.families.hammingmesh.settings import HammingMeshSettings

__all__ = ["FAMILY", "HammingMeshSettings"]

FAMILY = Family(
    name="hammingmesh",
    settings=HammingMeshSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    node_hop_counts=graph.node_hop_counts,
    grid_rings=rings.grid_rings,
    place=placement.place,
    bill=BILL,
)
