"""The best points of a design simulated: closed forms beside replay and packets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from railx.design.front import Design
from railx.design.point import DesignPoint, setting_on
from railx.design.rates import RateStore, folded
from railx.design.settings import DesignSettings, PointSettings
from railx.design.sizes import Sized
from railx.families import build_routing, build_topology
from railx.network.packets.layout import channels_of
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import PacketNetworkSettings, UniformTraffic
from railx.performance.advice import setting_of
from railx.performance.closed import step_times
from railx.performance.layers import Setting
from railx.performance.networks import Kind, Network
from railx.performance.plans import Array, Plan, Plans
from railx.progress import counted
from railx.steps.referee import MAX_RANKS, replayed_step_s
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, Topology

#: Relative difference from which the term that differs is named.
_TOLERATED = 0.1
#: An all-to-all in packets: loads over the most that links can carry, and the window.
_OFFERED = (0.7, 0.8, 0.9, 1.0)
_PACKETS = PacketNetworkSettings(
    "packet", warmup_cycles=500, measured_cycles=1000, parallel_channels="most_room"
)
#: Times as many virtual channels, in the same room, leave little head-of-line blocking.
_MORE_CHANNELS = 8
#: Terms by what of the network is left out to find them.
_TERMS: dict[str, tuple[Kind, ...]] = {
    "pipeline": ("send",),
    "data": ("all_gather", "reduce_scatter"),
    "tensor": ("all_reduce",),
    "expert": ("all_to_all",),
}


@dataclass(frozen=True, eq=False)
class _Without:
    """A network on which some kinds of transfers take no time."""

    network: Network
    kinds: Sequence[Kind]

    @property
    def node_devices(self) -> int:
        return self.network.node_devices

    @property
    def words(self) -> str:
        return self.network.words

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        if kind in self.kinds:
            return np.zeros(np.broadcast(size_bytes, members, inside).shape)
        return self.network.time_s(kind, size_bytes, members, inside)


def simulate(answer: Design, store: RateStore | None = None) -> list[dict[str, Any]]:
    """The first points of a front, replayed, with an all-to-all in packets.

    Columns: those of :func:`simulate_point` and of :func:`_all_to_all`; without a value
    where a plan has too many ranks besides replicas, or a network too many chips.
    """
    points = answer.front[: answer.settings.simulated]
    return [
        simulate_point(point, answer.settings, store or RateStore())
        | _all_to_all(point, answer.settings)
        for point in counted(points, "simulations")
    ]


def simulate_point(point: DesignPoint, settings: PointSettings, store: RateStore) -> dict[str, Any]:
    """One point replayed.

    Columns: network, closed_s, replayed_s, difference (closed over replayed less 1),
    term (what differs most, where the difference is above a tenth), fidelity.
    """
    row: dict[str, Any] = {"network": point.name, "closed_s": point.step_s}
    row |= dict.fromkeys(("replayed_s", "difference", "term")) | {"fidelity": "replay"}
    if point.plan.devices // point.plan.data * _replicas(point.plan) > MAX_RANKS:
        return row
    sized = Sized(point.network, point.graph, point.chips)
    setting, _ = setting_on(sized, setting_of(settings.advice), settings, store)
    closed_s, replayed_s = _both(setting, point.plan)
    difference = closed_s / replayed_s - 1
    term = _term(setting, point.plan) if abs(difference) > _TOLERATED else None
    return row | {
        "closed_s": closed_s,
        "replayed_s": replayed_s,
        "difference": difference,
        "term": term,
    }


def _all_to_all(point: DesignPoint, settings: DesignSettings) -> dict[str, Any]:
    """An all-to-all of all chips in packets on minimal paths, at the links' full rates.

    Columns: all_to_all_gb_s (closed form), packets_gb_s (the most that arrive at some
    offered load), packets_difference (closed over packets less 1), packets_term (where
    above a tenth: what lowers the rate by a tenth or more, see :func:`packet_rates`).
    """
    row: dict[str, Any] = {"all_to_all_gb_s": point.all_to_all_gb_s}
    row |= dict.fromkeys(("packets_gb_s", "packets_difference", "packets_term"))
    topology = build_topology(folded(point.graph))
    if topology.chips > settings.simulated_chips:
        return row
    rates = packet_rates(topology, point.all_to_all_gb_s)
    *_, packets = rates.values()
    difference = point.all_to_all_gb_s / packets - 1
    return row | {
        "packets_gb_s": packets,
        "packets_difference": difference,
        "packets_term": _lowered_by(rates) if difference > _TOLERATED else None,
    }


def packet_rates(topology: Topology, closed_gb_s: float) -> dict[str, float]:
    """Rates of an all-to-all from the closed form down to packets, by what lowers them.

    Exact loads on minimal paths, named by the links that are full; the same where a
    packet takes a link for cycles without a remainder; packets with too many virtual
    channels to block each other, which leave an input port one at a time; packets.
    """
    table, links = build_routing(topology, "min", grouped=True), topology.links
    load, channels = table_lane_loads(topology, table), channels_of(topology, _PACKETS)
    used, port_gbps = load > 0, topology.settings.port_gbps
    rounded_gbps = port_gbps * _PACKETS.packet_flits / channels.serial[channels.first]
    full, rounded = ((gbps[used] / load[used]) / 8 for gbps in (links.gbps, rounded_gbps))
    inside = links.kind[used][full.argmin()] == INTERNAL
    bounds = {
        "": closed_gb_s,
        "links inside nodes" if inside else "minimal paths": float(full.min()),
        "whole cycles on a link": float(rounded.min()),
    }
    bounds = dict(zip(bounds, itertools.accumulate(bounds.values(), min), strict=True))
    most = min(bounds.values()) * 8 / port_gbps
    unblocked = replace(
        _PACKETS,
        virtual_channels=_MORE_CHANNELS * table.virtual_channels,
        buffer_flits=_PACKETS.buffer_flits // _MORE_CHANNELS,
    )
    simulated = {
        "shared input ports": _arrived(topology, table, unblocked, (most,)),
        "head-of-line blocking": _arrived(topology, table, _PACKETS, [x * most for x in _OFFERED]),
    }
    return bounds | {name: rate * port_gbps / 8 for name, rate in simulated.items()}


def _arrived(
    topology: Topology, table: RoutingTable, network: PacketNetworkSettings, loads: Sequence[float]
) -> float:
    """The most flits of an all-to-all that arrive at some load."""
    uniform = [UniformTraffic("uniform", load) for load in loads]
    results = [simulate_packets(topology, table, traffic, network, 1) for traffic in uniform]
    return max(result.accepted_flits_per_chip_cycle for result in results)


def _lowered_by(rates: Mapping[str, float]) -> str:
    """What lowers a rate by a tenth or more, or else by most; the largest first."""
    steps = itertools.pairwise(rates.items())
    factors = {name: before / after - 1 for (_, before), (name, after) in steps}
    order = sorted(factors, key=lambda name: -factors[name])
    named = [name for name in order if factors[name] > _TOLERATED] or order[:1]
    return ", ".join(f"{name} {factors[name]:+.0%}" for name in named)


def _both(setting: Setting, plan: Plan) -> tuple[float, float]:
    """Seconds of a step in closed form and replayed, on a few of the replicas."""
    closed = float(step_times(setting, Plans.of([plan])).total_s[0])
    return closed, replayed_step_s(setting, plan, _replicas(plan))


def _replicas(plan: Plan) -> int:
    """Two replicas, or as many as experts are spread over."""
    return min(plan.data, max(2, plan.expert // math.gcd(plan.expert, plan.context)))


def _term(setting: Setting, plan: Plan) -> str:
    """The kind of transfers without which both differ least, or else the bubble."""
    left = {}
    for term, kinds in _TERMS.items():
        closed, replayed = _both(replace(setting, network=_Without(setting.network, kinds)), plan)
        left[term] = abs(closed - replayed)
    closed, replayed = _both(setting, plan)
    best = min(left, key=lambda term: left[term])
    return best if left[best] < abs(closed - replayed) / 2 else "bubble"
