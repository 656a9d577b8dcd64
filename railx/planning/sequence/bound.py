"""A time that no plan of a whole batch can beat.

:func:`batch_lower_bound_ms` holds the proof. Prices of the sequences come from a small
linear programme over classes of similar lengths (:func:`class_prices`). Its solution
need not be exact: any prices give a bound, which compiled loops work out for all
sequences.
"""

from __future__ import annotations

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.performance.sequence_cost import CostModel
from railx.planning.compiled import compiled

__all__ = [
    "batch_lower_bound_ms",
    "class_prices",
]

Floats = npt.NDArray[np.float64]
Lengths = npt.NDArray[np.int64]

#: The longest sequences are single classes, the others share classes of about equal
#: tokens.
_ALONE = 24
_SHARED = 32
#: Durations of the first programme, and the number that each further one adds, where
#: its prices proved least.
_COARSE = 20
_ADDED = 8
#: Durations of the proof, beside those from which one of the longest sequences fits.
_FINE = 96
#: Most programmes. None follows where prices prove this share of their promise, or this
#: factor more than the previous prices.
_ROUNDS = 6
_ENOUGH = 0.9995
_GROWN = 1.0002
#: Most steps of a programme; about 15 suffice.
_STEPS = 60
#: Larger than the rounding of sums of times.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Problem:
    """A batch, longest first, and its needs in a group of each degree."""

    lengths: Floats
    devices: int
    degrees: Floats
    """[d]"""
    alone_ms: Floats
    """Time of each sequence alone in a group [n, d]; infinite where it does not fit."""
    constant_ms: float
    tokens: int
    """What all devices hold together."""


@dataclass(frozen=True)
class _Prices:
    """The programme's solution, which need not be exact."""

    prices: Floats
    """Of a sequence of each class."""
    by_time: Floats
    """Rate of a device's time in a micro-batch of each duration."""
    by_memory: Floats
    """Rate of a token's memory in a micro-batch of each duration."""
    durations: Floats
    micro_batches: float
    """How many there are of all durations together."""
    total_ms: float
    """The bound by the programme's objective."""


