"""Elastic pipelines of split, hybrid and batched chunks (InfiniPipe).

For numbers of slices K up to a limit the sequence processor (``chunks``) makes chunks
of about equal time. They form one 1F1B pipeline, longest sequences first, or several
one after another (the paper's grouping programme, eq. 14, over classes of equal chunk
count). A group costs what it takes to fill and drain it, and what recomputing takes
(``checkpoints``). Both are weighed together: one pipeline more fills and drains once
more, but its window is narrower. The least closed forms are simulated, and the plan
with the least simulated time wins.

Deviations from the paper:

* the token limit of a chunk is searched beside K. The paper takes the mesh's longest
  slice, which leaves chunks of short sequences far below the time of a slice;
* plans whose longest chunk is within ``most_over_mean`` of the mean come first;
* the grouping prices recomputing by a quick method; the groups that are chosen are
  solved again (``fast``, or the paper's programme with ``checkpointing: exact``);
* where two sequences of one chunk count do not fit together, cut sequences are grouped
  one by one; where short sequences do not fit beside tails, tails stay alone;
* several data-parallel replicas may share a batch, each planned by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from railx.planning import checkpoints
from railx.planning.best_schedule import (
    TRAINED,
    TRIED,
    TriedName,
    best_batch,
    with_schedule,
)
from railx.planning.checkpoints import CheckpointProblem
from railx.planning.chunks import Chunked, Chunking, cut_and_pack, even_mesh, longest_slice, mesh
from railx.planning.groups import Lengths
from railx.planning.occupancy import fits
from railx.planning.plan import Chunk, Pipeline, PipelineBatch, PlanError
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.schedule import backward_order, longest_split, pipeline_ms
from railx.settings import AtLeast, PowerOfTwo
from railx.workload.batches import SampledBatch
from railx.workload.cost import ChunkTime
from railx.workload.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost

__all__ = [
    "PIPELINE",
    "Checkpointing",
    "PipelineSchedule",
    "PipelineSettings",
    "checkpoint_problem",
    "plan_pipeline_batch",
    "share_among_replicas",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
#: What is recomputed: as much as memory asks for, everything, or nothing.
Checkpointing = Literal["adaptive", "exact", "full", "none"]
#: The order of passes: a schedule, an order that is searched for, or the fastest.
PipelineSchedule = TriedName | Literal["best", "best_trained"]

#: Token limits that are tried for each K, as powers between the longest slice and what
#: short sequences of a slice's time hold.
_TOKEN_LIMITS = 8
#: Candidates that are grouped at most, and those of them that are simulated.
_GROUPED = 32
_SIMULATED = 8
#: The closed form takes chunks as equal. Candidates are looked at whose closed form is
#: above the least one by this share: simulated, they may be faster.
_ABOVE = 0.02


@dataclass(frozen=True)
class PipelineSettings(PlannerBase):
    """Pipelines of split, packed and mixed chunks (InfiniPipe).

    The number of slices of the longest sequence with the least simulated time is taken.
    """

    planner: Literal["pipeline"]
    """Which planner it is."""

    stages: Annotated[int, AtLeast(1)]
    """Stages of a replica."""

    replicas: Annotated[int, AtLeast(1)]
    """Replicas that share a batch."""

    sequence_parallel_degree: Annotated[int, PowerOfTwo()]
    """Ranks of each stage, which share the tokens of a chunk."""

    most_slices: Annotated[int, AtLeast(1)]
    """Most slices of equal time into which the longest sequence is cut."""

    alignment_tokens: Annotated[int, AtLeast(1)]
    """Tokens of which every cut is a multiple."""

    chunking: Chunking = "balanced"
    """How sequences become chunks. ``balanced``: slices of equal time, and a new chunk
    where none has time left. ``published``: as the paper prints it, raising the time
    instead. ``even``: slices of equal length and chunks of as many tokens, the paper's
    ablation.
    """

    checkpointing: Checkpointing = "adaptive"
    """Layers that are recomputed. ``adaptive``: as few as memory allows, by a fast
    method; ``exact``: by the paper's integer programme; ``full``: all of them;
    ``none``: none, so that memory decides between pipelines alone.
    """

    schedule: PipelineSchedule = "1f1b"
    """The order in which stages run their passes: a schedule by name, ``searched`` for
    one of our own, ``best`` for the fastest of them that memory holds, or
    ``best_trained`` for the fastest that the training runtime runs. Chunks and
    recomputed layers are chosen for the paper's, ``1f1b``.
    """

    most_over_mean: Annotated[float, AtLeast(1)] | None = 1.2
    """Longest over mean chunk time of the plans that come first; null: the least time
    decides alone.
    """


@dataclass(frozen=True)
class _Group:
    """A pipeline of neighbouring chunks.

    With the layers [d, n] that are recomputed, and the sum of their diagonals.
    """

    first: int
    end: int
    layers: Integers
    diagonals: int


@dataclass(frozen=True)
class _Grouped:
    """Chunks in pipelines and their closed-form time."""

    chunked: Chunked
    groups: tuple[_Group, ...]
    closed_form_ms: float


def plan_pipeline_batch(
    iteration: int, batch: SampledBatch, settings: PipelineSettings, cost: PipelineCost
) -> PipelineBatch:
    """Plan one batch for ``settings.replicas`` pipelines side by side.

    PlanError where a sequence fits no pipeline or a stage's memory holds no chunks; it
    names the sequence, or the stage and the key.
    """
    if len(batch.lengths) < settings.replicas:
        raise PlanError(
            f"planner.replicas: got {settings.replicas}; allowed: at most {len(batch.lengths)}, the"
            " sequences of a batch"
        )
    pipelines: list[Pipeline] = []
    found: list[_Grouped] = []
    for replica, positions in enumerate(
        share_among_replicas(batch.lengths, settings.replicas, cost)
    ):
        sequences, lengths = batch.sequences[positions], batch.lengths[positions]
        best = _best(sequences, lengths, settings, cost)
        if best is None:
            raise _refusal(sequences, lengths, settings, cost)
        found.append(best)
        pipelines += _pipelines(best, replica, cost)
    account = {
        "slices_of_the_longest": [len(one.chunked.cuts) + 1 for one in found],
        "longest_over_mean": [one.chunked.longest_over_mean for one in found],
        "recomputed_diagonals": [sum(group.diagonals for group in one.groups) for one in found],
    }
    planned = PipelineBatch(iteration, tuple(pipelines), account, predicted_other_ms=cost.batch_ms)
    return _scheduled(planned, settings, cost)


def _scheduled(
    batch: PipelineBatch, settings: PipelineSettings, cost: PipelineCost
) -> PipelineBatch:
    """The batch under the schedule of the settings."""
    if settings.schedule == "1f1b":
        return batch
    recompute = settings.checkpointing != "none"
    if settings.schedule == "best" or settings.schedule == "best_trained":
        among = TRIED if settings.schedule == "best" else TRAINED
        return best_batch(batch, cost, among, recompute=recompute)
    changed = []
    for index, pipeline in enumerate(batch.pipelines):
        other = with_schedule(pipeline, settings.schedule, cost, recompute=recompute)
        if other is None or not fits(other, cost):
            raise PlanError(
                f"planner.schedule: got {settings.schedule}, for which batch {batch.iteration},"
                f" pipeline {index} does not fit the stages' memory or layers; allowed: 1f1b, best,"
                " best_trained"
            )
        changed.append(other)
    return replace(batch, pipelines=tuple(changed))


def share_among_replicas(lengths: Lengths, replicas: int, cost: PipelineCost) -> list[Lengths]:
    """Positions [.] for each replica, longest sequence first.

    Each goes to the replica with the least work so far.
    """
    forward, backward, _ = cost.slice_times_ms(np.zeros_like(lengths), lengths)
    work, busy = forward + backward, np.zeros(replicas)
    shared: list[list[int]] = [[] for _ in range(replicas)]
    for position in np.argsort(-lengths, kind="stable").tolist():
        chosen = int(np.argmin(busy))
        shared[chosen].append(position)
        busy[chosen] += work[position]
    return [np.array(positions, dtype=np.int64) for positions in shared]


def checkpoint_problem(pipeline: Pipeline, cost: PipelineCost) -> CheckpointProblem:
    """What a pipeline of a plan keeps on each stage, and what recomputing saves."""
    tokens = np.array([chunk.tokens for chunk in pipeline.chunks])
    split = np.array([chunk.kind == "split" for chunk in pipeline.chunks])
    return _problem(
        tokens,
        split,
        np.array(backward_order(pipeline.chunks)),
        longest_split(pipeline.chunks),
        cost,
    )


def _problem(
    tokens: Integers,
    split: npt.NDArray[np.bool_],
    backward: Integers,
    most_chunks: int,
    cost: PipelineCost,
) -> CheckpointProblem:
    stages = range(cost.shape.stages)
    return CheckpointProblem(
        kept=np.array([cost.activation_bytes(tokens, split, stage) for stage in stages]),
        saved=np.asarray(cost.layer_saving_bytes(tokens, split), dtype=np.float64),
        capacity=np.array([cost.capacity_bytes(stage) for stage in stages], dtype=np.float64),
        layers=min(cost.layers_of(stage) for stage in stages),
        backward=backward,
        longest_split=most_chunks,
    )


def _best(
    sequences: Lengths, lengths: Lengths, settings: PipelineSettings, cost: PipelineCost
) -> _Grouped | None:
    """The pipelines with the least simulated time; None where nothing fits memory."""
    for beside_tails in (True, False):
        candidates = sorted(
            _candidates(sequences, lengths, settings, cost, beside_tails),
            key=lambda one: _least_ms(one, cost),
        )
        limit = settings.most_over_mean or math.inf
        balanced = [one for one in candidates if one.longest_over_mean <= limit]
        others = [one for one in candidates if one.longest_over_mean > limit]
        for some in (balanced, others):
            best = _least_simulated(some, settings, cost)
            if best is not None:
                return best
    return None


def _candidates(
    sequences: Lengths,
    lengths: Lengths,
    settings: PipelineSettings,
    cost: PipelineCost,
    beside_tails: bool,
) -> Iterator[Chunked]:
    """The batch in chunks for every K and token limit, none twice."""
    longest, room = int(lengths.max()), _most_chunk_tokens(settings, cost)
    tried: set[tuple[int, ...]] = set()
    for slices in range(1, settings.most_slices + 1):
        cuts = _cuts(longest, slices, settings, cost)
        if tuple(cuts) in tried:
            continue
        tried.add(tuple(cuts))
        packed: set[bytes] = set()
        for most_tokens in _token_limits(cuts, longest, room, settings, cost):
            made = cut_and_pack(
                sequences, lengths, cuts, most_tokens, cost, settings.chunking, beside_tails
            )
            if made is not None and made.chunk.tobytes() not in packed:
                packed.add(made.chunk.tobytes())
                yield made


def _cuts(length: int, slices: int, settings: PipelineSettings, cost: PipelineCost) -> list[int]:
    if settings.chunking == "even":
        return even_mesh(length, slices, settings.alignment_tokens)
    return mesh(length, slices, cost, settings.alignment_tokens)


def _most_recomputed(settings: PipelineSettings, cost: PipelineCost) -> Integers:
    """The most layers [d, 1] that a stage may recompute."""
    none = settings.checkpointing == "none"
    stages = range(cost.shape.stages)
    return np.array([[0 if none else cost.layers_of(stage)] for stage in stages])


def _most_chunk_tokens(settings: PipelineSettings, cost: PipelineCost) -> int:
    """Tokens of a chunk that every stage holds alone, recomputing what may be."""
    layers = _most_recomputed(settings, cost)[:, 0].tolist()
    return min(
        int(cost.capacity_bytes(stage) / cost.activation_bytes(1, False, stage, recomputed))
        for stage, recomputed in enumerate(layers)
    )


def _token_limits(
    cuts: list[int], longest: int, room: int, settings: PipelineSettings, cost: PipelineCost
) -> list[int]:
    """Most tokens of a chunk, ascending: the paper's, and more up to equal time."""
    least = longest_slice(cuts, longest)
    if least > room:
        return []
    first = cuts[0] if cuts else longest
    slowest_ms = cost.quadratic_ms * first**2 + cost.linear_ms * first
    most = min(room, int(slowest_ms / cost.linear_ms))
    if settings.chunking != "balanced" or most <= least:
        return [least]
    steps = np.geomspace(least, most, _TOKEN_LIMITS)
    return sorted({int(step) for step in steps})


