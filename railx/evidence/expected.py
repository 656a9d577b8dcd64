"""What a run found of the claims, stored in a file, and the differences from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from railx.evidence.errors import ClaimError
from railx.evidence.papers import read_settings
from railx.evidence.verdicts import REPEATED, Verdict
from railx.io import Fidelity
from railx.settings import NotEmpty


@dataclass(frozen=True)
class Recorded:
    """What a run found of a claim: its verdict, value and interval."""

    verdict: Verdict
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    fidelity: Fidelity | None = None
    timed: bool = False
    """Whether the value rests on timing: another machine may decide otherwise."""


def read_expected(path: str | Path, claims: Collection[str] | None = None) -> dict[str, Recorded]:
    """What a run found of each claim.

    Raises :class:`ClaimError`, one line naming file and claim, for another word than a
    verdict and for an id that is not among ``claims``.
    """
    path = Path(path)
    expected: dict[str, Recorded] = read_settings(Annotated[dict[str, Recorded], NotEmpty()], path)
    for claim in expected:
        if claims is not None and claim not in claims:
            raise ClaimError(f"{path.name}: {claim}: no such claim; allowed: the id of a claim")
    return expected


def recorded_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the file that records these rows of a claims table."""
    lines = []
    for row in rows:
        values = {field.name: row[field.name] for field in fields(Recorded) if field.name in row}
        values |= {"timed": rests_on_timing(row)}
        shown = ", ".join(
            f"{key}: {_shown(value)}"
            for key, value in values.items()
            if value is not None and value is not False
        )
        lines.append(f"{row['claim']}: {{{shown}}}\n")
    return lines


def rests_on_timing(row: Mapping[str, Any]) -> bool:
    """Whether a claim's verdict may change with the machine that it was made on."""
    return row["fidelity"] in REPEATED or row["set_aside"] > 0


def flipped(rows: Sequence[Mapping[str, Any]], expected: Mapping[str, Recorded]) -> list[str]:
    """A line for every claim whose verdict is another than expected.

    A claim that nothing is expected of is one too. Verdicts that rest on timing are not
    compared.
    """
    lines = []
    for row in rows:
        other = expected.get(row["claim"])
        if rests_on_timing(row) or (other is not None and other.timed):
            continue
        if other is None:
            lines.append(f"{_now(row)}; expected: nothing, as it is not in the list")
        elif other.verdict != row["verdict"]:
            lines.append(f"{_now(row)}; expected: {other.verdict}")
    judged = {row["claim"] for row in rows}
    return lines + [f"{claim}: was not judged" for claim in expected if claim not in judged]


def _shown(value: Any) -> str:
    """A value as YAML has it: six digits of a number, whose exponent needs a point."""
    if value is True:
        return "true"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def _now(row: Mapping[str, Any]) -> str:
    ours, published = row["ours_text"] or "none", row["published_text"]
    verdict = f"{row['claim']}: {row['verdict']}"
    return f"{verdict}; ours: {ours}; published: {published}; {row['reason']}"
