"""Arithmetic and types that planners of groups and of pipelines share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.workload.batches import SampledBatch

#: Times and bytes, and whatever is counted: tokens, layers, places.
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def least_loaded(positions: Iterable[int], loads: npt.ArrayLike, bins: int) -> list[list[int]]:
    """Distribute positions in their order, each to the least loaded bin so far.

    ``loads`` [n] are by position. Bins may stay empty.
    """
    each = np.asarray(loads)
    filled: list[list[int]] = [[] for _ in range(bins)]
    total = np.zeros(bins, dtype=each.dtype)
    for position in positions:
        chosen = int(np.argmin(total))
        filled[chosen].append(position)
        total[chosen] += each[position]
    return filled


def fewest(counts: range, holds: Callable[[int], bool]) -> int | None:
    """The first count that holds, by bisection; None where the last does not."""
    if not holds(counts[-1]):
        return None
    return counts[bisect_left(counts[:-1], True, key=holds)]


def longest_fitting(length: int, holds: Callable[[SampledBatch], bool]) -> int:
    """The most tokens of a held sequence, up to ``length``, by bisection, or 0."""

    def unfit(tokens: int) -> bool:
        return not holds(SampledBatch(np.array([0]), np.array([tokens])))

    return bisect_left(range(length + 1), True, lo=1, key=unfit) - 1


def tokens_of_work(work: Any, quadratic: float, linear: float) -> Any:
    """Tokens s with quadratic s² + linear s = ``work``, a number or an array.

    The positive root, in a form that holds where ``quadratic`` is 0.
    """
    return 2 * work / (linear + np.sqrt(linear**2 + 4 * quadratic * work))
