"""The bound of a whole batch against exhaustive search."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.batches import DEVICES, Case, cases, cost_of
from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.bound import _charges, batch_lower_bound_ms
from tests.planning.optima import costs, optimum_ms

#: What a search of a few seconds found (ms), and the largest share that the bound may
#: lie below it.
FOUND = {
    "wikipedia_32k_0": (2898.0, 0.01),
    "github_like_32k_4": (9668.0, 0.015),
    "github_like_64k_3": (10659.0, 0.02),
    "wikipedia_192k_0": (3235.0, 0.02),
    "commoncrawl_like_192k_1": (12159.0, 0.025),
}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 8), costs())
def test_no_plan_is_faster(lengths: list[int], devices: int, cost: CostModel) -> None:
    bound = batch_lower_bound_ms(np.array(lengths), devices, cost.any_degrees, cost)
    optimum = optimum_ms(lengths, devices, cost)
    assert bound <= optimum * (1 + 1e-9)
    assert math.isinf(bound) == math.isinf(optimum)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=7),
    costs(),
    st.floats(0.05, 3.0),
    st.floats(1.0, 1.5),
)
def test_no_group_is_charged_more_than_its_device_time(
    lengths: list[int], cost: CostModel, scale: float, wide: float
) -> None:
    tokens = np.sort(np.array(lengths, dtype=np.float64))[::-1].copy()
    degrees = np.array(cost.any_degrees, dtype=np.float64)
    per_token = np.array(list(cost.all_to_all_ms.values()))
    alone = cost.sequence_ms(tokens)[:, None] / degrees + tokens[:, None] * per_token
    alone[tokens[:, None] > cost.tokens_per_device * degrees] = np.inf
    # An interval of durations that begins at the time of some group.
    start = scale * float(np.min(alone[0], initial=alone[-1].min(), where=alone[0] < np.inf))
    charges = np.empty(len(tokens))
    _charges(
        alone, tokens, degrees, float(cost.tokens_per_device), start, start * wide * 1.0001, charges
    )
    for kind, degree in enumerate(degrees):
        for part in range(1, 1 << len(tokens)):
            members = [index for index in range(len(tokens)) if part >> index & 1]
            busy, held = alone[members, kind].sum(), tokens[members].sum()
            if busy < start * wide and held <= cost.tokens_per_device * degree:
                assert charges[members].sum() <= degree * max(busy, start) * (1 + 1e-9)


def test_sequences_that_are_charged_more_themselves_lower_what_is_lost_to_others() -> None:
    # 85 pays more in a group of 3 for what others lose there; so do those in 4.
    tokens = np.array([190.0, 181, 85, 44, 35, 30, 18])
    degrees, per_token = np.array([1.0, 3, 4]), np.array([0, 0.02, 0.05])
    alone = (1e-3 * tokens**2 + 0.1 * tokens)[:, None] / degrees + tokens[:, None] * per_token
    alone[tokens[:, None] > 60 * degrees] = np.inf
    charges = np.empty(len(tokens))
    _charges(alone, tokens, degrees, 60.0, 9.504, 10.4544, charges)
    group = [2, 4]
    assert charges[group].sum() <= 3 * max(9.504, alone[group, 1].sum())


@pytest.fixture(scope="module")
def compared() -> dict[str, Case]:
    return {case.name: case for case in cases() if case.name in FOUND}


@pytest.mark.parametrize("name", FOUND)
def test_bound_is_close_to_what_a_search_finds(name: str, compared: dict[str, Case]) -> None:
    case, (found_ms, share) = compared[name], FOUND[name]
    bound = batch_lower_bound_ms(case.batch.lengths, DEVICES, case.cost.degrees, case.cost)
    assert found_ms * (1 - share) <= bound <= found_ms


@pytest.mark.parametrize("name", ["wikipedia_32k_0", "commoncrawl_like_192k_1"])
def test_more_freedom_does_not_raise_the_bound(name: str, compared: dict[str, Case]) -> None:
    lengths, cost = compared[name].batch.lengths, compared[name].cost
    degrees = cost.degrees
    whole = batch_lower_bound_ms(lengths, DEVICES, degrees, cost)
    # Prices are not the best ones to the last bit.
    for less in (
        batch_lower_bound_ms(lengths, DEVICES, degrees[1:], cost),
        batch_lower_bound_ms(lengths, DEVICES // 2, degrees, cost),
        batch_lower_bound_ms(
            lengths, DEVICES, degrees, replace(cost, tokens_per_device=cost.tokens_per_device // 2)
        ),
    ):
        assert whole <= less * 1.002


def test_batch_that_fills_its_micro_batches_is_bounded_exactly(small: CostModel) -> None:
    # Four devices of 100 tokens: three micro-batches of four full groups of degree 1.
    lengths = np.full(12, 100)
    one = small.group_time_ms([100], 1).total_ms
    bound = batch_lower_bound_ms(lengths, 4, (1,), small)
    assert bound == pytest.approx(3 * one, rel=1e-3)
    assert bound <= 3 * one


def test_order_does_not_matter(compared: dict[str, Case]) -> None:
    case = compared["wikipedia_32k_0"]
    lengths, degrees = case.batch.lengths, case.cost.degrees
    assert batch_lower_bound_ms(lengths, 64, degrees, case.cost) == batch_lower_bound_ms(
        lengths[::-1].copy(), 64, degrees, case.cost
    )


def test_no_sequences_take_no_time_and_one_that_fits_nowhere_all(small: CostModel) -> None:
    assert batch_lower_bound_ms(np.array([], dtype=np.int64), 4, (1, 2), small) == 0.0
    assert batch_lower_bound_ms(np.array([201]), 4, (1, 2), small) == math.inf
    assert batch_lower_bound_ms(np.array([10]), 1, (2, 4), small) == math.inf
    assert batch_lower_bound_ms(np.array([200]), 4, (1, 2), small) < math.inf


def test_thousand_devices_are_bounded_too() -> None:
    case = next(cases(("github_like",), (192_000,), 1, 8_192))
    lengths, cost = case.batch.lengths, cost_of(192_000)
    bound = batch_lower_bound_ms(lengths, 1_024, cost.degrees, cost)
    held = 1_024 * cost.tokens_per_device
    fewest = -(-int(lengths.sum()) // held)
    assert bound > cost.sequence_ms(lengths).sum() / 1_024 + fewest * cost.constant_ms
