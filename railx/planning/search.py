"""The search over plans of a whole batch: time limits in, micro-batches out.

A plan is written as a time limit for each micro-batch. :func:`_fill` turns a limit into
a micro-batch. It takes the longest sequences first. Each joins the group that it fills
best, or opens a group of the smallest degree that ends it within the limit. What does
not fit is passed over, so that short sequences from anywhere in the batch fill the
holes that long ones leave. :func:`_build` does this limit after limit until nothing is
left. Which mix of degrees a micro-batch has, and which sequences, follows from its
limit; there are as many limits as micro-batches, and :func:`_anneal` moves them.

First limits come from a dynamic programme over cuts of the sorted batch
(:func:`first_limits`). It prices a micro-batch by the device time of its sequences, each
at the cheapest degree that ends it in time.

All work is counted in looks at a group. Limits of work are deterministic, and so is the
result. Arrays are float64 where they hold tokens or ms, int64 where they hold places.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["Found", "Problem", "RULES", "first_limits", "search"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: How a sequence chooses its group: which hole counts as small (of time, of memory,
#: their sum, device time, their difference), times when it opens a group although
#: another would take it (never, or where it needs more than this share of the group).
_SCORES = 5
_SHARES = (math.inf, 0.3, 0.5, 0.7)
RULES = _SCORES * len(_SHARES)
_SHARE = np.array(_SHARES)
#: The rules that first limits are tried with: one for each score and share that wins
#: often enough.
_FIRST_RULES = np.array([1, 2, 3, 8, 6, 11], dtype=np.int64)
#: The dynamic programme looks at so many places to cut a batch at most.
_CUTS = 384
#: Time limits that it tells apart.
_LEVELS = 96


class Problem(NamedTuple):
    """One batch on one cluster, for compiled code.

    Sequences run from the longest to the shortest: tokens [n] and compute time on one
    device [n] (ms). Degrees [k] ascend, with the all-to-all time per token (ms) of
    each. ``quadratic_ms`` and ``linear_ms`` are a1 and a2 of the cost model.
    """

    tokens: Floats
    work: Floats
    degree: Integers
    per_token: Floats
    cap: float
    devices: int
    constant_ms: float
    quadratic_ms: float
    linear_ms: float


class Found(NamedTuple):
    """A plan: its time with all constants, and for each sequence [n] its place.

    ``kind`` [micro-batch, group] is the index of a group's degree; ``limits``
    [micro-batch] are the times without constants.
    """

    time_ms: float
    micro_batch: Integers
    group: Integers
    kind: Integers
    limits: Floats
    looks: int


class _Plan(NamedTuple):
    """Arrays that a plan is built in."""

    micro_batch: Integers
    group: Integers
    kind: Integers
    load: Floats
    room: Floats
    groups: Integers
    time: Floats
    left: Integers
    kept: Integers
    reach: Floats
    open: Integers
    looks: Integers


def search(problem: Problem, looks: int, seed: int, starts: list[Floats] | None = None) -> Found:
    """The best plan found with about so many ``looks`` at groups.

    ``starts`` are limits of plans known before, tried beside the first ones. Time is
    infinite where no plan was found.
    """
    limits, counts = _stacked(first_limits(problem) + (starts or []), len(problem.tokens))
    time_ms, micro_batch, group, kind, times, used = _search(problem, limits, counts, looks, seed)
    count = int(micro_batch.max()) + 1 if time_ms < math.inf else 0
    return Found(float(time_ms), micro_batch, group, kind, times[:count], int(used))


def first_limits(problem: Problem) -> list[Floats]:
    """Limits [m] of first plans, by the dynamic programme with different prices.

    The constant of a micro-batch is priced lower and higher than it is, and memory and
    device time fuller, so that numbers of micro-batches differ.
    """
    cuts = _cut_places(problem)
    levels = _levels(problem)
    device_time, first = _device_times(problem, cuts, levels)
    found: dict[tuple[float, ...], Floats] = {}
    for constant in (0.3, 1.0, 2.5):
        for memory in (1.0, 0.95, 0.88):
            limits = _cut(
                problem, cuts, levels, device_time, first, constant * problem.constant_ms, memory
            )
            for longer in (1.0, 1.06, 1.2) if len(limits) else ():
                found.setdefault(tuple(np.round(longer * limits, 6).tolist()), longer * limits)
    return list(found.values())


def _stacked(starts: list[Floats], sequences: int) -> tuple[Floats, Integers]:
    width = min(max((len(start) for start in starts), default=1) * 2 + 8, max(sequences, 1) + 1)
    limits = np.ones((max(len(starts), 1), width))
    counts = np.ones(len(limits), dtype=np.int64)
    for index, start in enumerate(starts):
        kept = start[:width]
        limits[index, : len(kept)], counts[index] = kept, len(kept)
    return limits, counts


def _cut_places(problem: Problem) -> Integers:
    """Where the dynamic programme may cut: all places, or about ``_CUTS`` of them.

    The first hundred are kept, where sequences are long and differ most; the others lie
    at equal shares of the tokens.
    """
    n = len(problem.tokens)
    if n <= _CUTS:
        return np.arange(n + 1)
    total = np.concatenate(([0.0], np.cumsum(problem.tokens)))
    shares = np.searchsorted(total, np.linspace(0, total[-1], _CUTS - 100))
    return np.unique(np.concatenate((np.arange(101), shares, [n])).clip(0, n))


def _levels(problem: Problem) -> Floats:
    """Time limits (ms) from less than any plan has to more than any needs."""
    longest = float(np.min(problem.work[0] / problem.degree + problem.tokens[0] * problem.per_token))
    mean = float(problem.work.sum()) / problem.devices
    shortest = float(problem.work[-1]) / problem.devices
    low = max(min(mean / 20, longest / 4), shortest, 1e-9)
    return np.geomspace(low, max(mean * 1.5 + longest * 30, low * 2), _LEVELS)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _reach(problem: Any, limit: float, out: Any) -> None:
    """The longest sequence [k] that a group of each degree ends within ``limit``."""
    for k in range(len(problem.degree)):
        a = problem.quadratic_ms / problem.degree[k]
        b = problem.linear_ms / problem.degree[k] + problem.per_token[k]
        if a > 0:
            longest = 2 * limit / (b + math.sqrt(b * b + 4 * a * limit))
        else:
            longest = limit / b
        out[k] = min(longest * (1 + 1e-12), problem.cap * problem.degree[k])


@njit(cache=True)  # type: ignore[untyped-decorator]
def _device_times(problem: Any, cuts: Any, levels: Any) -> Any:
    """Device time (ms) of the sequences before each cut under each limit [l, c].

    With it, the first limit that the sequence behind each cut can be ended within [c].
    """
    n, last = len(problem.tokens), len(levels)
    total = np.zeros((last, len(cuts)))
    first = np.zeros(len(cuts), dtype=np.int64)
    reach = np.zeros(len(problem.degree))
    for level in range(last):
        _reach(problem, levels[level], reach)
        place, so_far = 0, 0.0
        for i in range(n + 1):
            if place < len(cuts) and cuts[place] == i:
                total[level, place] = so_far
                if i < n and problem.tokens[i] > reach.max():
                    first[place] = level + 1
                place += 1
            if i < n:
                least = math.inf
                for k in range(len(problem.degree)):
                    if problem.tokens[i] <= reach[k]:
                        each = problem.degree[k] * problem.per_token[k]
                        least = min(least, problem.work[i] + problem.tokens[i] * each)
                if least < math.inf:
                    so_far += least
    return total, first


@njit(cache=True)  # type: ignore[untyped-decorator]
def _cut(
    problem: Any, cuts: Any, levels: Any, total: Any, first: Any, constant: float, memory: float
) -> Any:
    """Limits of the cheapest cut of the sorted batch; empty where memory is short.

    ``memory`` is the share of all memory that a micro-batch may fill. A single
    stretch between two places is taken however many tokens it has.
    """
    places = len(cuts)
    tokens = np.zeros(places)
    so_far, place = 0.0, 0
    for i in range(len(problem.tokens) + 1):
        if place < places and cuts[place] == i:
            tokens[place] = so_far
            place += 1
        if i < len(problem.tokens):
            so_far += problem.tokens[i]
    best, source, limit = np.full(places, math.inf), np.zeros(places, np.int64), np.zeros(places)
    best[0] = 0.0
    for start in range(places - 1):
        if best[start] == math.inf or first[start] >= len(levels):
            continue
        for stop in range(start + 1, places):
            full = tokens[stop] - tokens[start] > memory * problem.cap * problem.devices
            if full and stop > start + 1:
                break
            low, high = first[start], len(levels) - 1
            while low < high:
                middle = (low + high) // 2
                if total[middle, stop] - total[middle, start] <= problem.devices * levels[middle]:
                    high = middle
                else:
                    low = middle + 1
            time = levels[low]
            if low > first[start]:
                needed = (total[low, stop] - total[low, start]) / problem.devices
                time = max(levels[low - 1], needed)
            if best[start] + time + constant < best[stop]:
                best[stop], source[stop], limit[stop] = best[start] + time + constant, start, time
    if best[places - 1] == math.inf:
        return np.zeros(0)
    count, place = 0, places - 1
    while place > 0:
        count, place = count + 1, source[place]
    out = np.zeros(count)
    place = places - 1
    while place > 0:
        count -= 1
        out[count], place = limit[place], source[place]
    return out


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fill(problem: Any, plan: Any, m: int, limit: float, rule: int, waiting: Any, count: int) -> int:
    """Micro-batch ``m`` within ``limit`` out of ``waiting`` [count], longest first.

    What is left stays in ``waiting``; returns how many that are.
    """
    score, share = rule % 5, _SHARE[rule // 5]
    _reach(problem, limit, plan.reach)
    kind, load, room = plan.kind[m], plan.load[m], plan.room[m]
    tokens, work, degree, per_token = problem.tokens, problem.work, problem.degree, problem.per_token
    groups, free, left, opened, most = 0, problem.devices, 0, 0, 0.0
    least = tokens[len(tokens) - 1]
    looks = 0
    for index in range(count):
        i = waiting[index]
        length = tokens[i]
        chosen, smallest, fresh = -1, math.inf, -1
        if free > 0 and (share < math.inf or length > most):
            for k in range(len(degree)):
                if degree[k] <= free and length <= plan.reach[k]:
                    needs = work[i] / degree[k] + length * per_token[k]
                    if (
                        length > most
                        or needs > share * limit
                        or length > share * problem.cap * degree[k]
                    ):
                        fresh = k
                    break
        if fresh < 0 and length <= most:
            most, kept = 0.0, 0
            looks += opened
            for place in range(opened):
                g = plan.open[place]
                left_room = room[g]
                if left_room < least:
                    continue
                plan.open[kept] = g
                kept += 1
                if left_room > most:
                    most = left_room
                if left_room >= length:
                    k = kind[g]
                    slack = limit - load[g] - work[i] / degree[k] - length * per_token[k]
                    if slack >= 0:
                        empty = (left_room - length) / (problem.cap * degree[k])
                        if score == 0:
                            hole = slack
                        elif score == 1:
                            hole = empty
                        elif score == 2:
                            hole = slack / limit + empty
                        elif score == 3:
                            hole = slack * degree[k]
                        else:
                            hole = abs(slack / limit - empty)
                        if hole < smallest:
                            smallest, chosen = hole, g
            opened = kept
            if chosen < 0 and free > 0:
                for k in range(len(degree)):
                    if degree[k] <= free and length <= plan.reach[k]:
                        fresh = k
                        break
        if fresh >= 0:
            chosen = groups
            kind[groups], load[groups], room[groups] = fresh, 0.0, problem.cap * degree[fresh]
            free -= degree[fresh]
            plan.open[opened] = groups
            opened += 1
            groups += 1
        if chosen < 0:
            waiting[left] = i
            left += 1
        else:
            k = kind[chosen]
            load[chosen] += work[i] / degree[k] + length * per_token[k]
            room[chosen] -= length
            if room[chosen] > most:
                most = room[chosen]
            plan.micro_batch[i], plan.group[i] = m, chosen
    plan.groups[m] = groups
    time = 0.0
    for g in range(groups):
        time = max(time, load[g])
    plan.time[m] = time
    plan.looks[0] += looks + count
    return left


@njit(cache=True)  # type: ignore[untyped-decorator]
def _build(
    problem: Any, plan: Any, limits: Any, rules: Any, count: int, order: Any, worse_than: float
) -> Any:
    """A plan for ``limits`` [count]; (time, micro-batches), infinite where it fails.

    It fails as well as soon as it takes ``worse_than`` or more. The last micro-batch
    takes all that is left in the least time; where that is too much for one, its limit
    is used again.
    """
    n = len(problem.tokens)
    waiting, m, time = n, 0, 0.0
    plan.left[:] = order
    most = problem.cap * problem.devices
    while waiting > 0:
        if m >= len(plan.time):
            return math.inf, m
        last = m >= count - 1
        if last:
            total = 0.0
            for index in range(waiting):
                total += problem.tokens[plan.left[index]]
            last = total <= most
        if last:
            done = _least(problem, plan, m, rules[min(m, count - 1)], waiting, worse_than - time)
            if done == math.inf and worse_than < math.inf:
                return math.inf, m
            if done < math.inf:
                return time + done + problem.constant_ms, m + 1
        limit = limits[min(m, count - 1)]
        longest, soonest = 0.0, math.inf
        for index in range(waiting):
            longest = max(longest, problem.tokens[plan.left[index]])
        alone = problem.quadratic_ms * longest * longest + problem.linear_ms * longest
        for k in range(len(problem.degree)):
            if longest <= problem.cap * problem.degree[k]:
                soonest = min(soonest, alone / problem.degree[k] + longest * problem.per_token[k])
        limit = max(limit, soonest * (1 + 1e-9))
        before = waiting
        waiting = _fill(problem, plan, m, limit, rules[min(m, count - 1)], plan.left, waiting)
        if waiting == before:
            return math.inf, m
        time += plan.time[m] + problem.constant_ms
        m += 1
        if time + (problem.constant_ms if waiting else 0.0) >= worse_than:
            return math.inf, m
    return time, m


@njit(cache=True)  # type: ignore[untyped-decorator]
def _least(problem: Any, plan: Any, m: int, rule: int, waiting: int, worse_than: float) -> float:
    """The least time (without constant) that takes all that waits; infinite if none.

    Bisection: the least limit that fills takes, to a thousandth.
    """
    high = worse_than - problem.constant_ms
    if high <= 0:
        return math.inf
    low = 0.0
    for index in range(waiting):
        low += problem.work[plan.left[index]]
    low /= problem.devices
    if low > high * (1 + 1e-12):
        return math.inf
    if high == math.inf:
        high = problem.work.sum() + problem.tokens.sum() * problem.per_token.max() + 1.0
    plan.kept[:waiting] = plan.left[:waiting]
    if _fill(problem, plan, m, high, rule, plan.kept, waiting) > 0:
        return math.inf
    high = plan.time[m]
    good = high
    for _ in range(14):
        if high - low <= 1e-3 * high:
            break
        middle = 0.5 * (low + high)
        plan.kept[:waiting] = plan.left[:waiting]
        if _fill(problem, plan, m, middle, rule, plan.kept, waiting) == 0:
            high = min(middle, plan.time[m])
            good = plan.time[m]
        else:
            low = middle
    plan.kept[:waiting] = plan.left[:waiting]
    if _fill(problem, plan, m, good, rule, plan.kept, waiting) > 0:
        # Rounding: a hair more than the load that it had.
        plan.kept[:waiting] = plan.left[:waiting]
        if _fill(problem, plan, m, good * (1 + 1e-9), rule, plan.kept, waiting) > 0:
            return math.inf
    return plan.time[m]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _random(state: Any) -> float:
    """The next number in [0, 1) of a xorshift generator (Marsaglia), state uint64 [1]."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (x >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True)  # type: ignore[untyped-decorator]
