"""ByteScale's hybrid data parallelism, balanced (arXiv 2502.21231, algorithms 1 and 2).

Each sequence has as many ranks as it needs, any number of them; ranks may run different
numbers of micro-batches. No code is public. From the paper's text:

* Algorithm 1: a sequence over a rank's capacity C of tokens takes as many ranks as its
  activations fill, ceil(s / C) where nothing is offloaded; shorter ones are packed
  best-fit-decreasing into bins of C tokens, one rank each. Offloading activations to
  the host is left out: memory rules of plans count what devices hold.
* Algorithm 2: these units, most computation first, are cut into buckets of equal sums.
  In rounds, ranks that lag behind the most loaded by more than ``slack`` of it are
  targets (all ranks, where none does) and take from the buckets: from the first that is
  not empty ("dp"), or from all in turn ("pp").

Ours, because the paper's text leaves it open: the number of buckets, the slack as a
share, that each target takes one thing in a round and the least loaded ranks come
first, that all ranks are targets where the targets cannot hold what comes next, and
that a round goes on to the next bucket while targets are left.

A plan has micro-batches that all groups begin together: each round is one.
``without_waiting_ms`` in the solver's account is the time of the most loaded rank where
none waits for another, as in ByteScale's runtime. Predictions are the common cost
model's, all-to-alls at the same degree in place of the ring's exchange; a degree that
the cluster's table lacks has the bandwidth of the next larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

import numpy as np

from railx.effort import Cost, Costs
from railx.performance.sequence_cost import CostModel
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import (
    Assignment,
    Lengths,
    best_fit_decreasing,
    check_lengths_fit,
    micro_batch,
)
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.progress import counted
from railx.settings import AtLeast, NonNegative
from railx.workload.batches import SampledBatch

__all__ = ["BYTE_SCALE", "ByteScaleSettings", "Unit", "plan_byte_scale_batch", "rounds", "units"]


@dataclass(frozen=True)
class ByteScaleSettings(PlannerBase):
    """ByteScale's balanced hybrid data parallelism, without offloading.

    Buckets and slack are not published; the defaults are ours.
    """

    planner: Literal["byte_scale"]
    """Which planner it is."""

    balance: Literal["dp", "pp"] = "dp"
    """Which bucket ranks take from: "dp" the first that is not empty, "pp" all in
    turn."""

    buckets: Annotated[int, AtLeast(1)] = 8
    """Buckets of equal computation (ours)."""

    slack: Annotated[float, NonNegative()] = 0.05
    """Share of the most loaded rank's time by which a rank may lag behind it and take
    nothing (ours)."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {
            "buckets": Cost(1e-3, 1e3) * self.buckets,
        }


@dataclass(frozen=True)
class Unit:
    """Sequences that run together on ``degree`` ranks, by position, and their time."""

    degree: int
    members: tuple[int, ...]
    time_ms: float


def units(lengths: Lengths, cost: CostModel) -> list[Unit]:
    """Algorithm 1: units and their ranks, most computation first."""
    capacity = cost.tokens_per_device
    long = [int(position) for position in np.flatnonzero(lengths > capacity)]
    short = np.flatnonzero(lengths <= capacity)
    pending: list[tuple[int, tuple[int, ...]]] = [
        (ceil(int(lengths[position]) / capacity), (position,)) for position in long
    ]
    if len(short):
        packed = best_fit_decreasing(lengths[short], capacity)
        pending += [(1, tuple(int(short[index]) for index in members)) for members in packed]

    def work_ms(members: tuple[int, ...]) -> float:
        return float(cost.sequence_ms(lengths[list(members)]).sum())

    pending.sort(key=lambda unit: (-work_ms(unit[1]), unit[1]))
    return [
        Unit(degree, members, cost.group_time_ms(lengths[list(members)], degree).total_ms)
        for degree, members in pending
    ]


def rounds(
    ordered: Sequence[Unit], works_ms: Sequence[float], settings: ByteScaleSettings, ranks: int
) -> tuple[list[list[Unit]], float]:
    """Algorithm 2: rounds of units, and the time of the most loaded rank.

    ``works_ms`` are the units' computation.
    """
    buckets = _buckets(ordered, works_ms, settings.buckets)
    busy_ms = np.zeros(ranks)
    filled: list[list[Unit]] = []
    turn = 0
    while any(buckets):
        most = float(busy_ms.max())
        targets = [int(r) for r in np.flatnonzero(most - busy_ms > settings.slack * most)]
        taken: list[Unit] = []
        targets = targets or list(range(ranks))
        targets.sort(key=lambda rank: (busy_ms[rank], rank))
        while targets and any(buckets):
            order = range(len(buckets))
            if settings.balance == "pp":
                order = [(turn + index) % len(buckets) for index in order]  # type: ignore[assignment]
            chosen = next(index for index in order if buckets[index])
            unit = buckets[chosen][0]
            if unit.degree > len(targets):
                if taken:
                    break
                targets = sorted(range(ranks), key=lambda rank: (busy_ms[rank], rank))
            # Ranks that share a sequence wait for the last of them.
            ranks_taken, targets = targets[: unit.degree], targets[unit.degree :]
            busy_ms[ranks_taken] = busy_ms[ranks_taken].max() + unit.time_ms
            taken.append(buckets[chosen].pop(0))
            turn = chosen + 1
        filled.append(taken)
    return filled, float(busy_ms.max())


def _buckets(ordered: Sequence[Unit], works_ms: Sequence[float], count: int) -> list[list[Unit]]:
    """Cut units into ``count`` runs of about equal computation, some perhaps empty."""
    ends = np.cumsum(works_ms)
    before = ends - np.asarray(works_ms)
    index = np.minimum((before / ends[-1] * count).astype(int), count - 1)
    return [
        [unit for unit, number in zip(ordered, index, strict=True) if number == bucket]
        for bucket in range(count)
    ]


def plan_byte_scale_batch(
    iteration: int, batch: SampledBatch, settings: ByteScaleSettings, devices: int, cost: CostModel
) -> SequenceParallelBatch:
    """Plan one batch; PlanError names a sequence that all devices cannot hold."""
    lengths, limit = batch.lengths, cost.tokens_per_device * devices
    check_lengths_fit(batch.sequences, lengths, limit, f"a group of degree {devices}")
    ordered = units(lengths, cost)
    works_ms = [float(cost.sequence_ms(lengths[list(unit.members)]).sum()) for unit in ordered]
    filled, waitless = rounds(ordered, works_ms, settings, devices)
    micro_batches = tuple(
        micro_batch(
            Assignment(tuple(u.degree for u in taken), tuple(u.members for u in taken)),
            batch.sequences,
            lengths,
            cost,
        )
        for taken in filled
    )
    return SequenceParallelBatch(iteration, micro_batches, {"without_waiting_ms": waitless})


def _plan(settings: ByteScaleSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    return tuple(
        plan_byte_scale_batch(index, batch, settings, task.devices, task.cost)
        for index, batch in enumerate(counted(task.batches, "batches"))
    )


#: The entry of the list of planners.
BYTE_SCALE = Planner("byte_scale", "sequence_parallel", ByteScaleSettings, _plan, whole_heads=False)
