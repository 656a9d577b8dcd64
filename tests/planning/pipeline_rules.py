"""Costs and tasks for the tests of pipeline planners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from railx.performance.pipeline_cost import PassTime, PipelineCost, PipelineShape
from railx.performance.sequence_cost import build_cost_model
from railx.planning.format.files import validate_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import SCHEMA, PipelineBatch, Plan
from railx.planning.format.schedule import operations
from railx.planning.planner import PlanningTask
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.plans import made_for_itself

__all__ = ["batch_of", "check_pipelines", "cost_of", "replayed_peak_bytes", "task_of"]


def cost_of(
    stages: int = 2,
    degree: int = 1,
    replicas: int = 1,
    capacity_bytes: float = 1e9,
    constant_ms: float = 0.0,
    quadratic_ms: float = 1e-3,
) -> PipelineCost:
    """Four layers a stage; a layer keeps 10 bytes of a token, 1 of its input and 2 of
    keys and values. A pass back takes twice as long as one forward.
    """
    return PipelineCost(
        PipelineShape(stages, degree, replicas),
        PassTime(quadratic_ms, 0.1, constant_ms),
        PassTime(2 * quadratic_ms, 0.2, 2 * constant_ms),
        PassTime(0.0, 0.05),
        (4,) * stages,
        (capacity_bytes,) * stages,
        layer_bytes=10.0,
        input_bytes=1.0,
        key_value_bytes=2.0,
    )


def batch_of(lengths: Sequence[int]) -> SampledBatch:
    """Sequences 10, 11, ... of these lengths."""
    return SampledBatch(10 + np.arange(len(lengths)), np.asarray(lengths, dtype=np.int64))


def task_of(*batches: Sequence[int], devices: int = 4, tokens: int | None = 1000) -> PlanningTask:
    """Batches of these lengths for the tiny model; a device holds so many tokens."""
    longest = max(map(max, batches))
    cluster = checked("cluster", "cpu_4", devices=devices, tokens_per_device=tokens)
    model, constants = checked("model", "tiny"), checked("cost_model", "analytic")
    return PlanningTask(
        build_cost_model(constants, cluster, model, longest),
        longest,
        cluster,
        model,
        constants,
        tuple(batch_of(lengths) for lengths in batches),
    )


def replayed_peak_bytes(pipeline: Pipeline, cost: PipelineCost, stage: int) -> float:
    """The most that a rank holds when the stage runs its passes one by one."""
    held = peak = 0.0
    for op in operations(pipeline, stage):
        chunk = pipeline.chunks[op.chunk]
        layers = chunk.checkpoint_layers[stage] if chunk.checkpoint_layers else 0
        own = float(cost.activation_bytes(chunk.tokens, chunk.kind == "split", stage, layers))
        held += own if op.kind == "forward" else -own
        peak = max(peak, held)
    return peak


def check_pipelines(
    made: Sequence[PipelineBatch], task: PlanningTask, cost: PipelineCost, planner: str = "x"
) -> None:
    """Every rule of the format, every sequence once, memory of every stage."""
    validate_plan(made_for_itself(Plan(SCHEMA, "pipeline", planner, task.devices, {}, tuple(made))))
    for batch, drawn in zip(made, task.batches, strict=True):
        held: dict[int, int] = {}
        for pipeline in batch.pipelines:
            assert (pipeline.stages, pipeline.degree) == (cost.shape.stages, cost.shape.degree)
            for stage in range(pipeline.stages):
                assert replayed_peak_bytes(pipeline, cost, stage) <= cost.capacity_bytes(stage)
            for chunk in pipeline.chunks:
                for part in chunk.slices:
                    held[part.sequence] = held.get(part.sequence, 0) + part.tokens
        assert held == dict(zip(drawn.sequences.tolist(), drawn.lengths.tolist(), strict=True))
        assert {one.replica for one in batch.pipelines} == set(range(cost.shape.replicas))
