"""Changes one document of a batch at a time and looks at what that does to the others;
prints one JSON object.

Not a test module: ``test_parallel.py`` starts it. The losses of the document that
changes are left out, so that what is left of loss and gradients belongs to the others.
Usage: documents_program.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from railx.planning.format.parts import Pipeline, Slice
from railx.planning.format.plan import Plan
from tests.plans import micro_batch, pipeline_plan, sequence_parallel_plan
from tests.training.parallel_program import MODEL, join, mixed_chunks
from training.data import PackedTokens, Sequences, pack, plan_lengths
from training.model import IGNORED_LABEL, Decoder, stage_layers
from training.pipeline import PipelineParallel, StageLinks
from training.sequence_parallel import ProcessGroups, SequenceParallel, group_ranks
from training.settings import pipeline_shape
from training.timeline import Timeline

RANKS = 4

#: Documents beside each other in groups of every degree, in chunks of every kind, on
#: stages of one rank and of two, and recomputed.
PLANS = {
    "sequence_parallel": sequence_parallel_plan(
        RANKS,
        [
            micro_batch(((0, 1, 2, 3), {0: 21, 1: 9, 2: 14})),
            micro_batch(((0, 1), {3: 8, 4: 11}), ((2,), {5: 9, 6: 6}), ((3,), {7: 5})),
        ],
    ),
    "pipeline_of_groups": pipeline_plan(RANKS, [Pipeline(2, 0, mixed_chunks(0), 2)]),
    "pipelines_recomputed": pipeline_plan(
        RANKS, [Pipeline(2, 0, mixed_chunks(0, (1, 2))), Pipeline(2, 1, mixed_chunks(6))]
    ),
}


class Rank:
    """This rank's part of a plan, run as often as asked with other documents."""

    def __init__(self, plan: Plan) -> None:
        self.batch = plan.batches[0]
        pipelined = plan.kind == "pipeline"
        stages, degree = pipeline_shape(plan) if pipelined else (1, 1)
        held = stage_layers(MODEL.layers, stages)[dist.get_rank() // degree % stages]
        model = replace(MODEL, kv_heads=2)
        self.decoder = Decoder(model, seed=1, compute=torch.float64, layers=held)
        self.runner: Any
        if pipelined:
            self.runner = PipelineParallel(
                self.decoder, stages, StageLinks(), {}, "sdpa", Timeline(), degree
            )
        else:
            groups = ProcessGroups(group_ranks(plan))
            self.runner = SequenceParallel(self.decoder, groups, {}, "sdpa", Timeline())

    def step(self, sequences: Sequences, left_out: int | None) -> list[torch.Tensor]:
        """This rank's part of the loss, and its gradients, without the losses of
        ``left_out``.
        """

        def counted(slices: Iterable[Slice], texts: Sequences) -> PackedTokens:
            parts = list(slices)
            packed, start = pack(parts, texts), 0
            for part in parts:
                if part.sequence == left_out:
                    packed.labels[start : start + part.tokens] = IGNORED_LABEL
                start += part.tokens
            return packed

        self.decoder.zero_grad(set_to_none=True)
        self.runner.sequences = sequences
        with (
            mock.patch("training.sequence_parallel.pack", counted),
            mock.patch("training.pipeline.pack", counted),
        ):
            loss = self.runner.run(self.batch)
        gradients = [parameter.grad for parameter in self.decoder.parameters()]
        return [loss, *(gradient for gradient in gradients if gradient is not None)]


def changes(plan: Plan) -> dict[int, dict[str, float]]:
    """For each document, how far the other documents' losses and gradients move as it
    changes, and its own loss.
    """
    rank, random = Rank(plan), np.random.default_rng(3)
    lengths = sorted(plan_lengths(plan).items())
    texts = {number: random.integers(0, MODEL.vocabulary, length) for number, length in lengths}
    found = {}
    for number, length in lengths:
        other = texts | {number: (texts[number] + 1 + random.integers(0, 9, length)) % 64}
        before, after = (rank.step(each, number) for each in (texts, other))
        whole = [float(rank.step(each, None)[0]) for each in (texts, other)]
        assert len(before) == len(after)
        told = torch.tensor(
            [
                max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)),
                abs(whole[0] - whole[1]),
                max(float(each.abs().max()) for each in before[1:]),
            ]
        )
        dist.all_reduce(told, dist.ReduceOp.MAX)
        found[number] = dict(zip(("others", "own", "gradient"), told.tolist(), strict=True))
    return found


def work(rank: int, store_path: str, out: str) -> None:
    torch.set_num_threads(1)
    join("gloo", rank, RANKS, store_path)
    found = {name: changes(plan) for name, plan in PLANS.items()}
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = str(Path(folder, "result.json"))
        mp.start_processes(
            work, (str(Path(folder, "store")), result), nprocs=RANKS, start_method="fork"
        )
        print(Path(result).read_text())
