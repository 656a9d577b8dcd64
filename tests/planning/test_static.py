"""Static plans: choice of degree and packing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.groups import best_fit_decreasing
from railx.planning.sequence.static import (
    StaticSettings,
    best_static,
    plan_static_batch,
    static_assignments,
    static_degree,
    total_ms,
)
from railx.settings import SettingsError
from railx.workload.batches import SampledBatch
from tests.builders import checked


def _settings(choice: Any, degree: int | None = None) -> StaticSettings:
    return StaticSettings("static", choice, degree, 0.9)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_bins_hold_everything_once_within_capacity(lengths: list[int]) -> None:
    bins = best_fit_decreasing(lengths, 100)
    assert sorted(position for members in bins for position in members) == list(range(len(lengths)))
    sums = [sum(lengths[position] for position in members) for members in bins]
    assert max(sums) <= 100
    assert (
        all(
            first + second > 100
            for index, first in enumerate(sums)
            for second in sums[index + 1 :]
            if len(bins) > 1
        )
        or len(bins) <= 2 * sum(lengths) / 100 + 1
    )


def test_best_fit_takes_the_fullest_bin_that_has_room() -> None:
    assert best_fit_decreasing([60, 50, 45, 40], 100) == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("limit", "degree"),
    [(6449, 1), (6450, 2), (32_000, 8), (100_000, 16), (192_000, 32), (207_000, 64)],
)
def test_the_longest_context_decides_the_degree(large: CostModel, limit: int, degree: int) -> None:
    assert static_degree(_settings("longest_context"), large, limit) == degree


def test_degrees_that_do_not_exist_are_named(large: CostModel) -> None:
    with pytest.raises(
        PlanError,
        match=(
            r"batch\.max_length_tokens: got 500000; allowed: at most 412736, what degree 64 holds"
        ),
    ):
        static_degree(_settings("longest_context"), large, 500_000)
    with pytest.raises(
        PlanError, match=r"planner\.degree: got 128; allowed: 1, 2, 4, 8, 16, 32, 64"
    ):
        static_degree(_settings("fixed", 128), large, 1000)
    assert static_degree(_settings("per_batch"), large, 1000) is None


def test_a_degree_goes_with_the_fixed_choice_alone() -> None:
    with pytest.raises(SettingsError, match=r"^degree: got None; allowed: a power of two"):
        _settings("fixed")
    with pytest.raises(SettingsError, match=r"^degree: got 4; allowed: null"):
        _settings("per_batch", 4)


def test_micro_batches_by_hand(small: CostModel) -> None:
    lengths = np.array([90, 90, 90, 20, 20, 20])
    made = static_assignments(lengths, 1, 4, small, 0.9)
    assert [assignment.groups for assignment in made] == [((0,), (1,), (2,), (3, 4, 5))]
    two = static_assignments(lengths, 2, 4, small, 0.9)
    assert [[sorted(group) for group in assignment.groups] for assignment in two] == [
        [[0, 2], [1, 3, 4, 5]]
    ]


def test_bins_are_as_large_as_the_longest_sequence(small: CostModel) -> None:
    made = static_assignments(np.array([100, 60, 40]), 1, 1, small, 0.9)
    assert [assignment.groups for assignment in made] == [((0,),), ((1, 2),)]


def test_the_last_micro_batch_is_levelled(small: CostModel) -> None:
    lengths = np.array([80, 80, 80, 80, 30, 30])
    made = static_assignments(lengths, 1, 4, small, 0.9)
    assert [sorted(assignment.groups) for assignment in made] == [
        [(0,), (1,), (2,), (3,)],
        [(4,), (5,)],
    ]


def test_what_levelling_would_overfill_stays_as_it_was_packed(small: CostModel) -> None:
    """By tokens alone 50 + 30 + 30 would meet in a group that holds 100."""
    (made,) = static_assignments(np.array([50, 50, 40, 30, 30]), 1, 2, small, 1.0)
    assert made.groups == ((0, 1), (2, 3, 4))


def test_the_best_degree_of_a_batch_is_at_least_as_good_as_any(large: CostModel) -> None:
    lengths = np.random.default_rng(1).integers(100, 40_000, 40)
    degree, made = best_static(lengths, 64, large, 0.9)
    others = [
        total_ms(static_assignments(lengths, other, 64, large, 0.9), lengths, large)
        for other in (8, 16, 32, 64)
    ]
    assert degree == 8
    assert total_ms(made, lengths, large) == min(others)


def test_the_best_degree_may_be_a_large_one_or_a_small_one(small: CostModel) -> None:
    assert best_static(np.array([90]), 4, small, 0.9)[0] == 4
    tens = np.array([10] * 4)
    assert best_static(tens, 4, small, 0.9)[0] == 1


def test_a_sequence_over_the_degree_is_named(small: CostModel) -> None:
    drawn = SampledBatch(np.array([9, 4]), np.array([10, 150]))
    with pytest.raises(
        PlanError,
        match=(
            r"^sequence 4: 150 tokens; allowed: at most 100, the longest that a group of degree 1"
            r" holds"
        ),
    ):
        plan_static_batch(0, drawn, 1, 4, small, 0.9)


def test_configs_are_checked() -> None:
    assert checked("planner", "static").choice == "longest_context"
    with pytest.raises(SettingsError, match=r"^planner\.fill: got 1\.5"):
        checked("planner", "static", fill=1.5)
    with pytest.raises(SettingsError, match=r"^planner\.planner: got 'best'; allowed: "):
        checked("planner", "static", planner="best")


def _settings_as_published(choice: Any) -> StaticSettings:
    return StaticSettings("static", choice, None, 0.9, "published")


def test_the_published_degree_is_32_up_to_192_000_tokens(large: CostModel) -> None:
    chosen = [
        static_degree(_settings_as_published("published"), large, limit)
        for limit in (1_000, 192_000, 192_001, 400_000)
    ]
    assert chosen == [32, 32, 64, 64]
    with pytest.raises(PlanError, match=r"got 500000; allowed: at most 412736, what degree 64"):
        static_degree(_settings_as_published("published"), large, 500_000)


def test_the_published_degree_ends_at_the_devices(small: CostModel) -> None:
    assert static_degree(_settings_as_published("published"), small, 50) == 4


def test_published_levelling_fills_empty_groups_with_one_sequence_each(small: CostModel) -> None:
    lengths = np.array([20, 80, 80, 80, 80, 30, 30])
    made = static_assignments(lengths, 1, 4, small, 0.9, "published")
    assert [assignment.groups for assignment in made] == [
        ((1,), (2,), (3,), (4,)),
        ((6,), (0,), (5,)),
    ]
    assert [sorted(a.groups) for a in static_assignments(lengths, 1, 4, small, 0.9)] == [
        [(1,), (2,), (3,), (4,)],
        [(0,), (5,), (6,)],
    ]


def test_published_levelling_takes_from_earlier_micro_batches_where_it_must(
    small: CostModel,
) -> None:
    lengths = np.array([70, 20, 85, 85, 80, 65])
    made = static_assignments(lengths, 1, 4, small, 0.9, "published")
    assert [assignment.groups for assignment in made] == [
        ((2,), (3,), (4,), (1,)),
        ((5,), (0,)),
    ]


def test_published_levelling_moves_sequences_from_degree_16_on(large: CostModel) -> None:
    """Four bins side by side, one of them empty: it takes one sequence, and then takes
    more from those above the mean, in the order of the batch.
    """
    cap = int(0.9 * 16 * large.tokens_per_device)
    lengths = np.array([cap // 4] * 12)
    made = static_assignments(lengths, 16, 64, large, 0.9, "published")
    assert [sorted(group) for group in made[0].groups] == [
        [1, 2, 3],
        [5, 6, 7],
        [9, 10, 11],
        [0, 4, 8],
    ]
    # Where every group has a bin nothing moves, however uneven they are.
    uneven = np.array([cap // 2] * 6 + [10])
    made = static_assignments(uneven, 16, 64, large, 0.9, "published")
    assert [sorted(group) for group in made[0].groups] == [[0, 1], [2, 3], [4, 5], [6]]
    eight = static_assignments(lengths // 2, 8, 32, large, 0.9, "published")
    assert [len(group) for group in eight[0].groups] == [4, 4, 3, 1]


def test_published_levelling_stops_at_the_mean_and_at_a_bin(large: CostModel) -> None:
    """Three groups of degree 16 and two bins of 16 units: the mean is 10 2/3."""
    unit = int(0.9 * 16 * large.tokens_per_device) // 16
    [made] = static_assignments(np.array([unit] * 32), 16, 48, large, 0.9, "published")
    assert [len(group) for group in made.groups] == [10, 11, 11]
    # 10 does not fit beside 7, so 6 goes there, and on to the 9.
    uneven = unit * np.array([10, 6, 9, 7])
    [made] = static_assignments(uneven, 16, 48, large, 0.9, "published")
    assert made.groups == ((0,), (3,), (2, 1))


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=40),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["published", "full"]),
)
def test_every_sequence_is_planned_once_within_memory(
    small: CostModel, lengths: list[int], degree: int, levelling: Any
) -> None:
    tokens = np.array(lengths)
    made = static_assignments(tokens, degree, 4, small, 0.9, levelling)
    planned = [p for assignment in made for group in assignment.groups for p in group]
    assert sorted(planned) == list(range(len(lengths)))
    for assignment in made:
        assert sum(assignment.degrees) <= 4
        assert all(tokens[list(group)].sum() <= 100 * degree for group in assignment.groups)


def test_published_levelling_leaves_a_group_its_only_sequence(
    tight: Callable[[int], CostModel],
) -> None:
    """90 tokens would fit into the other group, and leave one without any."""
    (made,) = static_assignments(np.array([10, 80]), 16, 32, tight(7), 1.0, "published")
    assert made.groups == ((1,), (0,))
