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
#: The mark of places where packets arrive.
_ARRIVED = 3


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
def _column(seen: Any, vertex: int, index: int, target: int, last: int) -> int:
    """The column of a table for a destination, as a vertex sees it; -1 where it has the
    destination's coordinates up to the level ``last``, beyond all is the destination.
    """
    coordinates, goal, column = seen
    for level in range(min(last + 1, coordinates.shape[1])):
        if coordinates[vertex, level] != goal[index, level]:
            return int(column[index, level])
    if last < coordinates.shape[1] or vertex == target:
        return -1
    return int(column[index, last])


@njit(cache=True)  # type: ignore[untyped-decorator]
def _route(
    graph: Any,
    seen: Any,
    index: int,
    level: int,
    begin: Any,
    sent: tuple[Any, Any],
    work: Any,
    share: float,
    arrivals: Any,
    count: int,
    into: tuple[Any, Any],
    stuck: Any,
    load: Any,
) -> int:
    """Route traffic for destination ``index`` until it arrives on ``level``, and add it
    to ``load``.

    ``sent``: traffic and longest path so far of the slots ``begin``; its traffic is 0
    again afterwards. ``into``: the same of the slots that it arrives at, of whose
    traffic a ``share`` counts. These are appended to the ``count`` ``arrivals``;
    returns how many there are then.
    """
    entry, destinations, start, near, vertex, value, weight, load_slot = graph
    vertices, target = len(seen[0]), destinations[index]
    mark, stack, opening, following, end, order, firsts, lasts, ends = work
    flow, late = sent
    places, arrived = 0, 0
    for first in begin:
        if mark[first] != 0:
            continue
        slot, depth = first, -1
        column = _column(seen, first % vertices, index, target, level)
        while True:
            chosen = entry[slot, column]
            if chosen < 0:
                stuck[0], stuck[1], stuck[2] = _DEAD_END, slot, target
                return count
            depth += 1
            stack[depth], mark[slot] = slot, 1
            at, last = start[chosen], start[chosen + 1]
            opening[depth], end[depth] = at, last
            # On to the next place that is not known, back where there is none.
            while depth >= 0:
                if at == last:
                    slot = stack[depth]
                    mark[slot] = 2
                    order[places], firsts[places], lasts[places] = slot, opening[depth], last
                    places += 1
                    depth -= 1
                    at, last = following[depth], end[depth]
                    continue
                slot = near[at]
                at += 1
                if mark[slot] == 1:
                    stuck[0], stuck[1], stuck[2] = _CIRCLE, slot, target
                    return count
                if mark[slot] == 0:
                    column = _column(seen, vertex[at - 1], index, target, level)
                    if column >= 0:
                        following[depth] = at
                        break
                    mark[slot], ends[arrived] = _ARRIVED, slot
                    arrived += 1
            if depth < 0:
                break
    for i in range(places - 1, -1, -1):
        slot = order[i]
        amount, path = flow[slot], late[slot]
        for at in range(firsts[i], lasts[i]):
            part = amount * weight[at]
            if part == 0:
                continue
            load[load_slot[at]] += part
            then, longer = near[at], path + value[at]
            if mark[then] == _ARRIVED:
                if into[0][then] == 0:
                    arrivals[count], into[1][then] = then, 0.0
                    count += 1
                into[0][then] += part * share
                into[1][then] = max(into[1][then], longer)
            else:
                flow[then] += part
                late[then] = max(late[then], longer)
        flow[slot], late[slot], mark[slot] = 0.0, 0.0, 0
    for slot in ends[:arrived]:
        mark[slot] = 0
    return count


@njit(cache=True)  # type: ignore[untyped-decorator]
def _work(size: int) -> Any:
    """Arrays of :func:`_route` for so many slots."""
    mark, of = np.zeros(size, dtype=np.int8), np.empty((8, size), dtype=np.uint32)
    return mark, of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]


@njit(cache=True)  # type: ignore[untyped-decorator]
def pair_loads(
    graph: Any, seen: Any, first: Any, source: Any, amount: Any, stuck: Any, load: Any
) -> float:
    """Add the traffic of some pairs to ``load`` by option slot; return the longest time
    of flight of their paths.

    ``graph``: the sets by place and column, the destinations, then ``hops`` of
    :class:`railx.vocabulary.routing.analysis.Options`. Destination i has the sources
    ``source[first[i]:first[i + 1]]``, ascending, that send ``amount``. ``seen``:
    coordinates, goal and column of
    :class:`railx.vocabulary.routing.groups.DestinationGroups`. Places are visited as by
    :func:`loads`, so that sums are the same.
    """
    entry, destinations = graph[0], graph[1]
    size, levels = entry.shape[0], seen[0].shape[1]
    work, flows = _work(size), np.zeros((4, size))
    begin, arrivals = np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.uint32)
    longest = 0.0
    for index in range(len(destinations)):
        senders = 0
        for at in range(first[index], first[index + 1]):
            if source[at] != destinations[index]:
                flows[0, source[at]] = amount[at]
                begin[senders] = source[at]
                senders += 1
        count = _route(
            graph,
            seen,
            index,
            levels,
            begin[:senders],
            (flows[0], flows[1]),
            work,
            1.0,
            arrivals,
            0,
            (flows[2], flows[3]),
            stuck,
            load,
        )
        if stuck[0]:
            return longest
        for slot in arrivals[:count]:
            longest = max(longest, flows[3, slot])
            flows[2, slot] = 0.0
    return longest


