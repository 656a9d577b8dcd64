"""From two numbers to a verdict, by rule.

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
never more than partly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from railx.evidence.claims import Claim
from railx.evidence.errors import NotAvailable
from railx.io import FIDELITIES, Fidelity

__all__ = [
    "VERDICTS",
    "Finding",
    "Verdict",
    "compare",
    "compare_trend",
    "limit_by_fidelity",
    "number_text",
]

Verdict = Literal["reproduced", "partly", "not reproduced", "not attempted"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "partly", "not reproduced", "not attempted")

#: A ratio with no value of "no effect" is of the right size within this factor either
#: way.
_RIGHT_SIZE = 2.0
#: Two floating-point numbers that should be equal differ by less than this share.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Finding:
    """A verdict and the sentence that says why, made from the numbers."""

    verdict: Verdict
    reason: str


def number_text(value: float, unit: str = "") -> str:
    """A number for readers, then its unit.

    Whole thousands have separators, other numbers four digits.
    """
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()


def compare(claim: Claim, ours: float) -> Finding:
    """The finding for a single value, before fidelity is looked at."""
    settings, published = claim.settings, claim.published.value
    mine, theirs = number_text(ours, claim.unit), number_text(published)
    word = "published" if settings.kind == "published" else "expected"
    if settings.comparison == "exact":
        slack = max(settings.tolerance, _ROUNDING * abs(published))
        if abs(ours - published) <= slack:
            return Finding(
                "reproduced",
                f"ours, {mine}, equals the {word}"
                f" {theirs}{_within(settings.tolerance, relative=False)}",
            )
        return Finding(
            "not reproduced",
            f"ours, {mine}, differs from the {word} {theirs} by"
            f" {number_text(abs(ours - published))}",
        )
    if settings.comparison == "ratio":
        off = abs(ours / published - 1) if published else float("inf")
        if off <= settings.tolerance + _ROUNDING:
            return Finding(
                "reproduced",
                f"ours, {mine}, is {off:.1%} off the {word} {theirs}{_within(settings.tolerance)}",
            )
        return _direction(
            claim,
            ours,
            f"ours, {mine}, is {off:.1%} off the {word} {theirs} (allowed"
            f" {settings.tolerance:.1%})",
        )
    slack = settings.tolerance * abs(published) + _ROUNDING * abs(published)
    words = settings.comparison.replace("_", " ")
    kept = (
        ours <= published + slack if settings.comparison == "at_most" else ours >= published - slack
    )
    if kept:
        return Finding(
            "reproduced",
            f"ours, {mine}, is {words} the {word} {theirs}{_within(settings.tolerance)}",
        )
    return _direction(
        claim,
        ours,
        f"ours, {mine}, is not {words} the {word} {theirs}{_within(settings.tolerance)}",
    )


def compare_trend(claim: Claim, points: Sequence[tuple[float, float]]) -> tuple[float, Finding]:
    """Last over first value of the points, and the finding.

    A point is (what the trend runs over, value). NotAvailable below two points.
    """
    if len(points) < 2:
        raise NotAvailable(f"a trend needs at least two points; the results have {len(points)}")
    values = [value for _, value in sorted(points)]
    first, last = values[0], values[-1]
    sign = 1.0 if claim.settings.direction == "increasing" else -1.0
    allowed = claim.settings.tolerance * (max(values) - min(values))
    steps = [sign * (after - before) for before, after in pairwise(values)]
    against = sum(step < -allowed for step in steps)
    words = f"from {number_text(first)} to {number_text(last)} over {len(values)} points"
    value = last / first if first else float("nan")
    if sign * (last - first) <= 0:
        return value, Finding(
            "not reproduced", f"ours goes {words}, which is not {claim.settings.direction}"
        )
    if against:
        return value, Finding(
            "partly", f"ours goes {words}, but {against} of {len(steps)} steps go against it"
        )
    return value, Finding("reproduced", f"ours is {claim.settings.direction} {words}")


def limit_by_fidelity(claim: Claim, finding: Finding, fidelity: Fidelity | None) -> Finding:
    """A value less faithful than the claim requires proves it partly at best."""
    required = claim.settings.fidelity_required
    if fidelity is not None and FIDELITIES.index(fidelity) >= FIDELITIES.index(required):
        return finding
    shown = "of unknown origin" if fidelity is None else fidelity
    verdict = "partly" if finding.verdict == "reproduced" else finding.verdict
    return Finding(
        verdict, f"{finding.reason}; but ours is {shown} and the claim requires {required}"
    )


def _direction(claim: Claim, ours: float, reason: str) -> Finding:
    """Partly or not: does the direction hold although the size does not?"""
    neutral, published = claim.settings.neutral, claim.published.value
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
        return Finding("partly", f"{reason}, within a factor of {_RIGHT_SIZE:g}")
    return Finding("not reproduced", reason)


def _within(tolerance: float, *, relative: bool = True) -> str:
    if not tolerance:
        return ""
    return f" (tolerance {tolerance:.1%})" if relative else f" (tolerance {tolerance:g})"
