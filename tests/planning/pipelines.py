"""Costs of small pipelines, and what the tests of their parts work out on their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from railx.performance.pipeline_cost import PassTime, PipelineCost, PipelineShape
from railx.planning.format.parts import Chunk, Pipeline, Slice
from railx.planning.format.schedule import operations
from railx.planning.format.simulation import (
    ScheduleName,
    Shape,
    orders_of,
    run_orders,
)
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem

__all__ = ["cost_of", "durations_of", "held_bytes", "makespan_ms", "pipeline_of", "problem_of"]


def cost_of(
    stages: int = 2,
    *,
    tokens: float = 1000.0,
    degree: int = 1,
    layers: int | Sequence[int] = 4,
    quadratic_ms: float = 1e-3,
    constant_ms: float = 3.0,
) -> PipelineCost:
    """A pipeline that holds ``tokens`` of its stages' layers on each of them.

    Simple coefficients: backward takes twice as long as forward. A layer keeps 100
    bytes a token, its input is 10 of them, keys and values are 20.
    """
    counts = (layers,) * stages if isinstance(layers, int) else tuple(layers)
    each = 1 / (stages * degree)
    return PipelineCost(
        shape=PipelineShape(stages, degree),
        forward=PassTime(quadratic_ms * each / 3, 0.1 * each / 3, constant_ms / stages / 3),
        backward=PassTime(
            2 * quadratic_ms * each / 3, 0.2 * each / 3, 2 * constant_ms / stages / 3
        ),
        all_to_all=PassTime(0.0, 0.0 if degree == 1 else 0.05 / stages),
        layer_counts=counts,
        capacities=tuple(tokens * count * 100.0 for count in counts),
        layer_bytes=100.0,
        input_bytes=10.0,
        key_value_bytes=20.0,
    )


def pipeline_of(counts: Sequence[int], stages: int, tokens: Sequence[int]) -> Pipeline:
    """Sequences of so many slices of ``tokens`` [chunks] each, all of equal time."""
    chunks, edge = [], 0
    for sequence, count in enumerate(counts):
        own = tokens[edge : edge + count]
        ends = np.cumsum([0, *own]).tolist()
        chunks += [
            Chunk((Slice(sequence, ends[index], ends[index + 1], ends[-1]),), 1.0, 2.0)
            for index in range(count)
        ]
        edge += count
    return Pipeline(stages, 0, tuple(chunks))


def problem_of(
    counts: Sequence[int], stages: int, tokens: Sequence[int], share: float, layers: int = 2
) -> CheckpointProblem:
    """Memory lies between what the stages hold with all layers recomputed and with
    none: ``share`` 0 and 1.
    """
    split = np.array([count > 1 and i < count - 1 for count in counts for i in range(count)])
    many = np.array(tokens, dtype=float)
    saved = many * (90 - 20 * split)
    kept = np.tile(many * layers * (100 + 20 * split), (stages, 1))
    kept[-1] += 40 * many
    ends = np.cumsum(counts)
    backward = np.concatenate(
        [np.arange(end - 1, end - count - 1, -1) for end, count in zip(ends, counts, strict=True)]
    )
    pipeline = pipeline_of(counts, stages, tokens)
    full, none = (
        max(max(held_bytes(pipeline, stage, held)) for stage, held in enumerate(table))
        for table in ((kept - layers * saved).tolist(), kept.tolist())
    )
    capacity = np.full(stages, full + share * (none - full))
    return CheckpointProblem(kept, saved, capacity, layers, backward, max(counts))


def held_bytes(pipeline: Pipeline, stage: int, each: Sequence[float]) -> list[float]:
    """What a stage holds after each pass of its order; ``each`` [n] is a chunk's."""
    held, now = [], 0.0
    for op in operations(pipeline, stage):
        now += each[op.chunk] if op.kind == "forward" else -each[op.chunk]
        held.append(now)
    return held


def durations_of(
    shape: Shape,
    forward_ms: Sequence[float],
    backward_ms: Sequence[Sequence[float]],
    weight_ms: Sequence[float] | None = None,
) -> list[list[float]]:
    """``durations`` of ``run_orders``, by chunk and (backward) model stage; weights'
    parts of backward passes are delayed.
    """
    later = list(weight_ms or [0.0] * shape.chunks)
    table = [list(forward_ms) * shape.parts for _ in range(shape.stages)]
    for model_stage, row in enumerate(backward_ms):
        table[model_stage % shape.stages] += [
            total - deferred for total, deferred in zip(row, later, strict=True)
        ]
    return [row + later * shape.parts for row in table]


def makespan_ms(
    name: ScheduleName,
    shape: Shape,
    forward_ms: Sequence[float],
    backward_ms: Sequence[Sequence[float]],
    weight_ms: Sequence[float] | None = None,
    send_ms: Sequence[float] | None = None,
) -> float:
    """Time of a named schedule; the arguments are those of :func:`durations_of`."""
    takes = durations_of(shape, forward_ms, backward_ms, weight_ms)
    sends = send_ms or [0.0] * shape.chunks
    return run_orders(orders_of(name, shape), takes, sends, shape.parts).makespan_ms