def _least_ms(chunked: Chunked, cost: PipelineCost) -> float:
    """The closed form of one pipeline that recomputes nothing: no grouping is below."""
    total_ms = chunked.total_ms
    return float(total_ms.sum() + (cost.shape.stages - 1) * total_ms.mean())


def _least_simulated(
    candidates: list[Chunked], settings: PipelineSettings, cost: PipelineCost
) -> _Grouped | None:
    """Of candidates by ascending least time, the one with the least simulated time."""
    grouped: list[_Grouped] = []
    limit_ms = math.inf
    for candidate in candidates:
        if len(grouped) >= _GROUPED or _least_ms(candidate, cost) > limit_ms:
            break
        found = _group(candidate, settings, cost)
        if found is not None:
            grouped.append(found)
            limit_ms = min(limit_ms, found.closed_form_ms * (1 + _ABOVE))
    grouped.sort(key=lambda one: one.closed_form_ms)
    best: tuple[float, _Grouped] | None = None
    for one in grouped[:_SIMULATED]:
        if one.closed_form_ms > limit_ms:
            break
        solved = _solved(one, settings, cost)
        total_ms = sum(map(pipeline_ms, _pipelines(solved, 0, cost)))
        if best is None or total_ms < best[0]:
            best = total_ms, solved
    return best[1] if best is not None else None


