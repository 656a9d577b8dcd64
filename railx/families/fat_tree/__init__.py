"""Network family ``fat_tree``: a fat tree of two or three tiers."""

from railx.families.family import Family
from railx.families.fat_tree import graph, loads, rings, routing
from railx.families.fat_tree.bill import BILL
from railx.families.fat_tree.settings import FatTreeSettings

__all__ = ["FAMILY", "FatTreeSettings"]

FAMILY = Family(
    name="fat_tree",
    settings=FatTreeSettings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    loads=loads.uniform_loads,
    chip_order_ring=rings.chip_order_ring,
    bill=BILL,
)
