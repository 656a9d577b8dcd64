"""Batches of few or equal sequences: their optima.

A batch of few sequences is solved by two dynamic programmes over its subsets
(:func:`optimum`), each with the subset's longest sequence in the first part so that no
division is looked at twice:

* one micro-batch: the least time of a subset on so many devices is the least, over the
  group that its longest sequence is in, of the later of that group and of the others on
  the devices that are left;
* the batch: the least time of a subset is that of the micro-batch of its longest
  sequence and of what is left after it.

Both try every division, every mix of degrees and every number of micro-batches, so
that what they find is the optimum. Work grows with 3 to the power of the sequences and
is counted in looks at a group, as in the search: :data:`MOST_SEQUENCES` is where the
search costs as much.

In a batch of equal sequences only their number in each group counts
(:func:`optimum_of_equals`). Where every degree divides the next one, any groups side by
side lie in blocks of the larger degrees, so that a block holds most either as one group
or as the two halves that hold most. This gives the most sequences of a micro-batch
within each time, hence the least time of each number of them, and a programme over how
many sequences are left divides the batch. Nearly equal sequences are counted in the
same way and then dealt by length (:func:`plan_of_near_equals`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from railx.planning.compiled import compiled, inner
from railx.planning.packing import Floats, Integers
from railx.planning.sequence.exchanges import shortened
from railx.planning.sequence.search import Problem, SearchResult

#: Most sequences of a batch that is solved.
MOST_SEQUENCES = 12
#: Most sequences of a batch of equal sequences that is solved.
MOST_EQUALS = 2048


def optimum(problem: Problem) -> SearchResult:
    """The fastest plan of at most :data:`MOST_SEQUENCES` sequences.

    Micro-batches come with falling times, so that plans of the same times have the same
    sum to the last bit. The time is infinite where a sequence fits no degree.
    """
    return _falling(problem, *_optimum(problem, _devices_of_use(problem)))


def optimum_of_equals(problem: Problem) -> SearchResult:
    """The fastest plan of sequences of one length, at degrees that are powers of two.

    Micro-batches come with falling times. The time is infinite where a sequence fits no
    degree.
    """
    n, degree = len(problem.tokens), problem.degree
    most = np.minimum(problem.cap * degree // problem.tokens[0], n).astype(np.int64)
    #: Times of groups of 1, 2, ... sequences at each degree.
    loads = [
        problem.share_ms[0, k] * np.arange(1, most[k] + 1) + problem.latency[k]
        for k in range(len(degree))
    ]
    limits = np.unique(np.concatenate(loads))
    alone = np.array([np.searchsorted(times, limits, "right") for times in loads])
    block = alone.copy()
    for k in range(1, len(degree)):
        block[k] = np.maximum(alone[k], block[k - 1] * (degree[k] // degree[k - 1]))
    blocks = _blocks(problem)
    capacity = sum(block[k] for k in blocks)
    sizes = np.arange(1, min(n, int(capacity[-1]) if len(limits) else 0) + 1)
    within = np.searchsorted(capacity, sizes, "left") if len(sizes) else sizes
    parts = _parts(n, limits[within] + problem.constant_ms)
    micro_batch, group = np.zeros(n, np.int64), np.zeros(n, np.int64)
    kind = np.zeros((len(parts), n), np.int64)
    first = 0
    for m, size in enumerate(parts):
        limit = within[size - 1]
        left, groups = size, 0
        waiting = list(blocks)
        while left:
            k = waiting.pop(0)
            if alone[k, limit] < block[k, limit]:
                waiting[:0] = [k - 1] * int(degree[k] // degree[k - 1])
                continue
            taken = min(left, int(alone[k, limit]))
            if taken:
                micro_batch[first : first + taken], group[first : first + taken] = m, groups
                kind[m, groups] = k
                first, left, groups = first + taken, left - taken, groups + 1
    times = limits[[within[size - 1] for size in parts]]
    return _falling(problem, micro_batch, group, kind, times, limits.size * len(degree))


def plan_of_near_equals(problem: Problem, kicks: int, seed: int) -> SearchResult:
    """The fastest plan found of sequences of nearly one length.

    Their number in each group comes from plans of equal sequences, as long as the
    longest or the shortest, or from an even division over groups of one degree. Each is
    bettered by exchanges and ``kicks``, which also make room where memory is short.
    Degrees are powers of two; the time is infinite where no plan fits.
    """
    n = len(problem.tokens)
    if problem.tokens[0] == problem.tokens[-1]:
        return optimum_of_equals(problem)
    counts = []
    for row in (np.zeros(n, np.int64), np.full(n, n - 1)):
        alike = problem._replace(tokens=problem.tokens[row], share_ms=problem.share_ms[row])
        counts.append(optimum_of_equals(alike))
    even = [
        _dealt(problem, _even(problem, k, more))
        for k in range(len(problem.degree))
        for more in range(2)
    ]
    starts = [_dealt(problem, equals) for equals in counts if len(equals.limits)]
    starts.append(min(even, key=lambda plan: plan.time_ms))
    return min(
        (shortened(problem, start, kicks, seed) for start in starts), key=lambda plan: plan.time_ms
    )


def _even(problem: Problem, k: int, more: int) -> SearchResult:
    """Sequences divided evenly over groups of one degree.

    There are the fewest micro-batches that memory allows and ``more``.
    """
    n, side_by_side = len(problem.tokens), problem.devices // int(problem.degree[k])
    room = problem.cap * problem.degree[k] * side_by_side
    micro_batches = math.ceil(problem.tokens.sum() / room) + more
    group = np.sort(np.arange(n) % (micro_batches * side_by_side))
    kind = np.full((micro_batches, side_by_side), k)
    return SearchResult(
        math.inf, group // side_by_side, group % side_by_side, kind, np.zeros(micro_batches), n
    )


def _dealt(problem: Problem, counts: SearchResult) -> SearchResult:
    """The plan with as many sequences in each group as ``counts`` has.

    Groups with fewer sequences a device take longer ones. Groups alike take turns,
    forwards and backwards.
    """
    n = len(problem.tokens)
    _, first, group, size = np.unique(
        counts.micro_batch * n + counts.group,
        return_index=True, return_inverse=True, return_counts=True,
    )  # fmt: skip
    turn = np.arange(n) - first[group]
    degree = problem.degree[counts.kind[counts.micro_batch, counts.group]]
    order = np.lexsort((np.where(turn % 2, -group, group), turn, degree, size[group] / degree))
    return _timed(
        problem, counts.micro_batch[order], counts.group[order], counts.kind, counts.looks
    )


def _blocks(problem: Problem) -> list[int]:
    """Places of the degrees that all devices are divided into, the largest first."""
    blocks, left = [], problem.devices
    for k in range(len(problem.degree) - 1, -1, -1):
        count, left = divmod(left, int(problem.degree[k]))
        blocks += [k] * min(count, len(problem.tokens))
    return blocks


def _parts(n: int, time_ms: Floats) -> list[int]:
    """Sequences of each micro-batch for the least total time of ``n`` sequences.

    ``time_ms`` [s] are the times of micro-batches of 1, 2, ... sequences.
    """
    best, last = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
    best[0] = 0.0
    for count in range(1, n + 1):
        most = min(count, len(time_ms))
        if most:
            total = best[count - most : count][::-1] + time_ms[:most]
            last[count] = int(total.argmin()) + 1
            best[count] = total[last[count] - 1]
    parts = []
    left = n if best[n] < np.inf else 0
    while left:
        parts.append(int(last[left]))
        left -= parts[-1]
    return parts


def _falling(
    problem: Problem, micro_batch: Integers, group: Integers, kind: Integers, times: Floats,
    looks: int,
) -> SearchResult:  # fmt: skip
    """The plan with its micro-batches in the order of their times, longest first."""
    if len(times) == 0:
        return SearchResult(math.inf, micro_batch, group, kind, times, int(looks))
    falling = np.argsort(-times, kind="stable")
    rank = np.argsort(falling)
    times = times[falling]
    total = float(sum(times)) + len(times) * problem.constant_ms
    return SearchResult(total, rank[micro_batch], group, kind[falling], times, int(looks))


def _devices_of_use(problem: Problem) -> int:
    """Devices beyond which every sequence could be alone at its fastest degree."""
    soonest = problem.degree[problem.alone.argmin(axis=1)]
    return min(problem.devices, int(soonest.sum()))


@inner
def _times(problem: Any) -> Any:
    """Time of every subset in a group of each degree [s, k]; infinite if memory is
    short.
    """
    n, kinds = len(problem.tokens), len(problem.degree)
    tokens, time = np.zeros(1 << n), np.zeros((1 << n, kinds))
    time[0] = problem.latency
    for subset in range(1, 1 << n):
        last = 0
        while subset >> (last + 1):
            last += 1
        before = subset ^ (1 << last)
        tokens[subset] = tokens[before] + problem.tokens[last]
        for k in range(kinds):
            time[subset, k] = time[before, k] + problem.share_ms[last, k]
            if tokens[subset] > problem.cap * problem.degree[k]:
                time[subset, k] = np.inf
    return time


@inner
def _groups(time: Any, degree: Any, devices: int) -> Any:
    """The least time of every subset on 0 to ``devices`` devices [s, f].

    With it, the group of its longest sequence: its members and degree [s, f], written
    as subset times degrees plus place of the degree. And the looks at a group.
    """
    subsets, kinds = time.shape
    best_ms = np.full((subsets, devices + 1), np.inf)
    chosen = np.zeros((subsets, devices + 1), np.int64)
    best_ms[0] = 0.0
    looks = 0
    for subset in range(1, subsets):
        longest = subset & -subset
        others = subset ^ longest
        part = others
        while True:
            with_it = part | longest
            rest = subset ^ with_it
            fastest = np.inf
            for k in range(kinds):
                # More devices at no less time are useless.
                if time[with_it, k] < fastest:
                    fastest = time[with_it, k]
                    looks += max(devices + 1 - degree[k], 0)
                    for free in range(degree[k], devices + 1):
                        later = max(fastest, best_ms[rest, free - degree[k]])
                        if later < best_ms[subset, free]:
                            best_ms[subset, free] = later
                            chosen[subset, free] = with_it * kinds + k
            if part == 0:
                break
            part = (part - 1) & others
    return best_ms, chosen, looks


@compiled
def _optimum(problem: Any, devices: int) -> Any:
    """The plan: micro-batch and group of each sequence, degrees, times; and looks."""
    n, kinds = len(problem.tokens), len(problem.degree)
    time = _times(problem)
    best_ms, chosen, looks = _groups(time, problem.degree, devices)
    everything = (1 << n) - 1
    best, first = np.full(everything + 1, np.inf), np.zeros(everything + 1, np.int64)
    best[0] = 0.0
    for subset in range(1, everything + 1):
        longest = subset & -subset
        others = subset ^ longest
        part = others
        while True:
            with_it = part | longest
            looks += 1
            total = best[subset ^ with_it] + best_ms[with_it, devices] + problem.constant_ms
            if total < best[subset]:
                best[subset], first[subset] = total, with_it
            if part == 0:
                break
            part = (part - 1) & others
    micro_batch, group = np.zeros(n, np.int64), np.zeros(n, np.int64)
    kind, times, count = np.zeros((n, n), np.int64), np.zeros(n), 0
    left = everything if best[everything] < np.inf else 0
    while left:
        inside, free, groups = first[left], devices, 0
        left ^= inside
        times[count] = best_ms[inside, free]
        while inside:
            members, k = chosen[inside, free] // kinds, chosen[inside, free] % kinds
            for i in range(n):
                if members >> i & 1:
                    micro_batch[i], group[i] = count, groups
            kind[count, groups] = k
            groups += 1
            free -= problem.degree[k]
            inside ^= members
        count += 1
    return micro_batch, group, kind[:count], times[:count], looks


def _timed(
    problem: Problem, micro_batch: Integers, group: Integers, kinds: Integers, looks: int
) -> SearchResult:
    """The plan of sequences [n] in groups of degrees ``kinds`` [m, g].

    Unused micro-batches are left out. The time is infinite where a group has more
    tokens than its memory holds.
    """
    loads, tokens = np.zeros(kinds.shape), np.zeros(kinds.shape)
    rows = np.arange(len(micro_batch))
    np.add.at(loads, (micro_batch, group), problem.share_ms[rows, kinds[micro_batch, group]])
    np.add.at(tokens, (micro_batch, group), problem.tokens)
    times = np.where(tokens > 0, loads + problem.latency[kinds], 0.0).max(axis=1)
    used, rank = np.unique(micro_batch, return_inverse=True)
    plan = _falling(problem, rank, group, kinds[used], times[used], looks)
    is_over = (tokens > problem.cap * problem.degree[kinds]).any()
    return plan._replace(time_ms=math.inf) if is_over else plan
