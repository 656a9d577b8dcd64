"""The event simulation of 1F1B on arrays, compiled.

Planners that rank hundreds of pipelines take it in place of
``railx.planning.simulation``; tests hold the two equal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["one_f_one_b_ms"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def one_f_one_b_ms(
    forward: Floats, back: Floats, sends: Floats, backward: Integers, longest_split: int
) -> float:
    """Time of chunks [n] with ``forward`` [n], ``back`` [d, n] and ``sends`` [n] in ms.

    ``backward`` [n] are chunks in backward order, ``longest_split`` is N_split.
    """
    stages, chunks = back.shape
    ends = np.full((stages, 2, chunks), -1.0)
    clocks = np.zeros(stages)
    positions = np.zeros(stages, np.int64)
    left = 2 * chunks * stages
    while left:
        for stage in range(stages):
            warm = min(stages - stage + longest_split - 2, chunks)
            while positions[stage] < 2 * chunks:
                position = positions[stage]
                steady = position - warm
                if steady < 0:
                    kind, chunk = 0, position
                elif steady < 2 * (chunks - warm):
                    kind = steady % 2
                    chunk = backward[steady // 2] if kind else warm + steady // 2
                else:
                    kind, chunk = 1, backward[position - chunks]
                begins = clocks[stage]
                other = stage - 1 if kind == 0 else stage + 1
                if 0 <= other < stages:
                    ready = ends[other, kind, chunk]
                    if ready < 0:
                        break
                    begins = max(begins, ready + sends[chunk])
                takes = back[stage, chunk] if kind else forward[chunk]
                ends[stage, kind, chunk] = clocks[stage] = begins + takes
                positions[stage] += 1
                left -= 1
    return float(clocks.max())
