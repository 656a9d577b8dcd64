"""Megatron-LM: tensor and context parallelism of one shape for all groups.

Groups of tp · cp ranks, as many side by side as there are devices for (data
parallelism), with ZeRO-1. FlexSP compares with it and names the shapes that were best,
usually TP8 CP8, TP16 CP4 and TP8 CP4 DP2; times of its parts are not published, and its
code is not in FlexSP's public branch. So all of this is derived, from the constants of
the common cost model, the cluster's table of all-to-all bandwidths v(d) and the bytes
of the model:

* **Computation** is the cost model's, shared by tp · cp ranks, its constant included.
* **Sequences** are packed as for static groups (``railx.planning.sequence.static``).
* **Memory**: tensor parallelism divides all model states, ZeRO-1 the optimizer's over
  the N / tp ranks that hold the same part besides. Activations are divided by tp · cp
  (tensor parallelism with sequence parallelism).
* **Tensor and context parallelism** cost what ``railx.performance.tensor_context_cost``
  derives.
* Gradients and parameters exchanged once a step are left out, as ZeRO-3's traffic is
  from the common cost model.

Plans of such groups run as sequence parallelism of degree tp · cp; ``solver`` records
how the ranks of a group divide the work. Their times are the planner's own: the common
cost model cannot give them.

**With pipeline stages**, packs of whole sequences run in 1F1B order through stages of
tp · cp ranks, replicas side by side, with static checkpointing. InfiniPipe compares
with it at TP 8 and CP 2 or 4, with 10, 20 or 55 layers recomputed for its models of 7B,
13B and 30B. How many stages and replicas it took is not published; null takes what is
best by predicted time. Each stage has its share of computation, gathers and exchanges.
Backward has two of three exchanges of a ring, half of the other traffic. A recomputed
layer does all of its forward pass again. A stage's states are divided by tp, the
optimizer's part by all cp · dp ranks that hold the same besides. Replicas wait for one
another at the end of a batch alone. There are no interleaved stages, and packs of up to
a fixed number of tokens are made by best-fit-decreasing, the best number by predicted
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np

from railx.performance.pipeline_cost import (
    PipelineCost,
    PipelineShape,
    build_pipeline_cost,
    element_bytes,
)
from railx.performance.sequence_cost import build_cost_model, model_state_mib
from railx.performance.tensor_context_cost import Exchange, Shape, timed_shape
from railx.planning.format.parts import Chunk, Group, PlanError, refused
from railx.planning.format.plan import PipelineBatch, SequenceParallelBatch
from railx.planning.pipeline.fixed_chunks import FixedChunkSettings, dapple_rule, sizes_of
from railx.planning.planner import Batches, Planner, PlannerBase, PlanningTask, planned_batch
from railx.planning.sequence.static import Levelling, static_assignments
from railx.progress import counted
from railx.settings import AtLeast, Fraction, NonNegative, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch


@dataclass(frozen=True)
class TensorContextSettings(PlannerBase):
    """Tensor and context parallelism of a planner of Megatron-LM's layouts."""

    tensor: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of tensor parallelism; null takes the best by predicted time."""

    context: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of context parallelism; null takes the best by predicted time."""

    exchange: Exchange | None = None
    """How ranks of context parallelism exchange keys and values; null takes the better
    one by predicted time."""

    devices_per_node: Annotated[int, AtLeast(1)] = 8
    """Devices that a node's uplink serves."""


@dataclass(frozen=True)
class MegatronSettings(TensorContextSettings):
    """Megatron-LM: one shape of tensor and context parallelism for all groups."""

    planner: Literal["megatron"]
    """Which planner it is."""

    fill: Annotated[float, Fraction()] = 0.9
    """Share of what the memory of a group holds to which its bin is filled."""

    levelling: Levelling = "full"
    """How the last micro-batch is levelled, as of static groups."""


def shapes(settings: MegatronSettings, task: PlanningTask) -> list[Shape]:
    """The shapes that fit the longest context, by tensor and context parallelism.

    Context parallelism comes with each allowed exchange. PlanError where no shape fits.
    """
    with_room = every_shape(settings, task, partial(_tokens_per_device, task))
    if not with_room:
        divided = f"what divides {task.devices} devices and {task.model.heads} heads"
        got = f"got {settings.tensor}, {settings.context}"
        keys = "planner.tensor, planner.context"
        raise refused(keys, got, f"{divided} and leaves memory for tokens")
    roomiest = max(with_room, key=lambda shape: shape.tokens)
    if roomiest.tokens < task.max_length_tokens:
        most = f"at most {roomiest.tokens}, what TP{roomiest.tensor} CP{roomiest.context} holds"
        raise refused("batch.max_length_tokens", f"got {task.max_length_tokens}", most)
    return [shape for shape in with_room if shape.tokens >= task.max_length_tokens]


