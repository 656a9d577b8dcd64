"""The fastest schedule for given chunks that memory allows.

InfiniPipe runs 1F1B. For a batch another order may be faster: ``zero_bubble`` delays
the gradients of weights to fill bubbles, ``searched`` is an order of this project for
chunks of unequal time. Each is simulated with the cost model, and its activations must
fit every stage at every moment. Layers are recomputed as planned for 1F1B; a schedule
that needs more memory recomputes further layers, equally many of each chunk, until it
fits.

``interleaved`` cuts the model into more parts, so that ranks have other layers. A
schedule chosen for one batch must not move layers, so ``interleaved`` is reported, but
taken only where a plan's settings name it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Chunk, Pipeline
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.predictions import (
    chunk_bytes,
    fits,
    peak_bytes,
    stage_times,
    virtual_cost,
    weight_ms,
)
from railx.planning.format.schedule import (
    ScheduleChoice,
    coded,
    durations_ms,
    peak_live_chunks,
    pipeline_ms,
    runnable,
    shape_of,
    simulate_pipeline,
)
from railx.planning.format.simulation import SCHEDULES
from railx.planning.packing import fewest

#: Every schedule of :func:`with_schedule`.
SCHEDULE_NAMES: tuple[ScheduleChoice, ...] = (*SCHEDULES, "searched")
#: Candidates for a batch, the paper's first: a tie takes the first.
CANDIDATE_SCHEDULES: tuple[ScheduleChoice, ...] = ("1f1b", "searched", "gpipe", "zero_bubble")
#: Keys of a batch's account about the candidate schedules.
SCHEDULE_ACCOUNT_KEYS = ("schedules", "schedule_ms", "one_f_one_b_ms")
#: The least gain for which a schedule replaces another.
_LESS = 1 - 1e-9


@dataclass(frozen=True)
class Choice:
    """The pipeline with its fastest schedule, and the time of each schedule in ms.

    None where a schedule is impossible or its activations do not fit.
    """

    name: ScheduleChoice
    pipeline: Pipeline
    times_ms: Mapping[str, float | None]


def best_schedule(
    pipeline: Pipeline,
    cost: PipelineCost | None,
    among: Sequence[ScheduleChoice] = CANDIDATE_SCHEDULES,
    recompute: bool = True,
) -> Choice:
    """The pipeline with the fastest schedule that fits; unchanged where none does.

    Without a cost all fit.
    """
    times: dict[str, float | None] = {}
    best_ms, best = math.inf, Choice(pipeline.schedule, pipeline, times)
    for name in among:
        tried = with_schedule(pipeline, name, cost, recompute=recompute)
        if tried is None or (cost is not None and not fits(tried, cost)):
            times[name] = None
            continue
        time_ms = times[name] = pipeline_ms(tried)
        if time_ms < best_ms * _LESS:
            best_ms, best = time_ms, Choice(name, tried, times)
    return best


def best_batch(
    batch: PipelineBatch,
    cost: PipelineCost | None,
    among: Sequence[ScheduleChoice] = CANDIDATE_SCHEDULES,
    recompute: bool = True,
) -> PipelineBatch:
    """A batch whose pipelines each have their fastest schedule.

    Its account names them (``schedules``) and gives the time of the whole batch under
    1F1B (``one_f_one_b_ms``).
    """
    choices = [best_schedule(pipeline, cost, among, recompute) for pipeline in batch.pipelines]
    plain = tuple(_plain(pipeline, cost) for pipeline in batch.pipelines)
    account: dict[str, Any] = {
        "schedules": [choice.name for choice in choices],
        "schedule_ms": [dict(choice.times_ms) for choice in choices],
        "one_f_one_b_ms": replace(batch, pipelines=plain).predicted_ms,
    }
    pipelines = tuple(choice.pipeline for choice in choices)
    return replace(batch, pipelines=pipelines, solver={**batch.solver, **account})


def with_schedule(
    pipeline: Pipeline,
    name: ScheduleChoice,
    cost: PipelineCost | None = None,
    virtual_stages: int = 2,
    recompute: bool = True,
) -> Pipeline | None:
    """The chunks of a pipeline, with their times, under another schedule.

    ``cost`` gives the layers of virtual stages (interleaved), the times of the weights'
    part of a backward pass (zero-bubble), and the memory limits. With ``recompute``,
    schedules other than 1F1B recompute as many more layers of each chunk as memory
    requires; a searched order stays within memory, and the pipeline's own is taken as
    searched. Without ``cost`` a searched order holds as many chunks as 1F1B. None where
    there are fewer layers than virtual stages, or no order fits.
    """
    if name == "searched" and pipeline.order:
        return pipeline
    plain = _plain(pipeline, cost)
    if name == "1f1b":
        return plain
    if name == "searched":
        return _searched(plain, cost)
    scheduled: Pipeline | None = replace(plain, schedule=name)
    if name == "interleaved":
        scheduled = _interleaved(plain, cost, virtual_stages)
    elif name == "zero_bubble" and cost is not None:
        scheduled = _delaying_weights(plain, cost)
    if scheduled is None or cost is None or not recompute:
        return scheduled
    return _fitted(scheduled, cost)


def _delaying_weights(pipeline: Pipeline, cost: PipelineCost) -> Pipeline:
    def delayed(chunk: Chunk) -> Chunk:
        most_ms = chunk.predicted_backward_ms
        return replace(chunk, predicted_weight_ms=min(weight_ms(cost, chunk.tokens), most_ms))

    return replace(pipeline.with_chunks(delayed), schedule="zero_bubble")


def _fitted(pipeline: Pipeline, cost: PipelineCost) -> Pipeline:
    """Recompute as few further layers as fit; unchanged where not even all suffice."""
    if fits(pipeline, cost):
        return pipeline
    part_cost = virtual_cost(cost, pipeline.virtual_stages)
    counts = range(1, max(part_cost.layer_counts) + 1)
    needed = fewest(counts, lambda count: fits(_recomputing(pipeline, part_cost, count), cost))
    return pipeline if needed is None else _recomputing(pipeline, part_cost, needed)


def _recomputing(pipeline: Pipeline, part_cost: PipelineCost, layers: int) -> Pipeline:
    """Recompute at least ``layers`` layers of every chunk on every model stage."""

    def more(chunk: Chunk) -> Chunk:
        planned = chunk.checkpoint_layers or (0,) * pipeline.model_stages
        counts = zip(planned, part_cost.layer_counts, strict=True)
        layer_ms = part_cost.layer_forward_ms(chunk.predicted_forward_ms)
        return replace(
            chunk,
            checkpoint_layers=tuple(max(count, min(layers, most)) for count, most in counts),
            predicted_layer_forward_ms=chunk.predicted_layer_forward_ms or layer_ms,
        )

    return pipeline.with_chunks(more)


def _plain(pipeline: Pipeline, cost: PipelineCost | None) -> Pipeline:
    """The same chunks in 1F1B order, one part of the model a stage."""
    parts, stages = pipeline.virtual_stages, pipeline.stages
    bare = replace(pipeline, order=(), schedule="1f1b", virtual_stages=1)
    if parts == 1:
        return bare
    share = _share(cost, parts)

    def undivided(chunk: Chunk) -> Chunk:
        layers = chunk.checkpoint_layers
        counts = tuple(sum(layers[stage::stages]) for stage in range(stages)) if layers else ()
        return replace(_scaled(chunk, 1 / share), checkpoint_layers=counts)

    return bare.with_chunks(undivided)


def _share(cost: PipelineCost | None, parts: int) -> float:
    """A virtual stage's share of a stage's time, for the largest virtual stage."""
    if cost is None:
        return 1.0 / parts
    return max(virtual_cost(cost, parts).layer_counts) / max(cost.layer_counts)


def _scaled(chunk: Chunk, share: float) -> Chunk:
    """A chunk on so large a share of its layers."""
    return replace(
        chunk,
        predicted_forward_ms=chunk.predicted_forward_ms * share,
        predicted_backward_ms=chunk.predicted_backward_ms * share,
        predicted_all_to_all_ms=chunk.predicted_all_to_all_ms * share,
        predicted_weight_ms=chunk.predicted_weight_ms * share,
    )


def _searched(pipeline: Pipeline, cost: PipelineCost | None) -> Pipeline | None:
    # Planning alone loads Numba.
    from railx.planning.pipeline.refinement import search_orders

    holds = None if cost is None else chunk_bytes(pipeline, cost)
    room = None if cost is None else cost.capacities
    sends = [chunk.predicted_send_ms for chunk in pipeline.chunks]
    searched = search_orders(shape_of(pipeline), durations_ms(pipeline), sends, holds, room)
    return None if searched is None else replace(pipeline, order=coded(searched[1], pipeline))


def _interleaved(pipeline: Pipeline, cost: PipelineCost | None, parts: int) -> Pipeline | None:
    if cost is not None and pipeline.stages * parts > sum(cost.layer_counts):
        return None
    share = _share(cost, parts)
    counts = None if cost is None else virtual_cost(cost, parts).layer_counts

    def part(chunk: Chunk) -> Chunk:
        layers = _divided(chunk.checkpoint_layers, counts, parts)
        return replace(_scaled(chunk, share), checkpoint_layers=layers)

    return replace(pipeline.with_chunks(part), schedule="interleaved", virtual_stages=parts)


def _divided(layers: Sequence[int], counts: Sequence[int] | None, parts: int) -> tuple[int, ...]:
    """Recomputed layers of each stage, divided among its virtual stages."""
    shared = [count // parts + (part < count % parts) for part in range(parts) for count in layers]
    return tuple(map(min, shared, counts) if counts and shared else shared)


def comparison_rows(
    batch: PipelineBatch, cost: PipelineCost | None, parts: int
) -> list[dict[str, Any]]:
    """A row for the plan's own schedule and one for every other of the same chunks."""
    rows = [_compared_row("plan", batch, cost)]
    for name in SCHEDULE_NAMES:
        candidates = [with_schedule(pipeline, name, cost, parts) for pipeline in batch.pipelines]
        pipelines = tuple(pipeline for pipeline in candidates if pipeline is not None)
        if len(pipelines) == len(candidates):
            rows.append(_compared_row(name, replace(batch, pipelines=pipelines), cost))
    paper = next(row["batch_ms"] for row in rows if row["schedule"] == "1f1b")
    # A plan written by hand may say nothing of times.
    return [row | {"of_1f1b": row["batch_ms"] / paper if paper else 1.0} for row in rows]


