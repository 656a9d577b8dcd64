"""Schedules in plan files: written, read, edited by hand, and refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.io import read_json, write_json
from railx.planning.format.files import read_plan, validate_plan, write_plan
from railx.planning.format.parts import Pipeline, PlanError
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import (
    Op,
    operations,
    ordered,
    peak_live_chunks,
    pipeline_ms,
    runnable,
    schedule_name,
    simulate_pipeline,
)
from railx.planning.format.simulation import SCHEDULES, ScheduleName
from tests.plans import chunk, pipeline_plan

#: A sequence of two slices and one of one, through two stages.
CHUNKS = (chunk((7, 0, 10, 20)), chunk((7, 10, 20, 20)), chunk((8, 0, 10, 10)))
PAPER = Pipeline(2, 0, CHUNKS)


def _plan(pipeline: Pipeline, **settings: Any) -> Plan:
    return replace(pipeline_plan(2, [pipeline]), settings=settings)


def _scheduled(name: ScheduleName) -> Pipeline:
    chunks = tuple(replace(one, predicted_weight_ms=0.5) for one in CHUNKS)
    parts = 2 if name == "interleaved" else 1
    return Pipeline(2, 0, chunks, schedule=name, virtual_stages=parts)


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_order_written_out_runs_as_the_schedule_does(name: ScheduleName, tmp_path: Path) -> None:
    pipeline = _scheduled(name)
    plan = _plan(replace(pipeline, order=ordered(pipeline)))
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    (own,) = plan.pipeline_batches()[0].pipelines
    assert simulate_pipeline(own) == simulate_pipeline(pipeline)
    assert plan.pipeline_batches()[0].predicted_ms == pipeline_ms(pipeline)
    assert [schedule_name(own), schedule_name(pipeline)] == ["explicit", name]
    assert runnable(own) == runnable(pipeline) == (name in ("1f1b", "gpipe"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_passes_last_as_long_as_their_chunks_say(name: ScheduleName) -> None:
    """A backward pass lacks the weights' part only where that has a pass of its own."""
    pipeline = _scheduled(name)
    chunks = tuple(
        replace(
            one,
            checkpoint_layers=tuple(range(number, number + pipeline.model_stages)),
            predicted_layer_forward_ms=0.25,
        )
        for number, one in enumerate(pipeline.chunks)
    )
    pipeline = replace(pipeline, chunks=chunks)
    lasted = [(row, row.end_ms - row.start_ms) for row in simulate_pipeline(pipeline)]
    later_ms = 0.5 if name == "zero_bubble" else 0.0
    for row, lasts_ms in lasted:
        recomputed = row.chunk + row.part * pipeline.stages + row.stage
        backward_ms = 2.0 + recomputed * 0.25 - later_ms
        expected = {"forward": 1.0, "backward": backward_ms, "weight": later_ms}[row.kind]
        assert lasts_ms == pytest.approx(expected)
    assert ("weight" in {row.kind for row, _ in lasted}) == (name == "zero_bubble")


def test_orders_by_hand() -> None:
    assert ordered(_scheduled("gpipe")) == (("F0", "F1", "F2", "B2", "B1", "B0"),) * 2
    assert ordered(_scheduled("zero_bubble")) == (
        ("F0", "F1", "F2", "B1", "W1", "B0", "W0", "B2", "W2"),
        ("F0", "F1", "B1", "F2", "B0", "W1", "B2", "W0", "W2"),
    )
    parts = ordered(_scheduled("interleaved"))
    assert parts[1] == (
        *("F0", "F1", "F0.1", "F1.1", "B1.1", "F2", "B0.1", "F2.1"),
        *("B1", "B0", "B2.1", "B2"),
    )
    assert operations(replace(PAPER, order=ordered(PAPER)), 1)[2] == Op("backward", 1)
    assert Op("weight", 3, 2).code == "W3.2"


def test_a_chunk_is_held_until_its_weights_are_done() -> None:
    assert [peak_live_chunks(_scheduled("zero_bubble"), stage) for stage in (0, 1)] == [3, 3]
    assert [peak_live_chunks(_scheduled("1f1b"), stage) for stage in (0, 1)] == [3, 2]
    assert [peak_live_chunks(_scheduled("gpipe"), stage) for stage in (0, 1)] == [3, 3]


