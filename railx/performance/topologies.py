"""Networks of any topology: collectives by the exact loads of its channels.

Every transfer has one bottleneck. All groups of a kind communicate at once, as in a
training step. Their traffic is routed over the topology as any other, so that
contention between groups and the walk inside the nodes count; the busiest channel sets
the rate. A gather is direct (every member sends its part to every other) or a ring in
both directions. Where several routings are offered, each transfer takes the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TypeAlias

import numpy as np

from railx.errors import UserError
from railx.families import (
    build_topology,
    check_topology,
    family_of,
    static_routing_names,
)
from railx.network.group_bandwidth import (
    MemberRates,
    RoutedLoads,
    member_rates,
    ranks_in_order,
    rounds_of,
    routed_loads,
    strided_groups,
)
from railx.performance.devices import Device
from railx.performance.networks import Kind, Network, TwoLevelRing
from railx.performance.plans import Array
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import INTERNAL, FamilySettings, Topology

KnownRates: TypeAlias = dict[str, Sequence[float]]
#: Chips of a network whose loads are computed in seconds to a minute.
_MOST_CHIPS = 4096
#: Nodes and switches of a network among which all distances are found at once.
_MOST_NODES = 512
#: Transfers that send the same messages.
_GATHERS = ("all_reduce", "all_gather", "reduce_scatter")
#: The routing over random vertices: tables of many states, paths twice as long.
_DETOURS = "valiant"


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
    ``node_devices``: how many ranks in a row plans take for a node; None: its chips.
    ``known``: the fields of rates by the text of what they are asked with, from an
    earlier run on the same network; new ones are added to it. ``selective``: whether
    ranks fill whole nodes whatever their number, a routing whose table is too large is
    left out, unless it is the first, and :meth:`job_ways` asks Valiant's only where it
    may help: its detours double the traffic, so not where the shortest paths reach half
    of what a chip's ports send.
    """

    def __init__(
        self,
        topology: Topology,
        routings: Sequence[str],
        ranks: int | None = None,
        node_devices: int | None = None,
        known: KnownRates | None = None,
        *,
        selective: bool = False,
    ) -> None:
        self.topology = topology
        self.routings = tuple(routings)
        self.node_devices = node_devices or topology.chips // topology.nodes
        self._ranks = ranks or topology.chips
        self._selective = selective
        self._rates = {} if known is None else known
        self._loads: dict[str, RoutedLoads | None] = {}
        self._job_ways: dict[tuple[Kind, int, int], list[Way]] = {}
        self._job_bounds: dict[tuple[Kind, int, int], list[Way]] = {}

    @property
    def words(self) -> str:
        """What it is, in some words."""
        topology = self.topology
        outside, inside = self._node_rates
        chips = topology.chips // topology.nodes
        rates = f"{inside:.4g} GB/s in nodes of {chips}, {outside:.4g} between"
        return (
            f"exact loads of {topology.family} with {topology.chips} chips,"
            f" {rates if chips > 1 else f'{outside:.4g} GB/s a chip'}"
        )

    @cached_property
    def _node_rates(self) -> tuple[float, float]:
        return node_rates_gb_s(self.topology)

    def _loads_of(self, routing: str) -> RoutedLoads | None:
        """The loads of a routing; None: left out."""
        if routing not in self._loads:
            subset = self._ranks < self.topology.chips
            destinations = np.sort(self.chips).astype(np.int32) if subset else None
            try:
                self._loads[routing] = routed_loads(self.topology, routing, destinations)
            except SettingsError as error:
                if error.key != "routing" or not self._selective or routing == self.routings[0]:
                    raise
                self._loads[routing] = None
        return self._loads[routing]

    @cached_property
    def chips(self) -> IntArray:
        """The chip of each rank."""
        if self._selective:
            return ranks_in_order(self.topology, self.topology.chips)[: self._ranks]
        return ranks_in_order(self.topology, self._ranks)

    def ways(self, groups: IntArray, kind: Kind) -> list[Way]:
        """The ways of a transfer within every group at once: int[groups, members].

        A ``send`` goes from each member to the next, from the last one to none.
        """
        routings = routings_for(self.topology.settings, kind, self.routings)
        return self._ways(groups, kind, routings, algorithms_of(kind, groups.shape[1]))

    def _ways(
        self, groups: IntArray, kind: Kind, routings: Sequence[str], algorithms: Sequence[str]
    ) -> list[Way]:
        members = groups.shape[1]
        halves = 2 if kind == "all_reduce" else 1
        sent = 1.0 if kind == "send" else halves * ((members - 1) / members)
        ways = [
            self._way(algorithm, routing, groups, sent, halves)
            for routing in routings
            for algorithm in algorithms
        ]
        return [way for way in ways if way is not None]

    def _way(
        self, algorithm: str, routing: str, groups: IntArray, sent: float, halves: int
    ) -> Way | None:
        members = groups.shape[1]
        chips = sha256(groups.tobytes()).hexdigest()
        key = f"{algorithm} {routing} {members} {groups.dtype} {chips}"
        if key not in self._rates:
            loads = self._loads_of(routing)
            rates = None if loads is None else member_rates(loads, groups, algorithm)
            self._rates[key] = () if rates is None else astuple(rates)
        if not self._rates[key]:
            return None
        rates = MemberRates(*self._rates[key])
        latency_ns = rates.flight_ns * rounds_of(algorithm, members) * halves
        latency_ns += circuits_delay_ns(self.topology.settings, routing, rates.between_gb_s)
        return Way(algorithm, routing, sent, rates, latency_ns)

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

    def time_s(
        self,
        kind: Kind,
        size_bytes: Array,
        members: Array,
        inside: Array,
        bound: Network | None = None,
        *,
        asks: bool = True,
    ) -> Array:
        """Seconds of one transfer in all groups of a size that fill the job, float[n].

        Groups have consecutive ranks, or every n-th one, so that a node holds
        ``inside`` of the members. A send goes from each member to the next, in groups
        of the next power of two if there are so many ranks: pipelines have any number
        of stages.

        ``bound``: a network that makes every transfer at least as fast. With it a
        transfer that was not asked takes at least the time given; ``asks``: by the
        exact loads of sends and rings, which have few pairs.
        """
        sizes, members, inside = np.broadcast_arrays(size_bytes, members, inside)
        result = (
            np.zeros(sizes.shape) if bound is None else bound.time_s(kind, sizes, members, inside)
        )
        if kind == "send":
            doubled = 2 ** np.ceil(np.log2(members))
            members = np.where(doubled <= len(self.chips), doubled, members)
        # Of pairs numpy finds the distinct ones a hundred times slower.
        groups = members.astype(np.int64) << 32 | self._strides(members, inside)
        for group in np.unique(groups).tolist():
            count, stride = divmod(group, 1 << 32)
            if count > 1:
                rows = groups == group
                ways = (
                    self._ways_of_job(kind, count, stride)
                    if bound is None
                    else self._bounding_ways(kind, count, stride, asks=asks)
                )
                times = [way.latency_ns + sizes[rows] / way.gb_s for way in ways]
                if times:
                    result[rows] = np.maximum(result[rows], np.min(times, axis=0) * 1e-9)
        return result

    def _strides(self, members: Array, inside: Array) -> IntArray:
        """Ranks from a member of each group to the next: int[groups]."""
        far, near = (
            np.rint(self.node_devices / inside),
            self.node_devices // np.maximum(np.floor(inside), 1),
        )
        most = len(self.chips) // np.maximum(members, 1)
        stride = np.clip(np.where(inside < 1, far, near), 1, most)
        return np.where(inside < members, stride, 1).astype(np.int64)

    def _bounding_ways(self, kind: Kind, members: int, stride: int, *, asks: bool) -> list[Way]:
        """The ways of a transfer that was asked before; else some of which one is at
        least as fast; none where they are not known.
        """
        kinds = _GATHERS if kind in _GATHERS else (kind,)
        of_kinds = [(of, members, stride) for of in kinds]
        few_pairs = kind == "send" or (kind in _GATHERS and members == 2)
        if (asks and few_pairs) or any(key in self._job_ways for key in of_kinds):
            return self._ways_of_job(kind, members, stride)
        asks = asks and kind in _GATHERS
        if not asks and all(key not in self._job_bounds for key in of_kinds):
            return []
        key = kind, members, stride
        if key not in self._job_bounds:
            groups = strided_groups(self.chips, members, stride)
            rings = self._fast_ways(groups, kind, ["ring"])
            most = MemberRates(self._most_gb_s(groups), np.inf, 0.0)
            self._job_bounds[key] = [*rings, Way("direct", "", rings[0].sent, most, 0.0)]
        return self._job_bounds[key]

    def _most_gb_s(self, groups: IntArray) -> float:
        """What no rate of direct messages exceeds: what all links between nodes carry,
        over the fewest that the messages take.
        """
        if self._node_hops is None:
            return np.inf
        hops, between_gb_s = self._node_hops
        group = np.arange(len(groups))[:, None] * len(hops)
        nodes = self.topology.chip_node[groups].astype(np.int64)
        count = np.bincount((group + nodes).ravel(), minlength=len(groups) * len(hops))
        count = count.reshape(-1, len(hops))
        taken = float((count @ hops * count).sum()) / (groups.shape[1] - 1)
        return between_gb_s / taken if taken else np.inf

    @property
    def bounds_gathers(self) -> bool:
        """Whether it has few enough nodes to bound what it was not asked."""
        return self._node_hops is not None

    @cached_property
    def _node_hops(self) -> tuple[FloatArray, float] | None:
        """The fewest links between nodes of a path from one node to another,
        float[nodes, nodes], and what all these links carry; None: too many nodes.
        """
        topology, links = self.topology, self.topology.links
        size = topology.nodes + topology.switches
        if size > _MOST_NODES:
            return None
        vertex = np.append(topology.chip_node, topology.nodes + np.arange(topology.switches))
        src, dst = vertex[links.src], vertex[links.dst]
        joined = np.eye(size)
        joined[src, dst] = 1.0
        reached, hops = np.eye(size), np.zeros((size, size))
        while not reached.all():
            hops += reached == 0
            reached = np.minimum(reached @ joined, 1.0)
        nodes = slice(topology.nodes)
        return hops[nodes, nodes], float(links.capacity_gbps[src != dst].sum()) / 8

    def job_ways(self, kind: Kind, members: int, inside: float) -> list[Way]:
        """The ways of a transfer in all groups of a size that fill the job, of whose
        members a node holds so many, as :meth:`time_s` takes them.
        """
        stride = self._strides(np.array(members), np.array(inside))
        return self._ways_of_job(kind, members, int(stride))

    def _ways_of_job(self, kind: Kind, members: int, stride: int) -> list[Way]:
        key = kind, members, stride
        if key not in self._job_ways:
            groups = strided_groups(self.chips, members, stride)
            self._job_ways[key] = (
                self._fast_ways(groups, kind, algorithms_of(kind, members))
                if self._selective
                else self.ways(groups, kind)
            )
        return self._job_ways[key]

    def _fast_ways(self, groups: IntArray, kind: Kind, algorithms: Sequence[str]) -> list[Way]:
        """Shortest paths, and detours where those reach less than half of a port."""
        routings = routings_for(self.topology.settings, kind, self.routings)
        shortest = [name for name in routings if name != _DETOURS]
        detours = [name for name in self.routings if name == _DETOURS]
        ways = self._ways(groups, kind, shortest, algorithms)
        port_gb_s, _ = self._node_rates
        # The ring first: of the many pairs of a direct gather detours take seconds.
        for algorithm in reversed(algorithms):
            if max(way.rates.gb_s for way in ways) < port_gb_s / 2:
                ways += self._ways(groups, kind, detours, [algorithm])
        return ways


