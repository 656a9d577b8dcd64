"""Batches of few or equal sequences: optima, and a search over plans as they are.

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

The search over time limits (``search``) finds mixes of degrees for thousands of
sequences, but fills each micro-batch by a rule. :func:`annealed` begins with its plan
and moves a sequence to another group of any micro-batch, swaps two, changes a group's
degree, divides a group or joins two, under simulated annealing. Tokens beyond a group's
memory cost time while it searches, so that it passes through plans that do not fit;
only plans that fit are taken. Effort is counted in moves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from railx.planning.compiled import compiled, copy, inner, next_random
from railx.planning.packing import Floats, Integers
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


def plan_of_near_equals(problem: Problem, moves: int, seed: int) -> SearchResult:
    """The fastest plan found of sequences of nearly one length.

    Their number in each group comes from plans of equal sequences, as long as the
    longest or the shortest, or from an even division over groups of one degree. Each is
    bettered by ``moves`` moves, which also make room where memory is short. Degrees are
    powers of two; the time is infinite where no plan fits.
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
        (annealed(problem, start, moves, seed) for start in starts), key=lambda plan: plan.time_ms
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


#: Share of a micro-batch's mean time by which the first moves may make a plan slower.
_WARMTH = 0.02
#: Attempts at a plan of one micro-batch less.
_FOLDS = 3
#: Time of a token beyond the memory of a group, over that of a token on it.
_PENALTY = 3.0
#: No micro-batch or group; a bare -1 has a type of its own (compiled again).
_NONE: Any = np.int64(-1)


class _Plan(NamedTuple):
    """Groups [g], ``slots`` of them to each micro-batch, and sequences [n].

    ``group`` of each sequence; ``kind`` is a group's degree by index, ``members`` and
    ``tokens`` what it has, ``load`` [g, k] its time at each degree. ``free`` devices
    and ``time`` [m] of micro-batches without constants, ``cost`` [m] with penalties.
    """

    group: Integers
    kind: Integers
    members: Integers
    tokens: Any
    load: Any
    free: Integers
    time: Any
    cost: Any


def annealed(problem: Problem, start: SearchResult, moves: int, seed: int) -> SearchResult:
    """The best plan of so many annealed moves; ``start`` where none is faster.

    Where memory allows fewer micro-batches, half of the moves begin with one less, and
    begin again until a plan fits, :data:`_FOLDS` times at most.
    """
    micro_batches, slots = len(start.limits), min(problem.devices, len(problem.tokens))
    fewest = math.ceil(problem.tokens.sum() / (problem.cap * problem.devices))
    folds = fewest < micro_batches
    moves //= 1 + folds

    def searched(seed: int, fold: bool) -> Any:
        return _search(
            problem, start.micro_batch, start.group, start.kind, micro_batches, slots, moves, seed,
            fold,
        )  # fmt: skip

    plans = [searched(seed, False)]
    for attempt in range(_FOLDS * folds):
        plans.append(searched(seed + attempt, True))
        if plans[-1][0] < math.inf:
            break
    time_ms, group, kind = min(plans, key=lambda plan: float(plan[0]))
    moves *= len(plans)
    if time_ms >= start.time_ms * (1 - 1e-12):
        return start
    return _timed(
        problem, group // slots, group % slots, kind.reshape(-1, slots), start.looks + moves
    )


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
    falling = [m for m in np.argsort(-times, kind="stable").tolist() if tokens[m].any()]
    rank = np.zeros(len(kinds), np.int64)
    rank[falling] = np.arange(len(falling))
    total = float(times[falling].sum()) + len(falling) * problem.constant_ms
    if (tokens > problem.cap * problem.degree[kinds]).any():
        total = math.inf
    return SearchResult(total, rank[micro_batch], group, kinds[falling], times[falling], looks)


@inner
def _price(problem: Any, plan: Any, slots: int, m: int, penalty: float) -> None:
    """Work out time and cost of a micro-batch anew."""
    longest, over, used = 0.0, 0.0, False
    for g in range(m * slots, (m + 1) * slots):
        if plan.members[g]:
            used = True
            k = plan.kind[g]
            longest = max(longest, plan.load[g, k] + problem.latency[k])
            over += max(0.0, plan.tokens[g] - problem.cap * problem.degree[k])
    plan.time[m] = longest
    plan.cost[m] = longest + penalty * over + (problem.constant_ms if used else 0.0)


