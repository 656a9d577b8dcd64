"""Megatron-LM with pipeline stages: TP x CP ranks a stage, PP stages, DP replicas.

What ``megatron`` is for groups this is for pipelines: packs of whole sequences run in
1F1B order through stages of tp · cp ranks, replicas side by side, with ZeRO-1 and
static checkpointing. InfiniPipe compares with it at TP 8 and CP 2 or 4, with
10, 20 or 55 layers recomputed for its models of 7B, 13B and 30B. How many stages and
replicas it took is not published; null takes what is best by predicted time.

* **Times** are those of ``megatron``, divided among the stages: each has
  its share of computation, gathers and exchanges. Backward has two of three exchanges
  of a ring, half of the other traffic. A recomputed layer does all of its forward pass
  again.
* **Memory**: a stage's states divided by tp, the optimizer's part by all cp · dp ranks
  that hold the same besides (ZeRO-1). Activations as everywhere (InfiniPipe eqs. 5-10),
  over tp · cp ranks.
* **Replicas** wait for one another at the end of a batch alone.

Where it differs from Megatron-LM: no interleaved stages, and packs of up to a fixed
number of tokens by best-fit-decreasing, the best number by predicted time. Gradients
exchanged once a step are left out, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.performance.decoder import stage_parameters
from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import build_cost_model, state_share
from railx.performance.tensor_context_cost import Exchange, Shape
from railx.planning.format.parts import Chunk, PlanError
from railx.planning.format.plan import PipelineBatch
from railx.planning.pipeline.chunk_rules import (
    ChunkRule,
    FixedChunkSettings,
    dapple_rule,
    plan_with_rules,
    sizes_of,
)
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.rivals.megatron import MegatronSettings, every_shape
from railx.settings import AtLeast, NonNegative, PowerOfTwo

__all__ = ["MEGATRON_PIPELINE", "MegatronPipelineSettings", "stage_cost"]


@dataclass(frozen=True)
class MegatronPipelineSettings(PlannerBase):
    """Megatron-LM: tensor, context, pipeline and data parallelism of one shape."""

    planner: Literal["megatron_pipeline"]
    """Which planner it is."""

    tensor: Annotated[int, PowerOfTwo()] | None = 8
    """Ranks of tensor parallelism; null takes the best by predicted time."""

    context: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of context parallelism; null takes the best by predicted time."""

    exchange: Exchange | None = None
    """How ranks of context parallelism exchange keys and values; null takes the better
    one by predicted time."""

    stages: Annotated[int, AtLeast(1)] | None = None
    """Pipeline stages; null takes the best power of two by predicted time. The replicas
    are as many as the devices leave."""

    checkpointed_layers: Annotated[int, NonNegative()] | None = None
    """Layers of the model that are recomputed in every pack; null takes the fewest with
    which all batches fit memory."""

    chunk_tokens: Annotated[int, AtLeast(1)] | None = None
    """Tokens up to which sequences are packed; null takes the best of the longest
    context, its halves and its multiples by predicted time."""

    devices_per_node: Annotated[int, AtLeast(1)] = 8
    """Devices that a node's uplink serves."""


def stage_cost(task: PlanningTask, shape: Shape, stages: int) -> PipelineCost:
    """Memory of the stages under tensor parallelism and ZeRO-1; its times are unused.

    PlanError where states leave no memory.
    """
    replicas = task.devices // (shape.degree * stages)
    # A cluster with a given number of tokens per device refuses no states.
    cluster = replace(task.cluster, tokens_per_device=task.cluster.tokens_per_device or 1)
    base = build_pipeline_cost(
        task.constants, cluster, task.model, task.max_length_tokens, PipelineShape(stages, 1)
    )
    capacities = base.capacities
    if task.cluster.tokens_per_device is None:
        same = shape.context * replicas
        states = task.constants.state_bytes_per_parameter * state_share(1, same) / shape.tensor
        capacities = tuple(
            task.cluster.memory_gib * 2**30
            - states * stage_parameters(task.model, task.max_length_tokens, stage, stages)
            for stage in range(stages)
        )
        if min(capacities) <= 0:
            raise PlanError(
                f"planner.tensor: got {shape.tensor} with {stages} stages; allowed: more of either,"
                " so that the model's states leave memory for tokens"
            )
    full_shape = PipelineShape(stages, shape.degree, replicas)
    return replace(base, shape=full_shape, capacities=capacities)


