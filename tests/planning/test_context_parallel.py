"""Rivals with context parallelism: groups of any number of ranks, ByteScale's balanced
hybrid data parallelism and Megatron's dynamic context parallelism, each with plans by
hand.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.rivals.context_parallel import (
    ANY_DEGREE,
    BYTE_SCALE,
    AnyDegreeSettings,
    ByteScaleSettings,
    Unit,
    _longest_that_fits,
    _Open,
    _spread,
    plan_any_degree_batch,
    plan_byte_scale_batch,
    rounds,
    units,
    with_every_degree,
)
from railx.planning.rivals.dynamic_cp import (
    DynamicCPSettings,
    ScheduledGroup,
    _Schedule,
    balanced_schedules,
    plan_dynamic_cp_batch,
)
from railx.settings import SettingsError
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.planning.rules import check_batch, planned_of, task_of

ANY = AnyDegreeSettings("any_degree", 5)


def test_a_degree_between_two_has_the_bandwidth_of_the_larger(large: CostModel) -> None:
    cost = with_every_degree(large, 64)
    assert cost.any_degrees == tuple(range(1, 65))
    assert cost.all_to_all_ms[3] == pytest.approx(2.0 / 3 / 104.07)
    assert cost.all_to_all_ms[9] == pytest.approx(2.0 / 9 / 10.33)
    assert all(cost.all_to_all_ms[one] == large.all_to_all_ms[one] for one in large.degrees)


def test_three_ranks_for_a_sequence_of_three_ranks(small: CostModel) -> None:
    """Where four ranks exchange slowly, 250 has three and 90 the fourth alone."""
    slow = replace(small, all_to_all_ms={**small.all_to_all_ms, 3: 0.16 / 3, 4: 0.2})
    batch = SampledBatch(np.arange(2), np.array([250, 90]))
    made = plan_any_degree_batch(0, batch, ANY, 4, slow)
    assert [{g.lengths: g.degree for g in m.groups} for m in made.micro_batches] == [
        {(250,): 3, (90,): 1}
    ]
    assert made.predicted_ms == pytest.approx((62.5 + 25) / 3 + 3 + 250 * 0.16 / 3)


def test_ranks_that_are_left_over_go_to_the_slowest(small: CostModel) -> None:
    """Each gets by with one rank. The longer one has three: 12.7 ms beside the 12.6 of
    the other alone, where two and two would take 15.
    """
    dear = replace(small, all_to_all_ms={1: 0.0, 2: 0.02, 3: 0.03, 4: 1.0})
    batch = SampledBatch(np.arange(2), np.array([100, 60]))
    made = plan_any_degree_batch(0, batch, ANY, 4, dear)
    [micro_batch] = made.micro_batches
    assert {g.lengths: g.degree for g in micro_batch.groups} == {(100,): 3, (60,): 1}


def test_any_degree_names_a_sequence_over_all_devices(small: CostModel) -> None:
    batch = SampledBatch(np.array([9, 4]), np.array([10, 401]))
    with pytest.raises(PlanError, match=r"^sequence 4: 401 tokens; allowed: at most 400"):
        plan_any_degree_batch(0, batch, ANY, 4, small)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 3))
def test_any_degree_plans_hold_every_sequence_once_within_memory(
    small: CostModel, lengths: list[int], trials: int
) -> None:
    own = AnyDegreeSettings("any_degree", trials)
    check_batch(planned_of(plan_any_degree_batch, lengths, own, 4, small), lengths, 4, small)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_more_trials_are_never_slower(small: CostModel, lengths: list[int]) -> None:
    times = [
        planned_of(
            plan_any_degree_batch, lengths, AnyDegreeSettings("any_degree", trials), 4, small
        ).predicted_ms
        for trials in (1, 5)
    ]
    assert times[1] <= times[0]


@pytest.mark.parametrize(("trials", "tried"), [(1, 1), (3, 3), (9, 4)])
def test_the_account_has_the_numbers_of_micro_batches_tried(
    small: CostModel, trials: int, tried: int
) -> None:
    """Four sequences fit one micro-batch and are cut into four at most."""
    made = planned_of(
        plan_any_degree_batch, [10] * 4, AnyDegreeSettings("any_degree", trials), 4, small
    )
    assert made.solver["tried"] == tried


def test_the_entry_any_degree_plans_with_every_degree(small: CostModel) -> None:
    assert checked("planner", "any_degree") == ANY
    [made] = ANY_DEGREE.plan(ANY, task_of([250, 40], 3, small))
    assert [len(g.ranks) for m in made.micro_batches for g in m.groups] == [3]  # type: ignore[union-attr]


def test_ranks_that_make_a_group_slower_stay_idle(small: CostModel) -> None:
    slow = replace(small, all_to_all_ms={1: 0.0, 2: 1.0, 4: 1.0})
    made = planned_of(plan_any_degree_batch, [50], ANY, 4, slow)
    assert [group.degree for group in made.micro_batches[0].groups] == [1]


@given(st.integers(1, 4), st.integers(0, 90), st.floats(0.0, 200.0))
def test_the_longest_that_fits_is_the_longest(
    small: CostModel, degree: int, tokens: int, limit_ms: float
) -> None:
    """Within memory and time, against every length in turn; one token for rounding."""
    cost = with_every_degree(small, 4)
    group = _Open(degree, [0], tokens, float(cost.sequence_ms(np.array([tokens])).sum()))

    def fits(length: int) -> bool:
        held = np.array([tokens, length])
        in_time = cost.group_time_ms(held, degree).total_ms <= limit_ms
        return in_time and tokens + length <= degree * cost.tokens_per_device

    wanted = max((length for length in range(1, 401) if fits(length)), default=0)
    assert abs(max(_longest_that_fits(group, cost, limit_ms), 0) - wanted) <= 1


def test_ranks_left_over_are_handed_out_once(small: CostModel) -> None:
    """Two ranks exchange so slowly that only a third one helps; the fourth is free."""
    exchange = {1: 0.0, 2: 9.0, 3: 0.0, 4: 9.0, 5: 0.0}
    groups = [_Open(1, [0], 100, 20.0)]
    _spread(groups, 4, replace(small, all_to_all_ms=exchange))
    assert [group.degree for group in groups] == [3]


DP = ByteScaleSettings("byte_scale", "dp", 1, 0.05)
PP = ByteScaleSettings("byte_scale", "pp", 2, 0.05)


def test_long_sequences_take_ranks_and_short_ones_share_them(small: CostModel) -> None:
    made = units(np.array([40, 250, 90, 60, 101]), small)
    assert [(unit.degree, unit.members) for unit in made] == [
        (3, (1,)),
        (2, (4,)),
        (1, (2,)),
        (1, (3, 0)),
    ]
    assert made[2].time_ms == pytest.approx(8.1 + 9 + 3)


def test_a_byte_scale_plan_by_hand(small: CostModel) -> None:
    """250 takes three ranks and 90 the fourth, which lags behind and takes the rest."""
    batch = SampledBatch(np.arange(4), np.array([250, 90, 60, 40]))
    made = plan_byte_scale_batch(0, batch, DP, 4, small)
    assert [{g.lengths: g.degree for g in one.groups} for one in made.micro_batches] == [
        {(250,): 3, (90,): 1},
        {(60, 40): 1},
    ]
    long = 87.5 / 3 + 3 + 250 * 0.16 / 3
    assert made.predicted_ms == pytest.approx(long + 15.2 + 3)
    assert made.solver["without_waiting_ms"] == pytest.approx(max(long, 20.1 + 18.2))


def _alone(*times: float) -> list[Unit]:
    return [Unit(1, (index,), time, time) for index, time in enumerate(times)]


def test_ranks_that_share_a_sequence_wait_for_the_last_of_them() -> None:
    """4 begins after 10 on both ranks, so that 11 ends at 25 on whichever has it."""
    ordered = [Unit(1, (0,), 10.0, 10.0), Unit(2, (1,), 4.0, 4.0), Unit(1, (2,), 11.0, 11.0)]
    made, most = rounds(ordered, DP, 2)
    assert [[unit.members[0] for unit in taken] for taken in made] == [[0], [1], [2]]
    assert most == 25


def test_ranks_take_from_the_first_bucket_or_from_all_in_turn() -> None:
    ordered = _alone(4.0, 4.0, 2.0, 2.0, 2.0, 2.0)
    two = ByteScaleSettings("byte_scale", "dp", 2, 0.05)
    first, most = rounds(ordered, two, 2)
    assert [[u.members[0] for u in taken] for taken in first] == [[0, 1], [2, 3], [4, 5]]
    assert most == 8
    turns, most = rounds(ordered, PP, 2)
    assert [[u.members[0] for u in taken] for taken in turns] == [[0, 2], [1], [3], [4, 5]]
    assert most == 8


def test_only_ranks_that_lag_take_more() -> None:
    ordered = _alone(10.0, 3.0, 3.0, 3.0)
    made, most = rounds(ordered, DP, 2)
    assert [[u.members[0] for u in taken] for taken in made] == [[0, 1], [2], [3]]
    assert most == 10
    slow = ByteScaleSettings("byte_scale", "dp", 1, 0.9)
    made, most = rounds(ordered, slow, 2)
    assert [[u.members[0] for u in taken] for taken in made] == [[0, 1], [2, 3]]
    assert most == 13


def test_ranks_as_busy_as_the_most_loaded_take_nothing_without_slack() -> None:
    none = ByteScaleSettings("byte_scale", "dp", 1, 0.0)
    made, most = rounds(_alone(4.0, 1.0, 1.0, 1.0), none, 2)
    assert [[u.members[0] for u in taken] for taken in made] == [[0, 1], [2], [3]]
    assert most == 4


def test_the_least_loaded_rank_takes_first() -> None:
    """Ranks of 9, 5 and 3: the last takes the 5, the second the 1."""
    _, most = rounds(_alone(9.0, 5.0, 3.0, 5.0, 1.0), DP, 3)
    assert most == 9


def test_byte_scale_names_a_sequence_over_all_devices(small: CostModel) -> None:
    batch = SampledBatch(np.array([9, 4]), np.array([10, 401]))
    with pytest.raises(PlanError, match=r"^sequence 4: 401 tokens; allowed: at most 400"):
        plan_byte_scale_batch(0, batch, DP, 4, small)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40),
    st.sampled_from([DP, PP, ByteScaleSettings("byte_scale", "dp", 8, 0.0)]),
)
def test_byte_scale_plans_hold_every_sequence_once_within_memory(
    small: CostModel, lengths: list[int], settings: ByteScaleSettings
) -> None:
    made = planned_of(plan_byte_scale_batch, lengths, settings, 4, small)
    check_batch(made, lengths, 4, small)


def test_the_entry_byte_scale_plans_with_every_degree(small: CostModel) -> None:
    settings = checked("planner", "byte_scale")
    assert settings == ByteScaleSettings("byte_scale", "dp", 8, 0.05)
    made = BYTE_SCALE.plan(settings, task_of([250, 90], 4, small))
    assert {g.degree for g in made[0].micro_batches[0].groups} == {3, 1}  # type: ignore[union-attr]


GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "balanced_cp_schedules.json").read_text()
)["cases"]
PACKED = DynamicCPSettings("dynamic_cp", None, "packed")
ALONE = DynamicCPSettings("dynamic_cp", None, "alone")


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_schedules_are_those_of_the_public_code(case: dict[str, Any]) -> None:
    made = balanced_schedules(case["lengths"], case["most_tokens_per_rank"], case["ranks"])
    assert [[[g.ranks, g.members] for g in schedule] for schedule in made] == case["schedules"]


def test_free_ranks_that_do_not_suffice_stay_idle() -> None:
    """Ten ranks, 4 + 4 needed: none of both can have eight."""
    made = balanced_schedules([390, 380], 100, 10)
    assert [[(group.ranks, group.members) for group in one] for one in made] == [
        [(4, [0]), (4, [1])]
    ]


def test_nothing_leaves_a_group_while_ranks_are_free() -> None:
    """Two sequences in the one group that fits them; the third rank joins it."""
    (schedule,) = balanced_schedules([20, 20], 10, 3)
    assert [(group.ranks, group.members) for group in schedule] == [(3, [0, 1])]


def test_buckets_end_beyond_a_tenth_over_their_share() -> None:
    """Two sizes, a share of 21,362: 20,000 and 4,225 are 1.134 of it. Few are left only
    once, as a bucket that is closed counts twice.
    """
    waiting = list(range(7))
    made = _Schedule([200, 65, 65, 65, 65, 65, 40], 100, 4)._buckets(waiting)
    assert made == [[0], [1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(("least", "balanced"), [(95.0, True), (94.9, False)])
def test_ranks_within_a_twentieth_are_in_balance(least: float, balanced: bool) -> None:
    schedule = _Schedule([1, 1], 100, 2)
    schedule.groups = [ScheduledGroup(1, [0], 100.0), ScheduledGroup(1, [1], least)]
    assert schedule._is_balanced() is balanced
    schedule.ranks = 3
    assert not schedule._is_balanced()


def test_a_dynamic_cp_plan_by_hand(small: CostModel) -> None:
    """120 needs two ranks (work 7200), 60 and 50 open groups of one (3600, 2500). Then
    40 and 30 go where less is, 20 where 4100 are, not 4500; it is a pass of its own.
    """
    batch = SampledBatch(np.arange(6), np.array([120, 60, 50, 40, 30, 20]))
    made = plan_dynamic_cp_batch(0, batch, PACKED, 4, small)
    assert [
        [(group.degree, group.lengths) for group in one.groups] for one in made.micro_batches
    ] == [[(2, (120,)), (1, (60, 30)), (1, (50, 40))], [(1, (20,))]]
    slowest = [
        (1e-3 * (120**2) + 0.1 * 120) / 2 + 3 + 0.05 * 120,
        1e-3 * 20**2 + 0.1 * 20 + 3,
    ]
    assert [one.predicted_ms for one in made.micro_batches] == pytest.approx(slowest)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40),
    st.sampled_from([PACKED, ALONE]),
)
def test_dynamic_cp_plans_hold_every_sequence_once_within_memory(
    small: CostModel, lengths: list[int], settings: DynamicCPSettings
) -> None:
    made = planned_of(plan_dynamic_cp_batch, lengths, settings, 4, small)
    check_batch(made, lengths, 4, small)
    assert made.solver["without_waiting_ms"] <= made.predicted_ms * (1 + 1e-12)
    if settings is ALONE:
        assert all(len(g.sequences) == 1 for m in made.micro_batches for g in m.groups)


def test_a_rank_that_holds_less_takes_more_ranks(small: CostModel) -> None:
    batch = SampledBatch(np.arange(1), np.array([90]))
    tight = DynamicCPSettings("dynamic_cp", 30, "packed")
    assert plan_dynamic_cp_batch(0, batch, tight, 4, small).micro_batches[0].groups[0].degree == 4
    with pytest.raises(PlanError, match=r"sequence 0: 90 tokens; allowed: at most 80"):
        plan_dynamic_cp_batch(0, batch, DynamicCPSettings("dynamic_cp", 20, "alone"), 4, small)


def test_a_rank_cannot_hold_more_than_a_device(small: CostModel) -> None:
    from railx.planning.rivals.dynamic_cp import DYNAMIC_CP
    from tests.planning.rules import task_of

    with pytest.raises(SettingsError, match=r"planner\.tokens_per_rank: got 101; allowed: at most"):
        DYNAMIC_CP.plan(DynamicCPSettings("dynamic_cp", 101, "packed"), task_of([50], 4, small))


def test_the_configs_of_dynamic_cp_are_checked() -> None:
    assert checked("planner", "dynamic_cp") == PACKED
    assert checked("planner", "dynamic_cp_alone") == ALONE
