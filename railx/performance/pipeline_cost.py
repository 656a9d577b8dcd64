"""Time and memory of chunks on the stages of a pipeline (InfiniPipe, section III-A).

A pipeline has p stages of d ranks each; a stage holds its share of the layers, and its
ranks share the tokens of every chunk. With the coefficients of a cost model, a chunk of
slices of s tokens after a context of C takes on a stage

    compute    = (1/(p d)) Σ (a1 ((C + s)² - C²) + a2 s) + b1 / p      (eq. 1)
    all-to-all = (1/p) (Σ s · c(d) + latency)                          (eqs. 2 and 3)

separately for the forward and the backward pass (eq. 4), so that slices of a sequence
add up to the sequence except for the constants. A rank saves of a chunk of S tokens
(eqs. 5, 9, 10)

    (S/d) ((l_p - c) layer + c e (D + 2 D_kv [split]) + 2 e D_kv l_p [split] + logits)

where l_p are the stage's layers, c of them recomputed, ``layer`` the saved bytes of a
layer per token, and logits count on the last stage only. [split]: keys and values of a
split sequence are cached for its later slices, with all their gradients alive at once.

Notable:

* stages count from 0. Where stages have not equally many layers, times are those of the
  widest one;
* the memory that model states leave free on a device (``capacity_bytes``) follows the
  devices that the pipelines use, all replicas: other devices of the cluster store
  nothing for them. The first stage has the embedding, the last one the head;
* traffic of ZeRO-3 is that of a stage among its own devices, once a batch or for every
  chunk, as the cost model sets. Once a batch, its copies take memory all the while;
* where a cluster gives the token capacity of a device, that many tokens of the full
  model times the pipeline's devices are the capacity of every stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import (
    ModelSettings,
    activation_bytes_per_token,
    key_value_width,
    stage_parameters,
)
from railx.performance.sequence_cost import (
    ChunkTime,
    CostModel,
    CostModelSettings,
    FittedCostSettings,
    ProfiledCostSettings,
    build_cost_model,
    layer_latencies_ms,
    state_share,
)
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray


@dataclass(frozen=True)
class PipelineShape:
    """``stages`` of ``degree`` sequence-parallel ranks each, ``replicas`` of them.

    ``tensor`` ranks of a stage divide all states among them, and ranks with equal
    states divide the optimizer's (ZeRO-1); None: states are divided as in the cost
    model.
    """

    stages: int
    degree: int
    replicas: int = 1
    tensor: int | None = None

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.stages * self.degree

    @property
    def all_devices(self) -> int:
        """Devices of all replicas."""
        return self.devices * self.replicas


@dataclass(frozen=True)
class PassTime:
    """Time of a pass of a chunk on a stage, by token squared, token and chunk."""

    quadratic_ms: float
    linear_ms: float
    constant_ms: float = 0.0

    def of(self, squares: Any, tokens: Any) -> Any:
        """The time without the constant."""
        return self.quadratic_ms * squares + self.linear_ms * tokens

    def part(self, share: float, degree: int, more_ms: float) -> PassTime:
        """The time of a share of the layers on ``degree`` ranks, and ``more_ms``."""
        rank_share = share / degree
        return PassTime(
            rank_share * self.quadratic_ms,
            rank_share * self.linear_ms,
            share * self.constant_ms + more_ms,
        )


@dataclass(frozen=True)
class PipelineCost:
    """Coefficients of one pipeline shape; times on one stage, bytes on one rank.

    * ``forward`` and ``backward``: computation. ``all_to_all`` is that of both passes
      together, half in each.
    * ``layer_counts``: layers of each stage.
    * ``capacities``: bytes that each stage's ranks have for activations;
      ``given_tokens``: the cluster's tokens per device, where they follow from it.
    * ``layer_bytes``: saved bytes of a layer per token on all ranks of its stage,
      ``logits_bytes``: saved bytes of the last stage per token beyond its layers.
    * ``input_bytes``: the input of a layer, e D; ``key_value_bytes``: its keys and
      values, 2 e D_kv.
    * ``recompute_over_forward``: time of recomputing a layer over its forward pass.
    * ``send``: time of sending a chunk to the next stage, ``batch_ms``: exposed traffic
      of ZeRO-3, once a batch. With traffic per chunk, ``gather_ms`` is its part of the
      forward constant.
    """

    shape: PipelineShape
    forward: PassTime
    backward: PassTime
    all_to_all: PassTime
    layer_counts: tuple[int, ...]
    capacities: tuple[float, ...]
    layer_bytes: float
    input_bytes: float
    key_value_bytes: float
    logits_bytes: float = 0.0
    recompute_over_forward: float = 1.0
    send: PassTime = PassTime(0.0, 0.0)
    batch_ms: float = 0.0
    gather_ms: float = 0.0
    given_tokens: int | None = None

    @property
    def quadratic_ms(self) -> float:
        """Forward and backward time of a chunk per token squared."""
        return self.forward.quadratic_ms + self.backward.quadratic_ms

    @property
    def linear_ms(self) -> float:
        """Forward and backward time of a chunk per token, its all-to-all included."""
        return self.forward.linear_ms + self.backward.linear_ms + self.all_to_all.linear_ms

    @property
    def chunk_constant_ms(self) -> float:
        """Constant forward and backward time of a chunk."""
        return self.forward.constant_ms + self.backward.constant_ms + self.all_to_all.constant_ms

    def slice_times_ms(
        self, contexts: npt.ArrayLike, tokens: npt.ArrayLike
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Forward, backward and all-to-all time [n] of slices, without constants.

        ``contexts`` and ``tokens`` [n]. The all-to-all is contained in the other two. A
        chunk takes the sum of its slices and the constants of an empty chunk
        (:meth:`chunk_time_ms` of no slices).
        """
        before, new = (np.asarray(some, dtype=np.float64) for some in (contexts, tokens))
        squares = (before + new) ** 2 - before**2
        exchange = self.all_to_all.of(squares, new)
        return (
            self.forward.of(squares, new) + exchange / 2,
            self.backward.of(squares, new) + exchange / 2,
            exchange,
        )

    def chunk_time_ms(self, slices: Sequence[tuple[int, int]]) -> ChunkTime:
        """Time of a chunk of ``slices``, pairs (tokens of context, tokens)."""
        tokens = sum(new for _, new in slices)
        squares = sum((context + new) ** 2 - context**2 for context, new in slices)
        exchange = self.all_to_all.of(squares, tokens) + self.all_to_all.constant_ms
        return ChunkTime(
            self.forward.of(squares, tokens) + self.forward.constant_ms + exchange / 2,
            self.backward.of(squares, tokens) + self.backward.constant_ms + exchange / 2,
            exchange,
        )

    def layer_forward_ms(self, forward_ms: Any) -> Any:
        """Cost of recomputing one layer of chunks with this forward time.

        InfiniPipe eq. 11 with the stage's layers in place of the model's, which makes
        its units fit: a layer's all-to-all is repeated too. Parameters are not gathered
        again: backward has gathered them, and its time includes that.
        """
        pass_ms = forward_ms - self.gather_ms
        return self.recompute_over_forward * pass_ms / max(self.layer_counts)

    def send_ms(self, tokens: int) -> float:
        """Time of a chunk's hidden states to the next stage; 0 with one stage."""
        if self.shape.stages == 1:
            return 0.0
        return self.send.linear_ms * tokens + self.send.constant_ms

    def layers_of(self, stage: int) -> int:
        """Layers of a stage."""
        return self.layer_counts[stage]

    def capacity_bytes(self, stage: int) -> float:
        """Memory of a rank of a stage for activations, in bytes."""
        return self.capacities[stage]

    @property
    def tokens_per_device(self) -> int:
        """Most tokens of the whole model, none recomputed, that fit a rank.

        That of the stage with most room, rounded up: ``capacities`` are exact.
        """
        stages = range(self.shape.stages)
        tokens = max(
            self.capacities[stage] / float(self.activation_bytes(1, False, stage))
            for stage in stages
        )
        return math.ceil(tokens / self.shape.devices * (1 - 1e-12))

    def activation_bytes(
        self,
        tokens: npt.ArrayLike,
        split: npt.ArrayLike,
        stage: int,
        checkpoint_layers: npt.ArrayLike = 0,
    ) -> Any:
        """Bytes of live chunks on a rank of a stage.

        ``tokens`` and ``split`` (whether a chunk is one slice of a cut sequence) are
        numbers or [n], as is the result.
        """
        count, cut, recomputed = (np.asarray(value) for value in (tokens, split, checkpoint_layers))
        layers = self.layer_counts[stage]
        last = stage == self.shape.stages - 1
        token_bytes = (
            (layers - recomputed) * self.layer_bytes
            + recomputed * (self.input_bytes + cut * self.key_value_bytes)
            + layers * cut * self.key_value_bytes
            + (self.logits_bytes if last else 0.0)
        )
        return count * token_bytes / self.shape.degree

    def layer_saving_bytes(self, tokens: npt.ArrayLike, split: npt.ArrayLike) -> Any:
        """Bytes that recomputing a layer of chunks frees on a rank (F, programme)."""
        cut = np.asarray(split)
        token_bytes = self.layer_bytes - self.input_bytes - cut * self.key_value_bytes
        return np.asarray(tokens) * token_bytes / self.shape.degree


