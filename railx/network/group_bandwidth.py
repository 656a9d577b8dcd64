"""Bandwidth and latency of the operations of groups of ranks on a topology.

Ranks are placed as those of a training job (the family's ``placement``). For each group
size and stride between members, all groups that fill the job communicate at once, so
that they contend for links as in a training step. An operation of ``bytes`` takes
``latency_us + bytes / gb_s``; its bytes are those of the whole tensor of a rank before
or after it (an all-to-all's input, an all-gather's output, a reduce-scatter's input, a
message).

Each operation has a row for each algorithm: ``direct`` (every member sends its part to
every other) and ``ring`` (both directions). ``railx.replay.graph_pricing`` takes the
better one for an operation's size.

* ``analytic``: exact channel loads of the routing; the busiest channel sets the rate.
* ``flow``: all messages at once with max-min fair rates; the last one sets the rate.

Latency is that of the flight alone, message after message, without software.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from railx.families import build_routing, family_of, rank_placement
from railx.network.flows.fair import finish_times, link_gb_s
from railx.network.flows.paths import spread_flows
from railx.network.settings import BandwidthSettings
from railx.network.traffic import routed_for
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.analysis import gather_loads, pair_loads
from railx.vocabulary.routing.hop_loads import HopLoads
from railx.vocabulary.routing.table import PairLoads, RoutingTable
from railx.vocabulary.topology import INTERNAL, Topology


@dataclass(frozen=True)
class Messages:
    """Messages (arrays[messages]) by member, other member and share of its traffic."""

    member: IntArray
    other: IntArray
    share: FloatArray


#: Share of a load below which a difference is rounding.
_NO_LOAD = 1e-12

#: The network, the load of each of its lanes and the longest flight in nanoseconds.
_Loads: TypeAlias = tuple[Topology, FloatArray, float]


@dataclass(frozen=True)
class RoutedLoads:
    """Exact loads on a network.

    ``of_pairs``: of sources, destinations and shares (arrays[pairs]). ``of_gathers``:
    the same faster where each member of groups (int[groups, members]) sends 1 in equal
    parts to the others; None: no faster.
    """

    of_pairs: Callable[[IntArray, IntArray, FloatArray], _Loads]
    of_gathers: Callable[[IntArray], _Loads] | None = None


@dataclass(frozen=True)
class MemberRates:
    """Rates of a member by the busiest channels, and its messages' longest flight."""

    between_gb_s: float
    inside_gb_s: float
    flight_ns: float

    @property
    def gb_s(self) -> float:
        """Rate of each member."""
        return min(self.between_gb_s, self.inside_gb_s)


def group_bandwidth(
    topology: Topology, settings: BandwidthSettings, routing: str, name: str
) -> list[dict[str, Any]]:
    """One row for each operation, group size, placement, algorithm and fidelity.

    Columns: topology, operation, algorithm, group_size, stride, placement
    (``consecutive`` for stride 1, else ``strided``), gb_s, latency_us, fidelity.
    SettingsError("ranks") where the job has no room on the topology.
    """
    chips = ranks_in_order(topology, settings.ranks)
    table = build_routing(topology, routing, np.sort(chips).astype(np.int32))
    loads = RoutedLoads(partial(_loads_by_table, topology, table))
    rows: list[dict[str, Any]] = []
    for size, stride in group_shapes(len(chips)):
        groups = strided_groups(chips, size, stride)
        placement = "consecutive" if stride == 1 else "strided"
        key = {"group_size": size, "stride": stride, "placement": placement}
        for algorithm in ("direct",) if size == 2 else ("direct", "ring"):
            for fidelity in settings.fidelities:
                if fidelity == "flow":
                    gb_s, flight_ns = _flow_rate(topology, table, groups, algorithm)
                else:
                    rates = member_rates(loads, groups, algorithm)
                    gb_s, flight_ns = rates.gb_s, rates.flight_ns
                for operation, sent in _sent(algorithm, size).items():
                    halves = 2 if operation == "all_reduce" else 1
                    rows.append(
                        {"topology": name, "operation": operation, "algorithm": algorithm}
                        | key
                        | {
                            "gb_s": gb_s / sent,
                            "latency_us": flight_ns * rounds_of(algorithm, size) * halves / 1e3,
                            "fidelity": fidelity,
                        }
                    )
    return rows


