"""Time and memory of sequences on a cluster.

There is one form, fitted to measurements (published ones or a profile of our own) or
derived from operations and bytes. All kinds give the same coefficients
(:class:`CostModel`): a group of degree d with sequences of lengths s takes

    compute = (1/d) Σ (a1 s² + a2 s) + b1        (FlexSP eq. 12)
    all-to-all = Σ s · c(d) + l(d), 0 for d = 1   (Ulysses; FlexSP, public code)

and at most ``tokens_per_device`` · d tokens fit. Two terms are this project's, off by
default: the latency l(d) of a group's exchanges, which FlexSP's constants lack, and the
traffic of ZeRO-3 (:class:`ShardingTraffic`), which FlexSP's public code does not price.
The latter is the same for every micro-batch, so it is part of b1.

:meth:`CostModel.group_time_ms` counts the latency. Our search, its small optimum and
groups of any degree also plan with it; the published planners do not, and our lower
bound omits it and remains a lower bound.

A pipeline chunk follows InfiniPipe eqs. 1-4 with the same coefficients. Computation
never overlaps with all-to-all, and the position of a group does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from railx.performance.cluster import ClusterSettings, all_to_all_gb_s, bandwidth_gb_s
from railx.performance.decoder import (
    ModelSettings,
    activation_bytes_per_token,
    all_to_all_bytes_per_token,
    attention_flops,
    key_value_width,
    linear_flops_per_token,
    parameter_count,
)
from railx.performance.layer_profile import ProfileFit
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    Positive,
    PowerOfTwo,
    SettingsError,
    load,
)

_MIB = 2.0**20


@dataclass(frozen=True)
class ShardingTraffic:
    """Traffic of ZeRO-3 among all devices in every micro-batch, this project's term.

    Each device gathers the parameters for the forward pass and again for the backward
    pass, and its gradients are reduced and scattered once; only the part of the other
    devices is moved.
    """

    gb_s: Annotated[float, Positive()]
    """Bandwidth of one device in a gather over all devices."""
    parameter_bytes: Literal[2, 4, 8] = 2
    """Bytes of a parameter that is gathered."""
    gradient_bytes: Literal[2, 4, 8] = 2
    """Bytes of a gradient that is reduced."""
    exposed_share: Annotated[float, Between(0, 1)] = 1.0
    """Share of the time that computation does not hide; 1 hides nothing."""
    pipelines_gather: Literal["batch", "chunk"] = "batch"
    """How often a pipeline stage gathers and reduces, among its own devices: once a
    batch, and then holds whole parameters and gradients all the while, or for every
    chunk."""


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """What every kind of cost model sets."""

    kind: str
    """Where the coefficients come from."""
    state_bytes_per_parameter: Annotated[int, AtLeast(1)] = 16
    """Parameter, gradient and optimizer state together, before they are divided."""
    zero_stage: Literal[1, 2, 3] = 3
    """What ZeRO divides among the devices: 1 the optimizer state, 2 also the gradients,
    3 also the parameters."""
    sharding: ShardingTraffic | None = None
    """Traffic of ZeRO-3, a term of our own; null leaves it out, as FlexSP's public code
    does."""
    checkpoint_layers: Annotated[int, AtLeast(0)] = 0
    """Layers that sequence-parallel groups recompute in every backward pass, each
    whole; pipelines plan their own."""
    group_latency: bool = False
    """Whether a sequence-parallel group pays the latency of every layer's exchanges, as
    pipelines do for each chunk. Off where nothing was published or measured."""


@dataclass(frozen=True, kw_only=True)
class _UnmeasuredCosts(_Costs):
    """What a kind without a measured layer sets."""

    backward_over_forward: Annotated[float, Positive()] = 2.0
    """Time of a backward pass over that of its forward pass."""
    logits_bytes_per_token: Annotated[float, NonNegative()] = 0.0
    """What the last stage of a pipeline keeps of a token beyond its layers, its
    scores."""


@dataclass(frozen=True, kw_only=True)
class FittedCostSettings(_UnmeasuredCosts):
    """Coefficients fitted to measurements of one model.

    FlexSP's public constants are of this kind. Times are those of one device for
    forward and backward together. FlexSP divides MiB by GB/s and calls it ms, so its
    bandwidth unit is 2^20 · 1000 byte/s; this kind keeps that convention.
    """

    kind: Literal["fitted"]
    """Where the coefficients come from: a fit."""
    model: Annotated[str, NotEmpty()]
    """Name of the model that was measured; plans of another are refused."""
    quadratic_ms_per_token2: Annotated[float, NonNegative()]
    """a1: compute time per token squared of a sequence (attention)."""
    linear_ms_per_token: Annotated[float, Positive()]
    """a2: compute time per token."""
    constant_ms: Annotated[float, NonNegative()]
    """b1: overhead, once per micro-batch."""
    activation_mib_per_token: Annotated[float, Positive()]
    """Activations of the whole model; the ranks of a group share them."""
    bytes_per_element: Literal[2, 4, 8] = 2
    """Bytes of one activation, in memory and in an all-to-all."""


@dataclass(frozen=True, kw_only=True)
class AnalyticCostSettings(_UnmeasuredCosts):
    """Operations over the device's throughput and bytes over its bandwidth.

    For machines without a profile.
    """

    kind: Literal["analytic"]
    """Where the coefficients come from: operations and bytes."""
    compute_efficiency: Annotated[float, Fraction()] = 0.5
    """Share of the device's peak that is reached."""
    constant_ms: Annotated[float, NonNegative()] = 5.0
    """Overhead, once per micro-batch."""
    bytes_per_element: Literal[2, 4, 8] = 4
    """Bytes of one activation, in memory and in an all-to-all."""


