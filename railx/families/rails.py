"""The rail networks: servers of chips behind scale-up switches.

Chip i of server a is number a * chips_per_server + i; chips of equal rank i form a
rail. Rails of electrical switches also share graph, routing and lines: the rail-only
network is the rail-optimised one with a single pod and no spine.

Routing on electrical rails: a chip reaches another of its server through the scale-up
switch, a chip of its rank over its rail switch. It sends a packet for another rank to
the chip of that rank in its server, which sends it over its rail: two links between
servers where the spine takes four. Between pods a packet leaves by the rail switch of
its rank and the spine takes it to that of the destination. Every packet takes links in
the order scale-up, rail switch, spine, rail switch, chip, so no cycle of waiting
packets can form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from railx.families.family import Family, FamilyBase, Lines, any_chips
from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.arrays import BoolArray, IntArray
from railx.vocabulary.counts import Ports
from railx.vocabulary.routing.groups import DestinationGroups, groups_by_coordinates
from railx.vocabulary.routing.spread import VIRTUAL_CHANNELS, even_sets, fallback_sets
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import (
    FamilySettings,
    Links,
    NodeSettings,
    Topology,
    duplex_links,
    topology_of,
)

__all__ = [
    "ElectricalRailSettings",
    "ServerSettings",
    "build",
    "electrical_family",
    "electrical_ports",
    "rail_table",
    "route",
    "scale_up_links",
    "server_family",
]


@dataclass(frozen=True)
class ServerSettings(FamilyBase):
    """Servers of chips behind scale-up switches."""

    chips_per_server: Annotated[int, AtLeast(1)] = 8
    """Chips of a server, and rails. Default: a DGX H200 server."""
    scale_up_width: Annotated[float, Positive()] = 9.0
    """Rate of a chip's link to its scale-up switch over the rate of all its ports
    together. Default: 450 to 50 GB/s of a DGX H200 (Opus)."""
    scale_up_latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight between a chip and its scale-up switch, in nanoseconds. Default:
    an assumption, as inside a RailX node."""

    def __post_init__(self) -> None:
        """Take width and latency of the scale-up links from ``node``."""
        if self.node is not None:
            width = self.node.gb_s * 8 / (self.ports_per_chip * self.port_gbps)
            object.__setattr__(self, "scale_up_width", width)
            object.__setattr__(self, "scale_up_latency_ns", self.node.latency_ns)

    @property
    def ports_per_chip(self) -> int:
        """Ports of a chip to other servers."""
        raise NotImplementedError

    @property
    def server_count(self) -> int:
        """Servers of the network."""
        raise NotImplementedError

    @property
    def chips(self) -> int:
        return self.server_count * self.chips_per_server


