"""Trains hand-made plans with an engine on real processes, sharded and not, and
compares each with one process on the same batches; prints one JSON object.

Not a test module: ``test_sharding.py`` starts it once for each number of ranks. Usage:
sharding_program.py RANKS BACKEND [compiled]
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, distribute_tensor

from railx.performance.decoder import ModelSettings
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from tests.builders import choice
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.training.parallel_program import MODEL, join, whole_sequences
from tests.training.parallel_program import cases as plan_cases
from training.attention import Packing, variable_length_attention
from training.data import pack, plan_lengths, valid_tokens
from training.engine import Engine
from training.model import Decoder
from training.settings import Parallelism, RunSettings, load_run_settings
from training.sharding import Sharding
from training.tensor_parallel import TensorParallel
from training.timeline import Timeline

STEPS = 3
#: Large enough that differences of the last bit stay such differences in AdamW's
#: quotient, and small enough that it matters.
EPSILON = 1e-4
#: Below the norm of every batch, so that clipping changes each step.
CLIP_NORM = 0.05
#: Two ranks or four cut no dim 0 of this model evenly but that of its hidden states.
UNEVEN = ModelSettings("uneven", 3, 36, 6, 3, 50, 61)
#: The plans of ``parallel_program`` that also run whole, with clipping.
WHOLE = ("changing_seed2", "two_stages_seed2", "two_replicas_tied")
#: Where another engine takes over the state.
STATES = ("uneven_zero3", "two_stages_tied_uneven_zero3", "tensor_of_pairs_none")
#: What runs on the backend ``railx`` too.
ON_RAILX = ("changing_seed2_zero3", "two_replicas_tied_zero3")


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    model: ModelSettings
    sharding: str
    clip_norm: float | None = CLIP_NORM
    checkpoint_layers: int = 0
    compiled: bool = False
    parallelism: Parallelism = "ulysses"


def cases(ranks: int) -> list[Case]:
    """The plans of ``parallel_program`` cut over the ranks; some whole as well.

    On eight ranks the same batches in groups of one degree and of three at once.
    """
    if ranks == 8:
        return [
            Case("static", static_plan(), MODEL, "zero3"),
            Case("adaptive", adaptive_plan(), MODEL, "zero3"),
        ]
    found = [
        Case(
            f"{case.name}_{sharding}",
            case.plan,
            case.model,
            sharding,
            parallelism=case.parallelism,
        )
        for case in (plan_cases(ranks) if ranks > 1 else [])
        for sharding in ("zero3", "none")
        if case.seed != 1
        and ((sharding == "zero3") != (case.parallelism == "tensor") or case.name in WHOLE)
    ]
    everyone = tuple(range(min(ranks, 2)))
    some = [micro_batch((everyone, {0: 19, 1: 4})), micro_batch(((0,), {2: 9}))]
    alone = sequence_parallel_plan(ranks, some, [micro_batch(((0,), {3: 12}))])
    tied = replace(UNEVEN, tied_embeddings=True, kv_heads=1)
    found += [
        Case("uneven_zero3", alone, UNEVEN, "zero3"),
        Case("uneven_tied_unclipped", alone, tied, "zero3", None),
        Case("uneven_tied_checkpointed", alone, tied, "zero3", CLIP_NORM, 2),
    ]
    found.append(Case("uneven_none", alone, UNEVEN, "none"))
    if ranks == 1:
        chunks = (chunk((0, 0, 9, 17)), chunk((0, 9, 17, 17)), chunk((1, 0, 5, 5)))
        piped = pipeline_plan(1, [Pipeline(1, 0, chunks)])
        found += [Case(f"one_stage_{kind}", piped, tied, kind) for kind in ("zero3", "none")]
    return found


def static_plan() -> Plan:
    """Two groups of degree 4 in every micro-batch."""
    low, high = (0, 1, 2, 3), (4, 5, 6, 7)
    return sequence_parallel_plan(
        8,
        [
            micro_batch((low, {0: 61}), (high, {1: 24, 2: 9, 3: 7})),
            micro_batch((low, {4: 30, 5: 5})),
        ],
        [micro_batch((low, {6: 44, 7: 3}), (high, {8: 19, 9: 11, 10: 2}))],
    )


def adaptive_plan() -> Plan:
    """Degrees 4, 2, 1 and 1 side by side, other groups in the next micro-batches."""
    return sequence_parallel_plan(
        8,
        [
            micro_batch(((0, 1, 2, 3), {0: 61}), ((4, 5), {1: 24}), ((6,), {2: 9}), ((7,), {3: 7})),
            micro_batch(((0,), {5: 5}), ((4, 5, 6, 7), {4: 30})),
        ],
        [
            micro_batch(((0, 1, 2, 3, 4, 5, 6, 7), {6: 44})),
            micro_batch(((0, 1), {8: 19, 7: 3}), ((2,), {10: 2}), ((4, 5), {9: 11})),
        ],
    )


def compiled_cases(ranks: int) -> list[Case]:
    """Layers that are compiled, one by one and as a stage."""
    return [
        replace(case, name=f"{case.name}_compiled", compiled=True)
        for case in cases(ranks)
        if case.name in ("uneven_zero3", "two_stages_checkpointed_zero3")
    ]


def settings(case: Case) -> RunSettings:
    training = choice("training", "cpu_4")
    training["precision"], training["sharding"] = "float64", case.sharding
    training["compile"], training["parallelism"] = case.compiled, case.parallelism
    training["loss_chunk_tokens"] = 7
    training["optimizer"] |= {
        "epsilon": EPSILON,
        "clip_norm": case.clip_norm,
        "schedule": "cosine",
        "warmup_steps": 2,
        "decay_steps": 4,
    }
    return load_run_settings(
        {
            "name": case.name,
            "seed": 1,
            "plan_name": "hand",
            "plan": "plan.json",
            "corpus": "corpus.parquet",
            "model": vars(case.model),
            "fabric": choice("fabric", "rails"),
            "training": training,
        }
    )


@dataclass
class Trained:
    """Losses and norms of the steps; the last gradients and the parameters, by name."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    #: Whether gradients were summed while the last chunk ran backward; None where the
    #: rank had no chunk, or holds no stage for a batch.
    summed_on_the_way: bool | None = None


