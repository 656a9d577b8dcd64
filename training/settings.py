"""Settings of a training run.

``python -m training.run`` reads them from its resolved JSON config. Needs no torch, so
that a pipeline can check its settings before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal

from railx.effort import Cost, Costs
from railx.fabric.settings import FabricSettings, Mode, RailSettings
from railx.performance.decoder import ModelSettings
from railx.planning.format.plan import Plan, check_ranks
from railx.planning.format.schedule import RUNNABLE, operations, stage_layers
from railx.settings import (
    MAX_TIMEOUT_S,
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
    load,
)

#: Planners whose plans are of programs that nothing here runs, and why. Their groups
#: and stages would run, but not as they were priced.
_OTHER_PROGRAMS = {
    "megatron": "its tensor and context parallelism are priced, not run",
    "megatron_pipeline": "its tensor and context parallelism are priced, not run",
    "slim_pipe": "attention that stages share is priced, not run",
}

#: How the ranks of a group of a plan share its sequences.
Parallelism = Literal["ulysses", "ring", "tensor"]

#: The ZeRO stage that each way of sharding is.
_ZERO_STAGE = {"none": 0, "zero3": 3}


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, its gradient clipping and its learning rate over the steps.

    The defaults of the betas and of the weight decay are LLaMA's (arXiv 2302.13971,
    section 2.3).
    """

    learning_rate: Annotated[float, Positive()] = 0.0003
    """Step size."""
    beta1: Annotated[float, Between(0, 0.999999)] = 0.9
    """Decay of the mean of the gradients."""
    beta2: Annotated[float, Between(0, 0.999999)] = 0.95
    """Decay of the mean of their squares."""
    epsilon: Annotated[float, Positive()] = 1e-08
    """Added to the root of the squares before dividing."""
    weight_decay: Annotated[float, NonNegative()] = 0.1
    """Share of a weight that is taken off per step, times the learning rate."""
    clip_norm: Annotated[float, Positive()] | None = None
    """The largest norm of all gradients together; larger ones are scaled down. None
    leaves them as they are."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up: stay, or fall along half a
    cosine."""
    warmup_steps: Annotated[int, AtLeast(0)] = 0
    """Steps over which the learning rate rises evenly."""
    decay_steps: Annotated[int, AtLeast(0)] = 0
    """The step at which a falling learning rate has come to its last value, the warm-up
    included; 0 where it is constant."""
    final_share: Annotated[float, Between(0, 1)] = 0.1
    """The last value of a falling learning rate, as a share of the highest."""

    def __post_init__(self) -> None:
        if self.schedule == "cosine" and self.decay_steps <= self.warmup_steps:
            raise SettingsError(
                "decay_steps",
                f"got {self.decay_steps}; allowed for a cosine: more than warmup_steps, which is"
                f" {self.warmup_steps}",
            )


