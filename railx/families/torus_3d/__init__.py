"""Network family ``torus_3d``: a plain 3D torus of chips."""

from railx.families.family import Family
from railx.families.torus_3d import graph, placement, rings, routing
from railx.families.torus_3d.bill import BILL
from railx.families.torus_3d.settings import Torus3DSettings

__all__ = ["FAMILY", "Torus3DSettings"]

FAMILY = Family(
    name="torus_3d",
    settings=Torus3DSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    grouped_routings=("min", "balanced"),
    groups=routing.groups,
    node_hop_counts=graph.node_hop_counts,
    chip_rings=rings.chip_rings,
    place=placement.place,
    bill=BILL,
)
