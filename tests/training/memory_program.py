"""Trains two steps as one of ranks that are not there (torch's fake backend), and
prints what the allocator saw at its peak beside what the memory model predicts, as one
JSON object; and what stages hold after each pass, measured and predicted.

Not a test module: ``test_memory.py`` starts it.
"""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from railx.performance.decoder import ModelSettings
from railx.performance.trainer_memory import ModelShard, Pass, rank_memory
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.planning.format.simulation import ScheduleName
from tests.builders import choice
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from training.allocations import allocations
from training.data import plan_lengths
from training.engine import Engine
from training.pipeline import StageLinks
from training.settings import load_run_settings
from training.timeline import Timeline

LLAMA = ModelSettings("llama", 3, 192, 6, 2, 512, 1500)
GPT = ModelSettings(
    *("gpt", 3, 192, 6, 6, 768, 1500, "gelu", "learned", True),
    tied_embeddings=True,
    max_positions=512,
)
CHUNK_TOKENS = 128
TOKENS = 640


@dataclass(frozen=True)
class Case:
    """Rank 0 of a plan, what the model is told of it, and how layers are recomputed."""

    name: str
    model: ModelSettings
    precision: str
    sharding: str
    plan: Plan
    held: ModelShard
    passes: tuple[Pass, ...]
    checkpoint_layers: int = 0


def data_parallel(ranks: int) -> Plan:
    return sequence_parallel_plan(
        ranks, [micro_batch(((0,), {0: 400, 1: 240})), micro_batch(((0,), {2: 500, 3: 140}))]
    )


def piped() -> Plan:
    """Three chunks through two stages, and another replica."""
    chunks = tuple(chunk((number, 0, TOKENS, TOKENS)) for number in range(3))
    other = tuple(chunk((3 + number, 0, 64, 64)) for number in range(2))
    return pipeline_plan(4, [Pipeline(2, 0, chunks), Pipeline(2, 1, other)])


def cases() -> list[Case]:
    one = (Pass(TOKENS),)
    unit = {"ranks": 4, "hold": "unit"}
    return [
        Case("whole", LLAMA, "float32", "none", data_parallel(1), ModelShard(3), one),
        Case(
            *("cast", LLAMA, "bfloat16", "none", data_parallel(1)),
            *(ModelShard(3, cast=True, compute_bytes=2), one),
        ),
        Case("cut", LLAMA, "float32", "zero3", data_parallel(4), ModelShard(3, **unit), one),
        Case(
            *("cut_and_cast", LLAMA, "bfloat16", "zero3", data_parallel(4)),
            *(ModelShard(3, compute_bytes=2, **unit), one),
        ),
        Case(
            *("recomputed", LLAMA, "float32", "zero3", data_parallel(4)),
            *(ModelShard(3, **unit), (Pass(TOKENS, checkpoint_layers=2),), 2),
        ),
        Case("gpt", GPT, "float32", "zero3", data_parallel(4), ModelShard(3, **unit), one),
        Case(
            *("stage", LLAMA, "bfloat16", "zero3", piped()),
            *(
                ModelShard(2, scores=False, ranks=2, compute_bytes=2),
                (Pass(TOKENS, packed=False),) * 2,
            ),
        ),
    ]


@dataclass(frozen=True)
class StageCase:
    """A rank of pipelines of three stages, and how layers are recomputed on each."""

    name: str
    schedule: ScheduleName
    rank: int
    degree: int = 1
    sharding: str = "none"
    precision: str = "float32"
    checkpoint_layers: tuple[int, ...] = ()

    @property
    def plan(self) -> Plan:
        """Slices, a hybrid chunk and whole sequences; sharded, another replica."""
        chunks = (
            chunk((0, 0, 350, 750)),
            chunk((0, 350, 600, 750)),
            chunk((0, 600, 750, 750), (1, 0, 100, 100)),
            chunk((2, 0, 320, 320)),
            chunk((3, 0, 150, 150), (4, 0, 150, 150)),
        )
        chunks = tuple(replace(one, checkpoint_layers=self.checkpoint_layers) for one in chunks)
        pipelines = [Pipeline(3, 0, chunks, self.degree, self.schedule)]
        replicas = 2 if self.sharding == "zero3" else 1
        if replicas == 2:
            pipelines.append(Pipeline(3, 1, (chunk((9, 0, 64, 64)),), self.degree))
        return pipeline_plan(3 * self.degree * replicas, pipelines)


def stage_cases() -> list[StageCase]:
    return [
        StageCase("first", "1f1b", 0, checkpoint_layers=(2, 1, 0)),
        StageCase("middle", "1f1b", 1, checkpoint_layers=(1, 1, 1)),
        StageCase("middle_of_two", "gpipe", 3, 2),
        StageCase("last", "gpipe", 2, precision="bfloat16"),
        StageCase("last_cut", "1f1b", 2, sharding="zero3"),
        StageCase("middle_cut", "gpipe", 1, 1, "zero3", "bfloat16", (0, 1, 0)),
    ]


def watched(case: StageCase) -> list[tuple[int, int, int]]:
    """ModelShard, predicted and most bytes of each pass of a step.

    Messages leave at once here, so that what is held does not wait for them.
    """
    StageLinks.send = lambda *_: None  # type: ignore[method-assign]
    with engine_of(
        replace(LLAMA, layers=5), case.precision, case.sharding, case.plan, case.rank
    ) as engine:
        log = engine.pass_log()
        assert log is not None
        engine.step(case.plan.batches[0], 0, log)
        return [
            (one.held_bytes, one.predicted_held_bytes, one.peak_bytes) for one in log.operations()
        ]


@contextmanager
def engine_of(
    model: ModelSettings, precision: str, sharding: str, plan: Plan, rank: int = 0
) -> Iterator[Engine]:
    """A rank's engine, alone."""
    training = choice("training", "cpu_4") | {
        "precision": precision,
        "sharding": sharding,
        "loss_chunk_tokens": CHUNK_TOKENS,
    }
    settings = load_run_settings(
        {
            "name": "memory",
            "seed": 1,
            "plan_name": "hand",
            "plan": "plan.json",
            "corpus": "corpus.parquet",
            "model": vars(model),
            "fabric": choice("fabric", "rails"),
            "training": training,
        }
    )
    sequences = {
        sequence: np.arange(length) % model.vocabulary
        for sequence, length in plan_lengths(plan).items()
    }
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.devices)
    yield Engine(settings, plan, sequences, device=torch.device("cpu"), timeline=Timeline())
    dist.destroy_process_group()


def measured(case: Case) -> int:
    """The most bytes that the allocator had handed out at once."""
    with (
        allocations(torch.device("cpu")) as allocated,
        engine_of(case.model, case.precision, case.sharding, case.plan) as engine,
    ):
        if case.checkpoint_layers:
            engine.decoder.transform = functools.partial(  # type: ignore[method-assign]
                engine.decoder.transform, checkpoint_layers=case.checkpoint_layers
            )
        for step in range(2):
            engine.step(case.plan.batches[0], step)
    gc.collect()
    return allocated.peak_bytes


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for case in cases():
        memory = rank_memory(case.model, case.held, case.passes, loss_chunk_tokens=CHUNK_TOKENS)
        found[case.name] = {"measured": measured(case), "predicted": memory.peak_bytes}
    print(json.dumps({"peaks": found, "stages": {c.name: watched(c) for c in stage_cases()}}))
