"""The arrays that the compiled loops of the flow model fill links by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Filling"]


class Filling(NamedTuple):
    """Links by flow (CSR), flows by link (CSR), and limits in GB/s."""

    flow_start: NDArray[np.int64]
    flow_link: NDArray[np.int32]
    flow_share: NDArray[np.float64]
    link_start: NDArray[np.int64]
    link_flow: NDArray[np.int32]
    link_share: NDArray[np.float64]
    capacity: NDArray[np.float64]
    """Of all lanes of each link row."""
    demand: NDArray[np.float64]
    """Of each flow."""
    by_demand: NDArray[np.int64]
    """The flows in ascending order of demand."""
