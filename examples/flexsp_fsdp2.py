"""FSDP2 and Ulysses groups of changing size, as a plan says: plain PyTorch.

The groups are those of `railx plan ... --format groups`; nothing of this project is
imported. A single process takes all groups in turn and prints the same losses:

    torchrun --nproc-per-node 4 examples/flexsp_fsdp2.py groups.json
    torchrun --nproc-per-node 1 examples/flexsp_fsdp2.py groups.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.fsdp import fully_shard

VOCABULARY, WIDTH, HEADS, LAYERS = 64, 32, 4, 2


class Block(nn.Module):
    """Causal attention inside each sequence, then an MLP, of this rank's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, wide = nn.Linear(WIDTH, WIDTH), 4 * WIDTH
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH)
        )

    def forward(self, hidden: Tensor, lengths: list[int], cut: list[int], group: Any) -> Tensor:
        degree, tokens, size = len(cut), len(hidden), WIDTH // HEADS
        own = [tokens] * degree
        qkv = self.qkv(self.norm(hidden)).view(tokens, 3, degree, HEADS // degree, size)
        qkv = qkv.permute(2, 0, 1, 3, 4).flatten(0, 1).contiguous()
        if group is not None:  # all heads of these tokens become some heads of all tokens
            qkv = all_to_all_single_autograd(qkv, cut, own, group)
        rows = [
            F.scaled_dot_product_attention(*row.permute(1, 2, 0, 3), is_causal=True).transpose(0, 1)
            for row in qkv.split(lengths)
        ]
        mixed = torch.cat(rows) if rows else qkv.sum(1)  # without tokens the graph stays
        if group is not None:
            mixed = all_to_all_single_autograd(mixed.contiguous(), own, cut, group)
        mixed = mixed.view(degree, tokens, HEADS // degree, size).transpose(0, 1)
        hidden = hidden + self.out(mixed.reshape(tokens, WIDTH))
        return hidden + self.mlp(hidden)


class Decoder(nn.Module):
    """Token ids and labels to the sum of their losses."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, tokens: Tensor, labels: Tensor, *layout: Any) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, *layout)
        return F.cross_entropy(self.head(hidden), labels, ignore_index=-1, reduction="sum")


def packed(sequences: list[int], lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Tokens of the sequences one after another; labels, the next one or -1."""
    rows = [torch.empty(2, 0, dtype=torch.long)]
    for sequence, length in zip(sequences, lengths, strict=True):
        # Stands for a corpus: each token is some ids above the one before it.
        row = (7 * sequence + (1 + sequence % 3) * torch.arange(length + 1)) % VOCABULARY
        row[-1] = -1
        rows.append(torch.stack([row[:-1], row[1:]]))
    tokens, labels = torch.cat(rows, dim=1)
    return tokens, labels


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks not in (1, plan["ranks"]):
        sys.exit(f"ranks: got {ranks}; allowed: {plan['ranks']}, those of the plan, or 1")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Decoder()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = [[part["groups"] for part in batch["micro_batches"]] for batch in plan["batches"]]
    # Every rank makes every process group, in the same order.
    members = {tuple(group["ranks"]) for step in steps for part in step for group in part}
    made = {key: dist.new_group(key) for key in sorted(members) if 1 < len(key) <= ranks}
    idle = {"ranks": [rank], "sequences": [], "lengths": []}
    losses = []
    for step in steps:
        if ranks == 1:
            turns = [{**group, "ranks": [0]} for part in step for group in part]
        else:
            turns = [next((g for g in part if rank in g["ranks"]), idle) for part in step]
        labelled = sum(n - 1 for part in step for group in part for n in group["lengths"])
        loss = torch.zeros(())
        for turn, group in enumerate(turns, 1):
            place, degree = group["ranks"].index(rank), len(group["ranks"])
            share, rest = divmod(sum(group["lengths"]), degree)
            cut = [share + (other < rest) for other in range(degree)]
            mine = slice(sum(cut[:place]), sum(cut[: place + 1]))
            tokens, labels = packed(group["sequences"], group["lengths"])
            layout = (group["lengths"], cut, made.get(tuple(group["ranks"])))
            model.set_requires_gradient_sync(turn == len(turns))
            part_loss = model(tokens[mine], labels[mine], *layout) / labelled
            (part_loss * ranks).backward()  # FSDP takes the mean over the ranks
            loss += part_loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        losses.append(loss.item())
    if rank == 0:
        print(json.dumps({"ranks": ranks, "losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
