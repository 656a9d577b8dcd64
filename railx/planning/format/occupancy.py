"""Bubbles and memory of the stages of a pipeline over time.

A chunk is alive on a stage from the beginning of its forward pass to the end of its
backward pass, or of its weight pass where a schedule delays that. Bytes are those of
the cost model for the stage's recomputed layers (InfiniPipe eqs. 5, 9 and 10), and
their maximum is that of the 1F1B window. Virtual stages of a stage share its memory.

Needs the standard library and numpy (through the cost of pipelines) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from railx.performance.pipeline_cost import PassTime, PipelineCost
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import ScheduledOp, pipeline_ms, simulate_pipeline, stage_layers

__all__ = [
    "StageMemory",
    "StageTime",
    "batch_starts",
    "chunk_bytes",
    "fits",
    "memory_over_time",
    "peak_bytes",
    "stage_times",
    "virtual_cost",
    "weight_ms",
]


def weight_ms(cost: PipelineCost, tokens: int) -> float:
    """The weight pass of a chunk: the gradients of weights in its backward pass.

    It is half of the part linear in tokens: a layer's products need as many operations
    for the gradients of weights as for those of inputs, and attention has no weights.
    """
    return cost.backward.linear_ms * tokens / 2


#: Sums of bytes in another order differ in their last bits.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class StageTime:
    """Busy and idle time of a stage, from ``start_ms`` of the pipeline on."""

    stage: int
    busy_ms: float
    idle_ms: float

    @property
    def bubble_share(self) -> float:
        """Share of the pipeline's time in which the stage has nothing to run."""
        total_ms = self.busy_ms + self.idle_ms
        return self.idle_ms / total_ms if total_ms else 0.0


@dataclass(frozen=True)
class StageMemory:
    """Live chunks of all virtual stages of a stage from a moment on.

    ``activation_bytes`` are those of one rank, None without a cost model.
    """

    stage: int
    time_ms: float
    chunks: int
    tokens: int
    activation_bytes: float | None


def stage_times(rows: Sequence[ScheduledOp], start_ms: float = 0.0) -> list[StageTime]:
    """Busy and idle time of every stage of a simulated pipeline."""
    makespan_ms = max(row.end_ms for row in rows) - start_ms
    busy: dict[int, float] = {}
    for row in rows:
        busy[row.stage] = busy.get(row.stage, 0.0) + row.end_ms - row.start_ms
    return [
        StageTime(stage, time, max(0.0, makespan_ms - time)) for stage, time in sorted(busy.items())
    ]


def memory_over_time(
    pipeline: Pipeline,
    cost: PipelineCost | None = None,
    rows: Sequence[ScheduledOp] | None = None,
) -> list[list[StageMemory]]:
    """By stage the moments at which its live chunks change, in order of time.

    ``rows`` are those of :func:`simulate_pipeline` where they are at hand.
    """
    rows = simulate_pipeline(pipeline) if rows is None else rows
    table = None if cost is None else chunk_bytes(pipeline, cost)
    closing = "weight" if any(row.kind == "weight" for row in rows) else "backward"
    # A stage runs one pass at a time: memory freed at a moment is free before the next
    # pass takes some, also where passes take no time.
    changes: list[list[tuple[float, int, int, float]]] = [[] for _ in range(pipeline.stages)]
    for row in rows:
        tokens = pipeline.chunks[row.chunk].tokens
        part = row.part * pipeline.stages + row.stage
        size = 0.0 if table is None else table[part][row.chunk]
        if row.kind == "forward":
            changes[row.stage].append((row.start_ms, 1, tokens, size))
        elif row.kind == closing:
            changes[row.stage].append((row.end_ms, -1, -tokens, -size))
    return [
        _accumulated(stage, stage_changes, table is not None)
        for stage, stage_changes in enumerate(changes)
    ]


def peak_bytes(
    pipeline: Pipeline, cost: PipelineCost, rows: Sequence[ScheduledOp] | None = None
) -> list[float]:
    """The most bytes of activations that a rank of each stage holds at once."""
    return [
        max((sample.activation_bytes or 0.0 for sample in samples), default=0.0)
        for samples in memory_over_time(pipeline, cost, rows)
    ]


def fits(pipeline: Pipeline, cost: PipelineCost) -> bool:
    """Whether activations fit the memory of every stage at every moment."""
    return all(
        peak <= cost.capacity_bytes(stage) * _ROUNDING
        for stage, peak in enumerate(peak_bytes(pipeline, cost))
    )


def batch_starts(batch: PipelineBatch) -> list[float]:
    """Start of each pipeline of a batch in ms, after the earlier ones of its
    replica.
    """
    clock: dict[int, float] = {}
    starts = []
    for pipeline in batch.pipelines:
        start = clock.get(pipeline.replica, 0.0)
        starts.append(start)
        clock[pipeline.replica] = start + pipeline_ms(pipeline)
    return starts


def chunk_bytes(pipeline: Pipeline, cost: PipelineCost) -> list[list[float]]:
    """Activation bytes of a rank, by model stage and chunk."""
    parts = virtual_cost(cost, pipeline.virtual_stages)
    chunks = pipeline.chunks
    tokens = [chunk.tokens for chunk in chunks]
    split = [chunk.kind == "split" for chunk in chunks]
    table: list[list[float]] = []
    for stage in range(pipeline.model_stages):
        recomputed = [
            chunk.checkpoint_layers[stage] if chunk.checkpoint_layers else 0 for chunk in chunks
        ]
        table.append(parts.activation_bytes(tokens, split, stage, recomputed).tolist())
    return table


def virtual_cost(cost: PipelineCost, virtual_stages: int) -> PipelineCost:
    """The cost of a virtual stage, as of ``virtual_stages`` times the stages.

    ValueError where there are fewer layers than virtual stages.
    """
    if virtual_stages == 1:
        return cost
    stages = cost.shape.stages * virtual_stages
    counts = tuple(map(len, stage_layers(sum(cost.layer_counts), stages)))
    share = max(counts) / max(cost.layer_counts)
    return replace(
        cost,
        shape=replace(cost.shape, stages=stages),
        forward=_scaled(cost.forward, share),
        backward=_scaled(cost.backward, share),
        all_to_all=_scaled(cost.all_to_all, share),
        layer_counts=counts,
        capacities=cost.capacities * virtual_stages,
        gather_ms=cost.gather_ms * share,
    )


def _scaled(time: PassTime, share: float) -> PassTime:
    return replace(
        time,
        quadratic_ms=time.quadratic_ms * share,
        linear_ms=time.linear_ms * share,
        constant_ms=time.constant_ms * share,
    )


def _accumulated(
    stage: int, changes: Sequence[tuple[float, int, int, float]], with_bytes: bool
) -> list[StageMemory]:
    samples: list[StageMemory] = []
    chunks = tokens = 0
    size = 0.0
    for time_ms, count, more, much in changes:
        chunks, tokens, size = chunks + count, tokens + more, size + much
        sample = StageMemory(stage, time_ms, chunks, tokens, max(size, 0.0) if with_bytes else None)
        if samples and samples[-1].time_ms == time_ms and count > 0:
            samples[-1] = sample
        else:
            samples.append(sample)
    return samples