@dataclass(frozen=True)
class ElectricalRailSettings(ServerSettings):
    """Servers whose chips of equal rank meet at electrical rail switches."""

    planes: Annotated[int, AtLeast(1)] = 8
    """Parallel rail networks, one port of each chip in every plane. Default: the ports
    of a RailX chip (4 n = 8)."""
    leaf_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight between a chip and its rail switch, in nanoseconds. Default: an
    assumption, as in ``fat_tree``."""

    @property
    def ports_per_chip(self) -> int:
        return self.planes

    @property
    def tiers(self) -> int:
        """Tiers of the tree of switches that the bill counts."""
        raise NotImplementedError

    @property
    def pod_count(self) -> int:
        """Groups of servers with shared rail switches."""
        return 1

    @property
    def servers_per_pod(self) -> int:
        return self.server_count

    @property
    def half_servers(self) -> int:
        """Servers of half 0 of the natural cut."""
        half = self.pod_count // 2 * self.servers_per_pod
        return half if self.pod_count > 1 else self.server_count // 2

    @property
    def rail_switches(self) -> int:
        """Rail switches of a plane: one for each rank in each pod."""
        return self.pod_count * self.chips_per_server

    @property
    def spines(self) -> int:
        """Spine switches of a plane."""
        return 0

    @property
    def spine_delay_ns(self) -> float | None:
        """Flight time that a spine adds to paths to other ranks; None: no spine."""
        return None


ServerT = TypeVar("ServerT", bound=ServerSettings)
ElectricalT = TypeVar("ElectricalT", bound=ElectricalRailSettings)


def scale_up_links(settings: ServerSettings, ports: int) -> Links:
    """The links of every chip to the scale-up switch of its server.

    Each has ``ports`` lanes of ``scale_up_width`` times a port. The scale-up switches
    are the first switches, in the servers' order.
    """
    chip = np.arange(settings.chips)
    switch = settings.chips + chip // settings.chips_per_server
    rate, latency_ns = settings.port_gbps * settings.scale_up_width, settings.scale_up_latency_ns
    return duplex_links(chip, switch, "internal", rate, latency_ns, lanes=ports)


def inside(settings: ServerSettings) -> NodeSettings | None:
    """The scale-up switch of a server."""
    if settings.chips_per_server == 1:
        return None
    gb_s = settings.ports_per_chip * settings.port_gbps * settings.scale_up_width / 8
    return NodeSettings(settings.chips_per_server, "switch", gb_s, settings.scale_up_latency_ns)


def server_family(name: str, settings: type[ServerT], **capabilities: Any) -> Family[ServerT]:
    """The family of servers of chips, with ``capabilities`` of its own."""
    return Family(
        name=name,
        settings=settings,
        ports_per_chip=lambda of: of.ports_per_chip,
        has_nodes=True,
        inside=inside,
        # Jobs within a server, or on any chips; a fault takes its chip alone.
        job_places=any_chips(lambda of: of.chips, domain_chips=lambda of: of.chips_per_server),
        **capabilities,
    )


# Graph of electrical rails


def build(
    settings: ElectricalRailSettings,
    spine_links: Callable[[IntArray, IntArray], Links] | None = None,
) -> Topology:
    """Build the network.

    Switches: the scale-up switches, then plane by plane the rail switches (pod by pod)
    and the spine. ``spine_links``: vertices of the links between rail switches and
    spine.
    """
    g, chips = settings.chips_per_server, settings.chips
    chip = np.arange(chips)
    links = [scale_up_links(settings, settings.planes)]
    plane_switches = settings.rail_switches + settings.spines
    for plane in range(settings.planes):
        first = chips + settings.server_count + plane * plane_switches
        leaf = first + np.arange(settings.rail_switches)
        above = leaf[chip // (g * settings.servers_per_pod) * g + chip % g]
        rate, latency_ns = settings.port_gbps, settings.leaf_latency_ns
        links.append(duplex_links(chip, above, "leaf", rate, latency_ns))
        if spine_links is not None:
            links.append(spine_links(leaf, leaf[-1] + 1 + np.arange(settings.spines)))
    return topology_of(
        settings,
        links,
        chips=chips,
        chips_per_node=g,
        switches=settings.server_count + plane_switches * settings.planes,
    )


def halves(settings: ElectricalRailSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the pods are cut in the middle.

    A single pod is cut between its servers; its rail switches and the spine are in half
    1.
    """
    g, pods = settings.chips_per_server, settings.pod_count
    upper = np.arange(settings.server_count) >= settings.half_servers
    leaf = np.repeat(np.arange(pods) >= pods // 2, g)
    plane = np.tile(np.append(leaf, np.ones(settings.spines, dtype=np.bool_)), settings.planes)
    return np.concatenate([np.repeat(upper, g), upper, plane]).astype(np.int8)


def electrical_ports(settings: ElectricalRailSettings) -> Ports:
    """Components of rails of electrical switches, and bandwidths in ports per chip.

    Rails are non-blocking trees of T tiers: an end port takes 2 T - 1 switch ports and
    2 T transceivers.
    """
    planes, tiers = settings.planes, settings.tiers
    ends = settings.chips * planes
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * ends, "uplink": 2 * ends * (tiers - 1)},
        injection=planes,
        all_to_all=planes,
        bisection=planes,
        electrical_switch_ports=ends * (2 * tiers - 1),
    )


# Routing on electrical rails


def route(
    settings: ElectricalRailSettings,
    topology: Topology,
    routing: str,
    destinations: Destinations = None,
) -> RoutingTable:
    """Inside the server first, then along a rail.

    ``min`` draws planes and spine switches evenly; ``adaptive`` takes those with the
    shortest queues. Where a spine can take a packet to another rank of the pod,
    ``adaptive`` compares that path with the one through the server. Exact loads are the
    same for both, as without queues ``adaptive`` goes through the server.
    """
    builder, groups = rail_table(settings, topology, routing, destinations)
    entry, leaf, spine = builder.entry[0], settings.rail_switches, settings.spines
    first = topology.chips + settings.server_count
    for plane in range(settings.planes if spine else 0):
        here, above = np.split(first + plane * (leaf + spine) + np.arange(leaf + spine), [leaf])
        up = even_sets(builder, here, np.tile(above, (leaf, 1)))[:, None]
        for level in range(2):
            # Down to their own chips they lead already.
            down = entry[here, groups.on_level(level)]
            entry[here, groups.on_level(level)] = np.where(down < 0, up, down)
        entry[above, groups.on_level(0)] = even_sets(
            builder, np.repeat(above, leaf), np.tile(here, spine)[:, None]
        ).reshape(spine, leaf)
    return builder.build()


def groups_of(settings: ElectricalRailSettings, routing: str) -> int:
    """Columns of the table: for rail switches, ranks and servers of a pod; with detours
    for each of its chips.
    """
    g, servers = settings.chips_per_server, settings.servers_per_pod
    return settings.rail_switches + g + servers * (g if _detours(settings, routing) else 1)