@dataclass(frozen=True, kw_only=True)
class ProfiledCostSettings(_Costs):
    """Coefficients from a profile of the experiment: a layer, measured and fitted.

    The model has a layer's coefficients once per layer, and those of embedding, head
    and loss once.
    """

    kind: Literal["profile"]
    """Where the coefficients come from: a measured layer."""
    profile: Annotated[str, NotEmpty()]
    """Name of a profile of the experiment, of the model of this plan."""
    fit: ProfileFit | None = None
    """What was fitted; null takes it from the profile that is named."""


@dataclass(frozen=True, kw_only=True)
class StepCostSettings(_UnmeasuredCosts):
    """Coefficients of the step model for a device, analytic, until a profile measures
    them.

    :func:`railx.performance.step_costs.with_step_model` fills those that are null.
    """

    kind: Literal["step"]
    """Where the coefficients come from: the step model, docs/performance.md."""
    device: Annotated[str, NotEmpty()]
    """A device of resources/performance/devices.yaml."""
    constants: str | None = None
    """Fitted constants of a program on the device; null: those nearest to it."""
    model: str | None = None
    """Name of the model that the coefficients hold for."""
    quadratic_ms_per_token2: Annotated[float, NonNegative()] | None = None
    """a1: compute time per token squared of a sequence (attention)."""
    linear_ms_per_token: Annotated[float, Positive()] | None = None
    """a2: compute time per token."""
    constant_ms: Annotated[float, NonNegative()] = 0.0
    """b1: once per micro-batch."""
    bytes_per_element: Literal[2, 4, 8] = 2
    """Bytes of one activation, in memory and in an all-to-all."""


CostModelSettings = (
    FittedCostSettings | AnalyticCostSettings | ProfiledCostSettings | StepCostSettings
)


def with_profile(settings: ProfiledCostSettings, fit: Mapping[str, Any]) -> ProfiledCostSettings:
    """The settings with the fit of their profile (stage profile), checked."""
    return replace(settings, fit=load(ProfileFit, fit, "cost_model.fit"))


def bandwidth_unit(settings: CostModelSettings) -> float:
    """The unit of the bandwidths that a cost model takes, in 10^9 byte/s."""
    return _MIB * 1000 / 1e9 if isinstance(settings, FittedCostSettings) else 1.0


@dataclass(frozen=True)
class GroupTime:
    """Predicted time of a sequence-parallel group, forward and backward."""

    compute_ms: float
    all_to_all_ms: float

    @property
    def total_ms(self) -> float:
        return self.compute_ms + self.all_to_all_ms


