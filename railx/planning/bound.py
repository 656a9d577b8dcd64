"""A time that no plan of a whole batch can beat.

:func:`batch_lower_bound_ms` holds the proof. Prices of the sequences come from a small
linear programme over classes of similar lengths. Nothing is believed of it: any
prices give a bound, and what they give is worked out for all sequences in compiled
loops.
"""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from railx.planning.prices import prices_ipm
from railx.workload.cost import CostModel

__all__ = ["batch_lower_bound_ms"]

Floats = npt.NDArray[np.float64]
Lengths = npt.NDArray[np.int64]

#: The longest sequences are classes of their own, the others share classes of about
#: equal tokens.
_ALONE = 24
_SHARED = 32
#: Durations of the linear programme, and of the check.
_COARSE = 20
_FINE = 96
_ADDED = 8
_ROUNDS = 6
_ENOUGH = 0.9995


@dataclass(frozen=True)
class _Problem:
    """A batch, longest first, and what a group of each degree needs for it."""

    lengths: Floats
    devices: int
    degrees: Floats
    """[d]"""
    alone_ms: Floats
    """Time of each sequence alone in a group [n, d]; infinite where it does not fit."""
    constant_ms: float
    tokens: int
    """What all devices hold together."""

    def rows(self, members: npt.NDArray[np.int64]) -> _Problem:
        return _Problem(
            self.lengths[members],
            self.devices,
            self.degrees,
            self.alone_ms[members],
            self.constant_ms,
            self.tokens,
        )


@dataclass(frozen=True)
class _Prices:
    """What the programme says: nothing that must be true."""

    prices: Floats
    """Of a sequence of each class."""
    by_time: Floats
    """Rate of a device's time in a micro-batch of each duration."""
    by_memory: Floats
    """Rate of a token's memory in a micro-batch of each duration."""
    durations: Floats
    micro_batches: float
    total_ms: float


