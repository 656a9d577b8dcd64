"""FSDP2 and torch's 1F1B pipeline on four ranks: two stages of two data-parallel ranks.

Plain PyTorch, nothing of this project: the backend is a name, so that the same file
trains over gloo and over railx (docs/backend.md says how to start the controller):

    torchrun --nproc-per-node 4 examples/fsdp_pipeline.py --backend gloo
    torchrun --nproc-per-node 4 examples/fsdp_pipeline.py --backend railx

Rank = stage * 2 + replica. Parameters are resharded after every forward, so that each
micro-batch gathers them again between the messages of the pipeline. The last rank
prints one JSON line with the loss of every iteration.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STAGES = 2
REPLICAS = 2
VOCABULARY = 64
WIDTH = 32
TOKENS = 16
ROWS = 2  # sequences of one micro-batch


class Block(nn.Module):
    """One residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(F.gelu(self.up(self.norm(hidden))))


class Stage(nn.Module):
    """The embedding and the first layers, or the last layers and the head."""

    def __init__(self, index: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if index == 0 else None
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY) if index == STAGES - 1 else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden if self.head is None else self.head(hidden.flatten(0, 1))


def token_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores, labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default=os.environ.get("BACKEND", "gloo"))
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2, help="layers of each stage")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (STAGES, REPLICAS), mesh_dim_names=("stage", "replica"))
    index, replica = mesh["stage"].get_local_rank(), mesh["replica"].get_local_rank()
    device = torch.device("cpu")

    # Every rank draws both stages, so that the weights do not depend on the layout.
    stages = [Stage(number, options.layers) for number in range(STAGES)]
    model = stages[index]
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["replica"], reshard_after_forward=True)
    fully_shard(model, mesh=mesh["replica"], reshard_after_forward=True)
    stage = PipelineStage(model, index, STAGES, device, group=mesh["stage"].get_group())
    schedule = Schedule1F1B(stage, options.micro_batches, loss_fn=token_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    losses = []
    draw = torch.Generator().manual_seed(1 + replica)
    rows = options.micro_batches * ROWS
    for _ in range(options.iterations):
        # Each token is followed by the next one of the vocabulary: easy to learn.
        first = torch.randint(VOCABULARY, (rows, 1), generator=draw)
        tokens = (first + torch.arange(TOKENS + 1)) % VOCABULARY
        optimizer.zero_grad()
        if index == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            of_micro_batches: list[torch.Tensor] = []
            schedule.step(target=tokens[:, 1:].contiguous(), losses=of_micro_batches)
            loss = torch.stack([item.detach() for item in of_micro_batches]).mean()
            dist.all_reduce(loss, group=mesh["replica"].get_group())
            losses.append(loss.item() / REPLICAS)
        optimizer.step()

    if dist.get_rank() == dist.get_world_size() - 1:
        print(json.dumps({"backend": options.backend, "losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