def _group(chunked: Chunked, settings: PipelineSettings, cost: PipelineCost) -> _Grouped | None:
    """The cheapest division into pipelines of neighbouring chunk counts (eq. 14).

    Where two sequences of one count do not fit together, cut sequences are divided one
    by one.
    """
    starts = _run_starts(chunked.count)
    counts = chunked.count[starts]
    by_count = starts[np.flatnonzero(np.diff(counts, prepend=0))]
    divided = _divided(chunked, by_count, settings, cost)
    if divided is None:
        divided = _divided(chunked, _one_by_one(chunked), settings, cost)
    return divided


def _one_by_one(chunked: Chunked) -> Integers:
    """The first chunk of each cut sequence, and that of the batched chunks together."""
    starts = _run_starts(chunked.count)
    counts = chunked.count[starts]
    chosen: Integers = starts[(counts > 1) | (np.diff(counts, prepend=0) != 0)]
    return chosen


def _divided(
    chunked: Chunked, starts: Integers, settings: PipelineSettings, cost: PipelineCost
) -> _Grouped | None:
    """Neighbouring units joined to pipelines with the least closed-form time.

    ``starts`` [u] are the first chunks of the units. None where a unit does not fit.
    """
    edges = [*starts.tolist(), chunked.chunks]
    best: list[tuple[float, tuple[_Group, ...]]] = [(0.0, ())]
    for end in range(1, len(edges)):
        choice: tuple[float, tuple[_Group, ...]] = (math.inf, ())
        for start in range(end - 1, -1, -1):
            priced = _priced(chunked, edges[start], edges[end], settings, cost)
            if priced is None:
                break  # more units in front only hold more at once
            total = best[start][0] + priced[0]
            if total < choice[0]:
                choice = total, (*best[start][1], priced[1])
        if choice[0] == math.inf:
            return None
        best.append(choice)
    closed_form = best[-1][0] + float(chunked.total_ms.sum())
    return _Grouped(chunked, best[-1][1], closed_form)


