"""Values over repeats, seeds or batches, and intervals that cover them.

Claims and figures share them. The median of repeats has an interval of order statistics
where these reach the confidence whatever the distribution is (from six repeats on for
95 %). Fewer repeats have Student's interval of their mean, which covers 95 % where they
are normal; it is widened to the median where that lies outside. The weighted mean over
batches has Student's interval by linearisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Repeats below which a value with repeats has no interval and gets no verdict.
FEWEST = 3
#: Share of the cases in which an interval covers the value.
CONFIDENCE = 0.95

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


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The median of repeats with its interval."""
    ordered = np.sort(np.asarray(values, dtype=float))
    count, median = len(ordered), float(np.median(ordered))
    if count < FEWEST:
        return Estimate(median, samples=count)
    outside = _outside(count, confidence)
    if outside < 0:
        mean, spread = float(ordered.mean()), float(ordered.std(ddof=1))
        low, high = _student(mean, spread, count, confidence)
        return Estimate(median, min(low, median), max(high, median), count)
    return Estimate(median, float(ordered[outside]), float(ordered[count - 1 - outside]), count)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """The mean of batches by weight, with its interval.

    With ratios as values and their denominators as weights it is the ratio of the sums.
    """
    along, by = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    count, mean = len(along), float(along @ by / by.sum())
    if count < FEWEST:
        return Estimate(mean, samples=count)
    # The spread of a ratio of means (Cochran, Sampling Techniques, section 2.11).
    spread = float((by / by.mean() * (along - mean)).std(ddof=1))
    return Estimate(mean, *_student(mean, spread, count), count)


def difference(before: Mapping[Hashable, float], after: Mapping[Hashable, float]) -> Estimate:
    """By how much ``after`` lies above ``before``, by repeats that both have.

    What slows a whole repeat down cancels. Where too few pair there is no interval.
    """
    common = before.keys() & after.keys()
    if len(common) >= FEWEST:
        return estimate([after[name] - before[name] for name in common])
    return Estimate(_median(after) - _median(before), samples=len(common))


def estimate_line(
    xs: Sequence[float], points: Sequence[Mapping[Hashable, float]], statistic: LineValue
) -> Estimate:
    """What the line through ``points`` is worth, each of them by repeat.

    Of repeats that all points have, each gives a line and the median of their statistic
    counts. Where too few pair, the line goes through the medians, without interval.
    """
    along = np.asarray(xs, dtype=float)
    common = set.intersection(*(set(point) for point in points))
    if len(common) >= FEWEST:
        lines = np.array([[point[name] for point in points] for name in common])
        return estimate(statistic(along, lines).tolist())
    medians = np.array([_median(point) for point in points])
    return Estimate(float(statistic(along, medians)), samples=len(common))


def _median(point: Mapping[Hashable, float]) -> float:
    return float(np.median(list(point.values())))


def _student(
    mean: float, spread: float, count: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """The ends of Student's interval of a mean."""
    from scipy.stats import t

    reach = float(t.ppf((1 + confidence) / 2, count - 1)) * spread / math.sqrt(count)
    return mean - reach, mean + reach


def _outside(count: int, confidence: float) -> int:
    """How many values lie outside the interval of a median, on each side.

    Below zero where even all of them do not reach the confidence.
    """
    from scipy.stats import binom

    # The median lies below the k-th smallest value with this probability at most.
    return int(binom.ppf((1 - confidence) / 2, count, 0.5)) - 1
