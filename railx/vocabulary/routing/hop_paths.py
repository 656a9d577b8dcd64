"""Minimal, Valiant and UGAL routing on any connected graph.

A virtual channel is used by one hop of a path, and later hops use higher ones. So no
cycle of waiting packets can form in any graph, at the price of as many channels as the
longest path has hops (Günther 1981; Slim Fly and PolarFly: 2 for minimal paths, 4 for
Valiant's).

Chips only send and receive where switches alone join every two of them. Then links
between a chip and its switch are no hops: nothing waits in a chip. A packet enters by
any of the chip's links on a channel drawn evenly and leaves on channel 0. Elsewhere
chips forward, and every link is a hop.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from railx.settings import SettingsError
from railx.vocabulary.arrays import BoolArray, FloatArray, Int32Array, IntArray, index_in_group
from railx.vocabulary.routing.groups import DestinationGroups, groups_by_coordinates
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

#: The routings of :func:`route_hops`.
HOP_ROUTINGS = ("min", "adaptive", "adaptive_ugal", "valiant")

#: Distance of what no path leads to.
_FAR = 1 << 20
#: Most entries of a table of Valiant's paths, 4 bytes each.
_MOST_ENTRIES = 500_000_000


def route_hops(topology: Topology, routing: str, destinations: Destinations = None) -> RoutingTable:
    """The table of a routing of :data:`HOP_ROUTINGS`.

    * ``min``: all paths with the fewest links, hop k on channel k. Paths are equally
      likely, by bandwidth where links differ: a router draws the next one by the
      bandwidth to it times the paths from there. States: hops taken.
    * ``adaptive``: the same paths; a router takes the shortest queue.
    * ``adaptive_ugal``: the first router takes a minimal path, or a neighbour that is
      no further from the destination and minimal paths from there, by queue and time of
      flight (UGAL, Kim 2008; the neighbours are all candidates, as in UGAL_PF of
      PolarFly). Exact loads are those of ``min``.
    * ``valiant``: minimal paths to a router drawn evenly among the others with chips,
      then to the destination (Valiant 1982). A packet that meets the destination's
      router leaves there. Channels count the hops that are left: D - d in the first
      part, 2 D - d in the second.

    The table has a column per group of destinations where each switch has chips of one
    group. SettingsError("routing") where ``valiant`` would need too much memory.
    """
    return Hops(topology, routing, destinations).table()


class Hops:
    """A graph as packets see it.

    Chips with the same neighbours are one class; ``left`` (int[vertices, classes]) are
    the hops from a vertex to the class, 0 at its routers.
    """

    def __init__(self, topology: Topology, routing: str, destinations: Destinations) -> None:
        self.topology, self.routing = topology, routing
        chips = topology.chips
        self.to = np.arange(chips) if destinations is None else destinations.astype(np.int64)
        self.near, self.gbps, self._latency_ns = _neighbours(topology)
        signature = [near.tobytes() for near in self.near[:chips]]
        self.ends = _switches_join_all(topology, signature)
        self.below = [near[near < chips] for near in self.near]
        if self.ends:
            for switch in range(chips, topology.vertices):
                inside = self.near[switch] >= chips
                self.near[switch] = self.near[switch][inside]
                self.gbps[switch] = self.gbps[switch][inside]
                self._latency_ns[switch] = self._latency_ns[switch][inside]
        else:
            signature = [str(chip).encode() for chip in range(chips)]
        first: dict[bytes, int] = {}
        self.class_of = np.array([first.setdefault(key, len(first)) for key in signature])
        self.classes = len(first)
        self.representative = np.unique(self.class_of, return_index=True)[1]
        #: Classes of the destinations.
        self.asked = np.isin(np.arange(self.classes), self.class_of[self.to])
        self.left = self._hops_left()
        #: Hops of the longest minimal path, for ``valiant`` also from drawn routers.
        begins = (self.left == 0).any(axis=1) if routing == "valiant" else slice(chips)
        self.longest = int(self.left[begins].max(initial=0, where=self.left[begins] < _FAR))

    def _hops_left(self) -> IntArray:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        links, size = self.topology.links, self.topology.vertices
        src, dst, sinks = links.src.astype(np.int64), links.dst.astype(np.int64), size
        if self.ends:
            # No path leads through a chip: each class has a sink that its routers join.
            sinks, into = size + self.classes, dst >= self.topology.chips
            routers = [self.near[chip] for chip in self.representative]
            sink = np.repeat(size + np.arange(self.classes), [len(near) for near in routers])
            src = np.concatenate([src[into], *routers])
            dst = np.concatenate([dst[into], sink])
        back = csr_array((np.ones(len(src)), (dst, src)), shape=(sinks, sinks))
        start = size + np.arange(self.classes) if self.ends else self.representative
        distance = np.atleast_2d(dijkstra(back, unweighted=True, indices=start)).T[:size]
        if self.ends:
            distance[: self.topology.chips] -= 2
            distance[self.topology.chips :] -= 1
        left: IntArray = np.where(np.isfinite(distance), distance, _FAR).astype(np.int64)
        return left

    @cached_property
    def groups(self) -> DestinationGroups | None:
        """Columns of classes and chips in them; None where switches serve several."""
        if not self.ends:
            return None
        serves = self.left[self.topology.chips :] == 0
        if serves.sum(axis=1).max() > 1:
            return None
        at = np.where(serves.any(axis=1), serves.argmax(axis=1), -1)
        goal = self.class_of[self.to]
        return groups_by_coordinates(
            self.topology.vertices,
            [np.concatenate([self.class_of, at])],
            [goal],
            [goal, self.index_in_class[self.to]],
            [self.classes, int(self.index_in_class.max()) + 1],
        )

    @cached_property
    def index_in_class(self) -> IntArray:
        return index_in_group(self.class_of)

    @cached_property
    def routers(self) -> range:
        """The vertices that forward."""
        return range(self.topology.chips if self.ends else 0, self.topology.vertices)

    @cached_property
    def paths(self) -> FloatArray:
        """Minimal paths to each class, by bandwidth: float[vertices, classes]."""
        from scipy.sparse import csr_array

        ends = np.concatenate(self.near)
        start = np.concatenate([[0], np.cumsum([len(near) for near in self.near])])
        rate = np.concatenate(self.gbps) / max(gbps.max(initial=1.0) for gbps in self.gbps)
        joined = csr_array((rate, ends, start), shape=(len(self.near),) * 2)
        paths: FloatArray = (self.left == 0).astype(np.float64)
        for hops in range(1, self.longest + 1):
            onward = joined @ np.where(self.left == hops - 1, paths, 0.0)
            paths = np.where(self.left == hops, onward, paths)
        return paths

    def shares(self, vertex: int) -> FloatArray:
        """Shares of minimal paths over the neighbours: float[neighbours, classes]."""
        paths = np.where(self.closer(vertex), self.paths[self.near[vertex]], 0.0)
        weights: FloatArray = self.gbps[vertex][:, None] * paths
        total = weights.sum(axis=0)
        return weights / np.where(total > 0, total, 1.0)

    def starts(self, vertex: int) -> bool:
        """Whether packets stand here before their first hop."""
        return bool((self.left[vertex] == 0).any()) if self.ends else vertex < self.topology.chips

    def table(self) -> RoutingTable:
        hops = self.longest + (self.routing == "adaptive_ugal")
        states, channels = hops + 1, max(1, hops)
        if self.routing == "valiant":
            # The source; one hop from the drawn class, by the neighbour; after it;
            # further from it, by class.
            states = 2 + self._degree + (self.classes if self.longest > 2 else 0)
            channels = max(1, 2 * self.longest)
        columns = len(self.to) if self.groups is None else self.groups.columns
        if states * self.topology.vertices * columns > _MOST_ENTRIES:
            raise SettingsError(
                "routing",
                f"got {self.routing!r} on {self.topology.vertices:,} vertices, whose table needs"
                f" {states * self.topology.vertices * columns * 4 / 2**30:.1f} GiB; allowed:"
                f" {', '.join(name for name in HOP_ROUTINGS if name != self.routing)}",
            )
        to = self.to.astype(np.int32)
        builder = TableBuilder(
            self.topology, self.routing, to, self.groups, states=states, virtual_channels=channels
        )
        if self.routing == "valiant":
            self._fill_valiant(builder)
        else:
            self._fill_minimal(builder, hops)
        if self.ends:
            self._fill_leaves(builder)
        else:
            builder.entry[:, self.to, np.arange(len(self.to))] = -1
        return builder.build()

    def _write(self, builder: TableBuilder, state: int, vertex: int, sets: Int32Array) -> None:
        """Write the sets of a vertex by class."""
        if self.groups is None:
            builder.entry[state][vertex] = sets[self.class_of[self.to]]
        else:
            builder.entry[state][vertex, : self.classes] = sets

    def closer(self, vertex: int) -> BoolArray:
        """The neighbours that are a hop closer: bool[neighbours, classes]."""
        closer: BoolArray = self.left[self.near[vertex]] == self.left[vertex] - 1
        return closer

    # Minimal paths and UGAL

    def _fill_minimal(self, builder: TableBuilder, hops: int) -> None:
        flight = self._flight_ns() if self.routing == "adaptive_ugal" else None
        for vertex in self.routers:
            near, left = self.near[vertex], self.left[vertex]
            splits = _Splits.of(self.shares(vertex))
            for hop in range(0 if self.starts(vertex) else 1, hops):
                pools = builder.pools_between(np.full(len(near), vertex), near, hop)
                going = self.asked & (left > 0) & (left + hop <= hops)
                if flight is not None and hop == 0:
                    sets = self._ugal_sets(builder, vertex, pools, flight)
                else:
                    sets = splits.sets(builder, pools, hop + 1, going)
                self._write(builder, hop, vertex, np.where(going, sets, -1))

    def _flight_ns(self) -> FloatArray:
        """The shortest flight of a minimal path: float[vertices, classes]."""
        flight = np.where(self.left == 0, 0.0, np.inf)
        for hops in range(1, self.longest + 1):
            for vertex in self.routers:
                ahead = self.left[vertex] == hops
                over = self._latency_ns[vertex][:, None] + flight[self.near[vertex]]
                over = np.where(self.closer(vertex), over, np.inf)
                flight[vertex, ahead] = over.min(axis=0)[ahead]
        return flight

    def _ugal_sets(
        self, builder: TableBuilder, vertex: int, pools: IntArray, flight: FloatArray
    ) -> Int32Array:
        """Minimal paths, which have the weight in exact loads, then the neighbours that
        are no further from the class.
        """
        near, shares = self.near[vertex], self.shares(vertex)
        beside = self.left[near] == self.left[vertex]
        delay = self._latency_ns[vertex][:, None] + flight[near]
        sets = np.full(self.classes, -1, dtype=np.int32)
        going = self.asked & (self.left[vertex] > 0) & (self.left[vertex] <= self.longest)
        for number in np.flatnonzero(going):
            ways = np.concatenate([np.flatnonzero(of[:, number]) for of in (shares, beside)])
            sets[number] = builder.choice_set(
                [(int(pools[way]), 1) for way in ways],
                shares[ways, number].tolist(),
                delays_ns=delay[ways, number],
            )
        return sets

    # Valiant's paths

    @cached_property
    def _degree(self) -> int:
        return max(len(self.near[vertex]) for vertex in self.routers)

    def _fill_valiant(self, builder: TableBuilder) -> None:
        after, further = 1 + self._degree, 2 + self._degree
        for vertex in self.routers if self.longest else ():
            near, left, shares = self.near[vertex], self.left[vertex], self.shares(vertex)
            splits = _Splits.of(shares)
            start = np.full(len(near), vertex)
            onward = np.full(self.classes, -1, dtype=np.int32)
            for hops in range(1, self.longest + 1):
                pools = builder.pools_between(start, near, 2 * self.longest - hops)
                ahead = self.asked & (left == hops)
                np.copyto(onward, splits.sets(builder, pools, after, ahead), where=ahead)
            self._write(builder, after, vertex, onward)
            last = builder.pools_between(start, near, self.longest - 1)
            for index, pool in enumerate(last.tolist()):
                builder.entry[1 + index][vertex] = builder.choice_set([(pool, after)])
            drawn = np.flatnonzero((left > 0) & (left <= self.longest)).tolist()
            share: defaultdict[tuple[int, int], float] = defaultdict(float)
            for number in drawn:
                ways = self._ways(builder, vertex, number, shares[:, number])
                for choice, part in ways:
                    share[choice] += part / len(drawn)
                if self.longest > 2 and 1 < left[number] < self.longest:
                    chosen = builder.choice_set(*zip(*ways, strict=True))
                    builder.entry[further + number][vertex] = chosen
            if drawn and self.starts(vertex):
                builder.entry[0][vertex] = builder.choice_set(list(share), list(share.values()))

    def _ways(
        self, builder: TableBuilder, vertex: int, number: int, shares: FloatArray
    ) -> list[tuple[tuple[int, int], float]]:
        """The choices (pool, state) of the first part of a path, with their shares."""
        left = int(self.left[vertex, number])
        after = 1 + self._degree
        ways = np.flatnonzero(shares)
        ends = self.near[vertex][ways]
        pools = builder.pools_between(np.full(len(ends), vertex), ends, self.longest - left)
        choices: list[tuple[tuple[int, int], float]] = []
        for end, pool, share in zip(ends, pools.tolist(), shares[ways].tolist(), strict=True):
            states = [after if left == 1 else after + 1 + number]
            parts = np.ones(1)
            if left == 2:  # the class may have several routers
                last = np.flatnonzero(self.left[self.near[end], number] == 0)
                states, parts = (1 + last).tolist(), self.gbps[end][last]
            choices += [
                ((pool, state), share * part)
                for state, part in zip(states, (parts / parts.sum()).tolist(), strict=True)
            ]
        return choices

    # First and last links

    def _fill_leaves(self, builder: TableBuilder) -> None:
        """Chips send over any of their links on any channel; routers deliver."""
        chips, columns = self.topology.chips, np.arange(len(self.to))
        for chip in range(chips):
            self._fill_entrance(builder, chip)
        at = np.full(chips, -1, dtype=np.int32)
        for vertex in self.routers:
            below = self.below[vertex]
            if not len(below):
                continue
            pools = builder.pools_between(np.full(len(below), vertex), below, 0)
            at[below] = builder.single(pools, 0)
            if self.groups is None:
                reached = at[self.to] >= 0
                builder.entry[:, vertex, columns[reached]] = at[self.to[reached]]
            else:
                inside = builder.entry[:, vertex, self.groups.on_level(1)]
                inside[:] = -1
                inside[:, self.index_in_class[below]] = at[below]
            at[below] = -1
        if self.groups is None:
            builder.entry[0][self.to, columns] = -1
        else:
            itself = self.groups.first[1] + self.index_in_class
            builder.entry[0][np.arange(chips), itself] = -1

    def _fill_entrance(self, builder: TableBuilder, chip: int) -> None:
        """The first link of a chip: to a switch that a minimal path begins with."""
        links, channels = self.topology.links, range(builder.virtual_channels)
        near = self.near[chip]
        rows = self._rows_from[chip]
        best = self.left[near] == self.left[near].min(axis=0)
        patterns, pattern_of = np.unique(best, axis=1, return_inverse=True)
        sets = np.empty(patterns.shape[1], dtype=np.int32)
        for number, leads in enumerate(patterns.T):
            used = rows[np.isin(links.dst[rows], near[leads])]
            # Links of unequal rates are drawn by rate, equal ones are one pool.
            pools = [used] if np.ptp(links.gbps[used]) == 0 else np.split(used, len(used))
            rate = np.array([links.capacity_gbps[pool].sum() for pool in pools])
            sets[number] = builder.choice_set(
                [(builder.pool(pool.tolist(), vc), 0) for pool in pools for vc in channels],
                np.repeat(rate / rate.sum() / len(channels), len(channels)).tolist(),
            )
        by_class = sets[pattern_of.ravel()]
        self._write(builder, 0, chip, by_class)
        if self.groups is not None:
            inside = by_class[self.class_of[chip]]
            builder.entry[0][chip, self.groups.on_level(1)] = inside

    @cached_property
    def _rows_from(self) -> list[IntArray]:
        """The link rows that leave each vertex."""
        src = self.topology.links.src
        order = np.argsort(src, kind="stable")
        return np.split(order, np.searchsorted(src[order], np.arange(1, self.topology.vertices)))


@dataclass(frozen=True, eq=False)
class _Splits:
    """The distinct splits over the neighbours of a vertex, and that of each class."""

    distinct: FloatArray
    of_class: IntArray

    @classmethod
    def of(cls, shares: FloatArray) -> _Splits:
        rows, first = np.ascontiguousarray(shares.T), dict[bytes, int]()
        of_class = np.array([first.setdefault(row.tobytes(), len(first)) for row in rows])
        return cls(rows[np.unique(of_class, return_index=True)[1]], of_class)

    def sets(
        self, builder: TableBuilder, pools: IntArray, state: int, classes: BoolArray
    ) -> Int32Array:
        """The sets of ``classes`` over the pools of the neighbours, -1 of the others.

        ``state``: after the hop.
        """
        ids = np.full(len(self.distinct), -1, dtype=np.int32)
        for number in np.unique(self.of_class[classes]).tolist():
            ways = np.flatnonzero(self.distinct[number])
            if len(ways):
                choices = [(int(pool), state) for pool in pools[ways]]
                ids[number] = builder.choice_set(choices, self.distinct[number, ways].tolist())
        return np.where(classes, ids[self.of_class], -1).astype(np.int32)


def _switches_join_all(topology: Topology, signature: list[bytes]) -> bool:
    """Whether switches alone join every two chips."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    links, chips = topology.links, topology.chips
    if not topology.switches or ((links.src < chips) & (links.dst < chips)).any():
        return False
    inside = (links.src >= chips) & (links.dst >= chips)
    ends = links.src[inside] - chips, links.dst[inside] - chips
    joined = csr_array((np.ones(len(ends[0])), ends), shape=(topology.switches,) * 2)
    number, part = connected_components(joined, directed=False)
    alike = np.unique(np.array(signature, dtype=object), return_index=True)[1]
    up = (links.src < chips) & np.isin(links.src, alike)
    reaches = np.zeros((chips, number))
    reaches[links.src[up], part[links.dst[up] - chips]] = 1
    return bool((reaches[alike] @ reaches[alike].T > 0).all())


def _neighbours(topology: Topology) -> tuple[list[IntArray], list[FloatArray], list[FloatArray]]:
    """Neighbours of each vertex, bandwidth of parallel links and shortest flight."""
    links = topology.links
    key = links.src.astype(np.int64) * topology.vertices + links.dst
    pairs, where = np.unique(key, return_inverse=True)
    gbps = np.bincount(where, links.capacity_gbps)
    latency_ns = np.full(len(pairs), np.inf)
    np.minimum.at(latency_ns, where, links.latency_ns)
    start = np.searchsorted(pairs // topology.vertices, np.arange(1, topology.vertices))
    near = np.split(pairs % topology.vertices, start)
    return near, np.split(gbps, start), np.split(latency_ns, start)
