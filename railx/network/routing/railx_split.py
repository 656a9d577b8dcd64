"""Routing on RailX with split dimensions: one logical coordinate after the other, then
a walk to the chip.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.railx_adaptive import adaptive_states, fill_adaptive
from railx.network.routing.railx_lines import Phase
from railx.network.routing.railx_walks import fill_ordered
from railx.network.routing.table import RoutingTable, TableBuilder
from railx.settings import load
from railx.topology import Topology
from railx.topology.railx_parts import part_wiring
from railx.topology.railx_split import RailXSplitSettings, grid_of, parts_of

__all__ = ["ROUTINGS", "phases_of", "route"]

ROUTINGS = ("min", "balanced", "adaptive")


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """The parts of the row, then those of the column; D parts take D + 1 virtual
    channels.

    * ``min``: the nearest link to the next node, as on the 2D HyperX.
    * ``balanced``: all links of a pair carry the same share of the pair's uniform
      traffic.
    * ``adaptive``: any link of any coordinate that is still to be corrected.
    """
    phases = phases_of(topology)
    channels = len(phases) + 1
    if routing == "adaptive":
        states = adaptive_states(phases)
        builder = TableBuilder(
            topology,
            routing,
            states=states,
            virtual_channels=channels,
            selection="adaptive",
            destinations=destinations,
        )
        fill_adaptive(builder, phases)
    else:
        states = 1 if routing == "min" else 1 + max(phase.links for phase in phases)
        builder = TableBuilder(
            topology, routing, states=states, virtual_channels=channels, destinations=destinations
        )
        fill_ordered(builder, phases, "min" if routing == "min" else "balanced")
    return builder.build()


def phases_of(topology: Topology) -> list[Phase]:
    """The parts of the row and of the column as phases, each one logical coordinate of
    the nodes.
    """
    settings: RailXSplitSettings = load(RailXSplitSettings, topology.settings, "topology")
    columns = grid_of(settings).columns
    return [
        Phase(
            part_wiring(part, settings.rings),
            m=settings.m,
            n=settings.n,
            dimension=dimension,
            stride=part.stride * (columns if dimension else 1),
        )
        for dimension, parts in enumerate(parts_of(settings))
        for part in parts
    ]