def routed_loads(
    topology: Topology, routing: str, destinations: Int32Array | None = None
) -> RoutedLoads:
    """Exact loads of pairs of chips, by hops or by the routing table of one plane.

    ``destinations``: chips that a table leads to, ascending; None: all.
    """
    family = family_of(topology)
    if family.apart is not None:
        between, inside = family.apart(topology.settings, topology)
        return _loads_with_nodes(topology, routed_loads(between, routing, destinations), inside)
    plane, planes = family.plane(topology.settings) if family.plane else (topology, 1)
    closed = family.pair_loads
    without_table = None if closed is None else closed(topology.settings, plane, routing)
    gathers: Callable[[IntArray], tuple[FloatArray, float]] | None = None
    if without_table is None and routing in family.hop_loads:
        by_hops = HopLoads(plane, family.hop_loads[routing])
        without_table, gathers = by_hops, by_hops.of_gathers
    if without_table is None:
        table = build_routing(plane, routing, destinations, grouped=True)
        if family.traffic_circuits is not None and routing == "min":
            return RoutedLoads(partial(_loads_by_table, topology, table))
        without_table = partial(pair_loads, plane, table)
        gathers = partial(gather_loads, plane, table)
    pairs = without_table

    # Loads are those of one of equal planes.
    def of_pairs(src: IntArray, dst: IntArray, share: FloatArray) -> _Loads:
        load, flight_ns = pairs(src, dst, share / planes)
        return topology, np.tile(load, planes), flight_ns

    def of_gathers(groups: IntArray) -> _Loads:
        assert gathers is not None
        load, flight_ns = gathers(groups)
        return topology, np.tile(load / planes, planes), flight_ns

    return RoutedLoads(of_pairs, None if gathers is None else of_gathers)


def _loads_with_nodes(topology: Topology, between: RoutedLoads, inside: PairLoads) -> RoutedLoads:
    """Loads where pairs in one node take the links inside it, and no others do."""
    chip_node = topology.chip_node.astype(np.int64)

    def of_pairs(src: IntArray, dst: IntArray, share: FloatArray) -> _Loads:
        together = chip_node[src] == chip_node[dst]
        _, load, flight_ns = between.of_pairs(src[~together], dst[~together], share[~together])
        load_inside, inside_ns = inside(src[together], dst[together], share[together])
        longest_ns = inside_ns if together.all() else max(flight_ns, inside_ns)
        return topology, np.concatenate([load, load_inside]), longest_ns

    def of_gathers(groups: IntArray) -> _Loads:
        assert between.of_gathers is not None
        order = np.argsort(chip_node[groups], axis=1, kind="stable")
        ordered: IntArray = np.take_along_axis(groups, order, axis=1)
        node = chip_node[ordered]
        src, dst = _pairs_in_nodes(ordered, node)
        share = np.full(len(src), 1 / (groups.shape[1] - 1))
        if len(src) < groups.size * (groups.shape[1] - 1):
            # What pairs in one node would send between nodes is taken off again.
            _, every, flight_ns = between.of_gathers(groups)
            _, inner, inner_ns = between.of_pairs(src, dst, share)
            if inner_ns < flight_ns or flight_ns == _longest_ns(between, ordered, node):
                load_inside, inside_ns = inside(src, dst, share)
                load = np.where(every - inner > _NO_LOAD * every, every - inner, 0.0)
                return topology, np.concatenate([load, load_inside]), max(flight_ns, inside_ns)
        return of_pairs(*_pairs_of(messages_of("direct", groups.shape[1]), groups))

    return RoutedLoads(of_pairs, of_gathers if between.of_gathers is not None else None)


def _pairs_in_nodes(groups: IntArray, node: IntArray) -> tuple[IntArray, IntArray]:
    """All ordered pairs of members of a group in one node, of groups in its order."""
    first, second = [groups[:0, 0]], [groups[:0, 0]]
    for distance in range(1, groups.shape[1]):
        near = node[:, distance:] == node[:, :-distance]
        if not near.any():
            break
        first.append(groups[:, :-distance][near])
        second.append(groups[:, distance:][near])
    return np.concatenate(first + second), np.concatenate(second + first)


def _longest_ns(loads: RoutedLoads, groups: IntArray, node: IntArray) -> float:
    """Longest flight in ns from each group's first member to another node's."""
    group, other = np.nonzero(node != node[:, :1])
    return loads.of_pairs(groups[group, 0], groups[group, other], np.ones(len(group)))[2]


