"""MixNet: servers on a packet tree, with circuits in regions that follow the experts.

SIGCOMM'25, arXiv 2501.03905. Of the ports of a server's 8 chips, 2 lead
to a packet tree over all servers and 6 to the optical switch of their region, at most 8
servers. Circuits are set for the all-to-all of experts (:func:`greedy_circuits`, the
paper's algorithm 1); all else stays in the server or takes the tree. A packet crosses
its server to a chip with a circuit to its destination's server, or without one to a
chip on the tree, and the other server to its destination. It takes no second circuit.
The second crossing has a virtual channel to itself, so that no packets wait for each
other in a circle.

Assumptions: a tree has a leaf for each region and is non-blocking; a change of circuits
is for a layer's four exchanges of a micro-batch, and as the first of them waits for it
or its circuits are predicted, it takes all of ``change_ms`` or nothing. Changes before
the backward pass, whose demand is known, are free. The 1.3 to 1.5 times over TopoOpt
are not computed: ``topoopt`` has no circuits for experts. Nor are iteration times, as
the facts at hand name no model, batch or demand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.family import TrafficCircuits
from railx.families.rails import ServerSettings, scale_up_links, server_family
from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.arrays import BoolArray, FloatArray, Int32Array, IntArray
from railx.vocabulary.counts import Bill, Ports, fewest_tiers
from railx.vocabulary.routing.spread import VIRTUAL_CHANNELS
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Circuits, Topology, check_size, duplex_links, topology_of

__all__ = ["FAMILY", "MixNetSettings", "greedy_circuits"]

#: Time of a change (ms) as the paper's results count it (its prototype's switch took 41
#: to 47 ms), and with the measured start of the network cards after it, 5.67 s, which
#: they leave out.
CHANGES_MS = {"blocked": 25.0, "reactivated": 25.0 + 5670.0}
_EXCHANGES = 4
_MOST_TIERS = 5


@dataclass(frozen=True)
class MixNetSettings(ServerSettings):
    """Regions of servers, each with optical switches, below one packet tree."""

    family: Literal["mixnet"]

    regions: Annotated[int, AtLeast(2)] = 2
    """Groups of servers that share optical switches and leaves of the tree."""
    servers_per_region: Annotated[int, AtLeast(2)] = 8
    """Servers of a region, those of an expert group. Default: 64 chips, the most."""
    tree_chips: Annotated[int, AtLeast(1)] = 2
    """Chips of a server on the packet tree; the others are on optical switches."""
    planes: Annotated[int, AtLeast(1)] = 1
    """Parallel networks, one port of each chip in every plane; their circuits are
    alike."""
    switch_radix: Annotated[int, AtLeast(4)] = 64
    """Ports of a packet switch; a spine switch of the graph has one for every leaf."""
    fills_ports: bool = True
    """Whether other pairs get circuits when the slowest pair has no port left; false:
    none do, the letter of the algorithm."""
    change_ms: Annotated[float, NonNegative()] = 0.0
    """Time that the experts of a layer wait for circuits, in each micro-batch of a
    training step. Default: all changes are predicted or not needed."""
    leaf_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight between a chip and its leaf, in nanoseconds. Default: an
    assumption, as in ``fat_tree``."""
    external_latency_ns: Annotated[float, Positive()] = 100.0
    """Time of flight of a circuit, or between switches, in nanoseconds. Default: an
    assumption, about 20 m of fibre at 5 ns/m."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree_chips >= self.chips_per_server:
            most = self.chips_per_server - 1
            raise SettingsError(
                "tree_chips",
                f"got {self.tree_chips}; allowed: 1 to {most}, so that other chips of a server"
                f" have circuits; the nearest is {most}",
            )

    @property
    def ports_per_chip(self) -> int:
        return self.planes

    @property
    def server_count(self) -> int:
        return self.regions * self.servers_per_region

    @property
    def circuit_ports(self) -> int:
        """Optical ports of a server in a plane, alpha in the paper."""
        return self.chips_per_server - self.tree_chips

    @property
    def tree_ends(self) -> int:
        """Ports of a plane's leaves to the chips of a region, and as many to spines."""
        return self.servers_per_region * self.tree_chips


# Circuits


