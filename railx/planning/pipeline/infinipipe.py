"""Elastic pipelines of split, hybrid and batched chunks (InfiniPipe).

For numbers of slices K up to a limit the sequence processor (``chunks``) makes chunks
of about equal time. They form one 1F1B pipeline, longest sequences first, or several
one after another (the paper's grouping programme, eq. 14, over classes of equal chunk
count). A group costs what it takes to fill and drain it, and what recomputing takes
(``checkpoints``). Both are weighed together: one pipeline more fills and drains once
more, but its window is narrower. Candidates are compared by the simulated times of
their pipelines, the best are grouped once more by simulated times, and the plan with
the least simulated time wins.

Deviations from the paper:

* the token limit of a chunk is searched beside K (``chunks`` says why);
* plans whose longest chunk is within ``most_over_mean`` of the mean come first, where
  that costs less than 5 %;
* the grouping prices recomputing by a quick method; the groups that are chosen are
  solved again (``fast``, or the paper's programme with ``checkpointing: exact``);
* where two sequences of one chunk count do not fit together, cut sequences are grouped
  one by one; where short sequences do not fit beside tails, tails stay alone;
* several data-parallel replicas may share a batch, each planned by itself;
* ``chunking: best`` also tries the chunks of the planners that are compared with this
  one (``fixed_chunks``, ``dyna_pipe``), under their recomputation and under its own, so
  that it is never slower than they are;
* ``chunking: searched``, the default, goes on from these by a search over slices,
  packs, recomputed layers and the order of passes together (``refinement``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Chunk, Pipeline, PlanError, refused
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import (
    TRAINABLE_SCHEDULES,
    ScheduleChoice,
    coded,
    pipeline_ms,
    runs_of,
)
from railx.planning.packing import Floats, longest_fitting
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.best_schedule import CANDIDATE_SCHEDULES, best_batch
from railx.planning.pipeline.chunks import (
    Chunked,
    chunk_of,
    cut_and_pack,
    even_mesh,
    mesh,
    pipeline_of,
    recomputing,
    share_among_replicas,
)
from railx.planning.pipeline.dyna_pipe import plan_dyna_pipe_batch
from railx.planning.pipeline.fixed_chunks import ChunkRule, every_rule, layers_to_try
from railx.planning.pipeline.grouping import (
    Grouping,
    PipelineSettings,
    divide,
    fastest,
    in_one_pipeline,
    recomputed,
    sequence_starts,
)
from railx.planning.planner import Planner, PlanningTask, check_replicas
from railx.workload.batches import SampledBatch

if TYPE_CHECKING:
    from railx.planning.pipeline.refinement import Refined

__all__ = ["PIPELINE", "PipelineSettings", "plan_pipeline_batch"]

#: Token limits that are tried for each K, as powers between the longest slice and what
#: short sequences of a slice's time hold.
_TOKEN_LIMITS = 8
#: Share of the time that keeping ``most_over_mean`` may cost.
_MAX_SLOWDOWN_FOR_BALANCE = 0.05
#: Passes of a round of the search for each pass of the pipeline, and their limits.
_PASSES_PER_OPERATION = 40_000
_FEWEST_PASSES, _MOST_PASSES = 500_000, 10_000_000
#: Slices of the longest sequence that a short search begins with at most.
_FEW_SLICES = 12
#: Share of the time from which on other schedules of the first plan are not looked at.
_SEARCH_GAIN = 0.005


def plan_pipeline_batch(
    iteration: int,
    batch: SampledBatch,
    settings: PipelineSettings,
    cost: PipelineCost,
    context: int | None = None,
) -> PipelineBatch:
    """Plan one batch for ``settings.replicas`` pipelines side by side.

    ``context`` is the longest allowed sequence; None: that of the batch. PlanError
    where a sequence fits no pipeline or a stage's memory is too small for any chunk; it
    names the sequence, or the stage and the key.
    """
    check_replicas(settings.replicas, len(batch.lengths))
    longest = context or int(batch.lengths.max())
    if settings.chunking == "searched":
        return _searched(iteration, batch, settings, cost, longest)
    planned = _planned(iteration, batch, settings, cost, longest)
    if settings.chunking == "best":
        other = _with_sorted_micro_batches(iteration, batch, settings, cost)
        candidates = filter(None, [planned, other])
        planned = min(candidates, key=lambda candidate: candidate.predicted_ms, default=None)
    if planned is None:
        tried = replace(settings, chunking="balanced") if settings.chunking == "best" else settings
        raise _refusal(batch, tried, cost)
    return _ordered(planned, settings, cost)


def _searched(
    iteration: int,
    batch: SampledBatch,
    settings: PipelineSettings,
    cost: PipelineCost,
    context: int,
) -> PipelineBatch:
    """The batch by the search, which starts from plans of different kinds of chunks."""
    plain = replace(settings, schedule="1f1b", most_over_mean=None)
    balanced = replace(plain, chunking="balanced")
    first = None
    if not settings.effort:
        few = replace(balanced, most_slices=min(settings.most_slices, _FEW_SLICES))
        first = _planned(iteration, batch, few, cost, context)
    if first is None:
        best = replace(plain, chunking="best")
        first = plan_pipeline_batch(iteration, batch, best, cost, context)
    if settings.schedule not in ("best", "best_trained", "searched"):
        return _ordered(first, settings, cost)
    starts = [first]
    if set(first.solver["chunking"]) != {"balanced"}:
        other = _planned(iteration, batch, balanced, cost, context)
        starts += [] if other is None else [other]
    solver: Any = first.solver
    pipelines, account = [], {key: list(values) for key, values in solver.items()}
    for replica in range(settings.replicas):
        alternatives = [
            [pipeline for pipeline in start.pipelines if pipeline.replica == replica]
            for start in starts
        ]
        # Sorted micro-batches are shared among replicas in another way.
        members = _members(alternatives[0])
        alternatives = [shared for shared in alternatives if _members(shared) == members]
        refined = _refined(alternatives, settings, cost)
        pipelines += alternatives[0] if refined is None else [refined]
        if refined is not None:
            for key, value in _account("searched", refined.chunks).items():
                account[key][replica] = value
    searched = replace(first, pipelines=tuple(pipelines), solver=account)
    if searched.predicted_ms >= first.predicted_ms * (1 - _SEARCH_GAIN):
        candidates = [_ordered(batch_, settings, cost) for batch_ in (first, searched)]
        return min(candidates, key=lambda candidate: candidate.predicted_ms)
    # 1F1B and GPipe are among the orders of the search.
    names: tuple[ScheduleChoice, ...] = ("searched", "zero_bubble")
    return best_batch(
        searched, cost, names[: 1 + (settings.schedule == "best")],
        recompute=settings.checkpointing != "none",
    )  # fmt: skip


def _members(pipelines: list[Pipeline]) -> set[int]:
    """The sequences of pipelines."""
    chunks = chain.from_iterable(pipeline.chunks for pipeline in pipelines)
    return {part.sequence for chunk in chunks for part in chunk.slices}


def _refined(
    alternatives: list[list[Pipeline]], settings: PipelineSettings, cost: PipelineCost
) -> Pipeline | None:
    """One pipeline of a replica by the search from several plans of it.

    A short round from each, a long one from the best of them. None where no round is
    faster than the first plan.
    """
    # Planning alone loads Numba.
    from railx.planning.pipeline.refinement import refine

    counts = [sum(len(pipeline.chunks) for pipeline in pipelines) for pipelines in alternatives]
    passes = max(_PASSES_PER_OPERATION * cost.shape.stages * max(counts), _FEWEST_PASSES)
    passes = min(passes, _MOST_PASSES // settings.replicas)
    #: Slices by run and chunk, and each chunk's recomputed layers by stage.
    starts: list[tuple[Any, Any]] = [
        (
            [[chunk.slices for chunk in run] for p in pipelines for run in runs_of(p.chunks)],
            [chunk.checkpoint_layers for p in pipelines for chunk in p.chunks],
        )
        for pipelines in alternatives
    ]
    best: Refined | None = None
    for number in range(len(starts) + settings.effort):
        if number < len(starts):
            start, length = starts[number], passes // 8
        elif best is not None:
            start, length = (best.runs, best.layers), passes
        refined = refine(
            *start, cost, settings.most_slices, settings.alignment_tokens, length, number,
            recompute=settings.checkpointing in ("adaptive", "exact"),
        )  # fmt: skip
        if refined is not None and (best is None or refined.time_ms < best.time_ms):
            best = refined
    if best is None or best.time_ms >= sum(map(pipeline_ms, alternatives[0])):
        return None
    parts = zip(chain.from_iterable(best.runs), best.layers, strict=True)
    chunks = [chunk_of(slices, cost, layers) for slices, layers in parts]
    pipeline = pipeline_of(chunks, alternatives[0][0].replica, cost.shape)
    return replace(pipeline, order=coded(best.orders, pipeline))


def _account(name: str, chunks: Sequence[Chunk], diagonals: int | None = None) -> dict[str, Any]:
    """What a batch's account says of a replica; ``diagonals`` is Σ C if known."""
    times = np.array([chunk.predicted_ms for chunk in chunks])
    if diagonals is None:
        diagonals = sum(max(chunk.checkpoint_layers, default=0) for chunk in chunks)
    return {
        "chunking": name,
        "slices_of_the_longest": max(map(len, runs_of(chunks))),
        "longest_over_mean": float(times.max() / times.mean()),
        "recomputed_diagonals": diagonals,
    }


