"""Exact loads without a table, of routings that correct coordinate after coordinate and
of those that count hops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.routing.analysis import kernels
from railx.vocabulary.routing.hop_paths import Hops
from railx.vocabulary.topology import Topology

#: ``ordered``: along the dimensions in order; ``any_order``: in random order;
#: ``valiant``: in order, along each by way of a router of the line drawn evenly.
LineOrder: TypeAlias = Literal["ordered", "any_order", "valiant"]


class _Dimension(NamedTuple):
    """A dimension of the grid of routers.

    ``row`` (int[routers, length]): the link row from each router to each position of
    its line; that to itself is unused.
    """

    stride: int
    length: int
    row: IntArray

    def position(self, router: IntArray) -> IntArray:
        return router // self.stride % self.length


class LineLoads:
    """Exact loads on chips on a grid whose lines are all-to-alls.

    ``shape``: chips along each dimension, the first running fastest. All links have one
    time of flight.
    """

    def __init__(self, topology: Topology, shape: tuple[int, ...], order: LineOrder) -> None:
        self._topology, self._order = topology, order
        self._dimensions: list[_Dimension] = []
        src, dst, stride = topology.links.src, topology.links.dst, 1
        for length in shape:
            row = np.full((math.prod(shape), length), -1, dtype=np.int64)
            position = dst // stride % length
            along = np.flatnonzero(position != src // stride % length)
            row[src[along], position[along]] = along
            self._dimensions.append(_Dimension(stride, length, row))
            stride *= length

    def __call__(
        self, src: IntArray, dst: IntArray, amount: FloatArray
    ) -> tuple[FloatArray, float]:
        """As :func:`railx.vocabulary.routing.analysis.pair_loads`."""
        links = self._topology.links
        load = np.zeros(len(links))
        for row, part in self._parts(src, dst, amount):
            load += np.bincount(row, part, len(load))
        hops = sum(
            (dimension.position(src) != dimension.position(dst))
            * (2 if self._order == "valiant" and dimension.length > 2 else 1)
            for dimension in self._dimensions
        )
        flight_ns = float(np.max(hops, initial=0)) * float(links.latency_ns.max())
        return np.repeat(load / links.lanes, links.lanes), flight_ns

    def _parts(
        self, at: IntArray, to: IntArray, amount: FloatArray
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Links and the traffic on them, part by part."""
        if self._order == "any_order":
            yield from self._any_order(at, to, amount)
            return
        for dimension in self._dimensions:
            here, goal = dimension.position(at), dimension.position(to)
            if self._order == "valiant":
                yield self._by_way_of_all(dimension, at, goal, amount)
            else:
                moves = here != goal
                yield dimension.row[at[moves], goal[moves]], amount[moves]
            at = at + (goal - here) * dimension.stride

    def _any_order(
        self, at: IntArray, to: IntArray, amount: FloatArray
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """All orders of the dimensions are equally likely.

        A packet comes by the router that has the destination's coordinates in some
        dimensions with the share of the orders that begin with these.
        """
        count = len(self._dimensions)
        steps = [
            (dimension.position(to) - dimension.position(at)) * dimension.stride
            for dimension in self._dimensions
        ]
        for done in range(2**count - 1):
            inside = [number for number in range(count) if done >> number & 1]
            router = sum((steps[number] for number in inside), at)
            size = len(inside)
            share = math.factorial(size) * math.factorial(count - 1 - size) / math.factorial(count)
            for number, dimension in enumerate(self._dimensions):
                if number not in inside:
                    moves = steps[number] != 0
                    goal = dimension.position(to)[moves]
                    yield dimension.row[router[moves], goal], share * amount[moves]

    @staticmethod
    def _by_way_of_all(
        dimension: _Dimension, at: IntArray, goal: IntArray, amount: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """From a to c of a line of n goes 1/n of what a sends to the line (c is drawn,
        or a is drawn and c the goal), and of what others send to c (a is drawn).
        """
        length, routers = dimension.length, np.arange(len(dimension.row))
        sent = np.bincount(at * length + goal, amount, dimension.row.size)
        sent = sent.reshape(-1, length).astype(np.float64)
        here = dimension.position(routers)
        sent[routers, here] = 0.0
        line = routers - here * dimension.stride
        to_line = np.zeros(sent.shape)
        np.add.at(to_line, line, sent)
        part = (sent.sum(axis=1)[:, None] + to_line[line]) / length
        other = here[:, None] != np.arange(length)
        return dimension.row[other], part[other]


class HopLoads:
    """Exact loads of the routings ``min`` and ``valiant`` of hops, without a table.

    Where chips only send and receive, each has one link to one switch. Then a path of
    Valiant's has legs that are minimal. Most traffic has two: all that a source sends
    goes to each class alike, and from there on. A packet that meets the destination's
    router on the way leaves: what would have gone on is taken off. Links between
    routers have equal times of flight.
    """

    def __init__(self, topology: Topology, routing: str) -> None:
        self._topology, self._valiant = topology, routing == "valiant"
        self._hops = hops = Hops(topology, routing, None)
        links, size = topology.links, topology.vertices
        pairs, self._pair = np.unique(
            links.src.astype(np.int64) * size + links.dst, return_inverse=True
        )
        self._src, self._dst = np.divmod(pairs, size)
        self._start = np.searchsorted(self._src, np.arange(size + 1))
        self._latency_ns = np.zeros(len(pairs))
        np.maximum.at(self._latency_ns, self._pair, links.latency_ns)
        first = hops.representative
        self._lanes = np.bincount(self._pair, links.lanes)
        self._gbps = np.bincount(self._pair, links.capacity_gbps)
        self._at = np.array([hops.near[chip][0] for chip in first]) if hops.ends else first

    def __call__(
        self, src: IntArray, dst: IntArray, amount: FloatArray
    ) -> tuple[FloatArray, float]:
        """As :func:`railx.vocabulary.routing.analysis.pair_loads`."""
        pairs = self._hops.class_of[src] * self._hops.classes + self._hops.class_of[dst]
        demand, sent, received = (
            np.bincount(keys, amount, size).astype(np.float64)
            for keys, size in (
                (pairs, self._hops.classes**2),
                (src, self._topology.chips),
                (dst, self._topology.chips),
            )
        )
        return self._loads(demand.reshape(self._hops.classes, -1), sent, received)

    def of_gathers(self, members: IntArray) -> tuple[FloatArray, float]:
        """As :func:`railx.vocabulary.routing.analysis.gather_loads`."""
        demand = np.zeros((self._hops.classes, self._hops.classes))
        for group in self._hops.class_of[members]:
            at, count = np.unique(group, return_counts=True)
            demand[np.ix_(at, at)] += np.outer(count, count) / (len(group) - 1)
        sent = np.bincount(members.ravel(), minlength=self._topology.chips).astype(np.float64)
        return self._loads(demand, sent, sent)

    def _loads(
        self, demand: FloatArray, sent: FloatArray, received: FloatArray
    ) -> tuple[FloatArray, float]:
        """Loads of a demand between classes, and of the chips' own links."""
        hops, links, chips = self._hops, self._topology.links, self._topology.chips
        np.fill_diagonal(demand, 0.0)
        legs, longest = self._legs(demand) if self._valiant else (demand, 0)
        load = np.zeros(len(self._src))
        network = self._start, self._dst, self._gbps, self._latency_ns
        flight_ns = kernels().minimal_loads(hops.left, hops.paths, *network, self._at, legs, load)
        if self._valiant:
            router = (self._src >= chips) & (self._dst >= chips)
            flight_ns = longest * self._latency_ns[router].max(initial=0.0)
        if hops.ends:
            for end, amount in ((self._src, sent), (self._dst, received)):
                leaf = end < chips
                load[leaf] = amount[end[leaf]]
                flight_ns += self._latency_ns[leaf].max()
        return np.repeat((load / self._lanes)[self._pair], links.lanes), float(flight_ns)

    def _legs(self, demand: FloatArray) -> tuple[FloatArray, int]:
        """The minimal legs of Valiant's paths (float[classes, classes]), and the most
        hops of a path.
        """
        left, paths = self._hops.left[self._at], self._hops.paths[self._at]
        drawn = demand / max(1, len(demand) - 1)
        legs = drawn.sum(axis=1)[:, None] + drawn.sum(axis=0) - drawn
        longest = 0
        for source in range(len(demand)):
            to = np.flatnonzero(demand[source])
            if not len(to):
                continue
            # The share of the paths to each class that meets the router of each other.
            on_way = left[source, to, None] + left[to] == left[source]
            met = np.where(on_way, paths[source, to, None] * paths[to] / paths[source], 0.0)
            most = np.where(met < 1, left[source] + left[:, to].T, left[source, to, None])
            longest = max(longest, int(most.max()))
            met[np.arange(len(to)), to] = 0.0
            met *= drawn[source, to, None]
            legs[to] -= met
            legs[:, to] -= met.T
        np.fill_diagonal(legs, 0.0)
        return legs, longest
