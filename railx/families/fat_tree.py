"""A fat tree of k-port switches in two or three tiers, optionally tapered at the leaf.

There are as many identical planes as a chip has ports, and each chip has one port in
every plane. A leaf switch has d ports down and u = k - d up (u = d: non-blocking).

Two tiers have k leaves, u spines that join all leaves once each, and k d chips. Three
tiers have k pods of k/2 leaves and u aggregation switches with k/2 ports up each. The u
k/2 core switches join all pods once each. Three tiers have k^2 d / 2 chips, the k-ary
fat tree of k^3/4 chips for d = k/2.

Sources: Leiserson 1985; Al-Fares 2008. The two-tier sizes are those of the RailX
simulator's fat-tree inputs (radix 50, 41 and 38 in 8 planes).

Routing goes up over drawn ports, then down the one path. The source chooses the plane,
which the vertex implies afterwards. Links up come before links down, so no cycle of
waiting packets can form on any number of virtual channels. A packet takes one of three
at every hop (the RailX simulator's fat tree takes any).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.family import Family, FamilyBase, any_chips, check_even
from railx.settings import AtLeast, Between, Fraction, NonNegative, SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.counts import Bill, Ports, TreeBill, fewest_tiers, largest_tree, tree_switches
from railx.vocabulary.line_rings import ChipOrderRing
from railx.vocabulary.routing.groups import DestinationGroups, groups_by_coordinates
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.spread import VIRTUAL_CHANNELS, even_sets
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology, check_size, duplex_links, kind_code, topology_of

__all__ = ["FAMILY", "FatTreeSettings"]


@dataclass(frozen=True)
class FatTreeSettings(FamilyBase):
    """A fat tree of switches."""

    family: Literal["fat_tree"]

    tiers: Annotated[int, Between(1, 5)] = 3
    """Tiers of switches: leaf, aggregation and core, or leaf and spine; the graph has 2
    or 3."""
    switch_radix: Annotated[int, AtLeast(4)] = 8
    """Ports of a switch; the number of leaves of a plane follows from it."""
    leaf_down_ports: Annotated[int, AtLeast(1)] | None = None
    """Ports of a leaf switch to chips, the others face up; null: half of them
    (non-blocking)."""
    planes: Annotated[int, AtLeast(1)] = 8
    """Parallel trees, one port of each chip in every plane. Default: the ports of a
    RailX chip (4 n = 8)."""
    leaf_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight between a chip and its leaf switch, in nanoseconds. Default: an
    assumption, half of the links between switches, as in the RailX simulator's fat-tree
    input files (5 and 10 cycles)."""
    global_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between switches, in nanoseconds. Default: an assumption, about 20
    m of fibre at 5 ns/m, as external links of RailX."""
    taper: Annotated[float, Fraction()] | None = None
    """Uplinks per downlink of a leaf, exactly, instead of ``leaf_down_ports``;
    null: what the ports of a leaf give. The graph needs whole ports."""
    populated_chips: Annotated[int, AtLeast(2)] | None = None
    """Chips that are plugged in; null: as many as the tree has room for, as in the
    graph."""

    def __post_init__(self) -> None:
        k = self.switch_radix
        if self.leaf_down_ports is not None and self.taper is not None:
            raise SettingsError(
                "taper",
                f"got {self.taper:g} beside leaf_down_ports = {self.leaf_down_ports}; allowed: null"
                " in one of them",
            )
        if self.leaf_down_ports is not None and self.leaf_down_ports >= k:
            raise SettingsError(
                "leaf_down_ports",
                f"got {self.leaf_down_ports}; allowed: 1 to {k - 1} of {k} ports, one at least"
                f" faces up; the nearest is {k - 1}",
            )
        if self.tiers != 2 or (self.leaf_down_ports is None and self.taper is None):
            way = ", or leaf_down_ports given" if self.tiers == 2 else ""
            check_even("switch_radix", k, "half of the ports face up", way)
        if self.populated_chips is not None and self.populated_chips > self.room:
            raise SettingsError(
                "populated_chips",
                f"got {self.populated_chips}; allowed: at most {self.room} with {self.tiers} tiers"
                f" of {k}-port switches (every port of a chip has a plane of its own); the nearest"
                f" is {self.room}",
            )

    @property
    def leaf_down(self) -> int:
        """Chips below a leaf switch."""
        if self.taper is not None:
            return int(self.switch_radix / (1 + self.taper) + 1e-9)
        return self.switch_radix // 2 if self.leaf_down_ports is None else self.leaf_down_ports

    @property
    def leaf_up(self) -> int:
        """Ports of a leaf switch to the tier above, each to another switch."""
        return self.switch_radix - self.leaf_down

    @property
    def pods(self) -> int:
        """Parts that only the top tier joins: pods in three tiers, leaves in two."""
        return self.switch_radix

    @property
    def routed_pods(self) -> int:
        """Parts of a plane that a packet leaves by its third tier; 1 without one."""
        return self.pods if self.tiers == 3 else 1

    @property
    def leaves(self) -> int:
        """Leaf switches of a plane."""
        return self.switch_radix * (self.switch_radix // 2 if self.tiers == 3 else 1)

    @property
    def upper_switches(self) -> int:
        """Switches of a plane in the second tier: spines or aggregation switches."""
        return self.leaf_up * (self.switch_radix if self.tiers == 3 else 1)

    @property
    def core_switches(self) -> int:
        """Switches of a plane in the third tier."""
        return self.leaf_up * (self.switch_radix // 2) if self.tiers == 3 else 0

    @property
    def plane_switches(self) -> int:
        """Switches of a plane, all tiers."""
        return self.leaves + self.upper_switches + self.core_switches

    @property
    def uplinks_per_downlink(self) -> float:
        """Uplinks per downlink of a leaf; 1 also for a single switch."""
        if self.tiers == 1:
            return 1.0
        return self.leaf_up / self.leaf_down if self.taper is None else self.taper

    @property
    def room(self) -> int:
        """Chips that the tree has room for."""
        return largest_tree(self.tiers, self.switch_radix, self.leaf_down)

    @property
    def chips(self) -> int:
        return self.room if self.populated_chips is None else self.populated_chips


# Graph


def check(settings: FatTreeSettings) -> None:
    """Refuse incomplete trees, and more links than fit in memory."""
    k = settings.switch_radix
    if settings.tiers not in (2, 3):
        alone = ", as one switch joins all chips" if settings.tiers == 1 else ""
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 2, 3{alone}")
    if settings.leaf_up != round(settings.uplinks_per_downlink * settings.leaf_down, 9):
        raise SettingsError(
            "taper",
            f"got {settings.taper:g}; allowed: whole ports, null here and leaf_down_ports = "
            f"{settings.leaf_down} come nearest",
        )
    if settings.chips != settings.room:
        raise SettingsError(
            "populated_chips",
            f"got {settings.populated_chips}; allowed: null or {settings.room}, a graph is of a"
            " full tree",
        )
    links = settings.chips + settings.leaves * settings.leaf_up + k * settings.core_switches
    check_size("switch_radix", 2 * settings.planes * links)


def build(settings: FatTreeSettings) -> Topology:
    """Build the tree.

    Switches follow the chips plane by plane: leaves (by pod), then aggregation (by pod)
    or spines, then core. Links of a chip to its leaf are of kind ``leaf``, those to the
    second tier ``aggregation``, those to the third ``core``.
    """
    chips, rate, links = settings.chips, settings.port_gbps, []
    for plane in range(settings.planes):
        leaf, upper, core = _plane(settings, plane)
        below = np.repeat(leaf, settings.leaf_down)
        links += [
            duplex_links(np.arange(chips), below, "leaf", rate, settings.leaf_latency_ns),
            *(
                duplex_links(low[..., None], high, kind, rate, settings.global_latency_ns)
                for low, high, kind in (
                    (leaf, upper[:, None], "aggregation"),
                    (upper, core, "core"),
                )
            ),
        ]
    return topology_of(
        settings, links, chips=chips, switches=settings.plane_switches * settings.planes
    )


def _plane(settings: FatTreeSettings, plane: int) -> tuple[IntArray, IntArray, IntArray]:
    """The leaves and upper switches of a plane by pod; its core switches by the upper
    switch of a pod that they join, none in two tiers.
    """
    switch = np.arange(settings.plane_switches) + plane * settings.plane_switches
    ends = np.cumsum([settings.leaves, settings.upper_switches])
    leaf, upper, core = np.split(settings.chips + switch, ends)
    pods = settings.routed_pods
    return leaf.reshape(pods, -1), upper.reshape(pods, -1), core.reshape(settings.leaf_up, -1)


def halves(settings: FatTreeSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex, cut through the pods (two tiers: the leaves).

    An odd pod goes to half 1. The core switches are cut in the middle, spines are all
    in half 1. Either adds one link for every pod of half 0.
    """
    pods = np.arange(settings.pods) >= settings.pods // 2
    leaf = np.repeat(pods, settings.leaves // settings.pods)
    if settings.tiers == 3:
        core = np.arange(settings.core_switches) >= settings.core_switches // 2
        upper = np.concatenate([np.repeat(pods, settings.leaf_up), core])
    else:
        upper = np.ones(settings.upper_switches, dtype=np.bool_)
    plane = np.concatenate([leaf, upper])
    return np.concatenate(
        [np.repeat(leaf, settings.leaf_down), np.tile(plane, settings.planes)]
    ).astype(np.int8)


def bisection_ports(settings: FatTreeSettings) -> int:
    """Ports in one direction across that cut: all ports up of k//2 pods or leaves.

    Without a taper half of the chips can send at full rate to the other half; a taper
    divides that by d / u.
    """
    return (
        settings.pods // 2 * (settings.core_switches or settings.upper_switches) * settings.planes
    )


def uniform_loads(
    settings: FatTreeSettings, topology: Topology, routing: LineRouting
) -> FloatArray:
    """Equal-cost multi-path; all routings load the links alike.

    A chip spreads over its planes, a switch over its upward ports; up and down carry
    the same. A tapered leaf has fewer ports up than down, so each carries more, as do
    those of the tier above.
    """
    taper = settings.leaf_down / settings.leaf_up
    pod = settings.leaf_down * settings.switch_radix // 2
    load = np.zeros(len(topology.links))
    tiers = ("leaf", 1, 1.0), ("aggregation", settings.leaf_down, taper), ("core", pod, taper)
    for kind, inside, share in tiers:
        outside = (topology.chips - inside) / (topology.chips - 1)
        load[topology.links.kind == kind_code(kind)] = outside * share / settings.planes
    return load


def chip_order_ring(settings: FatTreeSettings) -> ChipOrderRing:
    """A ring in every plane, on all ports of a chip.

    Around the chips in order all hops but the longest ones stay below a leaf: one hop
    per leaf leaves it, one per pod of three tiers leaves the pod.
    """
    in_leaf, up = 2 * settings.leaf_latency_ns, 2 * settings.global_latency_ns
    changes = settings.leaves + (settings.pods if settings.tiers == 3 else 0)
    fastest = in_leaf + (up if settings.leaf_down == 1 else 0)
    chain_latency_ns = settings.chips * in_leaf + changes * up - fastest
    return ChipOrderRing(settings.planes, chain_latency_ns)


# Routing


def route(
    settings: FatTreeSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """Up*/down* routing.

    ``min`` draws plane and ports up evenly, ``adaptive`` takes those with the shortest
    queues. Exact loads are the same for both: without queues an adaptive router prefers
    no port.
    """
    groups = _destination_groups(settings, topology, destinations)
    builder = TableBuilder(
        topology, routing, destinations, groups, states=1, virtual_channels=VIRTUAL_CHANNELS
    )
    chip = np.arange(settings.chips)
    first = settings.chips + np.arange(settings.planes) * settings.plane_switches
    leaf, port = np.divmod(chip, settings.leaf_down)
    builder.entry[0][chip] = even_sets(builder, chip, first + leaf[:, None])[:, None]
    builder.entry[0][chip, groups.first[2] + port] = -1
    for plane in range(settings.planes):
        _fill_plane(builder, settings, groups, plane)
    return builder.build()


def groups_of(settings: FatTreeSettings, routing: str) -> int:
    """Columns of the table: for pods, leaves of a pod and chips of a leaf."""
    pods = settings.routed_pods
    return pods + settings.leaves // pods + settings.leaf_down


def _destination_groups(
    settings: FatTreeSettings, topology: Topology, destinations: Destinations
) -> DestinationGroups:
    """Groups by pod, then leaf, then port of the leaf.

    Switches above a level differ from every destination there.
    """
    pods, leaves = settings.routed_pods, np.arange(settings.leaves)
    in_pod = settings.leaves // pods
    cores = np.full(settings.core_switches, -1)
    upper_pod = np.repeat(np.arange(pods), settings.leaf_up)
    leaf_pod = leaves // in_pod
    plane_pod = np.concatenate([leaf_pod, upper_pod, cores])
    plane_leaf = np.concatenate([leaves, np.full(len(upper_pod), -1), cores])
    chip = np.arange(settings.chips)
    leaf = chip // settings.leaf_down
    to = chip if destinations is None else destinations.astype(np.int64)
    to_leaf = to // settings.leaf_down
    return groups_by_coordinates(
        topology.vertices,
        [
            np.concatenate([leaf // in_pod, np.tile(plane_pod, settings.planes)]),
            np.concatenate([leaf, np.tile(plane_leaf, settings.planes)]),
        ],
        [to_leaf // in_pod, to_leaf],
        [to_leaf // in_pod, to_leaf % in_pod, to % settings.leaf_down],
        (pods, in_pod, settings.leaf_down),
    )


def _fill_plane(
    builder: TableBuilder, settings: FatTreeSettings, groups: DestinationGroups, plane: int
) -> None:
    """Fill the switches of a plane: packets go up until there is a path down."""
    entry, (leaf, upper, core) = builder.entry[0], _plane(settings, plane)
    to_pod, to_leaf, to_chip = map(groups.on_level, range(3))
    above, middle, top = leaf.ravel(), upper.ravel(), core.ravel()
    entry[above] = even_sets(builder, above, np.repeat(upper, leaf.shape[1], axis=0))[:, None]
    chips = np.arange(settings.chips).reshape(-1, settings.leaf_down)
    entry[above, to_chip] = _down(builder, above, chips)
    entry[middle, to_leaf] = _down(builder, middle, np.repeat(leaf, upper.shape[1], axis=0))
    if core.size:
        entry[middle, to_pod] = even_sets(builder, middle, np.tile(core, (len(upper), 1)))[:, None]
        entry[top, to_pod] = _down(builder, top, np.repeat(upper.T, core.shape[1], axis=0))


def _down(builder: TableBuilder, vertex: IntArray, below: IntArray) -> Int32Array:
    """The sets of single links from each vertex to ``below`` (int[vertices, links])."""
    sets = even_sets(builder, np.repeat(vertex, below.shape[1]), below.reshape(-1, 1))
    return sets.reshape(below.shape)


# Bill of materials


def ports(settings: FatTreeSettings) -> Ports:
    """Components of the tree, and its bandwidths in ports per chip.

    A full tree of T tiers has 2 T - 1 switch ports and 2 T transceivers per end port;
    the top tier has no ports upwards.
    """
    ends, levels = settings.chips * settings.planes, settings.tiers - 1
    uplinks = math.ceil(ends * settings.uplinks_per_downlink) if levels else 0
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * ends, "uplink": 2 * levels * uplinks},
        injection=settings.planes,
        all_to_all=settings.planes * _delivered(settings),
        bisection=settings.planes * settings.uplinks_per_downlink,
        electrical_switch_ports=ends + 2 * levels * uplinks,
    )


def whole_switches(settings: FatTreeSettings) -> Ports:
    """The same with every port of each switch, used or not."""
    chips, radix = settings.chips, settings.switch_radix
    down = radix if settings.tiers == 1 else settings.leaf_down
    uplinks = math.ceil(chips * settings.uplinks_per_downlink)
    switches = tree_switches(math.ceil(chips / down), uplinks, settings.tiers, radix)
    return replace(ports(settings), electrical_switch_ports=settings.planes * switches * radix)


def resize(settings: FatTreeSettings, chips: int) -> FatTreeSettings:
    """The tree of ``chips`` chips with the fewest tiers."""
    tiers = fewest_tiers(
        chips, settings.tiers, settings.switch_radix, settings.leaf_down, chips=chips
    )
    return replace(settings, tiers=tiers, populated_chips=chips)


def filled(settings: FatTreeSettings, tiers: int, taper: float) -> FatTreeSettings:
    """The tree with these tiers and taper, and as many of its chips as fit.

    Callers need the cost of an end port, which does not depend on the size.
    """
    full = replace(settings, tiers=tiers, taper=taper, leaf_down_ports=None, populated_chips=None)
    room = largest_tree(tiers, full.switch_radix, full.leaf_down)
    return replace(full, populated_chips=min(settings.chips, room))


def _delivered(settings: FatTreeSettings) -> float:
    """Share of the injection bandwidth that leaves carry of uniform traffic."""
    taper, under, chips = settings.uplinks_per_downlink, settings.leaf_down, settings.chips
    if taper >= 1 or under >= chips:
        return 1.0
    return min(1.0, taper * (chips - 1) / (chips - under))


FAMILY = Family(
    name="fat_tree",
    settings=FatTreeSettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=lambda settings: settings.planes,
    routings=("min", "adaptive"),
    route=route,
    grouped_routings=("min", "adaptive"),
    groups=groups_of,
    loads=uniform_loads,
    chip_order_ring=chip_order_ring,
    job_places=any_chips(lambda settings: settings.chips),
    bill=Bill(
        ports=ports,
        resize=resize,
        copper=("leaf",),
        countings={"whole_switches": whole_switches},
        tree=TreeBill(tiers=lambda settings: settings.tiers, filled=filled, leaf="leaf"),
    ),
)
