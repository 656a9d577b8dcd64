"""Networks of any topology: collectives by the exact loads of its channels.

Every transfer has one bottleneck. All groups of a kind communicate at once, as in a
training step. Their traffic is routed over the topology as any other, so that
contention between groups and the walk inside the nodes count; the busiest channel sets
the rate. A gather is direct (every member sends its part to every other) or a ring in
both directions. Where several routings are offered, each transfer takes the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from railx.families import build_routing
from railx.network.group_bandwidth import (
    MemberRates,
    member_rates,
    pattern_of,
    ranks_in_order,
    strided_groups,
)
from railx.performance.networks import Kind
from railx.performance.plans import Array
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

__all__ = ["ExactLoads", "Way"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Way:
    """One way to move data within groups.

    ``sent``: bytes that a member sends over the bytes of the transfer.
    """

    algorithm: str
    routing: str
    sent: float
    rates: MemberRates
    latency_ns: float

    @property
    def gb_s(self) -> float:
        """Bytes of the transfer over its time without latency."""
        return self.rates.gb_s / self.sent

    def time_ns(self, size_bytes: float, ports: float = 1.0, inside: float = 1.0) -> float:
        """Bytes over GB/s are nanoseconds.

        ``ports`` and ``inside`` scale the links between and inside nodes. A faster port
        shortens the transmission, not the flight.
        """
        gb_s = min(self.rates.between_gb_s * ports, self.rates.inside_gb_s * inside)
        return self.latency_ns + size_bytes * self.sent / gb_s


class ExactLoads:
    """A topology and the routings on offer; it caches its answers.

    ``ranks``: those of the job, whose chips groups are of; None: all chips.
    """

    def __init__(
        self, topology: Topology, routings: Sequence[str], ranks: int | None = None
    ) -> None:
        self.topology = topology
        self.routings = tuple(routings)
        self._ranks = ranks or topology.chips
        self._rates: dict[tuple[str, str, int, bytes], MemberRates] = {}

    @property
    def node_devices(self) -> int:
        """Chips of a node."""
        return self.topology.chips // self.topology.nodes

    @cached_property
    def _tables(self) -> Mapping[str, RoutingTable]:
        subset = self._ranks < self.topology.chips
        destinations = np.sort(self.chips).astype(np.int32) if subset else None
        return {name: build_routing(self.topology, name, destinations) for name in self.routings}

    @cached_property
    def chips(self) -> IntArray:
        """The chip of each rank."""
        return ranks_in_order(self.topology, self._ranks)

    def ways(self, groups: IntArray, kind: Kind) -> list[Way]:
        """The ways of a transfer within every group at once: int[groups, members].

        A ``send`` goes from each member to the next, from the last one to none.
        """
        members = groups.shape[1]
        algorithms = ["next" if kind == "send" else "direct"]
        if kind not in ("send", "all_to_all") and members > 2:
            algorithms.append("ring")
        halves = 2 if kind == "all_reduce" else 1
        sent = 1.0 if kind == "send" else halves * ((members - 1) / members)
        return [
            self._way(algorithm, routing, groups, sent, halves)
            for routing in self.routings
            for algorithm in algorithms
        ]

    def _way(self, algorithm: str, routing: str, groups: IntArray, sent: float, halves: int) -> Way:
        pattern = pattern_of(algorithm, groups.shape[1])
        key = algorithm, routing, groups.shape[1], groups.tobytes()
        if key not in self._rates:
            self._rates[key] = member_rates(self.topology, self._tables[routing], groups, pattern)
        rates = self._rates[key]
        return Way(algorithm, routing, sent, rates, rates.flight_ns * pattern.rounds * halves)

    def fastest(
        self,
        groups: IntArray,
        kind: Kind,
        size_bytes: float,
        ports: float = 1.0,
        inside: float = 1.0,
    ) -> tuple[float, Way]:
        """Nanoseconds of a transfer within every group at once, and the way taken."""
        ways = self.ways(groups, kind)
        times = [way.time_ns(size_bytes, ports, inside) for way in ways]
        best = int(np.argmin(times))
        return times[best], ways[best]

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        """Seconds of one transfer in all groups of a size that fill the job, float[n].

        Groups have consecutive ranks, or where a node holds ``inside`` of the members
        every n-th one. A send goes from each member to the next.
        """
        sizes, members, inside = np.broadcast_arrays(size_bytes, members, inside)
        result = np.zeros(sizes.shape)
        for count, in_node in np.unique(np.stack([members, inside]), axis=-1).T.astype(int):
            if count > 1:
                rows = (members == count) & (inside == in_node)
                ways = self.job_ways(kind, count, in_node)
                times = [way.latency_ns + sizes[rows] / way.gb_s for way in ways]
                result[rows] = np.min(times, axis=0) * 1e-9
        return result

    def job_ways(self, kind: Kind, members: int, inside: int) -> list[Way]:
        """The ways of a transfer in all groups of a size that fill the job, of whose
        members a node holds so many.
        """
        stride = max(1, self.node_devices // inside) if inside < members else 1
        return self.ways(strided_groups(self.chips, members, stride), kind)