def every_shape(
    settings: TensorContextSettings,
    task: PlanningTask,
    tokens_of: Callable[[int], int | None] = lambda tensor: 1,
) -> list[Shape]:
    """Shapes of powers of two of ranks that divide the heads and fill the devices.

    Their tensor parallelism leaves tokens on a device (``tokens_of``); by default
    regardless of memory, with a meaningless token cap.
    """
    heads, constants = task.model.heads, task.constants
    powers = [2**k for k in range(task.devices.bit_length())]
    kinds: tuple[Exchange, ...] = ("ring", "all_to_all")
    timed = []
    for tensor, context, kind in product(powers, powers, kinds):
        alone = context == 1 and settings.exchange is None
        if (
            settings.tensor not in (None, tensor)
            or settings.context not in (None, context)
            or settings.exchange not in (None, kind)
            or heads % tensor
            or task.devices % (tensor * context)
            or (kind == "all_to_all" and (alone or heads // tensor % context))
            or (tokens := tokens_of(tensor)) is None
        ):
            continue
        shape = timed_shape(
            task.cost, task.model, tensor, context, kind, node_devices=settings.devices_per_node,
            tokens_per_device=tokens, element_bytes=element_bytes(constants),
            checkpoint_layers=constants.checkpoint_layers,
        )  # fmt: skip
        timed.append(shape)
    return timed


def _tokens_per_device(task: PlanningTask, tensor: int) -> int | None:
    """The token cap under tensor parallelism and ZeRO-1; None: no memory is left.

    Memory shrinks by the model states beyond those of the constants' ZeRO stage.
    """
    cluster, model, longest = task.cluster, task.model, task.max_length_tokens
    common = model_state_mib(task.constants, cluster, model, longest)
    sharing = replace(cluster, devices=task.devices // tensor)
    constants = replace(task.constants, zero_stage=1)
    needed = model_state_mib(constants, sharing, model, longest) / tensor
    widened = replace(cluster, memory_gib=cluster.memory_gib + (common - needed) / 1024)
    try:
        return build_cost_model(task.constants, widened, model, longest).tokens_per_device
    except SettingsError:
        return None


def _account(shape: Shape, **more: int) -> dict[str, Any]:
    """What a plan says of its shape."""
    return {"tensor": shape.tensor, "context": shape.context, "exchange": shape.exchange, **more}


def plan_megatron_batch(
    iteration: int, batch: SampledBatch, settings: MegatronSettings, devices: int, shape: Shape
) -> SequenceParallelBatch:
    """Plan one batch with groups of one shape."""
    assignments = static_assignments(
        batch.lengths, shape.degree, devices, shape.cost, settings.fill, settings.levelling
    )
    tokens = shape.cost.tokens_per_device
    account = _account(shape, data=devices // shape.degree, tokens_per_device=tokens)

    def times_of(group: Group) -> dict[str, Any]:
        time = shape.group_time_ms(np.asarray(group.lengths, dtype=np.int64))
        other_ms = {"tensor_parallel": time.tensor_ms, "context_parallel": time.context_ms}
        times = {"predicted_ms": time.total_ms, "predicted_compute_ms": time.compute_ms}
        return times | {"predicted_all_to_all_ms": 0.0, "predicted_other_ms": other_ms}

    packed = planned_batch(iteration, batch, assignments, shape.cost, account)
    # The times are those of this shape instead of the cost model's.
    timed = tuple(part.timed(times_of) for part in packed.micro_batches)
    return replace(packed, micro_batches=timed)


def _groups(settings: MegatronSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    plan = partial(plan_megatron_batch, settings=settings, devices=task.devices)
    tried = counted(shapes(settings, task), "shapes")
    return min((task.planned(partial(plan, shape=shape)) for shape in tried), key=_total_ms)


MEGATRON = Planner(
    "megatron", "sequence_parallel", MegatronSettings, _groups, predictions="own", whole_heads=False
)


@dataclass(frozen=True)
class MegatronPipelineSettings(TensorContextSettings):
    """Megatron-LM: tensor, context, pipeline and data parallelism of one shape."""

    planner: Literal["megatron_pipeline"]
    """Which planner it is."""

    tensor: Annotated[int, PowerOfTwo()] | None = 8
    """Ranks of tensor parallelism; null takes the best by predicted time."""

    stages: Annotated[int, AtLeast(1)] | None = None
    """Pipeline stages; null takes the best power of two by predicted time. The replicas
    are as many as the devices leave."""

    checkpointed_layers: Annotated[int, NonNegative()] | None = None
    """Layers of the model that are recomputed in every pack; null takes the fewest with
    which all batches fit memory."""

    chunk_tokens: Annotated[int, AtLeast(1)] | None = None
    """Tokens up to which sequences are packed; null takes the best of the longest
    context, its halves and its multiples by predicted time."""


def stage_cost(task: PlanningTask, shape: Shape, stages: int) -> PipelineCost:
    """Memory of the stages under tensor parallelism and ZeRO-1; its times are unused.

    PlanError where states leave no memory.
    """
    # Stages of one rank, so that no degree of sequence parallelism is asked for.
    states = PipelineShape(stages, 1, task.devices // stages, shape.tensor)
    alone = replace(task.constants, sharding=None)
    try:
        base = build_pipeline_cost(alone, task.cluster, task.model, task.max_length_tokens, states)
    except SettingsError as error:
        if error.key != "cluster.memory_gib":
            raise
        more = "more of either, so that the model's states leave memory for tokens"
        raise refused("planner.tensor", f"got {shape.tensor} with {stages} stages", more) from None
    replicas = task.devices // (shape.degree * stages)
    return replace(base, shape=PipelineShape(stages, shape.degree, replicas))


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


def _stage_choices(
    settings: MegatronPipelineSettings, task: PlanningTask
) -> Iterator[tuple[Shape, int]]:
    """Shapes and stages that fill the devices, no more replicas than sequences."""
    fewest = min(len(batch.lengths) for batch in task.batches)
    for shape in every_shape(settings, task):
        left = task.devices // shape.degree
        most = min(left, task.model.layers)
        tried = [settings.stages] if settings.stages else [2**k for k in range(most.bit_length())]
        for stages in tried:
            if stages <= most and left % stages == 0 and left // stages <= fewest:
                yield shape, stages


def _pipelines(settings: MegatronPipelineSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    # Recomputed layers of groups do not count here: those of the settings do.
    plain = replace(task.constants, checkpoint_layers=0)
    free = replace(task.cluster, tokens_per_device=task.cluster.tokens_per_device or 1)
    cost = build_cost_model(plain, free, task.model, task.max_length_tokens)
    task = replace(task, constants=plain, cost=cost)
    planned: list[tuple[PipelineBatch, ...]] = []
    unfit: list[PlanError] = []
    for shape, stages in _stage_choices(settings, task):
        try:
            planned.append(_with_shape(settings, task, shape, stages))
        except PlanError as error:
            unfit.append(error)
    if planned:
        return min(planned, key=_total_ms)
    if unfit:
        # An error about a sequence is more useful than one of a shape without memory.
        raise max(unfit, key=lambda refusal: str(refusal).startswith("sequence"))
    got = f"got {settings.tensor}, {settings.context}, {settings.stages}"
    divided = f"what divides {task.devices} devices and {task.model.heads} heads"
    allowed = f"{divided}, up to {task.model.layers} stages, for the layers"
    keys = "planner.tensor, planner.context, planner.stages"
    raise refused(keys, got, f"{allowed}, and a sequence for every replica")


def _with_shape(
    settings: MegatronPipelineSettings, task: PlanningTask, shape: Shape, stages: int
) -> tuple[PipelineBatch, ...]:
    """All batches with one shape; PlanError where memory does not hold them."""
    cost = stage_cost(task, shape, stages)
    replicas, layers = cost.shape.replicas, settings.checkpointed_layers
    chunk_settings = FixedChunkSettings(
        settings.planner, stages, shape.degree, replicas=replicas, checkpointed_layers=layers
    )
    account = _account(shape, stages=stages, data=replicas)

    def retimed(run: list[Chunk]) -> list[Chunk]:
        return [_retimed(chunk, shape, cost, task.model.layers) for chunk in run]

    rules = [
        replace(dapple_rule(size), account={**account, "chunk_tokens": size}, retimed=retimed)
        for size in sizes_of(settings.chunk_tokens, task.max_length_tokens, 4, 1)
    ]
    return chunk_settings.plan(rules, task, cost)


def _total_ms(batches: Batches) -> float:
    return sum(batch.predicted_ms for batch in batches)


MEGATRON_PIPELINE = Planner(
    "megatron_pipeline", "pipeline", MegatronPipelineSettings, _pipelines, predictions="own",
    whole_heads=False,
)  # fmt: skip
