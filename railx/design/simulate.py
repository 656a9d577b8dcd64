"""The best points of a design simulated: closed forms beside replay and packets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from railx.design.front import Design
from railx.design.point import DesignPoint, setting_on
from railx.design.rates import RateStore, folded
from railx.design.settings import DesignSettings, PointSettings
from railx.design.sizes import Sized
from railx.families import build_routing, build_topology
from railx.network.packets import simulate_packets
from railx.network.settings import PacketNetworkSettings, StaticNetworkSettings, UniformTraffic
from railx.network.throughput import simulate_static
from railx.performance.advice import setting_of
from railx.performance.closed import step_times
from railx.performance.layers import Setting
from railx.performance.networks import Kind, Network
from railx.performance.plans import Array, Plan, Plans
from railx.progress import counted
from railx.steps.referee import MAX_RANKS, replayed_step_s

__all__ = ["simulate", "simulate_point"]

#: Relative difference from which the term that differs is named.
_TOLERATED = 0.1
#: An all-to-all in packets: offered loads over the closed form, and the window.
_OFFERED = (0.4, 0.6, 0.8, 1.0)
#: What packets have and loads leave out: the rest of a difference, of no single cause.
_PACKET_EFFECTS = "buffers, arbitration or window"
_PACKETS = PacketNetworkSettings("packet", warmup_cycles=500, measured_cycles=1000)
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
    above a tenth: minimal paths, or links inside nodes, where exact loads on these are
    as low; else what loads leave out).
    """
    closed = point.all_to_all_gb_s
    row: dict[str, Any] = {"all_to_all_gb_s": closed}
    row |= dict.fromkeys(("packets_gb_s", "packets_difference", "packets_term"))
    graph = folded(point.graph)
    topology = build_topology(graph)
    if topology.chips > settings.simulated_chips:
        return row
    table = build_routing(topology, "min", grouped=True)
    port_gb_s = graph.port_gbps / 8
    arrived = [
        simulate_packets(
            topology, table, UniformTraffic("uniform", share * closed / port_gb_s), _PACKETS, 1
        ).accepted_flits_per_chip_cycle
        for share in _OFFERED
    ]
    packets = max(arrived) * port_gb_s
    row |= {"packets_gb_s": packets, "packets_difference": closed / packets - 1}
    if abs(row["packets_difference"]) > _TOLERATED:
        routing = StaticNetworkSettings("static", "min")
        exact, _ = simulate_static(topology, UniformTraffic("uniform", 1.0), routing, "", seed=1)
        inside = exact["busiest_link_kind"] == "internal"
        named = "links inside nodes" if inside else "minimal paths"
        low = exact["bound_gb_s_per_chip"] < (1 - _TOLERATED) * closed
        row["packets_term"] = named if low else _PACKET_EFFECTS
    return row


def _both(setting: Setting, plan: Plan) -> tuple[float, float]:
    """Seconds of a step in closed form and replayed, on a few of the replicas."""
    closed = float(step_times(setting, Plans.of([plan])).total_s[0])
    return closed, replayed_step_s(setting, plan, _replicas(plan))


def _replicas(plan: Plan) -> int:
    """Two replicas, or as many as experts are spread over."""
    return min(plan.data, max(2, plan.expert // math.gcd(plan.expert, plan.context)))


def _term(setting: Setting, plan: Plan) -> str:
    """The term without which closed form and replay differ least: a kind of transfers,
    or else the bubble.
    """
    left = {}
    for term, kinds in _TERMS.items():
        closed, replayed = _both(replace(setting, network=_Without(setting.network, kinds)), plan)
        left[term] = abs(closed - replayed)
    closed, replayed = _both(setting, plan)
    best = min(left, key=lambda term: left[term])
    return best if left[best] < abs(closed - replayed) / 2 else "bubble"