def _retimed(chunk: Chunk, shape: Shape, cost: PipelineCost, layers: int) -> Chunk:
    """A pack with the times of this shape on a stage."""
    lengths = np.array([part.length for part in chunk.slices], dtype=np.int64)
    time = shape.group_time_ms(lengths)
    widest = cost.layers_of(0)
    share = widest / layers
    forward = share * (
        time.compute_ms * shape.cost.forward_share
        + time.tensor_ms / 2
        + time.context_ms / (3 if shape.exchange == "ring" else 2)
    )
    return replace(
        chunk,
        predicted_forward_ms=forward,
        predicted_backward_ms=share * time.total_ms - forward,
        predicted_all_to_all_ms=0.0,
        predicted_layer_forward_ms=forward / widest,
    )


def _choices(settings: MegatronPipelineSettings, task: PlanningTask) -> Iterator[tuple[Shape, int]]:
    """Shapes and numbers of stages that fill the devices, no more replicas than
    sequences.
    """
    chosen = MegatronSettings(
        "megatron",
        settings.tensor,
        settings.context,
        settings.exchange,
        settings.devices_per_node,
        1.0,
        "full",
    )
    fewest = min(len(batch.lengths) for batch in task.batches)
    for shape in every_shape(chosen, task):
        left = task.devices // shape.degree
        most = min(left, task.model.layers)
        tried = [settings.stages] if settings.stages else [2**k for k in range(most.bit_length())]
        for stages in tried:
            if stages <= most and left % stages == 0 and left // stages <= fewest:
                yield shape, stages


def _plan(settings: MegatronPipelineSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    # Recomputed layers of groups do not count here: those of the settings do.
    plain = replace(task.constants, checkpoint_layers=0)
    free = replace(task.cluster, tokens_per_device=task.cluster.tokens_per_device or 1)
    cost = build_cost_model(plain, free, task.model, task.max_length_tokens)
    task = replace(task, constants=plain, cost=cost)
    best: tuple[PipelineBatch, ...] | None = None
    refused: list[PlanError] = []
    for shape, stages in _choices(settings, task):
        try:
            batches = _with_shape(settings, task, shape, stages)
        except PlanError as error:
            refused.append(error)
            continue
        if best is None or _total_ms(batches) < _total_ms(best):
            best = batches
    if best is None:
        # An error about a sequence is more useful than one about a shape without
        # memory.
        named = [refusal for refusal in refused if str(refusal).startswith("sequence")]
        raise next(iter(named + refused), None) or PlanError(
            f"planner.tensor, planner.context, planner.stages: got {settings.tensor},"
            f" {settings.context}, {settings.stages}; allowed: what divides {task.devices} devices"
            f" and {task.model.heads} heads, up to {task.model.layers} stages, for the layers, and"
            " a sequence for every replica"
        )
    return best


def _with_shape(
    settings: MegatronPipelineSettings, task: PlanningTask, shape: Shape, stages: int
) -> tuple[PipelineBatch, ...]:
    """All batches with one shape; PlanError where memory does not hold them."""
    cost = stage_cost(task, shape, stages)
    replicas = cost.shape.replicas
    chunk_settings = FixedChunkSettings(
        settings.planner,
        stages,
        shape.degree,
        replicas=replicas,
        checkpointed_layers=settings.checkpointed_layers,
    )
    account = {
        "tensor": shape.tensor,
        "context": shape.context,
        "exchange": shape.exchange,
        "stages": stages,
        "data": replicas,
    }

    def rule(size: int) -> ChunkRule:
        return replace(
            dapple_rule(size),
            account={**account, "chunk_tokens": size},
            retimed=lambda run: [_retimed(chunk, shape, cost, task.model.layers) for chunk in run],
        )

    sizes = sizes_of(settings.chunk_tokens, task.max_length_tokens, 4, 1)
    return plan_with_rules(chunk_settings, task, [rule(size) for size in sizes], cost)


def _total_ms(batches: tuple[PipelineBatch, ...]) -> float:
    return sum(batch.predicted_ms for batch in batches)


#: The entry of the list of planners.
MEGATRON_PIPELINE = Planner(
    "megatron_pipeline",
    "pipeline",
    MegatronPipelineSettings,
    _plan,
    predictions="own",
    whole_heads=False,
)
