"""WLB-LLM's packing, its shards and its queue of outliers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.batches import delayed
from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.rivals.context_parallel import (
    WLB,
    WLBSettings,
    packed_by_work,
    plan_wlb_batch,
    shard_imbalance,
)
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.planning.golden_outputs import WLB_BREAKPOINT, golden
from tests.planning.rules import check_batch, planned_of, task_of


def _works(lengths: list[int], cost: CostModel) -> list[float]:
    return [float(one) for one in cost.sequence_ms(np.array(lengths))]


@pytest.mark.parametrize("case", golden("wlb"))
def test_packing_is_that_of_the_re_implementation(case: dict[str, Any]) -> None:
    """Where that goes beyond memory, here it fits nowhere."""
    lengths, most = case["lengths"], case["most_tokens"]
    shares = [length / WLB_BREAKPOINT for length in lengths]
    works = [share**2 + share for share in shares]
    made = packed_by_work(np.array(lengths), works, case["bins"], most)
    if any(sum(packed) > most for packed in case["packed"]):
        assert made is None
    else:
        assert made is not None
        assert [[lengths[position] for position in one] for one in made] == case["packed"]


def test_packing_by_hand(small: CostModel) -> None:
    """Works 37.5, 20, 14.4, 5.6, 2.4: 80 joins 100, 40 has no room there."""
    lengths = [150, 100, 80, 40, 20]
    assert packed_by_work(np.array(lengths), _works(lengths, small), 2, 200) == [[0, 3], [1, 2, 4]]


def test_what_the_emptiest_bin_does_not_hold_fits_nowhere(small: CostModel) -> None:
    lengths = [150, 100, 80, 40, 30]
    assert packed_by_work(np.array(lengths), _works(lengths, small), 2, 200) is None
    works = [1.0, 9.0, 5.0, 1.0]
    assert packed_by_work(np.array([90, 60, 50, 9]), works, 3, 100) == [[0, 3], [1], [2]]
    # 45: bin 0 has the least work and no room, bin 2 the fewest tokens.
    made = packed_by_work(np.array([80, 79, 55, 45]), [1.0, 2.0, 3.0, 4.0], 3, 100)
    assert made == [[0], [1], [2, 3]]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 5))
def test_bins_are_missing_only_where_one_sequence_fits_none(lengths: list[int], bins: int) -> None:
    """Refused is what leaves no bin room for the next one, longest first."""
    works = [float(length) ** 2 for length in lengths]
    made = packed_by_work(np.array(lengths), works, bins, 100)
    if made is None:
        assert sum(lengths) > bins * (100 - max(lengths) + 1) - max(lengths)
        assert len(lengths) > bins
    else:
        assert sorted(p for one in made for p in one) == list(range(len(lengths)))
        assert all(sum(lengths[p] for p in one) <= 100 for one in made)


def test_like_work_runs_side_by_side_whichever_bin_was_opened_first(small: CostModel) -> None:
    """Two of the 60s get a 40 and with it more work than the 70 alone."""
    batch = SampledBatch(np.arange(6), np.array([70, 60, 60, 60, 40, 40]))
    made = plan_wlb_batch(0, batch, 1, 2, small)
    assert [[g.sequences for g in one.groups] for one in made.micro_batches] == [
        [(1, 4), (2, 5)],
        [(0,), (3,)],
    ]


def test_the_other_cut_costs_attention_alone(small: CostModel) -> None:
    """12 and 4 cut as one: 128 of 80 pairs, on half of the attention each."""
    made = plan_wlb_batch(0, SampledBatch(np.arange(2), np.array([12, 4])), 2, 2, small)
    more = (128 / 80 - 1) * 1e-3 * (12**2 + 4**2) / 2
    assert made.solver["per_sequence_ms"] == pytest.approx(made.predicted_ms + more)


def test_a_plan_by_hand(small: CostModel) -> None:
    """One micro-batch leaves 30 over, so there are two; like work runs side by side."""
    batch = SampledBatch(np.arange(5), np.array([150, 100, 80, 40, 30]))
    made = plan_wlb_batch(0, batch, 2, 4, small)
    assert [[g.lengths for g in one.groups] for one in made.micro_batches] == [
        [(150,), (100,)],
        [(80,), (40, 30)],
    ]
    assert made.predicted_ms == pytest.approx(
        37.5 / 2 + 3 + 150 * 0.05 + max(14.4 / 2 + 80 * 0.05, 9.5 / 2 + 70 * 0.05) + 3
    )


def test_documents_cut_as_one_sequence_give_ranks_unequal_attention() -> None:
    assert shard_imbalance([16], 2) == pytest.approx(1)
    assert shard_imbalance([8, 8], 2) == pytest.approx(1)
    # Chunks of four: 16, 48, 80 and 16 pairs; rank 0 has the outer ones, rank 1 128.
    assert shard_imbalance([12, 4], 2) == pytest.approx(128 / 80)
    assert shard_imbalance([5, 7, 4], 1) == pytest.approx(1)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.sampled_from([1, 2, 4, 8]))
def test_shards_are_those_of_a_count_by_token(lengths: list[int], degree: int) -> None:
    scale = 2 * degree
    pairs = np.concatenate([np.arange(length * scale) * 2 + 1 for length in lengths]).astype(float)
    chunks = pairs.reshape(scale, -1).sum(axis=1)
    own = [chunks[rank] + chunks[scale - 1 - rank] for rank in range(degree)]
    expected = max(own) / (sum(own) / degree)
    assert shard_imbalance([length * scale for length in lengths], degree) == pytest.approx(
        expected
    )


def _batch(start: int, *lengths: int) -> SampledBatch:
    return SampledBatch(np.arange(start, start + len(lengths)), np.array(lengths))


def test_outliers_wait_until_there_is_one_for_each() -> None:
    made = delayed([_batch(0, 5, 90, 6), _batch(10, 80, 7, 95), _batch(20, 8, 99)], 50, 2)
    assert [one.sequences.tolist() for one in made] == [[0, 2], [11, 1, 10], [20, 12, 21]]
    assert [one.lengths.tolist() for one in made] == [[5, 6], [7, 90, 80], [8, 95, 99]]


@given(
    st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=6), min_size=1, max_size=6),
    st.integers(0, 100),
    st.integers(1, 4),
)
def test_delay_loses_nothing(batches: list[list[int]], outlier: int, at_once: int) -> None:
    drawn = [_batch(100 * index, *lengths) for index, lengths in enumerate(batches)]
    made = delayed(drawn, outlier, at_once)
    assert len(made) == len(drawn)
    before, after = (
        sorted(
            zip(
                np.concatenate([b.sequences for b in some]).tolist(),
                np.concatenate([b.lengths for b in some]).tolist(),
                strict=True,
            )
        )
        for some in (drawn, made)
    )
    assert before == after


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=40),
    st.sampled_from([2, 4]),
)
def test_plans_hold_every_sequence_once_within_memory(
    small: CostModel, lengths: list[int], degree: int
) -> None:
    made = planned_of(plan_wlb_batch, lengths, degree, 4, small)
    check_batch(made, lengths, 4, small)
    assert {group.degree for one in made.micro_batches for group in one.groups} == {degree}
    assert made.solver["per_sequence_ms"] >= made.predicted_ms * (1 - 1e-9)


def test_the_longest_context_decides_the_degree(small: CostModel) -> None:
    settings = checked("planner", "wlb")
    assert settings == WLBSettings("wlb", None)
    [made] = WLB.plan(settings, task_of([150, 20], 4, small))
    assert made.solver["degree"] == 2
    with pytest.raises(PlanError, match=r"planner\.degree: got 8; allowed: 1, 2, 4"):
        WLB.plan(WLBSettings("wlb", 8), task_of([150, 20], 4, small))
    with pytest.raises(PlanError, match=r"batch\.max_length_tokens: got 500; allowed: at most 400"):
        WLB.plan(settings, task_of([500], 4, small))
    with pytest.raises(PlanError, match=r"sequence 10: 150 tokens; allowed: at most 100"):
        WLB.plan(WLBSettings("wlb", 1), task_of([150, 20], 4, small))
