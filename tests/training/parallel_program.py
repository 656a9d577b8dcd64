"""Runs hand-made plans on real processes and compares each with one process on the same
batch; prints one JSON object.

Not a test module: ``test_parallel.py`` starts it once for each number of ranks. Usage:
parallel_program.py RANKS BACKEND
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from railx.performance.decoder import ModelSettings
from railx.planning.format.files import validate_plan
from railx.planning.format.parts import Chunk, Pipeline, Slice
from railx.planning.format.plan import Plan, SequenceParallelBatch
from railx.planning.format.schedule import peak_live_chunks
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from training.attention import Packing, variable_length_attention
from training.data import pack, plan_lengths, uncut_slices, valid_tokens
from training.model import Decoder, stage_layers, token_loss_sum
from training.pipeline import CachedSlice, PipelineParallel, StageLinks
from training.reduction import pipeline_reduction, sequence_parallel_reduction
from training.sequence_parallel import ProcessGroups, SequenceParallel, group_ranks
from training.settings import Parallelism, pipeline_shape, tensor_degree
from training.tensor_parallel import TensorParallel
from training.timeline import Timeline

STEPS = 3
LEARNING_RATE = 1e-3
MODEL = ModelSettings("test", 4, 32, 8, 4, 48, 64)


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    model: ModelSettings
    seed: int
    parallelism: Parallelism = "ulysses"


def sequence_parallel_cases() -> list[Case]:
    """Degrees 1, 2 and 4 that change between micro-batches, idle ranks, fewer tokens
    than ranks, and groups of 3 wherever they start.
    """
    first = [
        micro_batch(((0, 1, 2, 3), {0: 37, 1: 5})),
        micro_batch(((0, 1), {2: 21, 3: 8}), ((2, 3), {4: 19})),
        micro_batch(((0,), {5: 9}), ((1,), {6: 7, 7: 3}), ((2,), {8: 11}), ((3,), {9: 2})),
    ]
    second = [
        micro_batch(((0, 1), {1: 30}), ((2,), {2: 12}), ((3,), {3: 4})),
        micro_batch(((2, 3), {4: 1, 5: 17})),
        micro_batch(
            ((0, 1, 2, 3), {0: 3}),
        ),
    ]
    changing = sequence_parallel_plan(4, first, second)
    alone = sequence_parallel_plan(4, [micro_batch(((0, 1, 2, 3), {0: 41, 3: 6, 2: 1}))])
    threes = sequence_parallel_plan(
        4,
        [
            micro_batch(((0, 1, 2), {0: 37, 1: 5}), ((3,), {2: 9})),
            micro_batch(((1, 2, 3), {3: 19, 4: 2})),
        ],
        [micro_batch(((0,), {0: 6}), ((1, 2, 3), {1: 2}))],
    )
    sixths = replace(MODEL, hidden=36, heads=6, kv_heads=3)
    models = {
        "": MODEL,
        "_copied_heads": replace(MODEL, kv_heads=2),
        "_one_kv_head_tied": replace(MODEL, kv_heads=1, tied_embeddings=True),
    }
    found = [
        Case(f"changing{name}_seed{seed}", changing, model, seed)
        for name, model in models.items()
        for seed in ((1, 2) if model is MODEL else (3,))
    ]
    found += [
        Case("degree_3", threes, sixths, 5),
        Case("degree_3_copied_heads", threes, replace(sixths, kv_heads=2), 6),
    ]
    return [*found, *of_torch(changing, alone), Case("degree_4", alone, MODEL, 3)]


def of_torch(changing: Plan, alone: Plan) -> list[Case]:
    """Torch's context and tensor parallelism: heads that no group could divide, padded
    sequences; layers split over all ranks, and over pairs that have other sequences.
    """
    pairs = sequence_parallel_plan(
        4,
        [micro_batch(((0, 1), {0: 37, 1: 5}), ((2, 3), {2: 9})), micro_batch(((2, 3), {3: 1}))],
        [micro_batch(((0, 1), {4: 8}), ((2, 3), {1: 3, 0: 2}))],
    )
    gpt = replace(
        MODEL, kv_heads=8, positions="learned", max_positions=64, biases=True,
        feed_forward_kind="gelu", tied_embeddings=True,
    )  # fmt: skip
    thirds = replace(MODEL, hidden=36, heads=3, kv_heads=1)
    return [
        Case("ring_changing", changing, MODEL, 1, "ring"),
        Case("ring_three_heads", changing, thirds, 2, "ring"),
        Case("tensor_of_four", alone, MODEL, 3, "tensor"),
        Case("tensor_of_pairs", pairs, MODEL, 4, "tensor"),
        Case("tensor_of_pairs_gpt", pairs, gpt, 5, "tensor"),
    ]


def cases(ranks: int) -> list[Case]:
    """What a launch with 2 or 4 ranks runs."""
    return [*(sequence_parallel_cases() if ranks == 4 else []), *pipeline_cases(ranks)]


def mixed_chunks(first: int, checkpoint: tuple[int, ...] = ()) -> tuple[Chunk, ...]:
    """Two cut sequences (the tail of the second in a hybrid chunk) and a batched chunk;
    sequences from ``first`` on.
    """
    return (
        chunk((first, 0, 17, 41)),
        chunk((first, 17, 30, 41), checkpoint_layers=checkpoint),
        chunk((first, 30, 41, 41)),
        chunk((first + 1, 0, 16, 23), checkpoint_layers=checkpoint),
        chunk(
            (first + 2, 0, 4, 4),
            (first + 1, 16, 23, 23),
            (first + 3, 0, 1, 1),
            checkpoint_layers=checkpoint,
        ),
        chunk((first + 4, 0, 12, 12), (first + 5, 0, 3, 3)),
    )


def pipeline_cases(ranks: int) -> list[Case]:
    """Split, hybrid and batched chunks: two stages; with four ranks two replicas, and
    four stages.
    """
    found = []
    if ranks == 2:
        plan = pipeline_plan(
            2,
            [Pipeline(2, 0, mixed_chunks(0)), Pipeline(2, 0, (chunk((6, 0, 9, 9)),))],
            [Pipeline(2, 0, (chunk((1, 0, 8, 8)),))],
        )
        recomputed = pipeline_plan(2, [Pipeline(2, 0, mixed_chunks(2, (1, 2)))])
        found = [Case(f"two_stages_seed{seed}", plan, MODEL, seed) for seed in (1, 2)]
        found.append(Case("two_stages_checkpointed", recomputed, MODEL, 3))
        found.append(
            Case(
                "two_stages_tied_uneven",
                plan,
                replace(MODEL, layers=3, tied_embeddings=True, kv_heads=8),
                4,
            )
        )
    else:
        replicas = pipeline_plan(
            4,
            [
                Pipeline(2, 0, mixed_chunks(0)),
                Pipeline(
                    2, 1, (chunk((7, 0, 13, 22)), chunk((7, 13, 22, 22)), chunk((8, 0, 6, 6)))
                ),
            ],
            [Pipeline(2, 1, (chunk((3, 0, 8, 8), (4, 0, 9, 9)),))],
        )
        deep = pipeline_plan(4, [Pipeline(4, 0, mixed_chunks(1))])
        found = pipelines_of_groups()
        found += [Case(f"two_replicas_seed{seed}", replicas, MODEL, seed) for seed in (1, 2)]
        found.append(Case("two_replicas_tied", replicas, replace(MODEL, tied_embeddings=True), 3))
        found.append(Case("four_stages", deep, MODEL, 4))
    return found


def pipelines_of_groups() -> list[Case]:
    """Stages of two and four ranks that share the tokens of each chunk.

    The cuts are uneven; one chunk has fewer tokens than ranks.
    """
    pairs = pipeline_plan(
        4,
        [
            Pipeline(2, 0, mixed_chunks(0), 2),
            Pipeline(2, 0, (chunk((6, 0, 9, 9)), chunk((7, 0, 1, 1))), 2),
        ],
        [Pipeline(2, 0, (chunk((1, 0, 8, 8)),), 2)],
    )
    recomputed = pipeline_plan(4, [Pipeline(2, 0, mixed_chunks(2, (1, 2)), 2)])
    alone = pipeline_plan(
        4, [Pipeline(1, 0, (*mixed_chunks(0), chunk((7, 0, 3, 3))), 4)], [
            Pipeline(1, 0, mixed_chunks(3, (3,)), 4)
        ]
    )  # fmt: skip
    replicas = pipeline_plan(
        4,
        [Pipeline(1, 0, mixed_chunks(0), 2), Pipeline(1, 1, mixed_chunks(6), 2)],
        [Pipeline(1, 1, mixed_chunks(0), 2)],
    )
    tied = replace(MODEL, layers=3, tied_embeddings=True)
    return [
        Case("stages_of_two", pairs, MODEL, 1),
        Case("stages_of_two_one_kv_head_tied_uneven", pairs, replace(tied, kv_heads=1), 2),
        Case("stages_of_two_recomputed", recomputed, replace(MODEL, kv_heads=8), 3),
        Case("stage_of_four", alone, replace(MODEL, kv_heads=2), 4),
        Case("replicas_of_two", replicas, tied, 5),
    ]


# ---- one process as the reference


@dataclass
class Trained:
    """Losses and gradient norms of the steps, the gradients of the first step and the
    parameters after the last one.
    """

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


def train(
    parameters: Mapping[str, Any],
    run: Callable[[int], float],
    finish: Callable[[], float],
    full: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor,
) -> Trained:
    optimizer = torch.optim.AdamW(parameters.values(), lr=LEARNING_RATE, weight_decay=0.1)
    losses, norms, gradients = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        losses.append(run(step))
        norms.append(finish())
        if step == 0:
            gradients = {
                name: full(name, parameter.grad).clone() for name, parameter in parameters.items()
            }
        optimizer.step()
    return Trained(
        losses,
        norms,
        gradients,
        {name: full(name, parameter.detach()) for name, parameter in parameters.items()},
    )


def reference(case: Case, sequences: dict[int, np.ndarray]) -> Trained:
    """Every sequence alone and whole, in one process."""
    decoder = Decoder(case.model, seed=case.seed, compute=torch.float64)

    def run(step: int) -> float:
        batch = case.plan.batches[step % len(case.plan.batches)]
        total = torch.zeros((), dtype=torch.float64)
        for part in whole_sequences(batch):
            packed, packing = pack([part], sequences), Packing.without_context([part.length])

            def attend(
                layer: int,
                q: torch.Tensor,
                k: torch.Tensor,
                v: torch.Tensor,
                packing: Packing = packing,
            ) -> torch.Tensor:
                return variable_length_attention(q, k, v, packing)

            total = total + token_loss_sum(
                decoder(packed.tokens, packed.positions, attend), packed.labels
            )
        loss = total / valid_tokens(batch)
        loss.backward()
        return loss.item()

    return train(
        dict(decoder.named_parameters()),
        run,
        lambda: sum(float(p.grad.square().sum()) for p in decoder.parameters()) ** 0.5,
    )


def whole_sequences(batch: Any) -> list[Slice]:
    if isinstance(batch, SequenceParallelBatch):
        return [
            part
            for m in batch.micro_batches
            for g in m.groups
            for part in uncut_slices(g.sequences, g.lengths)
        ]
    slices = [
        part
        for pipeline in batch.pipelines
        for item in pipeline.chunks
        for part in item.slices
        if part.start == 0
    ]
    return [Slice(part.sequence, 0, part.length, part.length) for part in slices]


# ---- the ranks


@dataclass
class Watched:
    """What was kept for later slices and sent, and whether it is there still."""

    kept: list[StorageWeakRef] = field(default_factory=list)
    sent: list[StorageWeakRef] = field(default_factory=list)
    #: Bytes that were kept with keys and values but are none of theirs.
    foreign_bytes: int = 0

    def watch(self) -> None:
        keep, send = CachedSlice.add, StageLinks.send

        def kept(slice_: CachedSlice, layer: int, keys: Tensor, values: Tensor) -> None:
            before = len(slice_.leaves)
            keep(slice_, layer, keys, values)
            for leaf in slice_.leaves[layer] if len(slice_.leaves) > before else ():
                self.kept.append(StorageWeakRef(leaf.untyped_storage()))
                self.foreign_bytes += leaf.untyped_storage().nbytes() - leaf.nbytes

        def sent(links: StageLinks, tensor: Tensor, to: int) -> None:
            send(links, tensor, to)
            self.sent.append(StorageWeakRef(tensor.untyped_storage()))

        CachedSlice.add, StageLinks.send = kept, sent  # type: ignore[method-assign]

    def told(self) -> dict[str, int]:
        """Counts since the last call."""
        counts = {
            "kept": len(self.kept),
            "kept_still": sum(not one.expired() for one in self.kept),
            "sent": len(self.sent),
            "sent_still": sum(not one.expired() for one in self.sent),
            "foreign_bytes": self.foreign_bytes,
        }
        self.kept.clear()
        self.sent.clear()
        return counts


def parallel(
    case: Case, sequences: dict[int, np.ndarray]
) -> tuple[Trained, int | None, int | None]:
    """The case on this rank; also the measured and the planned peak of live chunks
    where it is a pipeline.
    """
    timeline, pipelined = Timeline(), case.plan.kind == "pipeline"
    stages, degree = pipeline_shape(case.plan) if pipelined else (1, 1)
    held = stage_layers(case.model.layers, stages)[dist.get_rank() // degree % stages]
    decoder = Decoder(case.model, seed=case.seed, compute=torch.float64, layers=held)
    runner: Any
    tensor: TensorParallel | None = None
    if pipelined:
        runner = PipelineParallel(
            decoder, stages, StageLinks(), sequences, "sdpa", timeline, degree
        )
        reduction = pipeline_reduction(decoder, stages, timeline, degree)
    else:
        if case.parallelism == "tensor":
            tensor = TensorParallel(decoder, tensor_degree(case.plan), timeline)
        groups = ProcessGroups(group_ranks(case.plan) if tensor is None else ())
        runner = SequenceParallel(
            decoder, groups, sequences, "sdpa", timeline, parallelism=case.parallelism
        )
        reduction = tensor.reduction if tensor else sequence_parallel_reduction(decoder, timeline)

    def run(step: int) -> float:
        loss = runner.run(case.plan.batches[step % len(case.plan.batches)])
        dist.all_reduce(loss)
        return float(loss)

    def finish() -> float:
        if tensor is not None:
            tensor.finish()
        reduction.run()
        squared = reduction.squared_norm()
        dist.all_reduce(squared)
        return float(squared) ** 0.5

    def full(name: str, local: Tensor) -> Tensor:
        whole: Any = local if tensor is None else tensor.distributed(name, local)
        return whole.full_tensor() if isinstance(whole, DTensor) else whole

    parameters = tensor.shards if tensor else dict(decoder.named_parameters())
    trained = train(parameters, run, finish, full)
    if not pipelined:
        return trained, None, None
    own = [
        p for b in case.plan.pipeline_batches() for p in b.pipelines if p.replica == runner.replica
    ]
    return trained, runner.peak_live_chunks, max(peak_live_chunks(p, runner.stage) for p in own)


def compare(case: Case, own: Trained, whole: Trained) -> dict[str, float]:
    """Largest differences, each relative to the largest value of its tensor (losses and
    norms: to the value).
    """

    def worst(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
        return max(
            float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max())
            for name in ours
            # Softmax takes no notice of it: its derivative is zero but for rounding.
            if not name.endswith("keys.bias")
        )

    return {
        "loss": max(abs(a / b - 1) for a, b in zip(own.losses, whole.losses, strict=True)),
        "norm": max(abs(a / b - 1) for a, b in zip(own.norms, whole.norms, strict=True)),
        "gradient": worst(own.gradients, whole.gradients),
        "parameter": worst(own.parameters, whole.parameters),
    }


def work(rank: int, ranks: int, backend: str, store_path: str, out: str) -> None:
    torch.set_num_threads(1)
    join(backend, rank, ranks, store_path)
    watched = Watched()
    watched.watch()
    results = {}
    for case in cases(ranks):
        validate_plan(case.plan)
        generator = np.random.default_rng(case.seed)
        sequences = {
            sequence: generator.integers(0, case.model.vocabulary, length)
            for sequence, length in sorted(plan_lengths(case.plan).items())
        }
        own, peak, planned_peak = parallel(case, sequences)
        errors = compare(case, own, reference(case, sequences))
        gathered: list[Any] = [None] * ranks
        dist.all_gather_object(gathered, (errors, peak, planned_peak, watched.told()))
        results[case.name] = {
            "errors": {key: max(other[0][key] for other in gathered) for key in errors},
            "peaks": [other[1] for other in gathered],
            "planned_peaks": [other[2] for other in gathered],
            "memory": [other[3] for other in gathered],
        }
    if rank == 0:
        Path(out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def join(backend: str, rank: int, ranks: int, store_path: str) -> None:
    if backend == "railx":
        from railx_torch.backend import BackendOptions, configure
        from railx_torch.trace import Recorder

        configure(BackendOptions("gloo", None, "electrical", 1), Recorder(rank))
    dist.init_process_group(
        backend, store=dist.FileStore(store_path, ranks), rank=rank, world_size=ranks
    )


if __name__ == "__main__":
    count, chosen = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        result = str(Path(folder, "result.json"))
        mp.start_processes(
            work,
            (count, chosen, str(Path(folder, "store")), result),
            nprocs=count,
            start_method="fork",
        )
        print(Path(result).read_text())
