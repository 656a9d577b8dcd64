"""Megatron's dynamic context parallelism: groups as large as each sequence needs.

The rules are those of ``BalancedCPScheduler`` in Megatron-LM's public code. The
schedules here equal its own on the inputs of tests/planning/golden, and so do these
habits of it:

* A sequence of s tokens needs the least power of two of ranks that hold it, at most
  ``tokens_per_rank`` each. Its work is s² over that number: linear layers and exchange
  count nothing.
* Sequences, longest first, are cut into buckets of equal work. There may be more
  buckets than sizes of groups; one is closed beyond 1.1 times its share, or early when
  few sequences are left.
* A schedule takes the head of the first bucket that finds a place: free ranks, else the
  least loaded group of just its size. Once a sequence has needed fewer ranks than the
  first of the schedule, the schedule ends as soon as all ranks are within 5 % of the
  most loaded; ranks that are still free make that impossible.
* Then the last sequence of the most loaded group leaves as long as that narrows the
  span. It comes last in the next schedule, out of order.
* Groups of the smallest size then take twice the ranks, one after another, until no
  rank is free. Where fewer are free than that needs (device numbers that are no powers
  of two) the public code fails; here they stay idle.

In that runtime a group runs the sequences of a schedule one after another and never
waits; plans cannot express that. ``passes`` chooses how they run here: "packed" puts as
many into one pass as memory holds, in order (ours, and better: each pass costs its
constant), "alone" runs each by itself, as published. The passes of all groups are then
micro-batches, the first of each in the first; ``without_waiting_ms``
in the solver's account is the time without that waiting. Ring attention exchanges keys
and values where the common cost model has all-to-alls; predictions take the latter at
the same degree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Annotated, Literal

from railx.performance.sequence_cost import CostModel
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Lengths
from railx.planning.planner import (
    Planner,
    PlannerBase,
    PlanningTask,
    assignment_of,
    batch_by_batch,
    check_group_holds,
    planned_batch,
)
from railx.settings import AtLeast, SettingsError
from railx.workload.batches import SampledBatch

#: A bucket is closed at this multiple of its share of the work.
_BUCKET_SLACK = 1.1
#: Ranks are in balance when the least loaded is this close to the most loaded.
_BALANCED = 0.05


@dataclass(frozen=True)
class DynamicCPSettings(PlannerBase):
    """Megatron's dynamic context parallelism: a power of two of ranks per sequence."""

    planner: Literal["dynamic_cp"]
    """Which planner it is."""

    tokens_per_rank: Annotated[int, AtLeast(1)] | None = None
    """Most tokens of a sequence on one rank (max-seqlen-per-cp-rank); null takes what a
    device holds."""

    passes: Literal["packed", "alone"] = "packed"
    """What a group does with its sequences: "packed" runs as many together as memory
    holds (ours), "alone" one after another (as published)."""


@dataclass
class ScheduledGroup:
    """Ranks side by side and their sequences in order."""

    ranks: int
    members: list[int] = field(default_factory=list)
    load: float = 0.0


def balanced_schedules(
    lengths: Sequence[int], tokens_per_rank: int, ranks: int
) -> list[list[ScheduledGroup]]:
    """Schedules for sequences of these lengths, one after another.

    Each lists the groups that run side by side on ``ranks`` ranks, by the positions of
    their sequences. Every sequence must fit all ranks.
    """
    waiting = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    schedules = []
    while waiting:
        schedule = _Schedule(lengths, tokens_per_rank, ranks)
        waiting = schedule.fill(waiting)
        schedule.spread()
        schedules.append(schedule.groups)
    return schedules