def reference(case: Case, sequences: dict[int, np.ndarray]) -> Trained:
    """Every sequence alone and whole, in one process, with torch's own parts."""
    decoder = Decoder(case.model, seed=1, compute=torch.float64)
    optimizer = torch.optim.AdamW(
        decoder.parameters(), lr=1.0, betas=(0.9, 0.95), eps=EPSILON, weight_decay=0.1
    )
    losses, norms, rates = [], [], (1.5e-4, 3e-4, 3e-4)
    for step in range(STEPS):
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

            logits = decoder(packed.tokens, packed.positions, attend)
            total = total + torch.nn.functional.cross_entropy(
                logits, packed.labels, reduction="sum"
            )
        optimizer.zero_grad(set_to_none=True)
        loss = total / valid_tokens(batch)
        loss.backward()
        limit = case.clip_norm if case.clip_norm is not None else float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(decoder.parameters(), limit)))
        losses.append(loss.item())
        optimizer.param_groups[0]["lr"] = rates[step]
        optimizer.step()
    named = dict(decoder.named_parameters())
    return Trained(
        losses,
        norms,
        {name: parameter.grad for name, parameter in named.items()},
        {name: parameter.detach() for name, parameter in named.items()},
    )


def parallel(case: Case, sequences: dict[int, np.ndarray]) -> tuple[Trained, Engine]:
    """The case on this rank, which has rows of what it returns."""
    engine = Engine(
        settings(case), case.plan, sequences, device=torch.device("cpu"), timeline=Timeline()
    )
    if case.checkpoint_layers:
        engine.decoder.transform = functools.partial(  # type: ignore[method-assign]
            engine.decoder.transform, checkpoint_layers=case.checkpoint_layers
        )
    losses, norms = [], []
    summed = watch_sums(engine)
    for step in range(STEPS):
        stepped = engine.step(case.plan.batches[step % len(case.plan.batches)], step)
        sums = torch.stack([stepped.loss, stepped.squared_norm])
        dist.all_reduce(sums)
        losses.append(float(sums[0]))
        norms.append(float(sums[1]) ** 0.5)
    named = engine.optimizer.parameters
    return Trained(
        losses,
        norms,
        {name: parameter.grad for name, parameter in named.items()},
        {name: parameter.detach() for name, parameter in named.items()},
        all(summed) if summed else None,
    ), engine


def watch_sums(engine: Engine) -> list[bool]:
    """For each batch with a chunk on this rank, whether a sum began before its end."""
    found: list[bool] = []
    sharding = engine.sharding
    if not isinstance(sharding, Sharding) or sharding.hold != "batch":
        return found
    begin, finish = sharding.begin, sharding.finish
    expected: list[int] = []

    def begin_(passes: int) -> None:
        expected.append(passes)
        begin(passes)

    def finish_() -> None:
        if expected[-1]:
            found.append(any(unit.summed for unit in sharding._units))
        finish()

    sharding.begin, sharding.finish = begin_, finish_  # type: ignore[method-assign]
    return found


def rows(name: str, tensor: torch.Tensor, engine: Engine) -> torch.Tensor:
    """The part of a whole tensor that this rank keeps, cut as DTensor cuts."""
    sharding = engine.sharding
    if isinstance(sharding, TensorParallel):
        parameter = sharding._parameters[name]
        if not isinstance(parameter, DTensor):
            return tensor
        mesh, placements = parameter.device_mesh, parameter.placements
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None).to_local()
    group = sharding.group if sharding is not None else None
    if group is None:
        return tensor
    cut = torch.chunk(tensor, dist.get_world_size(group))
    place = dist.get_rank(group)
    return cut[place] if place < len(cut) else tensor[:0]