@dataclass(frozen=True)
class ChunkTime:
    """Predicted time of a chunk on one pipeline stage.

    All-to-all is contained in forward and backward, half in each.
    """

    forward_ms: float
    backward_ms: float
    all_to_all_ms: float

    @property
    def total_ms(self) -> float:
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True)
class CostModel:
    """Coefficients of time and memory.

    * ``quadratic_ms`` (ms/token²) and ``linear_ms`` (ms/token): forward and backward on
      one device.
    * ``constant_ms``: once per micro-batch. ``sharding_ms`` is the part of it that is
      exposed traffic of ZeRO-3 (0 without).
    * ``all_to_all_ms``: per token of a group, by degree (degree 1: 0). Its keys are all
      usable degrees, powers of two and others, ascending.
    * ``latency_ms``: of a group's exchanges in all layers, independent of their size,
      by degree; empty if off.
    * ``tokens_per_device``: most tokens of a group per rank.
    * ``forward_share``: forward part of the compute time.
    * ``listed_ms``: as ``all_to_all_ms`` times the degree, for the degrees of the
      cluster's table; the times of all other degrees follow from these.
    * ``heads``: of the model, None where unknown.
    * ``split_memory``: memory of a split token relative to a batched one, because the
      gradients of keys and values of all its slices are alive at once (InfiniPipe eq.
      5).
    """

    quadratic_ms: float
    linear_ms: float
    constant_ms: float
    all_to_all_ms: Mapping[int, float]
    tokens_per_device: int
    forward_share: float
    split_memory: float
    listed_ms: Mapping[int, float] = field(default_factory=dict)
    heads: int | None = None
    sharding_ms: float = 0.0
    latency_ms: Mapping[int, float] = field(default_factory=dict)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Powers of two among the degrees that cluster and model allow, ascending."""
        return tuple(degree for degree in self.all_to_all_ms if PowerOfTwo().accepts(degree))

    @property
    def any_degrees(self) -> tuple[int, ...]:
        """All degrees that cluster and model allow, ascending.

        Ulysses distributes whole heads, so they are divisors of the heads.
        """
        return tuple(self.all_to_all_ms)

    @property
    def degrees_in_words(self) -> str:
        """The degrees and the heads they must divide, for an error."""
        heads = "" if self.heads is None else f" that divide the model's {self.heads} heads"
        return f"{', '.join(map(str, self.degrees))}, those of the cluster{heads}"

    def sequence_ms(self, lengths: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Compute time (ms) of each of lengths [n] on one device, a1 s² + a2 s."""
        tokens = np.asarray(lengths, dtype=np.float64)
        return self.quadratic_ms * tokens**2 + self.linear_ms * tokens

    def group_time_ms(self, lengths: npt.ArrayLike, degree: int) -> GroupTime:
        """Time of a group with sequences of lengths [n] (FlexSP eq. 12)."""
        compute = float(self.sequence_ms(lengths).sum()) / degree + self.constant_ms
        exchange = float(np.sum(lengths)) * self.all_to_all_for(degree)
        return GroupTime(compute, exchange + self.latency_for(degree))

    def all_to_all_for(self, degree: int) -> float:
        """``all_to_all_ms`` of any degree, including those that do not divide the
        heads.

        At the bandwidth of the next larger degree of the cluster's table, or its last.
        """
        if degree in self.all_to_all_ms:
            return self.all_to_all_ms[degree]
        listed = self.listed_ms or {d: d * ms for d, ms in self.all_to_all_ms.items() if d > 1}
        if not listed:
            raise SettingsError(
                "cluster.all_to_all_gb_s", f"is empty; allowed for degree {degree}: a bandwidth"
            )
        larger = [size for size in listed if size >= degree]
        return listed[min(larger, default=max(listed))] / degree

    def latency_for(self, degree: int) -> float:
        """``latency_ms`` of any degree, 0 for a power of two that is missing.

        Others have that of the next larger listed degree, if there is one.
        """
        if degree in self.latency_ms or PowerOfTwo().accepts(degree):
            return self.latency_ms.get(degree, 0.0)
        larger = [size for size in self.latency_ms if size > degree]
        return self.latency_ms[min(larger)] if larger else 0.0

    def smallest_degree(self, length: int) -> int | None:
        """The smallest degree whose group fits a sequence of this length, or None."""
        return next(
            (degree for degree in self.degrees if length <= self.tokens_per_device * degree), None
        )

    @property
    def longest_tokens(self) -> int:
        """The longest sequence that fits a group of the largest degree."""
        return self.tokens_per_device * self.degrees[-1]


