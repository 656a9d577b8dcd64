"""Types of arrays, indices, and columns of tables as arrays."""

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


def offsets(lengths: IntArray) -> IntArray:
    """0 to below each length, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def index_in_group(group: NDArray[np.integer]) -> IntArray:
    """The index of each item among those of its group (0 or more), in order."""
    index = np.empty(len(group), dtype=np.int64)
    index[np.argsort(group, kind="stable")] = offsets(np.bincount(group))
    return index


def as_integers(column: Any, kind: Any) -> Any:
    """A column of a table as integers of a numpy type.

    ValueError where it has other values or nulls.
    """
    values = column.to_numpy()
    limits = np.iinfo(kind)
    if values.dtype.kind not in "iu" or (
        len(values) and (values.min() < limits.min or values.max() > limits.max)
    ):
        raise ValueError(f"{values.dtype} {values[:1]}, no {limits.dtype}")
    return values.astype(kind)
