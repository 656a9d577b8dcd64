"""Medians over repeats, and the interval that their bootstrap gives.

The order of the repeats plays no part, and the same repeats always give the same
interval: they are sorted first and the draws have a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CONFIDENCE", "FEWEST", "Estimate", "difference", "estimate", "estimate_line"]

#: Repeats below which a value with repeats gets no verdict.
FEWEST = 3
#: Share of the bootstrap's draws that lie within an interval.
CONFIDENCE = 0.95
_DRAWS = 9999
_SEED = 20250718

#: What a line through points is worth: from the places of the points (last axis) and
#: their values (last axis, others in front of it) to a number each.
LineValue = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval.

    ``samples`` is how many repeats it is the median of, None for a value that stands
    alone; ``low`` and ``high`` are None where there are too few for an interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    samples: int | None = None

    @property
    def ends(self) -> tuple[float, ...]:
        """The ends of the interval; none where there is no interval."""
        return () if self.low is None or self.high is None else (self.low, self.high)


def estimate(values: Sequence[float]) -> Estimate:
    """The median of repeats with its interval."""
    ordered = np.sort(np.asarray(values, dtype=float))
    return _with_interval((ordered,), _median)


def difference(before: Mapping[Hashable, float], after: Mapping[Hashable, float]) -> Estimate:
    """By how much ``after`` lies above ``before``, each by repeat.

    Repeats that both have are compared one by one: what slows a whole repeat down
    cancels. Where too few pair, the two medians are compared.
    """
    common = before.keys() & after.keys()
    if len(common) >= FEWEST:
        return estimate([after[name] - before[name] for name in common])
    return _with_interval(
        (_ordered(before), _ordered(after)), lambda first, second: _median(second) - _median(first)
    )


def estimate_line(
    xs: Sequence[float], points: Sequence[Mapping[Hashable, float]], statistic: LineValue
) -> Estimate:
    """What the line through ``points`` is worth, each of them by repeat.

    Of repeats that all points have, each gives a line and the median of their statistic
    counts. Where too few pair, the line goes through the medians.
    """
    along = np.asarray(xs, dtype=float)
    common = set.intersection(*(set(point) for point in points))
    if len(common) >= FEWEST:
        lines = np.array([[point[name] for point in points] for name in common])
        return estimate(statistic(along, lines).tolist())
    return _with_interval(
        tuple(_ordered(point) for point in points),
        lambda *drawn: statistic(along, np.stack([_median(sample) for sample in drawn], axis=-1)),
    )


def _ordered(point: Mapping[Hashable, float]) -> Any:
    return np.sort(np.asarray(list(point.values()), dtype=float))


def _median(values: Any) -> Any:
    return np.median(values, axis=-1)


def _with_interval(samples: tuple[Any, ...], statistic: Callable[..., Any]) -> Estimate:
    """The statistic of the samples, and its interval where each has enough of them."""
    value, fewest = float(statistic(*samples)), min(len(sample) for sample in samples)
    if fewest < FEWEST:
        return Estimate(value, samples=fewest)
    from scipy.stats import bootstrap

    result = bootstrap(
        samples,
        lambda *drawn, axis=-1: statistic(*drawn),
        vectorized=True,
        confidence_level=CONFIDENCE,
        n_resamples=_DRAWS,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    # Interpolating between equal draws can round to just outside all of them, or of the
    # statistic.
    draws = result.bootstrap_distribution
    low, high = map(float, np.clip(result.confidence_interval, draws.min(), draws.max()))
    low = min(low, value) if math.isclose(low, value) else low
    high = max(high, value) if math.isclose(high, value) else high
    return Estimate(value, low, high, fewest)
