"""A run that goes on from a checkpoint is the run that was never stopped.

The ranks are real processes; one launch runs all ways of training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import python
from tests.training import checkpoint_program as program


@pytest.fixture(scope="module")
def launched() -> dict[str, Any]:
    done = python(Path(program.__file__), timeout_s=250)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    "way",
    [
        *(way.name for way in program.ways(4)[1:]),
        *(
            f"{source.name} -> {ranks} {way.name}"
            for ranks in (4, 2)
            for way, source in zip(program.ways(ranks), program.sources(ranks), strict=True)
        ),
    ],
)
def test_losses_and_norms_are_those_of_an_uninterrupted_run(
    way: str, launched: dict[str, Any]
) -> None:
    straight, own = launched["seen"]["whole_none"], launched["seen"][way]
    assert len(own) == (program.STEPS - program.SAVED if "->" in way else program.STEPS)
    for ours, theirs in zip(own, straight[-len(own) :], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=0)


def test_a_kill_in_the_middle_of_a_save_leaves_the_last_whole_one(
    launched: dict[str, Any],
) -> None:
    assert launched["codes"][1] == -9
    assert launched["last"] == 2
    assert launched["left"] == [".block_000_step_000003.part", "block_000_step_000002"]
