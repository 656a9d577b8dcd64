"""Expected verdicts of a run, stored in a file, and the differences from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from railx.evidence.errors import ClaimError
from railx.evidence.papers import read_yaml
from railx.evidence.verdicts import REPEATED, Verdict
from railx.settings import NotEmpty, SettingsError, load

__all__ = ["flipped", "read_expected", "rests_on_timing"]


def read_expected(path: str | Path, claims: Collection[str] | None = None) -> dict[str, Verdict]:
    """The expected verdict of each claim.

    Raises :class:`ClaimError`, one line naming file and claim, for another word than a
    verdict and for an id that is not among ``claims``.
    """
    path = Path(path)
    try:
        expected: dict[str, Verdict] = load(
            Annotated[dict[str, Verdict], NotEmpty()], read_yaml(path)
        )
    except SettingsError as error:
        raise ClaimError(f"{path.name}: {error}") from None
    for claim in expected:
        if claims is not None and claim not in claims:
            raise ClaimError(f"{path.name}: {claim}: no such claim; allowed: the id of a claim")
    return expected


def rests_on_timing(row: Mapping[str, Any]) -> bool:
    """Whether a claim's verdict may change with the machine it was made on."""
    return row["fidelity"] in REPEATED or row["set_aside"] > 0


def flipped(rows: Sequence[Mapping[str, Any]], expected: Mapping[str, Verdict]) -> list[str]:
    """A line for every claim whose verdict is another than expected.

    A claim that nothing is expected of is one too, as long as its verdict does not rest
    on timing.
    """
    lines = []
    for row in rows:
        verdict = expected.get(row["claim"])
        if verdict is None and not rests_on_timing(row):
            lines.append(f"{_now(row)}; expected: nothing, as it is not in the list")
        elif verdict is not None and verdict != row["verdict"]:
            lines.append(f"{_now(row)}; expected: {verdict}")
    judged = {row["claim"] for row in rows}
    return lines + [f"{claim}: was not judged" for claim in expected if claim not in judged]


def _now(row: Mapping[str, Any]) -> str:
    return (
        f"{row['claim']}: {row['verdict']}; ours: {row['ours_text'] or 'none'}; published:"
        f" {row['published_text']}; {row['reason']}"
    )
