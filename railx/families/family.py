"""What a network family can do, as one record that the other rooms ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.counts import Bill
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.line_graphs import LineGraph
from railx.vocabulary.line_rings import ChipOrderRing, LineRings
from railx.vocabulary.lines import Lines
from railx.vocabulary.placement import Placement, Sizes
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Circuits, FamilySettings, Topology

__all__ = ["Family"]

S = TypeVar("S", bound=FamilySettings)
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Topology, name of the routing, destinations (None: all chips).
Route = Callable[[Topology, str, NDArray[np.int32] | None], RoutingTable]


@dataclass(frozen=True)
class Family(Generic[S]):
    """A network family: what every family knows, then what only some do.

    None stands where a family does not.
    """

    name: str
    """The value of ``family`` in its settings."""

    settings: type[S]
    """The type of its settings."""

    build: Callable[[S], Topology]
    """Build the graph."""

    check: Callable[[S], None]
    """Refuse in one line what no graph can be built of; a bill may be asked of it."""

    halves: Callable[[S], NDArray[np.int8]]
    """Half (0 or 1) of each vertex in the family's natural cut."""

    bisection_ports: Callable[[S], int]
    """Closed form of the ports that cross the natural cut in one direction."""

    ports_per_chip: Callable[[S], int]
    """Ports of a chip, all sides or planes together: injection bandwidth over the rate
    of a port.
    """

    routings: tuple[str, ...]
    """Names of the routings on offer, ``min`` first, then any other, be it the family's
    own. What chooses by queues, and so has no exact loads, is called ``adaptive`` or
    ``adaptive_...``.
    """

    route: Route
    """The table of any of these routings."""

    grouped_routings: tuple[str, ...] = ()
    """Those of them whose table has a column for each group of destinations in place of
    each destination, so that networks of any size can be simulated packet by packet.
    """

    groups: Callable[[S, str], int] | None = None
    """Columns of the table of one of those routings, without building it."""

    switched: bool = False
    """Whether links run through optical circuit switches, so that there are
    cross-connects.
    """

    node_hop_counts: Callable[[S], IntArray] | None = None
    """How many ordered pairs of chips are h inter-node hops apart (index h), without a
    search.
    """

    line_graphs: Callable[[Topology], list[LineGraph]] | None = None
    """Graphs of a row and of a column, where the graph of nodes is their product."""

    symmetric_sources: Callable[[S], IntArray] | None = None
    """Nodes that stand for all nodes by symmetry, each kind equally often."""

    check_circuits: Callable[[S, Circuits], None] | None = None
    """Check that the optical circuits join what the settings promise; ValueError names
    the first fault.
    """

    loads: Callable[[Topology, LineRouting], FloatArray] | None = None
    """Exact load of one lane of each link row under uniform traffic, at any size."""

    longest_path_ns: Callable[[S], float] | None = None
    """Bound of the latency of any path under uniform traffic, at any size."""

    grid_rings: Callable[[Topology], GridRings] | None = None
    """Rings through the rows and columns of a grid of nodes."""

    chip_rings: Callable[[S], tuple[LineRings, ...] | None] | None = None
    """Rings through the lines of every dimension of a grid of single chips; their
    result is None for settings without such lines.
    """

    chip_order_ring: Callable[[S], ChipOrderRing] | None = None
    """Closed form of the ring over all chips in order."""

    place: Callable[[Topology, Sizes], Placement] | None = None
    """Place the ranks of a job; None: in runs of chips below the same switches."""

    bill: Bill[S] | None = None
    """The components that a network is built of."""

    lines: Lines[S] | None = None
    """How nodes that share switches can be joined while a job runs."""
