"""ByteScale's balanced hybrid data parallelism: both algorithms and plans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.rivals.context_parallel import (
    BYTE_SCALE,
    ByteScaleSettings,
    Unit,
    plan_byte_scale_batch,
    rounds,
    units,
)
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.planning.rules import check_batch, planned_of, task_of

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


def test_a_plan_by_hand(small: CostModel) -> None:
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


def test_a_sequence_over_all_devices_is_named(small: CostModel) -> None:
    batch = SampledBatch(np.array([9, 4]), np.array([10, 401]))
    with pytest.raises(PlanError, match=r"^sequence 4: 401 tokens; allowed: at most 400"):
        plan_byte_scale_batch(0, batch, DP, 4, small)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40),
    st.sampled_from([DP, PP, ByteScaleSettings("byte_scale", "dp", 8, 0.0)]),
)
def test_plans_hold_every_sequence_once_within_memory(
    small: CostModel, lengths: list[int], settings: ByteScaleSettings
) -> None:
    made = planned_of(plan_byte_scale_batch, lengths, settings, 4, small)
    check_batch(made, lengths, 4, small)


def test_the_entry_plans_with_every_degree(small: CostModel) -> None:
    settings = checked("planner", "byte_scale")
    assert settings == ByteScaleSettings("byte_scale", "dp", 8, 0.05)
    made = BYTE_SCALE.plan(settings, task_of([250, 90], 4, small))
    assert {g.degree for g in made[0].micro_batches[0].groups} == {3, 1}  # type: ignore[union-attr]
