"""Durations of transfers: max-min fair rates between events."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from railx.network.flows.fair import filling_of, per_flow
from railx.network.flows.paths import FlowPaths, kernels
from railx.vocabulary.arrays import FloatArray


def finish_times(
    paths: FlowPaths,
    capacity_gb_s: FloatArray,
    size_bytes: ArrayLike,
    start_ns: ArrayLike = 0.0,
    demand_gb_s: ArrayLike = np.inf,
) -> FloatArray:
    """Arrival of the last byte of each transfer, in ns (float64[transfers]).

    All active transfers share the network max-min fairly. The rates are solved again
    whenever a transfer starts or ends. The last byte leaves when all have been sent and
    flies along the longest path of its flow. Bytes over GB/s are ns.
    """
    size, begin = per_flow(paths, "size_bytes", size_bytes), per_flow(paths, "start_ns", start_ns)
    demand = per_flow(paths, "demand_gb_s", demand_gb_s)
    if (demand == 0).any():
        raise ValueError(
            "demand_gb_s: got 0; allowed: greater than 0, a transfer without a rate never ends"
        )
    end = np.zeros(len(paths))
    order = np.argsort(begin, kind="stable")
    kernels().complete(filling_of(paths, capacity_gb_s, demand), size, begin, order, end)
    arrival: FloatArray = end + paths.latency_ns
    return arrival
