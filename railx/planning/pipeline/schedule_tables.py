"""What a schedule of a pipeline batch does, as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.occupancy import batch_starts, fits, memory_over_time, stage_times
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import ordered, runnable, schedule_name, simulate_pipeline
from railx.planning.pipeline.best_schedule import SCHEDULE_NAMES, with_schedule

__all__ = ["comparison_rows", "order_rows", "stage_rows"]


def stage_rows(batch: PipelineBatch, cost: PipelineCost | None) -> list[dict[str, Any]]:
    """A row for each stage of each pipeline."""
    rows: list[dict[str, Any]] = []
    for index, (pipeline, start_ms) in enumerate(
        zip(batch.pipelines, batch_starts(batch), strict=True)
    ):
        simulated = simulate_pipeline(pipeline, start_ms)
        memory = memory_over_time(pipeline, cost, simulated)
        for time in stage_times(simulated, start_ms):
            stage_memory = memory[time.stage]
            rows.append(
                {
                    "pipeline": index,
                    "replica": pipeline.replica,
                    "schedule": schedule_name(pipeline),
                    "stage": time.stage,
                    "chunks": len(pipeline.chunks),
                    "start_ms": start_ms,
                    "busy_ms": time.busy_ms,
                    "idle_ms": time.idle_ms,
                    "bubble_share": time.bubble_share,
                    "peak_chunks": max(moment.chunks for moment in stage_memory),
                    "peak_gib": _gib(moment.activation_bytes for moment in stage_memory),
                    "capacity_gib": _gib(
                        [None if cost is None else cost.capacity_bytes(time.stage)]
                    ),
                }
            )
    return rows


def comparison_rows(
    batch: PipelineBatch, cost: PipelineCost | None, virtual_stages: int, use_plan_times: bool
) -> list[dict[str, Any]]:
    """A row for the plan's own schedule and one for every other of the same chunks."""
    rows = [_compared_row("plan", batch, cost)]
    for name in SCHEDULE_NAMES:
        candidates = [
            with_schedule(pipeline, name, cost, virtual_stages, use_plan_times=use_plan_times)
            for pipeline in batch.pipelines
        ]
        pipelines = tuple(pipeline for pipeline in candidates if pipeline is not None)
        if len(pipelines) == len(candidates):
            rows.append(_compared_row(name, replace(batch, pipelines=pipelines), cost))
    paper = next(row["batch_ms"] for row in rows if row["schedule"] == "1f1b")
    # A plan written by hand may say nothing of times.
    return [row | {"of_1f1b": row["batch_ms"] / paper if paper else 1.0} for row in rows]


def _compared_row(name: str, batch: PipelineBatch, cost: PipelineCost | None) -> dict[str, Any]:
    simulated = [simulate_pipeline(pipeline) for pipeline in batch.pipelines]
    times = [time for rows in simulated for time in stage_times(rows)]
    memory = [
        moment
        for pipeline, rows in zip(batch.pipelines, simulated, strict=True)
        for stage_moments in memory_over_time(pipeline, cost, rows)
        for moment in stage_moments
    ]
    busy, idle = sum(time.busy_ms for time in times), sum(time.idle_ms for time in times)
    return {
        "schedule": name,
        "batch_ms": batch.predicted_ms,
        "of_1f1b": 1.0,
        "bubble_share": idle / (busy + idle) if busy + idle else 0.0,
        "peak_chunks": max(moment.chunks for moment in memory),
        "peak_gib": _gib(moment.activation_bytes for moment in memory),
        "recomputed_share": _recomputed(batch, cost),
        "fits": None if cost is None else all(fits(pipeline, cost) for pipeline in batch.pipelines),
        "trains": all(map(runnable, batch.pipelines)),
    }


def _recomputed(batch: PipelineBatch, cost: PipelineCost | None) -> float | None:
    """Share of the layers, chunk by chunk, whose forward pass is run twice."""
    if cost is None:
        return None
    chunks = [chunk for pipeline in batch.pipelines for chunk in pipeline.chunks]
    counted = sum(sum(chunk.checkpoint_layers) for chunk in chunks)
    return counted / (len(chunks) * sum(cost.layer_counts))


def order_rows(batch: PipelineBatch) -> list[dict[str, Any]]:
    """A row for each stage of each pipeline: what it runs, in order."""
    return [
        {"pipeline": index, "stage": stage, "order": " ".join(order)}
        for index, pipeline in enumerate(batch.pipelines)
        for stage, order in enumerate(ordered(pipeline))
    ]


def _gib(values: Iterable[float | None]) -> float | None:
    """The most of some bytes in GiB; None where they are not known."""
    numbers = [value for value in values if value is not None]
    return max(numbers) / 2**30 if numbers else None
