"""A time that no plan of a whole batch can beat.

:func:`batch_lower_bound_ms` holds the proof. Prices of the sequences come from a linear
programme over classes of similar lengths (:func:`class_prices`). Its solution need not
be exact: any prices and weights give a bound, which compiled loops work out for all
sequences.
"""

from __future__ import annotations

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from railx.performance.sequence_cost import CostModel
from railx.planning.compiled import compiled, inner
from railx.planning.groups import Lengths
from railx.planning.packing import Floats
from railx.planning.sequence.search import Problem

#: The longest sequences are single classes, the others share classes of about equal
#: tokens: so many of both, to find durations and to price.
_COARSE_CLASSES, _CLASSES = (10, 14), (12, 16)
#: Shares of a group that a sequence takes: of its time, of its memory, of one sequence
#: that takes half of the time or more, of two that take a third or more.
_SHARES = 4
#: Durations of the first programme: from far below the mean to far above, and near it.
_FAR, _NEAR = 16, 16
#: Durations that the next programme has: the best of the last one, and where its prices
#: proved least.
_RETAINED, _ADDED = 14, 8
#: Durations of the proof, beside those from which one or two of so many longest
#: sequences fit.
_GRID, _EDGES = 48, 16
#: Intervals of durations that are halved where they prove least, and at most so many
#: that lengths times intervals are this many.
_HALVED, _EVALUATED = 200, 400_000
#: Least relative distance of durations that are added.
_APART = 0.01
#: Relative distance of durations whose weights replace those of earlier programmes.
_NEARLY = 0.05
#: Weights that are tried to lower V of an interval that proves least.
_MOVED = 8
#: Most programmes, and most where the time of a plan is known. Then none follows where
#: it is this share above the bound or less.
_ROUNDS, _MORE_ROUNDS = 6, 24
_CLOSE = 0.02
#: Programmes of the same plans end where prices prove this share of their promise, or
#: twice less than this factor more than before.
_ENOUGH = 0.998
_GROWN = 1.0005
#: A number of micro-batches this close to an integer is one.
_BROKEN = 2e-2
#: Plans of at most so many micro-batches are cut in two by the duration of one that the
#: programme divides, where the mean deviation over the mean is larger than this.
_MOST_CUT = 12
_MIN_DEVIATION = 0.01
#: Most steps of a programme and the start of its duals over the least cost.
_STEPS = 60
_UNIT = 0.2
#: The gap at which a programme ends: at least, at most, and as a share of what its
#: predecessor promised and did not prove. Up to 20 steps suffice.
_GAP, _FIRST_GAP = 3e-4, 3e-3
_GAP_SHARE = 0.3
#: Larger than the rounding of sums of times.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Prices:
    """The programme's solution, which need not be exact, and its bound in ms.

    ``prices`` are those of a sequence of each class, ``weights`` [k, d, j] those of the
    shares of a group. Of each duration [k], ``micro_batches`` is their number and
    ``losses`` that of one beside one of the best.
    """

    prices: Floats
    weights: Floats
    durations: Floats
    micro_batches: Floats
    losses: Floats
    total_ms: float

    def best(self) -> Floats:
        """The durations that lose least."""
        return np.sort(self.durations[np.argsort(self.losses, kind="stable")[:_RETAINED]])

    def cut(self, windows: tuple[tuple[float, float], ...]) -> tuple[int, float] | None:
        """Which of the longest micro-batches is divided among the most different
        durations, and their mean; None where each has one.
        """
        order = np.argsort(-self.durations)
        durations = self.durations[order]
        filled = np.concatenate(([0.0], np.cumsum(self.micro_batches[order])))
        chosen, widest = None, _MIN_DEVIATION
        for rank, (low, high) in enumerate(windows):
            parts = np.diff(np.clip(filled, rank, rank + 1))
            if parts.sum() < 0.5:
                break
            mean = float(np.average(durations, weights=parts))
            deviation = float(np.average(np.abs(durations - mean), weights=parts)) / mean
            if deviation > widest and low < mean < high:
                chosen, widest = (rank, mean), deviation
        return chosen


