"""Planners of context parallelism: groups of any number of ranks, and packing by work.

Predictions are the common cost model's, all-to-alls at the same degree in place of the
ring's exchange; a degree that the cluster's table lacks has the bandwidth of the next
larger one. Ring attention takes any number of ranks, Ulysses only divisors of the
heads.

**Any degree** is in the spirit of FCP (arXiv 2602.21788), which plans groups whose
sizes need not be powers of two, in polynomial time. Only that is taken from it: the
planner is ours, and its results are not FCP's. Sequences, longest first, are cut into M
micro-batches of about equal tokens, as FlexSP's blaster does, for M from the fewest
that memory allows on. In a micro-batch the least time T that a greedy filling meets is
found by bisection: the longest sequence left opens a group of the fewest ranks that
hold it within T, and the group takes the longest others that still fit memory and T.
Ranks that are left over go to the slowest group, as long as that makes it faster. All
of it is polynomial: O(M n log n) for each of a fixed number of T.

**ByteScale**'s hybrid data parallelism, balanced (arXiv 2502.21231, algorithms 1 and
2): each sequence has as many ranks as it needs, any number of them; ranks may run
different numbers of micro-batches. No code is public. From the paper's text:

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
that a round goes on to the next bucket while targets are left. A plan's groups begin a
micro-batch together: each round is one. ``without_waiting_ms`` in the solver's account
is the time of the most loaded rank where none waits, as in ByteScale's runtime.

**WLB-LLM**'s packing (arXiv 2503.17924; details from the re-implementation in
hao-ai-lab/distca, whose outputs are in ``tests/planning/golden``): all groups have one
degree d. The work of a document of s tokens is a s² + b s, the common cost model's
computation. Documents, longest first, go into the micro-batch of least work if that
still holds them, else into the one of fewest tokens. What does not fit there either is
set aside, and goes at the end to the micro-batch of least work. Memory is a limit here:
what the emptiest does not hold, none does later. So there are as many micro-batches as
leave nothing aside, the fewest first, each of d ranks; those of like work run side by
side.

* **Shards.** Documents packed into one sequence and cut for the ranks as one (2 d
  chunks, rank i has chunks i and 2d - 1 - i) give ranks unequal attention; cut one by
  one they give them equal attention. WLB-LLM chooses by its kernels' speed, which is
  not published. Predictions take equal shares; ``per_sequence_ms`` in the solver's
  account is the time with the other cut.
* **Outliers.** WLB-LLM keeps very long documents in queues until there is one for each
  micro-batch of a step, which changes the sequences that a step trains. A plan holds
  those of its own batch; benchmarks/rivals.py delays them before batches are planned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf
from typing import Annotated, Literal

import numpy as np

from railx.effort import Cost, Costs
from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import refused
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Assignment, Lengths, best_fit_decreasing
from railx.planning.packing import tokens_of_work
from railx.planning.planner import (
    Planner,
    PlannerBase,
    PlanningTask,
    assignment_of,
    batch_by_batch,
    check_group_holds,
    planned_batch,
)
from railx.planning.sequence.blaster import cut_batch
from railx.planning.sequence.static import total_ms
from railx.settings import AtLeast, NonNegative, PowerOfTwo
from railx.workload.batches import SampledBatch

#: Halvings of the interval of T.
_HALVINGS = 14


@dataclass(frozen=True)
class AnyDegreeSettings(PlannerBase):
    """Groups of any number of ranks, filled greedily within a least time.

    In the spirit of FCP. By default as many numbers of micro-batches are tried as
    FlexSP tries.
    """

    planner: Literal["any_degree"]
    """Which planner it is."""

    trials: Annotated[int, AtLeast(1)] = 5
    """Numbers of micro-batches that are tried, from the fewest that memory allows."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {"trials": Cost(0.1) * self.trials}


@dataclass
class _Open:
    """A group during filling."""

    degree: int
    members: list[int]
    tokens: int
    work_ms: float


def with_every_degree(cost: CostModel, devices: int) -> CostModel:
    """The cost model with every number of ranks up to ``devices`` as a degree."""
    every = {degree: cost.all_to_all_for(degree) for degree in range(1, devices + 1)}
    return replace(cost, all_to_all_ms=every)


