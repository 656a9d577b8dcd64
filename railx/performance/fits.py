"""Fits of a program's constants to measured runs, and errors on rows left out.

A fit minimises the logarithms of ours over measured; a row that is far off counts less
(soft L1). Starting values act as a weak prior, so that numbers about which the rows say
nothing stay where they were. No share exceeds 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from railx.performance.plans import Array
from railx.performance.programs import FITTED, Constants
from railx.performance.validation import Case, predict

#: Fitted numbers of a set at most.
MOST_FITTED = 8
#: Numbers that a fit changes where its start does not say which.
_USUAL = (
    *("matmul_share", "matmul_tile", "memory_share", "attention_share"),
    *("forward_host_s", "backward_host_s", "step_s", "slow_share"),
)
#: Relative error beyond which a row counts linearly.
_SCALE = 0.05
#: Weight of a fitted number's distance (in logarithms) from its start.
_PRIOR = 0.03


def names_to_fit(start: Constants) -> tuple[str, ...]:
    """The numbers that a fit from ``start`` changes: those that were fitted there."""
    names = tuple(name for name in start.fitted if name in FITTED)
    return (names or _USUAL)[:MOST_FITTED]


def fit(
    cases: Sequence[Case], start: Constants, names: Sequence[str], near: Constants | None = None
) -> Constants:
    """``start`` with the numbers ``names`` fitted to the measured seconds of ``cases``.

    Cases of one node and of several nodes weigh equally in sum. ``near``: where the
    search begins, if not at ``start``, e.g. a fit to some more cases.
    """
    from scipy.optimize import least_squares

    measured = np.log([case.seconds or np.nan for case in cases])
    several = np.array([case.plan.devices > 8 for case in cases])
    counts = np.where(several, several.sum(), (~several).sum())
    weights = np.sqrt(len(cases) / len(np.unique(several)) / counts)
    first = np.log([getattr(start, name) for name in names])
    upper = np.array([0.0 if name.endswith("_share") else np.inf for name in names])

    def residuals(logs: Array) -> Array:
        values = replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        seconds, _ = predict(cases, [values] * len(cases))
        return np.concatenate([weights * (np.log(seconds) - measured), _PRIOR * (logs - first)])

    solved = least_squares(
        residuals,
        np.minimum(np.log([getattr(near or start, name) for name in names]), upper - 1e-6),
        loss="soft_l1",
        f_scale=_SCALE,
        bounds=(np.full(len(names), -np.inf), upper),
    )
    values: dict[str, Any] = {
        name: float(f"{value:.4g}") for name, value in zip(names, np.exp(solved.x), strict=True)
    }
    return replace(start, **values, fitted=tuple(names), digest=digest_of(cases))


def fit_gains(cases: Sequence[Case], constants: Constants) -> Constants:
    """``constants`` with one gain for each recipe of ``cases``.

    A gain multiplies the share of the precision's peak that products reach.
    """
    from scipy.optimize import minimize_scalar

    def distance(log_gain: float, rows: list[Case], recipe: str) -> float:
        """Mean distance of ours from measured."""
        values = replace(constants, gains={recipe: float(np.exp(log_gain))})
        seconds, _ = predict(rows, [values] * len(rows))
        measured = np.log([case.seconds or np.nan for case in rows])
        return float(np.abs(np.log(seconds) - measured).mean())

    gains, bounds = dict(constants.gains), (np.log(0.2), np.log(2.0))
    for recipe in dict.fromkeys(case.recipe for case in cases if case.recipe):
        rows = [case for case in cases if case.recipe == recipe]
        best = minimize_scalar(distance, args=(rows, recipe), bounds=bounds, method="bounded")
        gains[recipe] = float(f"{np.exp(best.x):.4g}")
    return replace(constants, gains=gains)


def digest_of(cases: Sequence[Case]) -> str:
    """SHA-256 of what ran and how long it took."""
    text = "\n".join(
        repr((case.model, case.plan, case.device, case.precision, case.seconds)) for case in cases
    )
    return hashlib.sha256(text.encode()).hexdigest()
