"""Training jobs on topologies: the transfers of each step and their times.

A job assigns each parallelism to axes.
"""

from railx.mapping.cost import (
    check_reference,
    comparison_bases,
    equal_bandwidth,
    injection_gb_s_per_chip,
)
from railx.mapping.layout import compute_flops, group_levels, group_members, step_transfers
from railx.mapping.node_prices import node_price_rows
from railx.mapping.rail_steps import rail_step_rows
from railx.mapping.settings import (
    PARALLELISMS,
    ExpertSettings,
    JobSettings,
    LayoutSettings,
    MappedTopology,
    MappingSettings,
    RailStep,
    RailStepsSettings,
    SwitchedNetwork,
    SwitchedSettings,
)
from railx.mapping.step import Basis, step_times
from railx.mapping.switched import switched_times
from railx.performance.volumes import Transfer

__all__ = [
    "PARALLELISMS",
    "Basis",
    "ExpertSettings",
    "JobSettings",
    "LayoutSettings",
    "MappedTopology",
    "MappingSettings",
    "RailStep",
    "RailStepsSettings",
    "SwitchedNetwork",
    "SwitchedSettings",
    "Transfer",
    "check_reference",
    "comparison_bases",
    "compute_flops",
    "equal_bandwidth",
    "group_levels",
    "group_members",
    "injection_gb_s_per_chip",
    "node_price_rows",
    "rail_step_rows",
    "step_times",
    "step_transfers",
    "switched_times",
]
