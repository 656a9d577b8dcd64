"""The record of a family's capabilities, and the fields that all settings share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from railx.settings import Positive, SettingsError
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.counts import Bill
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.line_rings import ChipOrderRing, LineRings
from railx.vocabulary.nodes import NodeOrder
from railx.vocabulary.placement import Placement, Sizes
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.table import Destinations, PairLoads, RoutingTable
from railx.vocabulary.topology import Circuits, FamilySettings, NodeSettings, Topology, check_size

S = TypeVar("S", bound=FamilySettings)

#: How jobs take units of a network.
PlaceRule: TypeAlias = Literal["any", "lines", "blocks", "boxes", "runs"]
#: A network without the links inside its nodes, and the loads of these links, which
#: follow its own, of pairs of chips inside a node.
Apart: TypeAlias = tuple[Topology, PairLoads]
#: Length of a line and the directed edges (int[edges, 2]) between its positions.
LineGraph: TypeAlias = tuple[int, IntArray]


@dataclass(frozen=True)
class FamilyBase:
    """The fields that the settings of every family begin with."""

    family: str
    """Name of the network family."""
    port_gbps: Annotated[float, Positive()] = 400.0
    """Rate of an external port in one direction, in 10^9 bit/s; 36 ports of 400 make
    the 1.8 TB/s per chip of RailX's abstract (derived: m = 7, n = 9)."""
    node: NodeSettings | None = None
    """Links inside nodes of chips: their rate where the family has nodes by its other
    settings, else nodes that its chips do not have without; null: as the others say."""


def shared_fields(settings: FamilyBase, base: type[FamilyBase]) -> dict[str, Any]:
    """The values of the fields of ``base``, all but the family's name, as keywords."""
    return {
        field.name: getattr(settings, field.name)
        for field in fields(base)
        if field.name != "family"
    }


def size_check(key: str, rows: Callable[[S], int]) -> Callable[[S], None]:
    """Refuses more links than fit in memory: ``rows`` of settings, of which ``key`` is
    the one to lower.
    """
    return lambda settings: check_size(key, rows(settings))


def check_even(key: str, ports: int, reason: str, alternative: str = "") -> None:
    """Refuse an odd number of ports; ``reason`` says why they come in pairs."""
    if ports % 2:
        raise SettingsError(
            key,
            f"got {ports}; allowed: an even number{alternative}, {reason}; the nearest are"
            f" {ports - 1} and {ports + 1}",
        )


def check_radix(
    ocs_radix: int | None,
    ends: int,
    what: str = "nodes",
    fit: str = "or lines of at most {half} nodes for this radix",
) -> None:
    """Refuse an optical switch with fewer than two ports for each of ``ends``.

    ``what`` names them and ``fit`` what the radix allows; ``{half}`` is half the radix.
    """
    if ocs_radix is not None and ocs_radix < 2 * ends:
        raise SettingsError(
            "ocs_radix",
            f"got {ocs_radix}; allowed: at least {2 * ends}, two ports for each of {ends} {what}"
            f" ({fit.format(half=ocs_radix // 2)})",
        )


@dataclass(frozen=True)
class Lines(Generic[S]):
    """Nodes that share optical or rail switches, for a job that rewires them as it
    runs.

    A line is a row or a column of a grid, or all servers of a rail. A group of a job on
    a line of its size is wired as one of the ``wirings``.
    """

    axes: tuple[tuple[str, ...], ...]
    """Axes of a job's layout by kind of line; kinds have separate ports, so that their
    circuits are never in conflict."""
    wirings: Callable[[S, int], tuple[str, ...]]
    """Ways to wire a number of nodes; empty where they do not fit on a line."""
    alone: Callable[[S, int, str], FamilySettings]
    """The network of a number of nodes with all circuits of a line wired in a way."""
    shares: Callable[[S], int]
    """Rails of a line that can be wired separately; 1: packet switches."""
    nodes: Callable[[S], int]
    """Nodes of the network."""
    fewest: Callable[[str, int], int] = lambda wiring, nodes: 1
    """Fewest rails of a wiring, by wiring and number of nodes."""


@dataclass(frozen=True)
class TrafficCircuits(Generic[S]):
    """Optical circuits that follow the all-to-all of a job's experts."""

    wired: Callable[[S, FloatArray], Topology]
    """The network with circuits for a demand of nodes: float[nodes, nodes]."""
    other_routing: str
    """The routing of all other traffic, which circuits do not follow."""
    delay_ms: Callable[[S], float]
    """Time that an all-to-all waits for its circuits."""
    with_change: Callable[[S, float], S]
    """The network whose change of circuits takes so many milliseconds."""
    changes_ms: Mapping[str, float]
    """Times of a change that are compared with none, by name."""


@dataclass(frozen=True)
class JobPlaces(Generic[S]):
    """The places of jobs, and the units that a fault removes.

    A unit is the part that a failed chip disables: a node whose mesh has lost a chip,
    a cube; a single chip behind switches.
    """

    rule: PlaceRule
    """``any``: a job takes any units; ``lines``: any rows times any columns;
    ``blocks``: neighbours on a torus; ``boxes``: neighbours on a mesh; ``runs``: units
    in a row on a ring that passes failed ones."""
    shape: Callable[[S], tuple[int, ...]]
    """Rows and columns of units (``lines``), units along every dimension, the fastest
    last (``blocks``, ``boxes``), else their number alone."""
    unit_chips: Callable[[S], int]
    """Chips of a unit, consecutive ones."""
    reach: Callable[[S], int] = lambda settings: 1
    """Units that a link of a ring spans, so that it passes one failed unit less."""
    domain_chips: Callable[[S], int | None] = lambda settings: None
    """Chips that smaller jobs share with no other domain: a scale-up switch's; None:
    such jobs lie anywhere."""