def _of_replicas(accounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The account of a batch from those of its replicas."""
    return {key: [account[key] for account in accounts] for key in accounts[0]}


def _planned(
    iteration: int,
    batch: SampledBatch,
    settings: PipelineSettings,
    cost: PipelineCost,
    context: int,
) -> PipelineBatch | None:
    """The batch in 1F1B order, each replica by itself; None where one does not fit."""
    pipelines, accounts = [], []
    processed = settings
    if settings.chunking == "best":
        processed = replace(settings, chunking="balanced", most_over_mean=None)
    for replica, share in enumerate(share_among_replicas(batch, settings.replicas, cost)):
        best = _best_processed(share, processed, cost)
        if settings.chunking == "best":
            best = _with_fixed_chunks(share, best, settings, cost, context)
        if best is None:
            return None
        of_replica = _pipelines(best, replica, cost)
        chunks = [chunk for pipeline in of_replica for chunk in pipeline.chunks]
        gap = {"checkpoint_gap": best.gap} if settings.checkpointing == "exact" else {}
        accounts.append(_account(best.chunking, chunks, best.diagonals) | gap)
        pipelines += of_replica
    account = _of_replicas(accounts)
    return PipelineBatch(iteration, tuple(pipelines), account, predicted_other_ms=cost.batch_ms)


def _with_sorted_micro_batches(
    iteration: int, batch: SampledBatch, settings: PipelineSettings, cost: PipelineCost
) -> PipelineBatch | None:
    """The batch in DynaPipe's chunks; None where it does not fit."""
    planned = plan_dyna_pipe_batch(iteration, batch, _given_layers(settings, cost), cost)
    if planned is None:
        return None
    pipelines = [_recomputing(pipeline, settings, cost) for pipeline in planned.pipelines]
    account = _of_replicas([_account("dyna_pipe", pipeline.chunks) for pipeline in pipelines])
    return replace(planned, pipelines=tuple(pipelines), solver=account)


def _recomputing(pipeline: Pipeline, settings: PipelineSettings, cost: PipelineCost) -> Pipeline:
    """The pipeline under our recomputation where that is faster."""
    given = settings.checkpointing in ("none", "full")
    if given or not any(chunk.checkpoint_layers for chunk in pipeline.chunks):
        return pipeline
    problem = checkpoints.problem_of_pipeline(pipeline, cost)
    solution = recomputed(problem, settings, thorough=True)
    if solution is None:
        return pipeline
    layers = problem.counts(solution.counts).T.tolist()
    other = replace(pipeline, chunks=tuple(map(recomputing, pipeline.chunks, layers)))
    return min(pipeline, other, key=pipeline_ms)


def _ordered(batch: PipelineBatch, settings: PipelineSettings, cost: PipelineCost) -> PipelineBatch:
    """The batch under the schedule of the settings."""
    if settings.schedule == "1f1b":
        return batch
    several = {"best": CANDIDATE_SCHEDULES, "best_trained": TRAINABLE_SCHEDULES}
    among: Any = several.get(settings.schedule, (settings.schedule,))
    scheduled = best_batch(batch, cost, among, recompute=settings.checkpointing != "none")
    times: Any = scheduled.solver["schedule_ms"]
    for index, of_pipeline in enumerate(times):
        if len(among) == 1 and of_pipeline[settings.schedule] is None:
            unfit = f"for which batch {batch.iteration}, pipeline {index} does not fit"
            got = f"got {settings.schedule}, {unfit} the stages' memory or layers"
            raise refused("planner.schedule", got, "1f1b, best, best_trained")
    return scheduled


def _best_processed(
    share: SampledBatch, settings: PipelineSettings, cost: PipelineCost
) -> Grouping | None:
    """A replica's fastest pipelines of the sequence processor's chunks; None: unfit."""
    for beside_tails in (True, False):
        candidates = list(_candidates(share, settings, cost, beside_tails))
        limit = settings.most_over_mean or math.inf
        balanced = [chunked for chunked in candidates if chunked.longest_over_mean <= limit]
        others = [chunked for chunked in candidates if chunked.longest_over_mean > limit]
        best = fastest(balanced, settings, cost)
        incumbent_ms = math.inf
        if best is not None:
            incumbent_ms = best.simulated_ms * (1 - _MAX_SLOWDOWN_FOR_BALANCE)
        other = fastest(others, settings, cost, incumbent_ms)
        if other is not None and other.simulated_ms < incumbent_ms:
            best = other
        if best is not None:
            return replace(best, chunking=settings.chunking)
    return None


def _with_fixed_chunks(
    share: SampledBatch,
    best: Grouping | None,
    settings: PipelineSettings,
    cost: PipelineCost,
    context: int,
) -> Grouping | None:
    """The best so far or, where faster, pipelines of chunks of fixed rules.

    First under our recomputation and grouping, then under that of the rules in one
    pipeline.
    """
    rules = every_rule(context, settings.most_slices, settings.alignment_tokens, cost)
    fixed = [(rule, rule.chunked(share, cost)) for rule in rules]
    distinct: dict[bytes, tuple[ChunkRule, Chunked]] = {}
    for rule, chunked in fixed:
        distinct.setdefault(chunked.chunk.tobytes() + chunked.start.tobytes(), (rule, chunked))
    limit_ms = math.inf if best is None else best.simulated_ms
    grouped = fastest((chunked for _, chunked in distinct.values()), settings, cost, limit_ms)
    if grouped is not None and grouped.simulated_ms < limit_ms:
        name = next(rule.name for rule, chunked in distinct.values() if chunked is grouped.chunked)
        best = replace(grouped, chunking=name)
    statics = (_static(rule, chunked, settings, cost) for rule, chunked in fixed)
    groupings = filter(None, [best, *statics])
    return min(groupings, key=lambda grouping: grouping.simulated_ms, default=None)


def _given_layers(settings: PipelineSettings, cost: PipelineCost) -> int | None:
    """How many layers the settings recompute; None where memory decides."""
    return {"none": 0, "full": sum(cost.layer_counts)}.get(settings.checkpointing)


def _static(
    rule: ChunkRule, chunked: Chunked, settings: PipelineSettings, cost: PipelineCost
) -> Grouping | None:
    """One pipeline of the fewest recomputed layers; None where none suffice."""
    counts = layers_to_try(_given_layers(settings, cost), cost)
    fewest = rule.fewest_layers(chunked, counts, cost)
    if fewest is None:
        return None
    layers = rule.layers(chunked, fewest, cost)
    if settings.checkpointing == "none" and layers.any():
        return None
    return replace(in_one_pipeline(chunked, layers, cost), chunking=rule.name)


def _candidates(
    share: SampledBatch, settings: PipelineSettings, cost: PipelineCost, beside_tails: bool
) -> Iterator[Chunked]:
    """For every K the sequences in distinct chunks, by rising token limits."""
    chunking: Any = settings.chunking
    rows, lengths = share.sequences, share.lengths
    longest, room = int(lengths.max()), _most_chunk_tokens(settings, cost)
    tried: set[tuple[int, ...]] = set()
    for slices in range(1, settings.most_slices + 1):
        if settings.chunking == "even":
            cuts = even_mesh(longest, slices, settings.alignment_tokens)
        else:
            cuts = mesh(longest, slices, cost, settings.alignment_tokens)
        if tuple(cuts) in tried:
            continue
        tried.add(tuple(cuts))
        packed: dict[bytes, Chunked] = {}
        for most_tokens in _token_limits(cuts, longest, room, settings, cost):
            chunked = cut_and_pack(rows, lengths, cuts, most_tokens, cost, chunking, beside_tails)
            if chunked is not None:
                packed.setdefault(chunked.chunk.tobytes(), chunked)
        yield from packed.values()


def _most_recomputed(settings: PipelineSettings, cost: PipelineCost) -> list[int]:
    """The most layers that each stage may recompute."""
    return [layers * (settings.checkpointing != "none") for layers in cost.layer_counts]


def _most_chunk_tokens(settings: PipelineSettings, cost: PipelineCost) -> int:
    """Tokens of the largest chunk that fits alone, with all recomputed that may be."""
    return min(
        int(cost.capacity_bytes(stage) / cost.activation_bytes(1, False, stage, recomputed))
        for stage, recomputed in enumerate(_most_recomputed(settings, cost))
    )


def _token_limits(
    cuts: list[int], longest: int, room: int, settings: PipelineSettings, cost: PipelineCost
) -> list[int]:
    """Most tokens of a chunk, ascending: the paper's, and more up to equal time."""
    smallest = int(np.diff([0, *cuts, longest]).max())
    if smallest > room:
        return []
    first = cuts[0] if cuts else longest
    slowest_ms = cost.quadratic_ms * first**2 + cost.linear_ms * first
    most = min(room, int(slowest_ms / cost.linear_ms))
    if settings.chunking != "balanced" or most <= smallest:
        return [smallest]
    steps = np.geomspace(smallest, most, _TOKEN_LIMITS)
    return sorted({int(step) for step in steps})


def _pipelines(grouped: Grouping, replica: int, cost: PipelineCost) -> list[Pipeline]:
    chunked, chunks = grouped.chunked, []
    for chunk, layers in enumerate(grouped.layers.T.tolist()):
        forward_ms, recomputes = float(chunked.forward_ms[chunk]), any(layers)
        chunks.append(
            Chunk(
                chunked.slices(chunk),
                forward_ms,
                float(chunked.backward_ms[chunk]),
                float(chunked.all_to_all_ms[chunk]),
                checkpoint_layers=tuple(layers) if recomputes else (),
                predicted_layer_forward_ms=cost.layer_forward_ms(forward_ms) if recomputes else 0.0,
                predicted_send_ms=cost.send_ms(int(chunked.tokens[chunk])),
            )
        )
    spans = map(slice, grouped.bounds, grouped.bounds[1:])
    return [pipeline_of(chunks[span], replica, cost.shape) for span in spans]


def _refusal(batch: SampledBatch, settings: PipelineSettings, cost: PipelineCost) -> PlanError:
    """Why no replica fits: its longest sequence alone, or a stage's memory."""
    shares = share_among_replicas(batch, settings.replicas, cost)
    unfit = next(share for share in shares if _best_processed(share, settings, cost) is None)
    longest = int(np.argmax(unfit.lengths))
    sequence, length = unfit.sequences[longest], int(unfit.lengths[longest])
    most = longest_fitting(length, lambda single: _holds_alone(single, settings, cost))
    if most == length:
        return _short_memory(unfit, settings, cost)
    where = f"a pipeline of {cost.shape.stages} stages of {cost.shape.degree} ranks"
    recomputed = "" if settings.checkpointing == "none" else ", every layer recomputed"
    how = f"holds in up to {settings.most_slices} slices{recomputed}"
    allowed = f"at most {most}, the longest that {where} {how}"
    return refused(f"sequence {sequence}", f"{length} tokens", allowed)


def _holds_alone(single: SampledBatch, settings: PipelineSettings, cost: PipelineCost) -> bool:
    """Whether a sequence alone fits a pipeline under any number of slices."""
    alone = _candidates(single, settings, cost, beside_tails=False)
    return any(divide(chunked, settings, cost) for chunked in alone)


def _short_memory(share: SampledBatch, settings: PipelineSettings, cost: PipelineCost) -> PlanError:
    """The stage with too little memory, and its deficit, at the K with the least."""
    layers = np.array(_most_recomputed(settings, cost))[:, None]

    def missing(chunked: Chunked) -> Floats:
        """Bytes [d] that stages lack at most for a cut sequence by itself."""
        edges = [*sequence_starts(chunked).tolist(), chunked.chunks]
        problems = (checkpoints.problem_of(chunked, *ends, cost) for ends in pairwise(edges))
        peaks = [checkpoints.peak_bytes(problem, layers) for problem in problems]
        return np.asarray(np.max(peaks, axis=0) - cost.capacities)

    candidates = _candidates(share, settings, cost, beside_tails=False)
    missing_bytes = min(map(missing, candidates), key=np.max)
    stage = int(missing_bytes.argmax())
    short, capacity = float(missing_bytes[stage]), cost.capacity_bytes(stage)
    recomputed = "no layer" if settings.checkpointing == "none" else "every layer"
    how = f"with {recomputed} recomputed"
    if cost.given_tokens is not None:
        tokens = math.ceil(cost.given_tokens * (1 + short / capacity) * (1 - 1e-12))
        needed = f"at least {tokens}, what the chunks of this batch need on stage {stage} {how}"
        return refused("cluster.tokens_per_device", f"got {cost.given_tokens}", needed)
    got = f"leaves stage {stage} {capacity / 2**30:.6g} GiB for activations"
    needed = f"at least {(capacity + short) / 2**30:.6g} GiB, what the chunks of this batch need"
    return refused("cluster.memory_gib", got, f"{needed} there {how}")


def _plan(settings: PipelineSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    cost = task.pipelines(settings.shape)
    longest = task.max_length_tokens
    return task.planned(partial(plan_pipeline_batch, settings=settings, cost=cost, context=longest))


PIPELINE = Planner("pipeline", "pipeline", PipelineSettings, _plan)
