"""The search over plans of a whole batch: time limits in, micro-batches out.

A plan is written as a time limit for each micro-batch. :func:`_fill` turns a limit into
a micro-batch. It takes the longest sequences first. Each joins the group that it fills
best, or opens a group of the smallest degree that ends it within the limit, under some
rules of a larger one. What does not fit is passed over, so that short sequences from
anywhere in the batch fill the holes that long ones leave. :func:`_build` does this
limit after limit until nothing is left. Which mix of degrees a micro-batch has, and
which sequences, follows from its limit; there are as many limits as micro-batches, and
:func:`_anneal` moves them.

First limits come from a dynamic programme over cuts of the sorted batch
(:func:`first_limits`). It prices a micro-batch by the device time of its sequences,
each at the cheapest degree that ends it in time.

All work is counted in looks at a group. Limits of work are deterministic, and so is the
result. Arrays are float64 where they hold tokens or ms, int64 where they hold places.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from railx.performance.sequence_cost import CostModel
from railx.planning.compiled import compiled, copy, inner, next_random
from railx.planning.packing import Floats, Integers

#: How a sequence chooses its group: which hole counts as small (of time, of memory,
#: their sum, device time, their difference), times when it opens a group although
#: another would take it (never, or where it needs more than this share of the group).
_SCORES = 5
_SHARE = np.array([math.inf, 0.3, 0.5, 0.7])
_RULES = _SCORES * len(_SHARE)
#: Further rules are the same ones opening groups this many degrees larger than need be:
#: one large group holds what two small ones with a rest of room each cannot.
_LIFTS = 2
#: Chance that a drawn rule is such a rule.
_LIFTED = 0.3
#: The rules that first limits are tried with: one for each score and share that wins
#: often enough.
_FIRST_RULES = np.array([1, 3, 6, 8], dtype=np.int64)
#: First limits are stretched by these in turn until a plan needs no more micro-batches
#: than limits: tight memory is filled only where time is left.
_LONGER = np.array([1.0, 1.05, 1.12, 1.25, 1.5, 2.0, 3.0])
#: First plans that other rules are tried on.
_TRIED = 6
#: The best of them are tried with larger groups in the first, then in the first two
#: micro-batches: mixes of degrees that no limit leads to.
_FIRST_LIFTED = 2
#: A first plan is abandoned at this multiple of the best.
_HOPELESS = 1.06
#: The first micro-batch; a bare 0 has a type of its own, and all is compiled again.
_FIRST: Any = np.int64(0)
#: Groups with room that a sequence chooses from at most.
_CANDIDATES = 64
#: Cost of a move beside looks at groups, in looks.
_PER_MOVE = 100
#: Most places where the dynamic programme may cut a batch.
_CUTS = 384
#: Time limits that it distinguishes.
_LEVELS = 96


class Problem(NamedTuple):
    """One batch on one cluster, for compiled code.

    Sequences run from the longest to the shortest: tokens [n], and ``share_ms`` [n, k],
    the time of a sequence in a group of each degree, infinite where memory is short.
    Degrees [k] ascend. ``latency`` [k] is the time of a group beside its sequences,
    ``alone`` [n, k] that of a sequence alone in a group. ``cheapest`` [n] is the device
    time of a sequence at its cheapest degree.
    """

    tokens: Floats
    share_ms: Floats
    latency: Floats
    alone: Floats
    cheapest: Floats
    degree: Integers
    cap: float
    devices: int
    constant_ms: float

    @staticmethod
    def of(lengths: Integers, devices: int, degrees: tuple[int, ...], cost: CostModel) -> Problem:
        """The problem of lengths [n], longest first."""
        tokens, degree = lengths.astype(np.float64), np.array(degrees, dtype=np.int64)
        per_token = np.array([cost.all_to_all_for(d) for d in degrees])
        share_ms = cost.sequence_ms(tokens)[:, None] / degree + tokens[:, None] * per_token
        share_ms[tokens[:, None] > cost.tokens_per_device * degree] = np.inf
        latency = np.array([cost.latency_for(d) for d in degrees])
        return Problem(
            tokens,
            share_ms,
            latency,
            share_ms + latency,
            (share_ms * degree).min(axis=1),
            degree,
            float(cost.tokens_per_device),
            devices,
            cost.constant_ms,
        )


class SearchResult(NamedTuple):
    """A plan: its time with all constants, and each sequence's [n] micro-batch and
    group.

    ``kind`` [micro-batch, group] is the index of a group's degree; ``limits``
    [micro-batch] are the times without constants.
    """

    time_ms: float
    micro_batch: Integers
    group: Integers
    kind: Integers
    limits: Floats
    looks: int


class _Ends(NamedTuple):
    """Plans that chains end with, and the best of all: as SearchResult, by row.

    ``micro_batches`` [row]: how many entries of ``kind`` and ``limits`` are used.
    """

    time_ms: Floats
    micro_batches: Integers
    micro_batch: Integers
    group: Integers
    kind: Integers
    limits: Floats


class _Plan(NamedTuple):
    """Arrays that a plan is built in: M micro-batches of at most G groups.

    ``waiting`` [M + 1, n] are the sequences that each micro-batch may choose from, in
    their order, ``rest`` [M + 1, 3] how many those are, their tokens and device time.
    """

    micro_batch: Integers
    group: Integers
    kind: Integers
    load: Floats
    room: Floats
    time: Floats
    waiting: Integers
    rest: Floats
    open: Integers
    looks: Integers


def search(
    problem: Problem, looks: int, seed: int, starts: list[Floats] | None = None, chains: int = 2
) -> list[SearchResult]:
    """Plans found with about ``looks`` looks at groups, the fastest first.

    ``starts`` are limits of known plans, tried beside the first ones. ``chains`` plans
    are annealed in turn, each with an equal share of the looks. Of plans that take
    equally long one is listed, and none where no plan is found.
    """
    limits, counts = _stacked((starts or []) + first_limits(problem), len(problem.tokens))
    used, ends = _search(problem, limits, counts, looks, seed, chains)
    plans: list[SearchResult] = []
    for row in np.argsort(ends.time_ms, kind="stable").tolist():
        time_ms, count = float(ends.time_ms[row]), ends.micro_batches[row]
        if time_ms < math.inf and not any(math.isclose(time_ms, plan.time_ms) for plan in plans):
            places = (ends.micro_batch[row], ends.group[row], ends.kind[row, :count])
            # All looks are the first plan's.
            looks = 0 if plans else int(used)
            plans.append(SearchResult(time_ms, *places, ends.limits[row, :count], looks))
    return plans


def first_limits(problem: Problem) -> list[Floats]:
    """Limits [m] of first plans, by the dynamic programme with different prices.

    The constant of a micro-batch is priced lower and higher than it is, and memory
    looser and tighter, so that numbers of micro-batches differ. For the first
    micro-batch, which holds the longest sequences, the times of the longest few alone
    are tried as well.
    """
    cuts = _cut_places(problem)
    levels = _levels(problem)
    device_time, first = _device_times(problem, cuts, levels)
    tokens = np.concatenate(([0.0], np.cumsum(problem.tokens)))[cuts]
    distinct: dict[tuple[float, ...], Floats] = {}
    for constant in (1.0, 0.3, 2.5):
        for share in (1.0, 1.03, 0.95, 0.88):
            memory = share * problem.cap * problem.devices
            stop, limit = _cut(
                problem.devices, constant * problem.constant_ms, memory, tokens, levels,
                device_time, first,
            )  # fmt: skip
            paths = [_path(stop, limit, 0)]
            if constant == 1.0 and share == 1.0:
                for alone in _alone(problem):
                    level = min(int(np.searchsorted(levels, alone)), len(levels) - 1)
                    full = device_time[level] <= problem.devices * alone
                    cut = int(np.flatnonzero(full & (tokens <= memory))[-1])
                    paths.append(np.concatenate(([alone], _path(stop, limit, max(cut, 1)))))
            for path in paths:
                if len(path):
                    distinct.setdefault(tuple(np.round(path, 6).tolist()), path)
    return list(distinct.values())


def _alone(problem: Problem) -> list[float]:
    """Times of the three longest sequences alone, at each degree that holds them."""
    times = problem.alone[:3].ravel()
    return sorted(set(np.round(times[np.isfinite(times)], 6).tolist()))


def _path(stop: Integers, limit: Floats, cut: int) -> Floats:
    """Limits of the micro-batches from a place on; empty where there is no path."""
    limits = []
    while cut < len(stop) - 1:
        if stop[cut] == 0:
            return np.zeros(0)
        limits.append(limit[cut])
        cut = int(stop[cut])
    return np.array(limits)


def _stacked(starts: list[Floats], sequences: int) -> tuple[Floats, Integers]:
    width = min(max((len(start) for start in starts), default=1) * 2 + 8, max(sequences, 1) + 1)
    limits = np.ones((max(len(starts), 1), width))
    counts = np.ones(len(limits), dtype=np.int64)
    for index, start in enumerate(starts):
        trimmed = start[:width]
        limits[index, : len(trimmed)], counts[index] = trimmed, len(trimmed)
    return limits, counts


def _cut_places(problem: Problem) -> Integers:
    """Places where the dynamic programme may cut: all, or about ``_CUTS`` of them.

    The first hundred stay, where sequences are long and differ most; the others lie at
    equal shares of the tokens.
    """
    n = len(problem.tokens)
    if n <= _CUTS:
        return np.arange(n + 1)
    total = np.concatenate(([0.0], np.cumsum(problem.tokens)))
    shares = np.searchsorted(total, np.linspace(0, total[-1], _CUTS - 100))
    return np.unique(np.concatenate((np.arange(101), shares, [n])).clip(0, n))


def _levels(problem: Problem) -> Floats:
    """Time limits (ms) from below any plan's to above any need."""
    longest = float(problem.alone[0].min())
    mean = float(problem.cheapest.sum()) / problem.devices
    shortest = float(problem.alone[-1].min())
    low = max(min(mean / 20, longest / 4), shortest / 2, 1e-9)
    return np.geomspace(low, max(mean * 1.5 + longest * 30, low * 2), _LEVELS)