def greedy_circuits(demand: FloatArray, ports: int, *, fills_ports: bool = True) -> IntArray:
    """Circuits between servers, int[servers, servers], symmetric.

    ``demand`` (float[servers, servers]) counts in both directions. Again and again the
    pair with the longest time, its demand over its circuits and endless without one,
    gets a circuit. Equal times: the larger demand, then more free ports, then the lower
    numbers. A pair with an end without free ``ports`` is passed over, or with
    ``fills_ports`` false ends it.
    """
    servers = len(demand)
    circuits, free = np.zeros((servers, servers), dtype=np.int64), np.full(servers, ports)
    a, b = np.triu_indices(servers, 1)
    both = (demand + demand.T)[a, b]
    # Sums of equal demands differ in the last digits.
    both = np.round(both / both.max(initial=1e-300), 9)
    a, b, both = a[both > 0], b[both > 0], both[both > 0]
    while True:
        ends = free[a], free[b]
        fewer = np.minimum(*ends)
        asked = fewer > 0 if fills_ports else np.ones(len(a), dtype=np.bool_)
        if not asked.any():
            return circuits
        number = circuits[a, b]
        time = np.where(number > 0, both / np.maximum(number, 1), np.inf)
        order = np.lexsort((-np.maximum(*ends), -fewer, -both, -time, ~asked))
        slowest = order[0]
        if fewer[slowest] == 0:
            return circuits
        pair = np.array([a[slowest], b[slowest]])
        circuits[pair, pair[::-1]] += 1
        free[pair] -= 1


def _all_circuits(settings: MixNetSettings, demand: FloatArray) -> Circuits:
    """The circuits of the first plane, region by region; ports of a server in order."""
    size, alpha = settings.servers_per_region, settings.circuit_ports
    rows = []
    for region in range(settings.regions):
        here = slice(region * size, (region + 1) * size)
        circuits = greedy_circuits(demand[here, here], alpha, fills_ports=settings.fills_ports)
        used = np.zeros(size, dtype=np.int64)
        for a, b in np.argwhere(np.triu(circuits)).tolist():
            for _ in range(circuits[a, b]):
                rows.append((region, a * alpha + used[a], b * alpha + used[b], a, b))
                used[[a, b]] += 1
    ocs, port_a, port_b, node_a, node_b = np.array(rows, dtype=np.int32).reshape(-1, 5).T
    return Circuits(
        ocs=ocs,
        port_a=port_a,
        port_b=port_b,
        rail=np.zeros_like(ocs),
        dimension=np.zeros(len(ocs), dtype=np.int8),
        line=ocs,
        node_a=ocs * size + node_a,
        node_b=ocs * size + node_b,
    )


# Graph


def check(settings: MixNetSettings) -> None:
    """Refuse more regions than a spine switch has ports, and more links than fit."""
    if settings.regions > settings.switch_radix:
        raise SettingsError(
            "regions",
            f"got {settings.regions}; allowed: 2 to switch_radix = {settings.switch_radix}, as a"
            f" spine switch has a port for each; the nearest is {settings.switch_radix}",
        )
    check_size("regions", 2 * settings.chips * (1 + 2 * settings.planes))


def build(settings: MixNetSettings) -> Topology:
    """Build the network with circuits for uniform traffic."""
    return wired(settings, np.ones((settings.server_count, settings.server_count)))


def wired(settings: MixNetSettings, demand: FloatArray) -> Topology:
    """Build the network with circuits for a demand of servers.

    Switches: the scale-up switches, then plane by plane the leaves and the spine.
    """
    leaves, spines = _tree(settings)
    circuits = _all_circuits(settings, demand)
    a, b = (
        server * settings.chips_per_server + settings.tree_chips + port % settings.circuit_ports
        for server, port in (
            (circuits.node_a, circuits.port_a),
            (circuits.node_b, circuits.port_b),
        )
    )
    near = leaves.repeat(settings.servers_per_region, axis=1)[..., None]
    flight_ns, planes = settings.external_latency_ns, settings.planes
    links = [
        duplex_links(src, dst, kind, settings.port_gbps, latency_ns, lanes=lanes)
        for src, dst, kind, latency_ns, lanes in (
            (_tree_chips(settings), near, "leaf", settings.leaf_latency_ns, 1),
            (leaves[..., None], spines[:, None], "aggregation", flight_ns, 1),
            (a, b, "optical", flight_ns, planes),
        )
    ]
    return topology_of(
        settings,
        [scale_up_links(settings, planes), *links],
        chips=settings.chips,
        chips_per_node=settings.chips_per_server,
        switches=settings.server_count + leaves.size + spines.size,
        circuits=circuits,
    )


