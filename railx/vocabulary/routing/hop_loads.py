"""Exact loads of the routings that count hops, without a table."""

from __future__ import annotations

import numpy as np

from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.routing.analysis import kernels
from railx.vocabulary.routing.hop_paths import Hops
from railx.vocabulary.topology import Topology


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
        """The minimal legs (float[classes, classes]) and most hops of paths."""
        left, paths = self._hops.left[self._at], self._hops.paths[self._at]
        drawn = demand / max(1, len(demand) - 1)
        legs = drawn.sum(axis=1)[:, None] + drawn.sum(axis=0) - drawn
        taken_off = np.zeros_like(legs)
        longest = kernels().valiant_legs(left, paths, drawn, taken_off)
        legs -= taken_off + taken_off.T
        np.fill_diagonal(legs, 0.0)
        return legs, longest
