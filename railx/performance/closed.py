"""The time of a training step in closed form, for many plans at once.

A layer is timed pass by pass (forward, backward, recomputation) from its operators:

* a matrix product of m x k by k x n takes 2 m n k (1 + d (1/m + 1/n + 1/k)) operations'
  time at the reached share of the peak: d is what tiles and the filling of a pipeline
  waste at each end, so that small products reach less;
* everything else takes the time of its memory traffic;
* no pass is shorter than the host needs to launch it.

Passes add up to stages, stages to a pipeline by its schedule, and what replicas
exchange is added where it does not hide behind computation. docs/performance.md derives
each term and says where not to trust it. Times are seconds, arrays float[plans].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from railx.performance.devices import Device
from railx.performance.models import LayerKind, Model, Product
from railx.performance.networks import Kind, Network
from railx.performance.plans import RECOMPUTATIONS, SCHEDULES, SHARDINGS, Array, Plans
from railx.performance.programs import Constants, Program

__all__ = ["PARTS", "LayerPasses", "Setting", "StepTimes", "step_times"]

#: What a step's time is made of, in order.
PARTS = (
    "compute",
    "recompute",
    "tensor",
    "context",
    "expert",
    "pipeline",
    "bubble",
    "data",
    "optimizer",
    "fixed",
)
_FULL, _SELECTIVE = RECOMPUTATIONS.index("full"), RECOMPUTATIONS.index("selective")
#: Share of a layer's products that selective recomputation of every second one repeats:
#: wk, wo and w3 of Llama's layers (4/13 to 0.4 of the weights).
_SELECTED_PRODUCTS = 0.37
_GPIPE = SCHEDULES.index("gpipe")
_PARAMETERS = SHARDINGS.index("parameters")


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything but the plan: what is trained, on what, by which program."""

    model: Model
    device: Device
    network: Network
    program: Program
    constants: Constants
    precision: str = "bf16"
    recipe: str = ""
    """Key of the constants' ``gains``: the recipe of a low precision."""
    asynchronous_tensor: bool = False
    """Whether tensor ranks' collectives overlap with products, piece by piece."""

    @cached_property
    def product_flops(self) -> float:
        """Operations per second of a large matrix product."""
        gain = self.constants.gains.get(self.recipe, 1.0) if self.recipe else 1.0
        return self.device.peak_flops(self.precision) * self.constants.matmul_share * gain

    @cached_property
    def attention_flops(self) -> float:
        """Operations per second of attention; it runs in 16 bits."""
        peaks = [
            self.device.peak_flops(name)
            for name in ("bf16", "fp16")
            if name in self.device.peak_tflops
        ]
        return max(peaks) * self.constants.attention_share

    @cached_property
    def memory_bytes_s(self) -> float:
        """Bytes per second of memory that are reached."""
        return self.device.memory_gb_s * 1e9 * self.constants.memory_share

    @property
    def element_bytes(self) -> float:
        """Bytes of an activation that is sent or stored."""
        return 2.0


@dataclass(frozen=True, eq=False)
class LayerPasses:
    """The passes of one layer: computation and what its ranks exchange, float[plans].

    ``forward`` and ``backward`` are computation alone, ``again`` what a backward pass
    computes once more; the others are seconds of communication of one forward pass
    (``_forward``) or of a backward pass with what it repeats (``_backward``).
    """

    forward: Array
    backward: Array
    again: Array
    tensor_forward: Array
    tensor_backward: Array
    context_forward: Array
    context_backward: Array
    expert_forward: Array
    expert_backward: Array

    @property
    def forward_s(self) -> Array:
        """A forward pass of the layer, communication included."""
        return self.forward + self.tensor_forward + self.context_forward + self.expert_forward

    @property
    def backward_s(self) -> Array:
        """A backward pass of the layer, recomputation and communication included."""
        return (
            self.backward
            + self.again
            + self.tensor_backward
            + self.context_backward
            + self.expert_backward
        )


