"""A Dragonfly: groups of switches, joined by global links (Kim 2008).

All switches of a group are joined, and all groups are. Each chip has one port in every
one of ``planes`` identical networks, so that injection bandwidth can be made equal to
that of other families.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.family import FamilyBase
from railx.settings import AtLeast, NonNegative, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.counts import Ports, dragonfly_hops, too_large
from railx.vocabulary.topology import Topology, check_size, duplex_links, topology_of


@dataclass(frozen=True)
class DragonflySettings(FamilyBase):
    """Groups of switches, all joined inside a group, with links between any two groups.

    A network is balanced with a = 2p = 2h; the largest has a h + 1 groups. With fewer,
    every pair of groups gets floor(a h / (groups - 1)) links, spread over the switches,
    and the other ports stay open.
    """

    family: Literal["dragonfly"]

    p: Annotated[int, AtLeast(1)] = 2
    """Chips on a switch."""
    a: Annotated[int, AtLeast(1)] = 4
    """Switches in a group."""
    h: Annotated[int, AtLeast(1)] = 2
    """Ports of a switch to other groups."""
    groups: Annotated[int, AtLeast(2)] = 9
    """Groups, at most a h + 1, which is one global link for each pair of groups."""
    planes: Annotated[int, AtLeast(1)] = 8
    """Parallel networks, one port of each chip in every plane. Default: the ports of a
    RailX chip (4 n = 8)."""
    leaf_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight between a chip and its switch, in nanoseconds. Default: an
    assumption, half of the global links, as in the RailX simulator's fat-tree input
    files (5 and 10 cycles)."""
    local_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight inside a group, in nanoseconds. Default: an assumption, as long as
    the links to chips."""
    global_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between groups, in nanoseconds. Default: an assumption, about 20 m
    of fibre at 5 ns/m, as external links of RailX."""

    def __post_init__(self) -> None:
        most = self.a * self.h + 1
        if self.groups > most:
            raise SettingsError(
                "groups",
                f"got {self.groups}; allowed: 2 to a * h + 1 = {most}, one global link for each"
                f" pair of groups; the nearest is {most} (or h = {-(-(self.groups - 1) // self.a)}"
                f" for {self.groups} groups)",
            )

    @property
    def switches(self) -> int:
        """Switches of one plane."""
        return self.a * self.groups

    @property
    def chips(self) -> int:
        return self.p * self.switches

    @property
    def links_per_pair(self) -> int:
        """Global links between any two groups of one plane."""
        return self.a * self.h // (self.groups - 1)


# Graph


def check(settings: DragonflySettings) -> None:
    """Refuse more links than fit in memory."""
    links = settings.a - 1 + settings.h + 2 * settings.p
    check_size("groups", settings.planes * settings.groups * settings.a * links)


def build(settings: DragonflySettings) -> Topology:
    """Build the network: chip c hangs on switch c // p of every plane.

    Switches follow the chips plane by plane, group by group.
    """
    chip, links = np.arange(settings.chips), []
    inside = np.triu_indices(settings.a, 1)
    pairs = global_pairs(settings)
    for plane in range(settings.planes):
        first = settings.chips + plane * settings.switches
        group = first + np.arange(settings.switches).reshape(settings.groups, settings.a)
        rate = settings.port_gbps
        links += [
            duplex_links(
                chip,
                first + chip // settings.p,
                "leaf",
                gbps=rate,
                latency_ns=settings.leaf_latency_ns,
            ),
            duplex_links(
                group[:, inside[0]],
                group[:, inside[1]],
                "local",
                gbps=rate,
                latency_ns=settings.local_latency_ns,
            ),
            duplex_links(
                first + pairs[:, 0],
                first + pairs[:, 1],
                "global",
                gbps=rate,
                latency_ns=settings.global_latency_ns,
            ),
        ]
    return topology_of(
        settings, links, chips=settings.chips, switches=settings.planes * settings.switches
    )


