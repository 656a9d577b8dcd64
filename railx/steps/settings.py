"""Settings of generated training steps: model, parallelism, devices, sweep.

Models are given by the weights of their layers, as simulations and papers state them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from railx.effort import Cost, Costs
from railx.performance.devices import DeviceSettings
from railx.settings import AtLeast, Fraction, NonNegative, NotEmpty, Positive, SettingsError
from railx.steps.published_graphs import Layer


@dataclass(frozen=True)
class WeightedModel:
    """Shape of a decoder as weights and widths of a layer, where no more is published.

    Layers with experts follow ``dense_layers`` dense ones. Weights are those of matrix
    products; what each takes in operations and bytes follows from them.
    """

    name: Annotated[str, NotEmpty()]
    """Name that tables and figures show."""
    layers: Annotated[int, AtLeast(1)]
    """Decoder layers of the whole model."""
    hidden: Annotated[int, AtLeast(1)]
    """Width of the residual stream."""
    attention_weights: Annotated[int, AtLeast(1)]
    """Weights of the projections of a layer's attention."""
    whole_attention_weights: Annotated[int, AtLeast(0)]
    """Attention weights that every tensor rank multiplies in full, as projections to a
    low rank.
    """
    score_width: Annotated[int, AtLeast(0)]
    """Widths of keys and of values, summed over the heads: multiplications for each
    pair of tokens.
    """
    scored_share: Annotated[float, Fraction()]
    """Share of the pairs of tokens that are computed: 0.5 where a causal mask leaves
    out the others, 1 where all are.
    """
    dense_layers: Annotated[int, AtLeast(0)]
    """How many of the first layers have a dense feed-forward layer; all where there are
    no experts.
    """
    dense_weights: Annotated[int, AtLeast(0)]
    """Weights of a dense feed-forward layer."""
    experts_per_token: Annotated[int, AtLeast(0)]
    """Experts that a token visits in a layer that has them; 0 without experts."""
    experts: Annotated[int, AtLeast(0)]
    """Experts of a layer that has them."""
    expert_weights: Annotated[int, AtLeast(0)]
    """Weights of one expert."""
    shared_weights: Annotated[int, AtLeast(0)]
    """Weights of the experts that every token visits, held like a dense layer."""
    norm_weights: Annotated[int, AtLeast(0)]
    """Weights of a layer that every tensor rank holds whole."""
    input_weights: Annotated[int, AtLeast(0)]
    """Weights of the input table, on the first stage."""
    output_weights: Annotated[int, AtLeast(0)]
    """Weights of the output projection, on the last stage."""
    stage_layers: tuple[Annotated[int, AtLeast(1)], ...] = field(default=(), kw_only=True)
    """Layers of each stage; empty: as even as can be."""

    def __post_init__(self) -> None:
        if self.dense_layers > self.layers:
            allowed = f"at most {self.layers}, layers"
            raise SettingsError("dense_layers", f"got {self.dense_layers}; allowed: {allowed}")
        if self.stage_layers and sum(self.stage_layers) != self.layers:
            got = f"got {sum(self.stage_layers)} in all"
            raise SettingsError("stage_layers", f"{got}; allowed: {self.layers}, the layers")
        visited = self.experts_per_token
        if (self.dense_layers < self.layers) != (visited > 0) or visited > self.experts:
            got = f"got {visited} of {self.experts}"
            allowed = "0 where all layers are dense, 1 to all experts where some have them"
            raise SettingsError("experts_per_token", f"{got}; allowed: {allowed}")

    def costs(self) -> Costs:
        return {"layers": Cost(0.01, 1e6) * self.layers}

    def layers_by_stage(self, stages: int) -> tuple[int, ...]:
        """Layers of each of so many stages, those left over on the first ones."""
        return self.stage_layers or tuple(
            self.layers // stages + (n < self.layers % stages) for n in range(stages)
        )

    def rank_parameters(self, layer: int, tensor: int, expert_ranks: float) -> float:
        """Parameters of a layer on a tensor rank; so many ranks share its experts."""
        dense = layer < self.dense_layers
        rest = self.dense_weights if dense else self.shared_weights
        parameters = (self.attention_weights + rest) / tensor + self.norm_weights
        experts = 0 if dense else self.experts * self.expert_weights
        return parameters + experts / expert_ranks