def build_pipeline_cost(
    settings: CostModelSettings,
    cluster: ClusterSettings,
    model: ModelSettings,
    max_length_tokens: int,
    shape: PipelineShape,
    cost: CostModel | None = None,
) -> PipelineCost:
    """Coefficients for one shape of pipelines; ``cost`` if already built.

    It recomputes nothing, whatever ``checkpoint_layers`` of the settings. SettingsError
    for a shape that the cluster, the heads or the layers do not allow, and where a
    stage's states leave no memory for tokens.
    """
    if shape.stages > model.layers:
        raise SettingsError(
            "planner.stages",
            f"got {shape.stages}; allowed: at most {model.layers}, the layers of {model.name}",
        )
    if shape.all_devices > cluster.devices:
        raise SettingsError(
            "planner.stages",
            f"{shape.stages} stages x {shape.replicas} replicas x degree {shape.degree} need"
            f" {shape.all_devices} devices; allowed: at most {cluster.devices}",
        )
    if cost is None or settings.checkpoint_layers:
        # The memory limit of the whole cluster does not apply to this shape.
        free = replace(cluster, tokens_per_device=cluster.tokens_per_device or 1)
        plain = replace(settings, checkpoint_layers=0)
        cost = build_cost_model(plain, free, model, max_length_tokens)
    if shape.degree not in cost.degrees:
        raise SettingsError(
            "planner.sequence_parallel_degree",
            f"got {shape.degree}; allowed: {cost.degrees_in_words}",
        )
    fit = settings.fit if isinstance(settings, ProfiledCostSettings) else None
    # The first stages have one more layer where it does not divide.
    layers, rest = divmod(model.layers, shape.stages)
    counts = tuple(layers + (stage < rest) for stage in range(shape.stages))
    share = counts[0] / model.layers
    parameters = [
        stage_parameters(model, max_length_tokens, stage, shape.stages)
        for stage in range(shape.stages)
    ]
    element = element_bytes(settings)
    layer_bytes, checkpoint_bytes, logits_bytes = _stored_bytes(settings, model, shape.degree)
    forward, backward = _passes(settings, model, cost)
    traffic = _traffic_ms(settings, cluster, shape, max(parameters))
    per_chunk = settings.sharding is not None and settings.sharding.pipelines_gather == "chunk"
    gather, reduce = traffic if per_chunk else (0.0, 0.0)
    exchange = share * cost.all_to_all_ms[shape.degree]
    send = PassTime(0.0, 0.0)
    if (gb_s := cluster.point_to_point_gb_s) is not None:
        token_ms = element * model.hidden / shape.degree / (gb_s * 1e6)
        send = PassTime(0.0, token_ms, cluster.point_to_point_latency_ms)
    latency = counts[0] * layer_latencies_ms(settings, cluster).get(shape.degree, 0.0)
    token_bytes = [layers * layer_bytes for layers in counts]
    token_bytes[-1] += logits_bytes
    return PipelineCost(
        shape=shape,
        forward=forward.part(share, shape.degree, gather),
        backward=backward.part(share, shape.degree, reduce),
        all_to_all=PassTime(0.0, exchange, latency),
        recompute_over_forward=1.0 if fit is None else fit.forward_factor,
        layer_counts=counts,
        capacities=_capacities(settings, cluster, shape, parameters, token_bytes),
        layer_bytes=layer_bytes,
        input_bytes=checkpoint_bytes,
        key_value_bytes=2 * element * key_value_width(model),
        logits_bytes=logits_bytes,
        send=send,
        # Parameters that stay are gathered once.
        batch_ms=0.0 if per_chunk else traffic[1],
        gather_ms=gather,
        given_tokens=cluster.tokens_per_device,
    )


