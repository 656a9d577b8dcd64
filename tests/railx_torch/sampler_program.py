"""One rank that loads a plan's micro-batches, started by torchrun.

Usage: sampler_program.py GROUPS FOLDER. Writes FOLDER/RANK.json: by number of workers
the lists that the loader of this rank gave, with what the group's ranks agreed on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from railx_torch.batches import PlanBatchSampler


class Rows(Dataset[torch.Tensor]):
    """Sequence i is ten times i."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(10 * index)


def main() -> None:
    groups, folder = Path(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sampler = PlanBatchSampler(groups, rank, dist.get_world_size())
    written: dict[str, Any] = {}
    for workers in (0, 2):
        loader = DataLoader(Rows(), batch_sampler=sampler, num_workers=workers, collate_fn=list)
        loaded = [[int(row) for row in rows] for rows in loader]
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, loaded)
        for share, turns in zip(sampler.shares, zip(*everyone, strict=True), strict=True):
            assert all(turns[other] == turns[rank] for other in share.ranks)
        written[str(workers)] = loaded
    (folder / f"{rank}.json").write_text(json.dumps(written))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