@dataclass(frozen=True)
class TrainingSettings:
    """How a plan is trained and timed; one file of conf/training.

    The run is repeated over electrical switching and over the two optical modes at each
    of their reconfiguration latencies: a block of iterations for each. A repeat runs
    all blocks, in a random order. A block cycles through the plan's batches.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute; ``auto`` takes CUDA where available."""
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """Precision of activations and products."""
    attention: Literal["auto", "sdpa", "varlen", "blocks"] = "auto"
    """Attention kernel; ``auto`` takes the fastest that can run. None of them stores
    a score for each pair of tokens."""
    parallelism: Parallelism = "ulysses"
    """How the ranks of a group share its sequences: ``ulysses`` exchanges heads for
    tokens around attention; ``ring`` passes keys and values around (torch's context
    parallelism; on CPU ranks); ``tensor`` splits the products of each layer (torch's
    tensor parallelism), for plans whose groups are the same throughout. The last two
    have no pipelines."""
    sharding: Literal["none", "zero3"] = "none"
    """Sharding of parameters, gradients and optimizer state: ``none`` replicates them
    on all ranks of a stage, ``zero3`` shards them. It must equal the sharding that the
    plan was priced with (``zero_stage`` of its cost model)."""
    compile: bool = False
    """Whether layers are compiled by ``torch.compile``."""
    loss_chunk_tokens: Annotated[int, AtLeast(1)] = 1024
    """Tokens whose scores over the vocabulary are in memory at once."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer."""
    warmup_iterations: Annotated[int, AtLeast(1)] = 1
    """Steps at the start of a block that are not timed."""
    iterations: Annotated[int, AtLeast(1)] = 3
    """Steps of a block that are timed."""
    repeats: Annotated[int, AtLeast(1)] = 1
    """Rounds of all fabric settings; a verdict on times needs at least 3."""
    disturbed_share: Annotated[float, Between(0, 1)] = 0.1
    """A block during which other processes took more than this share of all cores'
    time is marked as disturbed and run again. Default: a fifth of one of
    two cores."""
    most_extra_repeats: Annotated[int, AtLeast(0)] = 0
    """How many disturbed blocks a launch may run again."""
    threads_per_rank: Annotated[int, AtLeast(1)] = 1
    """CPU threads of each rank."""
    on_demand_latencies_ms: tuple[Annotated[float, NonNegative()], ...] = (0.0, 50.0, 250.0)
    """Reconfiguration latencies of the on-demand mode, one block each."""
    provisioned_latencies_ms: tuple[Annotated[float, NonNegative()], ...] = (0.0, 50.0, 250.0)
    """Reconfiguration latencies of the provisioned mode, one block each."""
    loss_tolerance: Annotated[float, Fraction()] = 1e-05
    """How far the losses of the blocks may differ, relative to the loss."""
    checkpoint_every: Annotated[int, AtLeast(0)] = 0
    """Steps from one checkpoint of parameters and optimizer to the next; 0 writes none.
    A killed run continues from the last one."""
    timeout_s: Annotated[float, Positive(), Between(0, MAX_TIMEOUT_S)] = 120.0
    """A rank that waits longer than this for another one gives up."""
    planning: Literal["file", "while_training"] = "file"
    """Source of batches: ``file``, the finished plan; ``while_training`` plans each of
    them again, with the planner and the inputs of the plan in a separate process, while
    the ranks train the one before. The result must equal the batch in the file."""
    allow_sharding_mismatch: bool = False
    """Whether ``sharding`` may differ from that of the plan's prices. The log reports
    the difference; the plan's predictions of memory and times are for the other
    sharding."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        latencies = (*self.on_demand_latencies_ms, *self.provisioned_latencies_ms)
        # A step switches its circuits some four times, and there are some 48 steps.
        longest = Cost(4e-3 * 48)
        blocks_s = 0.02 * (1 + len(latencies)) + 4e-3 * sum(latencies)
        steps = (self.warmup_iterations + self.iterations) * self.repeats
        return {
            "most_extra_repeats": Cost(1) * self.most_extra_repeats,
            "threads_per_rank": Cost(bytes=2**23) * self.threads_per_rank,
            "loss_chunk_tokens": Cost(bytes=1e3) * self.loss_chunk_tokens,
            "on_demand_latencies_ms": longest * max(self.on_demand_latencies_ms, default=0),
            "provisioned_latencies_ms": longest * max(self.provisioned_latencies_ms, default=0),
            "iterations": Cost(blocks_s, 100.0) * steps,
        }


@dataclass(frozen=True)
class RunSettings:
    """One launch: a plan, its corpus, the model, and the rails to switch.

    The sweep switches the rails.
    """

    name: Annotated[str, NotEmpty()]
    """Name of the run."""
    seed: Annotated[int, Between(0, 2**31 - 1)]
    """Seed of the weights."""
    plan_name: Annotated[str, NotEmpty()]
    """Name of the plan in tables."""
    plan: Annotated[str, NotEmpty()]
    """Path of the plan."""
    corpus: Annotated[str, NotEmpty()]
    """Path of the corpus table."""
    model: ModelSettings
    """Shape of the model."""
    fabric: RailSettings
    """The rails between the ranks; the sweep sets mode and latency."""
    training: TrainingSettings
    """How the plan is trained and timed."""

    def __post_init__(self) -> None:
        check_model(self.model)


def load_run_settings(value: Mapping[str, Any]) -> RunSettings:
    """Run settings from plain data; SettingsError names the key and what is allowed."""
    settings: RunSettings = load(RunSettings, value)
    return settings


def fabric_sweep(settings: RunSettings) -> list[FabricSettings]:
    """The fabrics to train on: electrical first, then the optical modes."""
    modes: list[tuple[Mode, tuple[float, ...]]] = [
        ("electrical", (0.0,)),
        ("on_demand", settings.training.on_demand_latencies_ms),
        ("provisioned", settings.training.provisioned_latencies_ms),
    ]
    return [
        FabricSettings(**vars(settings.fabric), mode=mode, reconfiguration_latency_ms=latency_ms)
        for mode, latencies_ms in modes
        for latency_ms in latencies_ms
    ]


def fabric_rounds(settings: RunSettings) -> list[list[FabricSettings]]:
    """The sweep once for each repeat, each time in another order, which the seed draws.

    What drifts while a launch runs then falls on all settings alike. The very first is
    electrical: provisioning learns its schedule from it.
    """
    rounds = []
    for repeat in range(settings.training.repeats):
        order = fabric_sweep(settings)
        Random(f"{settings.seed}/{repeat}").shuffle(order)
        if repeat == 0:
            order.sort(key=lambda fabric: fabric.mode != "electrical")
        rounds.append(order)
    return rounds


def check_sharding(training: TrainingSettings, zero_stage: int, devices: int) -> str:
    """How the sharding differs from that of the plan's prices; empty if not.

    ``zero_stage``: what the plan's cost model divides among its ``devices``, if
    several. SettingsError where it differs and the settings do not allow it.
    """
    if devices == 1 or _ZERO_STAGE[training.sharding] == zero_stage:
        return ""
    mismatch = f"got {training.sharding}, but the plan was priced with ZeRO stage {zero_stage}"
    if training.allow_sharding_mismatch:
        return mismatch
    same = [name for name, stage in _ZERO_STAGE.items() if stage == zero_stage]
    allowed = ", ".join([*same, "any with training.allow_sharding_mismatch=true"])
    raise SettingsError("training.sharding", f"{mismatch}; allowed: {allowed}")


def check_model(model: ModelSettings) -> None:
    """Refuse models that ``training.model`` has not; SettingsError names the key."""
    if model.positions == "learned" and not model.max_positions:
        raise SettingsError(
            "model.max_positions",
            "got 0; allowed for training with learned positions: the tokens of the longest sequence"
            " or more",
        )


def check_positions(model: ModelSettings, longest_tokens: int) -> None:
    """Refuse sequences longer than a model's positions; SettingsError, with the key."""
    if model.positions == "learned" and longest_tokens > model.max_positions:
        raise SettingsError(
            "model.max_positions",
            f"got {model.max_positions}; allowed: at least {longest_tokens}, the tokens of the"
            " plan's longest sequence",
        )


