"""Routing on RailX with split dimensions: one logical coordinate after the other.

A walk to the chip comes last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_split.graph import grid_of, parts_of
from railx.families.railx_split.settings import RailXSplitSettings
from railx.vocabulary.line_parts import part_wiring
from railx.vocabulary.routing.adaptive_phases import adaptive_states, fill_adaptive
from railx.vocabulary.routing.line_phases import LineRouting, Phase
from railx.vocabulary.routing.node_walks import fill_ordered, ordered_columns, ordered_groups
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "groups", "phases_of", "route"]

ROUTINGS = ("min", "balanced", "adaptive")


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """The parts of the row, then those of the column.

    D parts take D + 1 virtual channels.

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
        line: LineRouting = "min" if routing == "min" else "balanced"
        builder = TableBuilder(
            topology,
            routing,
            states=states,
            virtual_channels=channels,
            destinations=destinations,
            groups=ordered_groups(topology, phases, line, destinations),
        )
        fill_ordered(builder, phases, line)
    return builder.build()


def phases_of(topology: Topology) -> list[Phase]:
    """The parts of the row and of the column as phases.

    Each is one logical coordinate of the nodes.
    """
    settings = topology.settings
    assert isinstance(settings, RailXSplitSettings)
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


def groups(settings: RailXSplitSettings, routing: str) -> int:
    """By logical coordinate and chip of the node."""
    return ordered_columns((*settings.sizes_x, *settings.sizes_y), settings.m**2, routing)