def _compared_row(name: str, batch: PipelineBatch, cost: PipelineCost | None) -> dict[str, Any]:
    pipelines = batch.pipelines
    times = [time for pipeline in pipelines for time in stage_times(simulate_pipeline(pipeline))]
    busy, idle = sum(time.busy_ms for time in times), sum(time.idle_ms for time in times)
    peak_gib = recomputed_share = fitting = None
    if cost is not None:
        peak_gib = max(max(peak_bytes(pipeline, cost)) for pipeline in pipelines) / 2**30
        fitting = all(fits(pipeline, cost) for pipeline in pipelines)
        # Of the layers, chunk by chunk, those whose forward pass is run twice.
        layers = [chunk.checkpoint_layers for pipeline in pipelines for chunk in pipeline.chunks]
        recomputed_share = sum(map(sum, layers)) / (len(layers) * sum(cost.layer_counts))
    return {
        "schedule": name,
        "batch_ms": batch.predicted_ms,
        "of_1f1b": 1.0,
        "bubble_share": idle / (busy + idle) if busy + idle else 0.0,
        "peak_chunks": max(
            peak_live_chunks(pipeline, stage)
            for pipeline in pipelines
            for stage in range(pipeline.stages)
        ),
        "peak_gib": peak_gib,
        "recomputed_share": recomputed_share,
        "fits": fitting,
        "trains": all(map(runnable, pipelines)),
    }
