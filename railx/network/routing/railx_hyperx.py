"""Routing on RailX set to a 2D HyperX: one rail along the row, one along the column, a walk to the chip.

Every ordered pair of nodes of a line has two links, which start at different chips; the routings differ in who takes which.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.railx_lines import hyperx_flow, rail_rows
from railx.network.routing.railx_walks import Exits, exits, split_sets, walk_pools
from railx.network.routing.table import RoutingTable, TableBuilder
from railx.topology import RailXHyperXSettings, Topology, settings_of

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "balanced", "adaptive")

IntArray = NDArray[np.int64]


def route(topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None) -> RoutingTable:
    """Row first (``adaptive``: either first), with a virtual channel for each of the three walks; a rail takes the one after it.

    * ``min`` (RailX simulator): the nearer link of the pair, at equal distance the one on the minus side; XY inside the nodes.
    * ``balanced``: each link of a pair carries exactly half of the pair's uniform traffic; a packet draws its link when it starts a
      phase and keeps it. Walks go YX, XY, YX on the three channels, which keeps them off the edges they come from.
    * ``adaptive``: at the source both links of the row and both of the column, later both links of the dimension that is left.

    States: 0 undecided; 1 and 2 on the way to link 0 or 1 of the row, 3 and 4 of the column.
    """
    settings = settings_of(topology)
    assert isinstance(settings, RailXHyperXSettings)
    adaptive = routing == "adaptive"
    builder = TableBuilder(
        topology,
        routing,
        states={"min": 1, "balanced": 3, "adaptive": 5}[routing],
        virtual_channels=3,
        selection="adaptive" if adaptive else "weighted",
        destinations=destinations,
    )
    if adaptive:
        _fill_adaptive(builder, settings)
    else:
        _fill_ordered(builder, settings, "min" if routing == "min" else "balanced")
    return builder.build()


def _fill_ordered(builder: TableBuilder, settings: RailXHyperXSettings, routing: Literal["min", "balanced"]) -> None:
    flow = hyperx_flow(builder.topology, routing)
    side = flow.row.length
    chip = np.arange(builder.topology.chips)
    node, local = np.divmod(chip, settings.m**2)
    x, y = node % side, node // side
    to_node = builder.destinations.astype(np.int64) // settings.m**2
    crosses_row = x[:, None] != to_node % side
    same_node = node[:, None] == to_node
    for dimension, line, first in ((0, flow.row, flow.row_first), (1, flow.column, flow.column_first)):
        across, own = (y, x) if dimension == 0 else (x, y)
        target = to_node % side if dimension == 0 else to_node // side
        here = crosses_row if dimension == 0 else ~crosses_row & ~same_node
        walk = walk_pools(builder, settings.m, flow.orders[dimension], dimension)
        rows = rail_rows(builder.topology, line, dimension, side)[across, own]  # [chip, target, link]
        headings = (0, 0) if routing == "min" else (1, 2)
        ways = [exits(builder, walk, rows[..., k], vc=dimension + 1, heading=headings[k], after=0) for k in (0, 1)]
        share = np.broadcast_to(first, (side, *first.shape[1:]))[across, own, local]
        sets = [split_sets(builder, ways, [share, 1 - share])]
        if routing == "balanced":
            sets += [builder.single(np.where(way.rail < 0, -1, way.pool), way.state) for way in ways]
        for state, per_target in enumerate(sets):
            builder.entry[state][here] = per_target[:, target][here]
    _fill_final(builder, walk_pools(builder, settings.m, flow.orders[2], 2), same_node)


def _fill_final(builder: TableBuilder, walk: IntArray, same_node: NDArray[np.bool_]) -> None:
    chips_per_node = walk.shape[1]
    sets = builder.single(walk, 0)
    builder.entry[0][same_node] = sets[:, builder.destinations % chips_per_node][same_node]
