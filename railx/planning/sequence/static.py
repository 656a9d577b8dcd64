"""Static sequence parallelism: one degree for every group.

DeepSpeed runs it and FlexSP compares with it. Sequences are packed by
best-fit-decreasing into bins of max(fill · cap · d, longest sequence) tokens. Bins
become groups of degree d, N / d to a micro-batch in the order of the bins (FlexSP,
public code, baselines).

The last micro-batch, which bins rarely fill, is levelled in one of two ways:

* ``full`` (ours) levels it by tokens over all its groups, for any degree.
* ``published`` does what FlexSP's public code does. Each group that got no bin takes
  one sequence from the last bin that has more than one, of whichever micro-batch. Then,
  from degree 16 on and only where there was such a group, groups below the mean take
  sequences from groups before them that are above it, as they come in the batch and
  never beyond a bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Literal

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import refused
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Assignment, Lengths, best_fit_decreasing, levelled, micro_batch_ms
from railx.planning.planner import (
    Planner,
    PlannerBase,
    PlanningTask,
    check_group_holds,
    planned_batch,
)
from railx.settings import Fraction, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch

#: How the last micro-batch is levelled.
Levelling = Literal["published", "full"]
#: Longest context that FlexSP's code runs with degree 32, and the degree from which it
#: levels the last micro-batch.
_MOST_TOKENS_OF_32, _LEVELLED_FROM = 192_000, 16


@dataclass(frozen=True)
class StaticSettings(PlannerBase):
    """One degree of sequence parallelism for all groups: the baselines of FlexSP.

    Sequences are packed best-fit-decreasing.
    """

    planner: Literal["static"]
    """Which planner it is."""

    choice: Literal["longest_context", "published", "per_batch", "fixed"] = "longest_context"
    """How the degree is chosen. "longest_context" takes the smallest degree that holds
    the longest context of the batches (DeepSpeed's way). "published" takes 64 for a
    longest context over 192,000 tokens and 32 up to it, or all devices where there are
    fewer (FlexSP's public training code). "per_batch" takes the best degree of each
    batch by predicted time (FlexSP-BatchAda). "fixed" takes ``degree``."""

    degree: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of each group with the choice "fixed"; null with the others."""

    fill: Annotated[float, Fraction()] = 0.9
    """Share of what the memory of a group holds to which its bin is filled."""

    levelling: Levelling = "full"
    """How the last micro-batch is levelled: "full" by tokens over all its groups
    (ours), "published" as FlexSP's public code does."""

    def __post_init__(self) -> None:
        if (self.choice == "fixed") != (self.degree is not None):
            allowed = "a power of two" if self.choice == "fixed" else "null"
            got = f"got {self.degree}; allowed: {allowed} with choice {self.choice}"
            raise SettingsError("degree", got)


def static_degree(settings: StaticSettings, cost: CostModel, max_length_tokens: int) -> int | None:
    """The degree of every batch, or None for a choice per batch.

    PlanError where the cluster has no such degree or no degree fits the longest
    context.
    """
    if settings.choice == "fixed":
        if settings.degree not in cost.degrees:
            raise refused("planner.degree", f"got {settings.degree}", cost.degrees_in_words)
        return settings.degree
    if settings.choice == "per_batch":
        return None
    degree = cost.smallest_degree(max_length_tokens)
    longest, largest = cost.longest_tokens, cost.degrees[-1]
    if settings.choice == "published":
        published = 64 if max_length_tokens > _MOST_TOKENS_OF_32 else 32
        largest = min(published, largest)
        longest = cost.tokens_per_device * largest
        degree = largest if max_length_tokens <= longest else None
    if degree is None:
        allowed = f"at most {longest}, what degree {largest} holds"
        raise refused("batch.max_length_tokens", f"got {max_length_tokens}", allowed)
    return degree


def static_assignments(
    lengths: Lengths,
    degree: int,
    devices: int,
    cost: CostModel,
    fill: float,
    levelling: Levelling = "full",
) -> list[Assignment]:
    """Micro-batches of groups of one degree for lengths [n], which all fit it."""
    cap = cost.tokens_per_device * degree
    capacity = max(int(fill * cap), int(lengths.max()))
    bins = best_fit_decreasing(lengths, capacity)
    side_by_side = devices // degree
    if levelling == "published":
        _level_as_published(bins, lengths, side_by_side, degree, capacity)
    starts = range(0, len(bins), side_by_side)
    micro_batches = [bins[start : start + side_by_side] for start in starts]
    if levelling == "full":
        last = levelled(list(chain(*micro_batches[-1])), lengths, side_by_side)
        if all(lengths[members].sum() <= cap for members in last):
            micro_batches[-1] = last
    return [Assignment((degree,) * len(part), tuple(map(tuple, part))) for part in micro_batches]


def _level_as_published(
    bins: list[list[int]], lengths: Lengths, side_by_side: int, degree: int, capacity: int
) -> None:
    """Change the last ``side_by_side`` bins in place, as FlexSP's public code does.

    Where no bin has two sequences, that code fails; here the groups stay empty.
    """
    packed = len(bins)
    for _ in range(-packed % side_by_side):
        giver = next((members for members in reversed(bins[:packed]) if len(members) > 1), None)
        if giver is None:
            return
        first = min(giver)
        giver.remove(first)
        bins.append([first])
    if degree < _LEVELLED_FROM or len(bins) == packed:
        return
    last = bins[-side_by_side:]
    mean = sum(int(lengths[members].sum()) for members in last) // side_by_side
    for index, taker in enumerate(last):
        for giver in last[:index]:
            for position in sorted(giver):
                taken, given = int(lengths[taker].sum()), int(lengths[giver].sum())
                if taken >= mean or given <= mean or len(giver) == 1:
                    break
                if taken + lengths[position] <= capacity:
                    giver.remove(position)
                    taker.append(position)


def best_static(
    lengths: Lengths, devices: int, cost: CostModel, fill: float, levelling: Levelling = "full"
) -> tuple[int, list[Assignment]]:
    """The best degree of this batch by predicted time (BatchAda), its micro-batches."""
    longest = int(lengths.max())
    candidates = [
        (degree, static_assignments(lengths, degree, devices, cost, fill, levelling))
        for degree in cost.degrees
        if longest <= cost.tokens_per_device * degree
    ]
    return min(candidates, key=lambda item: (total_ms(item[1], lengths, cost), item[0]))


def total_ms(assignments: list[Assignment], lengths: Lengths, cost: CostModel) -> float:
    """Predicted time of micro-batches one after another."""
    return sum(micro_batch_ms(assignment, lengths, cost) for assignment in assignments)


def plan_static_batch(
    iteration: int,
    batch: SampledBatch,
    degree: int | None,
    devices: int,
    cost: CostModel,
    fill: float,
    levelling: Levelling = "full",
) -> SequenceParallelBatch:
    """Plan one batch; ``degree`` None takes the best of this batch.

    PlanError names a sequence that fits no group.
    """
    largest = degree or cost.degrees[-1]
    check_group_holds(batch, cost.tokens_per_device, largest)
    if degree is None:
        degree, assignments = best_static(batch.lengths, devices, cost, fill, levelling)
    else:
        assignments = static_assignments(batch.lengths, degree, devices, cost, fill, levelling)
    return planned_batch(iteration, batch, assignments, cost, {"degree": degree})


def _plan(settings: StaticSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    degree = static_degree(settings, task.cost, task.max_length_tokens)
    plan = partial(plan_static_batch, degree=degree, devices=task.devices, cost=task.cost)
    return task.planned(partial(plan, fill=settings.fill, levelling=settings.levelling))


STATIC = Planner("static", "sequence_parallel", StaticSettings, _plan)