@njit(cache=True)  # type: ignore[untyped-decorator]
def gather_loads(
    graph: Any, seen: Any, members: Any, amount: float, stuck: Any, load: Any
) -> float:
    """As :func:`pair_loads` where each member of a group sends ``amount`` to every
    other.

    ``members``: indices of destinations, int[groups, members], each group by goal and
    column on the first level, then on the next. Those that are equal on a level take
    one way there, whose traffic is routed once, from all members.
    """
    entry, destinations, (coordinates, goal, column) = graph[0], graph[1], seen
    (vertices, levels), size = coordinates.shape, entry.shape[0]
    work, flow, late = _work(size), np.zeros(size), np.zeros(size)
    begin = np.empty(size, dtype=np.uint32)
    # What has arrived on the levels before one: its slots, their traffic for each
    # destination and longest paths.
    slots = np.empty((levels + 2, size), dtype=np.uint32)
    amounts, paths = np.zeros((levels + 2, size)), np.zeros((levels + 2, size))
    count = np.zeros(levels + 2, dtype=np.int64)
    # The members that remain on a level: the next one, and the first that is left out.
    following, end = np.zeros(levels + 1, dtype=np.int64), np.zeros(levels + 1, dtype=np.int64)
    longest = 0.0
    for group in members:
        for i in range(len(group)):
            chip = destinations[group[i]]
            slots[0, i], amounts[0, chip], paths[0, chip] = chip, amount, 0.0
        count[0], following[0], end[0], level = len(group), 0, len(group), 0
        while level >= 0:
            if following[level] == end[level]:
                for slot in slots[level, : count[level]]:
                    amounts[level, slot] = 0.0
                level -= 1
                continue
            index, until = group[following[level]], following[level] + 1
            while (
                level < levels
                and until < end[level]
                and goal[group[until], level] == goal[index, level]
                and column[group[until], level] == column[index, level]
            ):
                until += 1
            equal = until - following[level]
            senders, arrived = 0, 0
            for slot in slots[level, : count[level]]:
                vertex = slot % vertices
                if _column(seen, vertex, index, destinations[index], level) < 0:
                    slots[level + 1, arrived] = slot
                    amounts[level + 1, slot] = amounts[level, slot]
                    paths[level + 1, slot] = paths[level, slot]
                    arrived += 1
                else:
                    flow[slot], late[slot] = amounts[level, slot] * equal, paths[level, slot]
                    begin[senders] = slot
                    senders += 1
            count[level + 1] = _route(
                graph,
                seen,
                index,
                level,
                begin[:senders],
                (flow, late),
                work,
                1.0 / equal,
                slots[level + 1],
                arrived,
                (amounts[level + 1], paths[level + 1]),
                stuck,
                load,
            )
            if stuck[0]:
                return longest
            if level < levels:
                following[level + 1], end[level + 1] = following[level], until
                following[level] = until
                level += 1
                continue
            following[level] = until
            for slot in slots[level + 1, : count[level + 1]]:
                longest = max(longest, paths[level + 1, slot])
                amounts[level + 1, slot] = 0.0
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


@njit(cache=True)  # type: ignore[untyped-decorator]
def valiant_legs(left: Any, paths: Any, drawn: Any, taken_off: Any) -> int:
    """Add what packets of Valiant's routing leave out, because they meet their
    destination on the way to the drawn class, to ``taken_off``; return the most hops.

    All arrays are of [classes, classes]: ``left`` hops and minimal ``paths`` between
    them, ``drawn`` the traffic from a source to a destination by one drawn class.
    ``taken_off[to, via]``: the legs from ``to`` on to ``via``, and as many back; its
    diagonal has no meaning.
    """
    longest = 0
    for source in range(len(left)):
        for to in range(len(left)):
            if drawn[source, to] == 0:
                continue
            for via in range(len(left)):
                met = 0.0
                if left[source, to] + left[to, via] == left[source, via]:
                    # The share of the paths to the drawn class that meet the router.
                    met = paths[source, to] * paths[to, via] / paths[source, via]
                if met < 1:
                    longest = max(longest, left[source, via] + left[via, to])
                else:
                    longest = max(longest, left[source, to])
                taken_off[to, via] += met * drawn[source, to]
    return int(longest)
