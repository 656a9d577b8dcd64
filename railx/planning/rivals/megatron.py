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
* **Tensor parallelism** gathers or reduces the activations of a context-parallel rank
  eight times a layer, four forward and four backward, T / cp · h · e bytes each. The
  gather that the backward pass repeats for the gradients of weights is taken to hide
  behind computation. A gather moves as many bytes in and out of a device as an
  all-to-all with a buffer of that size, so inside a node it goes at v(tp). Beyond a
  node each node takes in what it lacks once, at the rate of its uplink, and nothing
  goes faster than v inside the node.
* **A node's uplink** follows from the table: in an all-to-all of d ranks on nodes of n,
  n devices send the share 1 - n/d out, so that it carries n · v(d) · (1 - n/d).
  FlexSP's table gives 41, 36 and 34 GB/s for 16, 32 and 64 ranks.
* **Context parallelism** as a ring passes keys and values on cp - 1 times a layer, and
  backward these and their gradients: 3 (cp - 1) · 2 · d_kv / tp · e · T / cp bytes a
  rank. Where the ring leaves the node, min(tp, n) ranks share the uplink. The exchange
  hides behind the attention of the blocks that it brings in, the share (cp - 1) / cp of
  attention. As an all-to-all (Megatron has both; which one FlexSP ran is
  not published) it moves Ulysses' bytes over cp ranks
  and hides nothing.
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

from railx.performance.decoder import all_to_all_bytes_per_token, key_value_width
from railx.performance.sequence_cost import (
    CostModel,
    ProfiledCostSettings,
    build_cost_model,
    model_state_mib,
)
from railx.planning.format.parts import Group, MicroBatch, PlanError
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Lengths, micro_batch
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.sequence.static import Levelling, static_assignments
from railx.progress import counted
from railx.settings import AtLeast, Fraction, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch

__all__ = ["MEGATRON", "MegatronSettings", "Shape", "ShapeTime", "every_shape", "shapes"]

#: Gathers and reductions of activations that tensor parallelism makes in a layer,
#: forward and backward.
_GATHERS = 8
#: Key and value exchanges of forward and backward: both, then both and their gradients.
_EXCHANGES = 3


#: How ranks of context parallelism exchange keys and values.
Exchange = Literal["ring", "all_to_all"]


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


@dataclass(frozen=True)
class ShapeTime:
    """Predicted time of a group in ms, by term."""

    compute_ms: float
    tensor_ms: float
    context_ms: float

    @property
    def total_ms(self) -> float:
        return self.compute_ms + self.tensor_ms + self.context_ms


@dataclass(frozen=True)
class Shape:
    """A shape of groups and its costs.

    ``gather_ms`` is tensor parallelism per token of a group, ``exchange_ms`` context
    parallelism per token before ``hidden_share`` of attention hides it.
    """

    tensor: int
    context: int
    exchange: Exchange
    cost: CostModel
    gather_ms: float
    exchange_ms: float
    hidden_share: float

    @property
    def degree(self) -> int:
        """Ranks of a group."""
        return self.tensor * self.context

    @property
    def tokens(self) -> int:
        """Most tokens of a group."""
        return self.cost.tokens_per_device * self.degree

    def group_time_ms(self, lengths: Lengths) -> ShapeTime:
        """Time of a group that runs sequences of these lengths [n]."""
        tokens = float(lengths.sum())
        compute = float(self.cost.sequence_ms(lengths).sum()) / self.degree
        attention = self.cost.quadratic_ms * float((lengths.astype(float) ** 2).sum()) / self.degree
        exchange = tokens * self.exchange_ms - self.hidden_share * attention
        return ShapeTime(
            compute + self.cost.constant_ms, tokens * self.gather_ms, max(0.0, exchange)
        )


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
    """A shape with its costs and ``tokens`` tokens a device.

    Where groups recompute layers, the cost model's all-to-alls count those of the
    forward pass again, as do the rates derived from them: right for gathers, half of
    which are forward, and corrected for a ring, a third of which is.
    """
    model, degree, node = task.model, tensor * context, settings.devices_per_node
    element = _bytes_per_element(task)
    exchange_bytes = all_to_all_bytes_per_token(model, element)

    def rate(ranks: int) -> float:
        """Bytes a ms of one device's buffer in an all-to-all."""
        return exchange_bytes / ranks / task.cost.all_to_all_for(ranks)

    def uplink(ranks: int) -> float:
        """Bytes a ms out of a node in an all-to-all of more ranks than its own."""
        return node * rate(ranks) * (1 - node / ranks)

    gather = 0.0
    if tensor > 1:
        slowest = 1 / rate(min(tensor, node))
        if tensor > node:
            slowest = max(slowest, (1 - node / tensor) / uplink(tensor))
        gather = _GATHERS * model.layers * model.hidden * element / context * slowest
    exchange, hidden = 0.0, 0.0
    if context > 1 and kind == "ring":
        width = max(key_value_width(model) // tensor, model.head_width)
        passed = _EXCHANGES * (context - 1) * 2 * width * element * model.layers / context
        per_device = (
            uplink(degree) / min(tensor, node) if degree > node else rate(degree) * (1 - 1 / degree)
        )
        again = task.constants.checkpoint_layers / model.layers
        passed *= (1 + again / 3) / (1 + again / 2)
        exchange, hidden = passed / per_device, (context - 1) / context
    elif context > 1:
        rank_bytes = exchange_bytes / tensor / context
        inside = max(1, node // tensor)
        exchange = (
            rank_bytes * node * (1 - inside / context) / uplink(degree)
            if degree > node
            else rank_bytes / rate(degree)
        )
    # ZeRO-1 has no traffic of ZeRO-3, where the cost model prices that.
    constant = task.cost.constant_ms - task.cost.sharding_ms
    shape_cost = replace(
        task.cost, tokens_per_device=tokens_per_device, constant_ms=constant, sharding_ms=0.0
    )
    return Shape(tensor, context, kind, shape_cost, gather, exchange, hidden)


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
