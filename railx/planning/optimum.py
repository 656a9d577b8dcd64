"""The fastest plan of a batch of few sequences, by programmes over its subsets.

Two dynamic programmes, each with the subset's longest sequence in the first part so
that no division is looked at twice:

* one micro-batch: the least time of a subset on so many devices is the least, over the
  group that its longest sequence is in, of the later of that group and of the others on
  the devices that are left;
* the batch: the least time of a subset is that of the micro-batch of its longest
  sequence and of what is left after it.

Both try every division, every mix of degrees and every number of micro-batches, so
that what they find is the optimum. Work grows with 3 to the power of the sequences and
is counted in looks at a group, as in the search: :data:`MOST_SEQUENCES` is where the
search costs as much.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from railx.planning.search import Found, Problem

__all__ = ["MOST_SEQUENCES", "optimum"]

#: Batches of at most so many sequences are solved.
MOST_SEQUENCES = 12


def optimum(problem: Problem) -> Found:
    """The fastest plan of at most :data:`MOST_SEQUENCES` sequences.

    Micro-batches come with falling times, so that plans of the same times have the same
    sum to the last bit. The time is infinite where a sequence fits no degree.
    """
    micro_batch, group, kind, times, looks = _optimum(problem, _devices_of_use(problem))
    if len(times) == 0:
        return Found(math.inf, micro_batch, group, kind, times, int(looks))
    falling = np.argsort(-times, kind="stable")
    place = np.argsort(falling)
    times = times[falling]
    total = float(sum(times)) + len(times) * problem.constant_ms
    return Found(total, place[micro_batch], group, kind[falling], times, int(looks))


def _devices_of_use(problem: Problem) -> int:
    """With more, every sequence could be alone at the degree that ends it soonest."""
    soonest = problem.degree[problem.alone.argmin(axis=1)]
    return min(problem.devices, int(soonest.sum()))


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _times(problem: Any) -> Any:
    """Time of every subset in a group of each degree [s, k].

    Infinite where memory is short.
    """
    n, kinds = len(problem.tokens), len(problem.degree)
    tokens, time = np.zeros(1 << n), np.zeros((1 << n, kinds))
    for subset in range(1, 1 << n):
        last = 0
        while subset >> (last + 1):
            last += 1
        before = subset ^ (1 << last)
        tokens[subset] = tokens[before] + problem.tokens[last]
        for k in range(kinds):
            time[subset, k] = time[before, k] + problem.alone[last, k]
            if tokens[subset] > problem.cap * problem.degree[k]:
                time[subset, k] = np.inf
    return time


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _groups(time: Any, degree: Any, devices: int) -> Any:
    """The least time of every subset on 0 to ``devices`` devices [s, f].

    With it, the group of its longest sequence: its members and degree [s, f], written
    as subset times degrees plus place of the degree. And the looks at a group.
    """
    subsets, kinds = time.shape
    least = np.full((subsets, devices + 1), np.inf)
    chosen = np.zeros((subsets, devices + 1), np.int64)
    least[0] = 0.0
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
                # More devices for no less time are no use.
                if time[with_it, k] < fastest:
                    fastest = time[with_it, k]
                    looks += max(devices + 1 - degree[k], 0)
                    for free in range(degree[k], devices + 1):
                        later = max(fastest, least[rest, free - degree[k]])
                        if later < least[subset, free]:
                            least[subset, free] = later
                            chosen[subset, free] = with_it * kinds + k
            if part == 0:
                break
            part = (part - 1) & others
    return least, chosen, looks


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _optimum(problem: Any, devices: int) -> Any:
    """The plan: micro-batch and group of each sequence, degrees, times; and looks."""
    n, kinds = len(problem.tokens), len(problem.degree)
    time = _times(problem)
    least, chosen, looks = _groups(time, problem.degree, devices)
    whole = (1 << n) - 1
    best, first = np.full(whole + 1, np.inf), np.zeros(whole + 1, np.int64)
    best[0] = 0.0
    for subset in range(1, whole + 1):
        longest = subset & -subset
        others = subset ^ longest
        part = others
        while True:
            with_it = part | longest
            looks += 1
            total = best[subset ^ with_it] + least[with_it, devices] + problem.constant_ms
            if total < best[subset]:
                best[subset], first[subset] = total, with_it
            if part == 0:
                break
            part = (part - 1) & others
    micro_batch, group = np.zeros(n, np.int64), np.zeros(n, np.int64)
    kind, times, count = np.zeros((n, n), np.int64), np.zeros(n), 0
    left = whole if best[whole] < np.inf else 0
    while left:
        inside, free, groups = first[left], devices, 0
        left ^= inside
        times[count] = least[inside, free]
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
