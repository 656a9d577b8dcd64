"""Network family ``mesh_2d``: a plain 2D mesh of chips."""

from railx.families.family import Family
from railx.families.mesh_2d import graph, placement, routing
from railx.families.mesh_2d.settings import Mesh2DSettings

__all__ = ["FAMILY", "Mesh2DSettings"]

FAMILY = Family(
    name="mesh_2d",
    settings=Mesh2DSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    node_hop_counts=graph.node_hop_counts,
    place=placement.place,
)