def check_plan(
    plan: Plan, model: ModelSettings, ranks: int, training: TrainingSettings | None = None
) -> None:
    """Refuse a plan that these ranks or this model cannot run.

    ``training`` says how the ranks of a group share its sequences; None as by default.
    PlanError or SettingsError, one line.
    """
    check_planner(plan.planner, "plan")
    check_ranks(plan, ranks)
    if training is not None and training.parallelism != "ulysses":
        _check_parallelism(plan, model, training)
        return
    if plan.kind == "sequence_parallel":
        for used in sorted(
            {
                group.degree
                for batch in plan.sequence_parallel_batches()
                for micro_batch in batch.micro_batches
                for group in micro_batch.groups
            }
        ):
            _check_heads(model, used)
        return
    _check_schedules(plan)
    stages, degree = pipeline_shape(plan)
    _check_heads(model, degree)
    if plan.devices % (stages * degree):
        of_several = f" of {degree} ranks" if degree > 1 else ""
        raise SettingsError(
            "plan",
            f"{plan.devices} devices for {stages} pipeline stages{of_several}; allowed: a multiple"
            f" of {stages * degree}",
        )
    if stages > model.layers:
        raise SettingsError(
            "model.layers",
            f"got {model.layers}; allowed: at least {stages}, the pipeline stages of the plan",
        )
    _check_recomputed(plan, model, stages)


def check_planner(planner: str, key: str) -> None:
    """Refuse plans priced for other programs; SettingsError names ``key``."""
    if planner in _OTHER_PROGRAMS:
        raise SettingsError(
            key,
            f"got a plan of {planner}, which is simulated only: {_OTHER_PROGRAMS[planner]};"
            " allowed in training: Ulysses groups, and pipelines of them",
        )


