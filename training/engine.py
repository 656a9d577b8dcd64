"""One rank's training step: decoder, parallelism, sharding and optimizer put together.

Notable:

* without sharding, and with master weights in the precision of the activations, the
  optimizer steps the decoder's parameters. Otherwise ``training.sharding`` has the
  master weights, and the decoder computes with gathered or cast parameters;
* rows are sharded over all ranks with sequence parallelism, over the ranks of the same
  stage with pipelines;
* a sharded decoder is created on the device ``meta``, and a rank draws its rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from railx.performance.trainer_memory import ModelShard
from railx.planning.format.plan import PipelineBatch, Plan, SequenceParallelBatch
from railx.planning.format.schedule import stage_layers
from training.attention import Kernel, choose_kernel
from training.data import Sequences
from training.model import PRECISIONS, Decoder, draw_parameter
from training.optimizer import Optimizer
from training.pipeline import PipelineParallel, StageLinks
from training.pipeline_memory import PassLog
from training.reduction import (
    GradientReduction,
    pipeline_reduction,
    sequence_parallel_reduction,
    sharded_reduction,
    stage_ranks,
)
from training.sequence_parallel import ProcessGroups, SequenceParallel, group_ranks
from training.settings import RunSettings, pipeline_shape, tensor_degree
from training.sharding import Sharding, Use
from training.timeline import Timeline

if TYPE_CHECKING:
    from training.tensor_parallel import TensorParallel


class Runner(Protocol):
    """A parallelism: it runs a batch, and returns this rank's part of the loss."""

    def run(self, batch: Any) -> Tensor: ...


class Stepped:
    """This rank's terms of the loss and the squared norm of a step, in float64.

    The sums over all ranks are the mean loss over the valid tokens of the batch and the
    squared norm of all gradients before clipping. The norm is computed on first access,
    which must precede the next step.
    """

    def __init__(self, loss: Tensor, squared_norm: Callable[[], Tensor]) -> None:
        self.loss, self._squared_norm = loss, squared_norm

    @cached_property
    def squared_norm(self) -> Tensor:
        """The sum of squares of the gradients that this rank counts."""
        return self._squared_norm()


