"""Global batches: no sequence twice, truncation and dropping, determinism."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.workload.batches import FilledBatchSettings, sample_batches


@given(
    st.lists(st.integers(1, 100), min_size=4, max_size=40),
    st.integers(1, 4),
    st.integers(1, 30),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_truncated_batches(
    lengths: list[int], size: int, batches: int, limit: int, seed: int
) -> None:
    drawn = sample_batches(lengths, FilledBatchSettings(size, batches, limit, "truncate"), seed)
    assert len(drawn) == batches
    for batch in drawn:
        assert len(set(batch.sequences.tolist())) == size
        assert batch.lengths.tolist() == [min(lengths[row], limit) for row in batch.sequences]


def test_overlong_sequences_are_dropped() -> None:
    drawn = sample_batches([5, 50, 6, 70, 7], FilledBatchSettings(3, 4, 10, "drop"), 0)
    assert all(sorted(batch.sequences.tolist()) == [0, 2, 4] for batch in drawn)


def test_a_corpus_is_used_up_before_it_repeats() -> None:
    drawn = sample_batches(np.arange(1, 11), FilledBatchSettings(3, 3, 100, "drop"), 7)
    assert len({int(row) for batch in drawn for row in batch.sequences}) == 9


def test_seeds_decide() -> None:
    settings, lengths = FilledBatchSettings(8, 2, 100, "truncate"), np.arange(1, 200)
    first, again, other = (
        sample_batches(lengths, settings, seed)[1].sequences.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_too_few_sequences_say_how_many_there_are() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"^batch.batch_size: got 4; allowed: at most 2, the sequences of at most 10 tokens in"
            r" the corpus"
        ),
    ):
        sample_batches([5, 6, 700], FilledBatchSettings(4, 1, 10, "drop"), 0)
    with pytest.raises(ValueError, match=r"^batch.max_length_tokens: got 4; allowed: at least 5,"):
        sample_batches([5, 6, 700], FilledBatchSettings(1, 1, 4, "drop"), 0)
