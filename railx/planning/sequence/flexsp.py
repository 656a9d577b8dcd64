"""FlexSP's problem, solved by this project's search over the whole batch.

A batch is cut into micro-batches. Each has groups of different degrees, side by side,
and each sequence belongs to a group (FlexSP, section 4). The paper solves it cut by cut
with an integer programme (``flexsp_milp``). Here one search moves the time limits of
all micro-batches at once (``search``). Its plans are bettered by exchanges of sequences
between groups. Small batches also begin with groups of one degree and have
micro-batches filled anew; others that stay far above their bound get random kicks, with
a micro-batch less as well (``exchanges``). The constant b1 is paid once per
micro-batch.

More freedom should not make a plan slower (docs/benchmarks.md has the exceptions). A
plan for some degrees is the best of the searches with those up to each of them, and a
search starts from the result of the previous one. Fewer devices (half, a quarter...)
and fewer small degrees are searched as well unless a bound rules them out, and static
plans shortened by exchanges are candidates. A batch of few or of equal sequences is
solved to its optimum instead, and plans of nearly equal ones begin with their number in
each group (``small``).

Work is counted, not timed: the result depends on the settings and the seed alone. A
time guard only ends the work early, which the plan records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from railx.effort import Cost, Costs
from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import refused
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Assignment, Lengths
from railx.planning.planner import (
    Planner,
    PlannerBase,
    PlanningTask,
    check_group_holds,
    planned_batch,
)
from railx.planning.sequence.static import best_static, total_ms
from railx.progress import counted
from railx.settings import AtLeast, NonNegative, Positive
from railx.workload.batches import SampledBatch

if TYPE_CHECKING:
    from railx.planning.sequence.search import Problem, SearchResult


#: A larger degree is searched only where a sequence fills more than this share of its
#: micro-batch's time; otherwise no group can use it.
_USEFUL = 0.85
#: Or where sequences times devices are fewer than this: a search costs next to nothing,
#: and one more group matters much.
_SMALL = 8192
#: Groups that the rounds of a ladder's steps look at for 512 sequences on 64 devices,
#: in the order in which steps are searched. A late step starts from what those before
#: it found.
_LOOKS = (10e6, 14e6, 3e6)
#: And once more where the first step needs no larger degree.
_MORE_LOOKS = 20e6
#: Where sequences times devices are few, every step has its own best mix.
_LOOKS_WHERE_SMALL = (10e6, 14e6, 14e6)
#: Without degree 1, which pays for most batches.
_FEWER_LOOKS = (5e6, 3e6, 2e6)
#: Plans that a round anneals.
_CHAINS = 2
#: Micro-batches of the best plan of small batches are filled anew, so many times at
#: most and until a time gains less than this share.
_REFILLS = 3
_WORTH_REFILLING = 2e-4
#: The best plans of each step of other batches are kicked so many times where the best
#: of all takes more than this multiple of the bound, up to so many sequences times
#: devices.
_KICKS = 100
_WIDE_GAP = 1.025
_MOST_KICKED = 1 << 17
#: Plans of few nearly equal sequences are kicked so many times.
_KICKS_OF_NEAR_EQUALS = 160
#: Sequences of at least this share of the longest are planned as equal ones first.
_NEARLY_EQUAL = 0.9
#: Static plans of at most so many times the best are shortened by exchanges.
_WORTH_SHORTENING = 1.03
#: Shares of memory that static plans fill.
_FILLS = (0.9, 1.0)


@dataclass(frozen=True)
class FlexSPSettings(PlannerBase):
    """Groups of different degrees, different in each micro-batch, by our own search.

    The search is over the whole batch; the paper's own planner is ``flexsp_milp``. One
    round takes about 0.1 s of one core for 512 sequences on 64 devices.
    """

    planner: Literal["flexsp"]
    """Which planner it is."""

    smallest_degree: Literal[1, 2] = 1
    """The least ranks of a group. FlexSP's public code leaves out 1; the paper's case
    study uses it."""

    degrees: Literal["powers_of_two", "any"] = "powers_of_two"
    """Which degrees groups may have: FlexSP's powers of two, or every number of ranks
    that divides the model's heads."""

    effort: Annotated[int, AtLeast(1)] = 1
    """Rounds of search. One round looks at 3 to 10 million groups for 512 sequences on
    64 devices, and more with the square root of sequences times devices."""

    relative_gap: Annotated[float, NonNegative()] = 0.0
    """Share above the lower bound at which the search ends."""

    time_guard_s: Annotated[float, Positive()] = 600.0
    """Seconds of processor time after which no further round begins. The plan records
    where it struck."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        # A round takes up to a second, and searches end early.
        return {"effort": Cost(0.1) * self.effort}


@dataclass
class _Best:
    """The best plan so far, and the limits from which searches continue."""

    time_ms: float = math.inf
    assignments: list[Assignment] = field(default_factory=list)
    limits: Any = None
    origin: str = "search"
    end: SearchResult | None = None


@dataclass
class _Ladder:
    """Searches on a number of devices with growing sets of degrees."""

    devices: int
    steps: list[tuple[int, ...]]
    best_of: dict[tuple[int, ...], _Best] = field(default_factory=dict)


@dataclass
class _Work:
    """Shared state of all searches of a batch."""

    lengths: Lengths
    settings: FlexSPSettings
    cost: CostModel
    seed: int
    bound_ms: float
    ends_s: float
    best: _Best = field(default_factory=_Best)
    looks: int = 0
    rounds: int = 0
    cut_short: bool = False

    def done(self) -> bool:
        """Whether the best is good enough, or the time is over."""
        if self.best.time_ms <= self.bound_ms * (1 + self.settings.relative_gap):
            return True
        if self.best.time_ms < math.inf and time.process_time() > self.ends_s:
            self.cut_short = True
        return self.cut_short


def plan_flexsp_batch(
    iteration: int,
    batch: SampledBatch,
    settings: FlexSPSettings,
    devices: int,
    cost: CostModel,
    seed: int = 0,
) -> SequenceParallelBatch:
    """Plan one batch.

    ``solver`` of the result: a lower bound on any plan of the batch, the effort, how
    the search ended (``bound``, ``effort`` or ``time_guard``), the groups it examined
    and its rounds, and which plan won (``chosen``: ``search``, ``static``,
    ``near_equals`` or the ``optimum`` of a small or equal batch). PlanError names a
    sequence that fits no group.
    """
    from railx.planning.sequence.bound import batch_lower_bound_ms
    from railx.planning.sequence.small import (
        MOST_EQUALS,
        MOST_SEQUENCES,
        optimum,
        plan_of_near_equals,
    )

    usable = cost.any_degrees if settings.degrees == "any" else cost.degrees
    degrees = tuple(d for d in usable if settings.smallest_degree <= d <= devices)
    if not degrees:
        got = f"got {settings.smallest_degree}"
        raise refused("planner.smallest_degree", got, "1, as the cluster has no larger degree")
    check_group_holds(batch, cost.tokens_per_device, degrees[-1])
    cost = replace(cost, all_to_all_ms={degree: cost.all_to_all_ms[degree] for degree in degrees})
    order = np.argsort(-batch.lengths, kind="stable")
    lengths = batch.lengths[order]
    # Only a search that may end above the bound needs it.
    needed = settings.relative_gap > 0
    bound = batch_lower_bound_ms(lengths, devices, degrees, cost) if needed else 0.0
    small = len(lengths) * devices < _SMALL
    work = _Work(lengths, settings, cost, seed, bound, time.process_time() + settings.time_guard_s)
    ladders: list[_Ladder] = []
    if len(lengths) <= MOST_SEQUENCES:
        _solve(work, optimum, devices, degrees)
        bound = max(bound, work.best.time_ms)
    else:
        powers = tuple(degree for degree in degrees if degree & (degree - 1) == 0)
        nearly = lengths[-1] >= _NEARLY_EQUAL * lengths[0]
        if powers and nearly and len(lengths) <= MOST_EQUALS:
            kicks = _KICKS_OF_NEAR_EQUALS if small else 0
            solver = partial(plan_of_near_equals, kicks=kicks, seed=seed)
            equal = lengths[0] == lengths[-1]
            _solve(work, solver, devices, powers, "optimum" if equal else "near_equals")
            if powers == degrees and equal:
                work.bound_ms = bound = max(bound, work.best.time_ms)
        ladders = _ladders(devices, degrees)
        for number in range(settings.effort):
            for ladder in counted(ladders, "numbers of devices"):
                _climb(work, ladder, number)
            if number == 0:
                _try_static(work, devices)
            if small:
                _solve(work, partial(_even, seed=seed + number), devices, degrees, "search")
                _refill(work, devices, degrees, seed + number)
            if work.done():
                break
    if bound < work.best.time_ms:
        most_ms = work.best.time_ms
        bound = max(bound, batch_lower_bound_ms(lengths, devices, degrees, cost, most_ms))
        if most_ms > _WIDE_GAP * bound and len(lengths) * devices <= _MOST_KICKED and not small:
            for ladder in ladders:
                _kick(work, ladder, seed, most_ms)
    best = work.best
    near = best.time_ms <= bound * (1 + settings.relative_gap)
    report = {
        "name": "flexsp",
        "lower_bound_ms": bound,
        "effort": settings.effort,
        "ended_by": "time_guard" if work.cut_short else "bound" if near else "effort",
        "looks": work.looks,
        "rounds": work.rounds,
        "chosen": best.origin,
    }
    longest_first = SampledBatch(batch.sequences[order], lengths)
    return planned_batch(iteration, longest_first, best.assignments, cost, report)


def _solve(
    work: _Work,
    solver: Callable[[Problem], SearchResult],
    devices: int,
    degrees: tuple[int, ...],
    origin: str = "optimum",
) -> None:
    """The solver's plan as the best one, where it is faster."""
    from railx.planning.sequence.search import Problem

    solved = solver(Problem.of(work.lengths, devices, degrees, work.cost))
    work.looks += solved.looks
    if solved.time_ms == math.inf:
        return
    assignments = [_assignment(solved, m, degrees) for m in range(len(solved.limits))]
    time_ms = total_ms(assignments, work.lengths, work.cost)
    if time_ms < work.best.time_ms * (1 - 1e-12):
        work.best = _Best(time_ms, assignments, solved.limits, origin)