CircuitRule = Literal["circuits", "stage_bits"]
#: Degrees in which the jobs of a family differ.
_VARIED_DEGREES = ("data", "pipeline", "expert")


@dataclass(frozen=True)
class DegreeSettings:
    """How many ranks each parallelism has.

    Ranks are numbered by tensor, context, data and stage, tensor fastest. A server
    holds the tensor ranks, and the context ranks too where ``context_in_server``.
    """

    data: Annotated[int, AtLeast(1)]
    """Replicas, or shards of the parameters with FSDP."""
    pipeline: Annotated[int, AtLeast(1)]
    """Stages."""
    tensor: Annotated[int, AtLeast(1)]
    """Ranks that share every layer; they sit in one server."""
    context: Annotated[int, AtLeast(1)] = 1
    """Ranks that share every sequence."""
    context_in_server: bool = False
    """Whether a server holds the context ranks too, so that they need no circuits."""
    expert: Annotated[int, AtLeast(1)] = 1
    """Ranks that share the experts of a layer."""
    expert_over: Literal["tensor", "data"] = "tensor"
    """Where groups of experts lie: over the ``tensor`` ranks of a server and then over
    replicas, or over replicas (``data``) alone."""

    def __post_init__(self) -> None:
        inside = self.tensor if self.expert_over == "tensor" else 1
        if self.expert > inside and (self.expert % inside or self.data % (self.expert // inside)):
            raise SettingsError(
                "expert",
                f"got {self.expert} over {self.expert_over}; allowed: {inside} times a divisor of"
                f" the {self.data} replicas, or fewer than {inside}",
            )
        if self.expert < inside and inside % self.expert:
            allowed = f"a divisor of {inside}, or a multiple"
            raise SettingsError("expert", f"got {self.expert}; allowed: {allowed}")

    @property
    def ranks(self) -> int:
        """All ranks of the job."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def server(self) -> int:
        """Ranks of a server."""
        return self.tensor * (self.context if self.context_in_server else 1)

    @property
    def expert_servers(self) -> int:
        """Servers that a group of experts spans."""
        inside = self.tensor if self.expert_over == "tensor" else 1
        return max(1, self.expert // inside)


@dataclass(frozen=True)
class ExpertCounts:
    """How a published generator counts a step with experts (railx/steps/experts.py)."""

    tokens: Literal["stage", "rank"]
    """Tokens that a rank's experts compute. ``stage``: those of all ranks of the stage,
    by the share of experts that the rank holds, which is as many as the group has
    ranks only where the group is the stage. ``rank``: as many as it sends, so that
    tokens are neither lost nor copied."""
    gathered: Literal["whole", "shard"]
    """What a rank gives to a gather: the ``whole`` tensor, or its ``shard``."""
    multiplied_share: Annotated[float, Fraction()]
    """Share of an expert's weights that tokens are multiplied with."""
    exchanged_copies: Annotated[int, AtLeast(1)]
    """Copies of a rank's tokens that an exchange sends to the others of the group."""
    popularity_exponent: Annotated[float, Positive()]
    """How uneven experts are visited: 1 evenly, more: the first ones more."""


@dataclass(frozen=True)
class HostSettings:
    """Time of the host and its software that devices wait for."""

    constants: Annotated[str, NotEmpty()]
    """Entry of resources/performance/constants.yaml: the host's time of a layer's pass,
    below which no pass is, and of a step."""
    pass_ms: Annotated[float, NonNegative()]
    """Measured: what each pass of a layer takes besides, one number for a model."""
    fitted_on: tuple[str, ...] = ()
    """Rows of published iterations without switching that ``pass_ms`` was fitted on."""


@dataclass(frozen=True)
class StepJob:
    """A training step: model, parallelism and devices."""

    model: WeightedModel
    """Shape of the model."""
    degrees: DegreeSettings
    """How many ranks each parallelism has."""
    device: DeviceSettings
    """The devices and their links."""
    schedule: Literal["1f1b", "interleaved", "gpipe"] = field(default="1f1b", kw_only=True)
    """Order of the pipeline's passes."""
    parts: Annotated[int, AtLeast(1)] = field(default=1, kw_only=True)
    """Virtual stages of each stage; 1 but where interleaved."""
    micro_batches: Annotated[int, AtLeast(1)]
    """Micro-batches of a replica."""
    micro_batch_sequences: Annotated[int, AtLeast(1)]
    """Sequences of a micro-batch."""
    sequence_tokens: Annotated[int, AtLeast(1)]
    """Tokens of a sequence."""
    parameters: Literal["replicated", "sharded"]
    """Whether each replica holds its parameters whole and reduces gradients, or a shard
    and gathers them before every pass (FSDP)."""
    gradients: Literal["at_end", "overlapped", "in_line"]
    """When replicas reduce gradients: after the last backward pass, or those of each
    layer as soon as they are there, behind computation (``overlapped``) or before it
    goes on (``in_line``). Shards scatter theirs always behind it."""
    small_reductions: Annotated[int, AtLeast(0)] = 0
    """Small all-reduces over the replicas at the end (norm of gradients)."""
    recomputed: bool = False
    """Whether backward passes run the forward pass again."""
    sequence_parallel: bool = True
    """Whether tensor ranks split tokens between products. Then four gathers and
    scatters forward and six backward stand for two all-reduces each way, and tensor
    ranks send their own share to other stages and experts."""
    bytes_per_element: Annotated[int, AtLeast(1)] = 2
    """Bytes of a parameter, activation or gradient as it is sent."""
    expert_counts: ExpertCounts | None = field(default=None, kw_only=True)
    """Counts of a published generator of steps with experts, which writes all passes
    its own way; null: layers as they are computed."""
    host: HostSettings | None = field(default=None, kw_only=True)
    """Time of the host; null: devices wait for nothing but each other."""

    def __post_init__(self) -> None:
        if (self.parts > 1) != (self.schedule == "interleaved"):
            got = f"got {self.parts} with {self.schedule}"
            raise SettingsError("parts", f"{got}; allowed: 1 unless interleaved")
        stages = self.degrees.pipeline
        if self.model.stage_layers and len(self.model.stage_layers) != stages:
            got = f"got {len(self.model.stage_layers)} stages"
            raise SettingsError("model.stage_layers", f"{got}; allowed: {stages}, the degree")
        if self.model.stage_layers and self.parts > 1:
            raise SettingsError("model.stage_layers", "allowed: empty where interleaved")
        if stages * self.parts > self.model.layers:
            raise SettingsError(
                "degrees.pipeline",
                f"got {stages} stages of {self.parts}; allowed: at most {self.model.layers} in all",
            )
        if self.sequence_tokens % self.degrees.context:
            raise SettingsError(
                "sequence_tokens",
                f"got {self.sequence_tokens}; allowed: a multiple of {self.degrees.context}",
            )
        if max(1, self.model.experts) % self.degrees.expert:
            raise SettingsError(
                "degrees.expert",
                f"got {self.degrees.expert}; allowed: a divisor of the {self.model.experts} experts"
                if self.model.experts
                else f"got {self.degrees.expert}; allowed: 1 for a model without experts",
            )

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one context rank."""
        return self.micro_batch_sequences * self.sequence_tokens // self.degrees.context

    def costs(self) -> Costs:
        return {"small_reductions": Cost(0.01, 1e5) * self.small_reductions}


@dataclass(frozen=True)
class SweepSettings:
    """Circuit rules, latencies and bandwidths of the replays."""

    rules: Annotated[tuple[CircuitRule, ...], NotEmpty()]
    """``circuits``: light paths between ports, as our controller sets them.
    ``stage_bits``: one bit for each stage of a rail, as Opus encodes it."""
    latencies_ms: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Reconfiguration latencies, each on demand and provisioned."""
    bandwidths_gb_s: tuple[Annotated[float, Positive()], ...] = ()
    """Bandwidths of the rails to run once more."""
    bandwidth_latencies_ms: tuple[Annotated[float, NonNegative()], ...] = ()
    """Latencies of that sweep."""
    iterations: Annotated[int, AtLeast(1)] = 1
    """Steps that are replayed; the last one counts. 1: a first step, from circuits that
    are dark; more: a step among others."""
    whole: bool = False
    """Whether all ranks are replayed. Otherwise one rail stands for all of a server,
    which do the same at the same time."""


@dataclass(frozen=True)
class VariantSettings:
    """One job of a family: the settings that differ."""

    data: Annotated[int, AtLeast(1)]
    """Replicas or shards."""
    pipeline: Annotated[int, AtLeast(1)]
    """Stages."""
    expert: Annotated[int, AtLeast(1)]
    """Ranks that share the experts of a layer."""
    micro_batch_sequences: Annotated[int, AtLeast(1)]
    """Sequences of a micro-batch."""
    gradients: Literal["at_end", "overlapped", "in_line"]
    """When replicas reduce gradients."""


@dataclass(frozen=True)
class StepSettings:
    """A family of jobs and their replays."""

    job: StepJob
    """The step that the variants change."""
    variants: Annotated[dict[str, VariantSettings], NotEmpty()]
    """The jobs by name."""
    sweep: SweepSettings
    """The replays of each job."""
    published: Layer | None = None
    """The layer of the published simulation whose graphs are replayed too, with the
    degrees, batch, length, layers and width of the jobs; null: none."""

    def __post_init__(self) -> None:
        for name, variant in self.variants.items():
            try:
                self._job(variant)
            except SettingsError as error:
                raise error.under(f"variants.{name}") from None

    def jobs(self) -> dict[str, StepJob]:
        """The jobs by the names of the variants."""
        return {name: self._job(variant) for name, variant in self.variants.items()}

    def _job(self, variant: VariantSettings) -> StepJob:
        degrees = {name: getattr(variant, name) for name in _VARIED_DEGREES}
        return replace(
            self.job,
            degrees=replace(self.job.degrees, **degrees),
            micro_batch_sequences=variant.micro_batch_sequences,
            gradients=variant.gradients,
        )

    def costs(self) -> Costs:
        job, sweep = self.job, self.sweep
        shapes: dict[str, DegreeSettings | VariantSettings] = {"job.degrees": job.degrees}
        shapes |= {f"variants.{name}": variant for name, variant in self.variants.items()}
        ranks_of_largest = max(float(s.data) * s.pipeline * s.expert for s in shapes.values())
        operations = ranks_of_largest * job.micro_batches * job.parts * 8
        runs = len(sweep.latencies_ms) * 2
        runs += len(sweep.bandwidths_gb_s) * len(sweep.bandwidth_latencies_ms)
        runs *= len(sweep.rules) * sweep.iterations * (1 + len(self.variants))
        counts = {
            "job.micro_batches": job.micro_batches,
            "job.parts": job.parts,
            "sweep.iterations": sweep.iterations,
        }
        for key, shape in shapes.items():
            counts |= {f"{key}.{name}": getattr(shape, name) for name in _VARIED_DEGREES}
        # The largest factor of the product is the one to make smaller.
        return {max(counts, key=lambda key: counts[key]): Cost(2e-5 * runs, 100.0) * operations}
