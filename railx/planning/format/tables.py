"""Plans as tables."""

from __future__ import annotations

from typing import Any

from railx.planning.format.occupancy import batch_starts, memory_over_time
from railx.planning.format.plan import PipelineBatch, Plan, SequenceParallelBatch
from railx.planning.format.predictions import named_cost_model
from railx.planning.format.schedule import schedule_name, simulate_pipeline
from railx.workload.pipeline_cost import PipelineCost

__all__ = ["memory_rows", "plan_rows", "plan_summary", "schedule_rows"]


def plan_rows(plan: Plan, name: str, corpus: str) -> list[dict[str, Any]]:
    """One row for each group or chunk of a plan.

    Groups are those of a sequence-parallel plan, chunks those of a pipeline plan (times
    on one stage). Columns: plan, planner, corpus, devices, kind, iteration, micro_batch
    (pipeline), group (chunk), first_rank (ranks are consecutive), degree (ranks),
    sequences, tokens, longest_tokens, predicted_ms, predicted_compute_ms,
    predicted_all_to_all_ms, predicted_other_ms (what a planner prices beyond the two),
    chunk_kind (null in a sequence-parallel plan), fidelity.
    """
    head = {
        "plan": name,
        "planner": plan.planner,
        "corpus": corpus,
        "devices": plan.devices,
        "kind": plan.kind,
    }
    if plan.kind == "sequence_parallel":
        return [
            head | row for batch in plan.sequence_parallel_batches() for row in _group_rows(batch)
        ]
    return [head | row for batch in plan.pipeline_batches() for row in _chunk_rows(batch)]


def schedule_rows(plan: Plan, name: str) -> list[dict[str, Any]]:
    """One row for each simulated operation of a pipeline plan, as in a Gantt chart.

    The clock restarts with each batch. Columns: plan, iteration, pipeline, replica,
    schedule (its name, or ``explicit``), stage, part (virtual stage), chunk, kind
    (forward, backward or weight), start_ms, end_ms, fidelity.
    """
    rows: list[dict[str, Any]] = []
    for batch in plan.pipeline_batches():
        for index, (pipeline, start_ms) in enumerate(
            zip(batch.pipelines, batch_starts(batch), strict=True)
        ):
            rows += [
                {
                    "plan": name,
                    "iteration": batch.iteration,
                    "pipeline": index,
                    "replica": pipeline.replica,
                    "schedule": schedule_name(pipeline),
                    "stage": op.stage,
                    "part": op.part,
                    "chunk": op.chunk,
                    "kind": op.kind,
                    "start_ms": op.start_ms,
                    "end_ms": op.end_ms,
                    "fidelity": "analytic",
                }
                for op in simulate_pipeline(pipeline, start_ms)
            ]
    return rows


def memory_rows(plan: Plan, name: str, cost: PipelineCost | None) -> list[dict[str, Any]]:
    """One row for each change of what a stage of a pipeline plan holds.

    It holds that until the next row of the stage. Columns: plan, iteration, pipeline,
    replica, schedule, stage, time_ms, live_chunks, live_tokens, activation_bytes (of
    one rank) and capacity_bytes (null without a cost model), fidelity.
    """
    rows: list[dict[str, Any]] = []
    for batch in plan.pipeline_batches():
        for index, (pipeline, start_ms) in enumerate(
            zip(batch.pipelines, batch_starts(batch), strict=True)
        ):
            simulated = simulate_pipeline(pipeline, start_ms)
            rows += [
                {
                    "plan": name,
                    "iteration": batch.iteration,
                    "pipeline": index,
                    "replica": pipeline.replica,
                    "schedule": schedule_name(pipeline),
                    "stage": sample.stage,
                    "time_ms": sample.time_ms,
                    "live_chunks": sample.chunks,
                    "live_tokens": sample.tokens,
                    "activation_bytes": sample.activation_bytes,
                    "capacity_bytes": None if cost is None else cost.capacity_bytes(sample.stage),
                    "fidelity": "analytic",
                }
                for samples in memory_over_time(pipeline, cost, simulated)
                for sample in samples
            ]
    return rows


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Totals of a plan.

    Batches, sequences and tokens, the mean predicted time of a batch in ms and what of
    it is exposed traffic of ZeRO-3 by the cost model.
    """
    if plan.kind == "sequence_parallel":
        steps = plan.sequence_parallel_batches()
        times = [batch.predicted_ms for batch in steps]
        sequences = sum(
            len(g.sequences) for batch in steps for m in batch.micro_batches for g in m.groups
        )
        tokens = sum(batch.tokens for batch in steps)
        priced = plan.predictions == "cost_model"
        micro_batch_ms = named_cost_model(plan).cost.sharding_ms if priced else 0.0
        sharding_ms = sum(len(batch.micro_batches) for batch in steps) * micro_batch_ms
    else:
        pipelined = plan.pipeline_batches()
        times = [batch.predicted_ms for batch in pipelined]
        sharding_ms = sum(batch.predicted_other_ms for batch in pipelined)
        chunks = [
            chunk
            for batch in pipelined
            for pipeline in batch.pipelines
            for chunk in pipeline.chunks
        ]
        sequences = sum(part.start == 0 for chunk in chunks for part in chunk.slices)
        tokens = sum(chunk.tokens for chunk in chunks)
    return {
        "planner": plan.planner,
        "kind": plan.kind,
        "devices": plan.devices,
        "batches": len(plan.batches),
        "sequences": sequences,
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
    rows = []
    for index, pipeline in enumerate(batch.pipelines):
        for number, chunk in enumerate(pipeline.chunks):
            time_ms = chunk.predicted_forward_ms + chunk.predicted_backward_ms
            rows.append(
                {
                    "iteration": batch.iteration,
                    "micro_batch": index,
                    "group": number,
                    "first_rank": pipeline.ranks[0],
                    "degree": pipeline.stages * pipeline.degree,
                    "sequences": len(chunk.slices),
                    "tokens": chunk.tokens,
                    "longest_tokens": max(part.length for part in chunk.slices),
                    "predicted_ms": time_ms,
                    "predicted_compute_ms": time_ms - chunk.predicted_all_to_all_ms,
                    "predicted_all_to_all_ms": chunk.predicted_all_to_all_ms,
                    "predicted_other_ms": 0.0,
                    "chunk_kind": chunk.kind,
                    "fidelity": "analytic",
                }
            )
    return rows
