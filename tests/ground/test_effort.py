"""Estimates of work: what limits refuse, and what a command says first."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx import effort
from railx.effort import Cost, LimitSettings, check_cost, estimate, gathered, note
from railx.settings import SettingsError

GIB = 2.0**30
#: The function itself: tests/conftest.py stands in for it.
MEMORY_BYTES = effort.machine_memory_bytes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 GiB."""
    monkeypatch.setattr(effort, "machine_memory_bytes", lambda: 8 * GIB)


@pytest.mark.usefixtures("machine")
def test_memory_is_that_of_the_machine_unless_a_limit_is_set() -> None:
    cost = Cost(bytes=10 * GIB)
    with pytest.raises(SettingsError) as refused:
        check_cost("n", 100, cost, LimitSettings())
    assert str(refused.value) == (
        "n: got 100; allowed: at most 80, as this would take about 10 GiB of memory"
        " (limits.memory_gib: 8, as this machine has)"
    )
    check_cost("n", 100, cost, LimitSettings(memory_gib=16))
    check_cost("n", 100, Cost(bytes=8 * GIB), LimitSettings())
    with pytest.raises(SettingsError, match=r"10 GiB of memory \(limits\.memory_gib\)$"):
        check_cost("n", 100, cost, LimitSettings(memory_gib=4))


def test_this_machine_has_memory() -> None:
    assert 2**28 < MEMORY_BYTES() < math.inf


def test_checks_are_gathered_also_where_they_refuse_nothing() -> None:
    limits = LimitSettings(memory_gib=64)
    with gathered() as costs:
        check_cost("n", 1, Cost(5.0), limits)
        assert note(Cost(bytes=7.0)) == Cost(bytes=7.0)
    assert costs == [Cost(5.0), Cost(bytes=7.0)]
    with gathered() as costs:
        pass
    assert costs == []


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ([], ""),
        ([Cost(59.0, GIB)], ""),
        ([Cost(120.0), Cost(90.0, GIB)], "a rough estimate is at most 2 min on one core"),
        ([Cost(1.0, 3 * GIB)], "a rough estimate is at most 3 GiB of memory"),
        (
            [Cost(600.0), Cost(bytes=4 * GIB)],
            "a rough estimate is at most 10 min on one core and 4 GiB of memory",
        ),
    ],
)
def test_long_work_has_an_estimate_in_words(costs: list[Cost], words: str) -> None:
    assert estimate(costs) == words


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e15))))
def test_short_and_small_work_has_none(costs: list[tuple[float, float]]) -> None:
    large = any(seconds >= 60 or size >= 2**31 for seconds, size in costs)
    assert bool(estimate([Cost(*cost) for cost in costs])) == large
