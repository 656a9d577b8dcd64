"""Tokens, positions and labels of slices, what is said about a corpus that does not fit
the plan, and plans that do not fit: one line that names what is wrong, before anything
starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from railx.io import read_json, write_json
from railx.planning.format.parts import Pipeline, Slice
from railx.planning.format.plan import Plan
from railx.planning.planners import PLANNERS
from railx.settings import SettingsError
from tests.builders import checked, write_corpus, write_stage_table
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.training.test_run import pipeline, prepared, refused, sequence_parallel
from training.data import pack, plan_lengths, read_sequences, uncut_slices, valid_tokens
from training.model import IGNORED_LABEL
from training.settings import _OTHER_PROGRAMS, check_plan

TEXTS: list[bytes | int] = [b"abcdef", b"xy", 9]


def corpus(folder: Path, texts: list[bytes | int], **metadata: Any) -> Path:
    return write_corpus(folder / "corpus.parquet", texts, **metadata)


def test_bytes_are_token_ids_truncated_to_the_plan(tmp_path: Path) -> None:
    sequences = read_sequences(corpus(tmp_path, TEXTS), {0: 4, 1: 2}, 256)
    assert {key: tokens.tolist() for key, tokens in sequences.items()} == {
        0: list(b"abcd"),
        1: list(b"xy"),
    }


def test_a_beginning_of_sequence_token_comes_from_the_metadata(tmp_path: Path) -> None:
    path = corpus(tmp_path, [b"abc"], beginning_of_sequence=256)
    assert read_sequences(path, {0: 3}, 257)[0].tolist() == [256, *b"ab"]
    with pytest.raises(
        ValueError, match=r"token id 256; allowed: below model\.vocabulary, which is 256"
    ):
        read_sequences(path, {0: 3}, 256)


@pytest.mark.parametrize(("width", "ids"), [(2, [300, 65535]), (4, [70000, 5])])
def test_ids_may_be_wider_than_bytes(width: int, ids: list[int], tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    row = {"sequence": 0, "length_tokens": 3, "tokens": np.array(ids, f"<u{width}").tobytes()}
    metadata = {"token_bytes": width, "beginning_of_sequence": 70001}
    write_stage_table(path, "corpus.sequences", [row], metadata)
    assert read_sequences(path, {0: 3}, 70002)[0].tolist() == [70001, *ids]
    # The beginning is an id too.
    with pytest.raises(
        ValueError, match=r"token id 70001; allowed: below model\.vocabulary, which is 70001$"
    ):
        read_sequences(path, {0: 3}, 70001)


@pytest.mark.parametrize(
    ("width", "message"),
    [
        (3, r"token_bytes: got 3; allowed: 1, 2, 4$"),
        (2, r"sequence 0 has 3 bytes of tokens; allowed: a multiple of 2, the token_bytes"),
    ],
)
def test_a_width_that_does_not_fit_is_named(width: int, message: str, tmp_path: Path) -> None:
    path = corpus(tmp_path, [b"abc"], token_bytes=width)
    with pytest.raises(ValueError, match=message):
        read_sequences(path, {0: 1}, 256)


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        (
            {0: 7},
            (
                "sequence 0 has 6 tokens, 6 by its length, and the plan wants 7; allowed: a plan"
                " made for this corpus"
            ),
        ),
        ({0: 2, 5: 1}, r"no sequence 5 \(1 missing\); allowed: a plan made for this corpus"),
        ({2: 3}, "sequence 2 has a length but no text; allowed: a corpus with tokens"),
    ],
)
def test_a_corpus_that_does_not_fit_is_named(
    needed: dict[int, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="corpus.parquet: " + message):
        read_sequences(corpus(tmp_path, TEXTS), needed, 256)


def test_labels_run_across_slices_and_end_with_the_truncated_sequence() -> None:
    sequences = {0: np.arange(10, dtype=np.int64), 1: np.arange(100, 103, dtype=np.int64)}
    packed = pack([Slice(0, 2, 4, 6), Slice(1, 0, 3, 3), Slice(0, 4, 6, 6)], sequences)
    assert packed.tokens.tolist() == [2, 3, 100, 101, 102, 4, 5]
    assert packed.positions.tolist() == [2, 3, 0, 1, 2, 4, 5]
    assert packed.labels.tolist() == [3, 4, 101, 102, IGNORED_LABEL, 5, IGNORED_LABEL]
    part = packed.part(1, 3)
    assert (part.tokens.tolist(), part.labels.tolist()) == ([3, 100], [4, 101])
    assert packed.to(torch.device("cpu")).tokens.equal(packed.tokens)


def test_slices_of_a_sequence_hold_its_tokens_and_labels_once() -> None:
    sequences = {0: np.arange(12, dtype=np.int64)}
    whole = pack(uncut_slices([0], [11]), sequences)
    sliced = pack([Slice(0, 0, 5, 11), Slice(0, 5, 6, 11), Slice(0, 6, 11, 11)], sequences)
    assert sliced.tokens.equal(whole.tokens)
    assert sliced.labels.equal(whole.labels)


def test_needed_lengths_and_valid_tokens_of_both_kinds_of_plan() -> None:
    plan = sequence_parallel_plan(
        1, [micro_batch(((0,), {3: 5, 4: 2}))], [micro_batch(((0,), {3: 8}))]
    )
    assert plan_lengths(plan) == {3: 8, 4: 2}
    assert [valid_tokens(batch) for batch in plan.batches] == [5, 7]
    chunks = (chunk((1, 0, 4, 9)), chunk((1, 4, 9, 9), (2, 0, 1, 1)))
    pipelined = pipeline_plan(2, [Pipeline(2, 0, chunks)])
    assert plan_lengths(pipelined) == {1: 9, 2: 1}
    assert valid_tokens(pipelined.batches[0]) == 8


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