def build_cost_model(
    settings: CostModelSettings,
    cluster: ClusterSettings,
    model: ModelSettings,
    max_length_tokens: int,
    degrees: Iterable[int] | None = None,
) -> CostModel:
    """Coefficients for a model on a cluster.

    ``max_length_tokens`` sizes learned positions, hence model states. ``degrees`` are
    the allowed ones; None takes the divisors of the heads up to the devices, which
    Ulysses can run. SettingsError where the coefficients were fitted for another model
    or the model's states leave no memory for tokens.
    """
    if isinstance(settings, ProfiledCostSettings) and settings.fit is not None:
        # Measured bandwidths replace those of the cluster.
        measured = settings.fit.all_to_all_gb_s
        cluster = replace(cluster, all_to_all_gb_s={**cluster.all_to_all_gb_s, **measured})
    bandwidths = _bandwidths(cluster, model, degrees)
    if settings.checkpoint_layers > model.layers:
        raise SettingsError(
            "cost_model.checkpoint_layers",
            f"got {settings.checkpoint_layers}; allowed: at most {model.layers}, the layers of"
            f" {model.name}",
        )
    derived = (
        _profiled(settings, model)
        if isinstance(settings, ProfiledCostSettings)
        else _unmeasured(settings, cluster, model)
    )
    moved = derived.again.exchanged(all_to_all_bytes_per_token(model, derived.element_bytes))
    sharding = _sharding_ms(settings, cluster, model, max_length_tokens)
    return CostModel(
        quadratic_ms=derived.quadratic_ms,
        linear_ms=derived.linear_ms,
        constant_ms=derived.constant_ms + sharding,
        all_to_all_ms={
            degree: moved / degree / (bandwidth * derived.bytes_per_ms)
            for degree, bandwidth in bandwidths.items()
        },
        tokens_per_device=_tokens_per_device(
            settings, cluster, model, max_length_tokens, derived.activation_mib
        ),
        forward_share=derived.forward_share,
        split_memory=1 + derived.split_over_stored,
        listed_ms={
            int(degree): moved / derived.bytes_per_ms / gb_s
            for degree, gb_s in cluster.all_to_all_gb_s.items()
        },
        heads=model.heads,
        sharding_ms=sharding,
        latency_ms=_group_latency_ms(settings, cluster, derived.again.exchanged(model.layers)),
    )


@dataclass(frozen=True)
class _Recomputed:
    """Whole-model coefficients under recomputation of a share of the layers."""

    share: float
    forward: float
    """Forward part of the time without it."""

    @property
    def factor(self) -> float:
        """Times as long with another forward pass of those layers."""
        return 1 + self.share * self.forward

    def exchanged(self, amount: float) -> float:
        """The exchanges of a forward pass are half of all."""
        return amount * (1 + self.share / 2)

    def stored(self, all_layers: float, inputs: float) -> float:
        """The input alone of those layers."""
        return (1 - self.share) * all_layers + self.share * inputs


class _ModelCost(NamedTuple):
    """Coefficients of :class:`CostModel` without ZeRO's traffic, recomputation
    included. ``bytes_per_ms``: at a bandwidth of 1.
    """

    again: _Recomputed
    quadratic_ms: float
    linear_ms: float
    constant_ms: float
    forward_share: float
    activation_mib: float
    split_over_stored: float
    element_bytes: int
    bytes_per_ms: float = 1e6


