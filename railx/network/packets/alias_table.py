"""Flows drawn by their shares in constant time."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


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
