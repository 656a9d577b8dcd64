"""Plans of few sequences against everything that can be tried."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.search import Problem, SearchResult, search
from railx.planning.sequence.small import (
    MOST_SEQUENCES,
    annealed,
    optimum,
    optimum_of_equals,
    plan_of_near_equals,
)
from tests.planning.optima import costs, equals_ms, optimum_ms


def _problem(lengths: list[int], devices: int, cost: CostModel) -> Problem:
    degrees = tuple(degree for degree in cost.any_degrees if degree <= devices)
    return Problem.of(np.sort(np.array(lengths))[::-1], devices, degrees, cost)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=6), st.integers(1, 12), costs())
def test_it_is_the_optimum(lengths: list[int], devices: int, cost: CostModel) -> None:
    if devices < cost.any_degrees[0]:
        return
    found = optimum(_problem(lengths, devices, cost))
    wanted = optimum_ms(lengths, devices, cost)
    assert found.time_ms == pytest.approx(wanted, rel=1e-9)
    if wanted < math.inf:
        degrees = [d for d in cost.any_degrees if d <= devices]
        _check(found, np.sort(lengths)[::-1], degrees, devices, cost)


def _check(
    found: SearchResult, tokens: np.ndarray, degrees: list[int], devices: int, cost: CostModel
) -> None:
    """The plan that it says is the one that takes so long."""
    assert list(found.limits) == sorted(found.limits, reverse=True)
    for m, limit in enumerate(found.limits):
        groups = np.unique(found.group[found.micro_batch == m])
        used = [
            (
                degrees[found.kind[m, g]],
                tokens[(found.micro_batch == m) & (found.group == g)],
            )
            for g in groups
        ]
        assert sum(degree for degree, _ in used) <= devices
        assert all(part.sum() <= cost.tokens_per_device * degree for degree, part in used)
        slowest = max(cost.group_time_ms(part, degree).total_ms for degree, part in used)
        assert slowest == pytest.approx(limit + cost.constant_ms, rel=1e-9)


@pytest.mark.parametrize("devices", [16, 64, 1024])
def test_the_longest_that_is_solved_beats_the_search(devices: int, large: CostModel) -> None:
    random = np.random.default_rng(devices)
    lengths = (random.pareto(0.7, MOST_SEQUENCES) * 3000 + 50).clip(max=190_000 * devices / 64)
    problem = _problem([int(one) for one in lengths], devices, large)
    found = optimum(problem)
    assert found.time_ms <= search(problem, 200_000, 1)[0].time_ms * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 14), st.integers(1, 70), st.integers(1, 13), costs())
def test_it_is_the_optimum_of_equals(
    count: int, tokens: int, devices: int, cost: CostModel
) -> None:
    degrees = tuple(d for d in cost.any_degrees if d <= devices and not d & (d - 1))
    if not degrees:
        return
    lengths = np.full(count, tokens)
    found = optimum_of_equals(Problem.of(lengths, devices, degrees, cost))
    wanted = equals_ms(count, tokens, devices, cost)
    assert found.time_ms == pytest.approx(wanted, rel=1e-9)
    if wanted < math.inf:
        _check(found, lengths, list(degrees), devices, cost)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(90, 100), min_size=2, max_size=24), st.integers(1, 13),
    st.sampled_from((0, 500)), costs(),
)  # fmt: skip
def test_a_plan_of_near_equals_fits_and_is_no_slower_than_one_of_the_longest(
    lengths: list[int], devices: int, moves: int, cost: CostModel
) -> None:
    degrees = tuple(d for d in cost.any_degrees if d <= devices and not d & (d - 1))
    if not degrees:
        return
    tokens = np.sort(lengths)[::-1]
    found = plan_of_near_equals(Problem.of(tokens, devices, degrees, cost), moves, 1)
    longest = np.full_like(tokens, tokens[0])
    equal = optimum_of_equals(Problem.of(longest, devices, degrees, cost))
    assert found.time_ms <= equal.time_ms * (1 + 1e-12)
    if found.time_ms < math.inf:
        _check(found, tokens, list(degrees), devices, cost)
        assert found.time_ms == pytest.approx(
            found.limits.sum() + len(found.limits) * cost.constant_ms
        )


@pytest.mark.parametrize(
    ("count", "longest", "shortest", "devices", "tokens_per_device", "moves", "time_ms"),
    [
        # As many as fit where all are as long as the shortest: the longest give 8875.8.
        (128, 2938, 2881, 16, 4390, 0, 8697.9),
        # Even groups, two of them with one sequence more; equal plans take 5643.1.
        (128, 2031, 1992, 16, 5502, 0, 5347.0),
        # Even groups in a micro-batch more than memory needs, for 37375.6.
        (141, 5530, 5402, 8, 4768, 0, 36262.9),
        # Moves bring three of the shorter ones on a device into memory, for 4877.9.
        (128, 1798, 1765, 16, 5329, 60_000, 4789.2),
    ],
)
def test_near_equals_fill_memory(
    count: int,
    longest: int,
    shortest: int,
    devices: int,
    tokens_per_device: int,
    moves: int,
    time_ms: float,
    large: CostModel,
) -> None:
    tokens = np.linspace(longest, shortest, count).astype(np.int64)
    cost = replace(large, tokens_per_device=tokens_per_device)
    degrees = tuple(degree for degree in cost.degrees if degree <= devices)
    found = plan_of_near_equals(Problem.of(tokens, devices, degrees, cost), moves, 0)
    assert found.time_ms == pytest.approx(time_ms, rel=1e-4)
    _check(found, tokens, list(degrees), devices, cost)


def test_moves_leave_a_plan_beyond_memory_for_a_slower_one(small: CostModel) -> None:
    """One token too many costs less than the constant of a second micro-batch."""
    tokens, cost = np.array([100, 96, 4, 1]), replace(small, constant_ms=0.6)
    problem = Problem.of(tokens, 2, (1,), cost)
    start = SearchResult(
        math.inf, np.zeros(4, np.int64), np.array([0, 1, 1, 1]), np.zeros((1, 2), np.int64),
        np.ones(1), 0,
    )  # fmt: skip
    found = annealed(problem, start, 1000, 1)
    assert found.time_ms == pytest.approx(20 + 0.1 + 1e-3 + 2 * 0.6)
    _check(found, tokens, [1], 2, cost)