def batch_lower_bound_ms(
    lengths: Lengths,
    devices: int,
    degrees: tuple[int, ...],
    cost: CostModel,
    plan_ms: float = math.inf,
) -> float:
    """A time in ms that no plan of the batch can beat.

    Infinite where a sequence fits no group. ``degrees`` may be any numbers. Where
    ``plan_ms`` is the time of a plan, the bound is raised for longer, but only until it
    is close.

    Proof, for N devices, t_i(d) the time of sequence i alone in a group of degree d,
    and micro-batches whose groups take T' <= T < T".

    *Shares.* In a group of degree d, t_i(d)/T" add up to at most T/T" < 1 and
    s_i/(cap d) to at most 1. Hence floor((r + 1) t_i(d)/T")/r add up to at most 1 as
    well, for any integer r: the floors are integers whose sum is below r + 1. So does
    every weighted mean of these shares,

        w_i(d) = Σ_j θ_dj share_ij(d),    θ >= 0,    Σ_j θ_dj = 1,

    whose weights may differ by degree: each degree has a price of time and one of
    memory. With the weight of time alone, the mean adds up to at most
    1 - θ_d1 (1 - T/T").

    *Devices.* A sequence takes at least e_i = min d w_i(d) devices, the least over the
    degrees that end it before T". The e_i of a group add up to at most d, those of a
    micro-batch to at most N: it is a knapsack.

    *Worth.* Give each sequence any price p_i >= 0. For any rate r >= 0 of a device, the
    prices of a micro-batch's sequences add up to at most

        V(T) = N r (1 - min_d θ_d1 (1 - T/T")) + Σ_i max(0, p_i - r e_i).

    r, θ and e are fixed for an interval, so V is linear in it and its ends suffice.

    *Bound.* The m-th longest of a plan's M micro-batches has a duration in a window
    W_m, at first any. Let v_m be the least of T + b1 - V(T) over T in W_m. Summed over
    the micro-batches, the plan's time is at least Σ p_i + Σ v_m. M is at least the
    tokens of the batch over N cap. Further micro-batches than that fewest number are
    no longer than those; they add what is below 0. Where M or the duration of the m-th
    longest micro-batch cuts the plans in two, the bound is the lesser one. A plan with
    a micro-batch longer than all T looked at takes longer than that.

    Nothing rests on where prices and weights come from: a linear programme over classes
    of sequences and some durations, y_k micro-batches of duration T_k with n_kd devices
    in groups of degree d, which hold a share z_ikd of class i,

        min Σ (T_k + b1) y_k,    Σ_kd z_ikd = 1,    Σ_d z_ikd <= y_k,
        Σ_i d share_ij(d) z_ikd <= n_kd for all j,    Σ_d n_kd <= N y_k,    Σ y_k >= M,

    and for each end of a window a limit on the number of micro-batches of at least it.

    p are the prices of its first rows, θ those of its third ones, as shares of 1.
    """
    allowed = tuple(sorted(degree for degree in degrees if degree <= devices))
    if len(lengths) == 0:
        return 0.0
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    if not allowed or ordered[0] > cost.tokens_per_device * allowed[-1]:
        return math.inf
    problem = Problem.of(ordered, devices, allowed, cost)
    fewest = -(-int(ordered.sum()) // (devices * cost.tokens_per_device))
    cheapest = float(problem.cheapest.sum())
    simple = max(cheapest / devices, float(problem.share_ms[0].min()))
    bound = max(simple + fewest * cost.constant_ms, _bound_ms(problem, fewest, plan_ms))
    return bound * (1 - _ROUNDING)


@dataclass(eq=False)
class _Node:
    """Plans of ``fewest`` to ``most`` micro-batches (None: any), and what is proven.

    ``windows`` are ranges of the duration of the longest micro-batch, of the second
    longest..., as many as the fewest; neither end rises from one to the next.
    ``earlier`` are durations and their weights in programmes before. The next one ends
    at ``gap``. The last ``stalled`` rounds have not raised the bound. ``cut`` is where
    to cut the plans in two: which micro-batch, at which duration.
    """

    fewest: int
    most: int | None
    windows: tuple[tuple[float, float], ...]
    durations: Floats
    earlier: tuple[Floats, Floats]
    bound_ms: float = 0.0
    gap: float = _FIRST_GAP
    rounds: int = 0
    stalled: int = 0
    done: bool = False
    cut: tuple[int, float] | None = None

    def numbers(self, durations: Floats) -> Numbers:
        """How many micro-batches there are, and of at least the durations of cuts."""
        number, sign = (self.fewest, -1) if self.most is None else (self.most, 1)
        lows = {low: rank + 1 for rank, (low, _) in enumerate(self.windows) if low > 0}
        # Of equal ends the first counts.
        below = {high: rank for rank, (_, high) in reversed(list(enumerate(self.windows)))}
        rows = [(0.0, number, sign)]
        rows += [(low, count, -1) for low, count in lows.items()]
        rows += [(high, count, 1) for high, count in below.items() if high < math.inf]
        edges, limits, signs = np.array(rows, dtype=np.float64).T.copy()
        return Numbers((durations >= edges[:, None]).astype(np.float64), limits, signs)

    def halves(self, rank: int, middle: float) -> list[_Node]:
        """Plans whose micro-batch of a rank is shorter than a duration, and others."""
        shorter, longer = list(self.windows), list(self.windows)
        for index, (low, high) in enumerate(self.windows):
            if index >= rank:
                shorter[index] = (low, min(high, middle))
            if index <= rank:
                longer[index] = (max(low, middle), high)
        durations = np.union1d(self.durations, (middle * (1 - 1e-9), middle))
        return [
            _Node(self.fewest, self.most, tuple(part), durations, self.earlier, self.bound_ms)
            for part in (shorter, longer)
        ]


def _bound_ms(problem: Problem, fewest: int, plan_ms: float) -> float:
    """The best bound by the prices of at least ``fewest`` micro-batches.

    Branch and bound: where a programme of few classes has a broken number of
    micro-batches, the ranges below and above it are bounded on their own, and so are
    plans on either side of a duration where the programme divides a micro-batch. The
    least bound is raised first.
    """
    fine = _classes(problem, *_CLASSES)
    nodes = _first_nodes(problem, fewest)
    for _ in range(_ROUNDS if plan_ms == math.inf else _MORE_ROUNDS):
        lowest = min(nodes, key=lambda node: node.bound_ms)
        if plan_ms <= lowest.bound_ms * (1 + _CLOSE) or (lowest.done and lowest.cut is None):
            break
        if lowest.done and lowest.cut is not None:
            nodes.remove(lowest)
            nodes += lowest.halves(*lowest.cut)
            lowest = nodes[-1]
        _raise(problem, *fine, lowest, plan_ms)
    return min(node.bound_ms for node in nodes)


def _first_nodes(problem: Problem, fewest: int) -> list[_Node]:
    """All plans, or those of fewer and of more micro-batches than a broken number."""
    coarse = _classes(problem, *_COARSE_CLASSES)
    durations = _durations(problem, fewest)

    def solved(low: int, high: int | None) -> tuple[_Node, float]:
        node = _Node(low, high, ((0.0, math.inf),) * low, durations, (durations, durations))
        prices = _prices(*coarse, node)
        node.durations, node.earlier = prices.best(), (prices.durations, prices.weights)
        return node, float(prices.micro_batches.sum())

    node, number = solved(fewest, None)
    below, above = math.floor(number + _BROKEN), math.ceil(number - _BROKEN)
    if not (above > fewest and below < above):
        return [node]
    nodes = [solved(above, None)[0]]
    if below >= fewest:
        nodes.append(solved(fewest, below)[0])
    return nodes


def _raise(problem: Problem, classes: Problem, sizes: Floats, node: _Node, plan_ms: float) -> None:
    """Raise the bound of plans by another programme."""
    priced = _prices(classes, sizes, node)
    node.earlier = _merged(node.earlier, (priced.durations, priced.weights))
    certified, added = _certified(problem, classes, sizes, priced, node)
    node.rounds += 1
    node.stalled = node.stalled + 1 if certified < node.bound_ms * _GROWN else 0
    node.bound_ms = max(node.bound_ms, certified)
    node.durations = np.union1d(priced.best(), added)
    node.cut = priced.cut(node.windows) if len(node.windows) <= _MOST_CUT else None
    missing = 1 - node.bound_ms / max(priced.total_ms, node.bound_ms, 1e-300)
    node.gap = min(max(_GAP_SHARE * missing, _GAP), _FIRST_GAP)
    # The programme promises too little for the plan: cut at once.
    is_low = node.rounds > 1 and priced.total_ms * (1 + _CLOSE) < plan_ms < math.inf
    node.done = missing < 1 - _ENOUGH or node.stalled > 1 or (is_low and node.cut is not None)


def _merged(earlier: tuple[Floats, Floats], newer: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Weights by duration; newer ones in place of those at nearly the same one."""
    distance = np.abs(earlier[0][:, None] / newer[0] - 1).min(axis=1)
    durations = np.concatenate((earlier[0][distance > _NEARLY], newer[0]))
    weights = np.concatenate((earlier[1][distance > _NEARLY], newer[1]))
    order = np.argsort(durations)
    return durations[order], weights[order]


def _classes(problem: Problem, alone: int, shared: int) -> tuple[Problem, Floats]:
    """Classes, as sequences of their mean length, and their sizes.

    A class fits the same degrees. Tokens and times of shares alone are theirs.
    """
    lengths = problem.tokens
    alone = min(alone, len(lengths))
    rest = lengths[alone:]
    cuts = np.zeros(len(lengths), dtype=np.bool_)
    cuts[: alone + 1] = True
    if len(rest):
        filled = np.cumsum(rest)
        index = np.minimum((filled / filled[-1] * shared - 1e-9).astype(np.int64), shared - 1)
        fits = np.isfinite(problem.share_ms).sum(axis=1)
        cuts[alone:] |= np.diff(index, prepend=-1) > 0
        cuts[1:] |= np.diff(fits) != 0
        cuts[1:] |= np.diff(np.floor(np.log2(lengths))) != 0
    starts = np.flatnonzero(cuts)
    sizes = np.diff(starts, append=len(lengths)).astype(np.float64)
    finite = np.where(np.isfinite(problem.share_ms), problem.share_ms, 0.0)
    mean = np.add.reduceat(finite, starts, axis=0) / sizes[:, None]
    mean[~np.isfinite(problem.share_ms[starts])] = np.inf
    middle = problem._replace(tokens=np.add.reduceat(problem.tokens, starts) / sizes, share_ms=mean)
    return middle, sizes


def _durations(problem: Problem, fewest: int) -> Floats:
    """The durations of the programme, ascending."""
    average, needed = _typical_ms(problem, fewest)
    lowest, highest = 0.25 * min(average, needed), 2.5 * max(average, needed)
    longest = problem.share_ms[0][np.isfinite(problem.share_ms[0])]
    near = np.geomspace(0.6 * average, 1.4 * average, _NEAR)
    grid = np.concatenate((np.geomspace(lowest, highest, _FAR), near, longest * (1 + 1e-9)))
    return np.unique(grid[grid <= highest])


def _typical_ms(problem: Problem, fewest: int) -> tuple[float, float]:
    """Mean time of ``fewest`` micro-batches, and that of the longest sequence alone."""
    mean = float(problem.cheapest.sum()) / problem.devices / fewest
    return mean, float(np.min(problem.share_ms[0]))


def _prices(classes: Problem, sizes: Floats, node: _Node) -> _Prices:
    """Prices of a sequence of each class, and the number of micro-batches."""
    low, high = node.windows[-1][0] if node.most == node.fewest else 0.0, node.windows[0][1]
    durations = node.durations[(node.durations >= low) & (node.durations < high)]
    kinds = len(classes.degree)
    shares = np.empty((len(durations), len(sizes), kinds, _SHARES))
    for index, stop in enumerate(np.nextafter(durations, np.inf)):
        _shares(classes.share_ms, classes.tokens, classes.degree, classes.cap, stop, shares[index])
    scale = float(durations.mean())
    prices, count, duals, losses, objective = class_prices(
        shares * (sizes / classes.devices)[:, None, None],
        (durations + classes.constant_ms) / scale,
        node.numbers(durations),
        _STEPS,
        node.gap,
    )
    if not math.isfinite(objective) or not np.isfinite(prices).all():
        prices, count, objective = np.zeros(len(sizes)), np.zeros(len(durations)), 0.0
    # Rounded: nothing rests on the last digits.
    rounded = np.clip(prices * scale / sizes, 0.0, 1e30).astype(np.float32).astype(np.float64)
    weights = np.clip(np.nan_to_num(-duals), 0.0, 1e30).astype(np.float32).astype(np.float64)
    weights[:, :, 0] += 1e-9
    weights /= weights.sum(axis=2, keepdims=True)
    return _Prices(rounded, weights, durations, count, losses, objective * scale)


def _spread(problem: Problem, classes: Problem, sizes: Floats, prices: Floats) -> Floats:
    """A price for each sequence from those of the classes.

    The price of a token is interpolated, which is exact where prices have the form of
    times. Sequences that fit other degrees do not count.
    """
    price = np.empty(len(problem.tokens))
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    square = np.add.reduceat(problem.tokens**2, starts[:-1]) / sizes
    position, token = square / classes.tokens, prices / classes.tokens
    fits = np.isfinite(problem.share_ms).sum(axis=1)
    class_fits = np.isfinite(classes.share_ms).sum(axis=1)
    for kind in np.unique(class_fits):
        members, those = fits == kind, class_fits == kind
        lengths = problem.tokens[members]
        price[members] = lengths * np.interp(lengths, position[those][::-1], token[those][::-1])
    return price


def _certified(
    problem: Problem, classes: Problem, sizes: Floats, priced: _Prices, node: _Node
) -> tuple[float, Floats]:
    """The bound that prices of the classes prove for the plans of a node.

    With it, the durations of the largest loss.
    """
    fewest, most = node.fewest, node.most
    price = _spread(problem, classes, sizes, priced.prices)
    grid = _grid(problem, classes, node)
    tokens, first, counts = np.unique(problem.tokens, return_index=True, return_counts=True)
    distinct = _Priced(tokens, problem.share_ms[first], price[first], counts.astype(np.float64))
    priced_classes = _Priced(classes.tokens, classes.share_ms, priced.prices, sizes)
    halved = min(_HALVED, max(_GRID, _EVALUATED // len(first)))
    windows = np.unique(node.windows, axis=0)
    ranks = np.array([node.windows.count((low, high)) for low, high in windows.tolist()])
    if most != fewest:
        # Micro-batches beyond the fewest are no longer than those.
        windows = np.concatenate((windows, [(0.0, node.windows[-1][1])]))
        ranks = np.append(ranks, 0)
    starts, stops, worth, falls = _worths(
        problem, distinct, priced_classes, grid, halved, *node.earlier, windows
    )
    ends = np.stack((worth - falls * (1 - starts / stops), worth), axis=1)
    charge = np.stack((starts, stops), axis=1) + problem.constant_ms
    inside = [(starts >= low) & (stops <= high) for low, high in windows.tolist()]

    def proven(factors: Floats) -> Floats:
        """The bound by prices times each factor."""
        losses = (charge[part].ravel() - factors[:, None] * ends[part].ravel() for part in inside)
        left = np.stack([loss.min(axis=1, initial=grid[-1]) for loss in losses], axis=1)
        total: Floats = factors * float(price.sum()) + left @ ranks
        if most is None:
            total[left[:, -1] < 0] = -np.inf
        else:
            total += (most - fewest) * np.minimum(left[:, -1], 0.0)
        return total

    factors = np.concatenate((np.linspace(0.97, 1.03, 31), (0.5, 0.8, 0.9, 1.1, 1.2)))
    if most is None:
        # The largest at which no further micro-batch gains.
        last, costs = ends[inside[-1]], charge[inside[-1]]
        factors = np.append(factors, (costs[last > 0] / last[last > 0]).min(initial=2.0))
        factors[-1] *= 1 - 1e-12
    totals = proven(factors)
    near = factors[totals.argmax()] + np.linspace(-0.002, 0.002, 21)
    best = max(float(totals.max()), float(proven(near).max()))
    longest = math.inf
    if grid[-1] < node.windows[0][1]:
        longest = float(grid[-1]) + problem.constant_ms * fewest
    left = (charge - ends).min(axis=1)
    added: list[float] = []
    for part in inside:
        for index in np.argsort(np.where(part, left, np.inf), kind="stable")[:_ADDED].tolist():
            stop = float(stops[index]) * (1 - 1e-9)
            if part[index] and all(abs(stop / other - 1) > _APART for other in added):
                added.append(stop)
                if len(added) % max(_ADDED // len(inside), 1) == 0:
                    break
    # Prices of a programme without a solution may be much larger than times.
    best -= _ROUNDING * float(price.sum())
    return max(min(best, longest), 0.0), np.array(added)


def _grid(problem: Problem, classes: Problem, node: _Node) -> Floats:
    """Ends of intervals of durations; none has a part on either side of a cut."""
    lowest = float(problem.share_ms.min())
    average, needed = _typical_ms(problem, node.fewest)
    start = 0.2 * min(average, needed)
    stop = 3 * max(average, needed)
    grid = np.geomspace(max(start, lowest), stop, _GRID)
    grid = np.concatenate((grid, np.geomspace(stop, stop * node.fewest + 1, 16)[1:]))
    if lowest < start:
        grid = np.concatenate((np.geomspace(lowest, start, 8)[:-1], grid))
    grid[0] = lowest
    edges = np.outer((1, 2), classes.share_ms[:_EDGES]).ravel()
    edges = edges[(edges > grid[0]) & (edges < grid[-1])]
    cuts = np.ravel(node.windows)
    cuts = cuts[(cuts > grid[0]) & (cuts < math.inf)]
    ends: Floats = np.unique(np.concatenate((grid, edges, cuts)))
    return np.sort(ends[ends <= max(node.windows[0][1], float(ends[1]))])


class _Priced(NamedTuple):
    """Sequences or classes of them [n], for compiled code.

    ``tokens`` [n] and ``share_ms`` [n, d] are those of a :class:`Problem`. Each has a
    price [n] and stands for ``many`` [n] alike.
    """

    tokens: Floats
    share_ms: Floats
    price: Floats
    many: Floats


@compiled
def _worths(problem, distinct, classes, grid, halved, durations, weights, windows):
    """Intervals of durations, V at the end of each, and how much of it falls with T/T".

    Those of ``grid`` in some window; the one that proves least in each window in turn
    is halved, again and again.
    """
    first = len(grid) - 1
    most = first + halved
    starts, stops, ends, falls = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    shares = np.empty((len(classes.tokens), *weights.shape[1:]))
    raised = np.zeros(most, dtype=np.bool_)
    number = 0
    for interval in range(first):
        start, stop = grid[interval], grid[interval + 1]
        inside = False
        for window in range(len(windows)):
            inside |= windows[window, 0] <= start and stop <= windows[window, 1]
        if inside:
            starts[number], stops[number] = start, stop
            # A constant would have the function compiled for each of its values.
            ends[number], falls[number] = _worth(
                problem, distinct, classes, stop, durations, weights, raised[number], shares
            )
            number += 1
    finished = 0
    for turn in range(halved):
        low, high = windows[turn % len(windows)]
        least, chosen = np.inf, -1
        for index in range(number):
            start, stop = starts[index], stops[index]
            if low <= start and stop <= high:
                left = start + falls[index] * (1 - start / stop) - ends[index]
                left = min(left, stop - ends[index])
                if left < least:
                    chosen, least = index, left
        if chosen < 0:
            continue
        start, stop = starts[chosen], stops[chosen]
        if raised[chosen]:
            if stop < start * (1 + 1e-5):
                finished += 1
                if finished == len(windows):
                    break
                continue
            # The later half keeps its V.
            starts[number], stops[number] = start, 0.5 * (start + stop)
            starts[chosen] = stops[number]
            chosen = number
            number += 1
        finished = 0
        raised[chosen] = True
        ends[chosen], falls[chosen] = _worth(
            problem, distinct, classes, stops[chosen], durations, weights, raised[chosen], shares
        )
    return starts[:number], stops[:number], ends[:number], falls[:number]


@inner
def _worth(problem, distinct, classes, stop, durations, weights, improve, class_shares):
    """V of micro-batches that end before ``stop``, and how much of it falls with T/T".

    Weights are tried on the classes: those of the programme's durations before and
    after, their mean, time alone, and, to ``improve`` them, the best of these moved
    towards the shares that are used most.
    """
    devices, degrees, cap = problem.devices, problem.degree, problem.cap
    _shares(classes.share_ms, classes.tokens, degrees, cap, stop, class_shares)
    after = 0
    while after < len(durations) - 1 and durations[after] < stop:
        after += 1
    before = max(after - 1, 0)
    least, rate = np.inf, 0.0
    theta, chosen = np.zeros(weights.shape[1:]), np.zeros(weights.shape[1:])
    uses, used = np.zeros(weights.shape[1:]), np.zeros(weights.shape[1:])
    for option in range(4 + (_MOVED if improve else 0)):
        if option < 3:
            theta[:] = 0.5 * option * weights[after] + (1 - 0.5 * option) * weights[before]
        elif option == 3:
            theta[:] = 0.0
            theta[:, 0] = 1.0
        else:
            if option == 4:
                theta[:], uses[:] = chosen, used
            _move(theta, uses, 4.0 / (option - 3))
        value, last = _filled(class_shares, classes, devices, theta, uses)
        if value < least:
            least, rate = value, last
            chosen[:], used[:] = theta, uses
    needs = _needs(distinct, degrees, cap, stop, chosen)
    surplus, timed = 0.0, 1.0
    for index in range(len(needs)):
        if needs[index] < np.inf:
            surplus += distinct.many[index] * max(0.0, distinct.price[index] - rate * needs[index])
    for degree in range(len(degrees)):
        timed = min(timed, chosen[degree, 0])
    return devices * rate + surplus, devices * rate * timed


@inner
def _move(theta, uses, step):
    """Move weights towards the shares that are used most, in place."""
    for degree in range(len(theta)):
        most, total = uses[degree].max(), 0.0
        if most == 0:
            continue
        for part in range(theta.shape[1]):
            # No weight stays 0.
            theta[degree, part] += 1e-3
            theta[degree, part] *= math.exp(step * (uses[degree, part] / most - 1))
            total += theta[degree, part]
        for part in range(theta.shape[1]):
            theta[degree, part] /= total


@inner
def _filled(shares, classes, devices, theta, uses):
    """The knapsack of the classes, filled by worth: its value, a device's rate.

    ``uses`` [d, j] get the shares that the classes in it take of their groups.
    """
    price, sizes = classes.price, classes.many
    needs, worth = np.empty(len(sizes)), np.empty(len(sizes))
    kinds = np.empty(len(sizes), dtype=np.int64)
    for member in range(len(sizes)):
        needs[member], kinds[member] = _need(shares[member], theta)
        worth[member] = price[member] / needs[member]
    uses[:] = 0.0
    full, value = 0.0, 0.0
    for member in np.argsort(-worth):
        if needs[member] == np.inf:
            break
        inside = min(sizes[member], (devices - full) / needs[member])
        full += inside * needs[member]
        value += inside * price[member]
        for part in range(theta.shape[1]):
            uses[kinds[member], part] += inside * shares[member, kinds[member], part]
        if inside < sizes[member]:
            return value, worth[member]
    return value, 0.0


@inner
def _need(shares, theta):
    """Devices that a sequence takes at least, and the index of that degree.

    Infinite where it fits no degree.
    """
    least, best = np.inf, 0
    for degree in range(len(theta)):
        if shares[degree, 0] < np.inf:
            need = 0.0
            for part in range(theta.shape[1]):
                need += theta[degree, part] * shares[degree, part]
            if need < least:
                least, best = need, degree
    return least, best


@inner
def _needs(distinct, degrees, cap, stop, theta):
    """:func:`_need` of all sequences, in loops of which every turn does the same."""
    needs = np.full(len(distinct.tokens), np.inf)
    for degree in range(len(degrees)):
        width, times = degrees[degree], distinct.share_ms[:, degree].copy()
        first, second, third, fourth = theta[degree]
        for index in range(len(needs)):
            part = times[index] / stop
            need = first * (width * part) + second * (distinct.tokens[index] / cap)
            need += third * (width * np.floor(2 * part))
            need += fourth * (width * np.floor(3 * part) / 2)
            needs[index] = need if part < 1 and need < needs[index] else needs[index]
    return needs


@compiled
def _shares(alone, lengths, degrees, cap, stop, shares):
    """Shares of a group times its degree [n, d, j]; infinite where it does not fit.

    The group's micro-batch ends before ``stop``.
    """
    for index in range(len(lengths)):
        for degree in range(len(degrees)):
            part = alone[index, degree] / stop
            if part >= 1:
                shares[index, degree] = np.inf
                continue
            width = degrees[degree]
            shares[index, degree, 0] = width * part
            shares[index, degree, 1] = lengths[index] / cap
            shares[index, degree, 2] = width * np.floor(2 * part)
            shares[index, degree, 3] = width * np.floor(3 * part) / 2


def _views(*shapes: tuple[int, ...]) -> Iterator[Floats]:
    """A vector of zeros, then the views of it that have these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    every = np.zeros(int(ends[-1]))
    yield every
    for part, shape in zip(np.split(every, ends[:-1]), shapes, strict=True):
        yield part.reshape(shape)


class _Parts(NamedTuple):
    """A vector of all variables but the duals, and views of its parts."""

    all: Floats
    z: Floats
    v: Floats
    n: Floats
    p: Floats
    q: Floats
    y: Floats
    g: Floats

    @staticmethod
    def of(shape: tuple[int, ...], rows: int) -> _Parts:
        """All 0."""
        k, c, d, j = shape
        return _Parts(*_views((k, c, d), (k, c), (k, d), (k, d, j), (k,), (k,), (rows,)))


class _Duals(NamedTuple):
    """A vector of all rows' prices, or changes of them, and views of its parts.

    ``pi`` are those of classes, which are all in some group, ``w`` of shares, at most
    those of their micro-batches, ``t`` of shares of groups, ``u`` of devices, ``eta``
    of numbers of micro-batches.
    """

    all: Floats
    pi: Floats
    w: Floats
    t: Floats
    u: Floats
    eta: Floats

    @staticmethod
    def of(shape: tuple[int, ...], rows: int) -> _Duals:
        """All 0."""
        k, c, d, j = shape
        return _Duals(*_views((c,), (k, c), (k, d, j), (k,), (rows,)))


class _Factors(NamedTuple):
    """The equations of a step, factored: first those of each duration, then the rest.

    Variables and w are eliminated; t, u and y are left of each duration, with columns
    [k, b, c] for pi, then pi and eta. ``total`` is the sum of theta of z. Inner loops
    run along rows, so that the compiler has several entries in one instruction.
    """

    theta: _Parts
    total: Floats
    inverse: Floats
    lower: Floats
    columns: Floats
    outer: Floats

    @staticmethod
    def of(shape: tuple[int, ...], rows: int) -> _Factors:
        k, c, d, j = shape
        b, e = d * j + 2, c + rows
        sizes: tuple[tuple[int, ...], ...] = ((k, c), (k, c), (k, b, b), (k, b, c), (e, e))
        return _Factors(_Parts.of(shape, rows), *(np.zeros(size) for size in sizes))


class Numbers(NamedTuple):
    """Rows [r] that limit numbers of micro-batches.

    ``counted`` [r, k] is 1 where a row counts a duration, else 0; ``sign`` is -1 for at
    least, 1 for at most.
    """

    counted: Floats
    limit: Floats
    sign: Floats


def class_prices(
    shares: Floats, cost: Floats, numbers: Numbers, rounds: int, gap: float
) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Prices of the classes, micro-batches, duals t, losses of durations, the least.

    ``shares`` [k, c, d, j] of all devices that classes take of groups are infinite
    where a class does not fit. ``cost`` [k]. An interior-point method (Mehrotra's
    predictor and corrector) from a start within all rows but those of ``numbers``. It
    stops after so many ``rounds`` at the latest, or where rounding ends its progress;
    the caller does not rely on the result.
    """
    fits = np.isfinite(shares[..., 0])
    a = np.where(fits[..., None], shares, 0.0)
    _, classes, kinds, parts = shares.shape
    rows = len(numbers.limit)
    x, duals = _Parts.of(shares.shape, rows), _Duals.of(shares.shape, rows)
    unit = _UNIT * float(cost.min())
    x.z[:] = fits / np.maximum(fits.sum(axis=(0, 2)), 1)[:, None]
    used, together = (a * x.z[..., None]).sum(axis=1), x.z.sum(axis=2)
    x.n[:] = used.max(axis=2) * 1.2 + 0.5 / kinds
    x.y[:] = np.maximum(x.n.sum(axis=1), together.max(axis=1)) + 0.2
    x.v[:], x.p[:] = x.y[:, None] - together, x.n[..., None] - used
    x.q[:] = x.y - x.n.sum(axis=1)
    x.g[:] = np.maximum(1.0, numbers.sign * (numbers.limit - numbers.counted @ x.y))
    duals.pi[:], duals.w[:], duals.t[:] = -unit, -unit / classes, -unit / parts
    duals.u[:], duals.eta[:] = -2 * unit, -numbers.sign * unit / rows
    work = [_Parts.of(shares.shape, rows) for _ in range(4)]
    changes, factors = _Duals.of(shares.shape, rows), _Factors.of(shares.shape, rows)
    _solve(a, cost, fits, numbers, rounds, gap, x, duals, changes, factors, *work)
    return duals.pi, x.y, duals.t, work[0].y, float(cost @ x.y)


@compiled
def _solve(a, cost, fits, numbers, rounds, enough, x, duals, changes, factors, s, dx, ds, h):
    """Steps of the method, in place."""
    count = np.count_nonzero(x.all)
    missing = np.empty(len(numbers.limit))
    for _ in range(rounds):
        _reduced(a, cost, fits, numbers, duals, s)
        gap, least = 0.0, 0.0
        for index in range(len(x.all)):
            gap += x.all[index] * s.all[index]
        for k in range(len(cost)):
            least += cost[k] * x.y[k]
        met = True
        for row in range(len(missing)):
            missing[row] = numbers.limit[row] - numbers.sign[row] * x.g[row]
            for k in range(len(cost)):
                missing[row] -= numbers.counted[row, k] * x.y[k]
            met &= abs(missing[row]) < enough * max(1.0, numbers.limit[row])
        if met and gap < enough * least:
            break
        _factor(a, x, s, numbers, factors)
        for index in range(len(x.all)):
            h.all[index] = -s.all[index]
        _direction(a, numbers, missing, factors, h, dx, ds, changes)
        primal, other = _longest(x.all, dx.all), _longest(s.all, ds.all)
        after = 0.0
        for index in range(len(x.all)):
            moved = x.all[index] + primal * dx.all[index]
            after += moved * (s.all[index] + other * ds.all[index])
        target = gap / count * (after / gap) ** 3
        for index in range(len(x.all)):
            if x.all[index] > 0:
                centred = (target - dx.all[index] * ds.all[index]) / x.all[index]
                h.all[index] = centred - s.all[index]
        _direction(a, numbers, missing, factors, h, dx, ds, changes)
        primal = min(1.0, 0.99 * _longest(x.all, dx.all))
        other = min(1.0, 0.99 * _longest(s.all, ds.all))
        if not primal + other > 1e-3:
            break
        for index in range(len(x.all)):
            x.all[index] += primal * dx.all[index]
        for index in range(len(duals.all)):
            duals.all[index] += other * changes.all[index]


@inner
def _longest(values, changes):
    """The longest step, at most 1, after which no value is below 0."""
    step = 1.0
    for index in range(len(values)):
        if values[index] + step * changes[index] < 0:
            step = -values[index] / changes[index]
    return step


@inner
def _reduced(a, cost, fits, numbers, duals, s):
    """Reduced costs of all variables; 1 of those that are not there."""
    durations, classes, kinds, parts = a.shape
    for row in range(len(duals.eta)):
        s.g[row] = -numbers.sign[row] * duals.eta[row]
    for k in range(durations):
        s.q[k] = -duals.u[k]
        s.y[k] = cost[k] + duals.u[k]
        for row in range(len(duals.eta)):
            s.y[k] -= numbers.counted[row, k] * duals.eta[row]
        for d in range(kinds):
            s.n[k, d] = -duals.u[k]
            for j in range(parts):
                s.n[k, d] += duals.t[k, d, j]
                s.p[k, d, j] = -duals.t[k, d, j]
        for c in range(classes):
            s.v[k, c] = -duals.w[k, c]
            s.y[k] += duals.w[k, c]
            for d in range(kinds):
                s.z[k, c, d] = 1.0
                if fits[k, c, d]:
                    shadow = duals.pi[c] + duals.w[k, c]
                    for j in range(parts):
                        shadow += a[k, c, d, j] * duals.t[k, d, j]
                    s.z[k, c, d] = -shadow


@inner
def _factor(a, x, s, numbers, factors):
    """The matrices of one step, as L D L^T with D in the diagonal."""
    durations, classes, kinds, parts = a.shape
    rows = kinds * parts
    size = rows + 2
    theta, outer = factors.theta, factors.outer
    for index in range(len(x.all)):
        theta.all[index] = x.all[index] / s.all[index]
    outer[:] = 0.0
    for row in range(len(theta.g)):
        outer[classes + row, classes + row] = theta.g[row]
    share = np.zeros(rows)
    for k in range(durations):
        lower, columns = factors.lower[k], factors.columns[k]
        lower[:] = 0.0
        columns[:] = 0.0
        u, y = rows, rows + 1
        lower[u, u], lower[y, u], lower[y, y] = theta.q[k], -1.0, -1.0 / theta.y[k]
        for d in range(kinds):
            lower[u, u] += theta.n[k, d]
            for j in range(parts):
                lower[u, d * parts + j] = -theta.n[k, d]
                lower[d * parts + j, d * parts + j] = theta.p[k, d, j]
                for other in range(j + 1):
                    lower[d * parts + j, d * parts + other] += theta.n[k, d]
        for c in range(classes):
            total = 0.0
            for d in range(kinds):
                part = theta.z[k, c, d]
                if part == 0:
                    share[d * parts : (d + 1) * parts] = 0.0
                    continue
                total += part
                for j in range(parts):
                    row = d * parts + j
                    share[row] = part * a[k, c, d, j]
                    for other in range(j + 1):
                        lower[row, d * parts + other] += part * a[k, c, d, j] * a[k, c, d, other]
            inverse = 1.0 / (total + theta.v[k, c])
            loose = theta.v[k, c] * inverse
            factors.total[k, c], factors.inverse[k, c] = total, inverse
            outer[c, c] += total * loose
            lower[y, y] -= inverse
            columns[y, c] = inverse * total
            for row in range(rows):
                scaled = inverse * share[row]
                if scaled != 0:
                    columns[row, c] = share[row] * loose
                    lower[y, row] += scaled
                    for other in range(row + 1):
                        lower[row, other] -= scaled * share[other]
        _decompose(lower)
        _forward(lower, columns)
        for row in range(size):
            for c in range(classes):
                scaled = columns[row, c] / lower[row, row]
                for other in range(c + 1):
                    outer[c, other] -= scaled * columns[row, other]
        for number in range(len(theta.g)):
            scaled = numbers.counted[number, k] / lower[y, y]
            if scaled != 0:
                for c in range(classes):
                    outer[classes + number, c] -= scaled * columns[y, c]
                for other in range(number + 1):
                    part = scaled * numbers.counted[other, k]
                    outer[classes + number, classes + other] -= part
    _decompose(outer)


@inner
def _decompose(matrix):
    """L D L^T of a matrix of which the lower triangle is given, in place."""
    size = len(matrix)
    for index in range(size):
        for row in range(index + 1, size):
            matrix[row, index] /= matrix[index, index]
            matrix[index, row] = matrix[row, index] * matrix[index, index]
        for row in range(index + 1, size):
            scaled = matrix[row, index]
            for column in range(index + 1, row + 1):
                matrix[row, column] -= scaled * matrix[index, column]


@inner
def _forward(lower, columns):
    """Columns [b, c] over L, in place."""
    for row in range(len(columns)):
        for index in range(row):
            scaled = lower[row, index]
            for column in range(columns.shape[1]):
                columns[row, column] -= scaled * columns[index, column]


@inner
def _backward(lower, values):
    """Values over D L^T, in place."""
    for row in range(len(values) - 1, -1, -1):
        value = values[row] / lower[row, row]
        for index in range(row + 1, len(values)):
            value -= lower[index, row] * values[index]
        values[row] = value


@inner
def _direction(a, numbers, missing, factors, h, dx, ds, changes):
    """Changes of variables, reduced costs and duals that bring x s to x (h + s).

    All rows but the numbers of micro-batches hold already.
    """
    durations, classes, kinds, parts = a.shape
    rows = kinds * parts
    theta = factors.theta
    inside = np.zeros((durations, rows + 2))
    rest = np.zeros((durations, classes))
    numbered = len(missing)
    solved = np.zeros(classes + numbered)
    for number in range(numbered):
        moved = numbers.sign[number] * theta.g[number] * h.g[number]
        solved[classes + number] = missing[number] - moved
    for k in range(durations):
        b, lower, columns = inside[k], factors.lower[k], factors.columns[k]
        b[rows], b[rows + 1] = -theta.q[k] * h.q[k], -h.y[k]
        for d in range(kinds):
            devices = theta.n[k, d] * h.n[k, d]
            b[rows] -= devices
            for j in range(parts):
                b[d * parts + j] = devices - theta.p[k, d, j] * h.p[k, d, j]
        for c in range(classes):
            moved = 0.0
            for d in range(kinds):
                moved += theta.z[k, c, d] * h.z[k, c, d]
            left = -(moved + theta.v[k, c] * h.v[k, c]) * factors.inverse[k, c]
            rest[k, c] = left
            solved[c] -= moved + factors.total[k, c] * left
            b[rows + 1] += left
            for d in range(kinds):
                part = theta.z[k, c, d] * (h.z[k, c, d] + left)
                if part != 0:
                    for j in range(parts):
                        b[d * parts + j] -= part * a[k, c, d, j]
        _forward(lower, b.reshape((rows + 2, 1)))
        for number in range(numbered):
            counted = numbers.counted[number, k] * b[rows + 1]
            solved[classes + number] -= counted / lower[rows + 1, rows + 1]
        for row in range(rows + 2):
            for c in range(classes):
                solved[c] -= columns[row, c] * b[row] / lower[row, row]
    _forward(factors.outer, solved.reshape((classes + numbered, 1)))
    _backward(factors.outer, solved)
    for number in range(numbered):
        changes.eta[number] = solved[classes + number]
        ds.g[number] = -numbers.sign[number] * solved[classes + number]
    for c in range(classes):
        changes.pi[c] = solved[c]
    for k in range(durations):
        b, lower, columns = inside[k], factors.lower[k], factors.columns[k]
        d_eta = 0.0
        for number in range(numbered):
            d_eta += numbers.counted[number, k] * solved[classes + number]
        b[rows + 1] -= d_eta
        for row in range(rows + 2):
            for c in range(classes):
                b[row] -= columns[row, c] * solved[c]
        _backward(lower, b)
        changes.u[k] = b[rows]
        ds.q[k], ds.y[k] = -b[rows], b[rows] - d_eta
        for d in range(kinds):
            ds.n[k, d] = -b[rows]
            for j in range(parts):
                changes.t[k, d, j] = b[d * parts + j]
                ds.p[k, d, j] = -b[d * parts + j]
                ds.n[k, d] += b[d * parts + j]
        for c in range(classes):
            weighed = 0.0
            for d in range(kinds):
                if theta.z[k, c, d] > 0:
                    shadow = solved[c]
                    for j in range(parts):
                        shadow += a[k, c, d, j] * b[d * parts + j]
                    ds.z[k, c, d] = -shadow
                    weighed += theta.z[k, c, d] * shadow
            d_w = rest[k, c] + factors.inverse[k, c] * (b[rows + 1] - weighed)
            changes.w[k, c] = d_w
            ds.v[k, c] = -d_w
            ds.y[k] += d_w
            for d in range(kinds):
                if theta.z[k, c, d] > 0:
                    ds.z[k, c, d] -= d_w
    for index in range(len(dx.all)):
        dx.all[index] = theta.all[index] * (h.all[index] - ds.all[index])
