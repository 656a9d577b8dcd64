"""Compiled loops of the flow model: flows over paths, filling of links, completions."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numba import njit

from railx.network.flows.filling import Filling
from railx.vocabulary.arrays import BoolArray, FloatArray, IntArray
from railx.vocabulary.routing.analysis import RoutingGraph

#: Levels and finish times whose relative difference is below this are one event;
#: smaller differences are rounding.
_SAME = 1e-9


@njit(cache=True)  # type: ignore[untyped-decorator]
def spread(
    graph: RoutingGraph,
    latency: FloatArray,
    src: IntArray,
    column: IntArray,
    stuck: IntArray,
    flow_start: IntArray,
    flow_latency: FloatArray,
) -> Any:
    """Walk each flow's unit of traffic hop by hop through its places (state, vertex).

    Returns links and shares, flow by flow. ``stuck`` reports (kind, place, flow): kind
    1 for a dead end, 2 for an endless cycle.
    """
    entry, destinations, link_dst, start, link, state, weight = graph
    vertices = entry.shape[1]
    places = entry.shape[0] * vertices
    mark = np.full(places, -1, dtype=np.int64)
    slot_now, slot_next = np.empty(places, dtype=np.int64), np.empty(places, dtype=np.int64)
    share_now, share_next = np.empty(places), np.empty(places)
    delay_now, delay_next = np.empty(places), np.empty(places)
    used = np.full(len(link_dst), -1, dtype=np.int64)
    out_link = np.empty(max(1024, 16 * len(src)), dtype=np.int32)
    out_share = np.empty(len(out_link))
    filled = 0
    for flow in range(len(src)):
        first = filled
        to = destinations[column[flow]]
        slowest = 0.0
        number = 0
        if src[flow] != to:
            slot_now[0], share_now[0], delay_now[0] = src[flow], 1.0, 0.0
            number = 1
        hops = 0
        while number > 0:
            hops += 1
            if hops > places:
                stuck[0], stuck[1], stuck[2] = 2, slot_now[0], flow
                return out_link[:0], out_share[:0]
            following = 0
            for i in range(number):
                slot = slot_now[i]
                chosen = entry[slot // vertices, slot % vertices, column[flow]]
                if chosen < 0:
                    stuck[0], stuck[1], stuck[2] = 1, slot, flow
                    return out_link[:0], out_share[:0]
                for option in range(start[chosen], start[chosen + 1]):
                    if weight[option] <= 0:
                        continue
                    row, amount = link[option], share_now[i] * weight[option]
                    if used[row] >= first:
                        out_share[used[row]] += amount
                    else:
                        if filled == len(out_link):
                            longer_link, longer_share = (
                                np.empty(2 * filled, dtype=np.int32),
                                np.empty(2 * filled),
                            )
                            longer_link[:filled], longer_share[:filled] = out_link, out_share
                            out_link, out_share = longer_link, longer_share
                        used[row] = filled
                        out_link[filled], out_share[filled] = row, amount
                        filled += 1
                    vertex, delay = link_dst[row], delay_now[i] + latency[row]
                    if vertex == to:
                        slowest = max(slowest, delay)
                        continue
                    after = state[option] * vertices + vertex
                    if mark[after] < 0:
                        mark[after] = following
                        slot_next[following], share_next[following], delay_next[following] = (
                            after,
                            amount,
                            delay,
                        )
                        following += 1
                    else:
                        share_next[mark[after]] += amount
                        delay_next[mark[after]] = max(delay_next[mark[after]], delay)
            for i in range(following):
                mark[slot_next[i]] = -1
            slot_now, slot_next = slot_next, slot_now
            share_now, share_next = share_next, share_now
            delay_now, delay_next = delay_next, delay_now
            number = following
        flow_start[flow + 1] = filled
        flow_latency[flow] = slowest
    return out_link[:filled].copy(), out_share[:filled].copy()


@njit(cache=True)  # type: ignore[untyped-decorator]
def fill(filling: Filling, active: BoolArray, rate: FloatArray) -> None:
    """Progressive filling: the rates of all open flows rise together.

    They rise until a link is full or a demand is met, which closes those flows. Closing
    flows at the common level can only raise the level at which another link fills up,
    so a heap of possibly outdated levels is exact: the loop updates the top entry
    before use.
    """
    flow_start, flow_link, flow_share = filling.flow_start, filling.flow_link, filling.flow_share
    link_start, link_flow, link_share = filling.link_start, filling.link_flow, filling.link_share
    capacity, demand, by_demand = filling.capacity, filling.demand, filling.by_demand
    links = len(capacity)
    taken, weight, count = np.zeros(links), np.zeros(links), np.zeros(links, dtype=np.int64)
    opened = active.copy()
    rate[active] = 0.0
    for flow in range(len(active)):
        if active[flow]:
            for k in range(flow_start[flow], flow_start[flow + 1]):
                weight[flow_link[k]] += flow_share[k]
                count[flow_link[k]] += 1
    heap = [(capacity[row] / weight[row], row) for row in range(links) if count[row] > 0]
    heap.append((np.inf, -1))
    heapq.heapify(heap)
    next_demand = 0
    level = 0.0
    while True:
        fills, row = heap[0]
        # Flows whose demand is met below the level of the next full link.
        while next_demand < len(by_demand) and not opened[by_demand[next_demand]]:
            next_demand += 1
        if next_demand < len(by_demand) and demand[by_demand[next_demand]] <= fills:
            flow = by_demand[next_demand]
            level = max(level, demand[flow])
            opened[flow] = False
            rate[flow] = demand[flow]
            for k in range(flow_start[flow], flow_start[flow + 1]):
                taken[flow_link[k]] += flow_share[k] * demand[flow]
                weight[flow_link[k]] -= flow_share[k]
                count[flow_link[k]] -= 1
            continue
        if row < 0:
            break
        heapq.heappop(heap)
        if count[row] == 0:
            continue
        if weight[row] > 0:
            current = (capacity[row] - taken[row]) / weight[row]
            if current > fills * (1 + _SAME):
                heapq.heappush(heap, (current, row))
                continue
        # The running sums carry rounding; the closing level is computed from the link's
        # flows.
        load, open_share = 0.0, 0.0
        for k in range(link_start[row], link_start[row + 1]):
            flow = link_flow[k]
            if opened[flow]:
                open_share += link_share[k]
            elif active[flow]:
                load += link_share[k] * rate[flow]
        taken[row], weight[row] = load, open_share
        exact = (capacity[row] - load) / open_share
        if exact > fills * (1 + 10 * _SAME):
            heapq.heappush(heap, (exact, row))
            continue
        level = max(level, exact)
        for k in range(link_start[row], link_start[row + 1]):
            flow = link_flow[k]
            if not opened[flow]:
                continue
            opened[flow] = False
            rate[flow] = min(level, demand[flow])
            for j in range(flow_start[flow], flow_start[flow + 1]):
                taken[flow_link[j]] += flow_share[j] * rate[flow]
                weight[flow_link[j]] -= flow_share[j]
                count[flow_link[j]] -= 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def complete(
    filling: Filling, size: FloatArray, begin: FloatArray, by_begin: IntArray, end: FloatArray
) -> int:
    """Run all transfers to their end; rates are max-min fair between two events.

    ``end``: when the last byte has left. Returns the number of events.
    """
    flow_start, demand = filling.flow_start, filling.demand
    flows = len(size)
    left = size.copy()
    active = np.zeros(flows, dtype=np.bool_)
    rate = np.zeros(flows)
    now, started, running, events = 0.0, 0, 0, 0
    while started < flows or running > 0:
        if running == 0:
            now = max(now, begin[by_begin[started]])
        while started < flows and begin[by_begin[started]] <= now * (1 + 1e-15):
            flow = by_begin[started]
            started += 1
            if left[flow] <= 0 or (
                flow_start[flow] == flow_start[flow + 1] and demand[flow] == np.inf
            ):
                end[flow] = now
            else:
                active[flow] = True
                running += 1
        if running == 0:
            continue
        fill(filling, active, rate)
        events += 1
        step = np.inf
        for flow in range(flows):
            if active[flow]:
                step = min(step, left[flow] / rate[flow])
        until = begin[by_begin[started]] if started < flows else np.inf
        finishing = now + step <= until
        step = step if finishing else until - now
        for flow in range(flows):
            if active[flow]:
                if finishing and left[flow] <= rate[flow] * step * (1 + _SAME):
                    left[flow] = 0.0
                    active[flow] = False
                    running -= 1
                    end[flow] = now + step
                else:
                    left[flow] -= rate[flow] * step
        now = now + step if finishing else until
    return events
