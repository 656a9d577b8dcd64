"""RailX set to a 2D torus of nodes: all rails of a line carry the same ring.

Its chips form one large torus, whose links run inside the nodes or along rails. Packets
are routed in dimension order. Source: RailX simulator, its 2D torus.

A job may rewire the lines of its groups: as rings, or as an all-to-all where a line has
a rail for every other node (the remaining rails stay rings).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.family import Lines, check_radix, shared_fields
from railx.families.node_grids import (
    NodeGridSettings,
    RailXSettings,
    best_grid,
    circuit_line_graphs,
    in_node_lanes_per_chip,
    longest_line,
    node_grid_family,
    ring_ports,
)
from railx.families.railx_mixed import RailXMixedSettings
from railx.settings import AtLeast
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.counts import Bill
from railx.vocabulary.grid import build_lines, ring_arcs
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.line_parts import LinePart, PartSettings
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import Destinations, RoutingTable
from railx.vocabulary.routing.uniform_loads import half_way_round_ns, torus_lane_loads
from railx.vocabulary.topology import Circuits, Topology

__all__ = ["FAMILY", "RailXTorusSettings", "chip_grid"]


@dataclass(frozen=True)
class RailXTorusSettings(RailXSettings):
    """RailX set to a torus: (m x_scale) x (m y_scale) chips with n links per side."""

    family: Literal["railx_torus"]

    x_scale: Annotated[int, AtLeast(2)] = 5
    """Nodes of a row."""
    y_scale: Annotated[int, AtLeast(2)] = 5
    """Nodes of a column."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.x_scale, self.y_scale

    def __post_init__(self) -> None:
        super().__post_init__()
        fit = "or x_scale and y_scale of at most {half} for this radix"
        check_radix(self.ocs_radix, max(self.shape), fit=fit)


# Graph


def build(settings: RailXTorusSettings) -> Topology:
    """Build the topology: every rail of a line closes the ring 0, 1, 2, ..."""
    rings = (np.tile(np.arange(length), (settings.rails, 1)) for length in settings.shape)
    arcs = map(ring_arcs, rings, settings.shape[::-1])
    return build_lines(settings, settings.grid, *arcs)


def bisection_ports(settings: RailXTorusSettings) -> int:
    """Ports in one direction across that cut: both ends of rings, r rails a line."""
    return 2 * settings.rails * min(settings.x_scale, settings.y_scale)


def check_circuits(settings: RailXTorusSettings, circuits: Circuits) -> None:
    """Check the circuits of the rings; ValueError names the first fault.

    Every port belongs to its node; the neighbours of each line are joined r times.
    """
    check_ports(circuits, settings.grid, paired=False)
    for dimension, length in enumerate(settings.shape):
        ring = LinePart("ring", settings.rails, length, 1)
        check_part(circuits, dimension, ring, directed=True)


def uniform_loads(
    settings: RailXTorusSettings, topology: Topology, routing: LineRouting
) -> FloatArray:
    """Load of a lane of each link row; all routings load the links alike."""
    m = settings.m
    return torus_lane_loads(topology, m * settings.x_scale, m * settings.y_scale, settings.n)


# Routing


def route(
    settings: RailXTorusSettings,
    topology: Topology,
    routing: str,
    destinations: Destinations = None,
) -> RoutingTable:
    """X first, the shorter path round a ring.

    Both routings send half of the packets in each direction on a tie. Under ``min`` a
    packet is on virtual channel 1 until it takes the wrap link of its ring and on 0
    after it, and likewise in y (RailX simulator, ``XY``). Under ``balanced`` a packet
    without a wrap link draws its channel
    (:func:`railx.vocabulary.routing.rings.route_rings`). The n parallel lanes inside a
    node and the n rails of a chip's side are one pool of channels.
    """
    grid = chip_grid(settings.m, *settings.shape)
    position = np.argsort(grid.ravel())
    return route_rings(topology, routing, grid.shape[::-1], destinations, position, split_ties=True)


def chip_grid(m: int, columns: int, rows: int) -> IntArray:
    """The chip at each position of columns x rows nodes: int[m * rows, m * columns]."""
    chip = np.arange(rows * columns * m * m).reshape(rows, columns, m, m)
    return chip.transpose(0, 2, 1, 3).reshape(m * rows, m * columns)


# Bill of materials


def resize(settings: RailXTorusSettings, chips: int) -> RailXTorusSettings:
    """The torus of :func:`railx.families.node_grids.best_grid`."""
    longest = longest_line(settings)
    return best_grid(
        settings,
        chips,
        [(x * y, (x, y)) for x in range(2, longest + 1) for y in range(2, x + 1)],
        lambda shape: replace(settings, x_scale=shape[0], y_scale=shape[1]),
        ring_ports,
    )


# Lines


#: Nodes in a column of the network of a group, which uses its row alone.
_COLUMN = 2


def _wirings(settings: RailXTorusSettings, nodes: int) -> tuple[str, ...]:
    if nodes > min(settings.shape):
        return ()
    # Of 2 nodes and of 3 a ring is the all-to-all.
    return ("ring", "all_to_all") if 3 < nodes <= settings.rails + 1 else ("ring",)


def _alone(settings: RailXTorusSettings, nodes: int, wiring: str) -> RailXMixedSettings:
    """The network of a group: its row wired as the group needs it."""
    rails = settings.rails
    all_to_all = rails // (nodes - 1) * (nodes - 1) if wiring == "all_to_all" else 0
    parts = [PartSettings("all_to_all", all_to_all, nodes, 1)] if all_to_all else []
    if all_to_all < rails:
        parts.append(PartSettings("ring", rails - all_to_all, nodes, 1))
    return RailXMixedSettings(
        family="railx_mixed",
        x_scale=nodes,
        y_scale=_COLUMN,
        parts_x=tuple(parts),
        parts_y=(PartSettings("ring", rails, _COLUMN, 1),),
        rings="undirected",
        **shared_fields(settings, NodeGridSettings),
    )


FAMILY = node_grid_family(
    "railx_torus",
    RailXTorusSettings,
    build=build,
    bisection_ports=bisection_ports,
    route=route,
    grouped_routings=("min", "balanced"),
    # One per position of each ring of chips.
    groups=lambda settings, routing: settings.m * sum(settings.shape),
    line_graphs=circuit_line_graphs,
    check_circuits=check_circuits,
    loads=uniform_loads,
    longest_path_ns=lambda settings: half_way_round_ns(settings.grid),
    grid_rings=lambda settings, topology: GridRings(topology, settings.grid),
    bill=Bill(ports=ring_ports, resize=resize, in_node_lanes=in_node_lanes_per_chip),
    lines=Lines(
        axes=(("x",), ("y",)),
        wirings=_wirings,
        alone=_alone,
        shares=lambda settings: settings.rails,
        nodes=lambda settings: settings.x_scale * settings.y_scale,
        fewest=lambda wiring, nodes: nodes - 1 if wiring == "all_to_all" else 1,
    ),
)
