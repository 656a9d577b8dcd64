"""Differentiates pipeline plans on real processes and compares each with one process on
the same batch.

Not a test module: ``test_drawn_schedules.py`` starts it and writes it a pickled
:class:`Drawn` a time; it answers each with a line of JSON. Worlds of two, three and
four ranks start when a plan first needs them and stay, as do their engines: an engine
depends on the shape of a pipeline alone.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import tempfile
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from railx.performance.decoder import ModelSettings
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import Op, operations
from tests.builders import choice
from tests.training.parallel_program import join, whole_sequences
from training.attention import Packing, variable_length_attention
from training.data import pack, plan_lengths, valid_tokens
from training.engine import Engine
from training.model import Decoder, token_loss_sum
from training.pipeline import PipelineParallel
from training.settings import load_run_settings, pipeline_shape
from training.timeline import Timeline

MODEL = ModelSettings("drawn", 5, 16, 4, 2, 24, 31)


@dataclass(frozen=True)
class Drawn:
    """A plan of one batch, and what each rank keeps of its stage."""

    plan: Plan
    sharding: str


class LiveChunks:
    """A log of how many chunks are alive after each operation."""

    def __init__(self, runner: PipelineParallel) -> None:
        self.runner, self.seen = runner, [(-1, "", 0)]

    @contextmanager
    def operation(self, number: int, op: Op) -> Any:
        yield
        self.seen.append((number, op.code, self.runner.live_chunks))


def expected(plan: Plan, replica: int, stage: int) -> list[tuple[int, str, int]]:
    """What a stage has to run, and what is alive after each operation."""
    seen = [(-1, "", 0)]
    for number, pipeline in enumerate(plan.pipeline_batches()[0].pipelines):
        if pipeline.replica == replica:
            for op in operations(pipeline, stage):
                live = seen[-1][2] + (1 if op.kind == "forward" else -1)
                seen.append((number, op.code, live))
    return seen


class Rank:
    """One rank of a world, with the engines that it has made."""

    def __init__(self) -> None:
        self.sequences: dict[int, np.ndarray] = {}
        self.engines: dict[tuple[int, int, str], Engine] = {}
        self.whole = Decoder(MODEL, seed=1, compute=torch.float64)

    def engine(self, drawn: Drawn) -> Engine:
        key = *pipeline_shape(drawn.plan), drawn.sharding
        if key not in self.engines:
            training = choice("training", "cpu_4") | {
                "precision": "float64",
                "sharding": drawn.sharding,
                "loss_chunk_tokens": 5,
            }
            value = {"name": "drawn", "seed": 1, "plan_name": "drawn", "plan": "p", "corpus": "c"}
            value |= {"model": vars(MODEL), "fabric": choice("fabric", "rails")}
            self.engines[key] = Engine(
                load_run_settings(value | {"training": training}),
                drawn.plan,
                self.sequences,
                device=torch.device("cpu"),
                timeline=Timeline(),
            )
        return self.engines[key]

    def run(self, drawn: Drawn) -> dict[str, Any]:
        """The largest differences from the reference, relative to the largest value."""
        generator = np.random.default_rng(7)
        self.sequences.clear()
        for sequence, length in sorted(plan_lengths(drawn.plan).items()):
            self.sequences[sequence] = generator.integers(0, MODEL.vocabulary, length)
        (batch,) = drawn.plan.pipeline_batches()
        engine = self.engine(drawn)
        runner = engine.runner
        assert isinstance(runner, PipelineParallel)
        runner.log = log = LiveChunks(runner)
        engine.forget()
        stepped = engine.differentiate(batch)
        sums = torch.stack([stepped.loss, stepped.squared_norm])
        dist.all_reduce(sums)
        loss, gradients = self.reference(batch)
        squared = sum(float(gradient.square().sum()) for gradient in gradients.values())
        worst = 0.0
        for name, parameter in engine.optimizer.parameters.items():
            gradient = parameter.grad
            assert gradient is not None
            if engine.sharding is not None:
                whole: Any = engine.sharding.distributed(name, gradient)
                gradient = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            difference = (gradient - gradients[name]).abs().max() / gradients[name].abs().max()
            worst = max(worst, float(difference))
        return {
            "loss": abs(float(sums[0]) / loss - 1),
            "norm": abs(float(sums[1]) / squared - 1),
            "gradient": worst,
            "ran": log.seen == expected(drawn.plan, runner.replica, runner.stage),
            "left": len(runner._live) + len(runner._cached_slices) + len(runner._posted),
        }

    def reference(self, batch: Any) -> tuple[float, dict[str, torch.Tensor]]:
        """Every sequence alone and whole, in this process alone."""
        self.whole.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for part in whole_sequences(batch):
            packed, packing = pack([part], self.sequences), Packing.without_context([part.length])

            def attend(
                layer: int,
                q: torch.Tensor,
                k: torch.Tensor,
                v: torch.Tensor,
                packing: Packing = packing,
            ) -> torch.Tensor:
                return variable_length_attention(q, k, v, packing)

            logits = self.whole(packed.tokens, packed.positions, attend)
            total = total + token_loss_sum(logits, packed.labels)
        loss = total / valid_tokens(batch)
        loss.backward()
        named = self.whole.named_parameters()
        return float(loss.detach()), {name: p.grad for name, p in named if p.grad is not None}


def end_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    multiprocessing.connection.wait([launcher.sentinel])
    os._exit(1)


def work(rank: int, ranks: int, store: str, cases: Connection) -> None:
    threading.Thread(target=end_with_launcher, daemon=True).start()
    torch.set_num_threads(1)
    join("railx", rank, ranks, store)
    own = Rank()
    while (drawn := cases.recv()) is not None:
        try:
            cases.send(own.run(drawn))
        except Exception:
            cases.send({"error": traceback.format_exc()})
    dist.destroy_process_group()


def main() -> None:
    context = multiprocessing.get_context("fork")
    worlds: dict[int, list[Connection]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while True:
            try:
                drawn = pickle.load(sys.stdin.buffer)
            except EOFError:
                break
            ranks = drawn.plan.devices
            if ranks not in worlds:
                worlds[ranks] = []
                for rank in range(ranks):
                    here, there = context.Pipe()
                    store = str(Path(folder, str(ranks)))
                    context.Process(
                        target=work, args=(rank, ranks, store, there), daemon=True
                    ).start()
                    worlds[ranks].append(here)
            for connection in worlds[ranks]:
                connection.send(drawn)
            answers: list[dict[str, Any]] = []
            # A rank that fails leaves others waiting for it: its word is enough.
            waiting = list(worlds[ranks])
            while waiting and not any("error" in answer for answer in answers):
                for connection in multiprocessing.connection.wait(waiting):
                    assert isinstance(connection, Connection)
                    answers.append(connection.recv())
                    waiting.remove(connection)
            print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
