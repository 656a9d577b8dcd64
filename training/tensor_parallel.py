"""Tensor parallelism by torch's ``parallelize_module``: ranks split each layer.

Queries, keys, values, gate and up are split by their outputs, the products after them
by their inputs (Megatron-LM, arXiv 1909.08053, section 3); norms, embedding and head
are on every rank. All ranks of a group compute the same hidden states.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from training.model import Decoder, Linear
from training.reduction import GradientReduction
from training.timeline import Timeline


class TensorParallel:
    """A decoder whose layers are split over ``degree`` consecutive ranks.

    Every rank has drawn the same decoder. To the engine it is a way of sharding:
    ``shards`` are the parts of the parameters that this rank has, which the optimizer
    steps. Every rank constructs it at the same point, because it creates groups.
    """

    def __init__(self, decoder: Decoder, degree: int, timeline: Timeline) -> None:
        ranks, device = dist.get_world_size(), next(decoder.parameters()).device
        mesh = init_device_mesh(
            device.type, (ranks // degree, degree), mesh_dim_names=("data", "tensor")
        )
        self._mesh = mesh["tensor"]
        by_inputs = ("output", "down")
        styles: dict[str, Any] = {
            f"layers.*.{name}": (RowwiseParallel if name.endswith(by_inputs) else ColwiseParallel)()
            for name, module in next(iter(decoder.layers.values())).named_modules()
            if isinstance(module, Linear)
        }
        # Every rank has all values: nothing has to be sent.
        parallelize_module(decoder, self._mesh, styles, src_data_rank=None)
        self._parameters: dict[str, Any] = dict(decoder.named_parameters())
        self.shards = {
            name: nn.Parameter(one.to_local().detach()) if isinstance(one, DTensor) else one
            for name, one in self._parameters.items()
        }
        group = mesh["data"].get_group() if degree < ranks else None
        rank, split = dist.get_rank(), self._split()
        counted = (shard for name, shard in self.shards.items() if name in split and rank < degree)
        single = (shard for name, shard in self.shards.items() if name not in split and not rank)
        shards = tuple(self.shards.values())
        self.reduction = GradientReduction(((shards, group),), (*counted, *single), timeline)

    def _split(self) -> set[str]:
        return {
            name
            for name, one in self._parameters.items()
            if isinstance(one, DTensor) and not one.placements[0].is_replicate()
        }

    def begin(self, passes: int) -> None:
        """Nothing is gathered for a batch."""

    def finish(self) -> None:
        """Move the gradients of a batch to the parts that the optimizer steps."""
        for name, parameter in self._parameters.items():
            if isinstance(parameter, DTensor) and parameter.grad is not None:
                gradient: Any = parameter.grad
                self.shards[name].grad, parameter.grad = gradient.to_local(), None

    def forget(self) -> None:
        """Drop the gradients of the last batch."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def distributed(self, name: str, local: Tensor) -> Tensor:
        """``local``, split like parameter ``name``, as a DTensor for checkpoints."""
        parameter = self._parameters[name]
        if not isinstance(parameter, DTensor):
            return local
        return DTensor.from_local(
            local, self._mesh, parameter.placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip
