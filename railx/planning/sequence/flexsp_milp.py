"""FlexSP's planner as it is published.

For each number M of micro-batches, from the least that memory allows on: cut the batch
into M runs with the most tokens of a run least (``blaster``), round the lengths of each
run up to buckets, solve its bucketed integer programme over all virtual groups
(``programme``, ``solver``), and draw the sequences of each group from the buckets. The
M with the least total of predicted times, at true lengths, is the plan. A programme
without a solution (none exists, or none was found within the limits) drops its M.

Paper and public code differ in details, which settings choose: whether groups of one
rank are allowed, and whether the groups of a micro-batch take all devices. Variants
without sorting, with naive buckets and with none are the paper's ablations. ``flexsp``
is a planner of our own.

Numbers of micro-batches that cannot win are not solved: where the times of those solved
so far and a bound on the others reach the least total found before. That changes what
is solved, never the plan.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from railx.effort import Cost, Costs
from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import (
    Assignment,
    Lengths,
    check_lengths_fit,
    micro_batch,
    micro_batch_ms,
)
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.sequence.blaster import bucket_lengths, cut_batch, fewest_micro_batches
from railx.planning.sequence.programme import (
    Programme,
    build_programme,
    hand_out,
    micro_batch_bound_ms,
)
from railx.planning.sequence.solver import Solved, SolverLimits, SolverPool
from railx.progress import counted
from railx.settings import AtLeast, Positive
from railx.workload.batches import SampledBatch

__all__ = ["FLEXSP_MILP", "FlexSPMilpSettings", "bucketed", "plan_milp_batch"]

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FlexSPMilpSettings(PlannerBase):
    """Groups of different degrees by FlexSP's published planner."""

    planner: Literal["flexsp_milp"]
    """Which planner it is."""

    smallest_degree: Literal[1, 2] = 1
    """The least ranks of a group. The public code leaves out 1; the paper's case study
    uses it."""

    devices: Literal["all", "at_most"] = "at_most"
    """Whether the groups of a micro-batch take all devices (public code) or at most all
    (paper)."""

    order: Literal["sorted", "given"] = "sorted"
    """Whether a batch is cut into micro-batches after sorting by length, or as it
    comes."""

    micro_batch_trials: Annotated[int, AtLeast(1)] = 5
    """Numbers of micro-batches to try, from the least that memory allows."""

    bucketing: Literal["least_error", "equal_width", "none"] = "least_error"
    """How lengths are rounded up: to buckets with the least rounding error, to buckets
    of equal width, or not at all."""

    buckets: Annotated[int, AtLeast(1)] = 16
    """Buckets of lengths at first; those of least error become more until memory holds
    the rounded-up tokens."""

    work_limit: Annotated[int, AtLeast(1)] | None = 30000
    """Simplex iterations after which the solver ends a programme with what it has; null
    is no limit."""

    time_limit_s: Annotated[float, Positive()] | None = None
    """Processor seconds after which the solver ends a programme with what it has, which
    the plan records; null is no limit."""

    processes: Annotated[int, AtLeast(1)] = 1
    """Programmes that are solved side by side. The plan is the same with any number."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {
            "micro_batch_trials": Cost(1) * self.micro_batch_trials,
            "processes": Cost(bytes=2**26) * self.processes,
            "buckets": Cost(0.1, 1e4) * self.buckets,
        }


@dataclass(frozen=True)
class _Context:
    settings: FlexSPMilpSettings
    devices: int
    degrees: tuple[int, ...]
    cost: CostModel
    seed: int

    @property
    def cap(self) -> int:
        """Tokens that all devices hold together."""
        return self.cost.tokens_per_device * self.devices

    @property
    def limits(self) -> SolverLimits:
        return SolverLimits(self.settings.work_limit, self.settings.time_limit_s, self.seed)


@dataclass(frozen=True)
class _Part:
    """One solved micro-batch: positions in the batch, its groups and its time."""

    positions: Positions
    lengths: Lengths
    assignment: Assignment
    time_ms: float
    rounded_ms: float


@dataclass(frozen=True)
class _Trial:
    """A number of micro-batches; ``parts`` is empty without a plan."""

    micro_batches: int
    parts: tuple[_Part, ...]
    solved: tuple[Solved, ...]
    ended_by: str

    @property
    def total_ms(self) -> float:
        return sum(part.time_ms for part in self.parts) if self.parts else math.inf

    def account(self) -> dict[str, Any]:
        """The trial's account in the plan file."""
        return {
            "micro_batches": self.micro_batches,
            "ended_by": self.ended_by,
            "predicted_ms": self.total_ms if self.parts else None,
            "rounded_up_ms": sum(part.rounded_ms for part in self.parts) if self.parts else None,
            "programmes": dict(Counter(solved.ended_by for solved in self.solved)),
            "effort": sum(solved.work for solved in self.solved),
        }


