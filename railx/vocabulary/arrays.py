"""Types of arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]
#: Indices of vertices, links, sets and pools in tables.
Int32Array: TypeAlias = NDArray[np.int32]
IntArray: TypeAlias = NDArray[np.int64]


def true_indices(mask: BoolArray) -> IntArray:
    """The indices of what is true on the last axis, then -1: int[..., most of them]."""
    order = np.argsort(~mask, axis=-1, kind="stable")[..., : int(mask.sum(axis=-1).max())]
    return np.where(np.take_along_axis(mask, order, axis=-1), order, -1)
