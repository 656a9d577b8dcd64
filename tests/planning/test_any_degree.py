"""Groups of any number of ranks: what a degree costs, and plans by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.rivals.context_parallel import (
    ANY_DEGREE,
    AnyDegreeSettings,
    _longest_that_fits,
    _Open,
    _spread,
    plan_any_degree_batch,
    with_every_degree,
)
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.planning.rules import check_batch, planned_of, task_of

SETTINGS = AnyDegreeSettings("any_degree", 5)


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
    made = plan_any_degree_batch(0, batch, SETTINGS, 4, slow)
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
    made = plan_any_degree_batch(0, batch, SETTINGS, 4, dear)
    [micro_batch] = made.micro_batches
    assert {g.lengths: g.degree for g in micro_batch.groups} == {(100,): 3, (60,): 1}


def test_a_sequence_over_all_devices_is_named(small: CostModel) -> None:
    batch = SampledBatch(np.array([9, 4]), np.array([10, 401]))
    with pytest.raises(PlanError, match=r"^sequence 4: 401 tokens; allowed: at most 400"):
        plan_any_degree_batch(0, batch, SETTINGS, 4, small)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 3))
def test_plans_hold_every_sequence_once_within_memory(
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


def test_the_entry_plans_with_every_degree(small: CostModel) -> None:
    assert checked("planner", "any_degree") == SETTINGS
    [made] = ANY_DEGREE.plan(SETTINGS, task_of([250, 40], 3, small))
    assert [len(g.ranks) for m in made.micro_batches for g in m.groups] == [3]  # type: ignore[union-attr]


def test_ranks_that_make_a_group_slower_stay_idle(small: CostModel) -> None:
    slow = replace(small, all_to_all_ms={1: 0.0, 2: 1.0, 4: 1.0})
    made = planned_of(plan_any_degree_batch, [50], SETTINGS, 4, slow)
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
