"""Jobs and failures on a reconfigurable grid: placement, circuits, the largest usable
job, streams of jobs, degraded lines.
"""

from railx.tenancy.allocate import find_block, find_nodes, find_product
from railx.tenancy.degraded import degraded_rows, line_bandwidth, rewired_rings
from railx.tenancy.grid import (
    Faults,
    NodeGrid,
    Placement,
    check_placements,
    placement_circuits,
    position_rings,
    random_faults,
    usable_rails,
)
from railx.tenancy.largest import (
    Largest,
    formula_share,
    largest_block,
    largest_product,
    matching_size,
)
from railx.tenancy.settings import (
    GridJobSettings,
    StreamJobSettings,
    StreamSettings,
    TenancySettings,
    check_job,
)
from railx.tenancy.stream import (
    Failures,
    Outcome,
    Stream,
    draw_failures,
    draw_stream,
    simulate_stream,
)
from railx.tenancy.study import (
    degraded_table,
    fault_table,
    grid_of,
    mix_of_jobs,
    place_jobs,
    tenancy_summary,
    utilisation_table,
)

__all__ = [
    "Failures",
    "Faults",
    "GridJobSettings",
    "Largest",
    "NodeGrid",
    "Outcome",
    "Placement",
    "Stream",
    "StreamJobSettings",
    "StreamSettings",
    "TenancySettings",
    "check_job",
    "check_placements",
    "degraded_rows",
    "degraded_table",
    "draw_failures",
    "draw_stream",
    "fault_table",
    "find_block",
    "find_nodes",
    "find_product",
    "formula_share",
    "grid_of",
    "largest_block",
    "largest_product",
    "line_bandwidth",
    "matching_size",
    "mix_of_jobs",
    "place_jobs",
    "placement_circuits",
    "position_rings",
    "random_faults",
    "rewired_rings",
    "simulate_stream",
    "tenancy_summary",
    "usable_rails",
    "utilisation_table",
]
