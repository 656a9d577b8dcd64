"""From a value and its interval to a verdict, by rule.

* ``ratio``: reproduced when ours is within the relative tolerance of the published
  number.
* ``at_most`` / ``at_least``: reproduced when ours keeps the bound, widened by the
  relative tolerance.
* ``exact``: reproduced when ours differs by no more than the absolute tolerance.
* ``trend``: reproduced when every step goes in the stated direction; a step against it
  may be as large as the tolerance's share of the range.

A value that keeps the rule is *consistent* only, where it is of lower fidelity than the
claim requires, or where it rests on constants of the paper or on the claim's own
published number (:mod:`railx.evidence.lineage`).

*Direction only* says that the effect is there and its size is not: measured from
``neutral`` (the value of no effect, which the claim states), ours is within a factor of
two of the published effect, either way. Without a neutral value a ratio itself lies
within a factor of two. A trend has the direction only when its last value lies beyond
its first but a step goes against it. An exact number is right or wrong.

A value of smaller runs than the claim requires reproduces nothing: the claim is
*undecided*, unless the value contradicts it. What was repeated is the median of its
repeats (over batches the mean), and its verdict holds for the whole of its interval:
where the rule says another verdict anywhere in it the claim is *undecided*. So is a
claim with fewer repeats than an interval needs, and one on a measured or emulated value
that was not repeated.

A claim that turns on what the paper leaves open has a value for each of a fixed list of
assumptions. It *depends* where it holds in 5 to 95 % of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from railx.evidence.claims import Claim
from railx.evidence.errors import NotAvailable
from railx.intervals import CONFIDENCE, FEWEST, Estimate, difference, estimate_line
from railx.io import FIDELITIES, Fidelity

Verdict = Literal[
    "reproduced",
    "consistent",
    "direction only",
    "depends",
    "undecided",
    "not reproduced",
    "not here",
    "not testable",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
#: Verdicts that stand together: only those of ``held`` count as held.
VERDICT_GROUPS: dict[str, tuple[Verdict, ...]] = {
    "held": ("reproduced", "consistent"),
    "open": ("direction only", "depends", "undecided"),
    "failed": ("not reproduced",),
    "not judged": ("not here", "not testable"),
}
POSITIVE = VERDICT_GROUPS["held"]

#: Origins whose values depend on the machine's moment: nothing is decided on one run.
REPEATED: tuple[Fidelity, ...] = ("emulated", "measured_cpu", "measured_gpu")

#: An effect (a ratio itself where there is no value of "no effect") has the direction
#: within this factor either way.
_RIGHT_SIZE = 2.0
#: Shares of its assumptions between which a claim depends on them.
_DEPENDS = (0.05, 0.95)
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
    at_median, interval = _at(claim, ours.value), _interval(ours, repeats)
    shown = f"ours, {number_text(ours.value, claim.unit)}{interval}, {at_median.reason}"
    for other in _interval_points(claim, ours):
        elsewhere = _at(claim, other)
        if elsewhere.verdict != at_median.verdict:
            side = f"{number_text(other)} {elsewhere.reason}"
            shown = f"{shown}; but the interval is not on one side: {side}"
            return Finding("undecided", shown)
    return Finding(at_median.verdict, shown)


def compare_trend(
    claim: Claim, points: Sequence[tuple[float, Mapping[Hashable, float]]], repeats: str = "repeats"
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
    few = _too_few(value, repeats, number_text(value.value, claim.unit))
    if few:
        return value, few
    return value, _trend(claim, series, value, single=single, repeats=repeats)


def limit_by_fidelity(claim: Claim, finding: Finding, fidelity: Fidelity | None) -> Finding:
    """A value less faithful than the claim requires is consistent with it at best."""
    required = claim.settings.fidelity_required
    if required is None or (
        fidelity is not None and FIDELITIES.index(fidelity) >= FIDELITIES.index(required)
    ):
        return finding
    origin = f"is {fidelity or 'of unknown origin'} and the claim requires {required}"
    if finding.verdict == "reproduced":
        return Finding("consistent", f"{finding.reason}; but ours {origin}")
    return Finding(finding.verdict, f"{finding.reason}; besides, ours {origin}")


def limit_by_lineage(finding: Finding, reason: str) -> Finding:
    """A value made from the paper's numbers is consistent with them at best.

    ``reason`` says which numbers; empty: none.
    """
    if not reason or finding.verdict not in POSITIVE:
        return finding
    return Finding("consistent", f"{finding.reason}; {reason}")


def compare_assumptions(claim: Claim, ours: Mapping[str, Estimate], chosen: str) -> Finding:
    """The finding over assumptions that the paper leaves open, each with its value.

    The claim depends on them where it holds in 5 to 95 % of them;
    otherwise the finding is that of the value under ``chosen``, undecided where its
    interval over batches is not on one side. The reason counts such intervals.
    """
    values = {name: estimate.value for name, estimate in ours.items()}
    findings = {name: _at(claim, value) for name, value in values.items()}
    unsure = [name for name, estimate in ours.items() if _both_sides(claim, estimate)]
    holds = sum(finding.verdict == "reproduced" for finding in findings.values())
    share = holds / len(findings)
    low, high = min(values.values()), max(values.values())
    at_chosen = findings[chosen]
    reason = (
        f"ours, {number_text(values[chosen], claim.unit)}, {at_chosen.reason}; of {len(findings)}"
        f" assumptions ({number_text(low)} to {number_text(high)}) it holds in {holds}"
    )
    doubt = f"; of {len(unsure)} the interval is not on one side" if unsure else ""
    if _DEPENDS[0] <= share <= _DEPENDS[1]:
        return Finding("depends", f"{reason} ({_percent(share)}){doubt}")
    if (share > _DEPENDS[1]) == (at_chosen.verdict == "reproduced"):
        return Finding("undecided" if chosen in unsure else at_chosen.verdict, reason + doubt)
    return Finding("depends", f"{reason} ({_percent(share)}), where the chosen one differs{doubt}")


def _both_sides(claim: Claim, ours: Estimate) -> bool:
    """Whether the claim holds at some values of the interval and not at others."""
    points = (ours.value, *_interval_points(claim, ours))
    return len({_at(claim, point).verdict == "reproduced" for point in points}) > 1


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
    size = f"ours rests on {' and '.join(short)} that the claim requires"
    if finding.verdict in (*POSITIVE, "direction only"):
        return Finding("undecided", f"{finding.reason}; but {size}")
    return Finding(finding.verdict, f"{finding.reason}; besides, {size}")


def without_repeats(finding: Finding, ours: Estimate, fidelity: Fidelity | None) -> Finding:
    """A measured or emulated value that was not repeated decides nothing."""
    if ours.samples is not None or fidelity not in REPEATED:
        return finding
    alone = f"ours is {fidelity} and was not repeated: a verdict needs {FEWEST} repeats"
    return Finding("undecided", f"{finding.reason}; but {alone}")


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
    stated, bound = number_text(published), _BOUNDS.get(settings.comparison, "")
    apart = ours - published
    beyond = -apart if bound == "at least" else apart if bound else abs(apart)
    if beyond <= _ROUNDING * abs(published):
        return Finding("reproduced", f"{f'is {bound}' if bound else 'equals'} the {word} {stated}")
    if settings.comparison == "exact":
        allowed = number_text(tolerance)
        if beyond <= tolerance:
            return Finding("reproduced", f"is within the allowed {allowed} of the {word} {stated}")
        against = _against(tolerance, allowed, within=False)
        words = f"differs from the {word} {stated} by {number_text(beyond)}{against}"
        return Finding("not reproduced", words)
    slack = (tolerance + _ROUNDING) * abs(published)
    within = beyond <= slack
    against = _against(tolerance, _percent(tolerance), within=within)
    theirs = f"the {word} {bound} {stated}".replace("  ", " ")
    words = f"is {_apart(apart, published)} {theirs}{against}"
    return Finding("reproduced", words) if within else _direction(claim, ours, words)


def _direction(claim: Claim, ours: float, reason: str) -> Finding:
    """Direction only or not reproduced: the effect's size is not the published."""
    neutral, published = claim.settings.neutral, claim.published.value
    if neutral is None and claim.settings.comparison != "ratio":
        return Finding("not reproduced", reason)
    effect, expected = ours - (neutral or 0.0), published - (neutral or 0.0)
    if not expected:
        return Finding("not reproduced", reason)
    size = effect / expected
    near = 1 / _RIGHT_SIZE <= size <= _RIGHT_SIZE
    verdict: Verdict = "direction only" if near else "not reproduced"
    if neutral is None:
        factor = f", yet within a factor of {_RIGHT_SIZE:g}"
        return Finding(verdict, reason + factor if near else reason)
    if size <= 0:
        side = f"{'above' if expected > 0 else 'below'} {number_text(neutral)}"
        words = f"{reason}; the direction does not hold: ours is not {side}"
        return Finding("not reproduced", words)
    words = f"{reason}; {number_text(size)} of the effect beyond {number_text(neutral)}"
    return Finding(verdict, words)


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

    words = f"from {number_text(medians[0])} to {number_text(medians[-1])}"
    words += f" over {len(series)} points"
    if claim.unit and np.isfinite(value.value):
        interval = _interval(value, repeats, within=True)
        words += f" ({number_text(value.value, claim.unit)}{interval})"
    goes, disagree = f"ours goes {words}", "but the repeats do not agree"
    total = along(series[0], series[-1])
    if max(total) <= 0:
        return Finding("not reproduced", f"{goes}, which is not {claim.settings.direction}")
    if min(total) <= 0:
        side = "above" if sign > 0 else "below"
        words = f"{goes}, {disagree} whether its last point is {side} its first"
        return Finding("undecided", words)
    steps = [along(before, after) for before, after in pairwise(series)]
    against = sum(max(step) < -allowed for step in steps)
    if against:
        verb = "go" if against > 1 else "goes"
        against_it = f"but {against} of {len(steps)} steps {verb} against it"
        return Finding("direction only", f"{goes}, {against_it}")
    unsure = sum(min(step) < -allowed for step in steps)
    if unsure:
        return Finding("undecided", f"{goes}, {disagree} on {unsure} of {len(steps)} steps")
    word = "rises" if sign > 0 else "falls"
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
    few = f"too few: {counted(ours.samples, repeats)}, where a verdict needs {FEWEST}"
    return Finding("undecided", f"{few}; ours so far: {shown}")


def counted(number: int, word: str) -> str:
    """A number of things: 1 repeat, 2 repeats."""
    single = word.removesuffix("es") if word.endswith("ches") else word.removesuffix("s")
    return f"{number} {single if number == 1 else word}"


def _interval(ours: Estimate, repeats: str, *, within: bool = False) -> str:
    """What a reader should know of an interval; nothing where there is none."""
    if not ours.ends or ours.samples is None:
        return ""
    low, high = map(number_text, ours.ends)
    spread = "of no width" if low == high else f"{low} to {high}"
    middle = f"{'mean' if repeats == 'batches' else 'median'} of {counted(ours.samples, repeats)}"
    words = f"{middle}, {100 * CONFIDENCE:g} % interval {spread}"
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