def _unmeasured(
    settings: FittedCostSettings | AnalyticCostSettings | StepCostSettings,
    cluster: ClusterSettings,
    model: ModelSettings,
) -> _ModelCost:
    """From coefficients of the whole model, fitted or derived."""
    element = settings.bytes_per_element
    activation_mib, bytes_per_ms = activation_bytes_per_token(model, element) / _MIB, 1e6
    if isinstance(settings, AnalyticCostSettings):
        operations_per_ms = cluster.device_tflop_s * 1e9 * settings.compute_efficiency
        passes = 1 + settings.backward_over_forward
        quadratic = passes * attention_flops(model, 1) / operations_per_ms
        linear = passes * linear_flops_per_token(model) / operations_per_ms
    else:
        a1, a2 = settings.quadratic_ms_per_token2, settings.linear_ms_per_token
        if a1 is None or a2 is None or settings.model != model.name:
            raise SettingsError(
                "cost_model.model",
                f"fitted for {settings.model}; allowed: {model.name}, the model of this plan"
                if isinstance(settings, FittedCostSettings)
                else f"got coefficients for {settings.model}; allowed: those of {model.name}, the"
                " model of this plan (null: the step model's)",
            )
        quadratic, linear = a1, a2
        if isinstance(settings, FittedCostSettings):
            activation_mib, bytes_per_ms = settings.activation_mib_per_token, _MIB
    forward = 1 / (1 + settings.backward_over_forward)
    again = _Recomputed(settings.checkpoint_layers / model.layers, forward)
    activation_mib = again.stored(activation_mib, element * model.layers * model.hidden / _MIB)
    key_value_mib = 2 * element * model.layers * key_value_width(model) / _MIB
    return _ModelCost(
        again,
        quadratic * again.factor,
        linear * again.factor,
        settings.constant_ms * again.factor,
        forward / again.factor,
        activation_mib,
        key_value_mib / activation_mib,
        element,
        bytes_per_ms,
    )


def layer_latencies_ms(settings: CostModelSettings, cluster: ClusterSettings) -> dict[int, float]:
    """Latency of a layer's exchanges by degree; measured values take precedence."""
    table = dict(cluster.all_to_all_latency_ms)
    if isinstance(settings, ProfiledCostSettings) and settings.fit is not None:
        table |= settings.fit.all_to_all_latency_ms
    return {int(degree): latency for degree, latency in table.items()}


def _group_latency_ms(
    settings: CostModelSettings, cluster: ClusterSettings, layers: float
) -> dict[int, float]:
    """Latency of the exchanges of all layers by degree; empty if off."""
    if not settings.group_latency:
        return {}
    table = layer_latencies_ms(settings, cluster)
    if not table:
        raise SettingsError(
            "cost_model.group_latency",
            "got true without a latency; allowed: false, or a cluster with all_to_all_latency_ms"
            " or a profile that measured it",
        )
    return {degree: layers * latency for degree, latency in table.items() if degree > 1}


def _bandwidths(
    cluster: ClusterSettings, model: ModelSettings, degrees: Iterable[int] | None
) -> dict[int, float]:
    """GB/s of each usable degree, ascending."""
    powers = all_to_all_gb_s(cluster)
    if degrees is None:
        degrees = (
            d for d in range(2, min(cluster.devices, model.heads) + 1) if model.heads % d == 0
        )
    bandwidths = {1: float("inf")}
    for degree in sorted(d for d in set(degrees) if 1 < d <= cluster.devices):
        if PowerOfTwo().accepts(degree):
            bandwidth = powers.get(degree)
        else:
            bandwidth = bandwidth_gb_s(cluster, degree)
        if bandwidth is not None:
            bandwidths[degree] = bandwidth
    return bandwidths


def _sharding_ms(
    settings: CostModelSettings,
    cluster: ClusterSettings,
    model: ModelSettings,
    max_length_tokens: int,
) -> float:
    """Exposed time of ZeRO-3's traffic in a micro-batch; 0 if off."""
    traffic = settings.sharding
    if traffic is None:
        return 0.0
    if settings.zero_stage != 3:
        raise SettingsError(
            "cost_model.sharding",
            f"got traffic of ZeRO-3 with zero_stage {settings.zero_stage}; allowed: zero_stage 3,"
            " or null",
        )
    bytes_per_parameter = 2 * traffic.parameter_bytes + traffic.gradient_bytes
    elsewhere = (cluster.devices - 1) / cluster.devices
    moved = parameter_count(model, max_length_tokens) * bytes_per_parameter * elsewhere
    return traffic.exposed_share * moved / (traffic.gb_s * 1e6)


