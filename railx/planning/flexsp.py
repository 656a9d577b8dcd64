"""FlexSP: sequence-parallel groups of different degrees for each micro-batch.

One batch: cut it into M micro-batches (``blaster``), find for each the mix of degrees
and the sequences of each group (``mixes``, then ``milp``), and keep the M with the
least total, out of a few from the least that memory allows. Static plans are in the
search space and stand for election too, so that the result is never predicted slower
than they are. The constant b1 is paid once per micro-batch.

Deviations from the paper: list scheduling with moves and swaps comes before the integer
programme, bounds it from above and narrows its virtual groups to the degrees of the
best few mixes. The programme runs on trials within the gap of the best alone. Degree 1
is allowed (a setting). Where none of the first trials fits, M grows until one does. The
result is deterministic unless the solver's time guard strikes, which the plan records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.planning.blaster import bucket_lengths, cut_batch
from railx.planning.groups import (
    Assignment,
    Lengths,
    check_lengths_fit,
    micro_batch,
    micro_batch_ms,
)
from railx.planning.mixes import lower_bound_ms, search_mix
from railx.planning.plan import PlanError, SequenceParallelBatch
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.static import best_static, total_ms
from railx.settings import AtLeast, Fraction, NonNegative, Positive
from railx.workload.batches import SampledBatch
from railx.workload.cost import CostModel

__all__ = ["FLEXSP", "FlexSPSettings", "plan_flexsp_batch"]


@dataclass(frozen=True)
class FlexSPSettings(PlannerBase):
    """Groups of different degrees, different in each micro-batch (FlexSP).

    The search over mixes of degrees comes first. Where it does not get within
    ``relative_gap`` of a lower bound, the solver takes over. All limits are
    deterministic but ``time_guard_s``; the plan records where that one struck.
    """

    planner: Literal["flexsp"]
    """Which planner it is."""

    smallest_degree: Literal[1, 2]
    """The least ranks of a group. The public code leaves out 1; the paper's case study
    uses it."""

    order: Literal["sorted", "given"]
    """Whether a batch is cut into micro-batches after sorting by length, or as it
    comes."""

    micro_batch_trials: Annotated[int, AtLeast(1)]
    """Numbers of micro-batches to try, from the least that memory allows."""

    bucketing: Literal["least_error", "equal_width"]
    """How lengths are put into buckets for the solver: with the least rounding error,
    or with equal width."""

    buckets: Annotated[int, AtLeast(1)]
    """Buckets of lengths at first."""

    relative_gap: Annotated[float, NonNegative()]
    """Share above a lower bound at which the search and the solver stop."""

    largest_programme: Annotated[int, NonNegative()]
    """Most counts in a programme for the solver; larger ones are left to the search
    (0: all are)."""

    node_limit: Annotated[int, AtLeast(0)]
    """Most nodes of the solver's search tree."""

    time_guard_s: Annotated[float, Positive()]
    """Seconds after which the solver gives up one micro-batch, for pathological
    cases."""

    static_fill: Annotated[float, Fraction()]
    """``fill`` of the static plans that are candidates too."""


@dataclass(frozen=True)
class _Part:
    """One micro-batch on its way.

    Positions in the batch, a bound and the best assignment (of positions in the part).
    """

    positions: Lengths
    lengths: Lengths
    bound_ms: float
    time_ms: float
    assignment: Assignment
    groups: tuple[int, ...]
    ended_by: str


@dataclass(frozen=True)
class _Context:
    settings: FlexSPSettings
    devices: int
    degrees: tuple[int, ...]
    cost: CostModel
    seed: int

    @property
    def cap(self) -> int:
        """Tokens that all devices hold together."""
        return self.cost.tokens_per_device * self.devices


def plan_flexsp_batch(
    iteration: int,
    batch: SampledBatch,
    settings: FlexSPSettings,
    devices: int,
    cost: CostModel,
    seed: int = 0,
) -> SequenceParallelBatch:
    """Plan one batch.

    ``solver`` of the result: predicted totals by number of micro-batches, which
    candidate won, a lower bound on its micro-batches, and how many of them were ended
    by what. PlanError names a sequence that fits no group.
    """
    degrees = tuple(degree for degree in cost.degrees if degree >= settings.smallest_degree)
    if not degrees:
        raise PlanError(
            f"planner.smallest_degree: got {settings.smallest_degree}; allowed: 1, as the cluster"
            " has no larger degree"
        )
    context = _Context(settings, devices, degrees, cost, seed)
    check_lengths_fit(
        batch.sequences,
        batch.lengths,
        cost.tokens_per_device * degrees[-1],
        f"a group of degree {degrees[-1]}",
    )
    static_degree, static = best_static(
        batch.lengths, devices, cost, settings.static_fill, settings.smallest_degree
    )
    static_ms = total_ms(static, batch.lengths, cost)
    trials = _trials(batch.lengths, context)
    report: dict[str, Any] = {
        "predicted_ms_by_micro_batches": {str(len(parts)): _total(parts) for parts in trials},
        "predicted_ms_static": static_ms,
    }
    if trials:
        parts = _polished(trials, context)
        report |= {
            "lower_bound_ms": sum(part.bound_ms for part in parts),
            "ended_by": dict(Counter(part.ended_by for part in parts)),
        }
        if _total(parts) <= static_ms:
            report["chosen"] = "flexsp"
            made = [
                (part.assignment, batch.sequences[part.positions], part.lengths) for part in parts
            ]
            return SequenceParallelBatch(
                iteration, tuple(micro_batch(*item, cost) for item in made), report
            )
    report |= {"chosen": "static", "degree": static_degree}
    return SequenceParallelBatch(
        iteration,
        tuple(micro_batch(item, batch.sequences, batch.lengths, cost) for item in static),
        report,
    )


