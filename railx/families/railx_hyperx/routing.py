"""Routing on RailX set to a 2D HyperX: one rail per dimension, a walk to the chip.

The rail along the row comes first. Every ordered pair of nodes of a line has two links,
which start at different chips. The routings differ in who takes which.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_hyperx.settings import RailXHyperXSettings, grid_of
from railx.vocabulary.grid import line_wiring
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
    """Row first (``adaptive``: either first), each walk on its own virtual channel.

    There are three walks. A rail takes the channel after its walk's.

    * ``min`` (RailX simulator): the nearer link of the pair, at equal distance the one
      on the minus side; XY inside the nodes.
    * ``balanced``: each link of a pair carries exactly half of the pair's uniform
      traffic; a packet draws its link when it starts a phase and keeps it
      (:func:`railx.vocabulary.routing.node_walks.fill_ordered`).
    * ``adaptive``: at the source both links of the row and both of the column, later
      both links of the dimension that is left
      (:func:`railx.vocabulary.routing.adaptive_phases.fill_adaptive`).

    The last two keep packets for one rail of an edge chip out of the way of those for
    another (:func:`walk_pools`, ``by_rail``).
    """
    phases = phases_of(topology)
    if routing == "adaptive":
        builder = TableBuilder(
            topology,
            routing,
            states=adaptive_states(phases),
            virtual_channels=3,
            selection="adaptive",
            destinations=destinations,
        )
        fill_adaptive(builder, phases)
    else:
        states = 1 if routing == "min" else 3
        line: LineRouting = "min" if routing == "min" else "balanced"
        builder = TableBuilder(
            topology,
            routing,
            states=states,
            virtual_channels=3,
            destinations=destinations,
            groups=ordered_groups(topology, phases, line, destinations),
        )
        fill_ordered(builder, phases, line)
    return builder.build()


def phases_of(topology: Topology) -> list[Phase]:
    """The row and the column as phases."""
    settings = topology.settings
    assert isinstance(settings, RailXHyperXSettings)
    side = settings.m * settings.n + 1
    return [
        Phase(
            line_wiring(topology, dimension),
            m=settings.m,
            n=settings.n,
            dimension=dimension,
            stride=stride,
        )
        for dimension, stride in ((0, 1), (1, side))
    ]


def groups(settings: RailXHyperXSettings, routing: str) -> int:
    """By row, column and chip of the node."""
    grid = grid_of(settings)
    return ordered_columns((grid.columns, grid.rows), settings.m**2, routing)
