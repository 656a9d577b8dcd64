"""A time that no plan of a whole batch can beat.

:func:`batch_lower_bound_ms` holds the proof. Prices of the sequences come from a small
linear programme over classes of similar lengths (HiGHS). Nothing is believed of it: any
prices give a bound, and what they give is worked out for all sequences in compiled
loops.
"""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt
from numba import njit

from railx.workload.cost import CostModel

__all__ = ["batch_lower_bound_ms"]

Floats = npt.NDArray[np.float64]
Lengths = npt.NDArray[np.int64]

#: The longest sequences are classes of their own, the others share classes of about
#: equal tokens.
_ALONE = 16
_SHARED = 16
#: Durations of the linear programme, and of the check.
_COARSE = 14
_FINE = 96


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
    starts, sizes = _classes(problem.lengths)
    middle = _middle(problem, starts, sizes)
    durations = _durations(problem, fewest)
    prices, number = _prices(middle, sizes, durations, fewest, None)
    certified = _certified(problem, middle, sizes, prices, fewest, None)
    if number <= fewest + 1e-6:
        return certified
    below, above = math.floor(number), math.ceil(number)
    if below < above:
        prices, _ = _prices(middle, sizes, durations, above, None)
        over = _certified(problem, middle, sizes, prices, above, None)
        under = math.inf
        if below >= fewest:
            prices, _ = _prices(middle, sizes, durations, below, below)
            under = _certified(problem, middle, sizes, prices, fewest, below)
        certified = max(certified, min(over, under))
    return certified


def _classes(lengths: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """First sequence of each class, and how many sequences it has."""
    alone = min(_ALONE, len(lengths))
    starts = list(range(alone))
    rest = lengths[alone:]
    if len(rest):
        filled = np.cumsum(rest)
        index = np.minimum((filled / filled[-1] * _SHARED - 1e-9).astype(np.int64), _SHARED - 1)
        starts += (alone + np.flatnonzero(np.diff(index, prepend=-1))).tolist()
    first = np.array(starts, dtype=np.int64)
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
) -> tuple[Floats, float]:
    """Prices of a sequence of each class, and the number of micro-batches."""
    number, columns = len(classes.lengths), len(durations)
    busy = np.where(
        classes.alone_ms[:, None, :] <= durations[None, :, None],
        (classes.alone_ms * classes.degrees)[:, None, :],
        np.inf,
    ).min(axis=2)
    row, column = np.nonzero(np.isfinite(busy))
    pairs = len(row)
    share = columns + np.arange(pairs)
    rows = number + pairs + 2 * columns + 1
    every = np.arange(columns)
    place = [
        (row, share, np.ones(pairs)),
        (number + np.arange(pairs), share, np.ones(pairs)),
        (number + np.arange(pairs), column, -np.ones(pairs)),
        (
            number + pairs + column,
            share,
            busy[row, column] * sizes[row] / (classes.devices * durations[column]),
        ),
        (number + pairs + every, every, -np.ones(columns)),
        (
            number + pairs + columns + column,
            share,
            classes.lengths[row] * sizes[row] / classes.tokens,
        ),
        (number + pairs + columns + every, every, -np.ones(columns)),
        (np.full(columns, rows - 1), every, np.ones(columns)),
    ]
    index, across, value = (np.concatenate(part) for part in zip(*place, strict=True))
    order = np.lexsort((across, index))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns + pairs, rows
    model.col_cost_ = np.concatenate((durations + classes.constant_ms, np.zeros(pairs)))
    model.col_lower_ = np.zeros(columns + pairs)
    model.col_upper_ = np.full(columns + pairs, highspy.kHighsInf)
    model.row_lower_ = np.concatenate(
        (np.ones(number), np.full(pairs + 2 * columns, -highspy.kHighsInf), [float(least)])
    )
    model.row_upper_ = np.concatenate(
        (
            np.full(number, highspy.kHighsInf),
            np.zeros(pairs + 2 * columns),
            [highspy.kHighsInf if most is None else float(most)],
        )
    )
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.searchsorted(index[order], np.arange(rows + 1))
    model.a_matrix_.index_ = across[order]
    model.a_matrix_.value_ = value[order]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("solver", "ipm")
    solver.setOptionValue("run_crossover", "off")
    solver.passModel(model)
    solver.run()
    solution = solver.getSolution()
    prices = np.maximum(np.array(solution.row_dual)[:number] / sizes, 0.0)
    return prices, float(np.array(solution.col_value)[:columns].sum())


