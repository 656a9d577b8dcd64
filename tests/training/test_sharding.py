"""Sharded training is training: losses, norms, gradients and parameters after several
steps, clipped and scheduled, are those of one process in double precision.

The ranks are real processes; one launch for each number of ranks runs all its cases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import python
from tests.training import sharding_program, start_program

PROGRAM = Path(sharding_program.__file__)
LAUNCHES = [(1, "gloo"), (2, "gloo"), (4, "gloo"), (4, "railx")]
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
        done = python(PROGRAM, str(ranks), backend, timeout_s=200)
        assert done.returncode == 0, done.stderr
        launches[ranks, backend] = json.loads(done.stdout)
    result = launches[ranks, backend][case.name]
    for quantity, error in result["errors"].items():
        assert error <= 1e-12, quantity
    # Every parameter is counted once, and where it is cut it is kept once.
    assert result["counted"] == result["whole"]
    if case.sharding == "zero3":
        assert sum(result["kept"]) == result["whole"] + result["copied"]


@pytest.mark.slow
def test_a_large_model_starts_small() -> None:
    done = python(start_program.__file__, "llama_7b", "64", timeout_s=250)
    assert done.returncode == 0, done.stderr
    start = json.loads(done.stdout)
    assert start["kept"] > 6.7e9 / 64
    assert start["grown_bytes"] < 3e9
