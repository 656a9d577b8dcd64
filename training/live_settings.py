"""Settings of a program in plain torch that trains on the rails.

``python -m training.live`` reads them from its resolved JSON config. Needs no torch, so
that a pipeline can check its settings before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from railx.effort import Cost, Costs
from railx.fabric.settings import FabricSettings, Mode, RailSettings
from railx.settings import AtLeast, Between, NonNegative, Positive, SettingsError


@dataclass(frozen=True)
class LiveSettings:
    """A program of torch's own parallelisms: FSDP2, DTensor tensor parallelism, 1F1B.

    Rank = (stage * replicas + replica) * tensor_parallel + the rank in the tensor
    parallel group, which is a server. So tensor parallelism stays within servers, data
    and pipeline parallelism take the rails.
    """

    seed: Annotated[int, Between(0, 2**31 - 1)]
    """Seed of the weights and of the tokens."""
    stages: Annotated[int, AtLeast(2)]
    """Stages of the pipeline."""
    replicas: Annotated[int, AtLeast(2)]
    """Ranks that share the parameters of a stage by FSDP2, and split the batch."""
    tensor_parallel: Annotated[int, AtLeast(1)]
    """Ranks that split each layer by DTensor; also the GPUs of a server."""
    micro_batches: Annotated[int, AtLeast(1)]
    """Micro-batches of an iteration, at least as many as stages."""
    rows: Annotated[int, AtLeast(1)]
    """Sequences of a micro-batch on each replica."""
    tokens: Annotated[int, AtLeast(2)]
    """Tokens of a sequence."""
    layers: Annotated[int, AtLeast(1)]
    """Layers of each stage; FSDP2 gathers one at a time."""
    width: Annotated[int, AtLeast(1)]
    """Width of the model, a multiple of its heads."""
    heads: Annotated[int, AtLeast(1)]
    """Heads of attention, a multiple of tensor_parallel."""
    vocabulary: Annotated[int, AtLeast(2)]
    """Size of the vocabulary."""
    learning_rate: Annotated[float, Positive()]
    """Step size of AdamW."""
    warmup_iterations: Annotated[int, AtLeast(1)]
    """Iterations at the start of a block that are not timed."""
    iterations: Annotated[int, AtLeast(1)]
    """Iterations of a block that are timed."""
    latencies_ms: tuple[Annotated[float, NonNegative()], ...]
    """Reconfiguration latencies, one block in each optical mode."""
    restart_latency_ms: Annotated[float, NonNegative()] | None
    """Latency of a block more, provisioned, in the middle of which the controller is
    killed and started again. None leaves it out."""
    fabric: RailSettings
    """The rails; the sweep sets mode and latency."""

    def __post_init__(self) -> None:
        if self.micro_batches < self.stages:
            raise SettingsError(
                "micro_batches",
                f"got {self.micro_batches}; allowed: at least {self.stages}, the stages",
            )
        if self.heads % self.tensor_parallel:
            raise SettingsError(
                "heads",
                f"got {self.heads}; allowed: a multiple of tensor_parallel, {self.tensor_parallel}",
            )
        if self.width % self.heads:
            raise SettingsError(
                "width", f"got {self.width}; allowed: a multiple of heads, {self.heads}"
            )
        if self.fabric.gpus_per_server != self.tensor_parallel:
            raise SettingsError(
                "fabric.gpus_per_server",
                f"got {self.fabric.gpus_per_server}; allowed: tensor_parallel,"
                f" {self.tensor_parallel}",
            )

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return self.stages * self.replicas * self.tensor_parallel

    def costs(self) -> Costs:
        """Estimated work by field."""
        latencies = (*self.latencies_ms, self.restart_latency_ms or 0.0)
        # A program switches its circuits at least 48 times.
        longest = Cost(48e-3)
        blocks_s = 0.02 * (1 + 2 * len(latencies)) + 8e-3 * sum(latencies)
        steps = self.warmup_iterations + self.iterations
        width, tokens = float(self.width), float(self.rows * self.tokens)
        weights = 16.0 * (self.layers * 12 * width**2 + self.vocabulary * width)
        activations = 40.0 * self.layers * width * tokens + 8.0 * self.vocabulary * tokens
        return {
            "latencies_ms": longest * max(self.latencies_ms, default=0),
            "restart_latency_ms": longest * self.restart_latency_ms,
            "iterations": Cost(blocks_s) * self.micro_batches * steps,
            "width": Cost(bytes=2.0**28 + weights + activations) * self.ranks,
        }


@dataclass(frozen=True)
class LiveBlock:
    """One round of iterations: a fabric, and whether its controller is restarted."""

    fabric: FabricSettings
    controller_restarted: bool = False


def live_blocks(settings: LiveSettings) -> list[LiveBlock]:
    """Electrical first, then both optical modes at each latency, then the restart."""

    def block(mode: Mode, latency_ms: float, *, restarted: bool = False) -> LiveBlock:
        rails = vars(settings.fabric)
        return LiveBlock(
            FabricSettings(**rails, mode=mode, reconfiguration_latency_ms=latency_ms), restarted
        )

    blocks = [block("electrical", 0.0)]
    blocks += [block("on_demand", latency_ms) for latency_ms in settings.latencies_ms]
    blocks += [block("provisioned", latency_ms) for latency_ms in settings.latencies_ms]
    if settings.restart_latency_ms is not None:
        blocks.append(block("provisioned", settings.restart_latency_ms, restarted=True))
    return blocks


def journal_path(out: Path, number: int) -> Path:
    """The controller's journal of block ``number``, unless the settings have a path."""
    return out / f"journal.{number}.jsonl"