def element_bytes(settings: CostModelSettings) -> int:
    """Bytes of a parameter or an activation in computation."""
    if isinstance(settings, ProfiledCostSettings):
        assert settings.fit is not None  # building the cost model refuses others
        return settings.fit.element_bytes
    return settings.bytes_per_element


def _passes(
    settings: CostModelSettings, model: ModelSettings, cost: CostModel
) -> tuple[PassTime, PassTime]:
    """Computation of the whole model on one rank, forward and backward."""
    both_passes = PassTime(cost.quadratic_ms, cost.linear_ms, cost.constant_ms - cost.sharding_ms)
    share = cost.forward_share
    forward = PassTime(*(share * value for value in astuple(both_passes)))
    if isinstance(settings, ProfiledCostSettings) and settings.fit is not None:
        fit, layers = settings.fit, model.layers
        # Embedding, head and loss were measured as one pass.
        forward = PassTime(
            layers * fit.forward_quadratic_ms_per_token2,
            layers * fit.forward_linear_ms_per_token + share * fit.ends_linear_ms_per_token,
            layers * fit.forward_constant_ms + share * fit.ends_constant_ms,
        )
    backward = (
        max(0.0, a - b) for a, b in zip(astuple(both_passes), astuple(forward), strict=True)
    )
    return forward, PassTime(*backward)


