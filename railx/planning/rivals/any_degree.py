"""Groups of any number of ranks, in the spirit of FCP.

FCP (arXiv 2602.21788) plans groups whose sizes need not be powers of two, in polynomial
time. Only that is taken from it: the planner here is ours, not the paper's, and its
results are not FCP's.

Sequences, longest first, are cut into M micro-batches of about equal tokens, as
FlexSP's blaster does, for M from the fewest that memory allows on. In a micro-batch the
least time T that a greedy filling meets is found by bisection: the longest sequence
left opens a group of the fewest ranks that hold it within T, and the group takes the
longest others that still fit memory and T. Ranks that are left over go to the slowest
group, as long as that makes it faster. Bisection, filling and cutting are all
polynomial: O(M n log n) for each of a fixed number of T.

Ring attention takes any number of ranks, Ulysses only divisors of the heads.
Predictions are the common cost model's, all-to-alls at the same degree; a degree that
the cluster's table lacks has the bandwidth of the next larger one.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt
from typing import Annotated, Literal

from railx.effort import Cost, Costs
from railx.performance.sequence_cost import CostModel
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Assignment, Lengths, check_lengths_fit, micro_batch
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.sequence.blaster import cut_batch
from railx.planning.sequence.static import total_ms
from railx.progress import counted
from railx.settings import AtLeast
from railx.workload.batches import SampledBatch

__all__ = ["ANY_DEGREE", "AnyDegreeSettings", "plan_any_degree_batch", "with_every_degree"]

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
        return {
            "trials": Cost(0.1) * self.trials,
        }


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
    limit = cost.tokens_per_device * devices
    check_lengths_fit(batch.sequences, lengths, limit, f"a group of degree {devices}")
    fewest = ceil(int(lengths.sum()) / (cost.tokens_per_device * devices))
    plans: list[list[Assignment]] = []
    tried = 0
    for count in range(fewest, len(lengths) + 1):
        tried += 1
        if tried > settings.trials and plans:
            break
        assignments = _plan_of(lengths, count, devices, cost)
        if assignments is not None:
            plans.append(assignments)
    best = min(plans, key=lambda plan: total_ms(plan, lengths, cost))
    micro_batches = tuple(
        micro_batch(assignment, batch.sequences, lengths, cost) for assignment in best
    )
    return SequenceParallelBatch(iteration, micro_batches, {"tried": tried})


def _plan_of(
    lengths: Lengths, count: int, devices: int, cost: CostModel
) -> list[Assignment] | None:
    """A plan of ``count`` micro-batches; None where one of them does not fit."""
    assignments = []
    for run in cut_batch(lengths, count, "sorted"):
        groups = _bisected([int(position) for position in run], lengths, devices, cost)
        if groups is None:
            return None
        _spread(groups, devices, cost)
        assignments.append(
            Assignment(
                tuple(group.degree for group in groups),
                tuple(tuple(group.members) for group in groups),
            )
        )
    return assignments


def _bisected(
    run: Sequence[int], lengths: Lengths, devices: int, cost: CostModel
) -> list[_Open] | None:
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
    groups, free = [], devices
    while left:
        length, negated = left.pop()
        work = _work_ms(length, cost)
        degree = _smallest_degree(length, work, free, cost, limit_ms)
        if degree is None:
            return None
        group = _Open(degree, [-negated], length, work)
        free -= degree
        while left:
            most = _longest_that_fits(group, cost, limit_ms)
            index = bisect_right(left, (most, 1)) - 1
            if index < 0:
                break
            length, negated = left.pop(index)
            group.members.append(-negated)
            group.tokens += length
            group.work_ms += _work_ms(length, cost)
        groups.append(group)
    return groups


def _smallest_degree(
    length: int, work_ms: float, free: int, cost: CostModel, limit_ms: float
) -> int | None:
    for degree in range(ceil(length / cost.tokens_per_device), free + 1):
        exchange = length * cost.all_to_all_ms[degree] + cost.latency_for(degree)
        time = work_ms / degree + cost.constant_ms + exchange
        if time <= limit_ms:
            return degree
    return None


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
    # The positive root of quadratic s² + linear s = left, in a form without division
    # by a quadratic term that may be 0.
    most = 2 * left / (linear + sqrt(linear**2 + 4 * quadratic * left))
    return min(room, int(most))


def _spread(groups: list[_Open], devices: int, cost: CostModel) -> None:
    """Give the remaining ranks to the slowest group while it gets faster."""
    free = devices - sum(group.degree for group in groups)
    waiting: list[tuple[float, int]] = []
    for index, group in enumerate(groups):
        insort(waiting, (_time_ms(group, cost), index))
    while free:
        slowest_ms, index = waiting.pop()
        group = groups[index]
        for more in range(1, free + 1):
            wider = replace(group, degree=group.degree + more)
            if _time_ms(wider, cost) < slowest_ms:
                groups[index] = wider
                free -= more
                insort(waiting, (_time_ms(wider, cost), index))
                break
        else:
            return


def _time_ms(group: _Open, cost: CostModel) -> float:
    exchange = group.tokens * cost.all_to_all_ms[group.degree] + cost.latency_for(group.degree)
    return group.work_ms / group.degree + cost.constant_ms + exchange


def _work_ms(length: int, cost: CostModel) -> float:
    return cost.quadratic_ms * length**2 + cost.linear_ms * length


def _plan(settings: AnyDegreeSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    return tuple(
        plan_any_degree_batch(index, batch, settings, task.devices, task.cost)
        for index, batch in enumerate(counted(task.batches, "batches"))
    )


#: The entry of the list of planners.
ANY_DEGREE = Planner("any_degree", "sequence_parallel", AnyDegreeSettings, _plan, whole_heads=False)