def plan_any_degree_batch(
    iteration: int, batch: SampledBatch, settings: AnyDegreeSettings, devices: int, cost: CostModel
) -> SequenceParallelBatch:
    """Plan one batch; PlanError names a sequence that all devices cannot hold."""
    lengths, cost = batch.lengths, with_every_degree(cost, devices)
    check_group_holds(batch, cost.tokens_per_device, devices)
    fewest = ceil(int(lengths.sum()) / (cost.tokens_per_device * devices))
    plans: list[list[Assignment]] = []
    tried = 0
    for count in range(fewest, len(lengths) + 1):
        if tried >= settings.trials and plans:
            break
        tried += 1
        assignments = _plan(lengths, count, devices, cost)
        if assignments is not None:
            plans.append(assignments)
    best = min(plans, key=lambda plan: total_ms(plan, lengths, cost))
    return planned_batch(iteration, batch, best, cost, {"tried": tried})


def _plan(lengths: Lengths, count: int, devices: int, cost: CostModel) -> list[Assignment] | None:
    """A plan of ``count`` micro-batches; None where one of them does not fit."""
    assignments = []
    for run in cut_batch(lengths, count, "sorted"):
        groups = _fastest(run.tolist(), lengths, devices, cost)
        if groups is None:
            return None
        _spread(groups, devices, cost)
        assignments.append(assignment_of((group.degree, group.members) for group in groups))
    return assignments


def _fastest(run: list[int], lengths: Lengths, devices: int, cost: CostModel) -> list[_Open] | None:
    """Groups of the least time that the greedy filling meets, found by bisection."""
    best = _filled(run, lengths, devices, cost, inf)
    if best is None:
        return None
    low, high = cost.constant_ms, max(_time_ms(group, cost) for group in best)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        groups = _filled(run, lengths, devices, cost, middle)
        if groups is None:
            low = middle
        else:
            best, high = groups, max(_time_ms(group, cost) for group in groups)
    return best


def _filled(
    run: Sequence[int], lengths: Lengths, devices: int, cost: CostModel, limit_ms: float
) -> list[_Open] | None:
    """Groups for positions, longest first, within a time; None where ranks run out."""
    # Ascending, so that the longest is the last and those that fit come first.
    left = [(int(lengths[position]), -position) for position in reversed(run)]
    works_ms = cost.sequence_ms(lengths).tolist()
    groups, free = [], devices
    while left:
        length, negated = left.pop()
        degrees = range(ceil(length / cost.tokens_per_device), free + 1)
        opened = (_Open(degree, [-negated], length, works_ms[-negated]) for degree in degrees)
        group = next((group for group in opened if _time_ms(group, cost) <= limit_ms), None)
        if group is None:
            return None
        free -= group.degree
        while left:
            most = _longest_that_fits(group, cost, limit_ms)
            index = bisect_right(left, (most, 1)) - 1
            if index < 0:
                break
            length, negated = left.pop(index)
            group.members.append(-negated)
            group.tokens += length
            group.work_ms += works_ms[-negated]
        groups.append(group)
    return groups


def _longest_that_fits(group: _Open, cost: CostModel, limit_ms: float) -> int:
    """The longest sequence that a group takes within memory and time, 0 for none."""
    room = cost.tokens_per_device * group.degree - group.tokens
    if limit_ms == inf:
        return room
    left = limit_ms - _time_ms(group, cost)
    linear = cost.linear_ms / group.degree + cost.all_to_all_ms[group.degree]
    quadratic = cost.quadratic_ms / group.degree
    if left <= 0:
        return 0
    return min(room, int(tokens_of_work(left, quadratic, linear)))


def _spread(groups: list[_Open], devices: int, cost: CostModel) -> None:
    """Give the remaining ranks to the slowest group while it gets faster."""
    free = devices - sum(group.degree for group in groups)
    while free:
        slowest_ms, index = max((_time_ms(group, cost), i) for i, group in enumerate(groups))
        degree = groups[index].degree
        wider = (replace(groups[index], degree=degree + more) for more in range(1, free + 1))
        faster = next((group for group in wider if _time_ms(group, cost) < slowest_ms), None)
        if faster is None:
            return
        free -= faster.degree - degree
        groups[index] = faster