@inner
def _beyond(problem: Any, plan: Any) -> Any:
    """Whether some group has more tokens than its memory holds."""
    for g in range(len(plan.members)):
        if plan.tokens[g] > problem.cap * problem.degree[plan.kind[g]] + 1e-6:
            return True
    return False


@inner
def _put(problem: Any, plan: Any, slots: int, i: int, target: int) -> None:
    """Move a sequence to a group; an empty group gives its devices back."""
    source = plan.group[i]
    plan.members[source] -= 1
    plan.tokens[source] -= problem.tokens[i]
    plan.members[target] += 1
    plan.tokens[target] += problem.tokens[i]
    for k in range(len(problem.degree)):
        if problem.share_ms[i, k] < np.inf:
            plan.load[source, k] -= problem.share_ms[i, k]
            plan.load[target, k] += problem.share_ms[i, k]
    plan.group[i] = target
    if plan.members[source] == 0:
        plan.free[source // slots] += problem.degree[plan.kind[source]]
        plan.load[source] = 0.0
        plan.tokens[source] = 0.0


@inner
def _empty_slot(plan: Any, slots: int, m: int) -> int:
    for g in range(m * slots, (m + 1) * slots):
        if plan.members[g] == 0:
            return g
    return -1


@inner
def _member(plan: Any, g: int, state: Any) -> int:
    """A random sequence of a group."""
    n = len(plan.group)
    i = int(n * next_random(state))
    while plan.group[i] != g:
        i = i + 1 if i < n - 1 else 0
    return i


@inner
def _critical(problem: Any, plan: Any, slots: int, m: int) -> int:
    """The slowest group of a micro-batch, -1 for none."""
    chosen, longest = -1, -1.0
    for g in range(m * slots, (m + 1) * slots):
        if plan.members[g]:
            time = plan.load[g, plan.kind[g]] + problem.latency[plan.kind[g]]
            if time > longest:
                chosen, longest = g, time
    return chosen


@inner
def _fits(problem: Any, i: int, kind: int) -> bool:
    return bool(problem.share_ms[i, kind] < np.inf)


@inner
def _all_fit(problem: Any, plan: Any, g: int, kind: int) -> bool:
    if kind >= plan.kind[g]:
        return True
    for i in range(len(plan.group)):
        if plan.group[i] == g:
            # The longest comes first.
            return bool(problem.share_ms[i, kind] < np.inf)
    return True


@inner
def _divide(problem: Any, plan: Any, slots: int, log: Any, state: Any, source: int) -> int:
    """Divide a group into two of the next smaller degree; as :func:`_move`."""
    m = source // slots
    k = plan.kind[source] - 1
    target = _empty_slot(plan, slots, m)
    if k < 0 or target < 0 or plan.members[source] < 2:
        return 0
    more = 2 * problem.degree[k] - problem.degree[k + 1]
    if more > plan.free[m] or not _all_fit(problem, plan, source, k):
        return 0
    log[0, 0], log[1, 0], log[2, 0] = 1, source, k + 1
    log[0, 1], log[1, 1], log[2, 1] = 1, target, plan.kind[target]
    plan.kind[source] = plan.kind[target] = k
    plan.free[m] -= more
    changes, left = 2, plan.load[source, k] / 2
    for member in range(len(plan.group)):
        if plan.group[member] == source and plan.members[source] > 1:
            half = plan.load[target, k] + problem.share_ms[member, k] <= left * 1.05
            if half or (plan.members[target] == 0 and next_random(state) < 0.5):
                log[0, changes], log[1, changes], log[2, changes] = 0, member, source
                changes += 1
                _put(problem, plan, slots, member, target)
    if plan.members[target] == 0:
        plan.kind[source] = k + 1
        plan.free[m] += more
        return 0
    return changes


@inner
def _join(problem: Any, plan: Any, slots: int, log: Any, state: Any, source: int) -> int:
    """Join a group to another of its micro-batch, at both degrees together.

    As :func:`_move`.
    """
    m, kinds = source // slots, len(problem.degree)
    target = m * slots + int(slots * next_random(state))
    if plan.members[target] == 0 or target == source:
        return 0
    together = problem.degree[plan.kind[source]] + problem.degree[plan.kind[target]]
    k = plan.kind[target]
    while k < kinds - 1 and problem.degree[k + 1] <= together + plan.free[m]:
        k += 1
    before = plan.kind[target]
    for member in range(len(plan.group)):
        if plan.group[member] == source:
            if not _fits(problem, member, k):
                return 0
            break
    changes = 0
    for member in range(len(plan.group)):
        if plan.group[member] == source:
            log[0, changes], log[1, changes], log[2, changes] = 0, member, source
            changes += 1
            _put(problem, plan, slots, member, target)
    log[0, changes], log[1, changes], log[2, changes] = 1, target, before
    plan.free[m] -= problem.degree[k] - problem.degree[before]
    plan.kind[target] = k
    return changes + 1


@inner
def _move(problem: Any, plan: Any, slots: int, log: Any, state: Any) -> int:
    """A random move; its changes go to ``log`` [3, .] as (kind, place, before).

    Returns their number; 0 where the move is none.
    """
    n, batches, kinds = len(plan.group), len(plan.free), len(problem.degree)
    i = int(n * next_random(state))
    if next_random(state) < 0.5:
        slowest = _critical(problem, plan, slots, plan.group[i] // slots)
        i = _member(plan, slowest, state)
    source = plan.group[i]
    dice = next_random(state)
    if dice < 0.4:
        # To another group, or to a new one where devices are free.
        m = int(batches * next_random(state)) if next_random(state) < 0.6 else source // slots
        target = m * slots + int(slots * next_random(state))
        if plan.members[target] == 0 or next_random(state) < 0.1:
            if next_random(state) < 0.7:
                j = int(n * next_random(state))
                target = plan.group[j]
            else:
                target = _empty_slot(plan, slots, m)
                if target < 0:
                    return 0
                k = int(kinds * next_random(state))
                if problem.degree[k] > plan.free[m] or not _fits(problem, i, k):
                    return 0
                log[0, 0], log[1, 0], log[2, 0] = 1, target, plan.kind[target]
                plan.kind[target] = k
                plan.free[m] -= problem.degree[k]
                log[0, 1], log[1, 1], log[2, 1] = 0, i, source
                _put(problem, plan, slots, i, target)
                return 2
        if target == source or not _fits(problem, i, plan.kind[target]):
            return 0
        log[0, 0], log[1, 0], log[2, 0] = 0, i, source
        _put(problem, plan, slots, i, target)
        return 1
    if dice < 0.75:
        j = int(n * next_random(state))
        if next_random(state) < 0.5:
            # Of similar length: the sequences are sorted.
            j = min(max(i + int(9 * next_random(state)) - 4, 0), n - 1)
        target = plan.group[j]
        if target == source or problem.tokens[i] == problem.tokens[j]:
            return 0
        if not _fits(problem, i, plan.kind[target]) or not _fits(problem, j, plan.kind[source]):
            return 0
        log[0, 0], log[1, 0], log[2, 0] = 0, i, source
        log[0, 1], log[1, 1], log[2, 1] = 0, j, target
        # No group is empty in between: its devices would go.
        plan.members[source] += 1
        _put(problem, plan, slots, i, target)
        _put(problem, plan, slots, j, source)
        plan.members[source] -= 1
        return 2
    m = source // slots
    if dice < 0.85:
        k = plan.kind[source] + (1 if next_random(state) < 0.5 else -1)
        if k < 0 or k >= kinds or not _all_fit(problem, plan, source, k):
            return 0
        more = problem.degree[k] - problem.degree[plan.kind[source]]
        if more > plan.free[m]:
            return 0
        log[0, 0], log[1, 0], log[2, 0] = 1, source, plan.kind[source]
        plan.kind[source] = k
        plan.free[m] -= more
        return 1
    if dice < 0.93:
        return int(_divide(problem, plan, slots, log, state, source))
    return int(_join(problem, plan, slots, log, state, source))


@inner
def _fold(problem: Any, plan: Any, slots: int, batches: int) -> None:
    """Put the sequences of the micro-batch of fewest tokens where most room is."""
    smallest, fewest = -1, np.inf
    for m in range(batches):
        tokens = 0.0
        for g in range(m * slots, (m + 1) * slots):
            tokens += plan.tokens[g]
        if tokens < fewest:
            smallest, fewest = m, tokens
    for i in range(len(plan.group)):
        if plan.group[i] // slots != smallest:
            continue
        target, roomiest = _NONE, -np.inf
        for g in range(batches * slots):
            if g // slots != smallest and plan.members[g] and _fits(problem, i, plan.kind[g]):
                room = problem.cap * problem.degree[plan.kind[g]] - plan.tokens[g]
                if room > roomiest:
                    target, roomiest = g, room
        if target >= 0:
            _put(problem, plan, slots, i, target)


@compiled
def _search(
    problem: Any, micro_batch: Any, group: Any, kind: Any, batches: int, slots: int, moves: int,
    seed: int, fold: bool,
) -> Any:  # fmt: skip
    """Annealing, with ``fold`` from one micro-batch less.

    The best time, each sequence's group [n] and the groups' degrees [g].
    """
    n, kinds = len(problem.tokens), len(problem.degree)
    total = (batches + 1) * slots
    plan = _Plan(
        np.zeros(n, np.int64), np.zeros(total, np.int64), np.zeros(total, np.int64),
        np.zeros(total), np.zeros((total, kinds)), np.full(batches + 1, problem.devices),
        np.zeros(batches + 1), np.zeros(batches + 1),
    )  # fmt: skip
    for i in range(n):
        g = micro_batch[i] * slots + group[i]
        plan.group[i] = g
        plan.kind[g] = kind[micro_batch[i], group[i]]
        if plan.members[g] == 0:
            plan.free[micro_batch[i]] -= problem.degree[plan.kind[g]]
        plan.members[g] += 1
        plan.tokens[g] += problem.tokens[i]
        for k in range(kinds):
            if problem.share_ms[i, k] < np.inf:
                plan.load[g, k] += problem.share_ms[i, k]
    penalty = _PENALTY * problem.cheapest.sum() / problem.tokens.sum()
    state = np.array([np.uint64(88172645463325252) ^ np.uint64(seed * 2654435761 + 1)])
    if fold:
        _fold(problem, plan, slots, batches)
    at, warm = 0.0, 0.0
    for m in range(batches + 1):
        _price(problem, plan, slots, m, penalty)
        at += plan.cost[m]
        warm += plan.time[m] / batches
    best = np.inf if fold or _beyond(problem, plan) else at
    best_group, best_kind = plan.group.copy(), plan.kind.copy()
    log = np.zeros((3, 2 * n + 4), np.int64)
    for move in range(moves):
        changes = _move(problem, plan, slots, log, state)
        if changes == 0:
            continue
        # The micro-batches of both ends.
        before_ms, after_ms = 0.0, 0.0
        first, second = _NONE, _NONE
        for change in range(changes):
            place = log[1, change]
            ends = (log[2, change], plan.group[place]) if log[0, change] == 0 else (place, place)
            for g in ends:
                m = g // slots
                if m != first and m != second:
                    if first < 0:
                        first = m
                    else:
                        second = m
        for m in (first, second):
            if m >= 0:
                before_ms += plan.cost[m]
                _price(problem, plan, slots, m, penalty)
                after_ms += plan.cost[m]
        heat = _WARMTH * warm * (1 - move / moves) ** 2
        if after_ms - before_ms <= -heat * math.log(1 - next_random(state)):
            at += after_ms - before_ms
            if at < best * (1 - 1e-9) and not _beyond(problem, plan):
                best = at
                copy(best_group, plan.group, n)
                copy(best_kind, plan.kind, total)
            continue
        for change in range(changes - 1, -1, -1):
            place, old = log[1, change], log[2, change]
            if log[0, change] == 0:
                if plan.members[old] == 0:
                    plan.free[old // slots] -= problem.degree[plan.kind[old]]
                _put(problem, plan, slots, place, old)
            else:
                if plan.members[place]:
                    more = problem.degree[old] - problem.degree[plan.kind[place]]
                    plan.free[place // slots] -= more
                plan.kind[place] = old
        for m in (first, second):
            if m >= 0:
                _price(problem, plan, slots, m, penalty)
    return best, best_group, best_kind
