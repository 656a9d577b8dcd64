"""Routing on a Dragonfly: a local, a global and a local hop, or two such journeys.

Either local hop may be missing. The two journeys go by way of another group. Each hop
that may follow another of its kind is one virtual channel up (Kim 2008), so no cycle of
waiting packets can close: local 0, global 0, local 1, global 1, local 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from railx.families.dragonfly.graph import DragonflySettings, global_pairs
from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.routing.spread import fill_leaves, first_links
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

#: States of ``adaptive`` and ``valiant``: in or towards the destination's group after
#: the first global link, and after the second. State 0 is the source; the others lead
#: to a global link of the first group.
_SECOND, _LAST, _COMMITTED = 1, 2, 3


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
        """The global links to another group: those of the switch, else those of its
        group.
        """
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