def any_chips(
    chips: Callable[[S], int],
    unit_chips: Callable[[S], int] = lambda settings: 1,
    domain_chips: Callable[[S], int | None] = lambda settings: None,
) -> JobPlaces[S]:
    """Jobs on any units: switches join all alike, and a fault takes its unit alone."""
    return JobPlaces(
        "any",
        lambda settings: (chips(settings) // unit_chips(settings),),
        unit_chips,
        domain_chips=domain_chips,
    )


@dataclass(frozen=True)
class Family(Generic[S]):
    """A network family: the capabilities of every family, then the optional ones.

    An optional capability is None where the family lacks it. Callables that take a
    topology take its settings first.
    """

    name: str
    """The value of ``family`` in its settings."""
    settings: type[S]
    """The type of its settings."""
    build: Callable[[S], Topology]
    """Build the graph."""
    check: Callable[[S], None]
    """Raise SettingsError for settings without a graph; they may still have a bill."""
    ports_per_chip: Callable[[S], int]
    """Ports of a chip, all sides or planes together: injection bandwidth over the rate
    of a port."""
    routings: tuple[str, ...]
    """Names of the routings, ``min`` first. Those that choose by queue lengths, and so
    have no exact loads, are called ``adaptive`` or ``adaptive_...``."""
    route: Callable[[S, Topology, str, Destinations], RoutingTable]
    """Routing table by name of the routing."""
    halves: Callable[[S], NDArray[np.int8]] | None = None
    """Half (0 or 1) of each vertex in the family's natural cut."""
    bisection_ports: Callable[[S], int] | None = None
    """Closed form of the ports that cross the natural cut in one direction."""
    grouped_routings: tuple[str, ...] = ()
    """Routings whose table has a column per group of destinations instead of one per
    destination, so that networks of any size can be simulated packet by packet."""
    groups: Callable[[S, str], int] | None = None
    """Columns of the table of a grouped routing, without building it."""
    switched: bool = False
    """Whether links run through optical circuit switches, so that there are
    cross-connects."""
    node_hop_counts: Callable[[S], IntArray] | None = None
    """Ordered pairs of chips that are h inter-node hops apart (index h), in closed
    form."""
    line_graphs: Callable[[S, Topology], list[LineGraph]] | None = None
    """Graphs of a row and of a column, where the graph of nodes is their product."""
    symmetric_sources: Callable[[S], IntArray] | None = None
    """Nodes that represent all nodes by symmetry, every kind equally often."""
    check_circuits: Callable[[S, Circuits], None] | None = None
    """Check the optical circuits against the settings; ValueError names the first
    fault."""
    loads: Callable[[S, Topology, LineRouting], FloatArray] | None = None
    """Exact load of one lane of each link row under uniform traffic, at any size."""
    plane: Callable[[S], tuple[Topology, int]] | None = None
    """One of the equal planes that share all traffic evenly, and their number; links of
    a plane follow those of the one before."""
    apart: Callable[[S, Topology], Apart] | None = None
    """The network between its nodes, and the loads of pairs inside one, where neither
    takes a link of the other."""
    same_loads: tuple[str, ...] = ()
    """Routings that load the links as ``min`` does, whatever the traffic."""
    hop_loads: Mapping[str, str] = field(default_factory=dict)
    """Routings whose exact loads follow from hops, without a table: those of a routing
    of :class:`railx.vocabulary.routing.hop_loads.HopLoads`."""
    pair_loads: Callable[[S, Topology, str], PairLoads | None] | None = None
    """Exact loads of a routing on a plane by its settings, without a table; the result
    is None for settings or routings without such."""
    longest_path_ns: Callable[[S], float] | None = None
    """Bound of the latency of any path under uniform traffic, at any size."""
    grid_rings: Callable[[S, Topology], GridRings] | None = None
    """Rings through the rows and columns of a grid of nodes."""
    chip_rings: Callable[[S], tuple[LineRings, ...] | None] | None = None
    """Rings through the lines of every dimension of a grid of single chips; the result
    is None for settings without such lines."""
    chip_order_ring: Callable[[S], ChipOrderRing] | None = None
    """Closed form of the ring over all chips in order."""
    placement: Callable[[S, Topology, Sizes], Placement] | None = None
    """Chips of the ranks of a job; None: runs of chips below the same switches."""
    has_nodes: bool = False
    """Whether its other settings describe nodes; ``node`` then sets their rate, or is
    refused where that follows from the others."""
    inside: Callable[[S], NodeSettings | None] = lambda settings: None
    """The links inside the nodes, or on the boards, that its other settings describe.
    They are in no bill; the result is None where there are none."""
    node_order: Callable[[S, int], NodeOrder] | None = None
    """Which chips make a node of so many, for families without nodes; None: runs of
    chips."""
    job_places: JobPlaces[S] | None = None
    """Where jobs fit around faults; None: unknown."""
    bill: Bill[S] | None = None
    """Bill of materials: components and bandwidths in closed form."""
    lines: Lines[S] | None = None
    """Wirings of nodes that share switches, for a job that reconfigures them."""
    traffic_circuits: TrafficCircuits[S] | None = None
    """Circuits that are set for the traffic; routing ``min`` takes those of its own."""