class Engine:
    """Trains this rank's part of the model, step by step.

    Creates process groups: every rank constructs it at the same point. SettingsError
    where the chosen attention kernel cannot run.
    """

    runner: Runner
    #: The groups of sequence parallelism; None with pipelines.
    groups: ProcessGroups | None
    reduction: GradientReduction

    def __init__(
        self,
        settings: RunSettings,
        plan: Plan,
        sequences: Sequences,
        *,
        device: torch.device,
        timeline: Timeline,
    ) -> None:
        model, training = settings.model, settings.training
        self._model, self._compiled = model, training.compile
        self.device, self.timeline = device, timeline
        compute = PRECISIONS[training.precision]
        self.kernel: Kernel = choose_kernel(
            training.attention, device, compute, model.head_width, "training.attention"
        )
        pipelined = plan.kind == "pipeline"
        self.stages, self.degree = pipeline_shape(plan) if pipelined else (1, 1)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        stage = rank // self.degree % self.stages
        members = [
            stage_ranks(other, self.stages, ranks, self.degree) for other in range(self.stages)
        ]
        master = torch.promote_types(compute, torch.float32)
        shares = training.sharding == "zero3" and len(members[stage]) > 1
        split = training.parallelism == "tensor"
        apart = (shares or master != compute) and not split
        self.decoder = Decoder(
            model,
            seed=settings.seed,
            compute=compute,
            layers=stage_layers(model.layers, self.stages)[stage],
            device="meta" if apart else device,
            loss_chunk_tokens=training.loss_chunk_tokens,
        )
        self.sharding: Sharding | TensorParallel | None = None
        tensor: TensorParallel | None = None
        idle: Callable[[], None] | None = None
        if split:
            # Slow to import.
            from training.tensor_parallel import TensorParallel

            self.sharding = tensor = TensorParallel(self.decoder, tensor_degree(plan), timeline)
        elif apart:
            by_unit = training.sharding == "zero3" and not pipelined
            self.sharding = sharding = Sharding(
                self.decoder,
                decoder_uses(self.decoder),
                group=_stage_group(members, stage) if shares else None,
                compute=compute,
                master=master,
                device=device,
                hold="unit" if by_unit else "batch",
                timeline=timeline,
                rows_of=lambda name, parameter, start, stop: draw_parameter(
                    name, parameter.shape, settings.seed, model.layers, range(start, stop)
                ),
            )
            idle = sharding.idle if by_unit else None
        if training.compile:
            self.decoder.compile_layers()
        parameters: dict[str, nn.Parameter] = (
            self.sharding.shards if self.sharding else dict(self.decoder.named_parameters())
        )
        self._by_unit = idle is not None
        self.groups = None
        if pipelined:
            self.runner = PipelineParallel(
                self.decoder,
                self.stages,
                StageLinks(),
                sequences,
                self.kernel,
                timeline,
                self.degree,
            )
        else:
            # Groups of batches planned during training are created as they come.
            planned = group_ranks(plan) if training.planning == "file" and not split else ()
            self.groups = ProcessGroups(planned)
            self.runner = SequenceParallel(
                self.decoder,
                self.groups,
                sequences,
                self.kernel,
                timeline,
                idle=idle,
                parallelism=training.parallelism,
            )
        if tensor is not None:
            self.reduction = tensor.reduction
        elif shares or pipelined:
            reduction = sharded_reduction if shares else pipeline_reduction
            self.reduction = reduction(self.decoder, self.stages, timeline, self.degree, parameters)
        else:
            self.reduction = sequence_parallel_reduction(self.decoder, timeline, parameters)
        self.optimizer = Optimizer(parameters, training.optimizer)
        self._ranks = len(members[stage]) if shares else 1
        self._master = master

    def step(
        self, batch: SequenceParallelBatch | PipelineBatch, step: int, log: PassLog | None = None
    ) -> Stepped:
        """One step, number ``step`` of the run, on one batch; ``log`` may record it."""
        self.forget()
        stepped = self.differentiate(batch, log)
        if self.optimizer.settings.clip_norm is not None:
            total = stepped.squared_norm.clone()
            dist.all_reduce(total)
            self.optimizer.clip(total)
        with self.timeline.phase("optimizer"):
            self.optimizer.step(step)
        return stepped

    def pass_log(self) -> PassLog | None:
        """A log of the measured and predicted memory of the passes of a batch.

        None where the plan is no pipeline, and with compiled layers on a CPU, whose
        allocations no dispatch mode sees.
        """
        runner, decoder = self.runner, self.decoder
        unseen = self._compiled and self.device.type == "cpu"
        if not isinstance(runner, PipelineParallel) or unseen:
            return None
        shard = ModelShard(
            len(decoder.layer_range),
            decoder.first,
            decoder.last,
            self._ranks,
            self._master != decoder.compute,
            "batch",
            decoder.compute.itemsize,
            self._master.itemsize,
        )
        return PassLog(runner, self._model, shard, fused_attention=self.kernel == "varlen")

    def prepare(self, batch: SequenceParallelBatch | PipelineBatch) -> None:
        """Create missing groups of a batch; all ranks call it alike, in one order."""
        if self.groups is not None and isinstance(batch, SequenceParallelBatch):
            self.groups.prepare(batch)

    def forget(self) -> None:
        """Drop the gradients of the last step."""
        self.optimizer.forget()
        if self.sharding is not None:
            self.sharding.forget()

    def differentiate(
        self, batch: SequenceParallelBatch | PipelineBatch, log: PassLog | None = None
    ) -> Stepped:
        """The loss of a batch, its gradients left; ``log`` records the passes."""
        with nullcontext() if log is None else log.watching(batch):
            if self.sharding is not None:
                self.sharding.begin(self._passes(batch))
            loss = self.runner.run(batch)
        if self.sharding is not None:
            self.sharding.finish()
        self.reduction.run()
        return Stepped(loss, self.reduction.squared_norm)

    @property
    def parameters(self) -> int:
        """The number of parameters that this rank counts."""
        return sum(parameter.numel() for parameter in self.reduction.counted)

    def state_dict(self) -> dict[str, Any]:
        """Parameters and optimizer moments by name, for distributed checkpoints.

        ``{"model": {name: tensor}, "optimizer": {name: {"step", "exp_avg",
        "exp_avg_sq"}}}``; sharded tensors are DTensors. The tensors are views of
        the engine's state: loading into them changes the engine.
        """
        model: dict[str, Tensor] = {}
        optimizer: dict[str, dict[str, Tensor]] = {}
        for name, moments in self.optimizer.moments().items():
            parameter = self.optimizer.parameters[name].detach()
            model[name] = self._distributed(name, parameter)
            optimizer[name] = {
                key: value if value.dim() == 0 else self._distributed(name, value)
                for key, value in moments.items()
            }
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the values of a state dict with the same names and shards."""
        target = self.state_dict()
        with torch.no_grad():
            for name, tensor in target["model"].items():
                _local(tensor).copy_(_local(state["model"][name]))
                for key, moment in target["optimizer"][name].items():
                    _local(moment).copy_(_local(state["optimizer"][name][key]))

    def _distributed(self, name: str, local: Tensor) -> Tensor:
        return local if self.sharding is None else self.sharding.distributed(name, local)

    def _passes(self, batch: SequenceParallelBatch | PipelineBatch) -> int:
        """The number of forward and backward passes of this rank in a batch.

        Includes idle micro-batches where the rank takes part in the gathers.
        """
        if isinstance(batch, PipelineBatch):
            replica = dist.get_rank() // (self.stages * self.degree)
            return sum(
                len(pipeline.chunks) for pipeline in batch.pipelines if pipeline.replica == replica
            )
        if self._by_unit:
            return len(batch.micro_batches)
        rank = dist.get_rank()
        return sum(
            any(rank in group.ranks for group in micro_batch.groups)
            for micro_batch in batch.micro_batches
        )


def decoder_uses(decoder: Decoder) -> list[Use]:
    """The calls of a decoder's units in a forward pass."""
    units = decoder.units()
    uses = [
        Use(unit, tuple(f"{name}.{inside}" for inside, _ in unit.named_parameters()))
        for name, unit in units
    ]
    if decoder.first:
        uses[0] = Use(uses[0].module, uses[0].parameters, read_backward=False)
    return uses


def _stage_group(members: list[list[int]], stage: int) -> dist.ProcessGroup:
    """The group of this rank's stage; every rank creates the groups of all stages."""
    if len(members) == 1:
        world = dist.group.WORLD
        assert world is not None
        return world
    groups = [dist.new_group(ranks) for ranks in members]
    group = groups[stage]
    assert isinstance(group, dist.ProcessGroup)
    return group


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
