"""Tokens, positions and labels of slices, and what is said about a corpus that does not
fit the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from railx.planning.format.parts import Pipeline, Slice
from tests.builders import write_corpus, write_stage_table
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from training.data import pack, plan_lengths, read_sequences, uncut_slices, valid_tokens
from training.model import IGNORED_LABEL

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
