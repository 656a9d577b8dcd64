"""How much work is, how far it is and how long it may take: estimates that limits
refuse, and what loops, programs and commands say.
"""

from __future__ import annotations

import gc
import math
import os
import queue
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx import effort, progress
from railx.effort import Cost, LimitSettings, check_cost, estimate, gathered, note
from railx.progress import FILE, counted, counting, duration, publish, told
from railx.settings import SettingsError
from workflow.compilation import announce_compilation

NOWHERE = Path("/nonexistent")


@pytest.fixture(autouse=True, scope="module")
def no_open_loops() -> Iterator[None]:
    """Without loops that errors in other tests left, and that still are referred to."""
    gc.collect()
    left = progress._OPEN.copy()
    progress._OPEN.clear()
    yield
    progress._OPEN[:0] = left


def line(elapsed_s: float, published: Path = NOWHERE, before_s: float = 0.0) -> str:
    """The line where an outer loop has run for so long, after others."""
    begun_s = progress._OPEN[0].begun_s if progress._OPEN else 0.0
    return progress._line(begun_s - before_s, begun_s + elapsed_s, published)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations_are_read_by_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_time_left_is_the_rest_at_the_pace_so_far() -> None:
    said = [line(30.0) for _ in counted("abcd", "letters")]
    assert said == [
        "0 of 4 letters, 30 s so far",
        "1 of 4 letters (25%), 30 s so far, about 1 min 30 s left",
        "2 of 4 letters (50%), 30 s so far, about 30 s left",
        "3 of 4 letters (75%), 30 s so far, about 10 s left",
    ]
    assert line(30.0) == "30 s so far"


def test_time_of_loops_before_is_not_the_pace_of_this_one() -> None:
    said = [line(30.0, before_s=100.0) for _ in counted("abcd", "letters")]
    assert said[1] == "1 of 4 letters (25%), 2 min 10 s so far, about 1 min 30 s left"


def test_heavy_items_count_for_more() -> None:
    said = [line(10.0) for _ in counted("ab", "letters", weights=[9, 1])]
    assert said[1] == "1 of 2 letters (90%), 10 s so far, about 1 s left"


def test_a_loop_within_a_loop_is_a_part_of_its_unit() -> None:
    said = [line(30.0) for _ in counted("ab", "words") for _ in counted("abcd", "letters")]
    assert said[6] == ("1 of 2 words, 2 of 4 letters (75%), 30 s so far, about 10 s left")


def test_a_loop_that_is_left_early_counts_no_longer() -> None:
    def broken() -> None:
        with counting("letters", 4) as count:
            count.step()
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    letters = counted("abc", "letters")
    next(letters)
    letters.close()
    assert line(1.0) == "1 s so far"


def test_nothing_to_do_is_told() -> None:
    assert list(counted([], "letters")) == []
    with counting("letters", 0):
        assert line(5.0) == "0 of 0 letters (100%), 5 s so far, about 0 s left"


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4))
def test_loops_hand_on_their_items(items: list[list[int]]) -> None:
    found = [list(counted(inner, "inner")) for inner in counted(items, "outer")]
    assert found == items
    assert not progress._OPEN


def test_a_program_tells_whoever_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tmp_path / "count"
    monkeypatch.delenv(FILE, raising=False)
    publish("blocks", 1, 4)
    monkeypatch.setenv(FILE, str(published))
    publish("blocks", 1, 4)
    assert line(10.0, published) == "1 of 4 blocks (25%), 10 s so far, about 30 s left"
    published.write_text("[")
    assert line(10.0, published) == "10 s so far"
    # A disk that is full, or a folder that is gone, stops nothing.
    monkeypatch.setenv(FILE, str(NOWHERE / "count"))
    publish("blocks", 1, 4)


def test_long_work_is_told_and_short_work_is_not() -> None:
    lines: queue.Queue[str] = queue.Queue()
    with told("work", lines.put, every_s=0.001), counting("letters", 2) as count:
        count.step()
        while "1 of 2 letters (50%)" not in lines.get(timeout=60):
            pass
    said = lines.qsize()
    with told("work", lines.put, every_s=3600):
        pass
    assert lines.qsize() == said


def test_compilation_is_said_once_and_loading_is_not() -> None:
    said: list[str] = []
    announce_compilation("work", said.append)
    for _ in range(2):
        compiled = numba.njit(lambda x: x + 1)
        assert (compiled(1), compiled(2)) == (2, 3)
    assert said == ["work: compiles its loops, once on this machine"]


def test_who_does_not_listen_ends_no_work() -> None:
    asked: queue.Queue[str] = queue.Queue()

    def say(words: str) -> None:
        asked.put(words)
        raise OSError

    with told("work", say, every_s=0.001):
        for _ in range(2):
            asked.get(timeout=60)


def test_a_program_inside_a_program_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE, "outer")
    with told("work", lambda _: None):
        inner = os.environ[FILE]
        assert inner != "outer"
    assert os.environ[FILE] == "outer"
    assert not Path(inner).parent.exists()


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
