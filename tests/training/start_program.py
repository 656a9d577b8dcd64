"""Starts a model as rank 0 of many ranks that are not there (torch's fake backend), and
prints one JSON object: how far resident memory grew, what the rank keeps, seconds.

Not a test module: ``test_sharding.py`` starts it. Usage: start_program.py MODEL RANKS
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.builders import choice
from tests.plans import micro_batch, sequence_parallel_plan
from training.engine import Engine
from training.settings import load_run_settings
from training.timeline import Timeline


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(model: str, ranks: int) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    training = choice("training", "cpu_4") | {"precision": "bfloat16", "sharding": "zero3"}
    settings = load_run_settings(
        {
            "name": "start",
            "seed": 1,
            "plan_name": "hand",
            "plan": "plan.json",
            "corpus": "corpus.parquet",
            "model": choice("model", model),
            "fabric": choice("fabric", "rails"),
            "training": training,
        }
    )
    plan = sequence_parallel_plan(ranks, [micro_batch((range(ranks), {0: 1024}))])
    before, begin = resident_bytes(), time.monotonic()
    engine = Engine(settings, plan, {}, device=torch.device("cpu"), timeline=Timeline())
    # The moments too, which the first step would make.
    engine.state_dict()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parameters = engine.optimizer.parameters.values()
    print(
        json.dumps(
            {
                "grown_bytes": peak - before,
                "kept": sum(parameter.numel() for parameter in parameters),
                "seconds": time.monotonic() - begin,
            }
        )
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
