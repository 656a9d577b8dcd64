"""Max-min fair rates of flows (Bertsekas and Gallager 1992), and durations of transfers
at them.

A flow can only gain at the cost of one with no higher rate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from railx.network.flows.filling import Filling
from railx.network.flows.paths import FlowPaths, kernels, route_flows
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology


def max_min_rates(
    topology: Topology,
    routing: str | RoutingTable,
    src: ArrayLike,
    dst: ArrayLike,
    demand_gb_s: ArrayLike = np.inf,
) -> FloatArray:
    """Max-min fair rate of each flow from chip ``src[f]`` to chip ``dst[f]``.

    float64[flows], GB/s, exact up to rounding. Every flow splits over its paths in
    fixed shares, the weights of the routing. ``demand_gb_s`` (a number or one per flow)
    limits a flow's rate. A flow from a chip to itself gets its whole demand. Give a
    routing by name for large networks, so that its table is made a block of
    destinations at a time.
    """
    return fair_rates(route_flows(topology, routing, src, dst), link_gb_s(topology), demand_gb_s)


def fair_rates(
    paths: FlowPaths, capacity_gb_s: FloatArray, demand_gb_s: ArrayLike = np.inf
) -> FloatArray:
    """Max-min fair rates on paths; ``capacity_gb_s`` (float64[links]): of all lanes."""
    demand = per_flow(paths, "demand_gb_s", demand_gb_s)
    rate = np.zeros(len(paths))
    active = np.ones(len(paths), dtype=np.bool_)
    kernels().fill(filling_of(paths, capacity_gb_s, demand), active, rate)
    return rate


def link_gb_s(topology: Topology) -> FloatArray:
    """Capacity of each link row, all lanes, one direction, in GB/s (float64[links])."""
    return topology.links.capacity_gbps / 8


def filling_of(paths: FlowPaths, capacity: FloatArray, demand: FloatArray) -> Filling:
    """The arrays of flows on paths, with capacities of rows and demands of flows."""
    flow = np.repeat(np.arange(len(paths), dtype=np.int32), np.diff(paths.start))
    by_link = np.argsort(paths.link, kind="stable")
    link_start = np.concatenate(
        [[0], np.cumsum(np.bincount(paths.link, minlength=len(capacity)))]
    ).astype(np.int64)
    by_flow = (paths.start, paths.link, paths.share)
    order = np.argsort(demand, kind="stable")
    # Only flows that use no link reach an unlimited demand.
    by_row = (link_start, flow[by_link], paths.share[by_link])
    return Filling(*by_flow, *by_row, capacity, demand, order)


def per_flow(paths: FlowPaths, key: str, values: ArrayLike) -> FloatArray:
    """One number per flow, none below 0; ValueError names ``key``."""
    given = np.asarray(values, dtype=np.float64)
    if given.shape not in ((), (len(paths),)):
        raise ValueError(
            f"{key}: shape {given.shape}; allowed: one number or {len(paths)}, one a flow"
        )
    if (given < 0).any() or np.isnan(given).any():
        raise ValueError(f"{key}: got {given.min()}; allowed: 0 or greater")
    return np.broadcast_to(given, len(paths)).copy()


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
