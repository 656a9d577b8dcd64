"""Routing: every family's ways as one kind of table, and what can be read from any such
table.
"""

from railx.network.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    longest_ways,
    path_lengths,
    path_sums,
    table_channel_loads,
    table_lane_loads,
)
from railx.network.routing.registry import build_routing, routings_of
from railx.network.routing.table import RoutingTable, TableBuilder

__all__ = [
    "RoutingTable",
    "TableBuilder",
    "build_routing",
    "check_deadlock_free",
    "check_delivery",
    "longest_ways",
    "path_lengths",
    "path_sums",
    "routings_of",
    "table_channel_loads",
    "table_lane_loads",
]
