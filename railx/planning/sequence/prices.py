"""The linear programme that prices the sequences of a batch, solved by its structure.

    min Σ_k cost_k y_k
    Σ_k z_ik = 1                    every class once               dual pi_i, the price
    z_ik + v_ik = y_k               at most once in a micro-batch  w_ik
    Σ_i time_ik z_ik + p_k = y_k    device time                    t_k
    Σ_i room_i z_ik + q_k = y_k     memory                         u_k
    Σ_k y_k -+ g = number           micro-batches                  eta

All variables but the duals are at least 0. A primal-dual interior-point method
(Mehrotra's predictor and corrector) takes some 15 steps. In a step w is eliminated
entry by entry, then t, u and y of each k by a 3 x 3 matrix, so that what is solved is
as large as there are classes. This takes a tenth or less of what a general solver
takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["class_prices"]

Floats = npt.NDArray[np.float64]


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