class Layers:
    """Prices the layers of a setting under a table of plans."""

    def __init__(self, setting: Setting, plans: Plans) -> None:
        self.setting, self.plans = setting, plans
        self.tokens = plans["micro_batch"] * plans["sequence_tokens"] / plans["context"]
        self.tensor = plans["tensor"].astype(float)

    def inside(self, axis: str) -> Array:
        """Members of a group along an axis that share a node."""
        return self.plans.members_in_node(axis, self.setting.network.node_devices)

    def collective(self, kind: Kind, size_bytes: Array, axis: str) -> Array:
        """Seconds of a collective along an axis."""
        members = self.plans[axis]
        return self.setting.network.time_s(kind, size_bytes, members, self.inside(axis))

    def product(self, rows: Array, inputs: Array, outputs: Array, times: float = 1.0) -> Array:
        """Seconds of ``times`` products [rows, inputs] x [inputs, outputs], or 0."""
        tile = self.setting.constants.matmul_tile
        waste = 1 + tile * (1 / rows + 1 / inputs + 1 / outputs)
        return times * 2 * rows * inputs * outputs * waste / self.setting.product_flops

    def memory(self, size_bytes: Array) -> Array:
        """Seconds to read and write some bytes."""
        return size_bytes / self.setting.memory_bytes_s

    def weights_product(self, product: Product) -> Array:
        """Seconds of a product of a layer, forward."""
        model = self.setting.model
        inputs = np.full_like(self.tensor, product.inputs)
        outputs = np.full_like(self.tensor, product.outputs)
        if product.split == "column":
            outputs = outputs / self.tensor
        elif product.split == "row":
            inputs = inputs / self.tensor
        if not product.expert:
            return self.product(self.tokens, inputs, outputs)
        # A rank holds some of the experts and gets its share of all tokens' visits.
        experts = np.maximum(model.experts / self.plans["expert"], 1.0)
        rows = self.tokens * model.experts_per_token / experts
        return experts * self.product(rows, inputs, outputs)

    def attention(self, kind: LayerKind) -> tuple[Array, Array]:
        """Seconds of scores and weighted values: products, and the scores' traffic."""
        setting, model, plans = self.setting, self.setting.model, self.plans
        heads = model.heads / self.tensor
        sequence = plans["sequence_tokens"].astype(float)
        fused = setting.program.fused_attention
        if fused:
            attended = np.array(
                [model.attended_tokens(kind, float(length)) for length in np.unique(sequence)]
            )[np.unique(sequence, return_inverse=True)[1]]
        else:
            attended = sequence
        flops = 2 * self.tokens * attended * heads * (model.key_width + model.values_width)
        scores = 0.0 if fused else setting.program.score_traffic * self.tokens * sequence * heads
        return flops / setting.attention_flops, self.memory(scores + np.zeros_like(flops))

    def passes(self, kind: LayerKind) -> LayerPasses:
        """The passes of one layer."""
        setting, plans, program = self.setting, self.plans, self.setting.program
        constants = setting.constants
        products = sum(self.weights_product(product) for product in kind.products)
        attention, scores = self.attention(kind)
        spread = np.where(plans["sequence_parallel"], self.tensor, 1.0)
        elementwise = self.memory(
            self.tokens
            * (
                program.hidden_traffic * setting.model.hidden / spread
                + program.wide_traffic * kind.feed_forward / self.tensor
            )
        )
        # A fused backward pass computes the scores again: five products for two.
        attention_backward = (2.5 if program.fused_attention else 2.0) * attention
        traffic = scores + elementwise
        forward = products + attention + traffic
        backward = 2 * products + attention_backward + program.backward_traffic * traffic
        tensor_forward, tensor_backward = self._tensor()
        context_forward, context_backward = self._context(kind, attention)
        expert_forward, expert_backward = self._expert(kind)
        doublings = np.log2(self.tensor) * constants.collective_host_s
        floor_forward = constants.forward_host_s + 2 * doublings
        floor_backward = constants.backward_host_s + 2 * doublings
        forward = np.maximum(forward, floor_forward - tensor_forward)
        backward = np.maximum(backward, floor_backward - tensor_backward)
        share = plans["recompute_layers"]
        full = (plans["recompute"] == _FULL) * share
        selective = (plans["recompute"] == _SELECTIVE) * share
        again_part = attention + scores
        if program.selective == "products":
            again_part = _SELECTED_PRODUCTS * products + elementwise
        return LayerPasses(
            forward=forward,
            backward=backward,
            again=full * forward + selective * again_part,
            tensor_forward=tensor_forward,
            tensor_backward=tensor_backward + full * tensor_forward,
            context_forward=context_forward,
            context_backward=context_backward + full * context_forward,
            expert_forward=expert_forward,
            expert_backward=expert_backward + full * expert_forward,
        )

    def _tensor(self) -> tuple[Array, Array]:
        """Two all-reduces each way; or gathers and scatters where tokens are divided.

        Of the latter a backward pass gathers the products' inputs once more.
        """
        setting = self.setting
        size = self.tokens * setting.model.hidden * setting.element_bytes
        reduces = 2 * self.collective("all_reduce", size, "tensor")
        hidden = setting.constants.tensor_overlap if setting.asynchronous_tensor else 0.0
        again = np.where(self.plans["sequence_parallel"], 1.5, 1.0)
        return reduces * (1 - hidden), reduces * again * (1 - hidden)

    def _context(self, kind: LayerKind, attention: Array) -> tuple[Array, Array]:
        """Keys and values gathered before attention, gradients scattered after."""
        setting, model = self.setting, self.setting.model
        width = model.kv_heads * (model.key_width + model.values_width) / self.tensor
        if model.kv_rank:
            width = np.full_like(self.tensor, model.kv_rank + model.rope_width)
        size = self.tokens * self.plans["context"] * width * setting.element_bytes
        gather = self.collective("all_gather", size, "context")
        return gather, 2 * gather

    def _expert(self, kind: LayerKind) -> tuple[Array, Array]:
        """Tokens to their experts and back: two exchanges each way."""
        setting, model, plans = self.setting, self.setting.model, self.plans
        if not kind.experts:
            return np.zeros(len(plans)), np.zeros(len(plans))
        spread = np.where(plans["sequence_parallel"], self.tensor, 1.0)
        size = self.tokens * model.experts_per_token * model.hidden * setting.element_bytes / spread
        members = plans["expert"]
        # Experts lie over the context and data axes, which the tensor ranks precede.
        stride = np.where(self.plans.order[0] == "tensor", self.tensor, 1.0)
        inside = np.clip(setting.network.node_devices // stride, 1, members)
        exchange = 2 * setting.network.time_s("all_to_all", size, members, inside)
        return exchange, exchange


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds of a training step by part, and of the passes that it is made of.

    ``parts``: float[plans] by ``PARTS``; they add up to ``total_s``.
    """

    parts: Mapping[str, Array]

    @cached_property
    def total_s(self) -> Array:
        """Seconds of the step."""
        return np.asarray(np.sum([self.parts[name] for name in PARTS], axis=0))


def step_times(setting: Setting, plans: Plans) -> StepTimes:
    """Seconds of one training step of every plan, by part.

    1F1B and interleaving: a stage repeats its forward and backward pass for each
    micro-batch, the bubble is what it waits for the first to arrive and the last to
    return, (p - 1) / v passes both ways (Narayanan 2021), and a round trip of messages
    that is longer than the work of the micro-batches in flight slows each one down.
    """
    layers = Layers(setting, plans)
    by_kind = [(kind, layers.passes(kind)) for kind in setting.model.kinds]
    stages, virtual = plans["pipeline"].astype(float), plans["virtual"].astype(float)
    batches = plans["micro_batches"].astype(float)

    def of_stage(name: str) -> Array:
        """A quantity of the layers of the longest stage, for one micro-batch."""
        total = sum(kind.count * getattr(passes, name) for kind, passes in by_kind)
        per_chunk = np.ceil(setting.model.layers / (stages * virtual)) * virtual
        return total * per_chunk / setting.model.layers  # type: ignore[no-any-return]

    compute, again = of_stage("forward") + of_stage("backward"), of_stage("again")
    exchanges = {
        name: of_stage(f"{name}_forward") + of_stage(f"{name}_backward")
        for name in ("tensor", "context", "expert")
    }
    ends = _ends(layers)
    stage = compute + again + sum(exchanges.values())
    hop = _hop(layers)
    alone = stages == 1
    # The last stage computes the output too; a round trip of the first stage's first
    # message returns after all stages.
    trip = np.where(
        alone | (plans["schedule"] == _GPIPE), 0.0, 2 * hop * (stages - 1) / stages * virtual
    )
    data, update = _data(layers, by_kind)
    parts = {
        "compute": (compute + ends) * batches,
        "recompute": again * batches,
        **{name: time * batches for name, time in exchanges.items()},
        "pipeline": batches * np.maximum(trip - np.where(alone, 0.0, ends), 0.0)
        + 2 * hop * (stages - 1),
        "bubble": (stages - 1) / virtual * stage,
        "data": data,
        "optimizer": update,
        "fixed": np.full(len(plans), setting.constants.step_s),
    }
    return StepTimes(parts)


def _ends(layers: Layers) -> Array:
    """The output projection and the loss of a micro-batch, forward and backward.

    The embedding is a lookup: its rows are read and their gradients added.
    """
    setting, model = layers.setting, layers.setting.model
    rows = model.vocabulary / layers.tensor
    hidden = np.full_like(layers.tensor, model.hidden)
    projection = 3 * layers.product(layers.tokens, hidden, rows)
    logits = layers.memory(setting.program.logit_traffic * layers.tokens * rows)
    lookup = layers.memory(layers.tokens * model.hidden * 3 * setting.element_bytes)
    return projection + logits + lookup


def _hop(layers: Layers) -> Array:
    """Seconds to hand a micro-batch on to the next stage."""
    setting, plans = layers.setting, layers.plans
    spread = np.where(plans["sequence_parallel"], layers.tensor, 1.0)
    size = layers.tokens * setting.model.hidden * setting.element_bytes / spread
    time = setting.network.time_s("send", size, plans["pipeline"], layers.inside("pipeline"))
    return np.asarray(np.where(plans["pipeline"] > 1, time, 0.0))


def _data(layers: Layers, by_kind: list[tuple[LayerKind, LayerPasses]]) -> tuple[Array, Array]:
    """What replicas exchange in a step and does not hide; the optimizer's update."""
    setting, plans = layers.setting, layers.plans
    model, program = setting.model, setting.program
    tensor, stages = layers.tensor, plans["pipeline"].astype(float)
    batches = plans["micro_batches"].astype(float)
    members = plans["data"] * plans["context"]
    inside = np.minimum(layers.inside("data") * layers.inside("context"), members)
    sharded = plans["sharding"] == _PARAMETERS

    def exchange(kind: Kind, size: Array, ranks: Array = members) -> Array:
        return setting.network.time_s(kind, size, ranks, np.minimum(inside, ranks))

    exposed, everything = np.zeros(len(plans)), np.zeros(len(plans))
    for kind, passes in by_kind:
        shared, experts = model.layer_weights(kind)
        own_experts = experts / (tensor * plans["expert"])
        parameters = shared / tensor + own_experts
        count = kind.count / stages
        everything = everything + count * parameters
        replicas = np.maximum(members // plans["expert"], 1)
        gather = exchange("all_gather", shared / tensor * program.parameter_bytes) + exchange(
            "all_gather", own_experts * program.parameter_bytes, replicas
        )
        scatter = exchange("reduce_scatter", shared / tensor * program.gradient_bytes) + exchange(
            "reduce_scatter", own_experts * program.gradient_bytes, replicas
        )
        gathers = np.where((stages > 1) & program.gathers_once, 1.0, batches)
        if program.overlaps_data:
            forward = np.maximum(gather - passes.forward_s, 0.0)
            backward = np.maximum(gather + scatter - passes.backward_s, 0.0)
            by_batch = count * gathers * (forward + backward)
            last = count * np.maximum(scatter - passes.backward_s, 0.0)
        else:
            by_batch = count * gathers * (2 * gather + scatter)
            last = count * scatter
        # Replicated weights: gradients are reduced once, after the last micro-batch.
        once = last + count * np.where(plans["sharding"] == 0, scatter, gather)
        exposed = exposed + np.where(sharded, by_batch, once)
    tables = model.table_weights / tensor * np.where(stages == 1, 2 - model.tied_embeddings, 1)
    everything = everything + tables
    exposed = exposed + exchange("reduce_scatter", tables * program.gradient_bytes)
    exposed = exposed + exchange("all_gather", tables * program.parameter_bytes)
    divided = np.where(plans["sharding"] > 0, members, 1)
    return exposed, layers.memory(everything / divided * program.update_traffic)
