"""Network family ``tpu_v4``: a 3D torus of cubes behind optical switches."""

from railx.families.family import Family
from railx.families.tpu_v4 import graph, rings, routing
from railx.families.tpu_v4.bill import BILL
from railx.families.tpu_v4.settings import TpuV4Settings

__all__ = ["FAMILY", "TpuV4Settings"]

FAMILY = Family(
    name="tpu_v4",
    settings=TpuV4Settings,
    build=graph.build,
    check=graph.check,
    halves=graph.halves,
    bisection_ports=graph.bisection_ports,
    ports_per_chip=graph.ports_per_chip,
    routings=routing.ROUTINGS,
    route=routing.route,
    grouped_routings=("min", "balanced"),
    groups=routing.groups,
    switched=True,
    chip_rings=rings.chip_rings,
    bill=BILL,
)