@dataclass(frozen=True, eq=False)
class Answered:
    """A network's exact times of transfers that it was asked before, a faster network's
    of others; ``asks``: of others as rings and the distances of nodes bound them.
    """

    exact: ExactLoads
    bound: Network
    asks: bool = False

    @property
    def node_devices(self) -> int:
        return self.exact.node_devices

    @property
    def words(self) -> str:
        """What it is, in some words."""
        return f"{self.exact.words}, as far as asked"

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        return self.exact.time_s(kind, size_bytes, members, inside, self.bound, asks=self.asks)


def algorithms_of(kind: Kind, members: int) -> list[str]:
    """How a transfer in a group of so many members may go."""
    if kind == "send":
        return ["next"]
    return ["direct", "ring"] if kind != "all_to_all" and members > 2 else ["direct"]


def routings_for(settings: FamilySettings, kind: Kind, offered: Sequence[str]) -> Sequence[str]:
    """The routings of a transfer: all-to-alls alone take circuits that follow them."""
    circuits = family_of(settings).traffic_circuits
    if circuits is None:
        return offered
    return ("min",) if kind == "all_to_all" else (circuits.other_routing,)


def circuits_delay_ns(settings: FamilySettings, routing: str, between_gb_s: float) -> float:
    """Time that a transfer waits for circuits that follow it; none within nodes."""
    circuits = family_of(settings).traffic_circuits
    if circuits is None or routing != "min" or between_gb_s == np.inf:
        return 0.0
    return float(circuits.delay_ms(settings)) * 1e6


