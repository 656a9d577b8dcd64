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
    builder = TableBuilder(
        topology,
        routing,
        states={"min": 2, "adaptive": 4, "valiant": 3 + settings.h}[routing],
        virtual_channels=3,
        destinations=destinations,
    )
    target = builder.destinations.astype(np.int64) // settings.p
    for plane in range(settings.planes):
        first = settings.chips + plane * settings.switches
        links = _PlaneLinks(builder, settings, first)
        fill = {"min": _fill_min, "adaptive": _fill_adaptive, "valiant": _fill_valiant}[routing]
        fill(builder, links, target)
    fill_leaves(builder, target, settings.switches)
    return builder.build()


class _PlaneLinks:
    """The links of one plane by switch (numbered in the plane) and group.

    Parallel links of two switches are one pool.
    """

    def __init__(self, builder: TableBuilder, settings: DragonflySettings, first: int) -> None:
        self.settings = settings
        self.vertices = slice(first, first + settings.switches)
        switch = np.arange(settings.switches)
        self.group = switch // settings.a
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
        self.between: dict[tuple[int, int], list[int]] = {}
        pairs_of_groups = zip(
            self.group[self.near].tolist(), self.group[self.far].tolist(), strict=True
        )
        for index, pair in enumerate(pairs_of_groups):
            self.between.setdefault(pair, []).append(index)

    def toward(self, switch: int, group: int) -> list[int]:
        """The global links to a group: the switch's, else those of its group."""
        ways = self.between[int(self.group[switch]), group]
        return [way for way in ways if self.near[way] == switch] or ways

    def local_pool(self, switch: int, to: int, vc: int) -> int:
        return int(self.local[vc][switch, to % self.settings.a])


def _fill_min(builder: TableBuilder, links: _PlaneLinks, target: IntArray) -> None:
    sets = _minimal_sets(builder, links, vc=0, stay=0, after=_SECOND, global_vcs=(0, 1, 2))
    _fill(builder, links, target, 0, sets)
    _fill_local(builder, links, target, {0: 0, _SECOND: 1})


def _fill_valiant(builder: TableBuilder, links: _PlaneLinks, target: IntArray) -> None:
    first_heading = _LAST + 1
    # Global pools of the switches, by heading.
    out = np.full((len(links.group), links.settings.h), -1, dtype=np.int64)
    for switch, leaving in enumerate(links.leaving):
        out[switch, : len(leaving)] = links.over[0][leaving]
    scatter = np.full(len(links.group), -1, dtype=np.int32)
    for switch in range(len(links.group)):
        choices, lanes = [], []
        group = links.group[switch] * links.settings.a
        for near in range(group, group + links.settings.a):
            for heading, way in enumerate(links.leaving[near]):
                here = near == switch
                pool = int(links.over[0][way]) if here else links.local_pool(switch, near, 0)
                choices.append((pool, _SECOND if here else first_heading + heading))
                lanes.append(int(links.lanes[way]))
        scatter[switch] = builder.choice_set(choices, (np.array(lanes) / sum(lanes)).tolist())
    every_group = (len(links.group), links.settings.groups)
    _fill(builder, links, target, 0, np.broadcast_to(scatter[:, None], every_group))
    for heading in range(links.settings.h):
        sets = builder.single(out[:, heading], _SECOND)
        sets = np.broadcast_to(sets[:, None], every_group)
        _fill(builder, links, target, first_heading + heading, sets)
    _fill_second(builder, links, target)


def _fill_adaptive(builder: TableBuilder, links: _PlaneLinks, target: IntArray) -> None:
    sets = np.full((len(links.group), links.settings.groups), -1, dtype=np.int32)
    for switch, group in np.ndindex(*sets.shape):
        if links.group[switch] != group:
            sets[switch, group] = _adaptive_set(builder, links, switch, group)
    _fill(builder, links, target, 0, sets)
    sets = _minimal_sets(builder, links, vc=0, stay=_COMMITTED, after=_SECOND)
    _fill(builder, links, target, _COMMITTED, sets)
    _fill_second(builder, links, target)


def _adaptive_set(builder: TableBuilder, links: _PlaneLinks, switch: int, group: int) -> int:
    """Paths of ``min``, then the links of the switch to other groups.

    The paths of ``min`` have all the weight in static loads.
    """
    settings = links.settings
    minimal = links.toward(switch, group)
    others = [way for way in links.leaving[switch] if way not in minimal]
    choices, delays = [], []
    for way in minimal:
        near = int(links.near[way])
        here = near == switch
        choices.append(
            (int(links.over[0][way]), _SECOND)
            if here
            else (links.local_pool(switch, near, 0), _COMMITTED)
        )
        delays.append(settings.global_latency_ns + (0.0 if here else settings.local_latency_ns))
    for way in others:
        landing = int(links.far[way])
        detour = landing not in links.near[links.toward(landing, group)]
        choices.append((int(links.over[0][way]), _SECOND))
        delays.append(
            2 * settings.global_latency_ns + (settings.local_latency_ns if detour else 0.0)
        )
    lanes = links.lanes[minimal]
    weights = [*(lanes / lanes.sum()).tolist(), *[0.0] * len(others)]
    probes = [links.row[way] for way in (*minimal, *others)]
    return builder.choice_set(choices, weights, probes, delays)


def _minimal_sets(
    builder: TableBuilder,
    links: _PlaneLinks,
    *,
    vc: int,
    stay: int,
    after: int,
    global_vcs: Sequence[int] = (),
) -> Int32Array:
    """The sets of ``min`` by switch and group.

    They lead over a global link (state ``after``), or to a switch with such a link
    (``stay``). ``vc``: virtual channel; global links take one of ``global_vcs`` if
    given.
    """
    sets = np.full((len(links.group), links.settings.groups), -1, dtype=np.int32)
    for switch, group in np.ndindex(*sets.shape):
        if links.group[switch] == group:
            continue
        ways = links.toward(switch, group)
        share = links.lanes[ways] / links.lanes[ways].sum()
        if links.near[ways[0]] == switch:
            channels = global_vcs or (vc,)
            choices = [
                (int(links.over[channel][way]), after) for way in ways for channel in channels
            ]
            share = np.repeat(share, len(channels)) / len(channels)
        else:
            choices = [(links.local_pool(switch, int(links.near[way]), vc), stay) for way in ways]
        sets[switch, group] = builder.choice_set(choices, share.tolist())
    return sets


def _fill(
    builder: TableBuilder, links: _PlaneLinks, target: IntArray, state: int, sets: Int32Array
) -> None:
    """Write sets by switch and group where the destination is in another group."""
    to_group = target // links.settings.a
    outside = links.group[:, None] != to_group
    builder.entry[state][links.vertices][outside] = sets[:, to_group][outside]


def _fill_second(builder: TableBuilder, links: _PlaneLinks, target: IntArray) -> None:
    """After a first global link: the second one, and the hops inside groups."""
    sets = _minimal_sets(builder, links, vc=1, stay=_SECOND, after=_LAST)
    _fill(builder, links, target, _SECOND, sets)
    _fill_local(builder, links, target, {0: 0, _SECOND: 1, _LAST: 2})


def _fill_local(
    builder: TableBuilder, links: _PlaneLinks, target: IntArray, channels: dict[int, int]
) -> None:
    """Write the hop inside the destination's group; ``channels``: by state."""
    inside = links.group[:, None] == target // links.settings.a
    for state, vc in channels.items():
        sets = builder.single(links.local[vc], state)
        builder.entry[state][links.vertices][inside] = sets[:, target % links.settings.a][inside]


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
