"""Random numbers of compiled searches: the same on every machine for a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["next_random"]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
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
