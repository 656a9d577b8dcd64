"""Compiled loops over routing tables, one destination at a time.

:mod:`railx.vocabulary.routing.analysis` describes them, and the shared argument
``graph``, a :class:`railx.vocabulary.routing.analysis.RoutingGraph`. A slot is state *
vertices + vertex.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_DEAD_END = 1
_CIRCLE = 2


@njit(cache=True)  # type: ignore[untyped-decorator]
def _postorder(graph: Any, index: int, sent: Any, work: Any, stuck: Any) -> int:
    """Write the places that packets for a destination reach to work[3]; return their
    number.

    They are in depth-first postorder from the chips with ``sent`` > 0. work[0]: 0
    unseen, 1 on the path, 2 done; work[1], work[2]: the stack and the next option of
    every slot.
    """
    entry, destinations, link_dst, start, link, state, _ = graph
    target, vertices = destinations[index], entry.shape[1]
    work[0, :] = 0
    mark, stack, following, order = work[0], work[1], work[2], work[3]
    count = 0
    for chip in range(len(sent)):
        if chip == target or mark[chip] != 0 or sent[chip] == 0:
            continue
        depth = 0
        stack[0] = chip
        mark[chip] = 1
        set_number = entry[0, chip, index]
        if set_number < 0:
            stuck[0], stuck[1], stuck[2] = _DEAD_END, chip, target
            return 0
        following[0] = start[set_number]
        while depth >= 0:
            slot = stack[depth]
            set_number = entry[slot // vertices, slot % vertices, index]
            at = following[depth]
            if at == start[set_number + 1]:
                mark[slot] = 2
                order[count] = slot
                count += 1
                depth -= 1
                continue
            following[depth] = at + 1
            vertex = link_dst[link[at]]
            if vertex == target:
                continue
            near = state[at] * vertices + vertex
            if mark[near] == 2:
                continue
            if mark[near] == 1:
                stuck[0], stuck[1], stuck[2] = _CIRCLE, near, target
                return 0
            set_number = entry[state[at], vertex, index]
            if set_number < 0:
                stuck[0], stuck[1], stuck[2] = _DEAD_END, near, target
                return 0
            depth += 1
            stack[depth] = near
            following[depth] = start[set_number]
            mark[near] = 1
    return count


@njit(cache=True)  # type: ignore[untyped-decorator]
def path_sums(graph: Any, values: Any, pairs: Any, longest: bool, stuck: Any, sums: Any) -> None:
    """Fill ``sums`` with the expected sum of ``values`` over the links of a path.

    ``longest``: over the longest path of positive weight instead. ``sums``:
    float[chips, destinations]; ``values``: float[links]. Pairs whose ``pairs``
    (float[chips, destinations]) is 0 may stay 0.
    """
    entry, destinations, link_dst, start, link, state, weight = graph
    states, vertices, count = entry.shape
    chips = pairs.shape[0]
    work = np.zeros((4, states * vertices), dtype=np.int32)
    from_here = np.zeros(states * vertices)
    for index in range(count):
        target = destinations[index]
        reached = _postorder(graph, index, pairs[:, index], work, stuck)
        if stuck[0]:
            return
        for i in range(reached):
            slot = work[3, i]
            set_number = entry[slot // vertices, slot % vertices, index]
            total = 0.0
            for at in range(start[set_number], start[set_number + 1]):
                vertex = link_dst[link[at]]
                beyond = 0.0 if vertex == target else from_here[state[at] * vertices + vertex]
                if not longest:
                    total += weight[at] * (values[link[at]] + beyond)
                elif weight[at] > 0:
                    total = max(total, values[link[at]] + beyond)
            from_here[slot] = total
            if slot < chips:
                sums[slot, index] = total


@njit(cache=True)  # type: ignore[untyped-decorator]
def loads(graph: Any, demand: Any, stuck: Any, load_slot: Any, load: Any) -> None:
    """Add the traffic of ``demand`` (float[chips, destinations]) to ``load`` by option
    slot.
    """
    entry, destinations, link_dst, start, link, state, weight = graph
    states, vertices, count = entry.shape
    chips = demand.shape[0]
    work = np.zeros((4, states * vertices), dtype=np.int32)
    flow = np.zeros(states * vertices)
    for index in range(count):
        target = destinations[index]
        reached = _postorder(graph, index, demand[:, index], work, stuck)
        if stuck[0]:
            return
        flow[:] = 0
        for chip in range(chips):
            if chip != target:
                flow[chip] = demand[chip, index]
        for i in range(reached - 1, -1, -1):
            slot = work[3, i]
            if flow[slot] == 0:
                continue
            set_number = entry[slot // vertices, slot % vertices, index]
            for at in range(start[set_number], start[set_number + 1]):
                part = flow[slot] * weight[at]
                load[load_slot[at]] += part
                vertex = link_dst[link[at]]
                if vertex != target:
                    flow[state[at] * vertices + vertex] += part


@njit(cache=True)  # type: ignore[untyped-decorator]
def dependencies(
    graph: Any, chips: int, stuck: Any, vc: Any, out_index: Any, channels: int, waits: Any
) -> None:
    """Mark in ``waits`` the channels a packet may wait for while it occupies another.

    bool[links * channels, out links * channels].
    """
    entry, destinations, link_dst, start, link, state, _ = graph
    states, vertices, count = entry.shape
    work = np.zeros((4, states * vertices), dtype=np.int32)
    everyone = np.ones((chips, 1))
    for index in range(count):
        target = destinations[index]
        reached = _postorder(graph, index, everyone[:, 0], work, stuck)
        if stuck[0]:
            return
        for i in range(reached):
            slot = work[3, i]
            set_number = entry[slot // vertices, slot % vertices, index]
            for at in range(start[set_number], start[set_number + 1]):
                vertex = link_dst[link[at]]
                if vertex == target:
                    continue
                occupied = link[at] * channels + vc[at]
                beyond = entry[state[at], vertex, index]
                for request in range(start[beyond], start[beyond + 1]):
                    waits[occupied, out_index[link[request]] * channels + vc[request]] = True


@njit(cache=True)  # type: ignore[untyped-decorator]
def _column(seen: Any, vertex: int, index: int) -> int:
    """The column of a table for a destination, as a vertex sees it."""
    coordinates, goal, column = seen
    levels = coordinates.shape[1]
    for level in range(levels):
        if coordinates[vertex, level] != goal[index, level]:
            return int(column[index, level])
    return int(column[index, levels])


@njit(cache=True)  # type: ignore[untyped-decorator]
def pair_loads(
    graph: Any,
    seen: Any,
    first: Any,
    source: Any,
    amount: Any,
    values: Any,
    stuck: Any,
    load_slot: Any,
    load: Any,
) -> float:
    """Add the traffic of some pairs to ``load`` by option slot; return the largest sum
    of ``values`` (float[links]) over any of their paths.

    Destination i has the sources ``source[first[i]:first[i + 1]]``, ascending, that
    send ``amount``. ``seen``: coordinates, goal and column of
    :class:`railx.vocabulary.routing.groups.DestinationGroups`. Places are visited as by
    :func:`loads`, so that sums are the same.
    """
    entry, destinations, link_dst, start, link, state, weight = graph
    states, vertices = entry.shape[0], entry.shape[1]
    mark = np.zeros(states * vertices, dtype=np.int8)
    stack = np.empty(states * vertices, dtype=np.int32)
    following = np.empty(states * vertices, dtype=np.int32)
    end = np.empty(states * vertices, dtype=np.int32)
    order = np.empty(states * vertices, dtype=np.int32)
    sets = np.empty(states * vertices, dtype=np.int32)
    flow, beyond = np.zeros(states * vertices), np.zeros(states * vertices)
    longest = 0.0
    for index in range(len(destinations)):
        target, count = destinations[index], 0
        for at_source in range(first[index], first[index + 1]):
            chip = source[at_source]
            if chip == target:
                continue
            flow[chip] = amount[at_source]
            if mark[chip] != 0:
                continue
            depth = 0
            stack[0], mark[chip], beyond[chip] = chip, 1, 0.0
            sets[chip] = entry[0, chip, _column(seen, chip, index)]
            if sets[chip] < 0:
                stuck[0], stuck[1], stuck[2] = _DEAD_END, chip, target
                return longest
            following[0], end[0] = start[sets[chip]], start[sets[chip] + 1]
            while depth >= 0:
                slot, at = stack[depth], following[depth]
                if at == end[depth]:
                    mark[slot] = 2
                    order[count] = slot
                    count += 1
                    depth -= 1
                    if depth >= 0:
                        at = following[depth] - 1
                        if weight[at] > 0:
                            rest = values[link[at]] + beyond[slot]
                            beyond[stack[depth]] = max(beyond[stack[depth]], rest)
                    continue
                following[depth] = at + 1
                vertex = link_dst[link[at]]
                near = state[at] * vertices + vertex
                if vertex == target or mark[near] == 2:
                    if weight[at] > 0:
                        rest = 0.0 if vertex == target else beyond[near]
                        beyond[slot] = max(beyond[slot], values[link[at]] + rest)
                    continue
                if mark[near] == 1:
                    stuck[0], stuck[1], stuck[2] = _CIRCLE, near, target
                    return longest
                sets[near] = entry[state[at], vertex, _column(seen, vertex, index)]
                if sets[near] < 0:
                    stuck[0], stuck[1], stuck[2] = _DEAD_END, near, target
                    return longest
                depth += 1
                stack[depth], mark[near], beyond[near] = near, 1, 0.0
                following[depth], end[depth] = start[sets[near]], start[sets[near] + 1]
        for at_source in range(first[index], first[index + 1]):
            if source[at_source] != target:
                longest = max(longest, beyond[source[at_source]])
        for i in range(count - 1, -1, -1):
            slot = order[i]
            for at in range(start[sets[slot]], start[sets[slot] + 1]):
                if flow[slot] == 0:
                    break
                part = flow[slot] * weight[at]
                load[load_slot[at]] += part
                vertex = link_dst[link[at]]
                if vertex != target:
                    flow[state[at] * vertices + vertex] += part
            flow[slot], mark[slot] = 0.0, 0
    return longest


@njit(cache=True)  # type: ignore[untyped-decorator]
def minimal_loads(
    left: Any,
    paths: Any,
    start: Any,
    near: Any,
    gbps: Any,
    latency_ns: Any,
    at: Any,
    demand: Any,
    load: Any,
) -> float:
    """Add the traffic of ``demand`` on minimal paths to ``load`` (float[neighbours]);
    return the longest flight.

    The neighbours of vertex v are ``near[start[v]:start[v + 1]]``; packets take one
    that is closer by bandwidth times the ``paths`` from there (int, float[vertices,
    classes]). ``demand[i, j]``: from vertex ``at[i]`` to class j.
    """
    vertices, classes = left.shape
    flow, arrival_ns = np.zeros(vertices), np.zeros(vertices)
    queue = np.empty((left[at].max() + 1, vertices), dtype=np.int32)
    size = np.zeros(len(queue), dtype=np.int64)
    waits = np.zeros(vertices, dtype=np.bool_)
    longest_ns = 0.0
    for to in range(classes):
        for source in range(len(at)):
            vertex = at[source]
            if demand[source, to] != 0 and left[vertex, to] > 0:
                hops = left[vertex, to]
                queue[hops, size[hops]], waits[vertex] = vertex, True
                size[hops] += 1
                flow[vertex] = demand[source, to]
        for hops in range(len(queue) - 1, 0, -1):
            for i in range(size[hops]):
                vertex, total = queue[hops, i], 0.0
                for edge in range(start[vertex], start[vertex + 1]):
                    if left[near[edge], to] == hops - 1:
                        total += gbps[edge] * paths[near[edge], to]
                for edge in range(start[vertex], start[vertex + 1]):
                    end = near[edge]
                    if left[end, to] != hops - 1:
                        continue
                    part = flow[vertex] * (gbps[edge] * paths[end, to] / total)
                    load[edge] += part
                    reached_ns = arrival_ns[vertex] + latency_ns[edge]
                    if hops == 1:
                        longest_ns = max(longest_ns, reached_ns)
                        continue
                    flow[end] += part
                    arrival_ns[end] = max(arrival_ns[end], reached_ns)
                    if not waits[end]:
                        queue[hops - 1, size[hops - 1]], waits[end] = end, True
                        size[hops - 1] += 1
                flow[vertex], arrival_ns[vertex], waits[vertex] = 0.0, 0.0, False
            size[hops] = 0
    return longest_ns