def batch_lower_bound_ms(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> float:
    """A time in ms that no plan of the batch can beat.

    Infinite where a sequence fits no group. Proof. Give each sequence any price p_i. A
    micro-batch that lasts T + b1 runs each of its sequences in a group of a degree d
    whose memory holds it and whose time T covers it, so sequence i takes at least
    u_i(T) = min over those d of d t_i(d) of device time. The micro-batch has N T of
    that and memory for N·cap tokens. So for any rates r, m >= 0 the prices of its
    sequences add up to at most

        V(T) = N T r + N cap m + Σ_i max(0, p_i - r u_i(T) - m s_i).

    Let v be the least of T + b1 - V(T) over all T. Summed over the M micro-batches of a
    plan: its time >= Σ p_i + M v. M is at least the batch's tokens over N·cap, and a
    plan with a micro-batch longer than all T looked at lasts longer than that. Where M
    is cut into two ranges, the bound is the lesser one.

    An interval (T', T] of durations is checked with the r, m and u_i of T, which only
    raises V; N T r is then linear, so that its two ends suffice.
    """
    allowed = np.array(sorted(degree for degree in degrees if degree <= devices), dtype=np.float64)
    if len(lengths) == 0:
        return 0.0
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    if len(allowed) == 0 or ordered[0] > cost.tokens_per_device * allowed[-1]:
        return math.inf
    tokens = ordered.astype(np.float64)
    per_token = np.array([cost.all_to_all_ms[int(degree)] for degree in allowed])
    alone = cost.sequence_ms(ordered)[:, None] / allowed + tokens[:, None] * per_token
    alone[tokens[:, None] > cost.tokens_per_device * allowed] = np.inf
    problem = _Problem(
        tokens, devices, allowed, alone, cost.constant_ms, devices * cost.tokens_per_device
    )
    fewest = -(-int(ordered.sum()) // problem.tokens)
    simple = max(float((alone * allowed).min(axis=1).sum()) / devices, float(alone[0].min()))
    return max(simple + fewest * cost.constant_ms, _bound_ms(problem, fewest))


def _bound_ms(problem: _Problem, fewest: int) -> float:
    """The best of what the prices of at least ``fewest`` micro-batches prove."""
    starts, sizes = _classes(problem)
    middle = _middle(problem, starts, sizes)
    durations = _durations(problem, fewest)
    best, number, durations = _rounds(problem, middle, sizes, durations, fewest, None)
    below, above = math.floor(number + 1e-6), math.ceil(number - 1e-6)
    if above > fewest:
        over, _, _ = _rounds(problem, middle, sizes, durations, above, None)
        under = math.inf
        if below < above:
            under, _, _ = _rounds(problem, middle, sizes, durations, fewest, below)
        best = max(best, min(over, under))
    return best


def _rounds(
    problem: _Problem,
    middle: _Problem,
    sizes: Floats,
    durations: Floats,
    least: int,
    most: int | None,
) -> tuple[float, float, Floats]:
    best = 0.0
    for _ in range(_ROUNDS):
        found = _prices(middle, sizes, durations, least if most is None else most, most)
        certified, added = _certified(problem, middle, sizes, found, least, most)
        best = max(best, certified)
        if certified >= found.total_ms * _ENOUGH:
            break
        durations = np.union1d(durations, added)
    return best, found.micro_batches, durations


def _classes(problem: _Problem) -> tuple[npt.NDArray[np.int64], Floats]:
    """First sequence of each class, and how many sequences it has.

    The sequences of a class fit the same degrees.
    """
    lengths = problem.lengths
    alone = min(_ALONE, len(lengths))
    rest = lengths[alone:]
    cuts = np.zeros(len(lengths), dtype=np.bool_)
    cuts[: alone + 1] = True
    if len(rest):
        filled = np.cumsum(rest)
        index = np.minimum((filled / filled[-1] * _SHARED - 1e-9).astype(np.int64), _SHARED - 1)
        fits = np.isfinite(problem.alone_ms).sum(axis=1)
        cuts[alone:] |= np.diff(index, prepend=-1) > 0
        cuts[1:] |= np.diff(fits) != 0
    first = np.flatnonzero(cuts)
    return first, np.diff(first, append=len(lengths)).astype(np.float64)


def _middle(problem: _Problem, starts: npt.NDArray[np.int64], sizes: Floats) -> _Problem:
    """The classes as sequences of their mean length."""
    finite = np.where(np.isfinite(problem.alone_ms), problem.alone_ms, 0.0)
    mean = np.add.reduceat(finite, starts, axis=0) / sizes[:, None]
    mean[~np.isfinite(problem.alone_ms[starts])] = np.inf
    return _Problem(
        np.add.reduceat(problem.lengths, starts) / sizes,
        problem.devices,
        problem.degrees,
        mean,
        problem.constant_ms,
        problem.tokens,
    )


def _durations(problem: _Problem, fewest: int) -> Floats:
    """The durations of the programme, ascending."""
    needed = float(np.min(problem.alone_ms[0]))
    cheapest = float(np.min(problem.alone_ms * problem.degrees, axis=1).sum())
    average = cheapest / problem.devices / fewest
    lowest, highest = 0.25 * min(average, needed), 2.5 * max(average, needed)
    longest = problem.alone_ms[0][np.isfinite(problem.alone_ms[0])]
    grid = np.concatenate((np.geomspace(lowest, highest, _COARSE), longest * (1 + 1e-9)))
    return np.unique(grid[grid <= highest])


def _prices(
    classes: _Problem, sizes: Floats, durations: Floats, least: int, most: int | None
) -> _Prices:
    """Prices of a sequence of each class, and the number of micro-batches."""
    busy = np.where(
        classes.alone_ms[:, None, :] <= durations[None, :, None],
        (classes.alone_ms * classes.degrees)[:, None, :],
        np.inf,
    ).min(axis=2)
    share = busy * sizes[:, None] / (classes.devices * durations)
    room = classes.lengths * sizes / classes.tokens
    scale = float(durations.mean())
    cost = (durations + classes.constant_ms) / scale
    prices, count, by_time, by_memory, _, objective = prices_ipm(
        share, room, cost, float(least), most is None, 60
    )
    if not math.isfinite(objective) or not np.isfinite(prices).all():
        return _Prices(sizes * 0, durations * 0, durations * 0, durations, float(least), 0.0)
    return _Prices(
        np.maximum(prices * scale / sizes, 0.0),
        np.maximum(-by_time * scale / (classes.devices * durations), 0.0),
        np.maximum(-by_memory * scale / classes.tokens, 0.0),
        durations,
        float(count.sum()),
        objective * scale,
    )


def _spread(problem: _Problem, classes: _Problem, sizes: Floats, prices: Floats) -> Floats:
    """A price for each sequence from those of the classes.

    The price of a token is interpolated, which is exact where prices are of the form of
    times. Sequences that fit other degrees do not count.
    """
    price = np.empty(len(problem.lengths))
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    square = np.add.reduceat(problem.lengths**2, starts[:-1]) / sizes
    position, token = square / classes.lengths, prices / classes.lengths
    fits = np.isfinite(problem.alone_ms).sum(axis=1)
    class_fits = np.isfinite(classes.alone_ms).sum(axis=1)
    for kind in np.unique(class_fits):
        members, those = fits == kind, class_fits == kind
        own = problem.lengths[members]
        price[members] = own * np.interp(own, position[those][::-1], token[those][::-1])
    return price


def _certified(
    problem: _Problem,
    classes: _Problem,
    sizes: Floats,
    found: _Prices,
    least: int,
    most: int | None,
) -> tuple[float, Floats]:
    """What prices of the classes prove of ``least`` to ``most`` micro-batches.

    With it, the durations at which most was lost.
    """
    price = _spread(problem, classes, sizes, found.prices)
    lowest = float(problem.alone_ms.min())
    needed = float(np.min(problem.alone_ms[0]))
    cheapest = float(np.min(problem.alone_ms * problem.degrees, axis=1).sum())
    average = cheapest / problem.devices / least
    start = 0.2 * min(average, needed)
    stop = 3 * max(average, needed)
    grid = np.geomspace(max(start, lowest), stop, _FINE)
    grid = np.concatenate((grid, np.geomspace(stop, stop * least + 1, 16)[1:]))
    if lowest < start:
        grid = np.concatenate((np.geomspace(lowest, start, 8)[:-1], grid))
    edges = np.unique(classes.alone_ms[:_ALONE])
    grid = np.unique(np.concatenate((grid, edges[(edges > grid[0]) & (edges < grid[-1])])))
    ends = _worth(
        problem.lengths,
        problem.alone_ms,
        price,
        classes.lengths,
        classes.alone_ms,
        found.prices,
        sizes,
        problem.degrees,
        float(problem.devices),
        float(problem.tokens),
        grid,
        found.durations,
        found.by_time,
        found.by_memory,
    )
    charge = np.stack((grid[:-1], grid[1:]), axis=1) + problem.constant_ms
    factors = np.concatenate((np.linspace(0.97, 1.03, 61), (0.5, 0.8, 0.9, 1.1, 1.2)))
    left = np.array([(charge - factor * ends).min() for factor in factors])
    count = np.where(left >= 0, least, np.inf if most is None else most)
    longest = grid[-1] + problem.constant_ms * least
    proven = np.minimum(factors * float(price.sum()) + left * count, longest)
    chosen = int(proven.argmax())
    left = (charge - factors[chosen] * ends).min(axis=1)
    low = np.flatnonzero(
        (left <= np.append(left[1:], np.inf)) & (left < np.insert(left[:-1], 0, np.inf))
    )
    low = low[np.argsort(left[low], kind="stable")][:_ADDED]
    return max(float(proven[chosen]), 0.0), grid[low]


@njit(cache=True, error_model="numpy")
def _worth(
    lengths,
    alone,
    price,
    class_lengths,
    class_alone,
    class_price,
    sizes,
    degrees,
    devices,
    room,
    grid,
    durations,
    by_time,
    by_memory,
):
    """What a micro-batch can be worth at both ends of each interval of durations.

    Rates are tried on the classes: those of the programme's neighbouring durations,
    those of the interval before, time alone and memory alone.
    """
    ends = np.zeros((len(grid) - 1, 2))
    class_busy = np.empty(len(class_lengths))
    rates = np.zeros((4, 2))
    after = 0
    for interval in range(len(grid) - 1):
        start, stop = grid[interval], grid[interval + 1]
        _busy(class_alone, degrees, stop, class_busy)
        while after < len(durations) - 1 and durations[after] < stop:
            after += 1
        before = max(after - 1, 0)
        rates[2, 0], rates[2, 1] = by_time[before], by_memory[before]
        rates[3, 0], rates[3, 1] = by_time[after], by_memory[after]
        best, chosen = np.inf, 0
        for index in range(4):
            surplus = 0.0
            for member in range(len(sizes)):
                if class_busy[member] < np.inf:
                    surplus += sizes[member] * max(
                        0.0,
                        class_price[member]
                        - rates[index, 0] * class_busy[member]
                        - rates[index, 1] * class_lengths[member],
                    )
            value = (
                surplus
                + room * rates[index, 1]
                + max(
                    devices * start * rates[index, 0] - start,
                    devices * stop * rates[index, 0] - stop,
                )
            )
            if value < best:
                best, chosen = value, index
        time, memory = rates[chosen]
        rates[0, 0], rates[0, 1] = time, memory
        surplus, steepest = 0.0, 0.0
        for index in range(len(lengths)):
            busy = np.inf
            for degree in range(len(degrees)):
                if alone[index, degree] < stop:
                    busy = min(busy, alone[index, degree] * degrees[degree])
            if busy < np.inf:
                surplus += max(0.0, price[index] - time * busy - memory * lengths[index])
                steepest = max(steepest, price[index] / busy)
        if devices * stop * steepest < devices * stop * time + room * memory + surplus:
            time, memory, surplus = steepest, 0.0, 0.0
        ends[interval, 0] = devices * start * time + room * memory + surplus
        ends[interval, 1] = devices * stop * time + room * memory + surplus
    return ends


@njit(cache=True, error_model="numpy")
def _busy(alone, degrees, duration, busy):
    """Least device time of each sequence in a group that ends before ``duration``."""
    for index in range(alone.shape[0]):
        least = np.inf
        for degree in range(alone.shape[1]):
            if alone[index, degree] < duration:
                least = min(least, alone[index, degree] * degrees[degree])
        busy[index] = least