def _priced(
    chunked: Chunked, first: int, end: int, settings: PipelineSettings, cost: PipelineCost
) -> tuple[float, _Group] | None:
    """What a pipeline of chunks costs beyond them (eqs. 12-13); None: it does not fit.

    Filling and draining takes (stages - 1) times the mean chunk time, recomputing the
    mean time of a layer for every count (eq. 17).
    """
    problem = _problem_of(chunked, first, end, cost)
    found = _counts(problem, settings, cost, thorough=False)
    if found is None:
        return None
    fill_ms = (cost.shape.stages - 1) * float(chunked.total_ms[first:end].mean())
    layer_ms = float(chunked.forward_ms[first:end].mean()) / _widest(cost)
    return fill_ms + layer_ms * found[0], _Group(first, end, found[1], found[0])


def _solved(grouped: _Grouped, settings: PipelineSettings, cost: PipelineCost) -> _Grouped:
    """The same groups with their counts solved thoroughly."""
    groups = []
    for group in grouped.groups:
        problem = _problem_of(grouped.chunked, group.first, group.end, cost)
        found = _counts(problem, settings, cost, thorough=True)
        assert found is not None  # the quick method found counts
        groups.append(_Group(group.first, group.end, found[1], found[0]))
    return _Grouped(grouped.chunked, tuple(groups), grouped.closed_form_ms)