def on_devices(
    settings: FamilySettings,
    device: Device,
    ranks: int | None = None,
    *,
    fast_share: float,
    slow_share: float,
    slow_gb_s: float | None = None,
    node_devices: int | None = None,
    known: KnownRates | None = None,
) -> tuple[ExactLoads, TwoLevelRing]:
    """A topology whose chips send as fast as a device does in its usual node, and the
    ranks of a job on it (None: all chips).

    ``known`` is that of :class:`ExactLoads`, the others of :meth:`TwoLevelRing.of`.
    Where nodes have one chip, its ports take the place of the fast domain's, and plans
    number the chips in blocks of the device's node. The second network makes every
    transfer at least as fast: rings alone at these rates, without latency.
    """
    topology = build_topology(settings)
    chips = topology.chips // topology.nodes
    inside_gb_s = outside_gb_s = device.fast_gb_s * fast_share
    if slow_gb_s or chips > 1:
        outside_gb_s = (slow_gb_s or device.slow_gb_s) * slow_share
    node = node_devices or (chips if chips > 1 else device.node_devices)
    family = family_of(settings)
    static = [name for name in family.routings if name in static_routing_names()]
    static = [name for name in static if name not in family.same_loads]
    at_device = at_rates(topology, outside_gb_s, inside_gb_s)
    network = ExactLoads(at_device, static, ranks, node, known, selective=True)
    fast_gb_s = inside_gb_s if chips > 1 else outside_gb_s
    # Where plans take a part of a node for one, groups that leave it may stay inside.
    bound_gb_s = outside_gb_s if node >= chips else max(fast_gb_s, outside_gb_s)
    return network, TwoLevelRing(node, fast_gb_s, bound_gb_s, 0.0, 0.0, 1.0, 1.0)