def simple_bound_ms(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> float:
    """A quick bound on the whole batch, infinite where a sequence fits no degree.

    All devices share the device time of every sequence at its cheapest degree, and as
    many micro-batches as memory demands pay the constant.
    """
    from railx.planning.sequence.search import Problem

    work = Problem.of(lengths, devices, degrees, cost).cheapest
    micro_batches = math.ceil(lengths.sum() / (cost.tokens_per_device * devices))
    return float(float(work.sum()) / devices + micro_batches * cost.constant_ms)


def _ladders(devices: int, degrees: tuple[int, ...]) -> list[_Ladder]:
    """All degrees or those above 1, on all devices, half of them, and so on."""
    ladders = []
    while True:
        for some in (degrees, degrees[1:]) if degrees[0] == 1 else (degrees,):
            powers = tuple(d for d in some if d & (d - 1) == 0)
            steps = [powers[: count + 1] for count in range(len(powers))]
            if len(powers) < len(some):
                steps.append(some)
            if steps:
                ladders.append(_Ladder(devices, steps))
        if devices % 2:
            return ladders
        devices //= 2
        degrees = tuple(d for d in degrees if d <= devices)
        if not degrees:
            return ladders


def _climb(work: _Work, ladder: _Ladder, number: int) -> None:
    """One round for each step of a ladder, each from the plan of the previous one."""
    before: _Best | None = None
    position = 0
    quick_ms = simple_bound_ms(work.lengths, ladder.devices, ladder.steps[-1], work.cost)
    for step in ladder.steps:
        if work.done() or quick_ms >= work.best.time_ms:
            return
        if work.lengths[0] > work.cost.tokens_per_device * step[-1]:
            continue
        small = len(work.lengths) * ladder.devices < _SMALL
        if before is not None and not small and not _has_use(work, before, step):
            continue
        best = ladder.best_of.setdefault(step, _Best())
        if before is not None and before.time_ms < best.time_ms:
            best = ladder.best_of[step] = replace(before, end=None)
        looks = _FEWER_LOOKS
        if step[0] == 1:
            looks = _LOOKS_WHERE_SMALL if small else _LOOKS
        _search_round(work, best, ladder.devices, step, number, looks[min(position, 2)])
        # The step alone decides, so that more degrees only add rounds.
        if (
            not small
            and step[0] == 1
            and position == 0
            and not _has_use(work, best, (*step, 2 * step[-1]))
        ):
            _search_round(work, best, ladder.devices, step, number, _MORE_LOOKS)
        position += 1
        if best.time_ms < work.best.time_ms:
            work.best = best
        before = best


def _has_use(work: _Work, best: _Best, degrees: tuple[int, ...]) -> bool:
    """Whether some micro-batch waits for a sequence that a larger degree might
    shorten.
    """
    if best.time_ms == math.inf or any(d & (d - 1) for d in degrees):
        return True
    fewer = degrees[:-1]
    for assignment, limit in zip(best.assignments, best.limits, strict=True):
        longest = work.lengths[min(min(group) for group in assignment.groups)]
        alone = float(work.cost.sequence_ms(longest))
        soonest = min(
            alone / d + longest * work.cost.all_to_all_ms[d]
            for d in fewer
            if longest <= d * work.cost.tokens_per_device
        )
        if soonest > _USEFUL * limit:
            return True
    return False


def _search_round(
    work: _Work, best: _Best, devices: int, degrees: tuple[int, ...], number: int, looks: float
) -> None:
    """One round of about ``looks`` looks, scaled with the problem; ``best`` keeps the
    better.
    """
    # Planning alone loads Numba.
    from railx.planning.sequence.exchanges import shortened
    from railx.planning.sequence.search import Problem, search

    problem = Problem.of(work.lengths, devices, degrees, work.cost)
    n = len(work.lengths)
    small = n * devices < _SMALL
    looks *= math.sqrt(n * devices / (512 * 64))
    starts = [] if best.limits is None else [best.limits]
    plans = search(problem, int(looks), work.seed + number, starts, _CHAINS)
    work.rounds += 1
    if not plans:
        return
    # Where sequences are many, exchanges cost more than another plan is worth.
    plans = [shortened(problem, plan) for plan in (plans if small else plans[:1])]
    plans.sort(key=lambda plan: plan.time_ms)
    if best.end is None or plans[0].time_ms < best.end.time_ms:
        best.end = plans[0]
    work.looks += sum(plan.looks for plan in plans)
    _better(best, plans[0], degrees)


def _better(best: _Best, plan: SearchResult, degrees: tuple[int, ...]) -> None:
    """Keep a plan in ``best`` where it is faster."""
    if plan.time_ms < best.time_ms * (1 - 1e-12):
        best.time_ms, best.limits = plan.time_ms, plan.limits
        best.assignments = [_assignment(plan, m, degrees) for m in range(len(plan.limits))]


def _kick(work: _Work, ladder: _Ladder, seed: int, worth_ms: float) -> None:
    """Kick the best plan of each step that takes at most ``worth_ms``, and one of a
    micro-batch less (``exchanges``).
    """
    from railx.planning.sequence.exchanges import folded, shortest
    from railx.planning.sequence.search import Problem

    for step, best in ladder.best_of.items():
        if best.end is not None and best.end.time_ms <= worth_ms and not work.done():
            problem = Problem.of(work.lengths, ladder.devices, step, work.cost)
            plans = [best.end._replace(looks=0)]
            if len(best.end.limits) - 1 >= problem.tokens.sum() / (problem.cap * problem.devices):
                fold = folded(problem, plans[0], seed)
                work.looks += fold.looks
                plans += [fold._replace(looks=0)] if fold.time_ms < math.inf else []
            plans.sort(key=lambda plan: plan.time_ms)
            kicked = shortest(problem, plans, _KICKS, seed)
            work.looks += kicked.looks
            _better(best, kicked, step)
            if best.time_ms < work.best.time_ms:
                work.best = best


def _assignment(result: Any, m: int, degrees: tuple[int, ...]) -> Assignment:
    members = np.flatnonzero(result.micro_batch == m)
    by_group = members[np.argsort(result.group[members], kind="stable")]
    groups, starts = np.unique(result.group[by_group], return_index=True)
    return Assignment(
        tuple(degrees[result.kind[m, group]] for group in groups),
        tuple(tuple(part.tolist()) for part in np.split(by_group, starts[1:])),
    )


def _try_static(work: _Work, devices: int) -> None:
    """Replace the best by a faster plan made from a static one.

    Only degrees whose bound leaves a chance are packed.
    """
    if all(
        simple_bound_ms(work.lengths, devices, (degree,), work.cost) >= work.best.time_ms
        for degree in work.cost.degrees
    ):
        return
    for fill in _FILLS:
        _, assignments = best_static(work.lengths, devices, work.cost, fill)
        static_ms = total_ms(assignments, work.lengths, work.cost)
        if static_ms < work.best.time_ms * _WORTH_SHORTENING:
            solver = partial(_shortened, assignments=assignments, time_ms=static_ms)
            _solve(work, solver, devices, work.cost.degrees, "static")


def _shortened(problem: Problem, assignments: list[Assignment], time_ms: float) -> SearchResult:
    """A plan of ``time_ms`` after exchanges of sequences."""
    from railx.planning.sequence.exchanges import shortened

    return shortened(problem, _result_of(problem, assignments, time_ms))


def _even(problem: Problem, seed: int) -> SearchResult:
    """The best of plans of groups of one degree after kicks."""
    from railx.planning.sequence.exchanges import evened

    return evened(problem, seed)


def _refill(work: _Work, devices: int, degrees: tuple[int, ...], seed: int) -> None:
    """Fill micro-batches of the best plan anew while that is faster."""
    for number in range(_REFILLS):
        before = work.best
        if work.done():
            return
        solver = partial(_refilled, best=before, seed=seed + number)
        _solve(work, solver, devices, degrees, before.origin)
        if work.best.time_ms > before.time_ms * (1 - _WORTH_REFILLING):
            return


def _refilled(problem: Problem, best: _Best, seed: int) -> SearchResult:
    """The best of plans like ``best`` with a micro-batch filled anew."""
    from railx.planning.sequence.exchanges import refilled

    return refilled(problem, _result_of(problem, best.assignments, best.time_ms), seed)


def _result_of(problem: Problem, assignments: list[Assignment], time_ms: float) -> SearchResult:
    """A plan as searches have it."""
    from railx.planning.sequence.search import SearchResult

    n, degrees = len(problem.tokens), problem.degree.tolist()
    micro_batch, group = np.zeros(n, np.int64), np.zeros(n, np.int64)
    kind = np.zeros((len(assignments), max(len(one.degrees) for one in assignments)), np.int64)
    for m, assignment in enumerate(assignments):
        for g, members in enumerate(assignment.groups):
            kind[m, g] = degrees.index(assignment.degrees[g])
            micro_batch[list(members)], group[list(members)] = m, g
    return SearchResult(time_ms, micro_batch, group, kind, np.zeros(len(assignments)), 0)


def _plan(settings: FlexSPSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    return task.planned(
        lambda index, batch: plan_flexsp_batch(
            index, batch, settings, task.devices, task.cost, task.seed
        )
    )


#: The entry of the list of planners.
FLEXSP = Planner("flexsp", "sequence_parallel", FlexSPSettings, _plan)
