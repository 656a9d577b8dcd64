"""Writes checkpoints under one plan, goes on under others; prints one JSON object.

Not a test module: ``test_checkpoint.py`` starts it. On four ranks every way of training
takes six steps and writes a checkpoint after three; then every way, on four ranks and
on two, takes the last three steps from a checkpoint of another way. At the end a rank
is killed in the middle of a save.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Loaded once, before the ranks are forked.
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.multiprocessing as mp

from railx.performance.decoder import ModelSettings
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.training import sharding_program
from tests.training.parallel_program import join
from training.checkpoint import (
    check_checkpoint,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    trained,
)
from training.data import plan_lengths
from training.engine import Engine
from training.settings import RunSettings
from training.timeline import Timeline

STEPS, SAVED = 6, 3
#: Two ranks or four cut no dim 0 of this model evenly but that of its hidden states.
MODEL = ModelSettings("uneven", 3, 36, 6, 3, 50, 61, tied_embeddings=True)


@dataclass(frozen=True)
class Way:
    """A way of training the same batches."""

    name: str
    plan: Plan
    sharding: str


def ways(ranks: int) -> list[Way]:
    """Two batches under sequence parallelism and as pipelines, sharded and not."""
    pair, other = tuple(range(2)), tuple(range(ranks - 2, ranks))
    whole = sequence_parallel_plan(
        ranks,
        [micro_batch((pair, {0: 19, 1: 4})), micro_batch(((0,), {2: 9}))],
        [micro_batch((other, {3: 12, 4: 7}))],
    )
    last = ranks // 2 - 1
    chunks = (chunk((0, 0, 9, 19)), chunk((0, 9, 19, 19)), chunk((1, 0, 4, 4)))
    piped = pipeline_plan(
        ranks,
        [Pipeline(2, 0, (*chunks, chunk((2, 0, 9, 9))))]
        if last == 0
        else [Pipeline(2, 0, chunks), Pipeline(2, 1, (chunk((2, 0, 9, 9)),))],
        [Pipeline(2, last, (chunk((3, 0, 12, 12)), chunk((4, 0, 7, 7))))],
    )
    return [
        Way(f"{name}_{sharding}", plan, sharding)
        for name, plan in (("whole", whole), ("piped", piped))
        for sharding in ("none", "zero3")
    ]


def sources(ranks: int) -> list[Way]:
    """From whose checkpoint each of :func:`ways` goes on: another sharding on as many
    ranks; on fewer, the other parallelism and sharding.
    """
    found = ways(4)
    return [found[place] for place in ((1, 2, 3, 0) if ranks == 4 else (3, 2, 1, 0))]


def settings(way: Way) -> RunSettings:
    return sharding_program.settings(sharding_program.Case(way.name, way.plan, MODEL, way.sharding))


def tokens(way: Way) -> dict[int, np.ndarray]:
    generator = np.random.default_rng(7)
    lengths = plan_lengths(way.plan)
    return {
        sequence: generator.integers(0, MODEL.vocabulary, length)
        for sequence, length in sorted(lengths.items())
    }


def engine_of(way: Way) -> Engine:
    return Engine(
        settings(way), way.plan, tokens(way), device=torch.device("cpu"), timeline=Timeline()
    )


def steps(engine: Engine, way: Way, first: int, end: int) -> list[list[float]]:
    """Loss and squared norm of steps ``first`` to ``end``."""
    seen = []
    for step in range(first, end):
        stepped = engine.step(way.plan.batches[step % len(way.plan.batches)], step)
        sums = torch.stack([stepped.loss, stepped.squared_norm])
        dist.all_reduce(sums)
        seen.append(sums.tolist())
    return seen


def save(engine: Engine, way: Way, folder: Path, step: int, control: Any) -> None:
    save_checkpoint(
        folder,
        engine,
        block=0,
        step=step,
        trained=trained(settings(way), way.plan, tokens(way)),
        control=control,
    )


def work(rank: int, ranks: int, backend: str, folder: Path, writes: bool) -> None:
    torch.set_num_threads(1)
    join(backend, rank, ranks, str(folder / f"store_{ranks}"))
    control = dist.new_group(backend="gloo")
    seen: dict[str, Any] = {}
    for way in ways(ranks) if writes else []:
        engine = engine_of(way)
        before = steps(engine, way, 0, SAVED)
        save(engine, way, folder / way.name, SAVED, control)
        # Another one takes the place of the first.
        seen[way.name] = before + steps(engine, way, SAVED, STEPS)
    for way, source in zip(ways(ranks), sources(ranks), strict=True):
        checkpoint = newest_checkpoint(folder / source.name)
        assert checkpoint is not None
        assert checkpoint.step == SAVED
        check_checkpoint(checkpoint, settings(way), way.plan, tokens(way))
        engine = engine_of(way)
        load_checkpoint(checkpoint, engine, control)
        seen[f"{source.name} -> {ranks} {way.name}"] = steps(engine, way, SAVED, STEPS)
    if rank == 0:
        (folder / f"seen_{ranks}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def torn(rank: int, ranks: int, folder: Path) -> None:
    """Two whole saves; in the third rank 1 is killed when it has written."""
    from torch.distributed.checkpoint import FileSystemWriter

    torch.set_num_threads(1)
    join("gloo", rank, ranks, str(folder / "store_torn"))
    control, way = dist.group.WORLD, ways(ranks)[1]
    engine = engine_of(way)
    for step in (1, 2):
        steps(engine, way, step - 1, step)
        save(engine, way, folder / "torn", step, control)
    if rank == 1:
        written = FileSystemWriter.write_data

        def killed(*arguments: Any) -> Any:
            written(*arguments).wait()
            os.kill(os.getpid(), signal.SIGKILL)

        FileSystemWriter.write_data = killed  # type: ignore[method-assign]
    steps(engine, way, 2, 3)
    save(engine, way, folder / "torn", 3, control)


def start(target: Any, ranks: int, *arguments: Any) -> list[int | None]:
    """Exit codes of the ranks."""
    context = mp.get_context("fork")
    processes = [
        context.Process(target=target, args=(rank, ranks, *arguments)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen: dict[str, Any] = {}
        for ranks, backend in ((4, "railx"), (2, "gloo")):
            assert not any(start(work, ranks, backend, folder, ranks == 4))
            seen |= json.loads((folder / f"seen_{ranks}.json").read_text())
        (folder / "errors").touch()
        with (folder / "errors").open("w") as errors:
            os.dup2(errors.fileno(), 2)
        codes = start(torn, 2, folder)
        last = newest_checkpoint(folder / "torn")
        assert last is not None
        left = sorted(path.name for path in (folder / "torn").iterdir())
        return {"seen": seen, "codes": codes, "last": last.step, "left": left}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