class _Schedule:
    """A schedule under construction; ``needed`` ranks and ``work`` are by position."""

    def __init__(self, lengths: Sequence[int], tokens_per_rank: int, ranks: int) -> None:
        # The least power of two of ranks that fit a sequence.
        self.needed = [1 << (-(-length // tokens_per_rank) - 1).bit_length() for length in lengths]
        self.work = [length**2 / width for length, width in zip(lengths, self.needed, strict=True)]
        self.ranks = ranks
        self.groups: list[ScheduledGroup] = []

    @property
    def free(self) -> int:
        return self.ranks - sum(group.ranks for group in self.groups)

    def fill(self, waiting: Sequence[int]) -> list[int]:
        """Place sequences; return the rest, in the order of the next schedule."""
        buckets = self._buckets(waiting)
        first, checks = None, False
        while buckets:
            choice = self._choose(buckets)
            if choice is None:
                break
            bucket, group = choice
            position = bucket.pop(0)
            group.members.append(position)
            group.load += self.work[position]
            while buckets and not buckets[0]:
                buckets.pop(0)
            first = first or group.ranks
            checks = checks or group.ranks < first
            if checks and buckets and self._is_balanced():
                break
        left = [position for bucket in buckets for position in bucket]
        return left + self._trim()

    def spread(self) -> None:
        """Distribute free ranks over the smallest groups."""
        while self.free:
            smallest = min(self.groups, key=lambda group: group.ranks)
            wider = min(2 * smallest.ranks, self.ranks)
            if wider - smallest.ranks > self.free:
                return
            smallest.ranks = wider

    def _buckets(self, waiting: Sequence[int]) -> list[list[int]]:
        """Cut into runs of equal work, one for each size of group or more."""
        sizes = len({self.needed[position] for position in waiting})
        share = sum(self.work[position] for position in waiting) / sizes
        starts, load = [0], 0.0
        for index, position in enumerate(waiting):
            work, closed = self.work[position], len(starts) - 1
            # The remaining work counts closed buckets twice, as in the public code.
            few = len(waiting) - index <= sizes - 2 * closed
            if index > starts[-1] and (load + work > _BUCKET_SLACK * share or few):
                starts.append(index)
                load = 0.0
            load += work
        return [list(waiting[start:end]) for start, end in pairwise([*starts, len(waiting)])]

    def _choose(self, buckets: list[list[int]]) -> tuple[list[int], ScheduledGroup] | None:
        """The first bucket whose head finds a group, and that group."""
        for bucket in filter(None, buckets):
            needed = self.needed[bucket[0]]
            if self.free >= needed:
                self.groups.append(ScheduledGroup(needed))
                return bucket, self.groups[-1]
            alike = [group for group in self.groups if group.ranks == needed]
            if alike:
                return bucket, min(alike, key=lambda group: group.load)
        return None

    def _span(self) -> tuple[float, float]:
        """Load of the least and of the most loaded rank."""
        loads = [group.load for group in self.groups] + [0.0] * bool(self.free)
        return min(loads), max(loads)

    def _is_balanced(self) -> bool:
        lowest, most = self._span()
        return most - lowest <= _BALANCED * most

    def _trim(self) -> list[int]:
        """Take last sequences from the most loaded group while the span narrows."""
        taken: list[int] = []
        while not self.free and not self._is_balanced():
            lowest, most = self._span()
            group = next(candidate for candidate in self.groups if candidate.load == most)
            if len(group.members) == 1:
                break
            work = self.work[group.members[-1]]
            group.load -= work
            lower, upper = self._span()
            if upper - lower >= most - lowest:
                group.load += work
                break
            taken.append(group.members.pop())
        return taken


def packed_in_order(positions: Sequence[int], lengths: Lengths, capacity: int) -> list[list[int]]:
    """Cut positions, in order, into passes of at most ``capacity`` tokens.

    Each position must fit alone.
    """
    passes: list[list[int]] = []
    room = 0
    for position in positions:
        if not passes or lengths[position] > room:
            passes.append([])
            room = capacity
        passes[-1].append(position)
        room -= int(lengths[position])
    return passes


def plan_dynamic_cp_batch(
    iteration: int, batch: SampledBatch, settings: DynamicCPSettings, devices: int, cost: CostModel
) -> SequenceParallelBatch:
    """Plan one batch; PlanError names a sequence that all devices cannot hold."""
    tokens_per_rank = settings.tokens_per_rank or cost.tokens_per_device
    largest = 1 << (devices.bit_length() - 1)
    check_group_holds(batch, tokens_per_rank, largest)
    lengths: Lengths = batch.lengths
    assignments, waitless = [], 0.0
    for schedule in balanced_schedules(lengths.tolist(), tokens_per_rank, devices):
        passes = [
            packed_in_order(group.members, lengths, group.ranks * cost.tokens_per_device)
            if settings.passes == "packed"
            else [[member] for member in group.members]
            for group in schedule
        ]
        # The first passes of all groups run together, then the second ones.
        assignments += [
            assignment_of((g.ranks, part) for g, part in zip(schedule, parts, strict=True) if part)
            for parts in zip_longest(*passes, fillvalue=())
        ]
        waitless += max(
            sum(cost.group_time_ms(lengths[part], group.ranks).total_ms for part in parts)
            for group, parts in zip(schedule, passes, strict=True)
        )
    return planned_batch(iteration, batch, assignments, cost, {"without_waiting_ms": waitless})


def _plan(settings: DynamicCPSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    tokens_per_rank, most = settings.tokens_per_rank, task.cost.tokens_per_device
    if tokens_per_rank is not None and tokens_per_rank > most:
        got = f"got {tokens_per_rank}; allowed: at most {most}, what a device holds"
        raise SettingsError("planner.tokens_per_rank", got)
    return batch_by_batch(plan_dynamic_cp_batch)(settings, task)


DYNAMIC_CP = Planner("dynamic_cp", "sequence_parallel", DynamicCPSettings, _plan, whole_heads=False)
