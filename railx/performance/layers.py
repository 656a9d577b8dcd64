"""The operators of a layer and its collectives, priced for many plans at once.

A layer is timed pass by pass (forward, backward, recomputation) from its operators:

* a matrix product of m x k by k x n takes 2 m n k (1 + d (1/m + 1/n + 1/k)) operations'
  time at the reached share of the peak: d is what tiles and the filling of a pipeline
  waste at each end, so that small products reach less;
* everything else takes the time of its memory traffic;
* kernels start and drain in a time that does not depend on their size;
* no pass is shorter than the host needs to launch it.

docs/performance.md derives each term and says where not to trust it. Times are seconds,
arrays float[plans].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from railx.performance.devices import Device
from railx.performance.models import LayerKind, Model, Product
from railx.performance.networks import Kind, Network, TwoLevelRing
from railx.performance.plans import AXES, RECOMPUTATIONS, SHARDINGS, Array, Axis, Plans
from railx.performance.programs import Constants, Program
from railx.performance.volumes import activation_bytes

_FULL, _SELECTIVE = RECOMPUTATIONS.index("full"), RECOMPUTATIONS.index("selective")
#: Share of a layer's products that selective recomputation of every second one repeats:
#: wk, wo and w3 of Llama's layers (4/13 to 0.4 of the weights).
_SELECTED_PRODUCTS = 0.37
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
        peaks = self.device.peak_tflops
        peak = max(self.device.peak_flops(name) for name in ("bf16", "fp16") if name in peaks)
        return peak * self.constants.attention_share

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
    computes once more. ``sent``: seconds of communication of one forward pass, and of a
    backward pass with what it repeats, by axis (tensor, context, expert).
    """

    forward: Array
    backward: Array
    again: Array
    sent: Mapping[str, tuple[Array, Array]]

    @property
    def forward_s(self) -> Array:
        """A forward pass of the layer, communication included."""
        return np.asarray(sum((there for there, _ in self.sent.values()), self.forward))

    @property
    def backward_s(self) -> Array:
        """A backward pass of the layer, recomputation and communication included."""
        computed = self.backward + self.again
        return np.asarray(sum((back for _, back in self.sent.values()), computed))


@dataclass(frozen=True, eq=False)
class Exchange:
    """What the data-parallel ranks of one layer exchange, float[plans] or bool[plans].

    ``gather`` and ``scatter`` are seconds of an all-gather of its parameters and of a
    reduce-scatter of its gradients; ``parameters`` over the data-parallel ranks are
    those that a rank updates where they are sharded, and all that it has where not.
    ``by_pass``: shards are gathered for every pass, and scattered after every backward
    pass; ``once``: gathered at the first pass, scattered after the last; ``reduced``:
    gradients are all-reduced after the last pass. Otherwise they are scattered, and
    parameters gathered after the update. With ``overlaps`` the exchange of a layer is
    under way while another one computes, gathers one layer ahead.
    """

    parameters: Array
    gather: Array
    scatter: Array
    by_pass: Array
    once: Array
    reduced: Array
    overlaps: bool
    stages: Array
    virtual: Array
    hop: Array

    def pass_s(
        self,
        passes: LayerPasses,
        before: tuple[LayerPasses, Exchange] | None,
        after: tuple[LayerPasses, Exchange] | None,
    ) -> tuple[Array, Array]:
        """Exposed seconds of one micro-batch in its forward and its backward pass.

        ``before`` and ``after``: the layers around it on the same stage. A gather hides
        behind the layer that computes before, a scatter behind the one that computes
        next. Those at the ends of a stage hide behind nothing.
        """
        gather, scatter = self.gather, self.scatter
        if self.overlaps:
            under_way = np.zeros_like(gather)
            if before is not None:
                gather = _excess(gather, before[0].forward_s)
                under_way = under_way + before[1].gather
                scatter = np.zeros_like(scatter)
            if after is not None:
                under_way = under_way + after[1].scatter
            opens = 0.0 if after is not None else self.gather
            backward = _excess(under_way, passes.backward_s) + opens + scatter
        else:
            backward = gather + scatter
        return np.where(self.by_pass, gather, 0.0), np.where(self.by_pass, backward, 0.0)

    def tail_s(self, first: Array) -> Array:
        """Seconds of the last scatter of a backward pass, after all computation."""
        return np.where(self.by_pass & self.overlaps, first * self.scatter, 0.0)

    @property
    def of_step(self) -> tuple[Array, Array]:
        """Seconds of a gather before the first pass and a scatter after the last."""
        scatter = np.where(self.reduced, 2.0, 1.0) * self.scatter
        return np.where(self.once, self.gather, 0.0), np.where(self.by_pass, 0.0, scatter)

    def queued(self, count: Array, time: Array, cover: Array, later: Array) -> Array:
        """Exposed seconds of exchanges in a queue: of ``count`` layers, then ``later``.

        A gather hides behind the layers that compute before its own, a scatter behind
        those that compute after: each for ``cover`` seconds.
        """
        if not self.overlaps:
            return count * time + later
        count = count / self.virtual
        alike = count * _excess(time, cover) + np.minimum(time, cover)
        return np.where(count > 0, np.maximum(alike, count * (time - cover) + later), later)

    def left_s(self, passes: LayerPasses, count: Array, share: Array) -> Array:
        """What is left of other parts' scatters when a stage's last pass begins, of
        ``count`` layers, a share of its own: their last passes end some passes earlier.
        """
        others = (self.virtual - 1) * self.overlaps
        since = others * self.stages * (count / self.virtual * passes.backward_s + share * self.hop)
        sent = others / self.virtual * count * self.of_step[1]
        return np.where(others > 0, sent - since + share * passes.backward_s, 0.0)


