"""Verdicts on claims from the tables of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from railx.evidence.claims import Claim, Selection
from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.expressions import evaluate
from railx.evidence.tables import lowest_fidelity, select_rows
from railx.evidence.verdicts import Finding, compare, compare_trend, limit_by_fidelity, number_text
from railx.io import Fidelity

__all__ = ["CLAIM_COLUMNS", "claims_table", "judge"]

_TEXT, _NUMBER = pa.string(), pa.float64()
#: Columns of evidence/claims.parquet.
CLAIM_COLUMNS: dict[str, pa.DataType] = {
    "claim": _TEXT,
    "paper": _TEXT,
    "place": _TEXT,
    "sentence": _TEXT,
    "published": _NUMBER,
    "published_text": _TEXT,
    "ours": _NUMBER,
    "ours_text": _TEXT,
    "comparison": _TEXT,
    "tolerance": _NUMBER,
    "fidelity": _TEXT,
    "fidelity_required": _TEXT,
    "verdict": _TEXT,
    "reason": _TEXT,
    "table": _TEXT,
    "selection": _TEXT,
    "expression": _TEXT,
}


def judge(
    claims: Sequence[Claim], results_dir: str | Path, tables: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """One row per claim with the columns of evidence/claims.parquet; the verdict and
    its reason follow from the numbers.

    ``results_dir`` holds the tables of one experiment; ``tables`` names those that
    count (paths below it; None: all), so that what an earlier run left behind proves
    nothing. Where a table or a value is missing the claim is not attempted, and the
    reason says what is missing. Raises :class:`ClaimError` (one line: claim, key, what
    is allowed) where a claim does not fit its table.
    """
    return [_judge_one(claim, Path(results_dir), tables) for claim in claims]


def claims_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The rows of :func:`judge` as a typed table (a column of nothing but empty cells
    keeps its type).
    """
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in CLAIM_COLUMNS.items()}
    )


def _judge_one(claim: Claim, results_dir: Path, tables: Collection[str] | None) -> dict[str, Any]:
    value: float | None = None
    fidelity: Fidelity | None = None
    try:
        for selection in claim.settings.ours.chosen.values():
            if tables is not None and selection.table not in tables:
                raise NotAvailable(f"{selection.table} is not among the results of this experiment")
        frames = {
            name: select_rows(results_dir, selection)
            for name, selection in claim.settings.ours.chosen.items()
        }
        value, finding = _find(claim, frames)
        fidelity = lowest_fidelity(frames, claim.settings.ours)
        finding = limit_by_fidelity(claim, finding, fidelity)
    except NotAvailable as missing:
        finding = Finding("not attempted", str(missing))
    except ClaimError as error:
        raise ClaimError(f"claim {claim.id}: ours.{error}") from None
    return _row(claim, value, fidelity, finding)


def _find(claim: Claim, frames: dict[str, pd.DataFrame]) -> tuple[float, Finding]:
    value = evaluate(claim.settings.ours.expression, frames)
    if isinstance(value, pd.Series) != (claim.settings.comparison == "trend"):
        wanted = (
            "one value per group (by=) for a trend"
            if claim.settings.comparison == "trend"
            else "a single value"
        )
        raise ClaimError(
            f"expression: {claim.settings.ours.expression!r} gives something else; allowed:"
            f" {wanted}"
        )
    if isinstance(value, pd.Series):
        return compare_trend(claim, value)
    return value, compare(claim, value)


def _row(
    claim: Claim, value: float | None, fidelity: Fidelity | None, finding: Finding
) -> dict[str, Any]:
    settings = claim.settings
    bound = {"at_most": "at most ", "at_least": "at least "}.get(settings.comparison, "")
    ours_unit = "last over first" if settings.comparison == "trend" else claim.unit
    return {
        "claim": claim.id,
        "paper": claim.paper,
        "place": settings.place,
        "sentence": settings.sentence,
        "published": claim.published.value,
        "published_text": bound + number_text(claim.published.value, claim.unit),
        "ours": value,
        "ours_text": "" if value is None else number_text(value, ours_unit),
        "comparison": settings.comparison,
        "tolerance": settings.tolerance,
        "fidelity": fidelity,
        "fidelity_required": settings.fidelity_required,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "table": ", ".join(
            dict.fromkeys(selection.table for selection in settings.ours.chosen.values())
        ),
        "selection": "; ".join(
            _selection_text(name, selection) for name, selection in settings.ours.chosen.items()
        ),
        "expression": settings.ours.expression,
    }


def _selection_text(name: str, selection: Selection) -> str:
    """Which rows of which table a name in the expression stands for, as a reader would
    look them up.
    """
    where = ", ".join(f"{column}={wanted}" for column, wanted in selection.filter.items())
    rows = f", rows of {' and '.join(selection.rows)}" if selection.rows else ""
    return (
        f"{f'{name} = ' if name else ''}{selection.table}{f' where {where}' if where else ''}{rows}"
    )
