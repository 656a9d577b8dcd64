"""Sharded training is training: losses, norms, gradients and parameters after several
steps, clipped and scheduled, are those of one process in double precision.

The ranks are real processes; one launch for each number of ranks runs all its cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.commands import python
from tests.plans import micro_batch, sequence_parallel_plan
from tests.training import sharding_program, start_program
from training.engine import Engine
from training.timeline import Timeline

pytestmark = pytest.mark.system

PROGRAM = Path(sharding_program.__file__)
LAUNCHES = [(1, "gloo"), (2, "gloo"), (4, "gloo"), (8, "gloo"), (4, "railx")]
CASES = [
    (ranks, backend, case)
    for ranks, backend in LAUNCHES
    for case in sharding_program.cases(ranks)
    if backend == "gloo" or case.name in sharding_program.ON_RAILX
]


@pytest.fixture(scope="module")
def launches() -> dict[tuple[int, str], dict[str, Any]]:
    return {}


@pytest.mark.parametrize(
    ("ranks", "backend", "case"),
    CASES,
    ids=[f"{ranks}-{backend}-{case.name}" for ranks, backend, case in CASES],
)
def test_an_engine_trains_the_same_model_as_one_process(
    ranks: int,
    backend: str,
    case: sharding_program.Case,
    launches: dict[tuple[int, str], dict[str, Any]],
) -> None:
    if (ranks, backend) not in launches:
        launches[ranks, backend] = launch(ranks, backend)
    check(launches[ranks, backend][case.name], case)


def test_static_and_adaptive_groups_of_eight_ranks_have_one_loss_curve(
    launches: dict[tuple[int, str], dict[str, Any]],
) -> None:
    """The same batches, sharded, in double precision; the curves fall."""
    if (8, "gloo") not in launches:
        launches[8, "gloo"] = launch(8, "gloo")
    found = launches[8, "gloo"]
    static, adaptive = (found[name]["losses"] for name in ("static", "adaptive"))
    assert len(static) == sharding_program.STEPS
    assert adaptive == pytest.approx(static, rel=1e-12)
    assert static[2] < static[0]
    # Two of degree 4; beside them pairs of ranks and all eight.
    assert (found["static"]["groups"], found["adaptive"]["groups"]) == (2, 5)
    assert all(found[name]["creation_ms"] > 0 for name in ("static", "adaptive"))


def launch(*arguments: object) -> dict[str, Any]:
    done = python(PROGRAM, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check(result: dict[str, Any], case: sharding_program.Case) -> None:
    for quantity, error in result["errors"].items():
        assert error <= 1e-12, quantity
    # Every parameter is counted once, and where it is cut it is kept once.
    assert result["counted"] == result["whole"]
    if case.sharding == "zero3":
        assert sum(result["kept"]) == result["whole"] + result["copied"]
    assert result["taken"]
    # A stage's gradients travel while its last chunk runs backward, not after it.
    assert False not in result["summed_on_the_way"]


@pytest.fixture
def alone_of_four() -> Iterator[None]:
    """Rank 0 of four ranks that are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("sharding", ["zero3", "none"])
def test_one_cast_copy_of_a_weight_is_alive(sharding: str, alone_of_four: None) -> None:
    plan = sequence_parallel_plan(4, [micro_batch(((0,), {0: 29}))] * 2)
    case = sharding_program.Case("cast", plan, sharding_program.UNEVEN, sharding)
    settings = sharding_program.settings(case)
    settings = replace(settings, training=replace(settings.training, precision="bfloat16"))
    engine = Engine(
        settings, plan, {0: np.arange(29)}, device=torch.device("cpu"), timeline=Timeline()
    )
    parameters = dict(engine.decoder.named_parameters())
    alive: dict[str, set[str]] = {}
    stray: list[torch.Size] = []

    def filled() -> set[str]:
        return {name for name, p in parameters.items() if p.untyped_storage().nbytes()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # No activation has the shape of a weight: 29 tokens are in no dimension.
        weights = [p for p in parameters.values() if tensor.shape in (p.shape, p.shape[::-1])]
        own = {p.untyped_storage().data_ptr() for p in weights}
        if tensor.dim() == 2 and weights and tensor.untyped_storage().data_ptr() not in own:
            stray.append(tensor.shape)
        return tensor

    for unit, module in engine.decoder.units():
        module.register_forward_pre_hook(
            lambda module, arguments, unit=unit: alive.__setitem__(unit, filled())
        )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        engine.step(plan.batches[0], 0)
    assert all(p.dtype == torch.bfloat16 for p in parameters.values())
    assert all(p.dtype == torch.float32 for p in engine.optimizer.parameters.values())
    # The slope of the loss by the head's weight is made with the loss.
    head = parameters["head.weight"].shape
    assert [shape for shape in stray if shape != head] == []
    assert filled() == set()
    for unit, names in alive.items():
        own = {name for name in parameters if name.startswith(f"{unit}.")}
        assert names == own or (sharding == "none" and own < names)


@pytest.mark.slow
def test_compiled_layers_train_the_same_model() -> None:
    results = launch(2, "gloo", "compiled")
    for case in sharding_program.compiled_cases(2):
        check(results[case.name], case)


@pytest.mark.slow
def test_a_large_model_starts_small() -> None:
    done = python(start_program.__file__, "llama_7b", "64")
    assert done.returncode == 0, done.stderr
    start = json.loads(done.stdout)
    assert start["kept"] > 6.7e9 / 64
    assert start["grown_bytes"] < 3e9
