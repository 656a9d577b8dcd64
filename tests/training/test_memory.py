"""The memory model against what the allocator saw."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from railx.performance.decoder import ModelSettings
from railx.performance.trainer_memory import Memory, ModelShard, Pass, rank_memory
from tests.commands import python
from tests.training import memory_program

pytestmark = pytest.mark.system

MODEL = memory_program.LLAMA
CASES = [case.name for case in memory_program.cases()]
STAGES = [case.name for case in memory_program.stage_cases()]


@pytest.fixture(scope="module")
def launched() -> dict[str, Any]:
    done = python(memory_program.__file__)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("case", CASES)
def test_predicted_and_measured_peaks_agree(case: str, launched: dict[str, Any]) -> None:
    result = launched["peaks"][case]
    assert result["predicted"] == pytest.approx(result["measured"], rel=0.05)


@pytest.mark.parametrize("case", STAGES)
def test_what_a_stage_holds_after_each_pass_is_predicted(
    case: str, launched: dict[str, Any]
) -> None:
    """But for the last pass of a sharded stage, whose gradients go meanwhile."""
    rows = launched["stages"][case]
    assert len(rows) == 2 * 5
    for held, predicted, _ in rows[:-1] if case.endswith("cut") else rows:
        assert predicted == pytest.approx(held, rel=0.004)
    assert all(held <= most for held, _, most in rows)


def peak(held: ModelShard, *passes: Pass, fused: bool = False, model: ModelSettings = MODEL) -> int:
    return rank_memory(model, held, passes, loss_chunk_tokens=128, fused_attention=fused).peak_bytes


def test_the_peak_is_the_sum_of_its_parts() -> None:
    memory = Memory(1, 2, 3, 4, 5, 6, 7, 8)
    assert memory.peak_bytes == 36


def test_what_saves_memory_saves_it() -> None:
    one = Pass(4096)
    whole, cut = ModelShard(3), ModelShard(3, ranks=4, hold="unit")
    assert peak(cut, one) < peak(replace(cut, hold="batch"), one) < peak(whole, one)
    assert peak(cut, replace(one, checkpoint_layers=2)) < peak(cut, one)
    assert peak(replace(cut, ranks=8), one) < peak(cut, one)
    assert peak(cut, replace(one, packed=False)) < peak(cut, one)
    assert peak(cut, one, fused=True) < peak(cut, one)
    assert peak(cut, Pass(2048)) < peak(cut, one) < peak(cut, one, one)


def test_heads_are_copied_where_a_degree_needs_them() -> None:
    held = ModelShard(3, ranks=4, hold="unit")
    assert peak(held, Pass(1024, degree=2)) < peak(held, Pass(1024, degree=6))
