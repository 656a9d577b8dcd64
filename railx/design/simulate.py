"""The best points of a design replayed: the closed form beside the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from railx.design.front import Design
from railx.design.point import DesignPoint, setting_on
from railx.design.rates import RateStore
from railx.design.settings import PointSettings
from railx.design.sizes import Sized
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
    """The first points of a front, replayed.

    Columns: network, closed_s, replayed_s, difference (closed over replayed less 1),
    term (what differs most, where the difference is above a tenth), fidelity. Plans of
    too many ranks besides replicas have no row.
    """
    points = answer.front[: answer.settings.simulated]
    return [
        simulate_point(point, answer.settings, store or RateStore())
        for point in counted(points, "replays")
        if point.plan.devices // point.plan.data * _replicas(point.plan) <= MAX_RANKS
    ]


def simulate_point(point: DesignPoint, settings: PointSettings, store: RateStore) -> dict[str, Any]:
    """One point replayed: a row of :func:`simulate`."""
    sized = Sized(point.network, point.graph, point.chips)
    setting, _ = setting_on(sized, setting_of(settings.advice), settings, store)
    closed_s, replayed_s = _both(setting, point.plan)
    difference = closed_s / replayed_s - 1
    term = _term(setting, point.plan) if abs(difference) > _TOLERATED else None
    return {
        "network": point.name,
        "closed_s": closed_s,
        "replayed_s": replayed_s,
        "difference": difference,
        "term": term,
        "fidelity": "replay",
    }


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
