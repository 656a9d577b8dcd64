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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal

import numpy as np

from railx.performance.sequence_cost import (
    ProfiledCostSettings,
    build_cost_model,
    model_state_mib,
)
from railx.performance.tensor_context_cost import Exchange, Shape, timed_shape
from railx.planning.format.parts import Group, MicroBatch, PlanError
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import micro_batch
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.sequence.static import Levelling, static_assignments
from railx.progress import counted
from railx.settings import AtLeast, Fraction, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch

__all__ = ["MEGATRON", "MegatronSettings", "every_shape", "shapes"]


@dataclass(frozen=True)
class MegatronSettings(PlannerBase):
    """Megatron-LM: one shape of tensor and context parallelism for all groups."""

    planner: Literal["megatron"]
    """Which planner it is."""

    tensor: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of tensor parallelism; null takes the best by predicted time."""

    context: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of context parallelism; null takes the best by predicted time."""

    exchange: Exchange | None = None
    """How ranks of context parallelism exchange keys and values; null takes the better
    one by predicted time."""

    devices_per_node: Annotated[int, AtLeast(1)] = 8
    """Devices that a node's uplink serves."""

    fill: Annotated[float, Fraction()] = 0.9
    """Share of what the memory of a group holds to which its bin is filled."""

    levelling: Levelling = "full"
    """How the last micro-batch is levelled, as of static groups."""


def shapes(settings: MegatronSettings, task: PlanningTask) -> list[Shape]:
    """The shapes that fit the longest context, by tensor and context parallelism.

    Context parallelism comes with each allowed exchange. PlanError where no shape fits.
    """
    candidates = [_shape(settings, task, *choice) for choice in _choices(settings, task)]
    with_room = [shape for shape in candidates if shape is not None]
    if not with_room:
        raise PlanError(
            f"planner.tensor, planner.context: got {settings.tensor}, {settings.context}; allowed:"
            f" what divides {task.devices} devices and {task.model.heads} heads and leaves memory"
            " for tokens"
        )
    roomiest = max(with_room, key=lambda shape: shape.tokens)
    if roomiest.tokens < task.max_length_tokens:
        raise PlanError(
            f"batch.max_length_tokens: got {task.max_length_tokens}; allowed: at most"
            f" {roomiest.tokens}, what TP{roomiest.tensor} CP{roomiest.context} holds"
        )
    return [shape for shape in with_room if shape.tokens >= task.max_length_tokens]


def every_shape(settings: MegatronSettings, task: PlanningTask) -> list[Shape]:
    """The shapes regardless of memory; their token cap is meaningless."""
    return [_timed_shape(settings, task, *choice, 1) for choice in _choices(settings, task)]


def _choices(settings: MegatronSettings, task: PlanningTask) -> Iterator[tuple[int, int, Exchange]]:
    """Powers of two of ranks that divide the heads and fill the devices."""
    heads = task.model.heads
    powers = [2**k for k in range(task.devices.bit_length())]
    for tensor, context in product(powers, powers):
        if (
            settings.tensor not in (None, tensor)
            or settings.context not in (None, context)
            or heads % tensor
            or task.devices % (tensor * context)
        ):
            continue
        if settings.exchange != "all_to_all":
            yield tensor, context, "ring"
        alone = context == 1 and settings.exchange is None
        if settings.exchange != "ring" and heads // tensor % context == 0 and not alone:
            yield tensor, context, "all_to_all"


def _shape(
    settings: MegatronSettings, task: PlanningTask, tensor: int, context: int, kind: Exchange
) -> Shape | None:
    """A shape with its costs; None where model states leave no room for tokens."""
    tokens_per_device = _tokens_per_device(task, tensor)
    return (
        None
        if tokens_per_device is None
        else _timed_shape(settings, task, tensor, context, kind, tokens_per_device)
    )


def _timed_shape(
    settings: MegatronSettings,
    task: PlanningTask,
    tensor: int,
    context: int,
    kind: Exchange,
    tokens_per_device: int,
) -> Shape:
    return timed_shape(
        task.cost,
        task.model,
        tensor,
        context,
        kind,
        node_devices=settings.devices_per_node,
        tokens_per_device=tokens_per_device,
        element_bytes=_bytes_per_element(task),
        checkpoint_layers=task.constants.checkpoint_layers,
    )


def _tokens_per_device(task: PlanningTask, tensor: int) -> int | None:
    """The token cap under tensor parallelism and ZeRO-1; None where memory is too
    small.

    Memory shrinks by the model states beyond those of the constants' ZeRO stage.
    """
    cluster, model, longest = task.cluster, task.model, task.max_length_tokens
    common = model_state_mib(task.constants, cluster, model, longest)
    sharing = replace(cluster, devices=task.devices // tensor)
    needed = (
        model_state_mib(replace(task.constants, zero_stage=1), sharing, model, longest) / tensor
    )
    memory_gib = cluster.memory_gib + (common - needed) / 1024
    try:
        cost = build_cost_model(
            task.constants, replace(cluster, memory_gib=memory_gib), model, longest
        )
    except SettingsError:
        return None
    return cost.tokens_per_device


def _bytes_per_element(task: PlanningTask) -> int:
    constants = task.constants
    if not isinstance(constants, ProfiledCostSettings):
        return constants.bytes_per_element
    assert constants.fit is not None  # the cost model was built from it
    return constants.fit.element_bytes


def plan_megatron_batch(
    iteration: int, batch: SampledBatch, settings: MegatronSettings, devices: int, shape: Shape
) -> SequenceParallelBatch:
    """Plan one batch with groups of one shape."""
    assignments = static_assignments(
        batch.lengths, shape.degree, devices, shape.cost, settings.fill, settings.levelling
    )
    packed = (micro_batch(part, batch.sequences, batch.lengths, shape.cost) for part in assignments)
    account = {
        "tensor": shape.tensor,
        "context": shape.context,
        "exchange": shape.exchange,
        "data": devices // shape.degree,
        "tokens_per_device": shape.cost.tokens_per_device,
    }
    return SequenceParallelBatch(iteration, tuple(_timed(part, shape) for part in packed), account)


def _timed(packed: MicroBatch, shape: Shape) -> MicroBatch:
    """A micro-batch with the times of this shape instead of the cost model's."""
    groups = tuple(_timed_group(group, shape) for group in packed.groups)
    return MicroBatch(groups, max(group.predicted_ms for group in groups))


def _timed_group(group: Group, shape: Shape) -> Group:
    time = shape.group_time_ms(np.asarray(group.lengths, dtype=np.int64))
    return replace(
        group,
        predicted_ms=time.total_ms,
        predicted_compute_ms=time.compute_ms,
        predicted_all_to_all_ms=0.0,
        predicted_other_ms={
            "tensor_parallel": time.tensor_ms,
            "context_parallel": time.context_ms,
        },
    )


def _plan(settings: MegatronSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    plans = [
        tuple(
            plan_megatron_batch(index, batch, settings, task.devices, shape)
            for index, batch in enumerate(counted(task.batches, "batches"))
        )
        for shape in counted(shapes(settings, task), "shapes")
    ]
    return min(plans, key=lambda plan: sum(batch.predicted_ms for batch in plan))


#: The entry of the list of planners.
MEGATRON = Planner(
    "megatron", "sequence_parallel", MegatronSettings, _plan, predictions="own", whole_heads=False
)
