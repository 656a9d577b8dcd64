"""Compiled loops beside the engine: mean latency over all paths of a routing table in
an empty network, and the table by which flows are drawn by their shares.
"""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True)
def latency_sum(
    entry: Any,
    first: int,
    chips: int,
    total: float,
    set_start: Any,
    share: Any,
    follow: Any,
    end: Any,
    step: Any,
    last_step: Any,
) -> Any:
    """``total`` plus the expected unloaded latency from all ``chips`` to some chips.

    ``entry`` (int32[states, vertices, targets]) leads to chip ``first`` and those after
    it. Latency counts from the source's first routing to the arrival of the tail. Of
    each choice: ``share``, state after the hop (``follow``), vertex at the end of the
    hop, cycles of the hop, and cycles if it is the last one. NaN where a packet does
    not arrive.
    """
    states, vertices, targets = entry.shape
    value = np.empty((states, vertices))
    for column in range(targets):
        target = first + column
        value[:] = np.nan
        changed = True
        while changed:
            changed = False
            for state in range(states):
                for vertex in range(vertices):
                    set_number = entry[state, vertex, column]
                    if set_number < 0 or not np.isnan(value[state, vertex]):
                        continue
                    expected = 0.0
                    for i in range(set_start[set_number], set_start[set_number + 1]):
                        if share[i] > 0:
                            if end[i] == target:
                                expected += share[i] * last_step[i]
                            else:
                                expected += share[i] * (step[i] + value[follow[i], end[i]])
                    if not np.isnan(expected):
                        value[state, vertex] = expected
                        changed = True
        for chip in range(chips):
            if chip != target:
                total += value[0, chip]
    return total


@njit(cache=True)
def alias_table(share: Any, accept: Any, alias: Any) -> None:
    """Vose's table: flow i is kept with probability accept[i], else replaced by
    alias[i].
    """
    count = len(share)
    mean = share.sum() / count
    small = np.empty(count, np.int64)
    large = np.empty(count, np.int64)
    smalls = larges = 0
    for i in range(count):
        accept[i] = share[i] / mean
        alias[i] = i
        if accept[i] < 1:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls > 0 and larges > 0:
        smalls -= 1
        less, more = small[smalls], large[larges - 1]
        alias[less] = more
        accept[more] -= 1 - accept[less]
        if accept[more] < 1:
            larges -= 1
            small[smalls] = more
            smalls += 1
    for i in range(smalls):
        accept[small[i]] = 1
    for i in range(larges):
        accept[large[i]] = 1
