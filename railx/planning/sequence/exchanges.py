"""Exchanges of sequences between the groups of a plan, and kicks where they end.

Groups that a rule filled are seldom as even as they could be. :func:`_descend`
exchanges up to two sequences of the slowest group of a micro-batch for up to two of
another group. In the same micro-batch the later of both groups must end sooner than the
slowest did. In another one the sum of both micro-batches' times must fall. Groups keep
their degrees. Latency saved by a group that becomes empty is not counted. A group with
more tokens than its memory holds gives first, and exchanges must leave fewer tokens
beyond memory.

Where no exchange gains, :func:`_kick` swaps or moves a few sequences or whole groups at
random, divides a group, joins two, or divides a micro-batch anew over groups of other
degrees. Exchanges begin again in the micro-batches that it changed, and a kick is taken
back where the plan is slower after them: an iterated local search (Lourenço, Martin and
Stützle, 2003). Tokens beyond memory cost time meanwhile. :func:`folded` begins without
the smallest micro-batch, whose sequences go beyond memory at first, :func:`refilled`
with one filled anew in groups of other degrees, :func:`evened` with groups of one
degree in few micro-batches. Work is counted in exchanges compared.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from railx.planning.compiled import compiled, copy, inner, next_random
from railx.planning.packing import Floats, Integers, least_loaded
from railx.planning.sequence.search import Problem, SearchResult

#: Exchanges compared for two groups at most. Beyond, the larger group gives single
#: sequences only, then both do: many sequences differ finely enough without pairs.
_MOST_PER_PAIR = 30_000
#: The same after a kick.
_MOST_AFTER_KICK = 2_000
#: Exchanges compared for a plan without kicks.
_MOST_EXCHANGES = 10_000_000
#: Share of a group's time that an exchange must gain.
_MIN_GAIN = 1e-9
#: A kick stays where the plan is slower by at most this share, which falls to nothing.
_WARMTH = 2e-4
#: Chance that a kick divides a group or joins two.
_MIXED = 0.2
#: Chance that two groups of one degree in different micro-batches swap all sequences.
_TRADED = 0.1
#: Chance that a kick divides a micro-batch anew.
_REMIXED = 0.4
#: Chance that a kick of sequences swaps two; else one moves.
_SWAPPED = 0.7
#: Sequences of similar length lie at most so many places apart.
_SIMILAR = 8
#: Draws of a kick at most; memory rules out many.
_DRAWS = 40
#: Exchanges compared that cost as much as a look of the search.
_PER_LOOK = 2
#: Kicks of a plan of one micro-batch less.
_FOLD_KICKS = 100
#: Plans with a micro-batch filled anew and the first kicks of each. Of many sequences
#: there are fewer, so that together they have at most so many.
_REFILLED, _REFILL_KICKS = 7680, 40
#: How many numbers of micro-batches plans of one degree have, and their first kicks
#: times sequences, between a least and a most number of kicks.
_EVEN_COUNTS, _EVEN_KICKS = 3, 2000
_FEWEST_EVEN_KICKS, _MOST_EVEN_KICKS = 10, 100
#: Of the devices all, half or a quarter are in groups of a larger degree.
_PARTS = 3
#: What happens to a plan before exchanges, beside filling a micro-batch anew.
_NOTHING, _FOLDED = -1, -2
#: Tokens beyond a group's memory that are rounding.
_OVER = 1e-6
#: Time of a token beyond the memory of a group, over that of a token on it.
_PENALTY = 3.0
#: No sequence; a bare -1 has a type of its own, and all is compiled again.
_NONE: Any = np.int64(-1)


class _Groups(NamedTuple):
    """A plan's groups [m, g] and its sequences [n].

    ``kind`` is the index of a group's degree, ``load`` its time (ms), ``room`` its
    tokens left, ``size`` its sequences, linked from ``head`` on by ``after`` [n].
    ``used`` [m]: groups behind these places are empty. ``micro_batch`` and ``group``
    [n] say where each sequence is. ``share_ms`` is the problem's, finite also where
    memory is short.
    """

    micro_batch: Integers
    group: Integers
    kind: Integers
    load: Floats
    room: Floats
    size: Integers
    head: Integers
    after: Integers
    used: Integers
    share_ms: Floats


class _Scratch(NamedTuple):
    """Parcels of two groups, and when micro-batches changed and pairs were settled."""

    given: Floats
    taken: Floats
    chosen: Integers
    changed: Integers
    settled: Integers


def shortened(problem: Problem, plan: SearchResult, kicks: int = 0, seed: int = 0) -> SearchResult:
    """The plan after exchanges of sequences and so many kicks, where it gets faster."""
    after = _result(problem, plan, kicks, seed)
    return plan if after.time_ms >= plan.time_ms * (1 - 1e-12) else after


def _result(
    problem: Problem, plan: SearchResult, kicks: int, seed: int, change: int = _NOTHING
) -> SearchResult:
    share_ms = np.where(
        np.isfinite(problem.share_ms), problem.share_ms, problem.cheapest[:, None] / problem.degree
    )
    time_ms, compared, after = _shorten(
        problem, share_ms, plan.micro_batch, plan.group, plan.kind, _MOST_EXCHANGES, kicks, seed,
        change,
    )  # fmt: skip
    looks = plan.looks + int(compared) // _PER_LOOK
    if time_ms == math.inf:
        return plan._replace(time_ms=math.inf, looks=looks)
    filled = np.flatnonzero(after.size.any(axis=1))
    rank = np.zeros(len(after.kind), np.int64)
    rank[filled] = np.arange(len(filled))
    times = np.where(after.size > 0, after.load, 0.0).max(axis=1)[filled]
    return SearchResult(
        float(time_ms), rank[after.micro_batch], after.group, after.kind[filled], times, looks
    )


def folded(problem: Problem, plan: SearchResult, seed: int) -> SearchResult:
    """A plan of one micro-batch less; an infinite time where memory stays short."""
    return _result(problem, plan, _FOLD_KICKS, seed, _FOLDED)


def refilled(problem: Problem, plan: SearchResult, seed: int) -> SearchResult:
    """The best of plans with one micro-batch filled anew, after kicks.

    This reaches mixes of degrees that exchanges do not where memory is short: the
    micro-batch takes long sequences from others, and short ones fill its rest.
    """
    kinds = len(problem.degree)
    changes = [
        (m * kinds + k) * _PARTS + part
        for m, k, part in product(range(len(plan.kind)), range(kinds), range(_PARTS))
        if problem.degree[k] << part <= problem.devices and (k > 0 or part == 0)
    ]
    stride = min(math.ceil(len(changes) * len(problem.tokens) / _REFILLED), len(changes))
    plan = plan._replace(looks=0)
    plans = [
        _result(problem, plan, _REFILL_KICKS, seed + row, change)
        for row, change in enumerate(changes[seed % stride :: stride])
    ]
    return _faster_half(problem, plans, 2 * _REFILL_KICKS, seed)


def evened(problem: Problem, seed: int) -> SearchResult:
    """The best of plans of groups of one degree, in the fewest micro-batches that
    memory may allow or a few more, after kicks.

    Sequences, longest first, go to the group with the fewest tokens, at first beyond
    its memory: so kicks find plans of fewer micro-batches than a rule fills.
    """
    n, sides = len(problem.tokens), problem.devices // problem.degree
    kicks = max(min(_EVEN_KICKS // n, _MOST_EVEN_KICKS), _FEWEST_EVEN_KICKS)
    fewest = math.ceil(problem.tokens.sum() / (problem.cap * problem.devices))
    plans: list[SearchResult] = []
    counts = range(fewest, fewest + _EVEN_COUNTS)
    for count, (kind, side) in product(counts, enumerate(sides.tolist())):
        if not math.isfinite(problem.share_ms[0, kind]):
            continue
        micro_batch, group = np.zeros((2, n), np.int64)
        for index, members in enumerate(least_loaded(range(n), problem.tokens, count * side)):
            micro_batch[members], group[members] = divmod(index, side)
        kinds = np.full((count, side), kind)
        plan = SearchResult(math.inf, micro_batch, group, kinds, np.zeros(count), 0)
        plans.append(_result(problem, plan, kicks, seed + len(plans)))
    return _faster_half(problem, plans, 2 * kicks, seed)


def shortest(problem: Problem, plans: list[SearchResult], kicks: int, seed: int) -> SearchResult:
    """The best of several plans after kicks, with the looks of all.

    Half of the plans go on with twice the kicks, the best of those, until one is left.
    """
    plans = [shortened(problem, plan, kicks, seed + row) for row, plan in enumerate(plans)]
    return plans[0] if len(plans) == 1 else _faster_half(problem, plans, 2 * kicks, seed)


def _faster_half(
    problem: Problem, plans: list[SearchResult], kicks: int, seed: int
) -> SearchResult:
    """:func:`shortest` of the faster half of the plans, with the looks of all."""
    ranked = sorted(plans, key=lambda plan: plan.time_ms)[: max(len(plans) // 2, 1)]
    best = shortest(problem, [plan._replace(looks=0) for plan in ranked], kicks, seed)
    return best._replace(looks=best.looks + sum(plan.looks for plan in plans))


@inner
def _parcels(problem: Any, plan: Any, m: int, g: int, pairs: bool, there: int, into: Any) -> Any:
    """What may leave a group: each of its sequences, with ``pairs`` each two as well.

    ``into`` [., 5]: first and second sequence (-1: none), tokens, time at this group's
    degree and at the other's ``there``. Returns their number.
    """
    count, first, here = 0, plan.head[m, g], plan.kind[m, g]
    tokens, share_ms, after = problem.tokens, problem.share_ms, plan.after
    while first >= 0:
        second = first
        while second >= 0:
            into[count, 0], into[count, 1] = first, _NONE
            into[count, 2] = tokens[first]
            into[count, 3], into[count, 4] = plan.share_ms[first, here], share_ms[first, there]
            if second != first:
                into[count, 1] = second
                into[count, 2] += tokens[second]
                into[count, 3] += plan.share_ms[second, here]
                into[count, 4] += share_ms[second, there]
            count += 1
            second = after[second] if pairs else _NONE
        first = after[first]
    return count


@inner
def _best_exchange(
    given: Any, giving: int, taken: Any, taking: int, load: float, other: float, room: float,
    space: float, second: float, longest: float, penalty: float, chosen: Any,
) -> float:  # fmt: skip
    """The change (ms) by the best exchange of two groups' parcels, not below 0 if none.

    The slowest group has ``load`` ms and ``room`` tokens left, the other one ``other``
    and ``space``. Without it its micro-batch takes ``second`` ms. That of the other one
    takes ``longest``, 0 where it is the same. Where one is beyond its memory, fewer
    tokens must be beyond it afterwards. ``chosen`` [2] gets the rows of both parcels.
    """
    short = room < -_OVER or space < -_OVER
    now, most_ms, best, gained = load, load, -_MIN_GAIN * load, 0.0
    before = beyond = 0.0
    if short:
        now, most_ms, best = max(load, other if longest == 0.0 else second), math.inf, 0.0
        before = max(-room, 0.0) + max(-space, 0.0)
    for row in range(giving):
        if other + given[row, 4] == math.inf:
            continue
        for back in range(taking):
            mine = load - given[row, 3] + taken[back, 4]
            if mine >= most_ms:
                continue
            tokens = taken[back, 2] - given[row, 2]
            if short:
                beyond = max(tokens - room, 0.0) + max(-tokens - space, 0.0)
                if beyond >= before - _OVER:
                    continue
            elif tokens > room or -tokens > space:
                continue
            theirs = other + given[row, 4] - taken[back, 3]
            if longest == 0.0:
                change = max(mine, theirs) - now
            else:
                change = max(mine, second) - now + max(theirs - longest, 0.0)
            if short:
                change += penalty * (beyond - before)
            if change < best:
                best = gained = change
                chosen[0], chosen[1] = row, back
    return gained


@inner
def _add(problem: Any, plan: Any, i: int, m: int, g: int) -> None:
    """Add a sequence that is in no group to group ``g`` of micro-batch ``m``."""
    k = plan.kind[m, g]
    if plan.size[m, g] == 0:
        plan.load[m, g], plan.room[m, g] = problem.latency[k], problem.cap * problem.degree[k]
        plan.head[m, g] = _NONE
        plan.used[m] = max(plan.used[m], g + 1)
    plan.after[i], plan.head[m, g] = plan.head[m, g], i
    plan.size[m, g] += 1
    plan.load[m, g] += plan.share_ms[i, k]
    plan.room[m, g] -= problem.tokens[i]
    plan.micro_batch[i], plan.group[i] = m, g


@inner
def _transfer(problem: Any, plan: Any, i: int, m: int, g: int) -> None:
    """Move a sequence to group ``g`` of micro-batch ``m``."""
    before, source = plan.micro_batch[i], plan.group[i]
    if plan.head[before, source] == i:
        plan.head[before, source] = plan.after[i]
    else:
        previous = plan.head[before, source]
        while plan.after[previous] != i:
            previous = plan.after[previous]
        plan.after[previous] = plan.after[i]
    plan.size[before, source] -= 1
    plan.load[before, source] -= plan.share_ms[i, plan.kind[before, source]]
    plan.room[before, source] += problem.tokens[i]
    _add(problem, plan, i, m, g)


@inner
def _slowest(plan: Any, m: int) -> Any:
    """The slowest group of a micro-batch (-1: none), its time, and the second time."""
    chosen, longest, second = _NONE, 0.0, 0.0
    for g in range(plan.used[m]):
        if plan.size[m, g]:
            if plan.load[m, g] > longest:
                chosen, longest, second = g, plan.load[m, g], longest
            else:
                second = max(second, plan.load[m, g])
    return chosen, longest, second


@inner
def _with_pairs(mine: int, theirs: int, most: int) -> Any:
    """Whether each of two groups of so many sequences gives pairs."""
    if mine * (mine + 1) * (2 + theirs * (theirs + 1)) <= 4 * most:
        return True, True
    fewer, more = min(mine, theirs), max(mine, theirs)
    if fewer * (fewer + 1) * (1 + more) <= 2 * most:
        return mine < theirs, mine >= theirs
    return False, False


@inner
def _exchange(
    problem: Any, plan: Any, scratch: Any, m: int, source: int, second: float, far: int, g: int,
    longest: float, most: int, penalty: float,
) -> Any:  # fmt: skip
    """The best exchange of the slowest group of ``m`` with group ``g`` of ``far``.

    Returns whether there is one that gains, and how many were compared.
    """
    given, taken, chosen = scratch.given, scratch.taken, scratch.chosen
    mine, theirs = _with_pairs(plan.size[m, source], plan.size[far, g], most)
    giving = _parcels(problem, plan, m, source, mine, plan.kind[far, g], given)
    taking = _parcels(problem, plan, far, g, theirs, plan.kind[m, source], taken)
    # Nothing comes back.
    for column in range(5):
        taken[taking, column] = 0.0 if column > 1 else _NONE
    taking += 1
    change = _best_exchange(
        given, giving, taken, taking, plan.load[m, source], plan.load[far, g],
        plan.room[m, source], plan.room[far, g], second, longest, penalty, chosen,
    )  # fmt: skip
    if change < 0:
        for column in range(2):
            i, back = int(given[chosen[0], column]), int(taken[chosen[1], column])
            if i >= 0:
                _transfer(problem, plan, i, far, g)
            if back >= 0:
                _transfer(problem, plan, back, m, source)
    return change < 0, giving * taking


@inner
def _source(plan: Any, m: int) -> Any:
    """The group of a micro-batch that gives: the one most beyond its memory, else the
    slowest; and the longest time of the others.
    """
    slowest, longest, second = _slowest(plan, m)
    chosen, fullest = slowest, -_OVER
    for g in range(plan.used[m]):
        if plan.size[m, g] and plan.room[m, g] < fullest:
            chosen, fullest = g, plan.room[m, g]
    return chosen, second if chosen == slowest else longest


@inner
def _descend(
    problem: Any, plan: Any, scratch: Any, per_pair: int, most: int, penalty: float, local: bool
) -> Any:
    """Exchange sequences while that shortens a plan; returns the exchanges compared.

    A pair of micro-batches is looked at where one of them has changed
    (``scratch.changed``) since it was settled; with ``local`` where both have ever. At
    most about ``most`` exchanges are compared.
    """
    count, changed, seen = len(plan.used), scratch.changed, scratch.settled
    clock, compared, settled, turn, m = 1, 0, 0, 0, 0
    for row in range(count):
        for column in range(count):
            seen[row, column] = 0
    while settled < count and compared < most:
        source, second = _source(plan, m)
        gained = False
        for away in range(count if source >= 0 else 0):
            far, longest = (m + away) % count, 0.0
            if max(changed[m], changed[far]) <= seen[m, far]:
                continue
            if local and (changed[m] == 0 or changed[far] == 0):
                continue
            if away:
                _, longest, _ = _slowest(plan, far)
            for step in range(plan.used[far]):
                g = (turn + step) % plan.used[far]
                if plan.size[far, g] and (away or g != source):
                    gained, more = _exchange(
                        problem,
                        plan,
                        scratch,
                        m,
                        source,
                        second,
                        far,
                        g,
                        longest,
                        per_pair,
                        penalty,
                    )
                    compared += more
                    if gained:
                        turn = g + 1
                        clock += 1
                        changed[m] = changed[far] = clock
                        break
            if gained:
                break
            seen[m, far] = clock
        settled = 0 if gained else settled + 1
        m = m if gained else (m + 1) % count
    return compared


@inner
def _total(problem: Any, plan: Any) -> Any:
    """Time with all constants (ms), and the tokens beyond memory; empty micro-batches
    take none.
    """
    time, beyond = 0.0, 0.0
    for m in range(len(plan.used)):
        chosen, longest, _ = _slowest(plan, m)
        if chosen >= 0:
            time += longest + problem.constant_ms
        for g in range(plan.used[m]):
            if plan.size[m, g]:
                beyond += max(-_OVER - plan.room[m, g], 0.0)
    return time, beyond


@inner
def _kick(problem: Any, plan: Any, scratch: Any, state: Any, penalty: float) -> bool:
    """Change a plan at random where memory allows it.

    One to three times two sequences are swapped, more often of the long ones, or one
    moves to the group of another. Or two groups of one degree swap all sequences, one
    is divided, or two are joined. Or a micro-batch is divided anew, perhaps beyond
    memory; False where a sequence has no group there.
    """
    n, changed = len(problem.tokens), scratch.changed
    for m in range(len(plan.used)):
        changed[m] = 0
    mixed = next_random(state) < _MIXED
    left = 1 + int(3 * next_random(state) ** 2)
    traded = next_random(state) < _TRADED
    if next_random(state) < _REMIXED:
        m = plan.micro_batch[int(n * next_random(state))]
        changed[m] = 1
        return bool(_remix(problem, plan, m, state, penalty))
    for _ in range(_DRAWS):
        i = int(n * next_random(state) ** 2)
        j = int(n * next_random(state))
        if next_random(state) < 0.5:
            j = i - _SIMILAR + int((2 * _SIMILAR + 1) * next_random(state))
            j = min(max(j, 0), n - 1)
        m, g, far, there = plan.micro_batch[i], plan.group[i], plan.micro_batch[j], plan.group[j]
        swapped = next_random(state) < _SWAPPED
        if traded and m != far and plan.kind[m, g] == plan.kind[far, there]:
            _trade(problem, plan, m, g, far, there)
            changed[m] = changed[far] = 1
            return True
        if mixed:
            done = (
                _divide(problem, plan, m, g)
                if swapped
                else m == far and g != there and _join(problem, plan, m, g, there)
            )
            if done:
                changed[m] = 1
                return True
            continue
        if m == far and g == there:
            continue
        back = problem.tokens[j] if swapped else 0.0
        more = problem.tokens[i] - back
        if more > plan.room[far, there] or -more > plan.room[m, g]:
            continue
        if problem.share_ms[i, plan.kind[far, there]] == math.inf:
            continue
        if swapped and problem.share_ms[j, plan.kind[m, g]] == math.inf:
            continue
        _transfer(problem, plan, i, far, there)
        if swapped:
            _transfer(problem, plan, j, m, g)
        changed[m] = changed[far] = 1
        left -= 1
        if left == 0:
            return True
    return True


@inner
def _fold(problem: Any, plan: Any) -> None:
    """Move the sequences of the micro-batch of fewest tokens to where most room is."""
    smallest, fewest = _NONE, math.inf
    for m in range(len(plan.used)):
        tokens = 0.0
        for g in range(plan.used[m]):
            if plan.size[m, g]:
                tokens += problem.cap * problem.degree[plan.kind[m, g]] - plan.room[m, g]
        if 0 < tokens < fewest:
            smallest, fewest = m, tokens
    for g in range(plan.used[smallest]):
        plan.size[smallest, g] = 0
    for i in range(len(problem.tokens)):
        if plan.micro_batch[i] == smallest and not _move_away(problem, plan, i):
            _add(problem, plan, i, smallest, plan.group[i])


@inner
def _move_away(problem: Any, plan: Any, i: int) -> bool:
    """Add a sequence that is in no group to the group of other micro-batches with most
    room; False where it fits none.
    """
    there, target, roomiest = _NONE, _NONE, -math.inf
    for m in range(len(plan.used)):
        for g in range(plan.used[m] if m != plan.micro_batch[i] else 0):
            fits = plan.size[m, g] and problem.share_ms[i, plan.kind[m, g]] < math.inf
            if fits and plan.room[m, g] > roomiest:
                there, target, roomiest = m, g, plan.room[m, g]
    if target >= 0:
        _add(problem, plan, i, there, target)
    return bool(target >= 0)


@inner
def _refill(problem: Any, plan: Any, m: int, k: int, part: int) -> bool:
    """Fill a micro-batch anew as far as memory allows; False where that fails.

    One in 2 ** ``part`` devices is in groups of degree ``k``, the others in groups of
    the smallest. Its own sequences and those of shorter micro-batches, the longest
    first, join it where they end soonest. What is left goes where most room is.
    """
    _, longest, _ = _slowest(plan, m)
    large = problem.devices // (problem.degree[k] << part)
    small = (problem.devices - large * problem.degree[k]) // problem.degree[0] if part else 0
    count = min(large + small, plan.kind.shape[1])
    for g in range(plan.used[m]):
        plan.size[m, g] = 0
    for i in range(len(problem.tokens)):
        if plan.micro_batch[i] == m:
            plan.group[i] = _NONE
    for g in range(count):
        kind = k if g < large else 0
        plan.kind[m, g], plan.load[m, g] = kind, problem.latency[kind]
        plan.room[m, g] = problem.cap * problem.degree[kind]
    for i in range(len(problem.tokens)):
        far = plan.micro_batch[i]
        if far != m and _slowest(plan, far)[1] >= longest:
            continue
        chosen, soonest = _NONE, math.inf
        for g in range(count):
            end = plan.load[m, g] + problem.share_ms[i, plan.kind[m, g]]
            if plan.room[m, g] >= problem.tokens[i] and end < soonest:
                chosen, soonest = g, end
        if chosen >= 0 and far == m:
            _add(problem, plan, i, m, chosen)
        elif chosen >= 0:
            _transfer(problem, plan, i, m, chosen)
    for i in range(len(problem.tokens)):
        if plan.group[i] < 0 and not _move_away(problem, plan, i):
            return False
    return True


@inner
def _remix(problem: Any, plan: Any, m: int, state: Any, penalty: float) -> bool:
    """Divide a micro-batch anew over groups of one or two random degrees.

    Each sequence, the longest first, goes where it ends soonest, with penalties. False
    where one fits no group.
    """
    slots, count, free = plan.kind.shape[1], 0, problem.devices
    for g in range(plan.used[m]):
        plan.size[m, g] = 0
    for _ in range(2):
        k = int(len(problem.degree) * next_random(state))
        # Any number of the first, and of the second as many as there is room for.
        more = int((free // problem.degree[k] + 1) * next_random(state))
        if count or more == 0:
            more = free // problem.degree[k]
        for _ in range(min(more, slots - count)):
            plan.kind[m, count] = k
            free -= problem.degree[k]
            count += 1
    for i in range(len(problem.tokens)):
        if plan.micro_batch[i] != m:
            continue
        chosen, soonest = _NONE, math.inf
        for g in range(count):
            k = plan.kind[m, g]
            load, room = problem.latency[k], problem.cap * problem.degree[k]
            if plan.size[m, g]:
                load, room = plan.load[m, g], plan.room[m, g]
            end = load + problem.share_ms[i, k]
            end += penalty * max(problem.tokens[i] - room, 0.0)
            if end < soonest:
                chosen, soonest = g, end
        if chosen < 0:
            return False
        _add(problem, plan, i, m, chosen)
    return True


@inner
def _add_all(problem: Any, plan: Any, first: int, m: int, g: int) -> None:
    """Add the linked sequences from the first on, which are in no group."""
    member = first
    while member >= 0:
        following = plan.after[member]
        _add(problem, plan, member, m, g)
        member = following


@inner
def _trade(problem: Any, plan: Any, m: int, g: int, far: int, other: int) -> None:
    """Swap the sequences of two groups of one degree."""
    first, second = plan.head[m, g], plan.head[far, other]
    plan.size[m, g] = plan.size[far, other] = 0
    _add_all(problem, plan, first, far, other)
    _add_all(problem, plan, second, m, g)


@inner
def _divide(problem: Any, plan: Any, m: int, g: int) -> bool:
    """Divide a group into two of at most half its degree; False where it does not fit.

    Sequences go to the one with more time left that has room.
    """
    k = plan.kind[m, g] - 1
    while k >= 0 and 2 * problem.degree[k] > problem.degree[plan.kind[m, g]]:
        k -= 1
    other = _NONE
    for slot in range(plan.kind.shape[1]):
        if plan.size[m, slot] == 0:
            other = slot
            break
    if k < 0 or other < 0 or plan.size[m, g] < 2:
        return False
    # Twice: whether it fits, then for good.
    for real in range(2):
        room = rest = problem.cap * problem.degree[k]
        mine = theirs = 0.0
        member = plan.head[m, g]
        if real:
            plan.size[m, g], plan.kind[m, g], plan.kind[m, other] = 0, k, k
        while member >= 0:
            following, length = plan.after[member], problem.tokens[member]
            share = problem.share_ms[member, k]
            first = (mine <= theirs and room >= length) or rest < length
            if share == math.inf or (first and room < length):
                return False
            if first:
                mine, room = mine + share, room - length
            else:
                theirs, rest = theirs + share, rest - length
            if real:
                _add(problem, plan, member, m, g if first else other)
            member = following
        if theirs == 0.0 or mine == 0.0:
            return False
    return True


@inner
def _join(problem: Any, plan: Any, m: int, g: int, other: int) -> bool:
    """Join two groups to one on their devices and free ones; False where none fits."""
    free, tokens, beyond = problem.devices, 0.0, 0.0
    for slot in range(plan.used[m]):
        if plan.size[m, slot] and slot != g and slot != other:
            free -= problem.degree[plan.kind[m, slot]]
    k = _NONE
    for kind in range(len(problem.degree)):
        if problem.degree[kind] <= free:
            k = kind
    for slot in (g, other):
        tokens += problem.cap * problem.degree[plan.kind[m, slot]] - plan.room[m, slot]
        beyond += max(-plan.room[m, slot], 0.0)
        member = plan.head[m, slot]
        while member >= 0:
            if problem.share_ms[member, k] == math.inf:
                return False
            member = plan.after[member]
    if tokens > problem.cap * problem.degree[k] + beyond:
        return False
    first, second = plan.head[m, g], plan.head[m, other]
    plan.size[m, g] = plan.size[m, other] = 0
    plan.kind[m, g] = k
    _add_all(problem, plan, first, m, g)
    _add_all(problem, plan, second, m, g)
    return True


@inner
def _copied(plan: Any, target: Any) -> None:
    """Copy a plan."""
    for m in range(len(plan.used)):
        groups = max(plan.used[m], target.used[m])
        target.used[m] = plan.used[m]
        for g in range(groups):
            target.kind[m, g], target.load[m, g] = plan.kind[m, g], plan.load[m, g]
            target.room[m, g], target.size[m, g] = plan.room[m, g], plan.size[m, g]
            target.head[m, g] = plan.head[m, g]
    for i in range(len(plan.after)):
        target.micro_batch[i], target.group[i] = plan.micro_batch[i], plan.group[i]
        target.after[i] = plan.after[i]


@inner
def _empty(n: int, count: int, slots: int, share_ms: Any) -> Any:
    return _Groups(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros((count, slots), np.int64),
        np.zeros((count, slots)), np.zeros((count, slots)), np.zeros((count, slots), np.int64),
        np.full((count, slots), _NONE), np.full(n, _NONE), np.zeros(count, np.int64), share_ms,
    )  # fmt: skip


@compiled
def _shorten(
    problem: Any, share_ms: Any, micro_batch: Any, group: Any, kind: Any, most: int, kicks: int,
    seed: int, change: int,
) -> Any:  # fmt: skip
    """A change, exchanges, then kicks with exchanges, taken back where that is slower.

    Returns time, exchanges compared and the groups; an infinite time where memory is
    short.
    """
    n, count = len(problem.tokens), len(kind)
    slots = max(kind.shape[1], min(problem.devices, n)) if kicks else kind.shape[1]
    plan, now = _empty(n, count, slots, share_ms), _empty(n, count, slots, share_ms)
    best = _empty(n, count, slots, share_ms)
    for m in range(count):
        copy(plan.kind[m], kind[m], kind.shape[1])
    for i in range(n - 1, -1, -1):
        _add(problem, plan, i, micro_batch[i], group[i])
    rows = max(n, min(_MOST_PER_PAIR, n * (n + 1) // 2)) + 1
    scratch = _Scratch(
        np.zeros((rows, 5)), np.zeros((rows, 5)), np.zeros(2, np.int64),
        np.ones(count, np.int64), np.zeros((count, count), np.int64),
    )  # fmt: skip
    penalty = _PENALTY * problem.cheapest.sum() / problem.tokens.sum()
    if change == _FOLDED:
        _fold(problem, plan)
    if change >= 0:
        row, part = change // _PARTS, change % _PARTS
        if not _refill(problem, plan, row // len(problem.degree), row % len(problem.degree), part):
            return math.inf, 0, plan
    compared = _descend(problem, plan, scratch, _MOST_PER_PAIR, most, penalty, False)
    time, beyond = _total(problem, plan)
    best_ms = time if beyond == 0 else math.inf
    if kicks == 0:
        return best_ms, compared, plan
    state = np.array([np.uint64(88172645463325252) ^ np.uint64(seed * 2654435761 + 1)])
    _copied(plan, now)
    _copied(plan, best)
    now_ms = time + penalty * beyond
    for kick in range(kicks):
        if not _kick(problem, plan, scratch, state, penalty):
            _copied(now, plan)
            continue
        compared += _descend(problem, plan, scratch, _MOST_AFTER_KICK, most, penalty, True)
        time, beyond = _total(problem, plan)
        if beyond == 0 and time < best_ms:
            best_ms = time
            _copied(plan, best)
        if time + penalty * beyond < now_ms * (1 + _WARMTH * (1 - kick / kicks)):
            now_ms = time + penalty * beyond
            _copied(plan, now)
        else:
            _copied(now, plan)
    if best_ms == math.inf:
        return best_ms, compared, plan
    _copied(best, plan)
    for m in range(count):
        scratch.changed[m] = 1
    compared += _descend(problem, plan, scratch, _MOST_PER_PAIR, most, penalty, False)
    return _total(problem, plan)[0], compared, plan
