"""Training jobs on topologies: which parallelism lies on which axis, what each step sends, and how long that takes."""

from railx.mapping.layout import axes_chips, group_members
from railx.mapping.settings import (
    PARALLELISMS,
    ChipSettings,
    ExpertSettings,
    JobSettings,
    LayoutSettings,
    MappedTopology,
    MappingSettings,
)
from railx.mapping.step import injection_factor, step_times
from railx.mapping.volumes import Transfer, compute_flops, step_transfers

__all__ = [
    "PARALLELISMS",
    "ChipSettings",
    "ExpertSettings",
    "JobSettings",
    "LayoutSettings",
    "MappedTopology",
    "MappingSettings",
    "Transfer",
    "axes_chips",
    "compute_flops",
    "group_members",
    "injection_factor",
    "step_times",
    "step_transfers",
]
