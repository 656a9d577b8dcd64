"""FlexSP's dynamic programmes against exhaustive search, and how far buckets overstate
the tokens of a batch.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.blaster import bucket_lengths, cut_batch, rounding_rows
from tests.builders import drawn_batch

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=7)


def _rounding_error_tokens(lengths: Any, buckets: list[Any]) -> int:
    """Tokens that rounding up to the bucket bounds adds."""
    return int(sum(lengths[one].max() * len(one) - lengths[one].sum() for one in buckets))


@given(LENGTHS, st.data())
def test_cuts_have_the_least_largest_run(values: list[int], data: st.DataObject) -> None:
    lengths, count = np.array(values), data.draw(st.integers(1, len(values)))
    runs = cut_batch(lengths, count, "given")
    assert np.concatenate(runs).tolist() == list(range(len(values)))
    assert all(len(run) for run in runs)
    best = min(
        max(sum(values[a:b]) for a, b in itertools.pairwise((0, *cuts, len(values))))
        for cuts in itertools.combinations(range(1, len(values)), count - 1)
    )
    assert max(lengths[run].sum() for run in runs) == best


@given(LENGTHS, st.data())
def test_sorted_cuts_put_like_lengths_together(values: list[int], data: st.DataObject) -> None:
    lengths = np.array(values)
    runs = cut_batch(lengths, data.draw(st.integers(1, len(values))), "sorted")
    flat = lengths[np.concatenate(runs)]
    assert flat.tolist() == sorted(values, reverse=True)


@given(LENGTHS, st.integers(1, 7))
def test_buckets_have_the_least_rounding_error(values: list[int], count: int) -> None:
    lengths = np.array(values)
    buckets = bucket_lengths(lengths, count, 10**9, "least_error")
    assert sorted(np.concatenate(buckets).tolist()) == list(range(len(values)))
    assert len(buckets) <= count
    ordered = sorted(values)
    best = min(
        sum(
            max(ordered[a:b]) * (b - a) - sum(ordered[a:b])
            for a, b in itertools.pairwise((0, *cuts, len(values)))
        )
        for used in range(1, min(count, len(values)) + 1)
        for cuts in itertools.combinations(range(1, len(values)), used - 1)
    )
    assert _rounding_error_tokens(lengths, buckets) == best


@given(LENGTHS)
def test_buckets_increase_until_memory_allows_the_rounded_up_tokens(values: list[int]) -> None:
    lengths = np.array(values)
    allowed = int(lengths.sum()) + 2
    buckets = bucket_lengths(lengths, 1, allowed, "least_error")
    assert _rounding_error_tokens(lengths, buckets) <= 2
    if len(buckets) > 1:
        fewer = bucket_lengths(lengths, len(buckets) - 1, 10**9, "least_error")
        assert _rounding_error_tokens(lengths, fewer) > 2


@given(LENGTHS, st.integers(1, 7))
def test_buckets_of_equal_width_lose_nothing_and_round_worse(values: list[int], count: int) -> None:
    lengths = np.array(values)
    even, least = (
        bucket_lengths(lengths, count, 10**9, method) for method in ("equal_width", "least_error")
    )
    assert sorted(np.concatenate(even).tolist()) == list(range(len(values)))
    assert _rounding_error_tokens(lengths, least) <= _rounding_error_tokens(lengths, even)


def test_long_tails_round_far_better_by_least_error() -> None:
    lengths = np.random.default_rng(0).pareto(1.2, 300).astype(np.int64) * 100 + 50
    even, least = (
        bucket_lengths(lengths, 16, 10**9, method) for method in ("equal_width", "least_error")
    )
    assert _rounding_error_tokens(lengths, least) < 0.2 * _rounding_error_tokens(lengths, even)
    assert [int(lengths[bucket].max()) for bucket in least] == sorted(
        (int(lengths[bucket].max()) for bucket in least), reverse=True
    )
    assert _rounding_error_tokens(lengths, least) / lengths.sum() == pytest.approx(0, abs=0.05)


def test_every_micro_batch_has_a_row_of_each_method(small: CostModel) -> None:
    lengths = [int(value) for value in np.random.default_rng(1).integers(1, 300, 200)]
    batches = [drawn_batch(lengths), drawn_batch([7] * 20)]
    rows = list(rounding_rows(batches, 64, replace(small, tokens_per_device=300)))
    first = [row for row in rows if row["iteration"] == 0]
    number = len(first) // 2
    assert {row["method"] for row in first} == {"least_error", "equal_width"}
    runs = cut_batch(np.array(lengths), number, "sorted")
    for row in first:
        own = np.array(lengths)[runs[row["micro_batch"]]]
        assert (row["sequences"], row["tokens"]) == (len(own), own.sum())
        assert row["buckets"] <= 16
        assert row["rounded_tokens"] >= row["tokens"]
    for least, naive in zip(first[::2], first[1::2], strict=True):
        assert least["rounded_tokens"] < naive["rounded_tokens"]
    alike = [row for row in rows if row["iteration"] == 1]
    assert [row["rounded_tokens"] for row in alike] == pytest.approx([140, 140])
