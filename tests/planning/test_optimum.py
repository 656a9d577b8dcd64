"""Plans of few sequences against everything that can be tried."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.search import Problem, SearchResult, search
from railx.planning.sequence.small import MOST_SEQUENCES, optimum, optimum_of_equals
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
    assert found.time_ms <= search(problem, 200_000, 1).time_ms * (1 + 1e-12)


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