GOOD = "F0 F1 F2 B1 B0 B2"


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([GOOD], "pipeline 0: orders of 1 stages; allowed: one for each of 2 stages, or none"),
        ([GOOD, "F1 F0 F2 B1 B0 B2"], "stage 1, chunk 1: F1 before F0; .*left to right"),
        ([GOOD, "F0 F1 B0 F2 B1 B2"], "stage 1, chunk 0: B0 before B1; .*right to left"),
        ([GOOD, "F0 F1 B1 B2 F2 B0"], "stage 1, chunk 2: B2 before F2; allowed: a forward pass"),
        ([GOOD, "F0 F1 B1 B0"], "stage 1: chunk 2 is dropped, no F2; allowed: every pass of every"),
        (["F0 F1 F2 B1 B0", GOOD], "stage 0: chunk 2 is dropped, no B2"),
        ([GOOD, GOOD + " B2"], "stage 1: B2 appears twice; allowed: exactly once"),
        ([GOOD, "F0 F1 X2"], "stage 1: got 'X2'; allowed: F, B or W and a chunk"),
        ([GOOD, "F0 F-1"], "stage 1: got 'F-1'"),
        ([GOOD, "F0 F1."], "stage 1: got 'F1.'"),
        ([GOOD, "F0 F1 F\N{ARABIC-INDIC DIGIT TWO}"], "stage 1: got 'F.'; allowed: F, B or W"),
        ([GOOD, "F0 F" + "9" * 5000], r"stage 1: got 'F9{39}\.\.\.'; allowed: F, B or W"),
        ([GOOD, "F0 F3"], "stage 1: F3 of chunk 3; allowed: 0 to 2"),
        ([GOOD, "F0 F1.1"], "stage 1: F1.1 of virtual stage 1; allowed: 0 to 0"),
        ([GOOD, GOOD + " W0 W1 W2"], "stage 0: chunk 0 is dropped, no W0"),
        (
            [GOOD + " W0 W1 W2", "F0 F1 F2 B1 W0 B0 B2 W1 W2"],
            "stage 1, chunk 0: W0 before B0; allowed: the weights' part after backward",
        ),
        (
            ["F0 F1 B1 B0 F2 B2", "F0 F1 F2 B1 B0 B2"],
            "stage 0: B1 waits for itself by way of other stages",
        ),
    ],
)
def test_a_broken_order_is_refused_when_it_is_read(
    orders: list[str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, _plan(PAPER))
    data = read_json(path)
    data["digest"] = None
    data["batches"][0]["pipelines"][0]["order"] = [order.split() for order in orders]
    write_json(path, data)
    with pytest.raises(PlanError, match=message) as raised:
        read_plan(path)
    assert str(raised.value).startswith(f"{path}: batch 0, pipeline 0")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (
            replace(PAPER, virtual_stages=2),
            "pipeline 0: virtual_stages 2 with schedule 1f1b; allowed: 1, or schedule interleaved",
        ),
        (
            replace(PAPER, chunks=(*CHUNKS[:2], chunk((8, 0, 5, 5), checkpoint_layers=(3, 4)))),
            "chunk 2: 4 checkpointed layers of stage 1; allowed: at most 3, the layers that it has",
        ),
        (
            Pipeline(8, 0, CHUNKS),
            "pipeline 0: 8 pipeline stages for 7 layers; allowed: at most one stage per layer",
        ),
        (
            replace(PAPER, chunks=(replace(CHUNKS[2], predicted_weight_ms=9.0),)),
            "chunk 0: predicted_weight_ms 9.0; allowed: at most 2.0, predicted_backward_ms",
        ),
        (
            replace(
                PAPER,
                schedule="interleaved",
                virtual_stages=2,
                chunks=(chunk((8, 0, 5, 5), checkpoint_layers=(1, 1)),),
            ),
            "chunk 0: 2 checkpoint counts; allowed: none or one for each of 4 stages",
        ),
    ],
)
def test_schedules_that_the_model_does_not_allow(pipeline: Pipeline, message: str) -> None:
    plan = replace(_plan(pipeline, model={"layers": 7}), devices=8)
    with pytest.raises(PlanError, match=f"batch 0, pipeline 0.*{message}|batch 0, {message}"):
        validate_plan(plan)


def test_virtual_stages_are_the_same_in_a_batch() -> None:
    plan = pipeline_plan(2, [_scheduled("interleaved"), Pipeline(2, 0, (chunk((1, 0, 5, 5)),))])
    with pytest.raises(PlanError, match=r"batch 0: pipelines with \[1, 2\] virtual stages"):
        validate_plan(plan)


def test_an_order_that_holds_more_than_ranks_do_is_named() -> None:
    plan = replace(_plan(PAPER), tokens_per_device=10)  # of the whole model: 20 of half of it
    with pytest.raises(PlanError, match="chunk 2: stage 0 then holds 30 tokens; allowed: at most"):
        validate_plan(plan)
    one_by_one = ("F0", "F1", "B1", "B0", "F2", "B2")
    saving = replace(PAPER, order=(one_by_one, one_by_one))
    validate_plan(replace(_plan(saving), tokens_per_device=10))


@given(data=st.data(), counts=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_a_swap_of_two_passes_runs_or_is_refused(data: st.DataObject, counts: list[int]) -> None:
    """What the check lets through, the simulation finishes with everything in order."""
    chunks = tuple(
        chunk((sequence, 5 * part, 5 * part + 5, 5 * count))
        for sequence, count in enumerate(counts)
        for part in range(count)
    )
    pipeline = Pipeline(2, 0, chunks)
    orders = [list(order) for order in ordered(pipeline)]
    order = data.draw(st.sampled_from(orders))
    one, other = (data.draw(st.integers(0, len(order) - 1)) for _ in range(2))
    order[one], order[other] = order[other], order[one]
    changed = replace(pipeline, order=tuple(map(tuple, orders)))
    try:
        validate_plan(_plan(changed))
    except PlanError:
        return
    ends = {(row.stage, row.kind, row.chunk): row.end_ms for row in simulate_pipeline(changed)}
    assert len(ends) == 4 * len(chunks)
    for number in range(len(chunks)):
        assert ends[0, "forward", number] < ends[1, "forward", number]
        assert ends[1, "backward", number] < ends[0, "backward", number]