def _time_ms(group: _Open, cost: CostModel) -> float:
    exchange = group.tokens * cost.all_to_all_ms[group.degree] + cost.latency_for(group.degree)
    return group.work_ms / group.degree + cost.constant_ms + exchange


ANY_DEGREE = Planner(
    "any_degree", "sequence_parallel", AnyDegreeSettings, batch_by_batch(plan_any_degree_batch),
    whole_heads=False,
)  # fmt: skip


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
        return {"buckets": Cost(1e-3, 1e3) * self.buckets}


@dataclass(frozen=True)
class Unit:
    """Sequences on ``degree`` ranks, their time and their computation on one device."""

    degree: int
    members: tuple[int, ...]
    time_ms: float
    work_ms: float


def units(lengths: Lengths, cost: CostModel) -> list[Unit]:
    """Algorithm 1: units and their ranks, most computation first."""
    capacity = cost.tokens_per_device
    short = np.flatnonzero(lengths <= capacity)
    packed = best_fit_decreasing(lengths[short], capacity)
    parts = [*np.flatnonzero(lengths > capacity)[:, None], *(short[part] for part in packed)]

    def unit(part: Lengths) -> Unit:
        degree = ceil(int(lengths[part].sum()) / capacity)
        time_ms = cost.group_time_ms(lengths[part], degree).total_ms
        work_ms = float(cost.sequence_ms(lengths[part]).sum())
        return Unit(degree, tuple(part.tolist()), time_ms, work_ms)

    return sorted(map(unit, parts), key=lambda unit: (-unit.work_ms, unit.members))


def rounds(
    ordered: Sequence[Unit], settings: ByteScaleSettings, ranks: int
) -> tuple[list[list[Unit]], float]:
    """Algorithm 2: rounds of units, and the time of the most loaded rank."""
    buckets = _buckets(ordered, settings.buckets)
    busy_ms = np.zeros(ranks)
    filled: list[list[Unit]] = []
    turn = 0
    while any(buckets):
        slack_ms = settings.slack * busy_ms.max()
        idlest = np.argsort(busy_ms, kind="stable").tolist()
        targets = [rank for rank in idlest if busy_ms.max() - busy_ms[rank] > slack_ms] or idlest
        taken: list[Unit] = []
        while targets and any(buckets):
            first = turn if settings.balance == "pp" else 0
            order = [*range(first, len(buckets)), *range(first)]
            chosen = next(index for index in order if buckets[index])
            unit = buckets[chosen][0]
            if unit.degree > len(targets):
                if taken:
                    break
                targets = idlest
            # Ranks that share a sequence wait for the last of them.
            ranks_taken, targets = targets[: unit.degree], targets[unit.degree :]
            busy_ms[ranks_taken] = busy_ms[ranks_taken].max() + unit.time_ms
            taken.append(buckets[chosen].pop(0))
            turn = chosen + 1
        filled.append(taken)
    return filled, float(busy_ms.max())


def _buckets(ordered: Sequence[Unit], count: int) -> list[list[Unit]]:
    """Cut units into ``count`` runs of about equal computation, some perhaps empty."""
    works_ms = np.array([unit.work_ms for unit in ordered])
    ends = np.cumsum(works_ms)
    bucket = np.minimum(((ends - works_ms) / ends[-1] * count).astype(int), count - 1)
    bounds = np.searchsorted(bucket, np.arange(count + 1)).tolist()
    return [list(ordered[start:end]) for start, end in pairwise(bounds)]


def plan_byte_scale_batch(
    iteration: int, batch: SampledBatch, settings: ByteScaleSettings, devices: int, cost: CostModel
) -> SequenceParallelBatch:
    """Plan one batch; PlanError names a sequence that all devices cannot hold."""
    check_group_holds(batch, cost.tokens_per_device, devices)
    filled, waitless = rounds(units(batch.lengths, cost), settings, devices)
    assignments = [assignment_of((unit.degree, unit.members) for unit in taken) for taken in filled]
    return planned_batch(iteration, batch, assignments, cost, {"without_waiting_ms": waitless})