def compare(own: Trained, whole: Trained, engine: Engine) -> dict[str, float]:
    """Largest differences, each relative to the largest value of its tensor (losses and
    norms: to the value).
    """

    def worst(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
        found = 0.0
        for name, tensor in ours.items():
            expected = rows(name, theirs[name], engine)
            assert tensor.shape == expected.shape, name
            # The derivative by a bias of the keys is zero but for rounding.
            if tensor.numel() and not name.endswith("keys.bias"):
                difference = (tensor - expected).abs().max() / theirs[name].abs().max()
                found = max(found, float(difference))
        return found

    return {
        "loss": max(abs(a / b - 1) for a, b in zip(own.losses, whole.losses, strict=True)),
        "norm": max(abs(a / b - 1) for a, b in zip(own.norms, whole.norms, strict=True)),
        "gradient": worst(own.gradients, whole.gradients),
        "parameter": worst(own.parameters, whole.parameters),
    }


def shared(trained: Trained | None) -> Trained:
    """What rank 0 has, on every rank."""
    objects = [trained]
    dist.broadcast_object_list(objects)
    assert objects[0] is not None
    return objects[0]


def tied_apart(case: Case) -> bool:
    """Whether a tied head and the embedding are on different stages."""
    return (
        case.model.tied_embeddings
        and case.plan.kind == "pipeline"
        and case.plan.pipeline_batches()[0].pipelines[0].stages > 1
    )


def taken_over(case: Case, engine: Engine, whole: Trained) -> bool:
    """Whether the engine's state is the whole model's, and another engine takes it."""
    state = engine.state_dict()
    other = Engine(settings(case), case.plan, {}, device=torch.device("cpu"), timeline=Timeline())
    other.load_state_dict(state)
    alike = True
    for name, tensor in state["model"].items():
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        alike &= torch.allclose(full, whole.parameters[name], rtol=1e-12, atol=1e-13)
        alike &= torch.equal(other.optimizer.parameters[name], engine.optimizer.parameters[name])
        moments, taken = (e.optimizer.moments()[name] for e in (engine, other))
        alike &= all(torch.equal(moments[key], taken[key]) for key in moments)
        alike &= float(moments["step"]) == STEPS
    return alike


def work(rank: int, ranks: int, backend: str, store_path: str, out: str, compiled: bool) -> None:
    torch.set_num_threads(1)
    join(backend, rank, ranks, store_path)
    if compiled:
        # What is compiled need not be fast.
        compile_layers = Decoder.compile_layers
        Decoder.compile_layers = lambda own: compile_layers(own, backend="aot_eager")  # type: ignore
    results = {}
    for case in compiled_cases(ranks) if compiled else cases(ranks):
        if backend == "railx" and case.name not in ON_RAILX:
            continue
        generator = np.random.default_rng(7)
        sequences = {
            sequence: generator.integers(0, case.model.vocabulary, length)
            for sequence, length in sorted(plan_lengths(case.plan).items())
        }
        own, engine = parallel(case, sequences)
        expected = shared(reference(case, sequences) if rank == 0 else None)
        errors = compare(own, expected, engine)
        kept = sum(parameter.numel() for parameter in engine.optimizer.parameters.values())
        whole = sum(tensor.numel() for tensor in expected.parameters.values())
        taken = case.name not in STATES or taken_over(case, engine, expected)
        gathered: list[Any] = [None] * ranks
        dist.all_gather_object(
            gathered, (errors, kept, engine.parameters, taken, own.summed_on_the_way)
        )
        results[case.name] = {
            "errors": {key: max(other[0][key] for other in gathered) for key in errors},
            "kept": [other[1] for other in gathered],
            "counted": sum(other[2] for other in gathered),
            "whole": whole,
            "taken": all(other[3] for other in gathered),
            "losses": own.losses,
            "summed_on_the_way": [other[4] for other in gathered],
            "groups": None if engine.groups is None else len(engine.groups),
            "creation_ms": None if engine.groups is None else engine.groups.creation_ms,
            # A tied head on a stage of its own is a second copy.
            "copied": case.model.vocabulary * case.model.hidden * tied_apart(case),
        }
    if rank == 0:
        Path(out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # The optimizer of torch loads it: once, not on every rank.
    importlib.import_module("torch._dynamo")
    count, chosen = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        result = str(Path(folder, "result.json"))
        mp.start_processes(
            work,
            (count, chosen, str(Path(folder, "store")), result, sys.argv[3:] == ["compiled"]),
            nprocs=count,
            start_method="fork",
        )
        print(Path(result).read_text())
