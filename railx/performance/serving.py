"""A step of serving: the prefill of prompts, and one decoded token of each sequence.

A prefill is the forward pass of training with the output of the last token alone. A
decoded token multiplies few rows with all weights, so that a layer takes the longer of
its products and its memory traffic: the weights once, and the cache of keys and values
of each sequence. Ranks are numbered as in training; each replica (``data``) serves
``micro_batch`` sequences at once. Times are seconds, arrays float[plans].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from railx.performance.layers import Layers, Setting
from railx.performance.models import LayerKind, Model
from railx.performance.plans import Array, Plans

#: What a step of serving is made of: layers by what binds them, exchanges, the output.
SERVING_PARTS = ("compute", "weights", "cache", "tensor", "context", "expert", "pipeline", "output")


@dataclass(frozen=True, eq=False)
class ServingTimes:
    """Seconds of a step by part, float[plans] by ``SERVING_PARTS``.

    ``compute``: layers whose products take longer than their memory traffic; the time
    of others is that of ``weights`` and ``cache``. ``tokens``: those of a step, of all
    replicas.
    """

    parts: Mapping[str, Array]
    tokens: Array

    @cached_property
    def total_s(self) -> Array:
        """Latency of the step: a micro-batch through all stages."""
        return np.asarray(sum(self.parts[name] for name in SERVING_PARTS))

    @property
    def tokens_per_s(self) -> Array:
        """Tokens of all replicas, stages filled by other micro-batches aside."""
        return np.asarray(self.tokens / self.total_s)


def prefill_times(setting: Setting, plans: Plans) -> ServingTimes:
    """One prompt of ``sequence_tokens`` for each of ``micro_batch`` sequences."""
    layers = Layers(setting, plans)
    parts = _without_layers(layers)
    for kind in setting.model.kinds:
        passes = layers.passes(kind)
        parts["compute"] += kind.count * passes.forward
        for axis, (there, _) in passes.sent.items():
            parts[axis] += kind.count * there
    tokens = plans["data"] * plans["micro_batch"] * plans["sequence_tokens"]
    return ServingTimes(parts, tokens)


def decode_times(setting: Setting, plans: Plans, cached_tokens: Array | float) -> ServingTimes:
    """The next token of each of ``micro_batch`` sequences of ``cached_tokens`` tokens.

    Kernels are taken to be launched ahead (captured graphs), so that the host binds
    nothing. Visits of experts are independent and uniform.
    """
    one_token = {name: np.ones(len(plans), int) for name in ("sequence_tokens", "context")}
    layers = Layers(setting, Plans({**plans.columns, **one_token}))
    parts = _without_layers(layers)
    for kind in setting.model.kinds:
        products, weights = _products(layers, kind)
        attention, cache = _attention(layers, kind, np.asarray(cached_tokens, float))
        memory = weights + cache
        bound = products + attention > memory
        parts["compute"] += kind.count * np.where(bound, products + attention, 0.0)
        parts["weights"] += kind.count * np.where(bound, 0.0, weights)
        parts["cache"] += kind.count * np.where(bound, 0.0, cache)
        passes = layers.passes(kind)
        for axis in ("tensor", "expert"):
            parts[axis] += kind.count * passes.sent[axis][0]
    return ServingTimes(parts, plans["data"] * plans["micro_batch"])


def serving_memory_bytes(setting: Setting, plans: Plans, cached_tokens: Array | float) -> Array:
    """Bytes of the fullest device: weights, and the cache of its sequences."""
    model, tensor = setting.model, plans["tensor"].astype(float)
    width = _cached_width(model, tensor)
    stages = plans["pipeline"].astype(float)
    tables = model.table_weights / tensor * np.where(stages == 1, 2 - model.tied_embeddings, 1)
    # Every tensor rank has the table of positions.
    tables = tables + model.hidden * model.learned_positions
    weights, cache = np.zeros((2, len(plans)))
    for kind in model.kinds:
        shared, experts = model.layer_weights(kind)
        count = kind.count * np.ceil(model.layers / stages) / model.layers
        weights = weights + count * (shared + experts / plans["expert"]) / tensor
        cached = np.minimum(cached_tokens, kind.window or np.inf)
        cache = cache + count * cached * width
    element = setting.element_bytes
    return np.asarray(element * (weights + tables + plans["micro_batch"] * cache))


def _cached_width(model: Model, tensor: Array) -> Array | int:
    """Width of the cache of a token on the rank with most heads; heads are whole."""
    if model.kv_rank:
        return model.cached_width
    return np.asarray(model.cached_width * np.ceil(model.kv_heads / tensor) / model.kv_heads)


def _without_layers(layers: Layers) -> dict[str, Array]:
    """The parts of a step with what is outside its layers."""
    parts = {name: np.zeros(len(layers.plans)) for name in SERVING_PARTS}
    parts["pipeline"] += layers.hop() * (layers.plans["pipeline"] - 1)
    parts["output"] += _output(layers)
    return parts


def _products(layers: Layers, kind: LayerKind) -> tuple[Array, Array]:
    """Seconds of a layer's products, and of reading the weights that they touch."""
    setting, plans, model = layers.setting, layers.plans, layers.setting.model
    seconds, touched = np.zeros((2, len(plans)))
    # Of the experts on a rank, those that a token of its expert group visits.
    visits = layers.tokens * plans["expert"]
    missed = (1 - model.experts_per_token / max(model.experts, 1)) ** visits
    experts = np.maximum(model.experts / plans["expert"], 1.0) * (1 - missed)
    for product in kind.products:
        seconds = seconds + layers.weights_product(product)
        share = 1.0 if product.split == "none" else layers.tensor
        touched = touched + product.weights / share * (experts if product.expert else 1.0)
    return seconds, layers.memory(touched * setting.element_bytes)


def _attention(layers: Layers, kind: LayerKind, cached: Array) -> tuple[Array, Array]:
    """Seconds of scores and weighted values, and of reading the cache."""
    setting, model = layers.setting, layers.setting.model
    cached = np.minimum(cached, kind.window or np.inf)
    width = model.key_width + model.values_width
    if model.kv_rank:
        # Queries and outputs are multiplied with the up projections, not the cache.
        width = 2 * model.kv_rank + model.rope_width
    flops = 2 * layers.tokens * cached * width * model.heads / layers.tensor
    read = layers.tokens * cached * _cached_width(model, layers.tensor)
    return flops / setting.attention_flops, layers.memory(read * setting.element_bytes)


def _output(layers: Layers) -> Array:
    """The output projection of one token of each sequence."""
    plans, model = layers.plans, layers.setting.model
    rows = plans["micro_batch"].astype(float)
    columns = model.vocabulary / layers.tensor
    products = layers.product(rows, np.full_like(columns, model.hidden), columns)
    weights = layers.memory(model.hidden * columns * layers.setting.element_bytes)
    return np.asarray(np.maximum(products, weights))