def batch_lower_bound_ms(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> float:
    """A time in ms that no plan of the batch can beat.

    Infinite where a sequence fits no group. ``degrees`` may be any numbers.

    Proof, for N devices, t_i(d) the time of sequence i alone in a group of degree d,
    and micro-batches whose groups take T' <= T < T".

    *Charges.* Each sequence is charged device time e_i such that no group's sequences
    are charged more than d T. The least d t_i(d) over degrees with t_i(d) < T" whose
    memory holds it is such a charge, as the times in a group add up to at most T. For
    some degrees we charge more, because a sequence that needs a wide group makes others
    run in it at a loss. Let x_i be t_i(d)/T" or s_i/(cap d + 1). A group's x add up to
    less than 1, so for an integer r its k_i = floor((r + 1) x_i) add up to at most r.
    Let q <= 1 be at least e_j/(d t_j(d)) for all j with k_j = 0. Then sequences with
    k_i > 0 may be charged c_i(d) = d (q t_i(d) + (1 - q) T' k_i/r) in d: a group's
    charges are at most d (q T + (1 - q) T'). A sequence is charged the least over its
    degrees, so no more than c in the one it has. q rests on charges that are only
    lowered afterwards.

    *Worth.* Give each sequence any price p_i >= 0. A micro-batch has N T of device time
    and memory for N cap tokens. So for any rates r, m >= 0 the prices of its sequences
    add up to at most

        V(T) = N T r + N cap m + Σ_i max(0, p_i - r e_i - m s_i).

    r, m and e are fixed for an interval, so V is linear in it and its ends suffice.

    *Bound.* Let v be the least of T + b1 - V(T) over all T. Summed over the M
    micro-batches of a plan, its time is at least Σ p_i + M v. M is at least the tokens
    of the batch over N cap. Where a range of M is cut in two, the bound is the lesser
    one. A plan with a micro-batch longer than all T looked at takes longer than that.

    Nothing rests on where the prices come from: a linear programme over classes of
    sequences and some durations, y_k micro-batches of duration T_k that hold a share
    z_ik of class i,

        min Σ (T_k + b1) y_k,    Σ_k z_ik = 1,    z_ik <= y_k,
        Σ_i e_i z_ik <= N T_k y_k,    Σ_i s_i z_ik <= N cap y_k,    Σ y_k >= M.
    """
    allowed = np.array(sorted(degree for degree in degrees if degree <= devices), dtype=np.float64)
    if len(lengths) == 0:
        return 0.0
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    if len(allowed) == 0 or ordered[0] > cost.tokens_per_device * allowed[-1]:
        return math.inf
    tokens = ordered.astype(np.float64)
    per_token = np.array([cost.all_to_all_for(int(degree)) for degree in allowed])
    alone = cost.sequence_ms(ordered)[:, None] / allowed + tokens[:, None] * per_token
    alone[tokens[:, None] > cost.tokens_per_device * allowed] = np.inf
    problem = _Problem(
        tokens, devices, allowed, alone, cost.constant_ms, devices * cost.tokens_per_device
    )
    fewest = -(-int(ordered.sum()) // problem.tokens)
    simple = max(float((alone * allowed).min(axis=1).sum()) / devices, float(alone[0].min()))
    bound = max(simple + fewest * cost.constant_ms, _bound_ms(problem, fewest))
    return bound * (1 - _ROUNDING)


def _bound_ms(problem: _Problem, fewest: int) -> float:
    """The best bound by the prices of at least ``fewest`` micro-batches."""
    starts, sizes = _classes(problem)
    middle = _middle(problem, starts, sizes)
    durations = _durations(problem, fewest)
    best, number, durations = _rounds(problem, middle, sizes, durations, fewest, None)
    below, above = math.floor(number + 1e-6), math.ceil(number - 1e-6)
    if fewest < above and below < above:
        over, _, _ = _rounds(problem, middle, sizes, durations, above, None)
        under = math.inf
        if below >= fewest:
            under, _, _ = _rounds(problem, middle, sizes, durations, fewest, below)
        best = max(best, min(over, under))
    return best


def _rounds(
    problem: _Problem,
    middle: _Problem,
    sizes: Floats,
    durations: Floats,
    fewest: int,
    most: int | None,
) -> tuple[float, float, Floats]:
    """The best bound for ``fewest`` to ``most`` micro-batches, their number,
    durations.
    """
    best = 0.0
    for _ in range(_ROUNDS):
        priced = _prices(middle, sizes, durations, fewest if most is None else most, most)
        certified, added = _certified(problem, middle, sizes, priced, fewest, most)
        grown = certified > best * _GROWN
        best = max(best, certified)
        if certified >= priced.total_ms * _ENOUGH or not grown:
            break
        durations = np.union1d(durations, added)
    return best, priced.micro_batches, durations


def _classes(problem: _Problem) -> tuple[npt.NDArray[np.int64], Floats]:
    """First sequence of each class and its size; a class fits the same degrees."""
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
        cuts[1:] |= np.diff(np.floor(np.log2(lengths))) != 0
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
    classes: _Problem, sizes: Floats, durations: Floats, fewest: int, most: int | None
) -> _Prices:
    """Prices of a sequence of each class, and the number of micro-batches."""
    busy = np.empty((len(sizes), len(durations)))
    charges = np.empty(len(sizes))
    for index, duration in enumerate(durations):
        _charges(
            classes.alone_ms,
            classes.lengths,
            classes.degrees,
            classes.tokens / classes.devices,
            duration,
            np.nextafter(duration, np.inf),
            charges,
        )
        busy[:, index] = charges
    share = busy * sizes[:, None] / (classes.devices * durations)
    room = classes.lengths * sizes / classes.tokens
    scale = float(durations.mean())
    cost = (durations + classes.constant_ms) / scale
    prices, count, by_time, by_memory, objective = class_prices(
        share, room, cost, float(fewest), most is None, _STEPS
    )
    if not math.isfinite(objective) or not np.isfinite(prices).all():
        return _Prices(sizes * 0, durations * 0, durations * 0, durations, float(fewest), 0.0)
    # Rounded: libraries of linear algebra differ in the last digits.
    rounded = np.clip(prices * scale / sizes, 0.0, 1e30).astype(np.float32).astype(np.float64)
    return _Prices(
        rounded,
        np.maximum(-by_time * scale / (classes.devices * durations), 0.0),
        np.maximum(-by_memory * scale / classes.tokens, 0.0),
        durations,
        float(count.sum()),
        objective * scale,
    )


def _spread(problem: _Problem, classes: _Problem, sizes: Floats, prices: Floats) -> Floats:
    """A price for each sequence from those of the classes.

    The price of a token is interpolated, which is exact where prices have the form of
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
        member_lengths = problem.lengths[members]
        price[members] = member_lengths * np.interp(
            member_lengths, position[those][::-1], token[those][::-1]
        )
    return price


def _certified(
    problem: _Problem,
    classes: _Problem,
    sizes: Floats,
    priced: _Prices,
    fewest: int,
    most: int | None,
) -> tuple[float, Floats]:
    """The bound that prices of the classes prove for ``fewest`` to ``most``
    micro-batches.

    With it, the durations of the largest loss.
    """
    price = _spread(problem, classes, sizes, priced.prices)
    lowest = float(problem.alone_ms.min())
    needed = float(np.min(problem.alone_ms[0]))
    cheapest = float(np.min(problem.alone_ms * problem.degrees, axis=1).sum())
    average = cheapest / problem.devices / fewest
    start = 0.2 * min(average, needed)
    stop = 3 * max(average, needed)
    grid = np.geomspace(max(start, lowest), stop, _FINE)
    grid = np.concatenate((grid, np.geomspace(stop, stop * fewest + 1, 16)[1:]))
    if lowest < start:
        grid = np.concatenate((np.geomspace(lowest, start, 8)[:-1], grid))
    grid[0] = lowest
    edges = np.unique(classes.alone_ms[:_ALONE])
    grid = np.unique(np.concatenate((grid, edges[(edges > grid[0]) & (edges < grid[-1])])))
    ends = _worth(
        problem.lengths,
        problem.alone_ms,
        price,
        classes.lengths,
        classes.alone_ms,
        priced.prices,
        sizes,
        problem.degrees,
        float(problem.devices),
        float(problem.tokens),
        grid,
        priced.durations,
        priced.by_time,
        priced.by_memory,
    )
    charge = np.stack((grid[:-1], grid[1:]), axis=1) + problem.constant_ms
    factors = np.concatenate((np.linspace(0.97, 1.03, 61), (0.5, 0.8, 0.9, 1.1, 1.2)))
    left = np.array([(charge - factor * ends).min() for factor in factors])
    count = np.where(left >= 0, fewest, np.inf if most is None else most)
    longest = grid[-1] + problem.constant_ms * fewest
    proven = np.minimum(factors * float(price.sum()) + left * count, longest)
    chosen = int(proven.argmax())
    left = (charge - factors[chosen] * ends).min(axis=1)
    low = np.flatnonzero(
        (left <= np.append(left[1:], np.inf)) & (left < np.insert(left[:-1], 0, np.inf))
    )
    low = low[np.argsort(left[low], kind="stable")][:_ADDED]
    return max(float(proven[chosen]), 0.0), grid[low]


@compiled
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
    """V at both ends of each interval of durations.

    Rates are tried on the classes: those of the programme's neighbouring durations,
    those of the interval before, none, and at last the one at which time alone pays for
    every sequence.
    """
    ends = np.zeros((len(grid) - 1, 2))
    class_busy, every_busy = np.empty(len(class_lengths)), np.empty(len(lengths))
    rates = np.zeros((4, 2))
    after = 0
    for interval in range(len(grid) - 1):
        start, stop = grid[interval], grid[interval + 1]
        _charges(class_alone, class_lengths, degrees, room / devices, start, stop, class_busy)
        _charges(alone, lengths, degrees, room / devices, start, stop, every_busy)
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
            busy = every_busy[index]
            if busy < np.inf:
                surplus += max(0.0, price[index] - time * busy - memory * lengths[index])
                steepest = max(steepest, price[index] / busy)
        if devices * stop * steepest < devices * stop * time + room * memory + surplus:
            time, memory, surplus = steepest, 0.0, 0.0
        ends[interval, 0] = devices * start * time + room * memory + surplus
        ends[interval, 1] = devices * stop * time + room * memory + surplus
    return ends


@compiled
def _charges(alone, lengths, degrees, per_device, start, stop, charges):
    """The device time that each sequence is charged in a micro-batch.

    Its duration is from ``start`` to below ``stop``. Longest first, so that ``large``
    sequences of a degree (k > 0) come first. Of the r and x in the proof, the function
    takes those that add most to sequences without a better degree.
    """
    number, kinds = len(lengths), len(degrees)
    narrow = np.zeros(number, dtype=np.int64)
    for index in range(number):
        cheapest = np.inf
        for degree in range(kinds):
            charge = alone[index, degree] * degrees[degree]
            if alone[index, degree] < stop and charge < cheapest:
                cheapest, narrow[index] = charge, degree
        charges[index] = cheapest
    # By degree: r, what x is a share of, whether of time, how many have k > 0, and q.
    parts = np.ones(kinds)
    limits = np.full(kinds, stop)
    by_time = np.ones(kinds, dtype=np.bool_)
    large = np.zeros(kinds, dtype=np.int64)
    useful = np.ones(kinds)
    shares = np.zeros(number + 1)
    most = 0
    for degree in range(kinds):
        width, best = degrees[degree], 0.0
        if alone[number - 1, degree] >= stop:
            continue
        needed = False
        for index in range(number - 1, -1, -1):
            time = alone[index, degree]
            if time >= stop:
                break
            needed = needed or narrow[index] == degree
            shares[index] = max(shares[index + 1], charges[index] / (width * time))
            first = index
        if not needed:
            continue
        for option in range(6):
            several, timed = option // 2 + 1.0, option % 2 == 0
            room = stop if timed else per_device * width + 1
            index, gain = first, 0.0
            while index < number:
                size = alone[index, degree] if timed else lengths[index]
                taken = np.floor((several + 1) * size / room)
                if taken == 0:
                    break
                if narrow[index] == degree:
                    gain += start * taken / several - alone[index, degree]
                index += 1
            gain *= 1.0 - shares[index]
            if gain > best:
                best = gain
                parts[degree], limits[degree], by_time[degree] = several, room, timed
                large[degree], useful[degree] = index, shares[index]
        most = max(most, large[degree])
    for attempt in range(2):
        for index in range(most):
            cheapest = np.inf
            for degree in range(kinds):
                time = alone[index, degree]
                if time < stop:
                    charge = time
                    if index < large[degree]:
                        size = time if by_time[degree] else lengths[index]
                        taken = np.floor((parts[degree] + 1) * size / limits[degree])
                        charge = (
                            useful[degree] * time
                            + (1.0 - useful[degree]) * start * taken / parts[degree]
                        )
                    cheapest = min(cheapest, degrees[degree] * charge)
            charges[index] = cheapest if attempt == 0 else min(cheapest, charges[index])
        if attempt == 0:
            for degree in range(kinds):
                for index in range(large[degree], most):
                    time = alone[index, degree]
                    if time < stop and large[degree] > 0:
                        share = charges[index] / (degrees[degree] * time)
                        useful[degree] = min(1.0, max(useful[degree], share))


class _Parts:
    """A vector of all variables but the duals, and views of its parts.

    ``z`` and ``v`` [C, K], ``y``, ``p`` and ``q`` [K], ``g`` [1].
    """

    def __init__(self, classes: int, durations: int, value: float = 0.0) -> None:
        ends = np.cumsum([classes * durations] * 2 + [durations] * 3)
        self.all = np.full(int(ends[-1]) + 1, value)
        z, v, self.y, self.p, self.q, self.g = np.split(self.all, ends)
        self.z, self.v = z.reshape(classes, durations), v.reshape(classes, durations)


class _Step:
    """The equations of one step, and their solution for a target.

    ``x`` and ``s`` are the variables and their reduced costs, ``left`` the residuals of
    the rows with duals pi, w, t, u and eta, ``dual`` those of the columns.
    """

    def __init__(
        self, time: Floats, room: Floats, fits: npt.NDArray[np.bool_], sign: float, x: _Parts,
        s: _Parts, left: tuple[Floats, Floats, Floats, Floats, float], dual: _Parts,
    ) -> None:  # fmt: skip
        self.time, self.room, self.fits, self.sign = time, room, fits, sign
        self.x, self.s, self.left, self.dual = x, s, left, dual
        classes, durations = time.shape
        self.scale = x.all / s.all
        self.z = self.scale[: time.size].reshape(time.shape)
        self.v = self.scale[time.size : 2 * time.size].reshape(time.shape)
        self.inverse = fits / np.where(fits, self.z + self.v, 1.0)
        both, part = self.z * self.v * self.inverse, self.z * self.inverse
        self.columns = np.zeros((durations, classes + 1, 3))
        self.columns[:, :-1, 0] = (time * both).T
        self.columns[:, :-1, 1] = (room * both).T
        self.columns[:, :-1, 2] = part.T
        self.columns[:, -1, 2] = 1.0
        inner = np.empty((durations, 3, 3))
        inner[:, 0, 0] = x.p / s.p + (time * time * both).sum(axis=0)
        inner[:, 1, 1] = x.q / s.q + (room * room * both).sum(axis=0)
        inner[:, 2, 2] = -(s.y / x.y + self.inverse.sum(axis=0))
        inner[:, 0, 1] = inner[:, 1, 0] = (time * room * both).sum(axis=0)
        inner[:, 0, 2] = inner[:, 2, 0] = (time * part).sum(axis=0) - 1
        inner[:, 1, 2] = inner[:, 2, 1] = (room * part).sum(axis=0) - 1
        self.inner = np.linalg.inv(inner)
        flat = self.columns.transpose(1, 0, 2).reshape(classes + 1, -1)
        across = (self.columns @ self.inner).transpose(1, 0, 2).reshape(classes + 1, -1)
        self.outer = np.diag(np.append(both.sum(axis=1), (x.g / s.g)[0])) - across @ flat.T

    def solve(self, target: float, cross: Floats) -> tuple[_Parts, _Parts, tuple[Any, ...]]:
        """Changes of the variables, of their reduced costs, and of the duals.

        They bring each product of both to ``target`` less ``cross``.
        """
        x, s, dual, room = self.x, self.s, self.dual, self.room
        rows, pairs, times, memory, number = self.left
        classes, durations = self.time.shape
        h = _Parts(classes, durations)
        h.all[:] = -dual.all + (target - cross) / np.where(x.all > 0, x.all, 1.0) - s.all
        rest = pairs - self.z * h.z - self.v * h.v
        shift = self.z * (self.inverse * rest + h.z)
        b = np.empty((durations, 3))
        b[:, 0] = times - x.p / s.p * h.p - (self.time * shift).sum(axis=0)
        b[:, 1] = memory - x.q / s.q * h.q - (room * shift).sum(axis=0)
        b[:, 2] = -h.y + (rest * self.inverse).sum(axis=0)
        right = np.append(
            rows - shift.sum(axis=1), number - self.sign * (x.g / s.g * h.g)[0]
        ) - np.einsum("kij,kjl,kl->i", self.columns, self.inner, b, optimize=True)
        solved = np.linalg.solve(self.outer, right)
        b -= np.einsum("kij,i->kj", self.columns, solved)
        d_t, d_u, d_y = np.einsum("kij,kj->ik", self.inner, b)
        d_pi, d_eta = solved[:-1, None], solved[-1]
        change, reduced = _Parts(classes, durations), _Parts(classes, durations)
        worth = d_pi + self.time * d_t + room * d_u
        d_w = (rest - self.z * worth + d_y) * self.inverse
        change.z[:] = self.z * (worth + d_w + h.z)
        change.v[:] = self.v * (d_w + h.v)
        change.y[:] = d_y
        change.p[:] = x.p / s.p * (d_t + h.p)
        change.q[:] = x.q / s.q * (d_u + h.q)
        change.g[:] = x.g / s.g * (self.sign * d_eta + h.g)
        reduced.z[:] = self.fits * (dual.z - worth - d_w)
        reduced.v[:] = self.fits * (dual.v - d_w)
        reduced.y[:] = dual.y + d_w.sum(axis=0) + d_t + d_u - d_eta
        reduced.p[:], reduced.q[:] = dual.p - d_t, dual.q - d_u
        reduced.g[:] = dual.g - self.sign * d_eta
        return change, reduced, (d_pi, d_w, d_t, d_u, d_eta)


def class_prices(
    time: Floats, room: Floats, cost: Floats, number: float, is_minimum: bool, rounds: int
) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Prices of the classes, micro-batches of each duration, duals t and u, the least.

    ``time`` [C, K] is infinite where a class does not fit a duration; ``room`` [C],
    ``cost`` [K]. ``number`` of micro-batches: at least, or at most. It stops after so
    many ``rounds`` at the latest, or where rounding ends its progress; the caller does
    not rely on the result.
    """
    classes, durations = time.shape
    fits = np.isfinite(time)
    a, room = np.where(fits, time, 0.0), room[:, None]
    sign, tenth = -1.0 if is_minimum else 1.0, float(cost.mean()) * 0.1
    # Variables that are not there are 0, at a reduced cost of 1.
    x, s, dual = (_Parts(classes, durations, value) for value in (0.5, tenth, 0.0))
    x.y[:], x.g[:], s.y[:] = number / durations * 1.2 + 0.1, 1.0, cost * 0.5
    x.z[:] = fits / np.maximum(fits.sum(axis=1, keepdims=True), 1)
    x.v[:] = fits * np.maximum(0.05, x.y - x.z)
    s.z[:] = s.v[:] = np.where(fits, tenth / classes * 5, 1.0)
    w = np.where(fits, -s.v, 0.0)
    pi, eta = np.zeros((classes, 1)), 0.0
    t = u = np.full(durations, -tenth)
    count = 2 * int(fits.sum()) + 3 * durations + 1
    for _ in range(rounds):
        gap = float(x.all @ s.all)
        left = (
            1.0 - x.z.sum(axis=1),
            fits * (x.y - x.z - x.v),
            x.y - x.p - (a * x.z).sum(axis=0),
            x.y - x.q - (room * x.z).sum(axis=0),
            float(number - x.y.sum() - sign * x.g[0]),
        )
        worst = max(float(np.abs(left[row]).max()) for row in (0, 2, 3, 4))
        least = float(cost @ x.y)
        if gap < 1e-6 * least and (worst < 1e-6 or gap < 1e-9 * least):
            break
        dual.z[:] = -(pi + w + a * t + room * u) - s.z
        dual.v[:], dual.p[:], dual.q[:] = -w - s.v, -t - s.p, -u - s.q
        dual.y[:] = cost + w.sum(axis=0) + t + u - eta - s.y
        dual.g[:] = -sign * eta - s.g
        try:
            step = _Step(a, room, fits, sign, x, s, left, dual)
            change, reduced, _ = step.solve(0.0, np.zeros_like(x.all))
            primal, other = _longest(x.all, change.all), _longest(s.all, reduced.all)
            after = float((x.all + primal * change.all) @ (s.all + other * reduced.all))
            target = gap / count * (after / gap) ** 3
            change, reduced, duals = step.solve(target, change.all * reduced.all)
        except np.linalg.LinAlgError:
            break
        if not np.isfinite(change.all).all():
            break
        primal = min(1.0, 0.99 * _longest(x.all, change.all))
        other = min(1.0, 0.99 * _longest(s.all, reduced.all))
        x.all += primal * change.all
        s.all += other * reduced.all
        pi, w, t, u, eta = (
            value + other * by for value, by in zip((pi, w, t, u, eta), duals, strict=True)
        )
    return pi[:, 0], x.y, t, u, float(cost @ x.y)


def _longest(values: Floats, changes: Floats) -> float:
    """The longest step, at most 1, after which no value is below 0."""
    falls = changes < 0
    return min(1.0, float((-values[falls] / changes[falls]).min())) if falls.any() else 1.0
