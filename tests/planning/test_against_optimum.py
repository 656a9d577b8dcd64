"""Planners of groups on a few sequences, against everything that can be tried.

None may say that it is faster than the optimum, on any cost model: constants of zero,
degrees that are no powers of two, more devices than sequences, lengths at the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.rivals.context_parallel import (
    AnyDegreeSettings,
    ByteScaleSettings,
    plan_any_degree_batch,
    plan_byte_scale_batch,
    plan_wlb_batch,
    with_every_degree,
)
from railx.planning.rivals.dynamic_cp import DynamicCPSettings, plan_dynamic_cp_batch
from railx.planning.sequence.static import plan_static_batch
from railx.settings import SettingsError
from tests.planning.optima import costs, optimum_ms
from tests.planning.rules import check_batch, planned_of

Plan = Callable[[list[int], int, CostModel], SequenceParallelBatch]


def _by(plan: Callable[..., SequenceParallelBatch], own: Any, *more: Any) -> Plan:
    return lambda lengths, devices, cost: planned_of(plan, lengths, own, devices, cost, *more)


def _wlb(lengths: list[int], devices: int, cost: CostModel) -> SequenceParallelBatch:
    degree = cost.smallest_degree(max(lengths)) or cost.degrees[-1]
    return planned_of(plan_wlb_batch, lengths, degree, devices, cost)


#: Planners by name, and whether they use every number of ranks.
PLANS: dict[str, tuple[Plan, bool]] = {
    "static": (_by(plan_static_batch, None, 1.0), False),
    "wlb": (_wlb, False),
    "packed": (_by(plan_dynamic_cp_batch, DynamicCPSettings("dynamic_cp", None, "packed")), True),
    "alone": (_by(plan_dynamic_cp_batch, DynamicCPSettings("dynamic_cp", None, "alone")), True),
    "dp": (_by(plan_byte_scale_batch, ByteScaleSettings("byte_scale", "dp", 2, 0.05)), True),
    "pp": (_by(plan_byte_scale_batch, ByteScaleSettings("byte_scale", "pp", 3, 0.0)), True),
    "any_degree": (_by(plan_any_degree_batch, AnyDegreeSettings("any_degree", 3)), True),
}


@pytest.mark.parametrize("name", PLANS)
@settings(deadline=None, max_examples=15)
@given(
    lengths=st.one_of(
        st.lists(st.integers(1, 200), min_size=1, max_size=5),
        st.tuples(st.sampled_from([20, 60, 120]), st.integers(1, 5)).map(lambda p: [p[0]] * p[1]),
    ),
    devices=st.integers(1, 7),
    cost=costs(),
)
def test_no_planner_beats_the_optimum(
    name: str, lengths: list[int], devices: int, cost: CostModel
) -> None:
    plan, every_degree = PLANS[name]
    table = {degree: ms for degree, ms in cost.all_to_all_ms.items() if degree <= devices}
    own = replace(cost, all_to_all_ms={1: 0.0} | table)
    try:
        made = plan(lengths, devices, own)
        own = with_every_degree(own, devices) if every_degree else own
    except (PlanError, SettingsError):  # too long, or no bandwidth is known
        return
    check_batch(made, lengths, devices, own)
    assert made.predicted_ms >= optimum_ms(lengths, devices, own) * (1 - 1e-9)
