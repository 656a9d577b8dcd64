"""The cycle of a rank's operations is found from the operations alone, and what is
announced from it is right as long as it goes on.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric import Configuration, cycle
from railx.fabric.cycle import CircuitSchedule, CycleFinder

NEEDS = {
    "A": Configuration("ring", (0, 1)),
    "B": Configuration("pair", (0, 2)),
    "C": Configuration("ring", (0, 2)),
    "D": Configuration("pair", (0, 1)),
}
LETTERS = {configuration: letter for letter, configuration in NEEDS.items()}


def announced(finder: CycleFinder, operations: str) -> str:
    """What was announced before each operation, a dot where nothing was."""
    found = ""
    for letter in operations:
        following = finder.following()
        found += "." if following is None else LETTERS[following]
        finder.add(NEEDS[letter])
    return found


def period(finder: CycleFinder) -> str:
    return "".join(LETTERS[run.configuration] * run.count for run in finder.cycle)


def wrong(operations: str, announcements: str) -> int:
    """How many announcements did not come true."""
    return sum(
        one not in (".", other) for one, other in zip(announcements, operations, strict=True)
    )


def rotations(operations: str) -> set[str]:
    return {operations[i:] + operations[:i] for i in range(len(operations))}


def shortest(operations: str) -> str:
    """The shortest word whose repetition ``operations`` is."""
    return operations[: (operations + operations).index(operations, 1)]


cycles = st.text("ABC", min_size=2, max_size=12).filter(lambda word: len(set(word)) > 1)


@given(cycles, st.text("ABCD", max_size=30))
def test_a_cycle_is_found_behind_any_beginning(word: str, before: str) -> None:
    finder = CycleFinder()
    announced(finder, before + (8 + len(before)) * word)
    assert period(finder) in rotations(shortest(word))
    assert announced(finder, 5 * word) == 5 * word


@given(cycles)
def test_a_cycle_is_known_after_four_times_at_the_latest(word: str) -> None:
    finder = CycleFinder()
    # One more, because the runs at both ends may be parts of longer ones.
    announced(finder, 5 * word)
    assert period(finder) in rotations(shortest(word))
    assert announced(finder, 5 * word) == 5 * word


@given(st.text("ABC", max_size=60))
def test_what_is_announced_was_seen_twice(operations: str) -> None:
    finder = CycleFinder()
    known = ""
    for number, letter in enumerate(operations):
        finder.add(NEEDS[letter])
        if period(finder) not in ("", known):
            assert operations[:number].endswith(2 * period(finder))
            assert len(finder.cycle) == sum(
                one != other for one, other in zip(period(finder), period(finder)[1:], strict=False)
            ) + (period(finder)[0] != period(finder)[-1])
        known = period(finder)


@pytest.mark.parametrize(
    ("operations", "announcements"),
    [
        # Two of a kind in a row are no cycle, nor is one kind alone.
        ("AABAABAABAAB", ".......ABAAB"),
        ("AAAAAAAAAAAA", "............"),
        ("ABCABCABCABC", ".......BCABC"),
    ],
)
def test_announcements(operations: str, announcements: str) -> None:
    assert announced(CycleFinder(), operations) == announcements


def test_an_inner_repetition_misleads_once() -> None:
    word = 31 * "AB" + "AC"
    finder = CycleFinder()
    assert wrong(8 * word, announced(finder, 8 * word)) <= 2
    assert announced(finder, 3 * word) == 3 * word
    short = 3 * "AB" + "C"
    finder = CycleFinder()
    assert wrong(8 * short, announced(finder, 8 * short)) == 1


def test_the_phases_of_a_pipeline_with_sharded_parameters() -> None:
    first, iteration = "BBBAAABBBB", "AAABAAABBAAABAAA"
    finder = CycleFinder()
    assert wrong(first + 3 * iteration, announced(finder, first + 3 * iteration)) == 0
    assert announced(finder, 3 * iteration) == 3 * iteration
    assert len(finder.cycle) == 6


@given(cycles, cycles)
def test_a_cycle_that_ends_is_forgotten_and_the_next_one_found(before: str, after: str) -> None:
    finder = CycleFinder()
    announced(finder, 6 * before)
    announced(finder, 20 * after)
    assert period(finder) in rotations(shortest(after))
    assert announced(finder, 5 * after) == 5 * after


@given(cycles)
def test_one_operation_out_of_turn_is_one_wrong_announcement(word: str) -> None:
    finder = CycleFinder()
    announced(finder, 50 * word)
    following = announced(finder, "D" + 6 * word)
    assert following[0] not in (".", "D")
    assert wrong("D" + 6 * word, following) <= 2, "another where a run is cut in two"
    assert announced(finder, 5 * word) == 5 * word


def test_memory_and_search_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    explained = cycle._explained

    def counted(tokens: Any) -> list[int]:
        searched.append(len(tokens))
        return explained(tokens)

    monkeypatch.setattr(cycle, "_explained", counted)
    draw = random.Random(1)
    finder = CycleFinder()
    added = 20_000
    for _ in range(added):
        finder.add(NEEDS[draw.choice("ABCD")])
    assert finder.cycle == ()
    assert len(finder._history) <= 2 * cycle._HISTORY
    assert max(searched) <= cycle._HISTORY
    assert sum(searched) <= cycle._EARNED * added
    searched.clear()
    announced(finder, 100 * "AAB")
    searched.clear()
    announced(finder, 100 * "AAB")
    assert searched == [], "a cycle that goes on needs no search"


@given(st.lists(st.integers(0, 2), max_size=40))
def test_how_much_each_period_explains(tokens: list[int]) -> None:
    assert cycle._explained(tokens) == [
        next(
            (i for i in range(len(tokens) - p) if tokens[i] != tokens[i + p]),
            len(tokens) - p,
        )
        if p
        else 0
        for p in range(len(tokens))
    ]


def test_a_history_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="history: got 3; allowed: at least 4"):
        CycleFinder(3)


PIPELINE = Configuration("pair", (0, 1))
DATA = Configuration("ring", (0, 2))
CONFIGURATIONS = st.sampled_from([PIPELINE, DATA, Configuration("ring", (0, 1, 2, 3))])


def test_prediction_ends_with_the_iteration() -> None:
    schedule = CircuitSchedule({0: (PIPELINE, DATA), 1: (DATA,)})
    assert [schedule.following(0, issued) for issued in range(3)] == [PIPELINE, DATA, None]
    assert schedule.following(7, 0) is None
