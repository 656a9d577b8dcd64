"""Settings of elastic pipelines, and how their chunks are divided into pipelines.

InfiniPipe's grouping programme (eq. 14) over classes of equal chunk count, for several
candidates: :func:`fastest` takes the fastest by simulated time. Nothing of a candidate
is solved that a bound excludes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from railx.effort import Cost, Costs
from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.schedule import ScheduleChoice
from railx.planning.packing import Integers
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem
from railx.planning.pipeline.chunks import Chunked, Chunking
from railx.planning.planner import StagedSettings
from railx.settings import AtLeast, NonNegative, PowerOfTwo

if TYPE_CHECKING:
    from railx.planning.pipeline.kernels import Divisible

#: Recomputed layers: as many as memory requires (fast or exact), all, or none.
Checkpointing = Literal["adaptive", "exact", "full", "none"]
#: The order of passes: a schedule, an order that is searched for, or the fastest.
PipelineSchedule = ScheduleChoice | Literal["best", "best_trained"]

#: Pipelines whose division and recomputation are refined; half with an incumbent.
_CANDIDATES_TO_REFINE = 6
#: Most that a thorough solution may gain: slower candidates are not solved.
_SOLVING_GAIN = 1.005


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
class Grouping:
    """Chunks [n] in pipelines of neighbours, one after another.

    ``bounds`` are the first chunk of each pipeline and the end, ``layers`` [d, n] what
    stages recompute, ``diagonals`` is Σ C. ``gap`` is the largest of the exact
    programmes, ``chunking`` the name of the chunks.
    """

    chunked: Chunked
    bounds: tuple[int, ...]
    layers: Integers
    diagonals: int
    simulated_ms: float
    gap: float = 0.0
    chunking: str = "balanced"


_time_of = attrgetter("simulated_ms")


def in_one_pipeline(chunked: Chunked, layers: Integers, cost: PipelineCost) -> Grouping:
    """All chunks in one pipeline that recomputes ``layers`` [d, n]."""
    bounds, diagonals = (0, chunked.chunks), int(layers.max(axis=0).sum())
    return Grouping(chunked, bounds, layers, diagonals, _time_ms(chunked, bounds, layers, cost))


def fastest_possible(chunked: Chunked, cost: PipelineCost) -> Grouping:
    """One pipeline that recomputes nothing, regardless of memory: a bound on time."""
    nothing = np.zeros((cost.shape.stages, chunked.chunks), dtype=np.int64)
    return in_one_pipeline(chunked, nothing, cost)


def fastest(
    candidates: Iterable[Chunked],
    settings: PipelineSettings,
    cost: PipelineCost,
    incumbent_ms: float = math.inf,
) -> Grouping | None:
    """The fastest of the candidates by simulation, if below ``incumbent_ms``.

    In ascending order of :func:`fastest_possible`, no candidate after the first that
    fits so can be faster. Those before it are divided while their bound is below the
    best time.
    """
    bounds = (fastest_possible(chunked, cost) for chunked in candidates)
    tried: list[Grouping] = []
    for bound in sorted(bounds, key=_time_of):
        if bound.simulated_ms >= min([incumbent_ms, *map(_time_of, tried)]):
            break
        problem = checkpoints.problem_of(bound.chunked, 0, bound.chunked.chunks, cost)
        if settings.checkpointing != "full" and checkpoints.fits(problem):
            # Without recomputation: no division of these chunks has a lower price.
            tried.append(bound)
            break
        division = divide(bound.chunked, settings, cost)
        if division is not None:
            tried.append(division)
    return _best_solved(tried, settings, cost, incumbent_ms)


def _best_solved(
    tried: list[Grouping], settings: PipelineSettings, cost: PipelineCost, incumbent_ms: float
) -> Grouping | None:
    """The best of the fastest candidates after refinement.

    Each is divided again by simulated times and its recomputation lowered by a quick
    method. The best is solved thoroughly if it is near ``incumbent_ms``.
    """
    most = _CANDIDATES_TO_REFINE if incumbent_ms == math.inf else _CANDIDATES_TO_REFINE // 2
    best: Grouping | None = None
    for candidate in sorted(tried, key=_time_of):
        again = divide(candidate.chunked, settings, cost, simulated=True) or candidate
        divided = min(again, candidate, key=_time_of)
        most -= len(divided.bounds) - 1
        if best is not None and most < 0:
            break
        solved = _solved(divided, settings, cost, thorough=False)
        best = min([*filter(None, [best]), solved, divided], key=_time_of)
    if best is None or best.simulated_ms > _SOLVING_GAIN * incumbent_ms:
        return best
    return min(_solved(best, settings, cost, thorough=True), best, key=_time_of)


def _time_ms(
    chunked: Chunked, bounds: Sequence[int], layers: Integers, cost: PipelineCost
) -> float:
    """The simulated time of pipelines, one after another."""
    # Planning alone loads Numba.
    from railx.planning.pipeline.kernels import pipelines_ms

    return float(pipelines_ms(_divisible(chunked, cost), np.array(bounds), layers))


def _divisible(chunked: Chunked, cost: PipelineCost) -> Divisible:
    """All chunks, for compiled code."""
    from railx.planning.pipeline.kernels import Divisible

    several = float(cost.shape.stages > 1)
    sends_ms = several * (cost.send.linear_ms * chunked.tokens + cost.send.constant_ms)
    return Divisible(
        checkpoints.problem_of(chunked, 0, chunked.chunks, cost),
        np.array(cost.layer_counts, dtype=np.int64),
        chunked.forward_ms,
        chunked.backward_ms,
        cost.layer_forward_ms(chunked.forward_ms),
        np.asarray(sends_ms, dtype=np.float64),
        chunked.count,
    )


def divide(
    chunked: Chunked, settings: PipelineSettings, cost: PipelineCost, *, simulated: bool = False
) -> Grouping | None:
    """The cheapest division into pipelines of neighbouring chunk counts (eq. 14).

    ``simulated`` uses simulated times instead of the paper's price. Where two sequences
    of one count do not fit together, cut sequences are divided one by one. None where
    one does not fit alone.
    """
    # Planning alone loads Numba.
    from railx.planning.pipeline import kernels

    chunks = _divisible(chunked, cost)
    modes = {"full": kernels.FULL, "none": kernels.NONE}
    mode = modes.get(settings.checkpointing, kernels.ADAPTIVE)
    starts = np.unique(chunked.run_start)
    by_count = starts[np.flatnonzero(np.diff(chunked.count[starts], prepend=0))]
    for units in (by_count, sequence_starts(chunked)):
        edges = np.append(units, chunked.chunks)
        bounds, layers, diagonals, time_ms = kernels.divide(chunks, edges, mode, simulated)
        if len(bounds):
            return Grouping(chunked, tuple(bounds.tolist()), layers, diagonals, time_ms)
    return None


def sequence_starts(chunked: Chunked) -> Integers:
    """The first chunk of each cut sequence, and that of the batched chunks together."""
    starts = np.unique(chunked.run_start)
    counts = chunked.count[starts]
    chosen: Integers = starts[(counts > 1) | (np.diff(counts, prepend=0) != 0)]
    return chosen


def _solved(
    divided: Grouping, settings: PipelineSettings, cost: PipelineCost, *, thorough: bool
) -> Grouping:
    """The pipelines with fewer recomputed layers, where memory decides on them."""
    if settings.checkpointing in ("none", "full"):
        return divided
    layers, diagonals, gap = divided.layers.copy(), 0, 0.0
    for first, end in pairwise(divided.bounds):
        problem = checkpoints.problem_of(divided.chunked, first, end, cost)
        solution = recomputed(problem, settings, thorough=thorough)
        if solution is None:
            # Stages with more layers than the smallest recompute those too.
            diagonals += max(cost.layer_counts) * problem.diagonals
            continue
        layers[:, first:end] = problem.counts(solution.counts)
        diagonals += int(solution.counts.sum())
        gap = max(gap, solution.gap)
    time_ms = _time_ms(divided.chunked, divided.bounds, layers, cost)
    return Grouping(divided.chunked, divided.bounds, layers, diagonals, time_ms, gap)


def recomputed(
    problem: CheckpointProblem, settings: PipelineSettings, *, thorough: bool
) -> checkpoints.Solution | None:
    """Counts of recomputed layers; None where not even the most suffice."""
    if thorough and settings.checkpointing == "exact":
        return checkpoints.exact(problem, most_nodes=settings.exact_nodes)
    counts = checkpoints.fast(problem) if thorough else checkpoints.quick(problem)
    return None if counts is None else checkpoints.Solution(counts, 0.0)