def _excess(time: Array, cover: Array) -> Array:
    """The part of a time that is longer than what covers it."""
    return np.asarray(np.maximum(time - cover, 0.0))


class Layers:
    """Prices the layers of a setting under a table of plans."""

    def __init__(self, setting: Setting, plans: Plans) -> None:
        self.setting, self.plans = setting, plans
        self.tokens = plans["micro_batch"] * plans["sequence_tokens"] / plans["context"]
        self.tensor = plans["tensor"].astype(float)
        hidden, element_bytes = setting.model.hidden, setting.element_bytes
        #: Bytes of the activations of a micro-batch.
        self.activations = activation_bytes(self.tokens, hidden, element_bytes)
        node = setting.network.node_devices
        #: Members of a group along an axis that share a node, as networks take them.
        self.inside = {axis: plans.members_in_node(axis, node) for axis in AXES}

    @cached_property
    def replicas_inside(self) -> Array:
        """The same of a group along the axes of context and data together.

        Where members that share a node follow others far away, the distance of the
        nearest counts.
        """
        context, data = self.inside["context"], self.inside["data"]
        near = np.where(np.minimum(context, data) < 1, np.maximum(context, data), context * data)
        # Where both are as if they came first, their product may exceed a node.
        near = np.minimum(near, self.setting.network.node_devices)
        plans = self.plans
        return np.select([plans["context"] == 1, plans["data"] == 1], [data, context], near)

    def neighbours(self) -> list[Array]:
        """What a placement decides: members of each group that share a node.

        Those of replicas follow from the others. Two-level rings see no distances.
        """
        floor = 1.0 if type(self.setting.network) is TwoLevelRing else 0.0
        axes: tuple[Axis, ...] = ("tensor", "context", "pipeline")
        return [np.maximum(self.inside[axis], floor) for axis in axes]

    def collective(self, kind: Kind, size_bytes: Array, axis: Axis) -> Array:
        """Seconds of a collective along an axis."""
        members = self.plans[axis]
        return self.setting.network.time_s(kind, size_bytes, members, self.inside[axis])

    def product(self, rows: Array, inputs: Array, outputs: Array, times: float = 1.0) -> Array:
        """Seconds of ``times`` products [rows, inputs] x [inputs, outputs], or 0."""
        tile = self.setting.constants.matmul_tile
        waste = 1 + tile * (1 / rows + 1 / inputs + 1 / outputs)
        return times * 2 * rows * inputs * outputs * waste / self.setting.product_flops

    def memory(self, size_bytes: Array) -> Array:
        """Seconds to read and write some bytes."""
        return np.asarray(size_bytes / self.setting.memory_bytes_s)

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
        fused, attended = setting.program.fused_attention, sequence
        if fused:
            lengths, inverse = np.unique(sequence, return_inverse=True)
            attended = np.array(
                [model.attended_tokens(kind, length) for length in lengths.tolist()]
            )[inverse]
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
        hidden_bytes = program.hidden_traffic * setting.model.hidden / spread
        wide_bytes = program.wide_traffic * kind.feed_forward / self.tensor
        elementwise = self.memory(self.tokens * (hidden_bytes + wide_bytes))
        # A fused backward pass computes the scores again: five products for two.
        attention_backward = (2.5 if program.fused_attention else 2.0) * attention
        traffic = scores + elementwise
        ends = constants.forward_kernels_s
        forward = products + attention + traffic + ends
        backward = 2 * (products + ends) + attention_backward + program.backward_traffic * traffic
        sent = {"tensor": self._tensor(), "context": self._context(), "expert": self._expert(kind)}
        doublings = np.log2(self.tensor) * constants.collective_host_s
        there, back = sent["tensor"]
        forward = np.maximum(forward, constants.forward_host_s + 2 * doublings - there)
        backward = np.maximum(backward, constants.backward_host_s + 2 * doublings - back)
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
            sent={axis: (there, back + full * there) for axis, (there, back) in sent.items()},
        )

    def _tensor(self) -> tuple[Array, Array]:
        """Two all-reduces each way; or gathers and scatters, backward once more."""
        setting = self.setting
        reduces = 2 * self.collective("all_reduce", self.activations, "tensor")
        hidden = setting.constants.tensor_overlap if setting.asynchronous_tensor else 0.0
        again = np.where(self.plans["sequence_parallel"], 1.5, 1.0)
        return reduces * (1 - hidden), reduces * again * (1 - hidden)

    def _context(self) -> tuple[Array, Array]:
        """Keys and values gathered before attention, gradients scattered after."""
        setting, model = self.setting, self.setting.model
        width = model.cached_width / (np.ones_like(self.tensor) if model.kv_rank else self.tensor)
        tokens = self.tokens * self.plans["context"]
        size = activation_bytes(tokens, width, setting.element_bytes)
        gather = self.collective("all_gather", size, "context")
        return gather, 2 * gather

    def _expert(self, kind: LayerKind) -> tuple[Array, Array]:
        """Tokens to their experts and back: two exchanges each way."""
        setting, model, plans = self.setting, self.setting.model, self.plans
        if not kind.experts:
            return np.zeros(len(plans)), np.zeros(len(plans))
        spread = np.where(plans["sequence_parallel"], self.tensor, 1.0)
        size = model.experts_per_token * self.activations / spread
        members = plans["expert"]
        # Experts lie over the context and data axes.
        inside = np.minimum(self.replicas_inside, members)
        exchange = 2 * setting.network.time_s("all_to_all", size, members, inside)
        return exchange, exchange

    def head(self) -> Array:
        """The output projection and the loss of a micro-batch, forward and backward."""
        model = self.setting.model
        rows = model.vocabulary / self.tensor
        projection = 3 * self.product(self.tokens, np.full_like(self.tensor, model.hidden), rows)
        return projection + self.memory(self.setting.program.logit_traffic * self.tokens * rows)

    def lookup(self) -> Array:
        """The embedding of a micro-batch: rows are read, and their gradients added."""
        return self.memory(3 * self.activations)

    def hop(self) -> Array:
        """Seconds to hand a micro-batch on to the next stage; 0 of a single stage.

        Tensor ranks that all hold the whole message may send a share each, and gather
        it on the other side (Narayanan 2021, section 4.1).
        """
        setting, plans = self.setting, self.plans
        whole = self.activations
        divided = plans["sequence_parallel"] | setting.program.scatters_messages
        size = whole / np.where(divided, self.tensor, 1.0)
        time = setting.network.time_s("send", size, plans["pipeline"], self.inside["pipeline"])
        if setting.program.scatters_messages:
            gather = self.collective("all_gather", whole, "tensor")
            time = time + np.where(plans["sequence_parallel"], 0.0, gather)
        return np.asarray(np.where(plans["pipeline"] > 1, time, 0.0))

    def data_collective(self, kind: Kind, size_bytes: Array, replicas: Array | int = 1) -> Array:
        """Seconds of a collective over the ranks that hold the same parameters.

        ``replicas``: how many ranks in a row hold other ones, as those of a group of
        experts do: members lie that far apart.
        """
        members = np.maximum(self.plans["data"] * self.plans["context"] // replicas, 1)
        inside = np.minimum(self.replicas_inside / replicas, members)
        return self.setting.network.time_s(kind, size_bytes, members, inside)

    def tables(self) -> tuple[Array, Array]:
        """Parameters of the tables of a stage that has any, and their exchange."""
        model, program = self.setting.model, self.setting.program
        both = np.where(self.plans["pipeline"] == 1, 2 - model.tied_embeddings, 1)
        tables = model.table_weights / self.tensor * both
        return tables, (
            self.data_collective("reduce_scatter", tables * program.gradient_bytes)
            + self.data_collective("all_gather", tables * program.parameter_bytes)
        )

    def update(self, parameters: Array) -> Array:
        """The optimizer's update of so many parameters before sharding."""
        plans = self.plans
        divided = np.where(plans["sharding"] > 0, plans["data"] * plans["context"], 1)
        return self.memory(parameters / divided * self.setting.program.update_traffic)

    def exchange(self, kind: LayerKind) -> Exchange:
        """What the replicas of a layer exchange."""
        plans, program = self.plans, self.setting.program
        shared, experts = map(float, self.setting.model.layer_weights(kind))
        widths: dict[Kind, float] = {
            "all_gather": program.parameter_bytes,
            "reduce_scatter": program.gradient_bytes,
        }
        dense, sparse = shared / self.tensor, experts / (self.tensor * plans["expert"])
        gather, scatter = (
            self.data_collective(word, dense * width)
            + self.data_collective(word, sparse * width, plans["expert"])
            for word, width in widths.items()
        )
        sharded = plans["sharding"] == _PARAMETERS
        once = sharded & (plans["pipeline"] > 1) & program.gathers_once
        return Exchange(
            # Experts are sharded over the ranks that have the same ones.
            parameters=dense + sparse * np.where(plans["sharding"] > 0, plans["expert"], 1),
            gather=gather,
            scatter=scatter,
            by_pass=sharded & ~once,
            once=once,
            reduced=plans["sharding"] == 0,
            overlaps=program.overlaps_data,
            stages=plans["pipeline"].astype(float),
            virtual=plans["virtual"].astype(float),
            hop=self.hop(),
        )