def _detours(settings: ElectricalRailSettings, routing: str) -> bool:
    """Whether packets may reach another rank of their pod over the spine, too."""
    return routing == "adaptive" and settings.spine_delay_ns is not None


def rail_table(
    settings: ElectricalRailSettings,
    topology: Topology,
    routing: str,
    destinations: Destinations,
    *,
    crosses_ranks: bool = True,
) -> tuple[TableBuilder, DestinationGroups]:
    """A table with the choices of chips and scale-up switches, and the last hop.

    Its groups are by pod and rank, then in that pod by rank, then by server. A chip
    with a detour to other ranks has none to those of its server: there groups are by
    pod and rank, then by server and rank, then by rank. Spine switches lead to every
    pod. ``crosses_ranks``: whether the spine joins rails, so that packets change rank
    there between pods.
    """
    g, servers, planes = settings.chips_per_server, settings.server_count, settings.planes
    rails, spines = settings.rail_switches, settings.spines
    chip, server = np.arange(topology.chips), np.arange(servers)
    pod_chips = settings.servers_per_pod * g
    detours = _detours(settings, routing)
    plane_pod, plane_rank = np.full((2, rails + spines), -1)
    plane_pod[:rails], plane_rank[:rails] = np.divmod(np.arange(rails), g)
    pod = [chip // pod_chips, server // settings.servers_per_pod, np.tile(plane_pod, planes)]
    if detours:
        within = [chip // g, server, np.full(planes * len(plane_pod), -1)]
    else:
        within = [chip % g, np.full(servers, -1), np.tile(plane_rank, planes)]
    to = chip if destinations is None else destinations.astype(np.int64)
    place = to % pod_chips
    groups = groups_by_coordinates(
        topology.vertices,
        [np.concatenate(pod), np.concatenate(within)],
        [to // pod_chips, to // g if detours else to % g],
        [to // pod_chips * g + to % g, *((place, to % g) if detours else (to % g, place // g))],
        (rails, *((pod_chips, g) if detours else (g, settings.servers_per_pod))),
    )
    builder = TableBuilder(
        topology, routing, destinations, groups, states=1, virtual_channels=VIRTUAL_CHANNELS
    )
    entry, switch = builder.entry[0], topology.chips + server
    between, second, third = map(groups.on_level, range(3))
    first = switch[-1] + 1 + np.arange(planes) * len(plane_pod)
    rail_switch = first + (chip // pod_chips * g + chip % g)[:, None]  # [chip, plane]
    scale_up = switch[chip // g][:, None]
    inside = even_sets(builder, chip, scale_up)[:, None]
    outside = even_sets(builder, chip, rail_switch)[:, None]
    ranks = even_sets(builder, np.repeat(switch, g), chip[:, None]).reshape(servers, g)

    def same_rank(size: int) -> BoolArray:
        """Whether a chip has the rank of a column: bool[chips, columns]."""
        same: BoolArray = chip[:, None] % g == np.arange(size) % g
        return same

    if crosses_ranks:
        entry[chip, between] = outside
    else:
        entry[chip, between] = np.where(same_rank(rails), outside, inside)
        entry[switch, between] = np.tile(ranks, rails // g)
    if detours:
        assert settings.spine_delay_ns is not None
        detour = fallback_sets(builder, chip, scale_up, rail_switch, settings.spine_delay_ns)
        entry[chip, second] = np.where(same_rank(pod_chips), outside, detour[:, None])
        entry[chip, third] = np.where(same_rank(g), -1, inside)
        entry[switch, second] = np.tile(ranks, settings.servers_per_pod)
        entry[switch, third] = ranks
        below = second.start + chip % pod_chips
    else:
        entry[chip, second], entry[chip, third] = inside, outside
        below = third.start + chip % pod_chips // g
        entry[chip, below] = -1
        entry[switch, second] = ranks
    for of_plane in rail_switch.T:
        entry[of_plane, below] = even_sets(builder, of_plane, chip[:, None])
    return builder, groups


def electrical_family(
    name: str,
    settings: type[ElectricalT],
    *,
    group_network: Callable[[ElectricalT, int, str], FamilySettings],
    **capabilities: Any,
) -> Family[ElectricalT]:
    """The family of rails of electrical switches, with ``capabilities`` of its own.

    ``group_network``: the network of a number of servers alone.
    """
    shared: dict[str, Any] = {
        "halves": halves,
        # Those of the chips of half 0.
        "bisection_ports": lambda of: of.half_servers * of.chips_per_server * of.planes,
        "routings": ("min", "adaptive"),
        "route": route,
        "grouped_routings": ("min", "adaptive"),
        "groups": groups_of,
        # A rail switch joins any servers.
        "lines": Lines(
            axes=(("x", "y"),),
            wirings=lambda of, nodes: ("packets",) if nodes <= of.server_count else (),
            alone=group_network,
            shares=lambda of: 1,
            nodes=lambda of: of.server_count,
        ),
    }
    return server_family(name, settings, **shared | capabilities)