def _stored_bytes(
    settings: CostModelSettings, model: ModelSettings, degree: int
) -> tuple[float, float, float]:
    """Bytes per token of a layer, a recomputed layer, and the last stage's end."""
    if isinstance(settings, ProfiledCostSettings):
        assert settings.fit is not None
        fit = settings.fit
        layer = fit.activation_bytes_per_token + (fit.exchange_bytes_per_token if degree > 1 else 0)
        return layer, fit.input_bytes_per_token(model), fit.ends_bytes_per_token
    inputs = float(settings.bytes_per_element * model.hidden)
    if isinstance(settings, FittedCostSettings):
        stored = settings.activation_mib_per_token * 2**20
    else:
        stored = float(activation_bytes_per_token(model, settings.bytes_per_element))
    return stored / model.layers, inputs, settings.logits_bytes_per_token


def _capacities(
    settings: CostModelSettings,
    cluster: ClusterSettings,
    shape: PipelineShape,
    stage_parameters: Sequence[int],
    token_bytes: Sequence[float],
) -> tuple[float, ...]:
    """Bytes for activations on a rank of each stage."""
    if cluster.tokens_per_device is not None:
        tokens = cluster.tokens_per_device * shape.stages
        return tuple(tokens * size for size in token_bytes)
    capacities = []
    for stage, parameters in enumerate(stage_parameters):
        states = parameters * _state_bytes(settings, shape)
        capacity = cluster.memory_gib * 2**30 - states
        if capacity <= 0:
            raise SettingsError(
                "cluster.memory_gib",
                f"got {cluster.memory_gib}; allowed: more than {states / 2**30:.6g}, for the states"
                f" of stage {stage} on {shape.degree * shape.replicas} devices",
            )
        capacities.append(capacity)
    return tuple(capacities)


def _traffic_ms(
    settings: CostModelSettings, cluster: ClusterSettings, shape: PipelineShape, parameters: int
) -> tuple[float, float]:
    """Exposed traffic of ZeRO-3: a gather, and a reduction with another gather."""
    traffic = settings.sharding
    if traffic is None:
        return 0.0, 0.0
    ranks = shape.degree * shape.replicas
    larger = [degree for degree in map(int, cluster.gather_gb_s) if degree >= ranks]
    gb_s = cluster.gather_gb_s[str(min(larger))] if larger else traffic.gb_s
    ms_per_byte = traffic.exposed_share * parameters * (ranks - 1) / ranks / (gb_s * 1e6)
    gather = traffic.parameter_bytes * ms_per_byte
    return gather, gather + traffic.gradient_bytes * ms_per_byte


def _state_bytes(settings: CostModelSettings, shape: PipelineShape) -> float:
    """Bytes on a rank for each parameter of its stage: states, and copies that stay."""
    ranks = shape.degree * shape.replicas
    if shape.tensor is not None:
        states = settings.state_bytes_per_parameter / shape.tensor
        return states * state_share(1, ranks // shape.tensor)
    states = settings.state_bytes_per_parameter * state_share(settings.zero_stage, ranks)
    if isinstance(settings, ProfiledCostSettings) and ranks > 1:
        # The profiled runtime keeps a stage's parameters and gradients whole.
        gradient = max(4, element_bytes(settings))
        divided = gradient * state_share(settings.zero_stage, ranks)
        return states - divided + (element_bytes(settings) + gradient)
    traffic = settings.sharding
    if traffic is None or traffic.pipelines_gather == "chunk":
        return states
    return states + traffic.parameter_bytes + traffic.gradient_bytes
