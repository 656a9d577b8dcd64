"""Network family ``dragonfly``: groups of switches, joined by global links (Kim 2008).

All switches of a group are joined, and all groups are. Each chip has one port in every
one of ``planes`` identical networks, so that injection bandwidth can be made equal to
that of other families.

Routing: a local, a global and a local hop, or two such journeys. Either local hop may
be missing. The two journeys go by way of another group. Each hop that may follow
another of its kind is one virtual channel up (Kim 2008), so no cycle of waiting packets
can close: local 0, global 0, local 1, global 1, local 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.family import Family, FamilyBase, any_chips, size_check
from railx.families.routers import distances, with_leaf_links
from railx.settings import AtLeast, NonNegative, SettingsError
from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.counts import Bill, Ports, dragonfly_hops, fewest_units
from railx.vocabulary.routing.spread import fill_leaves, first_links
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology, duplex_links, topology_of

__all__ = ["FAMILY", "DragonflySettings"]


#: States of ``adaptive`` and ``valiant``: in or towards the destination's group after
#: the first global link, and after the second. State 0 is the source; the others lead
#: to a global link of the first group.
_SECOND, _LAST, _COMMITTED = 1, 2, 3


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
        links += [
            duplex_links(a, b, kind, settings.port_gbps, latency_ns)
            for a, b, kind, latency_ns in (
                (chip, first + chip // settings.p, "leaf", settings.leaf_latency_ns),
                (group[:, inside[0]], group[:, inside[1]], "local", settings.local_latency_ns),
                (*(first + pairs.T), "global", settings.global_latency_ns),
            )
        ]
    return topology_of(
        settings, links, chips=settings.chips, switches=settings.planes * settings.switches
    )


def global_pairs(settings: DragonflySettings) -> IntArray:
    """The global links of one plane as pairs of its switches.

    Shape (links_per_pair * groups * (groups - 1) / 2, 2). The switches of a group get
    its ports in runs of at most h.
    """
    group, port = group_links(settings.groups, settings.links_per_pair)
    used = settings.links_per_pair * (settings.groups - 1)
    return group * settings.a + port * settings.a // used


def group_links(groups: int, copies: int) -> tuple[IntArray, IntArray]:
    """The groups (int[links, 2]) that ``copies`` links of pairs join, and their ports.

    Port k of a group leads to the group k mod (groups - 1) + 1 further on, so every
    rotation of the groups is a symmetry.
    """
    group, copy, offset = np.meshgrid(
        np.arange(groups), np.arange(copies), np.arange(1, groups), indexing="ij"
    )
    far = (group + offset) % groups
    port = copy[..., None] * (groups - 1) + np.stack([offset, groups - offset], axis=-1) - 1
    once = group < far
    return np.stack([group, far], axis=-1)[once], port[once]


def halves(settings: DragonflySettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the groups are cut in the middle."""
    group = np.arange(settings.groups) >= settings.groups // 2
    switch = np.repeat(group, settings.a)
    return np.concatenate([np.repeat(switch, settings.p), np.tile(switch, settings.planes)]).astype(
        np.int8
    )


def bisection_ports(settings: DragonflySettings) -> int:
    """Ports in one direction across that cut: all links of pairs of groups there."""
    half = settings.groups // 2
    return settings.planes * settings.links_per_pair * half * (settings.groups - half)


def node_hop_counts(settings: DragonflySettings) -> IntArray:
    """Ordered pairs of chips that are h links apart (index h).

    The search starts at the switches of one group of one plane, as all groups and
    planes are alike. A shortest path may cross two global links in a row, unlike the
    paths of this family's routings.
    """
    inside = np.argwhere(~np.eye(settings.a, dtype=np.bool_))
    local = (np.arange(settings.groups)[:, None, None] * settings.a + inside).reshape(-1, 2)
    hops = distances(np.concatenate([local, global_pairs(settings)]), np.arange(settings.a))
    counts = np.bincount(hops.ravel()) * settings.p**2 * settings.groups
    return with_leaf_links(counts, settings.chips)


# Bill of materials


