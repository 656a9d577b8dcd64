"""Static sequence parallelism: one degree for every group.

DeepSpeed runs it and FlexSP compares with it. Sequences are packed by
best-fit-decreasing into bins of max(fill · cap · d, longest sequence) tokens. Bins
become groups of degree d, N / d to a micro-batch in the order of the bins, and the last
micro-batch is levelled by tokens over its groups (FlexSP, public code, baselines).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.planning.groups import (
    Assignment,
    Lengths,
    best_fit_decreasing,
    check_lengths_fit,
    levelled,
    micro_batch,
    micro_batch_ms,
)
from railx.planning.plan import PlanError, SequenceParallelBatch
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.settings import Fraction, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch
from railx.workload.cost import CostModel

__all__ = [
    "STATIC",
    "StaticSettings",
    "best_static",
    "plan_static_batch",
    "static_assignments",
    "static_degree",
    "total_ms",
]


@dataclass(frozen=True)
class StaticSettings(PlannerBase):
    """One degree of sequence parallelism for all groups, packed best-fit-decreasing.

    These are the baselines of FlexSP.
    """

    planner: Literal["static"]
    """Which planner it is."""

    choice: Literal["longest_context", "per_batch", "fixed"]
    """How the degree is chosen. "longest_context" takes the smallest degree that holds
    the longest context of the batches (DeepSpeed's way). "per_batch" takes the best
    degree of each batch by predicted time (FlexSP-BatchAda). "fixed" takes
    ``degree``."""

    degree: Annotated[int, PowerOfTwo()] | None
    """Ranks of each group with the choice "fixed"; null with the others."""

    fill: Annotated[float, Fraction()]
    """Share of what the memory of a group holds to which its bin is filled."""

    def __post_init__(self) -> None:
        if (self.choice == "fixed") != (self.degree is not None):
            allowed = "a power of two" if self.choice == "fixed" else "null"
            raise SettingsError(
                "degree", f"got {self.degree}; allowed: {allowed} with choice {self.choice}"
            )


def static_degree(settings: StaticSettings, cost: CostModel, max_length_tokens: int) -> int | None:
    """The degree of every batch, None where it is chosen batch by batch.

    PlanError where the cluster has no such degree or no degree holds the longest
    context.
    """
    if settings.choice == "fixed":
        if settings.degree not in cost.degrees:
            raise PlanError(
                f"planner.degree: got {settings.degree}; allowed: {cost.degrees_in_words}"
            )
        return settings.degree
    if settings.choice == "per_batch":
        return None
    degree = cost.smallest_degree(max_length_tokens)
    if degree is None:
        longest = cost.longest_tokens
        raise PlanError(
            f"batch.max_length_tokens: got {max_length_tokens}; allowed: at most {longest}, what"
            f" degree {cost.degrees[-1]} holds"
        )
    return degree


def static_assignments(
    lengths: Lengths, degree: int, devices: int, cost: CostModel, fill: float
) -> list[Assignment]:
    """Micro-batches of groups of one degree for lengths [n].

    Every sequence must fit the degree.
    """
    cap = cost.tokens_per_device * degree
    bins = best_fit_decreasing(lengths, max(int(fill * cap), int(lengths.max())))
    per_micro_batch = devices // degree
    micro_batches = [
        bins[start : start + per_micro_batch] for start in range(0, len(bins), per_micro_batch)
    ]
    last = levelled(
        [member for members in micro_batches[-1] for member in members], lengths, per_micro_batch
    )
    if all(lengths[members].sum() <= cap for members in last):
        micro_batches[-1] = last
    return [
        Assignment((degree,) * len(groups), tuple(map(tuple, groups))) for groups in micro_batches
    ]


def best_static(
    lengths: Lengths, devices: int, cost: CostModel, fill: float, smallest_degree: int = 1
) -> tuple[int, list[Assignment]]:
    """The best degree for this batch and its micro-batches (FlexSP-BatchAda).

    Best is the least predicted time.
    """
    longest = int(lengths.max())
    candidates = [
        (degree, static_assignments(lengths, degree, devices, cost, fill))
        for degree in cost.degrees
        if degree >= smallest_degree and longest <= cost.tokens_per_device * degree
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
) -> SequenceParallelBatch:
    """Plan one batch; ``degree`` None takes the best of this batch.

    PlanError names a sequence that fits no group.
    """
    largest = degree or cost.degrees[-1]
    limit = cost.tokens_per_device * largest
    check_lengths_fit(batch.sequences, batch.lengths, limit, f"a group of degree {largest}")
    if degree is None:
        degree, assignments = best_static(batch.lengths, devices, cost, fill)
    else:
        assignments = static_assignments(batch.lengths, degree, devices, cost, fill)
    micro_batches = tuple(
        micro_batch(assignment, batch.sequences, batch.lengths, cost) for assignment in assignments
    )
    return SequenceParallelBatch(iteration, micro_batches, {"degree": degree})


def _plan(settings: StaticSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    degree = static_degree(settings, task.cost, task.max_length_tokens)
    return tuple(
        plan_static_batch(index, batch, degree, task.devices, task.cost, settings.fill)
        for index, batch in enumerate(task.batches)
    )


#: The entry of the list of planners.
STATIC = Planner("static", "sequence_parallel", StaticSettings, _plan)