def _anneal(
    problem: Any,
    plan: Any,
    limits: Any,
    rules: Any,
    order: Any,
    count: int,
    time: float,
    looks: int,
    warmth: float,
    state: Any,
) -> Any:
    """Move limits, rules and the order of sequences; the best goes back into them.

    Simulated annealing: a worse plan is taken with a chance that falls to nothing at
    the end of ``looks``. Returns (micro-batches, time).
    """
    width, n = len(limits), len(order)
    now_limits, now_rules, now_order = limits.copy(), rules.copy(), order.copy()
    now_count, now = count, time
    try_limits, try_rules = limits.copy(), rules.copy()
    begin = plan.looks[0]
    while plan.looks[0] - begin < looks:
        progress = (plan.looks[0] - begin) / looks
        try_limits[:] = now_limits
        try_rules[:] = now_rules
        tried = now_count
        swapped, other = -1, -1
        dice = _random(state)
        place = int(_random(state) * tried)
        if dice < 0.04 and tried < width:
            for index in range(tried, place, -1):
                try_limits[index], try_rules[index] = try_limits[index - 1], try_rules[index - 1]
            tried += 1
        elif dice < 0.08 and tried > 1:
            for index in range(place, tried - 1):
                try_limits[index], try_rules[index] = try_limits[index + 1], try_rules[index + 1]
            tried -= 1
        elif dice < 0.12:
            other = int(_random(state) * tried)
            try_limits[place], try_limits[other] = try_limits[other], try_limits[place]
            try_rules[place], try_rules[other] = try_rules[other], try_rules[place]
            other = -1
        elif dice < 0.3:
            try_rules[place] = int(_random(state) * RULES)
        elif dice < 0.4 and n > 1:
            # Long sequences matter most: places near the front are drawn more often.
            swapped = int(n * _random(state) ** 3)
            other = min(n - 1, swapped + 1 + int(8 * _random(state)))
            now_order[swapped], now_order[other] = now_order[other], now_order[swapped]
        else:
            for _ in range(1 + int(3 * _random(state) ** 2)):
                step = 10 ** (-3 + 2.3 * _random(state))
                where = int(_random(state) * tried)
                try_limits[where] *= 1 + (step if _random(state) < 0.5 else -step)
        chance = 1 - _random(state)
        bar = now - warmth * now * (1 - progress) ** 2 * math.log(chance)
        reached, made = _build(problem, plan, try_limits, try_rules, tried, now_order, bar)
        if reached < math.inf and made <= width:
            now, now_count = reached, made
            for index in range(made):
                now_limits[index] = plan.time[index]
                now_rules[index] = try_rules[min(index, tried - 1)]
            if now < time:
                time, count = now, now_count
                limits[:], rules[:], order[:] = now_limits, now_rules, now_order
        elif swapped >= 0:
            now_order[swapped], now_order[other] = now_order[other], now_order[swapped]
    return count, time


