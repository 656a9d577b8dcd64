"""From a value and its interval to a verdict, by rule.

* ``ratio``: reproduced when ours is within the relative tolerance of the published
  number.
* ``at_most`` / ``at_least``: reproduced when ours keeps the bound, widened by the
  relative tolerance.
* ``exact``: reproduced when ours differs by no more than the absolute tolerance.
* ``trend``: reproduced when every step goes in the stated direction; a step against it
  may be as large as the tolerance's share of the range.

*Partly* means that the direction holds and the size does not: ours and the published
number are on the same side of ``neutral`` (the value of no effect, which the claim
states). A ratio without a neutral value has the right size within a factor of two. A
trend holds partly when its last value lies beyond its first but a step goes against it.
An exact number is right or wrong. A value of lower fidelity than the claim requires is
never more than partly. A value of smaller runs than it requires reproduces nothing, not
even partly: the claim is *undecided*, unless the value contradicts it.

What was repeated is the median of its repeats, and its verdict holds for the whole of
the median's interval: where the rule says another verdict anywhere in it the claim is
*undecided*. So is a claim with fewer repeats than an interval needs, and one on a
measured or emulated value that was not repeated.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from railx.evidence.claims import Claim
from railx.evidence.errors import NotAvailable
from railx.evidence.intervals import (
    CONFIDENCE,
    FEWEST,
    Estimate,
    difference,
    estimate_line,
)
from railx.io import FIDELITIES, Fidelity

__all__ = [
    "REPEATED",
    "VERDICTS",
    "Finding",
    "Verdict",
    "compare",
    "compare_trend",
    "limit_by_fidelity",
    "limit_by_size",
    "number_text",
    "without_repeats",
]

Verdict = Literal["reproduced", "partly", "not reproduced", "undecided", "not attempted"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: Origins whose values depend on the machine's moment: nothing is decided on one run.
REPEATED: tuple[Fidelity, ...] = ("emulated", "measured_cpu", "measured_gpu")

#: A ratio with no value of "no effect" is of the right size within this factor either
#: way.
_RIGHT_SIZE = 2.0
#: Two floating-point numbers that should be equal differ by less than this share.
_ROUNDING = 1e-9
_BOUNDS = {"at_most": "at most", "at_least": "at least"}


@dataclass(frozen=True)
class Finding:
    """A verdict and the sentence that says why, made from the numbers."""

    verdict: Verdict
    reason: str


def number_text(value: float, unit: str = "") -> str:
    """A number for readers, then its unit.

    Four digits; whole thousands have separators, what would be long is said in words.
    """
    size = abs(value)
    if size >= 1e9:
        text = f"{value / 1e9:,.4g} billion"
    else:
        text = f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()


def compare(claim: Claim, ours: Estimate, repeats: str = "repeats") -> Finding:
    """The finding for a value, before fidelity is looked at.

    ``repeats`` names the samples whose median the value is.
    """
    few = _too_few(ours, repeats, number_text(ours.value, claim.unit))
    if few:
        return few
    at_median = _at(claim, ours.value)
    shown = (
        f"ours, {number_text(ours.value, claim.unit)}{_interval(ours, repeats)}, {at_median.reason}"
    )
    for other in _interval_points(claim, ours):
        elsewhere = _at(claim, other)
        if elsewhere.verdict != at_median.verdict:
            return Finding(
                "undecided",
                f"{shown}; but the interval is not on one side: {number_text(other)}"
                f" {elsewhere.reason}",
            )
    return Finding(at_median.verdict, shown)


def compare_trend(
    claim: Claim,
    points: Sequence[tuple[float, Mapping[Hashable, float]]],
    repeats: str = "repeats",
) -> tuple[Estimate, Finding]:
    """The number that the trend is shown by, and the finding.

    A point is what the trend runs over, and the values there by repeat: a value that
    stands alone has the name None. NotAvailable below two points.
    """
    if len(points) < 2:
        raise NotAvailable(f"a trend needs at least two points; the results have {len(points)}")
    ordered = sorted(points, key=lambda point: point[0])
    xs, series = [x for x, _ in ordered], [values for _, values in ordered]
    single = all(set(values) == {None} for values in series)
    statistic = _last_over_first if claim.settings.trend_value == "last_over_first" else _slope
    value = (
        Estimate(float(statistic(np.asarray(xs), np.array([values[None] for values in series]))))
        if single
        else estimate_line(xs, series, statistic)
    )
    # A point may have fewer repeats than those that pair, never the other way round.
    fewest = None if single else min(len(values) for values in series)
    few = _too_few(
        Estimate(value.value, samples=fewest), repeats, number_text(value.value, claim.unit)
    )
    if few:
        return Estimate(value.value, samples=fewest), few
    return value, _trend(claim, series, value, single=single, repeats=repeats)


def limit_by_fidelity(claim: Claim, finding: Finding, fidelity: Fidelity | None) -> Finding:
    """A value less faithful than the claim requires proves it partly at best."""
    required = claim.settings.fidelity_required
    if required is None or (
        fidelity is not None and FIDELITIES.index(fidelity) >= FIDELITIES.index(required)
    ):
        return finding
    shown = "of unknown origin" if fidelity is None else fidelity
    capped = finding.verdict == "reproduced"
    return Finding(
        "partly" if capped else finding.verdict,
        f"{finding.reason}; {'but ours' if capped else 'besides, ours'} is {shown} and the claim"
        f" requires {required}",
    )


def limit_by_size(claim: Claim, finding: Finding, smallest: Mapping[str, float]) -> Finding:
    """What rests on smaller runs than the claim requires proves nothing.

    What contradicts the claim does so at any size.
    """
    short = [
        f"{number_text(smallest[column])} {column.replace('_', ' ')} of at least"
        f" {number_text(minimum)}"
        for column, minimum in claim.settings.requires.items()
        if smallest[column] < minimum
    ]
    if not short:
        return finding
    capped = finding.verdict in ("reproduced", "partly")
    return Finding(
        "undecided" if capped else finding.verdict,
        f"{finding.reason}; {'but' if capped else 'besides,'} ours rests on"
        f" {' and '.join(short)} that the claim requires",
    )


def without_repeats(finding: Finding, ours: Estimate, fidelity: Fidelity | None) -> Finding:
    """A measured or emulated value that was not repeated decides nothing."""
    if ours.samples is not None or fidelity not in REPEATED:
        return finding
    return Finding(
        "undecided",
        f"{finding.reason}; but ours is {fidelity} and was not repeated: a verdict needs"
        f" {FEWEST} repeats",
    )


def _interval_points(claim: Claim, ours: Estimate) -> list[float]:
    """The values besides the median at which the rule must say the same.

    The ends, and the published number between them: an interval that reaches past it on
    both sides would otherwise agree with itself.
    """
    published = claim.published.value
    inside = [published] if ours.ends and ours.ends[0] < published < ours.ends[1] else []
    return [*ours.ends, *inside]


def _at(claim: Claim, ours: float) -> Finding:
    """The verdict of the rule at a value, and its description."""
    settings, published = claim.settings, claim.published.value
    word = "published" if settings.kind == "published" else "expected"
    tolerance = settings.tolerance or 0.0
    if settings.comparison == "exact":
        off = abs(ours - published)
        if off <= _ROUNDING * abs(published):
            return Finding("reproduced", f"equals the {word} {number_text(published)}")
        if off <= tolerance:
            return Finding(
                "reproduced",
                f"is within the allowed {number_text(tolerance)} of the {word}"
                f" {number_text(published)}",
            )
        return Finding(
            "not reproduced",
            f"differs from the {word} {number_text(published)} by {number_text(off)}"
            f"{_against(tolerance, number_text(tolerance), within=False)}",
        )
    bound = _BOUNDS.get(settings.comparison, "")
    theirs = f"the {word} {bound} {number_text(published)}".replace("  ", " ")
    apart = ours - published
    beyond = -apart if bound == "at least" else apart if bound else abs(apart)
    slack = (tolerance + _ROUNDING) * abs(published)
    if beyond <= _ROUNDING * abs(published):
        verb = f"is {bound}" if bound else "equals"
        return Finding("reproduced", f"{verb} the {word} {number_text(published)}")
    within = beyond <= slack
    against = _against(tolerance, _percent(tolerance), within=within)
    words = f"is {_apart(apart, published)} {theirs}{against}"
    return Finding("reproduced", words) if within else _direction(claim, ours, words)


def _direction(claim: Claim, ours: float, reason: str) -> Finding:
    """Partly or not: does the direction hold although the size does not?"""
    neutral, published = claim.settings.neutral, claim.published.value
    if neutral is not None and neutral == published:
        return Finding("not reproduced", reason)
    if neutral is not None:
        side = "above" if published > neutral else "below"
        if (ours - neutral) * (published - neutral) > 0:
            return Finding(
                "partly", f"{reason}; the direction holds: both are {side} {number_text(neutral)}"
            )
        return Finding(
            "not reproduced",
            f"{reason}; the direction does not hold: ours is not {side} {number_text(neutral)}",
        )
    if (
        claim.settings.comparison == "ratio"
        and published
        and 1 / _RIGHT_SIZE <= ours / published <= _RIGHT_SIZE
    ):
        return Finding("partly", f"{reason}, yet within a factor of {_RIGHT_SIZE:g}")
    return Finding("not reproduced", reason)


def _trend(
    claim: Claim,
    series: Sequence[Mapping[Hashable, float]],
    value: Estimate,
    *,
    single: bool,
    repeats: str,
) -> Finding:
    """The finding for points that all have enough repeats, or stand alone."""
    medians = [float(np.median(list(values.values()))) for values in series]
    sign = 1.0 if claim.settings.direction == "increasing" else -1.0
    allowed = (claim.settings.tolerance or 0.0) * (max(medians) - min(medians))

    def along(before: Mapping[Hashable, float], after: Mapping[Hashable, float]) -> list[float]:
        """By how much a step follows the direction: the median and both ends."""
        step = Estimate(after[None] - before[None]) if single else difference(before, after)
        return [sign * change for change in (step.value, *step.ends)]

    word = "rises" if sign > 0 else "falls"
    words = (
        f"from {number_text(medians[0])} to {number_text(medians[-1])} over {len(series)} points"
    )
    if claim.unit and np.isfinite(value.value):
        words += (
            f" ({number_text(value.value, claim.unit)}{_interval(value, repeats, within=True)})"
        )
    total = along(series[0], series[-1])
    if max(total) <= 0:
        return Finding(
            "not reproduced", f"ours goes {words}, which is not {claim.settings.direction}"
        )
    if min(total) <= 0:
        return Finding(
            "undecided",
            f"ours goes {words}, but the repeats do not agree whether its last point is"
            f" {'above' if sign > 0 else 'below'} its first",
        )
    steps = [along(before, after) for before, after in pairwise(series)]
    against = sum(max(step) < -allowed for step in steps)
    if against:
        return Finding(
            "partly",
            f"ours goes {words}, but {against} of {len(steps)} steps"
            f" {'go' if against > 1 else 'goes'} against it",
        )
    unsure = sum(min(step) < -allowed for step in steps)
    if unsure:
        return Finding(
            "undecided",
            f"ours goes {words}, but the repeats do not agree on {unsure} of {len(steps)} steps",
        )
    return Finding("reproduced", f"ours {word} {words}; only the direction is compared")


def _slope(xs: Any, values: Any) -> Any:
    """The slope of the line of least squares."""
    centred = xs - xs.mean()
    return values @ centred / (centred @ centred)


def _last_over_first(_: Any, values: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return values[..., -1] / values[..., 0]


def _too_few(ours: Estimate, repeats: str, shown: str) -> Finding | None:
    if ours.samples is None or ours.samples >= FEWEST:
        return None
    return Finding(
        "undecided",
        f"too few: {counted(ours.samples, repeats)}, where a verdict needs {FEWEST}; ours so far:"
        f" {shown}",
    )


def counted(number: int, word: str) -> str:
    """A number of things: 1 repeat, 2 repeats."""
    return f"{number} {word.removesuffix('s') if number == 1 else word}"


def _interval(ours: Estimate, repeats: str, *, within: bool = False) -> str:
    """What a reader should know of an interval; nothing where there is none."""
    if not ours.ends or ours.samples is None:
        return ""
    low, high = map(number_text, ours.ends)
    spread = "of no width" if low == high else f"{low} to {high}"
    words = f"median of {counted(ours.samples, repeats)}, {100 * CONFIDENCE:g} % interval {spread}"
    return f", {words}" if within else f" ({words})"


def _apart(apart: float, published: float) -> str:
    """How far ours lies above or below: a share, or the amount where there is none."""
    side = "above" if apart > 0 else "below"
    amount = _percent(apart / published) if published else number_text(abs(apart))
    return f"{amount} {side}"


def _against(tolerance: float, shown: str, *, within: bool) -> str:
    if not tolerance:
        return ""
    return f", {'within' if within else 'more than'} the tolerance of {shown}"


def _percent(share: float) -> str:
    """A share in per cent, with the digits that tell it from nothing."""
    size = abs(share) * 100
    if size < 1e-4:
        return "less than 0.0001 %" if size else "0 %"
    text = f"{size:,.0f}" if size >= 100 else f"{size:.1f}" if size >= 0.1 else f"{size:.1g}"
    return f"{text.removesuffix('.0')} %"