def ports(settings: DragonflySettings) -> Ports:
    """Components of the groups, and their bandwidths in ports per chip.

    A switch has p ports to chips, a - 1 into its group and h to other groups, all of
    them charged: 4 p - 1 in a balanced network. Ports that stay open with fewer groups
    are charged with their cables, as for a network that grows.
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
    what = f"one link between any two groups of {group} chips"
    return replace(settings, groups=fewest_units(chips, group, most, what))


def _delivered(settings: DragonflySettings) -> float:
    """Uniform traffic that links of groups carry, in ports of a plane per chip."""
    inside, between = dragonfly_hops(settings.a, settings.groups, settings.p)
    share = settings.h / settings.p / between
    return min((settings.a - 1) / settings.p / inside, share) if inside else share


def route(
    settings: DragonflySettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """Minimal, Valiant or adaptive paths; a chip enters by any plane and stays in it.

    * ``min``: a global link of the source's switch to the destination's group if it has
      one, else of another switch of the group, drawn evenly over the links between both
      groups. It is on any of the three channels, as only one phase uses global links.
    * ``valiant``: first over a global link of the group drawn evenly, then as ``min``
      (Valiant 1982).
    * ``adaptive``: the source's switch takes a path of ``min`` or one of its global
      links, by the queue at the global link and the time of flight of the full path.
      This is UGAL (Kim 2008) with the links of the switch as candidates and the queues
      at all links of its group. Static loads are those of ``min``.

    Packets for the same group go there at once in every routing.
    """
    states = {"min": 2, "adaptive": 4, "valiant": 3 + settings.h}[routing]
    builder = TableBuilder(topology, routing, destinations, states=states, virtual_channels=3)
    target = builder.destinations.astype(np.int64) // settings.p
    fills = {"adaptive": _Plane.fill_adaptive, "valiant": _Plane.fill_valiant}
    fill = fills.get(routing, _Plane.fill_min)
    for plane in range(settings.planes):
        first = settings.chips + plane * settings.switches
        fill(_Plane(builder, settings, first, target))
    fill_leaves(builder, target, settings.switches)
    return builder.build()


class _Plane:
    """The links of one plane by switch (numbered in the plane) and group, and its sets.

    Parallel links of two switches are one pool. ``target``: switches of destinations.
    """

    def __init__(
        self, builder: TableBuilder, settings: DragonflySettings, first: int, target: IntArray
    ) -> None:
        self.builder, self.settings, self.target = builder, settings, target
        self.entry = builder.entry[:, first : first + settings.switches]
        switch = np.arange(settings.switches)
        self.group = switch // settings.a
        self.outside = self.group[:, None] != target // settings.a
        pairs = global_pairs(settings)
        ends, self.lanes = np.unique(
            np.concatenate([pairs, pairs[:, ::-1]]), axis=0, return_counts=True
        )
        self.near, self.far = ends.T
        channels = range(builder.virtual_channels)
        self.over = [
            builder.pools_between(first + self.near, first + self.far, vc) for vc in channels
        ]
        peers = self.group[:, None] * settings.a + np.arange(settings.a)
        self.local = [
            builder.pools_between(first + switch[:, None], first + peers, vc) for vc in channels
        ]
        #: First link row of each global pool, whose queue an adaptive router compares.
        self.row = first_links(builder, first + self.near, first + self.far)
        #: Indices in ``near`` of the links that leave a switch, and of those between a
        #: pair of groups.
        self.leaving = [np.flatnonzero(self.near == vertex).tolist() for vertex in switch]
        self.between: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, (near, far) in enumerate(self.group[ends].tolist()):
            self.between[near, far].append(index)

    def toward(self, switch: int, group: int) -> list[int]:
        """The global links to a group: the switch's, else those of its group."""
        ways = self.between[int(self.group[switch]), group]
        return [way for way in ways if self.near[way] == switch] or ways

    def choice(self, switch: int, way: int, vc: int, after: int, stay: int) -> tuple[int, int]:
        """The pool and state of a hop over a global link, or to its switch."""
        near = int(self.near[way])
        if near == switch:
            return int(self.over[vc][way]), after
        return int(self.local[vc][switch, near % self.settings.a]), stay

    def fill_min(self) -> None:
        sets = self.minimal_sets(vc=0, stay=0, after=_SECOND, global_vcs=(0, 1, 2))
        self.fill(0, sets)
        self.fill_local({0: 0, _SECOND: 1})

    def fill_valiant(self) -> None:
        first_heading = _LAST + 1
        # Global pools of the switches, by heading.
        out = np.full((len(self.group), self.settings.h), -1, dtype=np.int64)
        for switch, leaving in enumerate(self.leaving):
            out[switch, : len(leaving)] = self.over[0][leaving]
        scatter = np.full((len(self.group), 1), -1, dtype=np.int32)
        for switch in range(len(self.group)):
            choices, lanes = [], []
            group = self.group[switch] * self.settings.a
            for near in range(group, group + self.settings.a):
                for heading, way in enumerate(self.leaving[near], first_heading):
                    choices.append(self.choice(switch, way, 0, _SECOND, heading))
                    lanes.append(int(self.lanes[way]))
            share = (np.array(lanes) / sum(lanes)).tolist()
            scatter[switch] = self.builder.choice_set(choices, share)
        every_group = (len(self.group), self.settings.groups)
        self.fill(0, np.broadcast_to(scatter, every_group))
        for heading, pools in enumerate(out.T, first_heading):
            sets = self.builder.single(pools[:, None], _SECOND)
            self.fill(heading, np.broadcast_to(sets, every_group))
        self.fill_second()

    def fill_adaptive(self) -> None:
        sets = np.full((len(self.group), self.settings.groups), -1, dtype=np.int32)
        for switch, group in np.ndindex(*sets.shape):
            if self.group[switch] != group:
                sets[switch, group] = self.adaptive_set(switch, group)
        self.fill(0, sets)
        self.fill(_COMMITTED, self.minimal_sets(vc=0, stay=_COMMITTED, after=_SECOND))
        self.fill_second()

    def adaptive_set(self, switch: int, group: int) -> int:
        """Paths of ``min``, then the links of the switch to other groups.

        The paths of ``min`` have all the weight in static loads.
        """
        local_ns, global_ns = self.settings.local_latency_ns, self.settings.global_latency_ns
        minimal = self.toward(switch, group)
        others = [way for way in self.leaving[switch] if way not in minimal]
        delays = [global_ns + (0.0 if self.near[way] == switch else local_ns) for way in minimal]
        for way in others:
            landing = int(self.far[way])
            detour = landing not in self.near[self.toward(landing, group)]
            delays.append(2 * global_ns + (local_ns if detour else 0.0))
        ways, lanes = [*minimal, *others], self.lanes[minimal]
        return self.builder.choice_set(
            [self.choice(switch, way, 0, _SECOND, _COMMITTED) for way in ways],
            [*(lanes / lanes.sum()).tolist(), *[0.0] * len(others)],
            [self.row[way] for way in ways],
            delays,
        )

    def minimal_sets(
        self, *, vc: int, stay: int, after: int, global_vcs: Sequence[int] = ()
    ) -> Int32Array:
        """The sets of ``min`` by switch and group.

        They lead over a global link (state ``after``), or to a switch with such a link
        (``stay``). ``vc``: virtual channel; global links take one of ``global_vcs`` if
        given.
        """
        sets = np.full((len(self.group), self.settings.groups), -1, dtype=np.int32)
        for switch, group in np.ndindex(*sets.shape):
            if self.group[switch] == group:
                continue
            ways = self.toward(switch, group)
            channels = global_vcs if global_vcs and self.near[ways[0]] == switch else (vc,)
            share = self.lanes[ways] / self.lanes[ways].sum()
            sets[switch, group] = self.builder.choice_set(
                [self.choice(switch, way, c, after, stay) for way in ways for c in channels],
                (np.repeat(share, len(channels)) / len(channels)).tolist(),
            )
        return sets

    def fill(self, state: int, sets: Int32Array) -> None:
        """Write sets by switch and group where the destination is in another group."""
        self.entry[state][self.outside] = sets[:, self.target // self.settings.a][self.outside]

    def fill_second(self) -> None:
        """After a first global link: the second one, and the hops inside groups."""
        self.fill(_SECOND, self.minimal_sets(vc=1, stay=_SECOND, after=_LAST))
        self.fill_local({0: 0, _SECOND: 1, _LAST: 2})

    def fill_local(self, channels: dict[int, int]) -> None:
        """Write the hop inside the destination's group; ``channels``: by state."""
        for state, vc in channels.items():
            sets = self.builder.single(self.local[vc], state)
            to_switch = sets[:, self.target % self.settings.a]
            self.entry[state][~self.outside] = to_switch[~self.outside]


FAMILY = Family(
    name="dragonfly",
    settings=DragonflySettings,
    build=build,
    check=size_check("groups", lambda of: of.planes * of.switches * (of.a - 1 + of.h + 2 * of.p)),
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=lambda of: of.planes,
    routings=("min", "adaptive", "valiant"),
    route=route,
    plane=lambda of: (build(replace(of, planes=1)), of.planes),
    node_hop_counts=node_hop_counts,
    job_places=any_chips(lambda of: of.chips, domain_chips=lambda of: of.p * of.a),
    bill=Bill(ports=ports, resize=resize, copper=("leaf", "local")),
)
