"""Settings of elastic pipelines, and how their chunks are divided into pipelines.

InfiniPipe's grouping programme (eq. 14) over classes of equal chunk count, for several
candidates: :func:`fastest` takes the fastest by simulated time. Nothing of a candidate
is solved that a bound excludes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Literal

import numpy as np

from railx.effort import Cost, Costs
from railx.performance.pipeline_cost import PipelineCost
from railx.planning.packing import Floats, Integers
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.best_schedule import ScheduleChoice
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem
from railx.planning.pipeline.chunks import Chunked, Chunking
from railx.planning.planner import StagedSettings
from railx.settings import AtLeast, NonNegative, PowerOfTwo

#: Recomputed layers: as many as memory requires (fast or exact), all, or none.
Checkpointing = Literal["adaptive", "exact", "full", "none"]
#: The order of passes: a schedule, an order that is searched for, or the fastest.
PipelineSchedule = ScheduleChoice | Literal["best", "best_trained"]

#: At most so many families of candidates are grouped and simulated in full, and only
#: those within this factor of the best family's time.
_MAX_FAMILIES = 5
_NEAR_BEST = 1.015
#: Pipelines whose division and recomputation are refined; half with an incumbent.
_CANDIDATES_TO_REFINE = 6
#: Most that a thorough solution may gain: slower candidates are not solved.
_SOLVING_GAIN = 1.005
#: The method for the counts of recomputed layers: that of the grouping, or better ones.
_Care = Literal["rough", "quick", "thorough"]
_METHODS: dict[_Care, Callable[[CheckpointProblem], Integers | None]] = {
    "rough": checkpoints.rough,
    "quick": checkpoints.quick,
    "thorough": checkpoints.fast,
}


@dataclass(frozen=True)
class PipelineSettings(StagedSettings):
    """Pipelines of split, packed and mixed chunks (InfiniPipe).

    The number of slices of the longest sequence with the least simulated time is taken.
    """

    planner: Literal["pipeline"]
    """Which planner it is."""

    stages: Annotated[int, AtLeast(1)] = 2
    """Stages of a replica."""

    replicas: Annotated[int, AtLeast(1)] = 2
    """Replicas that share a batch."""

    sequence_parallel_degree: Annotated[int, PowerOfTwo()] = 1
    """Ranks of each stage, which share the tokens of a chunk."""

    most_slices: Annotated[int, AtLeast(1)] = 8
    """Most slices of equal time into which the longest sequence is cut."""

    alignment_tokens: Annotated[int, AtLeast(1)] = 32
    """Tokens of which every cut is a multiple."""

    chunking: Chunking | Literal["best", "searched"] = "searched"
    """How sequences become chunks. ``balanced``: slices of equal time, and a new chunk
    where none has time left. ``published``: as the paper prints it, raising the time
    instead. ``even``: slices of equal length and chunks of as many tokens, the paper's
    ablation. ``best``: balanced ones or those of Seq1F1B, DAPPLE, ChunkFlow, SlimPipe
    or DynaPipe, whichever are fastest. ``searched``: what a search over chunks,
    recomputed layers and orders makes of these; with a named schedule as ``best``."""

    checkpointing: Checkpointing = "adaptive"
    """Layers that are recomputed. ``adaptive``: as few as memory allows, by a fast
    method; ``exact``: by the paper's integer programme; ``full``: all of them;
    ``none``: none, so that memory decides between pipelines alone."""

    exact_nodes: Annotated[int, AtLeast(1)] = 2000
    """Nodes of the integer programme's search at most, for each pipeline, with
    ``checkpointing: exact``. What that leaves open is in the plan's account
    (``checkpoint_gap``)."""

    schedule: PipelineSchedule = "best_trained"
    """The order in which stages run their passes: a schedule by name, ``searched`` for
    one of our own, ``best`` for the fastest of them that memory holds, or
    ``best_trained`` for the fastest that the training runtime runs. Unless chunks are
    searched, they and recomputed layers are chosen for the paper's, ``1f1b``."""

    most_over_mean: Annotated[float, AtLeast(1)] | None = None
    """Longest over mean chunk time of the plans that come first, unless that costs more
    than 5 % of the time; null, and with chunks that are ``best`` or ``searched``: the
    least time decides. The paper's is 1.2."""

    effort: Annotated[int, NonNegative()] = 1
    """Rounds of the search over chunks, each about 0.3 s of one core for 512
    sequences on four stages; 0: a short one, from balanced chunks alone."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {"effort": Cost(0.4) * self.effort, "exact_nodes": Cost(1e-3) * self.exact_nodes}


@dataclass(frozen=True)
class Recomputation:
    """Recomputed layers [d, n], Σ C of diagonals, the gap of the exact programme."""

    layers: Integers
    diagonals: int
    gap: float = 0.0


@dataclass(frozen=True)
class Group:
    """A pipeline of neighbouring chunks and its recomputation."""

    first: int
    end: int
    recomputed: Recomputation


@dataclass(frozen=True)
class Division:
    """Chunks and the ends of their pipelines, with the price of eq. 14 and simulated
    ms.
    """

    chunked: Chunked
    bounds: tuple[int, ...]
    closed_form_ms: float
    simulated_ms: float


@dataclass(frozen=True)
class Grouping:
    """Chunks in pipelines, their time, and the name of the chunking."""

    chunked: Chunked
    groups: tuple[Group, ...]
    simulated_ms: float = math.inf
    chunking: str = "balanced"


_time_of = attrgetter("simulated_ms")


def chunks_bound_ms(chunked: Chunked, cost: PipelineCost) -> float:
    """The time of one pipeline that recomputes nothing, regardless of memory."""
    back: Floats = np.broadcast_to(chunked.backward_ms, (cost.shape.stages, chunked.chunks))
    return _makespan_1f1b_ms(chunked, 0, chunked.chunks, back, cost)


def fastest(
    families: list[list[Chunked]],
    settings: PipelineSettings,
    cost: PipelineCost,
    incumbent_ms: float = math.inf,
) -> Grouping | None:
    """The fastest of the candidates by simulation, if below ``incumbent_ms``.

    The time of one pipeline without recomputation is a lower bound. In ascending order
    of that bound, no candidate after the first that fits without recomputing can be
    faster. Those before it are grouped while their bound is below the incumbent: the
    first of every family, whose members differ little, then the last, then all members
    of the best families.
    """
    ranked = sorted(
        (chunks_bound_ms(chunks, cost), which, index)
        for which, family in enumerate(families)
        for index, chunks in enumerate(family)
    )
    tried: list[Division] = []
    below: list[tuple[float, int, int]] = []
    for bound_ms, which, index in ranked:
        if bound_ms >= incumbent_ms:
            break
        if _fits_as_it_is(families[which][index], settings, cost):
            chunked = families[which][index]
            tried.append(Division(chunked, (0, chunked.chunks), math.inf, bound_ms))
            break
        below.append((bound_ms, which, index))
    ends: dict[int, tuple[int, int]] = {}
    for _, which, index in below:
        first, last = ends.get(which, (index, index))
        ends[which] = (min(first, index), max(last, index))
    best_of: dict[int, float] = {}
    for turn in range(3):
        enough_ms = _NEAR_BEST * min(best_of.values(), default=math.inf)
        near = sorted(best_of, key=lambda which: best_of[which])[:_MAX_FAMILIES]
        chosen = {
            0: set(ends),
            1: {which for which in ends if best_of.get(which, 0.0) <= _NEAR_BEST * enough_ms},
            2: {which for which in near if best_of[which] <= enough_ms},
        }[turn]
        for bound_ms, which, index in below:
            limit_ms = min(map(_time_of, tried), default=incumbent_ms)
            if bound_ms >= limit_ms:
                break
            first, last = ends[which]
            due = 0 if index == first else 1 if index == last else 2
            if due == turn and which in chosen:
                division = divide(families[which][index], settings, cost)
                if division is not None:
                    tried.append(division)
                    time_ms = best_of.get(which, math.inf)
                    best_of[which] = min(time_ms, division.simulated_ms)
    return _best_solved(tried, settings, cost, incumbent_ms)


def _best_solved(
    tried: list[Division], settings: PipelineSettings, cost: PipelineCost, incumbent_ms: float
) -> Grouping | None:
    """The best of the fastest candidates after refinement.

    Each is divided again by simulated times and its recomputation lowered by a quick
    method. The best is solved thoroughly if it is near ``incumbent_ms``.
    """
    most = _CANDIDATES_TO_REFINE if incumbent_ms == math.inf else _CANDIDATES_TO_REFINE // 2
    best: tuple[Grouping, Division] | None = None
    for candidate in sorted(tried, key=_time_of):
        again = divide(candidate.chunked, settings, cost, simulated=True) or candidate
        divided = min(again, candidate, key=_time_of)
        most -= len(divided.bounds) - 1
        if best is not None and most < 0:
            break
        for care in ("quick", "rough"):
            solved = _solved(divided, settings, cost, care)
            if best is None or solved.simulated_ms < best[0].simulated_ms:
                best = solved, divided
    if best is None or best[0].simulated_ms > _SOLVING_GAIN * incumbent_ms:
        return None if best is None else best[0]
    return min(_solved(best[1], settings, cost, "thorough"), best[0], key=_time_of)


def _fits_as_it_is(chunked: Chunked, settings: PipelineSettings, cost: PipelineCost) -> bool:
    """Whether all chunks fit in one pipeline without recomputation.

    No division of them has a lower price then.
    """
    if settings.checkpointing == "full":
        return False
    return checkpoints.fits(checkpoints.problem_of(chunked, 0, chunked.chunks, cost))


def timed(grouped: Grouping, cost: PipelineCost) -> Grouping:
    """Chunks with the simulated time of their pipelines, one after another."""
    chunked, total_ms = grouped.chunked, 0.0
    for group in grouped.groups:
        span = slice(group.first, group.end)
        again = group.recomputed.layers * cost.layer_forward_ms(chunked.forward_ms[span])
        back: Floats = np.asarray(chunked.backward_ms[span] + again)
        total_ms += _makespan_1f1b_ms(chunked, group.first, group.end, back, cost)
    return replace(grouped, simulated_ms=total_ms)


def _makespan_1f1b_ms(
    chunked: Chunked, first: int, end: int, back: Floats, cost: PipelineCost
) -> float:
    """The time of a pipeline of chunks, ``back`` [d, n] their backward passes."""
    # Planning alone loads Numba.
    from railx.planning.pipeline.kernels import makespan_1f1b_ms

    backward = chunked.backward_order(first, end)
    sends = _sends_ms(chunked.tokens[first:end], cost)
    forward, back = chunked.forward_ms[first:end], np.array(back, order="C")
    return float(
        makespan_1f1b_ms(forward, back, sends, backward, int(chunked.count[first:end].max()))
    )


def _sends_ms(tokens: Integers, cost: PipelineCost) -> Floats:
    """Times of sending chunks [n] from one stage to the next."""
    several = float(cost.shape.stages > 1)
    ms = several * (cost.send.linear_ms * tokens + cost.send.constant_ms)
    return np.asarray(ms, dtype=np.float64)


def divide(
    chunked: Chunked, settings: PipelineSettings, cost: PipelineCost, *, simulated: bool = False
) -> Division | None:
    """The cheapest division into pipelines of neighbouring chunk counts (eq. 14).

    ``simulated`` uses simulated times instead of the paper's price. Where two sequences
    of one count do not fit together, cut sequences are divided one by one.
    """
    starts = _run_starts(chunked)
    counts = chunked.count[starts]
    by_count = starts[np.flatnonzero(np.diff(counts, prepend=0))]
    divided = _division(chunked, by_count, settings, cost, simulated)
    if divided is None:
        divided = _division(chunked, sequence_starts(chunked), settings, cost, simulated)
    return divided


def _run_starts(chunked: Chunked) -> Integers:
    """The first chunk of every cut sequence, and each chunk of whole ones."""
    return np.flatnonzero(chunked.run_start == np.arange(chunked.chunks))


def sequence_starts(chunked: Chunked) -> Integers:
    """The first chunk of each cut sequence, and that of the batched chunks together."""
    starts = _run_starts(chunked)
    counts = chunked.count[starts]
    chosen: Integers = starts[(counts > 1) | (np.diff(counts, prepend=0) != 0)]
    return chosen


def _division(
    chunked: Chunked,
    starts: Integers,
    settings: PipelineSettings,
    cost: PipelineCost,
    simulated: bool,
) -> Division | None:
    """Neighbouring units joined to pipelines at the least price; None if a unit does
    not fit.

    ``starts`` [u] are the first chunks of the units.
    """
    # Planning alone loads Numba.
    from railx.planning.pipeline import kernels

    modes = {"full": kernels.FULL, "none": kernels.NONE}
    chunks = kernels.Divisible(
        checkpoints.problem_of(chunked, 0, chunked.chunks, cost),
        np.array(cost.layer_counts, dtype=np.int64),
        chunked.forward_ms,
        chunked.backward_ms,
        cost.layer_forward_ms(chunked.forward_ms),
        _sends_ms(chunked.tokens, cost),
        chunked.count,
    )
    mode = modes.get(settings.checkpointing, kernels.ADAPTIVE)
    edges = np.append(starts, chunked.chunks)
    bounds, closed_form_ms, simulated_ms = kernels.divide(chunks, edges, mode, simulated)
    if not len(bounds):
        return None
    return Division(chunked, tuple(bounds.tolist()), closed_form_ms, simulated_ms)


def _solved(
    divided: Division, settings: PipelineSettings, cost: PipelineCost, care: _Care
) -> Grouping:
    """The pipelines with their counts."""
    groups = []
    for first, end in pairwise(divided.bounds):
        problem = checkpoints.problem_of(divided.chunked, first, end, cost)
        counts = counts_of(problem, settings, cost, care)
        assert counts is not None  # they were priced
        groups.append(Group(first, end, counts))
    return timed(Grouping(divided.chunked, tuple(groups)), cost)


def counts_of(
    problem: CheckpointProblem, settings: PipelineSettings, cost: PipelineCost, care: _Care
) -> Recomputation | None:
    """Recomputed layers; None where memory is short."""
    shape = (problem.stages, problem.chunks)
    if settings.checkpointing == "none":
        fits = checkpoints.fits(problem)
        return Recomputation(np.zeros(shape, dtype=np.int64), 0) if fits else None
    if settings.checkpointing != "full":
        solution: checkpoints.Solution | None = None
        if care == "thorough" and settings.checkpointing == "exact":
            solution = checkpoints.exact(problem, most_nodes=settings.exact_nodes)
            diagonals = None if solution is None else solution.counts
        else:
            diagonals = _METHODS[care](problem)
        if diagonals is not None:
            gap = 0.0 if solution is None else solution.gap
            return Recomputation(problem.counts(diagonals), int(diagonals.sum()), gap)
        if len(set(cost.layer_counts)) == 1:
            return None
    # Stages with more layers than the smallest may have to recompute those too.
    everything = np.broadcast_to(np.array(cost.layer_counts)[:, None], shape)
    widest = max(cost.layer_counts)
    of_all = Recomputation(everything, widest * problem.diagonals)
    return of_all if checkpoints.fits(problem, everything) else None
