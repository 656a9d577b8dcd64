"""What keeps the compiling of the replay's engine short."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from railx.replay.kernels.compiling import called, lent

Array = npt.NDArray[Any]


class _Two(NamedTuple):
    one: Array
    other: Array


@called
def _add(s: _Two, place: int, amount: int) -> int:
    s.other[place] += amount
    return len(s.one)


@njit  # type: ignore[untyped-decorator]
def _run(two: _Two) -> int:
    s = lent(two)
    found = _add(s, 0, 5)
    found += _add(s, np.int32(1), two.one[0])  # type: ignore[arg-type]
    return found + _add(s, 1, two.one[0] > 0)


def test_callees_see_the_arrays_and_are_compiled_once_for_all_numbers() -> None:
    two = _Two(np.array([7, 8, 9], np.int8), np.zeros(2, np.int64))
    assert _run(two) == 9
    assert two.other.tolist() == [5, 8]
    kinds = list(cast("Any", _add).overloads)
    assert len(kinds) == 1
    # What it is called is part of the name of each function that takes it.
    assert len(str(kinds[0][0])) < 30