def _tree(settings: MixNetSettings) -> tuple[IntArray, IntArray]:
    """Vertices of the leaves int[planes, regions] and spines int[planes, spines]."""
    regions, ends = settings.regions, settings.tree_ends
    first = settings.chips + settings.server_count
    switch = first + np.arange(settings.planes * (regions + ends)).reshape(settings.planes, -1)
    return switch[:, :regions], switch[:, regions:]


def _tree_chips(settings: MixNetSettings) -> IntArray:
    """The chips of each server on the packet tree: int[servers, chips]."""
    server = np.arange(settings.server_count)
    return server[:, None] * settings.chips_per_server + np.arange(settings.tree_chips)


def halves(settings: MixNetSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: regions are cut in the middle, spines in half 1."""
    region = (np.arange(settings.regions) >= settings.regions // 2).astype(np.int8)
    server = np.repeat(region, settings.servers_per_region)
    plane = np.append(region, np.ones(settings.tree_ends, dtype=np.int8))
    parts = [np.repeat(server, settings.chips_per_server), server]
    return np.concatenate([*parts, np.tile(plane, settings.planes)])


# Routing


def route(
    settings: MixNetSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """Over the circuits of a pair of servers, else over the tree; ``tree``: always.

    Up to the link between servers and over it, and within one server, packets draw one
    of ``VIRTUAL_CHANNELS`` at each hop (state 0), after it they have one more (state
    1).
    """
    builder = TableBuilder(
        topology, routing, destinations, states=2, virtual_channels=VIRTUAL_CHANNELS + 1
    )
    g, to = settings.chips_per_server, builder.destinations.astype(np.int64)
    server, columns = np.arange(settings.server_count), np.arange(len(to))
    chip, switch, there = np.arange(topology.chips), topology.chips + server, to // g
    entry = builder.entry
    up = switch[chip // g][:, None]
    entry[0][chip] = _sets(builder, chip, up)[:, None]
    here = there == (chip // g)[:, None]
    entry[1][chip] = np.where(here, _sets(builder, chip, up, (1, 1))[:, None], -1)
    for state in (0, 1):
        down = _sets(builder, switch[there], to[:, None], (state, state))
        entry[state][switch[there], columns] = down
    elsewhere = there != server[:, None]
    tree_chips = _tree_chips(settings)
    out = _sets(builder, switch, tree_chips)
    entry[0][switch] = np.where(elsewhere, out[:, None], entry[0][switch])
    leaves, _ = _tree(settings)
    leaf = leaves.T.repeat(settings.tree_ends, axis=0)
    climb = _sets(builder, tree_chips.ravel(), leaf).reshape(tree_chips.shape)
    outside = np.where(elsewhere[:, None], climb[..., None], entry[0][tree_chips])
    entry[0][tree_chips] = outside
    _fill_tree(builder, settings)
    if routing == "min":
        _fill_circuits(builder, settings, elsewhere)
    entry[:, to, columns] = -1
    return builder.build()


def _sets(
    builder: TableBuilder, src: IntArray, dst: IntArray, states: tuple[int, int] = (0, 0)
) -> Int32Array:
    """Sets of the links from src[i] to all of dst[i, :], evenly on all channels.

    ``states``: that of the channels, and the state after the hop.
    """
    channels = (VIRTUAL_CHANNELS,) if states[0] else range(VIRTUAL_CHANNELS)
    pools = [builder.pools_between(src[:, None], dst, channel) for channel in channels]
    # Pairs are asked for many times, and have few distinct sets.
    rows, where = np.unique(np.concatenate(pools, axis=1), axis=0, return_inverse=True)
    sets = [builder.choice_set([(pool, states[1]) for pool in row]) for row in rows.tolist()]
    return np.array(sets, dtype=np.int32)[where.ravel()]


def _fill_tree(builder: TableBuilder, settings: MixNetSettings) -> None:
    """From leaves to the spine and down to servers, from the spine to leaves."""
    g, to = settings.chips_per_server, builder.destinations.astype(np.int64)
    region, columns = to // (g * settings.servers_per_region), np.arange(len(to))
    entry, tree_chips = builder.entry[0], _tree_chips(settings)
    straight = to % g < settings.tree_chips
    for leaf, spine in zip(*_tree(settings), strict=True):
        entry[leaf] = _sets(builder, leaf, np.tile(spine, (len(leaf), 1)))[:, None]
        into = _sets(builder, leaf[region], tree_chips[to // g], (0, 1))
        into[straight] = _sets(builder, leaf[region[straight]], to[straight][:, None], (0, 1))
        entry[leaf[region], columns] = into
        pairs = np.repeat(spine, len(leaf)), np.tile(leaf, len(spine))[:, None]
        entry[spine] = _sets(builder, *pairs).reshape(len(spine), -1)[:, region]


def _fill_circuits(builder: TableBuilder, settings: MixNetSettings, elsewhere: BoolArray) -> None:
    """Between servers with circuits: over these alone."""
    g, links, entry = settings.chips_per_server, builder.topology.links, builder.entry[0]
    optical = (links.src < settings.chips) & (links.dst < settings.chips)
    src, dst = links.src[optical].astype(np.int64), links.dst[optical].astype(np.int64)
    pairs = src // g * settings.server_count + dst // g
    hop = _sets(builder, src, dst[:, None], (0, 1))
    tree_chips = _tree_chips(settings)
    switches = settings.chips + np.arange(settings.server_count)
    up = _sets(builder, tree_chips.ravel(), np.repeat(switches, settings.tree_chips)[:, None])
    up = up.reshape(tree_chips.shape)
    for pair in np.unique(pairs).tolist():
        (a, b), ends = divmod(pair, settings.server_count), pairs == pair
        columns = np.flatnonzero(~elsewhere[b])
        entry[switches[a], columns] = _sets(builder, switches[[a]], src[ends][None])[0]
        entry[tree_chips[a][:, None], columns] = up[a][:, None]
        entry[src[ends][:, None], columns] = hop[ends][:, None]


# Bill of materials


def ports(settings: MixNetSettings) -> Ports:
    """Components, and injection in ports per chip.

    An end of the tree of T tiers takes 2 T - 1 switch ports and 2 T transceivers, an
    optical port a transceiver. All-to-all depends on the circuits and so has no closed
    form.
    """
    ends = settings.server_count * settings.tree_chips * settings.planes
    circuits = settings.server_count * settings.circuit_ports * settings.planes
    tiers = _tiers(settings, settings.regions)
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * ends, "uplink": 2 * ends * (tiers - 1), "optical": circuits},
        injection=settings.planes,
        all_to_all=None,
        bisection=settings.tree_chips * settings.planes / settings.chips_per_server,
        electrical_switch_ports=ends * (2 * tiers - 1),
        ocs_ports=circuits,
    )


def _tiers(settings: MixNetSettings, regions: int) -> int:
    """Tiers of a plane's tree: two as in the graph, or as many as its ends need."""
    return max(
        2,
        fewest_tiers(
            regions * settings.tree_ends,
            _MOST_TIERS,
            settings.switch_radix,
            None,
            chips=regions * settings.servers_per_region * settings.chips_per_server,
            chips_per_end=settings.chips_per_server // settings.tree_chips,
        ),
    )


def resize(settings: MixNetSettings, chips: int) -> MixNetSettings:
    """The fewest regions with at least ``chips`` chips."""
    size = settings.servers_per_region * settings.chips_per_server
    regions = max(2, math.ceil(chips / size))
    _tiers(settings, regions)
    return replace(settings, regions=regions)


FAMILY = server_family(
    "mixnet",
    MixNetSettings,
    build=build,
    check=check,
    halves=halves,
    # Those of the leaves of half 0.
    bisection_ports=lambda of: of.regions // 2 * of.tree_ends * of.planes,
    routings=("min", "tree"),
    route=route,
    switched=True,
    bill=Bill(ports=ports, resize=resize),
    traffic_circuits=TrafficCircuits(
        wired=wired,
        other_routing="tree",
        delay_ms=lambda settings: settings.change_ms / _EXCHANGES,
        with_change=lambda settings, change_ms: replace(settings, change_ms=change_ms),
        changes_ms=CHANGES_MS,
    ),
)
