"""A training program in plain PyTorch: FSDP2, DTensor tensor parallelism, 1F1B.

It is independent of the network: its process groups have the backend of the default
group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from training.live_settings import LiveSettings


class Attention(nn.Module):
    """Causal attention; a rank of a tensor-parallel group has a share of the heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: rows x tokens x width, in and out."""
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return projected


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: rows x tokens x width, in and out."""
        hidden = hidden + self.attention(self.before_attention(hidden))
        after: Tensor = hidden + self.down(F.gelu(self.up(self.before_mlp(hidden))))
        return after


class StageModel(nn.Module):
    """A stage's layers, with the embedding before the first, the head behind."""

    def __init__(self, settings: LiveSettings, index: int) -> None:
        super().__init__()
        width, first, last = settings.width, index == 0, index == settings.stages - 1
        self.embedding = nn.Embedding(settings.vocabulary, width) if first else None
        self.layers = nn.ModuleList(Layer(width, settings.heads) for _ in range(settings.layers))
        self.head = nn.Linear(width, settings.vocabulary) if last else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Token ids (rows x tokens) or the hidden state of the stage before."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden if self.head is None else self.head(hidden)


#: How DTensor splits a layer: the first product of a pair by columns, the second by
#: rows.
_SPLIT = {
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "attention.out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class Program:
    """Model, schedule and optimizer of one rank on the groups of one block."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        shape = (settings.stages, settings.replicas, settings.tensor_parallel)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("stage", "replica", "tensor"))
        self._stage = mesh["stage"].get_local_rank()
        self._replica = mesh["replica"].get_local_rank()
        torch.manual_seed(settings.seed)
        # Every rank draws all stages, so that weights do not depend on the layout.
        model = [StageModel(settings, index) for index in range(settings.stages)][self._stage]
        _split(model, mesh, settings)
        stage = PipelineStage(
            model,
            self._stage,
            settings.stages,
            torch.device("cpu"),
            group=mesh["stage"].get_group(),
        )
        self._schedule = Schedule1F1B(stage, settings.micro_batches, loss_fn=_loss)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)

    def step(self, iteration: int) -> float | None:
        """One iteration; the mean loss of this rank's sequences on the last stage."""
        settings = self._settings
        draw = torch.Generator().manual_seed(
            (settings.seed * 1_000_003 + iteration) * settings.replicas + self._replica
        )
        # Each token is followed by the next one of the vocabulary: easy to learn.
        first = torch.randint(
            settings.vocabulary, (settings.micro_batches * settings.rows, 1), generator=draw
        )
        tokens = (first + torch.arange(settings.tokens + 1)) % settings.vocabulary
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        if self._stage == 0:
            self._schedule.step(tokens[:, :-1].contiguous())
        elif self._stage < settings.stages - 1:
            self._schedule.step()
        else:
            self._schedule.step(target=tokens[:, 1:].contiguous(), losses=losses)
        self._optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean().item() if losses else None


def _split(model: StageModel, mesh: DeviceMesh, settings: LiveSettings) -> None:
    for layer in model.layers:
        if settings.tensor_parallel > 1:
            parallelize_module(layer, mesh["tensor"], dict(_SPLIT))
        fully_shard(layer, mesh=mesh["replica"], reshard_after_forward=True)
    fully_shard(model, mesh=mesh["replica"], reshard_after_forward=True)


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())