def _counts(
    problem: CheckpointProblem, settings: PipelineSettings, cost: PipelineCost, *, thorough: bool
) -> tuple[int, Integers] | None:
    """Σ C and the layers [d, n] that are recomputed; None where memory is short."""
    everything = np.array([cost.layers_of(stage) for stage in range(problem.stages)])
    everything = np.repeat(everything[:, None], problem.chunks, axis=1)
    of_all = _widest(cost) * problem.diagonals
    if settings.checkpointing == "none":
        nothing = np.zeros_like(everything)
        return (0, nothing) if checkpoints.fits(problem) else None
    if settings.checkpointing != "full":
        solve = checkpoints.quick
        if thorough:
            exact = settings.checkpointing == "exact"
            solve = checkpoints.exact if exact else checkpoints.fast
        found = solve(problem)
        if found is not None:
            return int(found.sum()), problem.counts(found)
        if len(set(map(cost.layers_of, range(problem.stages)))) == 1:
            return None
    # Stages of more layers than the smallest may have to recompute them too.
    return (of_all, everything) if checkpoints.fits(problem, everything) else None


def _problem_of(chunked: Chunked, first: int, end: int, cost: PipelineCost) -> CheckpointProblem:
    counts = chunked.count[first:end]
    starts = _run_starts(counts)
    place = np.arange(end - first)
    of_run = np.repeat(starts, counts[starts])
    # Runs in order, the chunks of each from its last to its first.
    backward = 2 * of_run + counts - 1 - place
    return _problem(
        chunked.tokens[first:end], chunked.split[first:end], backward, int(counts.max()), cost
    )


def _run_starts(counts: Integers) -> Integers:
    """The first chunk of each cut sequence and of each batched chunk."""
    starts, place = [], 0
    while place < len(counts):
        starts.append(place)
        place += int(counts[place])
    return np.array(starts, dtype=np.int64)


def _widest(cost: PipelineCost) -> int:
    return max(cost.layers_of(stage) for stage in range(cost.shape.stages))


def _pipelines(grouped: _Grouped, replica: int, cost: PipelineCost) -> list[Pipeline]:
    return [
        Pipeline(
            cost.shape.stages,
            replica,
            tuple(
                _chunk(grouped.chunked, chunk, group.layers[:, chunk - group.first], cost)
                for chunk in range(group.first, group.end)
            ),
            cost.shape.degree,
        )
        for group in grouped.groups
    ]


