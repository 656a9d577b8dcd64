"""The simulated schedule of a batch as a Chrome trace, which opens in Perfetto.

One process for each replica and one thread for each stage, a block for each pass and a
counter for what each stage holds. All times are predicted, and the trace says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railx.planning.format.occupancy import batch_starts, memory_over_time
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import Op, schedule_name, simulate_pipeline

if TYPE_CHECKING:
    from railx.workload.pipeline_cost import PipelineCost


__all__ = ["chrome_trace"]


def chrome_trace(batch: PipelineBatch, cost: PipelineCost | None = None) -> dict[str, Any]:
    """The trace as plain data; bytes are left out where there is no cost model.

    Times are microseconds from the start of the batch.
    """
    events: list[dict[str, Any]] = []
    tracks: set[tuple[int, int]] = set()
    for number, (pipeline, start_ms) in enumerate(
        zip(batch.pipelines, batch_starts(batch), strict=True)
    ):
        rows = simulate_pipeline(pipeline, start_ms)
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
                        "pipeline": number,
                        "schedule": schedule_name(pipeline),
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
                values: dict[str, float] = {"chunks": sample.chunks}
                if sample.activation_bytes is not None:
                    values = {"GiB": sample.activation_bytes / 2**30}
                events.append(
                    {
                        "ph": "C",
                        "name": f"stage {sample.stage} holds",
                        "pid": pipeline.replica,
                        "tid": sample.stage,
                        "ts": 1e3 * sample.time_ms,
                        "args": values,
                    }
                )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(replica: int, stage: int) -> list[dict[str, Any]]:
    """What the replica's process and the stage's thread are called."""
    named: list[dict[str, Any]] = [
        {"name": "thread_name", "args": {"name": f"stage {stage}"}},
        {"name": "thread_sort_index", "args": {"sort_index": stage}},
    ]
    if not stage:
        named.append({"name": "process_name", "args": {"name": f"replica {replica}, predicted"}})
    return [{"ph": "M", "pid": replica, "tid": stage, **event} for event in named]
