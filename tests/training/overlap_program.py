"""Trains sharded plans on two real processes and prints what each rank's trace shows of
gathers, sums and computation, as one JSON object.

Not a test module: ``test_overlap.py`` starts it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from railx.planning.format.parts import Pipeline
from railx_torch import backend
from railx_torch.trace import Recorder
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.training.sharding_program import UNEVEN, Case, settings
from training.data import plan_lengths
from training.engine import Engine
from training.timeline import Timeline

RANKS = 2
#: Two micro-batches of one sequence for each rank, and the same sequences in a pipeline
#: of a single stage with two replicas.
UNITS = Case(
    "units",
    sequence_parallel_plan(
        RANKS,
        [
            micro_batch(((0,), {0: 40}), ((1,), {1: 40})),
            micro_batch(((0,), {2: 30}), ((1,), {3: 20})),
        ],
    ),
    UNEVEN,
    "zero3",
)
STAGE = Case(
    "stage",
    pipeline_plan(
        RANKS,
        [
            Pipeline(1, 0, (chunk((0, 0, 40, 40)), chunk((2, 0, 30, 30)))),
            Pipeline(1, 1, (chunk((1, 0, 40, 40)),)),
        ],
    ),
    UNEVEN,
    "zero3",
)


def work(rank: int, store_path: str, out: str) -> None:
    torch.set_num_threads(1)
    recorders = {case.name: Recorder(rank) for case in (UNITS, STAGE)}
    found: dict[str, Any] = {}
    for case in (UNITS, STAGE):
        backend.configure(
            backend.BackendOptions("gloo", None, "electrical", 1), recorders[case.name]
        )
        store = dist.FileStore(f"{store_path}-{case.name}", RANKS)
        dist.init_process_group("railx", store=store, rank=rank, world_size=RANKS)
        sequences = {
            sequence: np.arange(length) % case.model.vocabulary
            for sequence, length in plan_lengths(case.plan).items()
        }
        engine = Engine(
            settings(case),
            case.plan,
            sequences,
            device=torch.device("cpu"),
            timeline=Timeline(recorders[case.name]),
        )
        backend.begin_iteration(0)
        engine.step(case.plan.batches[0], 0)
        backend.end_iteration()
        table = recorders[case.name].table()
        gathered: list[Any] = [None] * RANKS
        dist.all_gather_object(gathered, table.to_pylist())
        found[case.name] = gathered
        dist.destroy_process_group()
    if rank == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = str(Path(folder, "result.json"))
        mp.start_processes(
            work, (str(Path(folder, "store")), result), nprocs=RANKS, start_method="fork"
        )
        print(Path(result).read_text())