@compiled
def _device_times(problem: Any, cuts: Any, levels: Any) -> Any:
    """Device time (ms) of the sequences before each cut under each limit [l, c].

    With it, the first limit that the sequence behind each cut can be ended within [c].
    """
    n, last = len(problem.tokens), len(levels)
    total = np.zeros((last, len(cuts)))
    first = np.zeros(len(cuts), dtype=np.int64)
    for level in range(last):
        cut, so_far = 0, 0.0
        for i in range(n + 1):
            cheapest = math.inf
            if i < n:
                for k in range(len(problem.degree)):
                    if problem.alone[i, k] <= levels[level]:
                        cheapest = min(cheapest, problem.alone[i, k] * problem.degree[k])
            if cut < len(cuts) and cuts[cut] == i:
                total[level, cut] = so_far
                if i < n and cheapest == math.inf:
                    first[cut] = level + 1
                cut += 1
            if cheapest < math.inf:
                so_far += cheapest
    return total, first


@compiled
def _cut(
    devices: int, constant: float, memory: float, tokens: Any, levels: Any, total: Any, first: Any
) -> Any:
    """The cheapest cut of the sorted batch from each place [c] on.

    Returns where its first micro-batch stops and the time that it has (stop 0 where
    there is none). A micro-batch holds at most ``memory`` tokens, but for a single
    stretch between two places, which is taken however many it has. ``tokens`` [c] are
    those before each place.
    """
    places = len(tokens)
    best, limit = np.full(places, math.inf), np.zeros(places)
    stops = np.zeros(places, np.int64)
    best[places - 1] = 0.0
    for start in range(places - 2, -1, -1):
        if first[start] >= len(levels):
            continue
        for stop in range(start + 1, places):
            if tokens[stop] - tokens[start] > memory and stop > start + 1:
                break
            low, high = first[start], len(levels) - 1
            while low < high:
                middle = (low + high) // 2
                if total[middle, stop] - total[middle, start] <= devices * levels[middle]:
                    high = middle
                else:
                    low = middle + 1
            time = levels[low]
            if low > first[start]:
                needed = (total[low, stop] - total[low, start]) / devices
                time = max(levels[low - 1], needed)
            if best[stop] + time + constant < best[start]:
                best[start], stops[start], limit[start] = best[stop] + time + constant, stop, time
    return stops, limit