def _profiled(settings: ProfiledCostSettings, model: ModelSettings) -> _ModelCost:
    """From the coefficients of a layer, and those of the model's ends."""
    fit, layers = settings.fit, model.layers
    if fit is None:
        raise SettingsError(
            "cost_model.profile",
            f"got {settings.profile!r}; allowed by hand: with its fit as cost_model.fit (an"
            " experiment measures it)",
        )
    if fit.model != model.name:
        raise SettingsError(
            "cost_model.profile",
            f"got {settings.profile!r}, measured for {fit.model}; allowed: a profile of"
            f" {model.name}, the model of this plan",
        )
    again = _Recomputed(settings.checkpoint_layers / layers, fit.forward_share * fit.forward_factor)
    # Tensors kept by exchanges count at every degree: no group may exceed memory.
    layer = fit.activation_bytes_per_token + fit.exchange_bytes_per_token
    inputs = fit.input_bytes_per_token(model)
    activation = again.stored(layers * layer, layers * inputs) + fit.ends_bytes_per_token
    split = fit.context_bytes_per_token
    if split is None:
        split = 2.0 * fit.element_bytes * key_value_width(model)
    return _ModelCost(
        again,
        layers * (fit.quadratic_ms_per_token2 * again.factor),
        layers * (fit.linear_ms_per_token * again.factor) + fit.ends_linear_ms_per_token,
        layers * (fit.constant_ms * again.factor) + fit.ends_constant_ms,
        fit.forward_share / again.factor,
        activation / _MIB,
        layers * split / activation,
        fit.element_bytes,
    )


def model_state_mib(
    settings: CostModelSettings,
    cluster: ClusterSettings,
    model: ModelSettings,
    max_length_tokens: int,
) -> float:
    """MiB of parameters, gradients and optimizer states on one device under ZeRO.

    Source: FlexSP's public code, memory model. Stage 3 shards all; stage 2 all but 1/8
    (half-precision parameters); stage 1 all but 2/8 (and gradients).
    """
    total_mib = (
        parameter_count(model, max_length_tokens) * settings.state_bytes_per_parameter / _MIB
    )
    return total_mib * state_share(settings.zero_stage, cluster.devices)


def state_share(zero_stage: Literal[1, 2, 3], devices: int) -> float:
    """Share of the model's states on one of the devices that ZeRO cuts them over."""
    undivided = {3: 0.0, 2: 1 / 8, 1: 2 / 8}[zero_stage]
    return (1 - undivided) / devices + undivided


def _tokens_per_device(
    settings: CostModelSettings,
    cluster: ClusterSettings,
    model: ModelSettings,
    max_length_tokens: int,
    activation_mib: float,
) -> int:
    """Tokens that fit beside a device's states (FlexSP, public code, memory model)."""
    if cluster.tokens_per_device is not None:
        return cluster.tokens_per_device
    states = model_state_mib(settings, cluster, model, max_length_tokens)
    tokens = int((cluster.memory_gib * 1024 - states) / activation_mib)
    if tokens < 1:
        needed = (states + activation_mib) / 1024
        shortest = model_state_mib(settings, cluster, model, 1)
        if (cluster.memory_gib * 1024 - shortest) / activation_mib >= 1:
            raise SettingsError(
                "batch.max_length_tokens",
                f"got a longest sequence of {max_length_tokens:,} tokens; allowed: shorter ones, as"
                f" learned positions for it need {needed:,.1f} GiB of a device's"
                f" {cluster.memory_gib:g} GiB",
            )
        raise SettingsError(
            "cluster.memory_gib",
            f"got {cluster.memory_gib}; allowed: more than {needed:.6g}, for the model's states",
        )
    return tokens