def global_pairs(settings: DragonflySettings) -> IntArray:
    """The global links of one plane as pairs of its switches.

    Shape (links_per_pair * groups * (groups - 1) / 2, 2). Port k of a group leads to
    the group k mod (groups - 1) + 1 further on, so every rotation of the groups is a
    symmetry. The switches of a group get its ports in runs of at most h.
    """
    others, copies = settings.groups - 1, settings.links_per_pair
    group, copy, offset = np.meshgrid(
        np.arange(settings.groups), np.arange(copies), np.arange(1, settings.groups), indexing="ij"
    )
    far = (group + offset) % settings.groups
    port, back = copy * others + offset - 1, copy * others + settings.groups - offset - 1
    near_switch = group * settings.a + port * settings.a // (copies * others)
    far_switch = far * settings.a + back * settings.a // (copies * others)
    once = group < far
    pairs: IntArray = np.stack([near_switch[once], far_switch[once]], axis=1).astype(np.int64)
    return pairs


def halves(settings: DragonflySettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the groups are cut in the middle."""
    group = np.arange(settings.groups) >= settings.groups // 2
    switch = np.repeat(group, settings.a)
    return np.concatenate([np.repeat(switch, settings.p), np.tile(switch, settings.planes)]).astype(
        np.int8
    )


def bisection_ports(settings: DragonflySettings) -> int:
    """Ports in one direction across that cut: the links of every pair of groups across
    it.
    """
    half = settings.groups // 2
    return settings.planes * settings.links_per_pair * half * (settings.groups - half)


def ports_per_chip(settings: DragonflySettings) -> int:
    """Ports of a chip: one in each plane."""
    return settings.planes


def node_hop_counts(settings: DragonflySettings) -> IntArray:
    """Ordered pairs of chips that are h links apart (index h).

    The search starts at the switches of one group of one plane, as all groups and
    planes are alike. A shortest path may cross two global links in a row, unlike the
    paths of this family's routings.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    inside = np.argwhere(~np.eye(settings.a, dtype=np.bool_))
    local = (np.arange(settings.groups)[:, None, None] * settings.a + inside).reshape(-1, 2)
    edges = np.concatenate([local, global_pairs(settings), global_pairs(settings)[:, ::-1]])
    graph = csr_array(
        (np.ones(len(edges)), (edges[:, 0], edges[:, 1])),
        shape=(settings.switches, settings.switches),
    )
    hops = dijkstra(graph, directed=True, unweighted=True, indices=np.arange(settings.a)).astype(
        np.int64
    )
    by_switch = np.concatenate(
        [[0, 0], np.bincount(hops.ravel()) * settings.p**2 * settings.groups]
    )
    # A chip to itself takes no link.
    by_switch[0], by_switch[2] = settings.chips, by_switch[2] - settings.chips
    return by_switch


# Bill of materials


def ports(settings: DragonflySettings) -> Ports:
    """Components of the groups, and their bandwidths in ports per chip.

    A switch has p ports to chips, a - 1 into its group and h to other groups, all of
    them charged: 4 p - 1 in a balanced network.
    """
    p, groups, planes = settings.p, settings.groups, settings.planes
    switches = settings.switches * planes
    terminal, local, world = p * switches, (settings.a - 1) * switches, settings.h * switches
    cut = 2 * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1))
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * terminal, "local": local, "global": world},
        injection=planes,
        all_to_all=planes * min(_delivered(settings), 1.0),
        bisection=planes * cut * (settings.h / p),
        electrical_switch_ports=terminal + local + world,
    )


def resize(settings: DragonflySettings, chips: int) -> DragonflySettings:
    """The fewest groups with at least ``chips`` chips."""
    group, most = settings.p * settings.a, settings.a * settings.h + 1
    groups = max(2, math.ceil(chips / group))
    if groups > most:
        raise too_large(chips, most * group, f"one link between any two groups of {group} chips")
    return replace(settings, groups=groups)


def _delivered(settings: DragonflySettings) -> float:
    """Uniform traffic that links in and between groups carry, in ports of a plane per
    chip.
    """
    inside, between = dragonfly_hops(settings.a, settings.groups, settings.p)
    share = settings.h / settings.p / between
    return min((settings.a - 1) / settings.p / inside, share) if inside else share
