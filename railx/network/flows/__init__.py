"""The flow model: max-min fair rates and completion times of fluids on a routing's
paths.
"""

from railx.network.flows.fair import fair_rates, link_gb_s, max_min_rates
from railx.network.flows.paths import (
    FlowPaths,
    fixed_paths,
    join_paths,
    path_loads,
    route_flows,
    spread_flows,
)
from railx.network.flows.transfers import finish_times

__all__ = [
    "FlowPaths",
    "fair_rates",
    "finish_times",
    "fixed_paths",
    "join_paths",
    "link_gb_s",
    "max_min_rates",
    "path_loads",
    "route_flows",
    "spread_flows",
]
