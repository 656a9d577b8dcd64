"""Exchanges of sequences between groups that shorten a plan, until none does.

The search over time limits (``search``) fills groups by a rule, longest sequence first,
so that the slowest group of a micro-batch is seldom as fast as it could be.
:func:`descend` takes the slowest group of each micro-batch and exchanges up to two of
its sequences for up to two of another group. In its own micro-batch the later of both
groups must end sooner than the slowest did. In another micro-batch the sum of both
micro-batches' times must fall. Groups keep their degrees, and memory is never exceeded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from railx.planning.compiled import copy, inner

#: Exchanges of two groups that are compared at most. Beyond, the group of more
#: sequences gives one: many sequences differ finely enough without pairs.
_MOST_COMPARED = 30_000
#: Share of a group's time that an exchange must gain.
_LEAST_GAIN = 1e-9
#: No sequence; a bare -1 has a type of its own, and all is compiled again.
_NONE: Any = np.int64(-1)


@inner
def _parcels(
    problem: Any, heads: Any, after: Any, at: int, pairs: bool, here: int, there: int, into: Any
) -> Any:
    """What may leave a group: each of its sequences, with ``pairs`` each two as well.

    ``into`` [., 5]: first and second sequence (-1: none), tokens, time at this group's
    degree ``here`` and at the other's ``there``. Returns their number.
    """
    count, one = 0, heads[at]
    while one >= 0:
        two = one
        while two >= 0:
            into[count, 0], into[count, 1] = one, _NONE
            into[count, 2] = problem.tokens[one]
            into[count, 3], into[count, 4] = (
                problem.share_ms[one, here],
                problem.share_ms[one, there],
            )
            if two != one:
                into[count, 1] = two
                into[count, 2] += problem.tokens[two]
                into[count, 3] += problem.share_ms[two, here]
                into[count, 4] += problem.share_ms[two, there]
            count += 1
            two = after[two] if pairs else _NONE
        one = after[one]
    return count


@inner
def _best_exchange(
    given: Any, giving: int, taken: Any, taking: int, load: float, other: float, room: float,
    space: float, second: float, longest: float, chosen: Any,
) -> float:  # fmt: skip
    """The change (ms) by the best exchange of two groups' parcels, not below 0 if none.

    The slowest group has ``load`` ms and ``room`` tokens left, the other one ``other``
    and ``space``. Without it its micro-batch takes ``second`` ms. That of the other one
    takes ``longest``, 0 where it is the same. ``chosen`` [2] gets the rows of both
    parcels.
    """
    best = -_LEAST_GAIN * load
    found = 0.0
    for row in range(giving):
        if other + given[row, 4] == math.inf:
            continue
        for back in range(taking):
            mine = load - given[row, 3] + taken[back, 4]
            tokens = taken[back, 2] - given[row, 2]
            if mine >= load or tokens > room or -tokens > space:
                continue
            theirs = other + given[row, 4] - taken[back, 3]
            if longest == 0.0:
                change = max(mine, theirs) - load
            else:
                change = max(mine, second) - load + max(theirs - longest, 0.0)
            if change < best:
                best = found = change
                chosen[0], chosen[1] = row, back
    return found


@inner
def _transfer(problem: Any, plan: Any, heads: Any, after: Any, i: int, m: int, g: int) -> None:
    """Move a sequence to group ``g`` of micro-batch ``m``."""
    slots = plan.kind.shape[1]
    before, source = plan.micro_batch[i], plan.group[i]
    at = before * slots + source
    if heads[at] == i:
        heads[at] = after[i]
    else:
        previous = heads[at]
        while after[previous] != i:
            previous = after[previous]
        after[previous] = after[i]
    after[i], heads[m * slots + g] = heads[m * slots + g], i
    plan.load[before, source] -= problem.share_ms[i, plan.kind[before, source]]
    plan.room[before, source] += problem.tokens[i]
    plan.load[m, g] += problem.share_ms[i, plan.kind[m, g]]
    plan.room[m, g] -= problem.tokens[i]
    plan.micro_batch[i], plan.group[i] = m, g


@inner
def _listed(problem: Any, plan: Any, heads: Any, after: Any, size: Any, groups: Any) -> None:
    """Loads and rooms of all groups, and their sequences as linked lists."""
    slots = plan.kind.shape[1]
    for i in range(len(after) - 1, -1, -1):
        m, g = plan.micro_batch[i], plan.group[i]
        k, at = plan.kind[m, g], m * slots + g
        if heads[at] < 0:
            plan.load[m, g] = problem.latency[k]
            plan.room[m, g] = problem.cap * problem.degree[k]
        after[i], heads[at] = heads[at], i
        size[at] += 1
        plan.load[m, g] += problem.share_ms[i, k]
        plan.room[m, g] -= problem.tokens[i]
        groups[m] = max(groups[m], g + 1)


@inner
def _slowest(plan: Any, size: Any, m: int, groups: int) -> Any:
    """The slowest group of a micro-batch (-1: none), its time, and the second time."""
    chosen, longest, second = _NONE, 0.0, 0.0
    for g in range(groups):
        if size[m * plan.kind.shape[1] + g]:
            if plan.load[m, g] > longest:
                chosen, longest, second = g, plan.load[m, g], longest
            else:
                second = max(second, plan.load[m, g])
    return chosen, longest, second


@inner
def _with_pairs(mine: int, theirs: int) -> Any:
    """Whether each of two groups of so many sequences gives pairs."""
    if mine * (mine + 1) * (2 + theirs * (theirs + 1)) <= 4 * _MOST_COMPARED:
        return True, True
    fewer, more = min(mine, theirs), max(mine, theirs)
    if fewer * (fewer + 1) * (1 + more) <= 2 * _MOST_COMPARED:
        return mine < theirs, mine >= theirs
    return False, False


@inner
def _exchange(
    problem: Any, plan: Any, heads: Any, after: Any, size: Any, m: int, source: int, second: float,
    far: int, g: int, longest: float, given: Any, taken: Any, chosen: Any,
) -> Any:  # fmt: skip
    """The best exchange of the slowest group of ``m`` with group ``g`` of ``far``.

    Returns whether there is one that gains, and how many were compared.
    """
    slots = plan.kind.shape[1]
    at, end = m * slots + source, far * slots + g
    kind, other = plan.kind[m, source], plan.kind[far, g]
    mine, theirs = _with_pairs(size[at], size[end])
    giving = _parcels(problem, heads, after, at, mine, kind, other, given)
    taking = _parcels(problem, heads, after, end, theirs, other, kind, taken)
    # Nothing comes back.
    for column in range(5):
        taken[taking, column] = 0.0 if column > 1 else _NONE
    taking += 1
    change = _best_exchange(
        given, giving, taken, taking, plan.load[m, source], plan.load[far, g],
        plan.room[m, source], plan.room[far, g], second, longest, chosen,
    )  # fmt: skip
    if change < 0:
        for column in range(2):
            i, back = int(given[chosen[0], column]), int(taken[chosen[1], column])
            if i >= 0:
                _transfer(problem, plan, heads, after, i, far, g)
                size[at], size[end] = size[at] - 1, size[end] + 1
            if back >= 0:
                _transfer(problem, plan, heads, after, back, m, source)
                size[at], size[end] = size[at] + 1, size[end] - 1
    return change < 0, giving * taking


@inner
def descend(problem: Any, plan: Any, count: int, most: int) -> Any:
    """Exchange sequences of a plan of ``count`` micro-batches while that shortens it.

    At most about ``most`` exchanges are compared. Changes micro-batches, groups, loads,
    rooms and times of ``plan`` in place. Returns the time with all constants (ms), the
    micro-batches that are left, and the exchanges compared.
    """
    n, slots = len(problem.tokens), plan.kind.shape[1]
    heads, size = np.full(count * slots, _NONE), np.zeros(count * slots, np.int64)
    after, groups = np.full(n, _NONE), np.zeros(count, np.int64)
    _listed(problem, plan, heads, after, size, groups)
    rows = max(n, min(_MOST_COMPARED, n * (n + 1) // 2)) + 1
    given, taken, chosen = np.zeros((rows, 5)), np.zeros((rows, 5)), np.zeros(2, np.int64)
    compared, settled, turn, m = 0, 0, 0, 0
    while settled < count and compared < most:
        source, _, second = _slowest(plan, size, m, groups[m])
        gained = False
        for away in range(count if source >= 0 else 0):
            far, longest = (m + away) % count, 0.0
            if away:
                _, longest, _ = _slowest(plan, size, far, groups[far])
            for step in range(groups[far]):
                g = (turn + step) % groups[far]
                if size[far * slots + g] and (away or g != source):
                    gained, more = _exchange(
                        problem, plan, heads, after, size, m, source, second, far, g, longest,
                        given, taken, chosen,
                    )  # fmt: skip
                    compared += more
                    if gained:
                        turn = g + 1
                        break
            if gained:
                break
        settled = 0 if gained else settled + 1
        m = m if gained else (m + 1) % count
    time, used = _total(problem, plan, count, size, groups)
    return time, used, compared


@inner
def _total(problem: Any, plan: Any, count: int, size: Any, groups: Any) -> Any:
    """Time with all constants and number of micro-batches; empty ones are left out."""
    slots, time, used = plan.kind.shape[1], 0.0, 0
    rank = np.zeros(count, np.int64)
    for m in range(count):
        longest = -1.0
        for g in range(groups[m]):
            if size[m * slots + g]:
                longest = max(longest, plan.load[m, g])
        rank[m] = used
        if longest >= 0.0:
            copy(plan.kind[used], plan.kind[m], slots)
            plan.time[used] = longest
            time += longest + problem.constant_ms
            used += 1
    for i in range(len(plan.group)):
        plan.micro_batch[i] = rank[plan.micro_batch[i]]
    return time, used
