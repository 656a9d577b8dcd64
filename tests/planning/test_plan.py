"""The plan file: round trip, every rule, and what reading it needs."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json, write_json
from railx.planning.format.files import read_plan, validate_plan, write_plan
from railx.planning.format.parts import Chunk, Group, MicroBatch, Pipeline, PlanError, Slice
from railx.planning.format.plan import (
    SCHEMA,
    PipelineBatch,
    Plan,
    SequenceParallelBatch,
    check_ranks,
    sequence_lengths,
)
from tests.commands import loaded
from tests.plans import chunk, made_for_itself, pipeline_plan


def _group(ranks: tuple[int, ...], sequences: tuple[int, ...]) -> Group:
    return Group(ranks, sequences, tuple(10 + sequence for sequence in sequences), 5.0, 4.0, 1.0)


def _sequence_parallel(*micro_batches: tuple[Group, ...]) -> Plan:
    batch = SequenceParallelBatch(
        3, tuple(MicroBatch(groups, 5.0) for groups in micro_batches), {"note": "by hand"}
    )
    return made_for_itself(
        Plan(SCHEMA, "sequence_parallel", "static", 4, {"seed": 1}, (batch,), 64)
    )


def _pipeline(*chunks: tuple[Slice, ...], replica: int = 0, devices: int = 4) -> Plan:
    pipeline = Pipeline(2, replica, tuple(Chunk(slices, 1.0, 2.0) for slices in chunks))
    return made_for_itself(
        Plan(SCHEMA, "pipeline", "pipeline", devices, {}, (PipelineBatch(0, (pipeline,)),), 64)
    )


SEQUENCE_PARALLEL = _sequence_parallel(
    (_group((0, 1), (0, 1)), _group((2,), (2,))), (_group((0, 1, 2, 3), (3,)),)
)
PIPELINE = _pipeline(
    (Slice(7, 0, 64, 100),),
    (Slice(7, 64, 100, 100), Slice(1, 0, 9, 9)),
    (Slice(2, 0, 5, 5), Slice(3, 0, 4, 4)),
)


@pytest.mark.parametrize(
    "plan", [SEQUENCE_PARALLEL, PIPELINE], ids=["sequence_parallel", "pipeline"]
)
def test_a_plan_reads_back_as_it_was_written(tmp_path: Path, plan: Plan) -> None:
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    assert read_json(tmp_path / "plan.json")["schema"] == "railx.plan/3"


def test_kinds_of_chunks() -> None:
    chunks = PIPELINE.pipeline_batches()[0].pipelines[0].chunks
    assert [chunk.kind for chunk in chunks] == ["split", "hybrid", "batched"]
    assert [chunk.cut_sequence for chunk in chunks] == [7, 7, None]
    assert [chunk.tokens for chunk in chunks] == [64, 45, 9]


def test_totals() -> None:
    batch = SEQUENCE_PARALLEL.sequence_parallel_batches()[0]
    assert batch.predicted_ms == 10.0
    assert batch.tokens == 10 + 11 + 12 + 13
    assert [group.degree for group in batch.micro_batches[0].groups] == [2, 1]


def test_the_wrong_kind_is_named() -> None:
    with pytest.raises(PlanError, match="kind pipeline; allowed here: sequence_parallel"):
        PIPELINE.sequence_parallel_batches()
    with pytest.raises(PlanError, match="kind sequence_parallel; allowed here: pipeline"):
        SEQUENCE_PARALLEL.pipeline_batches()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            (_group((0, 2), (0,)),),
            r"batch 3, micro-batch 0, group 0: ranks \[0, 2\]; allowed: consecutive ranks",
        ),
        (
            (_group((1, 2), (0,)),),
            r"batch 3, micro-batch 0, group 0: ranks \[1, 2\]; .*multiple of 2",
        ),
        (
            (_group((0, 2, 3), (0,)),),
            r"group 0: ranks \[0, 2, 3\]; allowed: consecutive ranks, at least one",
        ),
        ((_group((), (0,)),), r"group 0: ranks \[\]; allowed: consecutive ranks, at least one"),
        ((_group((4, 5), (0,)),), r"group 0: rank 5; allowed: 0 to 3"),
        ((_group((2, 3, 4), (0,)),), r"group 0: rank 4; allowed: 0 to 3"),
        (
            (_group((0, 1, 2), (0,)), _group((3,), (1,)), _group((4,), (2,))),
            r"batch 3, micro-batch 0: 3 groups of 5 ranks in all; allowed: at most 4, the devices",
        ),
        ((_group((0,), (0,)), _group((0,), (1,))), r"batch 3, micro-batch 0: rank 0 appears twice"),
        (
            (_group((0,), (0,)), _group((1,), (0,))),
            r"batch 3: sequence 0 appears twice; allowed: exactly once",
        ),
        ((_group((0,), ()),), r"group 0: 0 sequences and 0 lengths"),
        ((Group((0,), (5,), (0,), 1.0),), r"group 0, sequence 5: length 0; allowed: at least 1"),
    ],
)
def test_broken_groups_are_named(groups: tuple[Group, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        validate_plan(_sequence_parallel(groups))


def test_a_sequence_in_two_micro_batches_is_named() -> None:
    with pytest.raises(PlanError, match="batch 3: sequence 4 appears twice"):
        validate_plan(_sequence_parallel((_group((0,), (4,)),), (_group((1,), (4,)),)))


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (
            [(Slice(7, 0, 5, 9),)],
            r"batch 0, pipeline 0, chunk 0, sequence 7: slices end at 5; allowed: 9",
        ),
        (
            [(Slice(7, 0, 5, 9),), (Slice(7, 6, 9, 9),)],
            r"chunk 1, sequence 7: slice starts at 6; allowed: 5",
        ),
        ([(Slice(7, 4, 9, 9),)], r"chunk 0, sequence 7: slice starts at 4; allowed: 0"),
        (
            [(Slice(7, 0, 5, 9),), (Slice(1, 0, 2, 2),), (Slice(7, 5, 9, 9),)],
            r"chunk 2, sequence 7: previous slice is in chunk 0",
        ),
        ([(Slice(7, 0, 5, 9),), (Slice(7, 5, 8, 8),)], r"chunk 1, sequence 7: length 8 after 9"),
        (
            [(Slice(7, 0, 5, 9), Slice(1, 0, 2, 2))],
            r"chunk 0, sequence 7: a slice before the tail beside other slices",
        ),
        (
            [(Slice(7, 5, 9, 9), Slice(8, 5, 9, 9))],
            r"chunk 0: sequences \[7, 8\] have context; allowed: at most one",
        ),
        ([(Slice(7, 3, 3, 9),)], r"chunk 0, sequence 7: slice 3 to 3 of 9 tokens"),
        (
            [(Slice(7, 0, 9, 9),), (Slice(7, 0, 9, 9),)],
            r"chunk 1, sequence 7: slice starts at 0; allowed: 9",
        ),
        ([()], r"pipeline 0, chunk 0: no slices"),
        ([], r"pipeline 0: no chunks"),
    ],
)
def test_broken_chunks_are_named(chunks: list[tuple[Slice, ...]], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        validate_plan(_pipeline(*chunks))


def test_pipelines_of_a_batch_share_sequences_and_ranks_rightly() -> None:
    whole = (Slice(0, 0, 4, 4),)
    with pytest.raises(PlanError, match="pipeline 0: rank 5; allowed: 0 to 3"):
        validate_plan(_pipeline(whole, replica=2))
    first, second = _pipeline(whole).pipeline_batches()[0].pipelines * 2
    twice = replace(PIPELINE, batches=(PipelineBatch(0, (first, replace(second, replica=1))),))
    with pytest.raises(PlanError, match="batch 0: sequence 0 appears twice"):
        validate_plan(twice)
    mixed = replace(PIPELINE, batches=(PipelineBatch(0, (first, replace(second, stages=1))),))
    with pytest.raises(PlanError, match=r"batch 0: pipelines with \[1, 2\] stages"):
        validate_plan(mixed)
    counts = replace(first.chunks[0], checkpoint_layers=(1, 1, 1))
    with pytest.raises(
        PlanError, match="chunk 0: 3 checkpoint counts; allowed: none or one for each of 2 stages"
    ):
        validate_plan(
            replace(PIPELINE, batches=(PipelineBatch(0, (replace(first, chunks=(counts,)),)),))
        )


def test_stages_of_several_ranks_take_ranks_in_order() -> None:
    chunks = (chunk((0, 0, 4, 4)),)
    both = [Pipeline(2, replica, (chunk((replica, 0, 4, 4)),), 2) for replica in (0, 1)]
    validate_plan(pipeline_plan(8, both))
    assert both[1].ranks == (4, 5, 6, 7)
    with pytest.raises(PlanError, match="pipeline 1: rank 7; allowed: 0 to 5"):
        validate_plan(pipeline_plan(6, both))
    with pytest.raises(PlanError, match=r"batch 0: pipelines with \[1, 2\] ranks a stage"):
        validate_plan(pipeline_plan(8, [both[0], replace(both[1], degree=1)]))
    with pytest.raises(PlanError, match="pipeline 0: 3 ranks a stage; allowed: a power of two"):
        validate_plan(pipeline_plan(8, [Pipeline(2, 0, chunks, 3)]))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (Pipeline(4, 0, (chunk((0, 0, 4, 4)),), 2), r"\[2, 4\] stages"),
        (Pipeline(2, 0, (chunk((0, 0, 4, 4)),), 4), r"\[2, 4\] ranks a stage"),
    ],
)
def test_all_batches_have_one_shape(other: Pipeline, what: str) -> None:
    """Else a rank would have other layers in each, and a plan no one cost."""
    first = Pipeline(2, 0, (chunk((0, 0, 4, 4)),), 2)
    validate_plan(pipeline_plan(8, [first], [first]))
    with pytest.raises(PlanError, match=f"batch 1: pipelines with {what}; allowed: the same"):
        validate_plan(pipeline_plan(8, [first], [other]))


@pytest.mark.parametrize("plan", [SEQUENCE_PARALLEL, PIPELINE], ids=lambda plan: str(plan.kind))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda held: {**held, 9: 5},
            "sequence 9 is dropped (1 in all); allowed: every sequence of the batch",
        ),
        (
            lambda held: {s: n for s, n in held.items() if s != 3},
            "sequence 3; allowed: the sequences of the batch that the plan was made for",
        ),
        (
            lambda held: {**held, 3: held[3] + 1},
            "sequence 3: length {3}; allowed: {more}, its length in the batch",
        ),
        (lambda held: {}, "made for 0 sequences and 0 lengths; allowed: the ids and lengths"),
    ],
    ids=["dropped", "foreign", "changed", "unnamed"],
)
def test_a_plan_for_another_batch_is_named(
    plan: Plan, change: Any, message: str, tmp_path: Path
) -> None:
    held = dict(sequence_lengths(plan.batches[0]))
    other = change(held)
    batch: Any = replace(plan.batches[0], sequences=tuple(other), lengths=tuple(other.values()))
    text = message.replace("{3}", str(held[3])).replace("{more}", str(held[3] + 1))
    with pytest.raises(PlanError) as refused:
        validate_plan(replace(plan, batches=(batch,)))
    assert text in str(refused.value)
    # The same on reading: a file that was changed by hand.
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    data = read_json(path)
    data["batches"][0] |= {"sequences": list(other), "lengths": list(other.values())}
    write_json(path, data)
    with pytest.raises(PlanError) as refused:
        read_plan(path)
    assert str(refused.value).startswith(f"{path}: batch {batch.iteration}")
    assert text in str(refused.value)


def test_a_batch_that_names_a_sequence_twice() -> None:
    batch: Any = replace(PIPELINE.batches[0], sequences=(7, 1, 7), lengths=(100, 9, 100))
    with pytest.raises(PlanError, match="batch 0: made for sequence 7 appears twice"):
        validate_plan(replace(PIPELINE, batches=(batch,)))


def test_overfull_groups_and_stages_are_named() -> None:
    validate_plan(replace(SEQUENCE_PARALLEL, tokens_per_device=12))
    with pytest.raises(PlanError) as refused:
        validate_plan(replace(SEQUENCE_PARALLEL, tokens_per_device=10))
    assert str(refused.value) == (
        "batch 3, micro-batch 0, group 0: 21 tokens; allowed: at most 20, what 2 ranks hold"
    )
    # The first of the two stages holds all three chunks at once, 118 tokens.
    validate_plan(replace(PIPELINE, tokens_per_device=59))
    with pytest.raises(PlanError) as refused:
        validate_plan(replace(PIPELINE, tokens_per_device=58))
    assert str(refused.value) == (
        "batch 0, pipeline 0, chunk 2: stage 0 then holds 118 tokens; allowed: at most 116, what"
        " its 1 ranks hold"
    )
    # What is recomputed is not held.
    pipeline = PIPELINE.pipeline_batches()[0].pipelines[0]
    recomputed = replace(
        pipeline,
        chunks=(replace(pipeline.chunks[0], checkpoint_layers=(1, 1)), *pipeline.chunks[1:]),
    )
    batch = replace(PIPELINE.pipeline_batches()[0], pipelines=(recomputed,))
    validate_plan(replace(PIPELINE, batches=(batch,), tokens_per_device=58))


def test_weights_put_off_and_virtual_stages_count_in_what_is_held() -> None:
    """One stage whose order keeps both chunks for their weights; four parts of two."""
    chunks = (chunk((0, 0, 10, 10)), chunk((1, 0, 10, 10)))
    order = (("F0", "B0", "F1", "B1", "W0", "W1"),)
    late = pipeline_plan(1, [Pipeline(1, 0, chunks, order=order)])
    validate_plan(replace(late, tokens_per_device=20))
    with pytest.raises(PlanError, match=r"stage 0 then holds 20 tokens; allowed: at most 19, what"):
        validate_plan(replace(late, tokens_per_device=19))
    parted = Pipeline(2, 0, chunks, schedule="interleaved", virtual_stages=2)
    plan = pipeline_plan(2, [parted])
    validate_plan(replace(plan, tokens_per_device=10))
    with pytest.raises(PlanError, match=r"stage 0 then holds 40 tokens; allowed: at most 36, what"):
        validate_plan(replace(plan, tokens_per_device=9))


def test_batches_have_the_kind_of_the_plan_and_their_own_iteration() -> None:
    with pytest.raises(PlanError, match="a SequenceParallelBatch in a plan of kind pipeline"):
        validate_plan(replace(SEQUENCE_PARALLEL, kind="pipeline"))
    with pytest.raises(PlanError, match="no batches"):
        validate_plan(replace(SEQUENCE_PARALLEL, batches=()))
    with pytest.raises(PlanError, match="iteration 3 appears twice"):
        validate_plan(
            replace(SEQUENCE_PARALLEL, batches=SEQUENCE_PARALLEL.sequence_parallel_batches() * 2)
        )


def test_more_ranks_than_the_plan_allows() -> None:
    check_ranks(PIPELINE, 4)
    with pytest.raises(PlanError, match=r"^ranks: got 8; allowed: 4"):
        check_ranks(PIPELINE, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other/9"}, r"schema is 'other/9'; allowed: railx\.plan/3"),
        ({"kind": "spiral"}, "kind: got 'spiral'; allowed: sequence_parallel, pipeline"),
        ({"kind": ["pipeline"]}, r"kind: got \['pipeline'\]; allowed: sequence_parallel, pipeline"),
        ({"devices": 0}, "devices: got 0; allowed: at least 1"),
        ({"surprise": 1}, "surprise: unknown key"),
        ({"batches": [{"iteration": 0}]}, r"batches\[0\]\.micro_batches: is missing"),
    ],
)
def test_files_that_are_no_plan_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, SEQUENCE_PARALLEL)
    write_json(path, read_json(path) | change)
    with pytest.raises(PlanError, match=message) as raised:
        read_plan(path)
    assert str(raised.value).startswith(f"{path}: ")
    write_json(path, [1])
    with pytest.raises(PlanError, match="schema is 'list'"):
        read_plan(path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"devices": 4', '"devices": 64, "devices": 4', "key devices stands twice; allowed: once"),
        (
            '"solver": {',
            '"solver": {"a": [1, NaN],',
            r"batches\[0\]\.solver\.a\[1\]: got nan; allo",
        ),
        ('"settings": {', '"settings": {"a": {"b": -Infinity},', r"settings\.a\.b: got -inf; all"),
    ],
)
def test_what_json_leaves_open_is_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, SEQUENCE_PARALLEL)
    assert SEQUENCE_PARALLEL.devices == 4
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: {message}"):
        read_plan(path)


def test_a_broken_plan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        write_plan(tmp_path / "plan.json", _sequence_parallel((_group((0, 2), (0,)),)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "module",
    [
        "railx.planning.format.plan",
        "railx.planning.format.schedule",
        "railx.planning.format.predictions",
        "railx.planning",
        "railx.performance.decoder",
        "railx.workload",
    ],
)
def test_reading_plans_needs_no_solver(module: str) -> None:
    heavy = {"scipy", "pandas", "highspy", "numba", "torch", "networkx", "matplotlib", "yaml"}
    assert loaded(f"import {module}", heavy) == set()
