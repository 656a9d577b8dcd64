"""Megatron's dynamic context parallelism: its own schedules, and plans from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
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
from tests.planning.rules import check_batch, planned_of

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


def test_a_plan_by_hand(small: CostModel) -> None:
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
def test_plans_hold_every_sequence_once_within_memory(
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


def test_the_configs_are_checked() -> None:
    assert checked("planner", "dynamic_cp") == PACKED
    assert checked("planner", "dynamic_cp_alone") == ALONE