def pipeline_shape(plan: Plan) -> tuple[int, int]:
    """The stages of a pipeline plan and the ranks of each.

    SettingsError where batches differ: a rank holds the same layers in all of them.
    """
    pipelines = [pipeline for batch in plan.pipeline_batches() for pipeline in batch.pipelines]
    shape = []
    for what, counts in (
        ("stages", {pipeline.stages for pipeline in pipelines}),
        ("ranks a stage", {pipeline.degree for pipeline in pipelines}),
    ):
        if len(counts) != 1:
            raise SettingsError(
                "plan",
                f"pipelines with {sorted(counts)} {what}; allowed: the same number in every batch",
            )
        shape.append(counts.pop())
    stages, degree = shape
    return stages, degree


def _check_schedules(plan: Plan) -> None:
    """Refuse simulated schedules, which cut layers or backward passes into parts."""
    for batch in plan.pipeline_batches():
        for index, pipeline in enumerate(batch.pipelines):
            named = pipeline.schedule if not pipeline.order else "an order with W"
            parts = pipeline.virtual_stages > 1 or any(
                op.kind == "weight" for op in operations(pipeline, 0)
            )
            if parts or (not pipeline.order and pipeline.schedule not in RUNNABLE):
                raise SettingsError(
                    "plan",
                    f"batch {batch.iteration}, pipeline {index}: schedule {named}, which is"
                    f" simulated only; allowed in training: {', '.join(RUNNABLE)}, or an order of F"
                    " and B",
                )


def tensor_degree(plan: Plan) -> int:
    """The ranks that split each layer; SettingsError: groups are no equal runs."""
    groups = {
        group.ranks
        for batch in plan.sequence_parallel_batches()
        for micro_batch in batch.micro_batches
        for group in micro_batch.groups
    }
    degree = max(map(len, groups), default=1)
    for ranks in sorted(groups):
        first = ranks[0]
        if first % degree or ranks != tuple(range(first, first + degree)):
            raise SettingsError(
                "training.parallelism",
                f"got tensor and a plan with the group {list(ranks)}; allowed: groups of equally"
                " many consecutive ranks in every micro-batch",
            )
    return degree


def _check_parallelism(plan: Plan, model: ModelSettings, training: TrainingSettings) -> None:
    chosen = f"got {training.parallelism}"
    if plan.kind != "sequence_parallel":
        raise SettingsError(
            "training.parallelism", f"{chosen} for a pipeline plan; allowed there: ulysses"
        )
    if training.parallelism == "ring":
        if training.device == "cuda":
            raise SettingsError(
                "training.parallelism", f"{chosen} on cuda; allowed there: ulysses, tensor"
            )
        return
    degree = tensor_degree(plan)
    for name in ("heads", "kv_heads", "feed_forward"):
        if getattr(model, name) % degree:
            raise SettingsError(
                f"model.{name}",
                f"got {getattr(model, name)}; allowed with tensor parallelism: a multiple of"
                f" {degree}, the ranks of a group",
            )
    for name, allowed in (("sharding", "none"), ("compile", False), ("planning", "file")):
        if getattr(training, name) != allowed:
            raise SettingsError(
                f"training.{name}",
                f"got {getattr(training, name)}; allowed with tensor parallelism: {allowed}",
            )


def _check_heads(model: ModelSettings, degree: int) -> None:
    """A degree divides the heads; key-value heads are copied where it does not."""
    if model.heads % degree:
        raise SettingsError(
            "model.heads",
            f"got {model.heads}; allowed: a multiple of {degree}, a degree of the plan",
        )


def _check_recomputed(plan: Plan, model: ModelSettings, stages: int) -> None:
    stage_sizes = [len(layers) for layers in stage_layers(model.layers, stages)]
    for batch in plan.pipeline_batches():
        for index, pipeline in enumerate(batch.pipelines):
            for number, chunk in enumerate(pipeline.chunks):
                for stage, layers in enumerate(chunk.checkpoint_layers):
                    if layers > stage_sizes[stage]:
                        raise SettingsError(
                            "plan",
                            f"batch {batch.iteration}, pipeline {index}, chunk {number}:"
                            f" checkpoint_layers {layers} on stage {stage}; allowed: at most"
                            f" {stage_sizes[stage]}, the layers of the stage",
                        )
