"""The loop over entries reports every failure."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.loops import for_every


def test_all_failures_are_named_and_all_entries_checked(tmp_path: Path) -> None:
    checked = []

    @for_every("number", [1, 2, 3, 4], name=lambda number: f"n{number}")
    def check(number: int, tmp_path: Path) -> None:
        checked.append((number, tmp_path))
        assert number != 2, "two"
        if number == 3:
            with pytest.raises(ValueError, match="none"):
                pass

    assert list(inspect.signature(check).parameters) == ["tmp_path"]
    with pytest.raises(pytest.fail.Exception) as failure:
        check(tmp_path=tmp_path)
    assert checked == [(number, tmp_path) for number in (1, 2, 3, 4)]
    first, *others = str(failure.value).splitlines()
    assert first == "2 of 4 fail:"
    assert any(line.startswith("n2: AssertionError: two") for line in others)
    assert any(line.startswith("n3: Failed: DID NOT RAISE") for line in others)


def test_no_entries_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no path to check"):
        for_every("path", [])