def _chunk(chunked: Chunked, chunk: int, layers: Integers, cost: PipelineCost) -> Chunk:
    time = ChunkTime(
        float(chunked.forward_ms[chunk]),
        float(chunked.backward_ms[chunk]),
        float(chunked.all_to_all_ms[chunk]),
    )
    some = bool(layers.any())
    return Chunk(
        chunked.slices(chunk),
        time.forward_ms,
        time.backward_ms,
        time.all_to_all_ms,
        tuple(layers.tolist()) if some else (),
        cost.layer_forward_ms(time) if some else 0.0,
        predicted_send_ms=cost.send_ms(int(chunked.tokens[chunk])),
    )


def _refusal(
    sequences: Lengths, lengths: Lengths, settings: PipelineSettings, cost: PipelineCost
) -> PlanError:
    """Why nothing fits: the longest sequence alone, or a stage's memory."""
    longest = int(np.argmax(lengths))
    shape = cost.shape
    where = f"a pipeline of {shape.stages} stages of {shape.degree} ranks"
    fits, fails = 0, int(lengths[longest]) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if _holds_alone(middle, settings, cost) else (fits, middle)
    recomputed = "" if settings.checkpointing == "none" else ", every layer recomputed"
    if fits < lengths[longest]:
        return PlanError(
            f"sequence {sequences[longest]}: {lengths[longest]} tokens; allowed: at most {fits},"
            f" the longest that {where} holds in up to {settings.most_slices} slices{recomputed}"
        )
    return _short_memory(sequences, lengths, settings, cost)


def _holds_alone(length: int, settings: PipelineSettings, cost: PipelineCost) -> bool:
    """Whether a sequence fits a pipeline of its own, cut into any number of slices."""
    room = _most_chunk_tokens(settings, cost)
    layers = _most_recomputed(settings, cost)
    for slices in range(settings.most_slices, 0, -1):
        cuts = _cuts(length, slices, settings, cost)
        chunked = cut_and_pack(np.array([0]), np.array([length]), cuts, room, cost)
        if chunked is not None:
            problem = _problem_of(chunked, 0, chunked.chunks, cost)
            if checkpoints.fits(problem, layers):
                return True
    return False


def _short_memory(
    sequences: Lengths, lengths: Lengths, settings: PipelineSettings, cost: PipelineCost
) -> PlanError:
    """Which stage lacks how much memory where the K that needs least runs out of it."""
    least: tuple[float, int, float] | None = None
    layers = _most_recomputed(settings, cost)
    for chunked in _candidates(sequences, lengths, settings, cost, beside_tails=False):
        starts = _one_by_one(chunked)
        most: tuple[float, int, float] = (-math.inf, 0, 0.0)
        for first, end in pairwise([*starts.tolist(), chunked.chunks]):
            problem = _problem_of(chunked, first, end, cost)
            short = checkpoints.peak_bytes(problem, layers) - problem.capacity
            stage = int(short.argmax())
            most = max(most, (float(short[stage]), stage, float(problem.capacity[stage])))
        if least is None or most < least:
            least = most
    assert least is not None  # the longest sequence fits alone
    missing, stage, capacity = least
    recomputed = "no layer" if settings.checkpointing == "none" else "every layer"
    return PlanError(
        f"cluster.memory_gib: leaves stage {stage} {capacity / 2**30:.6g} GiB for activations;"
        f" allowed: at least {(capacity + missing) / 2**30:.6g} GiB, what the chunks of this batch"
        f" need there with {recomputed} recomputed"
    )


def _plan(settings: PipelineSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    shape = PipelineShape(settings.stages, settings.sequence_parallel_degree, settings.replicas)
    cost = build_pipeline_cost(
        task.constants, task.cluster, task.model, task.max_length_tokens, shape, task.cost
    )
    return tuple(
        plan_pipeline_batch(index, batch, settings, cost)
        for index, batch in enumerate(task.batches)
    )


def _ranks(settings: PipelineSettings) -> int:
    """Every rank of every stage."""
    return settings.stages * settings.replicas * settings.sequence_parallel_degree


#: The entry of the list of planners.
PIPELINE = Planner("pipeline", "pipeline", PipelineSettings, _plan, _ranks)
