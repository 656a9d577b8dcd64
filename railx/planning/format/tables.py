"""Plans as tables, and a simulated schedule as a Chrome trace.

The trace opens in Perfetto: a process for each replica, a thread for each stage, a
block for each pass and a counter for the memory of each stage. All times are predicted,
and marked so in the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import PipelineBatch, Plan, SequenceParallelBatch, sequence_lengths
from railx.planning.format.predictions import (
    memory_over_time,
    named_cost_model,
    peak_bytes,
    stage_times,
)
from railx.planning.format.schedule import (
    Op,
    ScheduledOp,
    ordered,
    peak_live_chunks,
    schedule_name,
    simulate_pipeline,
)


def plan_rows(plan: Plan, name: str, corpus: str) -> list[dict[str, Any]]:
    """One row for each group (sequence-parallel) or chunk (pipeline) of a plan.

    Times of chunks are those on one stage. Columns: plan, planner, corpus, devices,
    kind, iteration, micro_batch (pipeline), group (chunk), first_rank (ranks are
    consecutive), degree (ranks), sequences, tokens, longest_tokens, predicted_ms,
    predicted_compute_ms, predicted_all_to_all_ms, predicted_other_ms (further terms of
    a planner), chunk_kind (null in a sequence-parallel plan), fidelity.
    """
    head: dict[str, Any] = {"plan": name, "planner": plan.planner, "corpus": corpus}
    head |= {"devices": plan.devices, "kind": plan.kind}
    rows_of: Any = _group_rows if plan.kind == "sequence_parallel" else _chunk_rows
    return [head | row for batch in plan.batches for row in rows_of(batch)]


def schedule_rows(plan: Plan, name: str) -> list[dict[str, Any]]:
    """One row for each simulated operation of a pipeline plan, as in a Gantt chart.

    The clock restarts with each batch. Columns: plan, iteration, pipeline, replica,
    schedule (its name, or ``explicit``), stage, part (virtual stage), chunk, kind
    (forward, backward or weight), start_ms, end_ms, fidelity.
    """
    return [
        {"plan": name, "iteration": batch.iteration, **head, **vars(op), "fidelity": "analytic"}
        for batch in plan.pipeline_batches()
        for head, _, simulated in _simulations(batch)
        for op in simulated
    ]


def memory_rows(plan: Plan, name: str, cost: PipelineCost | None) -> list[dict[str, Any]]:
    """One row for each change of a stage's live chunks, valid until its next row.

    Columns: plan, iteration, pipeline, replica, schedule, stage, time_ms, live_chunks,
    live_tokens, activation_bytes (of one rank) and capacity_bytes (null without a cost
    model), fidelity.
    """
    return [
        {
            "plan": name,
            "iteration": batch.iteration,
            **head,
            **vars(sample),
            "capacity_bytes": None if cost is None else cost.capacity_bytes(sample.stage),
            "fidelity": "analytic",
        }
        for batch in plan.pipeline_batches()
        for head, pipeline, simulated in _simulations(batch)
        for samples in memory_over_time(pipeline, cost, simulated)
        for sample in samples
    ]


def stage_rows(batch: PipelineBatch, cost: PipelineCost | None) -> list[dict[str, Any]]:
    """One row for each stage of each pipeline: busy time, bubbles and peak memory."""
    rows: list[dict[str, Any]] = []
    for head, pipeline, simulated in _simulations(batch):
        peaks = None if cost is None else peak_bytes(pipeline, cost)
        start_ms = simulated[0].start_ms
        rows += [
            {
                **head,
                "stage": time.stage,
                "chunks": len(pipeline.chunks),
                "start_ms": start_ms,
                "busy_ms": time.busy_ms,
                "idle_ms": time.idle_ms,
                "bubble_share": time.bubble_share,
                "peak_chunks": peak_live_chunks(pipeline, time.stage),
                "peak_gib": None if peaks is None else peaks[time.stage] / 2**30,
                "capacity_gib": None if cost is None else cost.capacity_bytes(time.stage) / 2**30,
            }
            for time in stage_times(simulated, start_ms)
        ]
    return rows


def order_rows(batch: PipelineBatch) -> list[dict[str, Any]]:
    """One row for each stage of each pipeline: its passes in order."""
    return [
        {"pipeline": index, "stage": stage, "order": " ".join(order)}
        for index, pipeline in enumerate(batch.pipelines)
        for stage, order in enumerate(ordered(pipeline))
    ]


def _simulations(
    batch: PipelineBatch,
) -> Iterator[tuple[dict[str, Any], Pipeline, list[ScheduledOp]]]:
    """Simulated pipelines of a batch, with the columns that their rows share."""
    timed = zip(batch.pipelines, batch.spans_ms, strict=True)
    for index, (pipeline, (start_ms, _)) in enumerate(timed):
        head = {"pipeline": index, "replica": pipeline.replica, "schedule": schedule_name(pipeline)}
        yield head, pipeline, simulate_pipeline(pipeline, start_ms)


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Totals of a plan, and the mean predicted time of a batch in ms.

    By the cost model, also the exposed traffic of ZeRO-3 in that time.
    """
    times = [batch.predicted_ms for batch in plan.batches]
    tokens = sum(batch.tokens for batch in plan.batches)
    if plan.kind == "sequence_parallel":
        priced = plan.predictions == "cost_model"
        micro_batch_ms = named_cost_model(plan).cost.sharding_ms if priced else 0.0
        micro_batches = sum(len(step.micro_batches) for step in plan.sequence_parallel_batches())
        sharding_ms = micro_batches * micro_batch_ms
    else:
        sharding_ms = sum(batch.predicted_other_ms for batch in plan.pipeline_batches())
    return {
        "planner": plan.planner,
        "kind": plan.kind,
        "devices": plan.devices,
        "batches": len(plan.batches),
        "sequences": sum(len(list(sequence_lengths(batch))) for batch in plan.batches),
        "total_tokens": tokens,
        "predicted_batch_ms": sum(times) / len(times),
        "predicted_sharding_ms": sharding_ms / len(times),
        "predicted_tokens_per_second": tokens / sum(times) * 1000,
    }


