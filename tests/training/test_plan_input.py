"""Plans that do not fit: one line that names what is wrong, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json, write_json
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.planning.planners import PLANNERS
from railx.settings import SettingsError
from tests.builders import checked
from tests.plans import chunk, pipeline_plan
from tests.training.test_run import pipeline, prepared, refused, sequence_parallel
from training.settings import _OTHER_PROGRAMS, check_plan

Change = Callable[[Any], None]


def group(plan: Any) -> Any:
    """The first group of the first batch: sequences 0 and 1, 90 and 61 tokens."""
    return plan["batches"][0]["micro_batches"][0]["groups"][0]


def _drop(plan: Any) -> None:
    group(plan).update(sequences=[0], lengths=[90])


def _repeat(plan: Any) -> None:
    group(plan).update(sequences=[0, 0], lengths=[90, 90])


def _shorten(plan: Any) -> None:
    group(plan)["lengths"] = [90, 60]


def _exchange(plan: Any) -> None:
    group(plan)["sequences"] = [0, 7]


def _overfill(plan: Any) -> None:
    plan["tokens_per_device"] = 75


def _forget(plan: Any) -> None:
    del plan["batches"][0]["sequences"]


def _of_an_earlier_format(plan: Any) -> None:
    plan["schema"] = "railx.plan/1"


def _tail_dropped(plan: Any) -> None:
    chunks = plan["batches"][0]["pipelines"][0]["chunks"]
    chunks[1]["slices"] = chunks[1]["slices"][1:]


def _whole_dropped(plan: Any) -> None:
    plan["batches"][0]["pipelines"][0]["chunks"].pop()


def _overfull_stage(plan: Any) -> None:
    plan["tokens_per_device"] = 80


def _recompute(plan: Any) -> None:
    plan["batches"][0]["pipelines"][0]["chunks"][2]["checkpoint_layers"] = [1, 2]


def _interleave(plan: Any) -> None:
    plan["batches"][0]["pipelines"][0] |= {"schedule": "interleaved", "virtual_stages": 1}


def _put_weights_off(plan: Any) -> None:
    plan["batches"][0]["pipelines"][0]["schedule"] = "zero_bubble"


def _of_megatron(plan: Any) -> None:
    plan["planner"] = "megatron"


def _own_order(plan: Any) -> None:
    order = [f"{kind}{n}" for n in (0, 1) for kind in "F"] + ["B1", "W1", "B0", "W0"]
    plan["batches"][0]["pipelines"][0]["order"] = [[*order, "F2", "B2", "W2"]] * 2
    plan["batches"][0]["predicted_ms"] = 15.0


@pytest.mark.parametrize(
    ("made", "change", "message"),
    [
        (sequence_parallel, _drop, "batch 0: sequence 1 is dropped (1 in all); allowed: every"),
        (sequence_parallel, _repeat, "batch 0: sequence 0 appears twice; allowed: exactly once"),
        (sequence_parallel, _shorten, "batch 0, sequence 1: length 60; allowed: 61, its length"),
        (sequence_parallel, _exchange, "batch 0: sequence 7; allowed: the sequences of the batch"),
        (
            sequence_parallel,
            _overfill,
            "batch 0, micro-batch 0, group 0: 151 tokens; allowed: at most 150, what 2 ranks hold",
        ),
        (sequence_parallel, _forget, "batch 0: made for 0 sequences and 5 lengths; allowed: the"),
        (
            sequence_parallel,
            _of_an_earlier_format,
            "schema is 'railx.plan/1'; allowed: railx.plan/3",
        ),
        (sequence_parallel, _of_megatron, "got a plan of megatron, which is simulated only"),
        (pipeline, _tail_dropped, "chunk 0, sequence 0: slices end at 50; allowed: 90"),
        (pipeline, _whole_dropped, "batch 0: sequence 1 is dropped (1 in all); allowed: every"),
        (
            pipeline,
            _overfull_stage,
            "chunk 2: stage 0 then holds 161 tokens; allowed: at most 160, what its 1 ranks hold",
        ),
        *(
            (pipeline, change, f"batch 0, pipeline 0: schedule {named}, which is simulated only")
            for change, named in (
                (_interleave, "interleaved"),
                (_put_weights_off, "zero_bubble"),
                (_own_order, "an order with W"),
            )
        ),
        (
            pipeline,
            _recompute,
            "chunk 2: checkpoint_layers 2 on stage 1; allowed: at most 1, the layers of the stage",
        ),
    ],
)
def test_a_plan_that_was_changed_is_named(
    made: Callable[[], Plan],
    change: Change,
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings = prepared(tmp_path, made())
    plan = read_json(tmp_path / "plan.json")
    change(plan)
    plan["digest"] = None  # as who writes a plan by hand leaves it
    write_json(tmp_path / "plan.json", plan)
    assert refused(settings, tmp_path, capfd).count(message) == 1


def test_programs_that_are_priced_and_not_run_are_refused() -> None:
    priced = {planner.name for planner in PLANNERS if planner.predictions == "own"}
    assert set(_OTHER_PROGRAMS) == priced


@pytest.mark.parametrize(
    ("degree", "changes", "message"),
    [
        (4, {"model.heads": 2}, "model.heads: got 2; allowed: a multiple of 4, a degree of"),
        (2, {"model.layers": 1}, "model.layers: got 1; allowed: at least 2, the pipeline stages"),
    ],
)
def test_stages_that_the_model_does_not_fit_are_named(
    degree: int,
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plan = pipeline_plan(2 * degree, [Pipeline(2, 0, (chunk((0, 0, 90, 90)),), degree)])
    assert message in refused(prepared(tmp_path, plan, **changes), tmp_path, capfd)


def test_a_plan_for_other_ranks_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are counted with all ranks of a stage."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    plan = pipeline_plan(4, [Pipeline(2, 0, (chunk((0, 0, 90, 90)),), 2)])
    line = refused(prepared(tmp_path, plan), tmp_path, capfd)
    assert "ranks: got 2; allowed: 4, the number of devices that the plan was made for" in line


def test_the_smaller_stage_recomputes_no_more_than_it_has() -> None:
    """Three layers: two on the first stage, one on the second."""
    plan = pipeline_plan(2, [Pipeline(2, 0, (chunk((0, 0, 90, 90), checkpoint_layers=(2, 2)),))])
    with pytest.raises(
        SettingsError, match=r"chunk 0: checkpoint_layers 2 on stage 1; allowed: at most 1, the lay"
    ):
        check_plan(plan, checked("model", "tiny", layers=3), 2)
    check_plan(plan, checked("model", "tiny", layers=4), 2)