def plan_milp_batch(
    iteration: int,
    batch: SampledBatch,
    settings: FlexSPMilpSettings,
    devices: int,
    cost: CostModel,
    pool: SolverPool,
    seed: int = 0,
) -> SequenceParallelBatch:
    """Plan one batch as FlexSP does, with the solvers of ``pool``.

    ``solver`` of the result lists the numbers of micro-batches with their predicted
    totals (ms, at true lengths and rounded up) and what ended their programmes;
    ``cut_short`` is true where a time limit ended one. PlanError for a sequence that
    fits no group, or where no number of micro-batches that was tried has a plan.
    """
    degrees = tuple(
        degree
        for degree in cost.degrees
        if settings.smallest_degree <= degree <= devices and degree & (degree - 1) == 0
    )
    if not degrees:
        raise PlanError(
            f"planner.smallest_degree: got {settings.smallest_degree}; allowed: 1, as the cluster"
            " has no larger degree"
        )
    if settings.devices == "all" and devices % degrees[0]:
        raise PlanError(
            f"planner.devices: got all; allowed: at_most, as groups of {degrees[0]} ranks or more"
            f" leave some of {devices} devices idle"
        )
    check_lengths_fit(
        batch.sequences,
        batch.lengths,
        cost.tokens_per_device * degrees[-1],
        f"a group of degree {degrees[-1]}",
    )
    context = _Context(settings, devices, degrees, cost, seed)
    first = fewest_micro_batches(batch.lengths, context.cap, settings.order)
    last = min(first + settings.micro_batch_trials - 1, len(batch.lengths))
    trials: list[_Trial] = []
    for number in range(first, last + 1):
        best = min((trial.total_ms for trial in trials), default=math.inf)
        trials.append(_trial(batch.lengths, number, context, best, pool))
    chosen = min(trials, key=lambda trial: trial.total_ms)
    if not chosen.parts:
        # Too few sequences make too few groups for all devices.
        fewer = ", planner.devices at_most" if settings.devices == "all" else ""
        raise PlanError(
            f"planner.micro_batch_trials: got {settings.micro_batch_trials}, none of {first} to"
            f" {last} micro-batches has a plan; allowed: more{fewer}, or higher limits of the"
            " solver"
        )
    parts = [
        (part.assignment, batch.sequences[part.positions], part.lengths) for part in chosen.parts
    ]
    return SequenceParallelBatch(
        iteration,
        tuple(micro_batch(*item, cost) for item in parts),
        {
            "name": "SCIP",
            "ended_by": dict(Counter(solved.ended_by for solved in chosen.solved)),
            "effort": sum(solved.work for trial in trials for solved in trial.solved),
            "cut_short": any(
                solved.ended_by == "time_limit" for trial in trials for solved in trial.solved
            ),
            "trials": [trial.account() for trial in trials],
        },
    )


def bucketed(
    lengths: Lengths, settings: FlexSPMilpSettings, cap: int
) -> list[npt.NDArray[np.int64]]:
    """Positions by bucket, longest first, of a micro-batch of lengths [n].

    A bucket for each sequence without bucketing, or where there would be as many
    buckets as sequences.
    """
    if settings.bucketing != "none":
        allowed = (int(lengths.sum()) + cap) // 2
        buckets = bucket_lengths(lengths, settings.buckets, allowed, settings.bucketing)
        if len(buckets) < len(lengths):
            return buckets
    return [np.array([position]) for position in np.argsort(-lengths, kind="stable")]


def _trial(
    lengths: Lengths, number: int, context: _Context, best_ms: float, pool: SolverPool
) -> _Trial:
    """A number of micro-batches, abandoned once it cannot be below ``best_ms``."""
    runs = cut_batch(lengths, number, context.settings.order)
    bounds = [
        micro_batch_bound_ms(lengths[run], context.devices, context.degrees, context.cost)
        for run in runs
    ]
    if sum(bounds) >= best_ms:
        return _Trial(number, (), (), "bound")
    problems = [_problem(lengths[run], context) for run in runs]
    answers = pool.solve([programme for _, programme in problems], context.limits)
    parts: list[_Part] = []
    solved: list[Solved] = []
    ended_by = "solved"
    for index, (run, (buckets, programme)) in enumerate(zip(runs, problems, strict=True)):
        if sum(part.time_ms for part in parts) + sum(bounds[index:]) >= best_ms:
            ended_by = "bound"
            break
        solved.append(next(answers))
        counts = solved[-1].counts
        if counts is None:
            ended_by = solved[-1].ended_by
            break
        random = np.random.default_rng((context.seed, number, index))
        run_lengths = lengths[run]
        assignment = hand_out(counts, buckets, programme, random)
        time_ms = micro_batch_ms(assignment, run_lengths, context.cost)
        parts.append(_Part(run, run_lengths, assignment, time_ms, programme.makespan_ms(counts)))
    answers.close()
    return _Trial(number, tuple(parts) if ended_by == "solved" else (), tuple(solved), ended_by)


def _problem(lengths: Lengths, context: _Context) -> tuple[list[Positions], Programme]:
    buckets = bucketed(lengths, context.settings, context.cap)
    programme = build_programme(
        lengths, buckets, context.devices, context.degrees, context.cost, context.settings.devices
    )
    return buckets, programme


def _plan(settings: FlexSPMilpSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    with SolverPool(settings.processes) as pool:
        return tuple(
            plan_milp_batch(index, batch, settings, task.devices, task.cost, pool, task.seed)
            for index, batch in enumerate(counted(task.batches, "batches"))
        )


#: The entry of the list of planners.
FLEXSP_MILP = Planner("flexsp_milp", "sequence_parallel", FlexSPMilpSettings, _plan)