def _trials(lengths: Lengths, context: _Context) -> list[list[_Part]]:
    """Searched micro-batches for the first numbers of them that work, in rising order.

    A number is passed over where its lower bound is no better than a total found
    before.
    """
    found: list[list[_Part]] = []
    best = math.inf
    for tried, cut in enumerate(_cuts(lengths, context), start=1):
        bounds = [
            lower_bound_ms(lengths[positions], context.devices, context.degrees, context.cost)
            for positions in cut
        ]
        if sum(bounds) < best:
            parts = _search(lengths, cut, bounds, context)
            if parts is not None:
                found.append(parts)
                best = min(best, _total(parts))
        if tried >= context.settings.micro_batch_trials and found:
            break
    return found


def _cuts(lengths: Lengths, context: _Context) -> Iterator[list[Lengths]]:
    """Cuts into rising numbers of micro-batches whose tokens the cluster holds."""
    for number in range(math.ceil(lengths.sum() / context.cap), len(lengths) + 1):
        cut = cut_batch(lengths, number, context.settings.order)
        if max(int(lengths[positions].sum()) for positions in cut) <= context.cap:
            yield cut


def _search(
    lengths: Lengths, cut: list[Lengths], bounds: list[float], context: _Context
) -> list[_Part] | None:
    """Each micro-batch of a cut searched.

    None where one does not fit memory.
    """
    parts = []
    for positions, bound in zip(cut, bounds, strict=True):
        good_enough = bound * (1 + context.settings.relative_gap)
        own = lengths[positions]
        result = search_mix(own, context.devices, context.degrees, context.cost, good_enough)
        if result is None:
            return None
        ended = "bound" if result.time_ms <= good_enough else "search"
        parts.append(
            _Part(positions, own, bound, result.time_ms, result.assignment, result.groups, ended)
        )
    return parts


def _polished(trials: list[list[_Part]], context: _Context) -> list[_Part]:
    """The best trial after the solver has worked on those close to the best."""
    limit = min(map(_total, trials)) * (1 + context.settings.relative_gap)
    solved = [
        [_solved(part, context) for part in parts] for parts in trials if _total(parts) <= limit
    ]
    return min(solved, key=_total)


def _solved(part: _Part, context: _Context) -> _Part:
    """The micro-batch after the solver.

    Unchanged where it is good enough already or its programme is too large.
    """
    # The solver is large: only who plans loads it.
    from railx.planning.milp import SolverLimits, solve_micro_batch, virtual_groups

    settings, cost = context.settings, context.cost
    if part.ended_by == "bound" or settings.largest_programme == 0:
        return part
    allowed_tokens = (int(part.lengths.sum()) + context.cap) // 2
    buckets = bucket_lengths(part.lengths, settings.buckets, allowed_tokens, settings.bucketing)
    pruned = Counter(virtual_groups(part.lengths, context.devices, context.degrees, cost))
    groups = tuple(
        sorted((Counter(part.groups) & pruned | Counter(part.assignment.degrees)).elements())
    )
    if len(buckets) * len(groups) > settings.largest_programme:
        return _replace(part, part.time_ms, part.assignment, "too_large")
    limits = SolverLimits(
        settings.relative_gap, settings.node_limit, settings.time_guard_s, context.seed
    )
    solution = solve_micro_batch(
        part.lengths, buckets, groups, context.devices, cost, limits, part.assignment
    )
    if solution.assignment is None:
        return _replace(part, part.time_ms, part.assignment, solution.ended_by)
    time_ms = micro_batch_ms(solution.assignment, part.lengths, cost)
    better = time_ms < part.time_ms
    return _replace(
        part,
        time_ms if better else part.time_ms,
        solution.assignment if better else part.assignment,
        solution.ended_by,
    )


def _replace(part: _Part, time_ms: float, assignment: Assignment, ended_by: str) -> _Part:
    return _Part(
        part.positions, part.lengths, part.bound_ms, time_ms, assignment, part.groups, ended_by
    )


def _total(parts: list[_Part]) -> float:
    return sum(part.time_ms for part in parts)


def _plan(settings: FlexSPSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    return tuple(
        plan_flexsp_batch(index, batch, settings, task.devices, task.cost, task.seed)
        for index, batch in enumerate(task.batches)
    )


#: The entry of the list of planners.
FLEXSP = Planner("flexsp", "sequence_parallel", FlexSPSettings, _plan)
