"""RailX networks whose lines are cut into parts, and routing where all are all-to-alls.

:mod:`railx.vocabulary.line_parts` describes the parts. An all-to-all part is a logical
dimension of the grid of nodes; the 2D HyperX has one per line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.families.node_grids import (
    AllToAllSettings,
    circuit_line_graphs,
    grid_ports,
    hyperx_all_to_all_ports,
    hyperx_bisection_ports,
)
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.counts import Ports
from railx.vocabulary.grid import grid_halves
from railx.vocabulary.line_parts import LinePart, build_parts, cut_dimension, part_wiring
from railx.vocabulary.routing.adaptive_phases import adaptive_states, fill_adaptive
from railx.vocabulary.routing.line_phases import LineRouting, Phase
from railx.vocabulary.routing.node_walks import fill_ordered, ordered_columns, ordered_groups
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.routing.uniform_loads import phase_lane_loads
from railx.vocabulary.topology import Circuits, Topology


@dataclass(frozen=True)
class PartedSettings(AllToAllSettings):
    """Nodes whose lines are cut into parts."""

    @property
    def parts(self) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
        """The parts of a row and of a column with their rails."""
        raise NotImplementedError

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes of a sub-line of every part, those of a row first."""
        return tuple(part.size for parts in self.parts for part in parts)


# Graph


def build(settings: PartedSettings) -> Topology:
    """Build the topology; every rail closes the rings of its part on all sub-lines.

    Two nodes of a sub-line of an all-to-all have 2 full-duplex links per copy of that
    part.
    """
    return build_parts(settings, settings.grid, settings.parts, settings.rings)


def halves(settings: PartedSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex; the cut prefers equal halves, then fewer ports."""
    return grid_halves(settings.grid, cut_dimension(settings.grid, settings.parts)[0])


def bisection_ports(settings: PartedSettings) -> int:
    """Ports in one direction across that cut, part by part
    (``line_parts.crossing_ports``).

    Of all-to-alls they are 2 c (s/2)^2 L/s per line where only the last part (even s, c
    copies) is cut.
    """
    return cut_dimension(settings.grid, settings.parts)[1]


def check_circuits(settings: PartedSettings, circuits: Circuits) -> None:
    """Check the circuits of the parts; ValueError names the first fault.

    Every port belongs to its node. The copies of a part join every pair of a sub-line,
    or the neighbours of its ring, as often as there are copies.
    """
    check_ports(circuits, settings.grid, paired=False)
    for dimension, parts in enumerate(settings.parts):
        for part in parts:
            check_part(circuits, dimension, part, directed=settings.rings == "directed")


# Routing on all-to-alls


def _phases(settings: PartedSettings) -> list[Phase]:
    """The parts of row and column as phases, one per logical dimension."""
    columns = settings.grid.columns
    return [
        Phase(
            part_wiring(part, settings.rings),
            m=settings.m,
            n=settings.n,
            dimension=dimension,
            stride=part.stride * (columns if dimension else 1),
        )
        for dimension, parts in enumerate(settings.parts)
        for part in parts
    ]


def uniform_loads(settings: PartedSettings, topology: Topology, routing: LineRouting) -> FloatArray:
    """Load of a lane of each link row, coordinate by coordinate of the nodes."""
    return phase_lane_loads(topology, _phases(settings), routing)


def route(
    settings: PartedSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """The parts of the row, then those of the column (``adaptive``: in any order).

    D parts make D + 1 walks, each on another virtual channel. A rail takes the channel
    after its walk's.

    * ``min`` (RailX simulator): the nearest link to the next node, at equal distance
      the one on the minus side; XY inside the nodes.
    * ``balanced``: all links of a pair carry the same share of the pair's uniform
      traffic; a packet draws its link when it starts a phase and keeps it
      (:func:`railx.vocabulary.routing.node_walks.fill_ordered`).
    * ``adaptive``: any link of any coordinate that still differs
      (:func:`railx.vocabulary.routing.adaptive_phases.fill_adaptive`).

    The last two separate packets for different rails of an edge chip
    (:func:`railx.vocabulary.routing.node_walks.walk_pools`, ``by_rail``).
    """
    steps = _phases(settings)
    channels = len(steps) + 1
    if routing == "adaptive":
        states = adaptive_states(steps)
        builder = TableBuilder(
            topology, routing, destinations, states=states, virtual_channels=channels
        )
        fill_adaptive(builder, steps)
        return builder.build()
    line: LineRouting = "min" if routing == "min" else "balanced"
    states = 1 if line == "min" else 1 + max(phase.links for phase in steps)
    groups = ordered_groups(topology, steps, line, destinations)
    builder = TableBuilder(
        topology, routing, destinations, groups, states=states, virtual_channels=channels
    )
    fill_ordered(builder, steps, line)
    return builder.build()


# Bill of materials of all-to-alls


def ports(settings: PartedSettings) -> Ports:
    """Components of the grid, and its bandwidths in ports per chip.

    Rails outside all parts do not count in the bandwidths.
    """
    grid = settings.grid
    dimensions = [(part.size, part.copies) for parts in settings.parts for part in parts]
    return grid_ports(
        grid,
        all_to_all=hyperx_all_to_all_ports(grid, dimensions),
        bisection=hyperx_bisection_ports(grid, dimensions),
    )


#: What families of all-to-alls share.
ALL_TO_ALLS: dict[str, Any] = {
    "halves": halves,
    "bisection_ports": bisection_ports,
    "routings": ("min", "balanced", "adaptive"),
    "route": route,
    "grouped_routings": ("min", "balanced"),
    # By logical coordinate and chip of the node.
    "groups": lambda of, routing: ordered_columns(of.sizes, of.m**2, routing),
    "line_graphs": circuit_line_graphs,
    "loads": uniform_loads,
}