@njit(cache=True)  # type: ignore[untyped-decorator]
def _search(problem: Any, starts: Any, counts: Any, looks: int, seed: int) -> Any:
    """First plans under all first rules, short annealing of the best few, then one."""
    n, width = len(problem.tokens), starts.shape[1]
    most_groups = min(problem.devices, n)
    plan = _Plan(
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros((width, most_groups), np.int64),
        np.zeros((width, most_groups)),
        np.zeros((width, most_groups)),
        np.zeros(width, np.int64),
        np.zeros(width),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(len(problem.degree)),
        np.zeros(most_groups, np.int64),
        np.zeros(1, np.int64),
    )
    state = np.array([np.uint64(88172645463325252) ^ np.uint64(seed * 2654435761 + 1)])
    total = len(starts)
    times = np.full(total, math.inf)
    limits = np.ones((total, width))
    rules = np.zeros((total, width), np.int64)
    orders = np.zeros((total, n), np.int64)
    made = np.ones(total, np.int64)
    rule = np.zeros(width, np.int64)
    plain = np.arange(n)
    for index in range(total):
        for first in _FIRST_RULES:
            rule[:] = first
            time, count = _build(
                problem, plan, starts[index], rule, counts[index], plain, times[index]
            )
            if time < times[index]:
                times[index], made[index] = time, count
                limits[index, :count] = plan.time[:count]
                rules[index] = first
                orders[index] = plain
    ranked = np.argsort(times)
    best = ranked[0]
    if times[best] == math.inf:
        return math.inf, plan.micro_batch, plan.group, plan.kind, plan.time, plan.looks[0]
    # One of each number of micro-batches, at most four.
    rounds, seen = 0, np.zeros(width + 1, np.bool_)
    for index in ranked:
        if times[index] < math.inf and not seen[made[index]] and rounds < 4:
            seen[made[index]] = True
            rounds += 1
            made[index], times[index] = _anneal(
                problem, plan, limits[index], rules[index], orders[index], made[index],
                times[index], looks // 8, 0.002, state,
            )
            if times[index] < times[best]:
                best = index
    rest = looks - plan.looks[0]
    if rest > 0:
        made[best], times[best] = _anneal(
            problem, plan, limits[best], rules[best], orders[best], made[best], times[best],
            rest, 0.002, state,
        )
    time, count = _build(
        problem, plan, limits[best], rules[best], made[best], orders[best], math.inf
    )
    return time, plan.micro_batch, plan.group, plan.kind, plan.time, plan.looks[0]
