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