def _pairs_of(messages: Messages, groups: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    src, dst = groups[:, messages.member].ravel(), groups[:, messages.other].ravel()
    return src, dst, np.tile(messages.share, len(groups))


def _loads_by_table(
    topology: Topology, table: RoutingTable, src: IntArray, dst: IntArray, share: FloatArray
) -> _Loads:
    """Loads of pairs, with circuits set for them where the network has such."""
    topology, table = routed_for(topology, table, src, dst, share)
    return topology, *pair_loads(topology, table, src, dst, share)


def ranks_in_order(topology: Topology, ranks: int) -> IntArray:
    """The chip of every rank.

    Ranks fill the chips of a node, then the nodes of a row, then rows, on a grid of
    nodes if the family has one.
    """
    mesh = topology.chips // topology.nodes
    while ranks % mesh:
        mesh -= 1
    nodes, best = ranks // mesh, None
    for x in range(nodes, 0, -1):
        if nodes % x:
            continue
        try:
            placement = rank_placement(topology, (mesh, x, nodes // x))
        except SettingsError:
            continue
        best = placement if best is None or placement.kind == "grid" else best
        if best.kind == "grid":
            break
    if best is None:
        raise SettingsError(
            "ranks", f"got {ranks}; allowed on {topology.family} of {topology.chips} chips: fewer"
        )
    # Mesh is the first axis and varies fastest.
    return best.chips.transpose(2, 1, 0).ravel()


def group_shapes(ranks: int) -> Iterator[tuple[int, int]]:
    """Sizes and strides of groups that fill a job, powers of two."""
    size = 2
    while size <= ranks:
        stride = 1
        while size * stride <= ranks:
            yield size, stride
            stride *= 2
        size *= 2


def strided_groups(chips: IntArray, size: int, stride: int) -> IntArray:
    """All groups of a size and stride that fill the ranks: int[groups, members]."""
    end = len(chips) // (size * stride) * size * stride
    blocks = chips[:end].reshape(-1, size, stride)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(-1, size)


def messages_of(algorithm: str, size: int) -> Messages:
    """The messages of an algorithm in a group of so many members.

    ``direct``: each member sends its part to every other; ``ring``: round a ring, in
    both directions; ``next``: each to the next one, the last to none (a pipeline).
    """
    members = np.arange(size)
    if algorithm == "next":
        return Messages(members[:-1], members[1:], np.ones(size - 1))
    if algorithm == "direct" or size == 2:
        others = np.arange(size - 1)
        other = others + (others >= members[:, None])
        share = np.full(other.size, 1 / (size - 1))
        return Messages(members.repeat(size - 1), other.ravel(), share)
    neighbours = np.sort((members[:, None] + (-1, 1)) % size)
    return Messages(members.repeat(2), neighbours.ravel(), np.full(2 * size, 0.5))


def rounds_of(algorithm: str, size: int) -> int:
    """Messages in a row of an algorithm in a group of so many members."""
    return size - 1 if algorithm == "ring" else 1


def _sent(algorithm: str, size: int) -> dict[str, float]:
    """Bytes that a member sends per byte of an operation, by operation of an algorithm.

    An all-reduce is a reduce-scatter and an all-gather. Both ends of a message send at
    once, as neighbouring stages of a pipeline do.
    """
    share = (size - 1) / size
    gathers = {"all_gather": share, "reduce_scatter": share, "all_reduce": 2 * share}
    if algorithm == "ring":
        return gathers
    return {"all_to_all": share} | gathers | ({"message": 1.0} if size == 2 else {})


def member_rates(loads: RoutedLoads, groups: IntArray, algorithm: str) -> MemberRates:
    """Exact rates while all groups (int[groups, members]) send at once."""
    if algorithm == "direct" and loads.of_gathers is not None:
        topology, load, flight_ns = loads.of_gathers(groups)
    else:
        pairs = _pairs_of(messages_of(algorithm, groups.shape[1]), groups)
        topology, load, flight_ns = loads.of_pairs(*pairs)
    links, used = topology.links, load > 0
    gb_s = (np.repeat(links.gbps, links.lanes) / 8)[used] / load[used]
    inside = np.repeat(links.kind == INTERNAL, links.lanes)[used]
    return MemberRates(
        float(gb_s[~inside].min(initial=np.inf)), float(gb_s[inside].min(initial=np.inf)), flight_ns
    )


def _flow_rate(
    topology: Topology, table: RoutingTable, groups: IntArray, algorithm: str
) -> tuple[float, float]:
    """Fair rate of each member (GB/s), all sending at once; longest flight in ns.

    With circuits set for their messages where the network has such.
    """
    src, dst, size_bytes = _pairs_of(messages_of(algorithm, groups.shape[1]), groups)
    topology, table = routed_for(topology, table, src, dst, size_bytes)
    paths = spread_flows(topology, table, src, dst)
    sending = finish_times(paths, link_gb_s(topology), size_bytes) - paths.latency_ns
    return float(1 / sending.max()), float(paths.latency_ns.max())