def _group_rows(batch: SequenceParallelBatch) -> list[dict[str, Any]]:
    return [
        {
            "iteration": batch.iteration,
            "micro_batch": index,
            "group": number,
            "first_rank": group.ranks[0],
            "degree": group.degree,
            "sequences": len(group.sequences),
            "tokens": group.tokens,
            "longest_tokens": max(group.lengths),
            "predicted_ms": group.predicted_ms,
            "predicted_compute_ms": group.predicted_compute_ms,
            "predicted_all_to_all_ms": group.predicted_all_to_all_ms,
            "predicted_other_ms": sum(group.predicted_other_ms.values(), 0.0),
            "chunk_kind": None,
            "fidelity": "analytic",
        }
        for index, micro_batch in enumerate(batch.micro_batches)
        for number, group in enumerate(micro_batch.groups)
    ]


def _chunk_rows(batch: PipelineBatch) -> list[dict[str, Any]]:
    return [
        {
            "iteration": batch.iteration,
            "micro_batch": index,
            "group": number,
            "first_rank": pipeline.ranks[0],
            "degree": pipeline.stages * pipeline.degree,
            "sequences": len(chunk.slices),
            "tokens": chunk.tokens,
            "longest_tokens": max(part.length for part in chunk.slices),
            "predicted_ms": chunk.predicted_ms,
            "predicted_compute_ms": chunk.predicted_ms - chunk.predicted_all_to_all_ms,
            "predicted_all_to_all_ms": chunk.predicted_all_to_all_ms,
            "predicted_other_ms": 0.0,
            "chunk_kind": chunk.kind,
            "fidelity": "analytic",
        }
        for index, pipeline in enumerate(batch.pipelines)
        for number, chunk in enumerate(pipeline.chunks)
    ]


def chrome_trace(batch: PipelineBatch, cost: PipelineCost | None = None) -> dict[str, Any]:
    """The trace as plain data, times in microseconds; no bytes without a cost model."""
    events: list[dict[str, Any]] = []
    tracks: set[tuple[int, int]] = set()
    for head, pipeline, rows in _simulations(batch):
        for stage in range(pipeline.stages):
            if (pipeline.replica, stage) not in tracks:
                tracks.add((pipeline.replica, stage))
                events += _names(pipeline.replica, stage)
        for row in rows:
            chunk = pipeline.chunks[row.chunk]
            events.append(
                {
                    "ph": "X",
                    "name": Op(row.kind, row.chunk, row.part).code,
                    "cat": row.kind,
                    "pid": pipeline.replica,
                    "tid": row.stage,
                    "ts": 1e3 * row.start_ms,
                    "dur": 1e3 * (row.end_ms - row.start_ms),
                    "args": {
                        "pipeline": head["pipeline"],
                        "schedule": head["schedule"],
                        "chunk": row.chunk,
                        "kind": chunk.kind,
                        "tokens": chunk.tokens,
                        "sequences": [part.sequence for part in chunk.slices],
                        "fidelity": "analytic",
                    },
                }
            )
        for samples in memory_over_time(pipeline, cost, rows):
            for sample in samples:
                values: dict[str, float] = {"chunks": sample.live_chunks}
                if sample.activation_bytes is not None:
                    values = {"GiB": sample.activation_bytes / 2**30}
                moment = {"tid": sample.stage, "ts": 1e3 * sample.time_ms}
                counter = {"ph": "C", "name": f"stage {sample.stage} holds"}
                events.append({**counter, "pid": pipeline.replica, **moment, "args": values})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(replica: int, stage: int) -> list[dict[str, Any]]:
    """The trace's names of the replica's process and the stage's thread."""
    named: list[dict[str, Any]] = [
        {"name": "thread_name", "args": {"name": f"stage {stage}"}},
        {"name": "thread_sort_index", "args": {"sort_index": stage}},
    ]
    if not stage:
        named.append({"name": "process_name", "args": {"name": f"replica {replica}, predicted"}})
    return [{"ph": "M", "pid": replica, "tid": stage, **event} for event in named]