@inner
def _fill(problem: Any, plan: Any, m: int, limit: float, rule: int) -> bool:
    """Fill micro-batch ``m`` within ``limit`` from its waiting sequences, longest
    first.

    The rest waits for the next micro-batch; False where it takes none.
    """
    score, share = rule % _SCORES, _SHARE[rule // _SCORES % len(_SHARE)]
    lift = rule // _RULES
    kind, load, room = plan.kind[m], plan.load[m], plan.room[m]
    tokens, alone, degree, cap = problem.tokens, problem.alone, problem.degree, problem.cap
    share_ms = problem.share_ms
    waiting, after, rest = plan.waiting[m], plan.waiting[m + 1], plan.rest[m + 1]
    groups, free, left, opened, most = 0, problem.devices, 0, 0, 0.0
    left_tokens, left_time, time, looks = 0.0, 0.0, 0.0, 0
    last, count = len(tokens) - 1, int(plan.rest[m, 0])
    shortest = tokens[last]
    for index in range(count):
        i = waiting[index]
        length = tokens[i]
        chosen, fresh = -1, -1
        if free > 0:
            for k in range(len(degree)):
                if alone[i, k] <= limit:
                    if degree[k] <= free:
                        fresh = k
                        for larger in range(k + 1, min(k + 1 + lift, len(degree))):
                            if degree[larger] <= free and alone[i, larger] <= limit:
                                fresh = larger
                    break
        opens = fresh >= 0 and (
            length > most or alone[i, fresh] > share * limit or length > share * cap * degree[fresh]
        )
        if not opens and length <= most:
            # At most so many that fit are compared: on thousands of groups the best of
            # a few is as good.
            roomiest, retained, smallest, position, fitting = 0.0, 0, math.inf, 0, 0
            while position < opened and fitting < _CANDIDATES:
                g = plan.open[position]
                position += 1
                space, k = room[g], kind[g]
                if space < shortest or limit - load[g] < share_ms[last, k]:
                    continue
                plan.open[retained] = g
                retained += 1
                if space > roomiest:
                    roomiest = space
                if space >= length:
                    slack = limit - load[g] - share_ms[i, k]
                    if slack >= 0:
                        fitting += 1
                        if score == 1:
                            hole = (space - length) / (cap * degree[k])
                        elif score == 0:
                            hole = slack
                        elif score == 3:
                            hole = slack * degree[k]
                        elif score == 2:
                            hole = slack / limit + (space - length) / (cap * degree[k])
                        else:
                            hole = abs(slack / limit - (space - length) / (cap * degree[k]))
                        if hole < smallest:
                            smallest, chosen = hole, g
            looks += position
            if position == opened:
                most, opened = roomiest, retained
            elif retained < position:
                for further in range(position, opened):
                    plan.open[retained] = plan.open[further]
                    retained += 1
                opened = retained
        if chosen < 0 and fresh >= 0:
            chosen = groups
            kind[groups], load[groups] = fresh, problem.latency[fresh]
            room[groups] = cap * degree[fresh]
            free -= degree[fresh]
            plan.open[opened] = groups
            opened += 1
            groups += 1
            most = max(most, room[chosen] - length)
        if chosen < 0:
            after[left] = i
            left += 1
            left_tokens += length
            left_time += problem.cheapest[i]
        else:
            load[chosen] += share_ms[i, kind[chosen]]
            room[chosen] -= length
            time = max(time, load[chosen])
            plan.micro_batch[i], plan.group[i] = m, chosen
    plan.time[m] = time
    rest[0], rest[1], rest[2] = left, left_tokens, left_time
    plan.looks[0] += looks + count
    return left < count


@inner
def _build(
    problem: Any, plan: Any, limits: Any, rules: Any, count: int, first: int, worse_than: float
) -> Any:
    """A plan for ``limits`` [count]; (time, micro-batches), infinite where it fails.

    The micro-batches before ``first`` are those that ``plan`` has. It fails as well as
    soon as it must take ``worse_than`` or more. The last micro-batch takes all that is
    left in the cheapest time; where that is too much for one, its limit is used again.
    """
    memory, time, m = problem.cap * problem.devices, 0.0, 0
    for m in range(first):
        time += plan.time[m] + problem.constant_ms
    m = first
    while plan.rest[m, 0] > 0:
        if m >= len(plan.time):
            return math.inf, m
        more = math.ceil(plan.rest[m, 1] / memory) * problem.constant_ms
        if time + more + plan.rest[m, 2] / problem.devices >= worse_than:
            return math.inf, m
        rule = rules[min(m, count - 1)]
        if m >= count - 1 and plan.rest[m, 1] <= memory:
            last = _shortest_time(problem, plan, m, rule, worse_than - time - problem.constant_ms)
            if last < math.inf:
                return time + last + problem.constant_ms, m + 1
            if worse_than < math.inf:
                return math.inf, m
        soonest, waiting = 0.0, plan.waiting[m]
        for index in range(int(plan.rest[m, 0])):
            soonest = max(soonest, problem.alone[waiting[index]].min())
            if problem.tokens[waiting[index]] < problem.tokens[waiting[0]] / 2:
                break
        limit = max(limits[min(m, count - 1)], soonest)
        if not _fill(problem, plan, m, limit, rule):
            return math.inf, m
        time += plan.time[m] + problem.constant_ms
        m += 1
    return (time, m) if time < worse_than else (math.inf, m)


@inner
def _shortest_time(problem: Any, plan: Any, m: int, rule: int, below: float) -> float:
    """The cheapest time below ``below`` that takes all that waits; infinite if none.

    A few steps of bisection; the annealing comes back to it.
    """
    low, high, good = plan.rest[m, 2] / problem.devices, below, math.inf
    if high == math.inf:
        high = 0.0
        for index in range(int(plan.rest[m, 0])):
            high += problem.alone[plan.waiting[m, index]].min()
    if low > high:
        return math.inf
    tried = high
    for _ in range(8):
        if _fill(problem, plan, m, tried, rule) and plan.rest[m + 1, 0] == 0:
            good = plan.time[m]
            high = min(tried, good)
        elif good == math.inf:
            return math.inf
        else:
            low = tried
        if high - low <= 2e-3 * high:
            break
        tried = 0.5 * (low + high)
    if plan.rest[m + 1, 0] > 0 or plan.time[m] > good:
        # The best was not the last: once more, and a hair above for rounding.
        for above in (1.0, 1 + 1e-9):
            _fill(problem, plan, m, good * above, rule)
            if plan.rest[m + 1, 0] == 0:
                break
        else:
            return math.inf
    return float(plan.time[m])


@inner
def _keep(plan: Any, target: Any, first: int, count: int) -> None:
    """Copy the plan from micro-batch ``first`` on."""
    copy(target.micro_batch, plan.micro_batch, len(plan.micro_batch))
    copy(target.group, plan.group, len(plan.group))
    for m in range(first, count):
        copy(target.kind[m], plan.kind[m], plan.kind.shape[1])
        target.time[m] = plan.time[m]
        copy(target.rest[m + 1], plan.rest[m + 1], 3)
        copy(target.waiting[m + 1], plan.waiting[m + 1], int(plan.rest[m + 1, 0]))


@inner
def _record(plan: Any, best: Any, record: Any, time: float, count: int) -> None:
    """Keep a plan that beats the best."""
    if time < record[0]:
        record[0], record[1] = time, count
        _keep(plan, best, _FIRST, count)


@inner
def _start(problem: Any, plan: Any, order: Any) -> None:
    """All sequences wait for the first micro-batch, in this order."""
    copy(plan.waiting[0], order, len(order))
    plan.rest[0, 0], plan.rest[0, 1] = len(order), problem.tokens.sum()
    plan.rest[0, 2] = problem.cheapest.sum()


@inner
def _move(problem: Any, now: Any, limits: Any, rules: Any, count: int, state: Any) -> Any:
    """Change limits and rules of ``count`` micro-batches by a random move, in place.

    Returns the number of micro-batches, the first that may differ, and two positions of
    the order that are to be swapped (-1: none).
    """
    tried, swapped, other = count, -1, -1
    width, n = len(limits), len(problem.tokens)
    dice = next_random(state)
    first = int(next_random(state) * tried)
    if dice < 0.04 and tried < width:
        for index in range(tried, first, -1):
            limits[index], rules[index] = limits[index - 1], rules[index - 1]
        tried += 1
    elif dice < 0.08 and tried > 1:
        for index in range(first, tried - 1):
            limits[index], rules[index] = limits[index + 1], rules[index + 1]
        tried -= 1
    elif dice < 0.12:
        other = int(next_random(state) * tried)
        limits[first], limits[other] = limits[other], limits[first]
        rules[first], rules[other] = rules[other], rules[first]
        first = min(first, other)
    elif dice < 0.22:
        # As long as one of the longest that wait takes alone, at some degree.
        ahead = min(8.0, now.rest[first, 0])
        sequence = now.waiting[first, int(next_random(state) * ahead)]
        alone = problem.alone[sequence, int(next_random(state) * len(problem.degree))]
        if alone < math.inf:
            limits[first] = alone
    elif dice < 0.36:
        rules[first] = int(next_random(state) * _RULES)
        if next_random(state) < _LIFTED:
            rules[first] += _RULES * (1 + int(next_random(state) * _LIFTS))
    elif dice < 0.43 and n > 1:
        # Long sequences matter most: places near the front are drawn more often.
        swapped = int(n * next_random(state) ** 3)
        other = min(n - 1, swapped + 1 + int(8 * next_random(state)))
        first = 0
    else:
        where = first
        for number in range(1 + int(3 * next_random(state) ** 2)):
            step = 10 ** (-3 + 2.3 * next_random(state))
            if number:
                where = int(next_random(state) * tried)
            limits[where] *= 1 + (step if next_random(state) < 0.5 else -step)
            first = min(first, where)
    return tried, first, swapped, other


@inner
def _anneal(
    problem: Any,
    plan: Any,
    now: Any,
    best: Any,
    record: Any,
    limits: Any,
    rules: Any,
    order: Any,
    count: int,
    looks: int,
    warmth: float,
    state: Any,
) -> Any:
    """Move limits, rules and the order of sequences; the best goes back into them.

    Simulated annealing: a worse plan is taken with a chance that falls to nothing at
    the end of ``looks``. Only what a move changes is built again: ``now`` holds the
    plan that moves start from, ``best`` gets every plan that beats the one it has, with
    its time and number of micro-batches in ``record``. Returns (micro-batches, time).
    """
    width, n = len(limits), len(order)
    begin = plan.looks[0]
    _start(problem, plan, order)
    at, built = _build(problem, plan, limits, rules, count, _FIRST, math.inf)
    if at == math.inf:
        return count, math.inf
    _start(problem, now, order)
    _keep(plan, now, _FIRST, built)
    now_limits, now_rules, now_order = plan.time.copy(), rules.copy(), order.copy()
    now_count, count, time = built, built, at
    copy(limits, now_limits, width)
    _record(plan, best, record, at, built)
    try_limits, try_rules = now_limits.copy(), now_rules.copy()
    stale = 0  # first micro-batch where plan differs from now
    while plan.looks[0] - begin < looks:
        plan.looks[0] += _PER_MOVE + n
        progress = (plan.looks[0] - begin) / looks
        copy(try_limits, now_limits, width)
        copy(try_rules, now_rules, width)
        tried, first, swapped, other = _move(problem, now, try_limits, try_rules, now_count, state)
        first = min(first, tried - 1)
        for m in range(stale, first):
            plan.time[m] = now.time[m]
            copy(plan.rest[m + 1], now.rest[m + 1], 3)
        copy(plan.rest[first], now.rest[first], 3)
        copy(plan.waiting[first], now.waiting[first], int(now.rest[first, 0]))
        if swapped >= 0:
            now_order[swapped], now_order[other] = now_order[other], now_order[swapped]
            copy(plan.waiting[0], now_order, n)
        chance = 1 - next_random(state)
        bar = at - warmth * at * (1 - progress) ** 2 * math.log(chance)
        reached, built = _build(problem, plan, try_limits, try_rules, tried, first, bar)
        stale = first
        if reached < math.inf and built <= width:
            # Earlier micro-batches are unchanged; their sequences keep their groups.
            for i in range(n):
                if now.micro_batch[i] < first:
                    plan.micro_batch[i], plan.group[i] = now.micro_batch[i], now.group[i]
            at, now_count = reached, built
            if swapped >= 0:
                copy(now.waiting[0], now_order, n)
            _keep(plan, now, first, built)
            for index in range(built):
                now_limits[index] = now.time[index]
                now_rules[index] = try_rules[min(index, tried - 1)]
            stale = built
            if at < time * (1 - 1e-12):
                time, count = at, now_count
                copy(limits, now_limits, width)
                copy(rules, now_rules, width)
                copy(order, now_order, n)
                _record(now, best, record, at, built)
        elif swapped >= 0:
            now_order[swapped], now_order[other] = now_order[other], now_order[swapped]
    return count, time


@inner
def _empty(n: int, width: int, most_groups: int) -> Any:
    return _Plan(
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros((width, most_groups), np.int64),
        np.zeros((width, most_groups)),
        np.zeros((width, most_groups)),
        np.zeros(width),
        np.zeros((width + 1, n), np.int64),
        np.zeros((width + 1, 3)),
        np.zeros(most_groups, np.int64),
        np.zeros(1, np.int64),
    )


@inner
def _try_first(
    problem: Any, plan: Any, best: Any, record: Any, start: Any, count: int, trial: Any, order: Any,
    rule: Any, limits: Any, rules: Any, time: float, built: int,
) -> Any:  # fmt: skip
    """A first plan of limits ``start`` [count] under rules ``rule``, stretched in turn.

    It goes to ``limits`` and ``rules`` where it is faster than ``time``. Returns the
    time and the micro-batches of those.
    """
    for longer in _LONGER:
        for m in range(len(trial)):
            trial[m] = longer * start[m]
        _start(problem, plan, order)
        bar = min(time, record[0] * _HOPELESS)
        reached, micro_batches = _build(problem, plan, trial, rule, count, _FIRST, bar)
        if reached < time:
            time, built = reached, micro_batches
            copy(limits, plan.time, micro_batches)
            copy(rules, rule, len(rule))
            _record(plan, best, record, reached, micro_batches)
        if reached < math.inf and micro_batches <= count:
            break
    return time, built


@inner
def _end(plan: Any, ends: Any, row: int, time: float, count: int) -> None:
    """Keep a plan of ``count`` micro-batches as a row of ``ends``."""
    if time == math.inf:
        return
    ends.time_ms[row], ends.micro_batches[row] = time, count
    copy(ends.micro_batch[row], plan.micro_batch, len(plan.micro_batch))
    copy(ends.group[row], plan.group, len(plan.group))
    for m in range(count):
        copy(ends.kind[row, m], plan.kind[m], plan.kind.shape[1])
        ends.limits[row, m] = plan.time[m]


@compiled
def _search(problem: Any, starts: Any, counts: Any, looks: int, seed: int, chains: int) -> Any:
    """First plans under all first rules, short annealing of the best few, then chains.

    The short ones are warmer: what they are for is the number of micro-batches. Many
    short chains reach more mixes of degrees than a long one, which fills each better.
    Returns the looks, and the plans that the chains end with.
    """
    n, width, total = len(problem.tokens), starts.shape[1], len(starts)
    most_groups = min(problem.devices, n)
    plan, now = _empty(n, width, most_groups), _empty(n, width, most_groups)
    best, record = _empty(n, width, most_groups), np.array([math.inf, 0.0])
    state = np.array([np.uint64(88172645463325252) ^ np.uint64(seed * 2654435761 + 1)])
    tried = min(total, _TRIED)
    rows = total + _FIRST_LIFTED * tried
    times, limits = np.full(rows, math.inf), np.ones((rows, width))
    rules, built = np.zeros((rows, width), np.int64), np.ones(rows, np.int64)
    orders = np.zeros((rows, n), np.int64)
    rule, plain, trial = np.zeros(width, np.int64), np.arange(n), np.ones(width)
    for index in range(rows):
        copy(orders[index], plain, n)
    for number in range(len(_FIRST_RULES)):
        # The first rule for all, the others for the best few.
        ranked = np.argsort(times[:total])
        for position in range(total if number == 0 else tried):
            # A plan known before and one first plan are always built.
            spent = plan.looks[0] > looks // 3 and record[0] < math.inf
            if spent and (number > 0 or position > 1):
                break
            index = ranked[position]
            for m in range(width):
                rule[m] = _FIRST_RULES[number]
            times[index], built[index] = _try_first(
                problem, plan, best, record, starts[index], counts[index], trial, plain, rule,
                limits[index], rules[index], times[index], built[index],
            )  # fmt: skip
    ranked = np.argsort(times[:total])
    for lift in range(_FIRST_LIFTED):
        for position in range(tried):
            source, index = ranked[position], total + lift * tried + position
            if times[source] == math.inf or plan.looks[0] > looks // 3:
                break
            copy(rule, rules[source], width)
            for m in range(min(lift + 1, width)):
                rule[m] += _RULES
            times[index], built[index] = _try_first(
                problem, plan, best, record, limits[source], built[source], trial, plain, rule,
                limits[index], rules[index], math.inf, built[source],
            )  # fmt: skip
    ranked = np.argsort(times)
    ends = _Ends(
        np.full(chains + 1, math.inf), np.zeros(chains + 1, np.int64),
        np.zeros((chains + 1, n), np.int64), np.zeros((chains + 1, n), np.int64),
        np.zeros((chains + 1, width, most_groups), np.int64), np.zeros((chains + 1, width)),
    )  # fmt: skip
    if times[ranked[0]] == math.inf:
        return plan.looks[0], ends
    # One of each number of micro-batches, at most four; none where no looks are left.
    rounds, seen = 0, np.zeros(width + 1, np.bool_)
    for index in ranked:
        able = rounds < 4 and plan.looks[0] < looks
        if able and times[index] < math.inf and not seen[built[index]]:
            seen[built[index]] = True
            rounds += 1
            built[index], times[index] = _anneal(
                problem, plan, now, best, record, limits[index], rules[index], orders[index],
                built[index], looks // 16, 0.003, state,
            )  # fmt: skip
    ranked = np.argsort(times)
    for chain in range(chains):
        index = ranked[min(chain, rows - 1)]
        if plan.looks[0] >= looks or times[index] == math.inf:
            continue
        built[index], times[index] = _anneal(
            problem, plan, now, best, record, limits[index], rules[index], orders[index],
            built[index], (looks - plan.looks[0]) // (chains - chain), 0.001, state,
        )  # fmt: skip
        _start(problem, plan, orders[index])
        time, count = _build(
            problem, plan, limits[index], rules[index], built[index], _FIRST, math.inf
        )
        _end(plan, ends, chain, time, count)
    _end(best, ends, chains, record[0], int(record[1]))
    return plan.looks[0], ends