def chips_of(settings: FamilySettings) -> int:
    """Chips of a network."""
    bill = family_of(settings).bill
    return build_topology(settings).chips if bill is None else bill.chips(settings)


def sized(
    settings: FamilySettings, others: Sequence[FamilySettings], ranks: int, key: str
) -> FamilySettings:
    """A network of a family with at least so many chips.

    The smallest that has the ports of ``settings``, else the smallest of those that
    have the ports of one of ``others``; a family that has no sizes has these alone.
    :class:`UserError` below ``key`` where none has enough.
    """
    if ranks > _MOST_CHIPS:
        # Before a larger network is built.
        raise UserError(
            f"{key}: got {settings.family} for {ranks} devices; allowed: exact loads of at most"
            f" {_MOST_CHIPS}"
        )
    options = [_resized(network, ranks) for network in (settings, *others)]
    chips = [chips_of(option) for option in options]
    enough = [number for number, count in enumerate(chips) if ranks <= count <= _MOST_CHIPS]
    if not enough:
        raise UserError(
            f"{key}: got {settings.family} for {ranks} devices, which comes with"
            f" {', '.join(map(str, sorted(set(chips))))}; allowed: as many as there are devices or"
            f" more, at most {_MOST_CHIPS}"
        )
    return options[0 if 0 in enough else min(enough, key=lambda number: chips[number])]


def _resized(settings: FamilySettings, ranks: int) -> FamilySettings:
    bill = family_of(settings).bill
    if bill is not None:
        with suppress(SettingsError):
            fitting = bill.resize(settings, ranks)
            # A tree may have a bill of any size, and a graph only when it is full.
            check_topology(fitting)
            return fitting
    return settings


def node_rates_gb_s(topology: Topology) -> tuple[float, float]:
    """Rates per chip out of a node and of the links inside, one direction.

    The links that begin at chips, over the number of chips.
    """
    links = topology.links
    from_chips = links.src < topology.chips
    inside = links.kind == INTERNAL
    rate = links.capacity_gbps / 8 / topology.chips
    return float(rate[from_chips & ~inside].sum()), float(rate[from_chips & inside].sum())


def at_rates(topology: Topology, outside_gb_s: float, inside_gb_s: float) -> Topology:
    """The same network with other rates per chip; links inside may not be there."""
    outside, inside = node_rates_gb_s(topology)
    links = topology.links
    factor = np.full(len(links), outside_gb_s / outside)
    if inside:
        factor[links.kind == INTERNAL] = inside_gb_s / inside
    return replace(topology, links=replace(links, gbps=links.gbps * factor))
