"""How loops of the planners' searches are compiled, and their random numbers.

Numba stores a compiled loop until the loop's own file changes, whatever it calls. So
loops that call each other stay in one module. After a change of this one, remove the
stored loops (``__pycache__``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """A function that Python and compiled code call, compiled once and stored."""
    return njit(cache=True, error_model="numpy")(function)


def inner(function: Callable[..., Any]) -> Any:
    """A function that only compiled code calls, which halves the time to compile it."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(cache=True, error_model="numpy", **options)(function)


@inner
def copy(target: Any, source: Any, count: int) -> None:
    """Copy the first ``count`` entries; slices compile longer, to check shapes."""
    for index in range(count):
        target[index] = source[index]


@inner
def next_random(state: Any) -> float:
    """The next number in [0, 1) of a xorshift generator (Marsaglia).

    ``state``: uint64 [1], not zero; it moves on.
    """
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return float((x >> np.uint64(11)) / 9007199254740992.0)
