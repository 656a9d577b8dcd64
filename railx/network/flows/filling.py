"""The arrays that the compiled loops of the flow model fill links by."""

from __future__ import annotations

from typing import NamedTuple

from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray


class Filling(NamedTuple):
    """Links by flow (CSR), flows by link (CSR), and limits in GB/s."""

    flow_start: IntArray
    flow_link: Int32Array
    flow_share: FloatArray
    link_start: IntArray
    link_flow: Int32Array
    link_share: FloatArray
    capacity: FloatArray
    """Of all lanes of each link row."""
    demand: FloatArray
    """Of each flow."""
    by_demand: IntArray
    """The flows in ascending order of demand."""