BYTE_SCALE = Planner(
    "byte_scale", "sequence_parallel", ByteScaleSettings, batch_by_batch(plan_byte_scale_batch),
    whole_heads=False,
)  # fmt: skip


@dataclass(frozen=True)
class WLBSettings(PlannerBase):
    """WLB-LLM's packing by work on static context parallelism."""

    planner: Literal["wlb"]
    """Which planner it is."""

    degree: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of each group; null takes the fewest that hold the longest context."""


def packed_by_work(
    lengths: Lengths, works_ms: Sequence[float], bins: int, capacity: int
) -> list[list[int]] | None:
    """Positions in each of ``bins`` bins; None where a document fits nowhere."""
    members: list[list[int]] = [[] for _ in range(bins)]
    tokens, work = np.zeros(bins, dtype=np.int64), np.zeros(bins)
    for position in np.argsort(-lengths, kind="stable").tolist():
        for index in (int(np.argmin(work)), int(np.argmin(tokens))):
            if tokens[index] + lengths[position] <= capacity:
                members[index].append(position)
                tokens[index] += lengths[position]
                work[index] += works_ms[position]
                break
        else:
            return None
    return members


def shard_imbalance(lengths: Sequence[int], degree: int) -> float:
    """Attention of the busiest rank over the mean, for documents cut as one sequence.

    Documents of these lengths follow one another; each attends only to itself.
    """
    ends = np.cumsum(lengths)
    edges = np.linspace(0, int(ends[-1]), 2 * degree + 1)
    attention = np.concatenate(([0.0], np.cumsum(np.asarray(lengths, dtype=float) ** 2)))
    document = np.minimum(np.searchsorted(ends, edges, side="right"), len(ends) - 1)
    started = np.concatenate(([0], ends))[document]
    pairs = np.diff(attention[document] + (edges - started) ** 2)
    rank_work = pairs[:degree] + pairs[: degree - 1 : -1]
    return float(rank_work.max() / rank_work.mean())


def plan_wlb_batch(
    iteration: int, batch: SampledBatch, degree: int, devices: int, cost: CostModel
) -> SequenceParallelBatch:
    """Plan one batch with groups of one degree; PlanError names a longer sequence."""
    lengths, capacity = batch.lengths, cost.tokens_per_device * degree
    check_group_holds(batch, cost.tokens_per_device, degree)
    works_ms = cost.sequence_ms(lengths).tolist()
    groups = devices // degree
    count = ceil(int(lengths.sum()) / (capacity * groups))
    while (bins := packed_by_work(lengths, works_ms, count * groups, capacity)) is None:
        count += 1
    bins.sort(key=lambda members: -sum(works_ms[member] for member in members))
    filled = [members for members in bins if members]
    side_by_side = [filled[start : start + groups] for start in range(0, len(filled), groups)]
    assignments = [assignment_of((degree, members) for members in taken) for taken in side_by_side]
    per_sequence_ms = sum(
        max(_per_sequence_ms(lengths[members], degree, cost) for members in taken)
        for taken in side_by_side
    )
    account = {"degree": degree, "per_sequence_ms": per_sequence_ms}
    return planned_batch(iteration, batch, assignments, cost, account)


def _per_sequence_ms(lengths: Lengths, degree: int, cost: CostModel) -> float:
    """Time of a group whose documents are cut for its ranks as one sequence."""
    attention = cost.quadratic_ms * float((lengths.astype(float) ** 2).sum()) / degree
    more = shard_imbalance([int(length) for length in lengths], degree) - 1
    return cost.group_time_ms(lengths, degree).total_ms + more * attention


def _wlb(settings: WLBSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    cost, longest = task.cost, task.max_length_tokens
    degree = settings.degree or cost.smallest_degree(longest)
    if degree is None:
        most = f"at most {cost.longest_tokens}, what degree {cost.degrees[-1]} holds"
        raise refused("batch.max_length_tokens", f"got {longest}", most)
    if degree not in cost.degrees:
        raise refused("planner.degree", f"got {degree}", ", ".join(map(str, cost.degrees)))
    return batch_by_batch(plan_wlb_batch)(degree, task)


WLB = Planner("wlb", "sequence_parallel", WLBSettings, _wlb)
