"""Short sequences into chunks, compiled: see ``railx.planning.chunks``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["pack"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: A share of a limit that rounding of sums may take.
_ROUNDING = 1e-9


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def pack(
    short: Integers,
    short_ms: Floats,
    tail_tokens: Integers,
    tail_ms: Floats,
    constant_ms: float,
    most_ms: float,
    most_tokens: int,
    chunking: int,
) -> tuple[Integers, int]:
    """The bin of each short sequence [n], and how many bins there are.

    Best-fit-decreasing with two limits, tokens hard and time soft. Bins begin with the
    tails, ``short`` descends. ``chunking``: 0 balanced, 1 published, 2 even.
    """
    place = np.empty(len(short), np.int64)
    tokens = np.empty(len(tail_tokens) + len(short), np.int64)
    times = np.empty(len(tokens))
    bins = len(tail_tokens)
    tokens[:bins] = tail_tokens
    times[:bins] = tail_ms
    for index in range(len(short)):
        added, added_ms = short[index], short_ms[index]
        if chunking == 1:
            # The target rises to what the least loaded bin with room needs.
            least = np.inf
            for one in range(bins):
                if tokens[one] + added <= most_tokens:
                    least = min(least, times[one])
            if least < np.inf:
                most_ms = max(most_ms, least + added_ms)
        best, best_score = -1, -np.inf
        for one in range(bins):
            if tokens[one] + added > most_tokens:
                continue
            if times[one] + added_ms > most_ms * (1 + _ROUNDING):
                continue
            if chunking == 0:
                score = times[one]
            elif chunking == 1:
                score = -times[one] / tokens[one]
            else:
                score = float(tokens[one])
            if score > best_score:
                best, best_score = one, score
        if best < 0:
            best = bins
            bins += 1
            tokens[best] = 0
            times[best] = constant_ms
        place[index] = best
        tokens[best] += added
        times[best] += added_ms
    return place, bins