def _certified(
    problem: _Problem,
    classes: _Problem,
    sizes: Floats,
    prices: Floats,
    least: int,
    most: int | None,
) -> float:
    """What prices of the classes prove of ``least`` to ``most`` micro-batches."""
    price = np.interp(
        problem.lengths,
        np.concatenate(([0.0], classes.lengths[::-1])),
        np.concatenate(([0.0], prices[::-1])),
    )
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
    ends = _lines(
        problem.lengths,
        problem.alone_ms,
        price,
        classes.lengths,
        classes.alone_ms,
        prices,
        sizes,
        problem.degrees,
        float(problem.devices),
        float(problem.tokens),
        grid,
    )
    charge = np.stack((grid[:-1], grid[1:]), axis=1) + problem.constant_ms
    best = 0.0
    total = float(price.sum())
    longest = grid[-1] + problem.constant_ms * least
    for factor in np.linspace(0.8, 1.2, 401):
        left = float((charge - factor * ends).min())
        count = least if left >= 0 else most
        if count is None:
            continue
        best = max(best, min(factor * total + left * count, longest))
    return best


@njit(cache=True)
def _knapsack(price, busy, tokens, sizes, share, duration, devices, room):
    """The least of devices x rate + Σ max(0, price - rate x needs); with the rate.

    ``needs`` are devices: ``share`` of them counted by time, the others by memory.
    """
    low, high = 0.0, 0.0
    count = len(price)
    for index in range(count):
        needs = share * busy[index] / duration + (1 - share) * tokens[index] / room * devices
        if needs > 0:
            high = max(high, price[index] / needs)
    for _ in range(40):
        rate = 0.5 * (low + high)
        used = 0.0
        for index in range(count):
            needs = share * busy[index] / duration + (1 - share) * tokens[index] / room * devices
            if price[index] > rate * needs:
                used += needs * sizes[index]
        if used > devices:
            low = rate
        else:
            high = rate
    value = devices * high
    for index in range(count):
        needs = share * busy[index] / duration + (1 - share) * tokens[index] / room * devices
        value += max(0.0, price[index] - high * needs) * sizes[index]
    return value, high


@njit(cache=True)
def _busy(alone, degrees, duration, busy):
    """Least device time of each sequence in a group that ends within ``duration``."""
    for index in range(alone.shape[0]):
        least = np.inf
        for degree in range(alone.shape[1]):
            if alone[index, degree] <= duration:
                least = min(least, alone[index, degree] * degrees[degree])
        busy[index] = least


@njit(cache=True)
def _lines(
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
):
    """What a micro-batch can be worth at both ends of each interval of durations."""
    ends = np.zeros((len(grid) - 1, 2))
    class_busy, busy = np.empty(len(class_lengths)), np.empty(len(lengths))
    golden = 0.3819660112501051
    for interval in range(len(grid) - 1):
        duration = grid[interval + 1]
        _busy(class_alone, degrees, duration, class_busy)
        left, right = 0.0, 1.0
        best, rate, share = np.inf, 0.0, 0.0
        for edge in range(2):
            value, found = _knapsack(
                class_price, class_busy, class_lengths, sizes, float(edge), duration, devices, room
            )
            if value < best:
                best, rate, share = value, found, float(edge)
        inner = left + golden * (right - left)
        outer = right - golden * (right - left)
        low, low_rate = _knapsack(
            class_price, class_busy, class_lengths, sizes, inner, duration, devices, room
        )
        high, high_rate = _knapsack(
            class_price, class_busy, class_lengths, sizes, outer, duration, devices, room
        )
        for _ in range(10):
            if low < best:
                best, rate, share = low, low_rate, inner
            if high < best:
                best, rate, share = high, high_rate, outer
            if low < high:
                right, outer, high, high_rate = outer, inner, low, low_rate
                inner = left + golden * (right - left)
                low, low_rate = _knapsack(
                    class_price, class_busy, class_lengths, sizes, inner, duration, devices, room
                )
            else:
                left, inner, low, low_rate = inner, outer, high, high_rate
                outer = right - golden * (right - left)
                high, high_rate = _knapsack(
                    class_price, class_busy, class_lengths, sizes, outer, duration, devices, room
                )
        _busy(alone, degrees, duration, busy)
        by_time, by_memory = rate * share / duration, rate * (1 - share) * devices / room
        surplus = 0.0
        for index in range(len(lengths)):
            if np.isfinite(busy[index]):
                surplus += max(
                    0.0, price[index] - by_time * busy[index] - by_memory * lengths[index]
                )
        for end in range(2):
            ends[interval, end] = (
                devices * grid[interval + end] * by_time + room * by_memory + surplus
            )
    return ends
