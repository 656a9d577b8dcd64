"""Settings of a training run: what ``python -m training.run`` reads from its resolved
JSON config.

Needs no torch, so that a pipeline can check its settings before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.fabric.settings import FabricSettings, Mode, RailSettings
from railx.planning.plan import Plan, check_ranks
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
    load,
)
from railx.workload.model import ModelSettings

__all__ = [
    "OptimizerSettings",
    "RunSettings",
    "TrainingSettings",
    "check_model",
    "check_plan",
    "fabric_sweep",
    "load_run_settings",
    "pipeline_stages",
]


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW with a constant learning rate."""

    learning_rate: Annotated[float, Positive()]
    beta1: Annotated[float, Between(0.0, 0.999999)]
    beta2: Annotated[float, Between(0.0, 0.999999)]
    epsilon: Annotated[float, Positive()]
    weight_decay: Annotated[float, NonNegative()]


@dataclass(frozen=True)
class TrainingSettings:
    """How a plan is trained and timed; one file of conf/training.

    ``device`` auto takes CUDA where it is there. ``precision`` is the one of
    activations and products. ``attention`` auto takes the fused kernel where it can
    run. After ``warmup_iterations`` steps whose times are not kept, ``iterations``
    steps are timed; the batches of the plan are taken in turn. ``threads_per_rank`` are
    the CPU threads of each rank. The run is repeated over electrical switching and over
    the two optical modes at each of their reconfiguration latencies in ms; the losses
    of the repetitions may differ by ``loss_tolerance``, relative to the loss. A rank
    that waits longer than ``timeout_s`` for another one gives up.
    """

    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["float32", "float64", "bfloat16"]
    attention: Literal["auto", "sdpa", "varlen"]
    optimizer: OptimizerSettings
    warmup_iterations: Annotated[int, AtLeast(1)]
    iterations: Annotated[int, AtLeast(1)]
    threads_per_rank: Annotated[int, AtLeast(1)]
    on_demand_latencies_ms: tuple[Annotated[float, NonNegative()], ...]
    provisioned_latencies_ms: tuple[Annotated[float, NonNegative()], ...]
    loss_tolerance: Annotated[float, Fraction()]
    timeout_s: Annotated[float, Positive()]


@dataclass(frozen=True)
class RunSettings:
    """One launch: a plan, the corpus that it was made for, the model, and the rails
    that the sweep switches.

    ``plan`` and ``corpus`` are files; ``plan_name`` is what tables call the plan.
    """

    name: Annotated[str, NotEmpty()]
    seed: Annotated[int, Between(0, 2**31 - 1)]
    plan_name: Annotated[str, NotEmpty()]
    plan: Annotated[str, NotEmpty()]
    corpus: Annotated[str, NotEmpty()]
    model: ModelSettings
    fabric: RailSettings
    training: TrainingSettings

    def __post_init__(self) -> None:
        check_model(self.model)


def load_run_settings(value: Mapping[str, Any]) -> RunSettings:
    """Run settings from plain data; SettingsError names the key and what is allowed."""
    settings: RunSettings = load(RunSettings, value)
    return settings


def fabric_sweep(settings: RunSettings) -> list[FabricSettings]:
    """The fabrics to train on: electrical first, for provisioning learns its schedule
    there, then the optical modes.
    """
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


def check_model(model: ModelSettings) -> None:
    """Refuse models that the decoder of ``training.model`` is not; SettingsError names
    the key.
    """
    if model.feed_forward_kind != "swiglu":
        raise SettingsError(
            "model.feed_forward_kind",
            f"got {model.feed_forward_kind}; allowed for training: swiglu",
        )
    if model.positions != "rotary":
        raise SettingsError(
            "model.positions", f"got {model.positions}; allowed for training: rotary"
        )
    if model.biases:
        raise SettingsError("model.biases", "got true; allowed for training: false")


def check_plan(plan: Plan, model: ModelSettings, ranks: int) -> None:
    """Refuse a plan that these ranks or this model cannot run: PlanError or
    SettingsError, one line.
    """
    check_ranks(plan, ranks)
    if plan.kind == "sequence_parallel":
        for degree in sorted(
            {
                g.degree
                for b in plan.sequence_parallel_batches()
                for m in b.micro_batches
                for g in m.groups
            }
        ):
            if model.heads % degree:
                raise SettingsError(
                    "model.heads",
                    f"got {model.heads}; allowed: a multiple of {degree}, a degree of the plan",
                )
        return
    stages = pipeline_stages(plan)
    if plan.devices % stages:
        raise SettingsError(
            "plan",
            f"{plan.devices} devices for {stages} pipeline stages; allowed: a multiple of the"
            " stages",
        )
    if stages > model.layers:
        raise SettingsError(
            "model.layers",
            f"got {model.layers}; allowed: at least {stages}, the pipeline stages of the plan",
        )


def pipeline_stages(plan: Plan) -> int:
    """The stages of a pipeline plan; SettingsError where its batches have different
    numbers.
    """
    stages = {pipeline.stages for batch in plan.pipeline_batches() for pipeline in batch.pipelines}
    if len(stages) != 1:
        raise SettingsError(
            "plan",
            f"pipelines with {sorted(stages)} stages; allowed: the same number in every batch",
        )
    return stages.pop()
