"""Verdicts on claims from the tables of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from railx.evidence.claims import KINDS, Claim
from railx.evidence.database import Database, open_database
from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.verdicts import (
    VERDICTS,
    Finding,
    compare,
    compare_trend,
    limit_by_fidelity,
    number_text,
)
from railx.io import FIDELITIES, Fidelity

__all__ = ["CLAIM_COLUMNS", "claims_table", "count_verdicts", "judge"]

_TEXT, _NUMBER = pa.string(), pa.float64()
#: Columns of evidence/claims.parquet.
CLAIM_COLUMNS: dict[str, pa.DataType] = {
    "claim": _TEXT,
    "kind": _TEXT,
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
    "notes": _TEXT,
    "tables": _TEXT,
    "query": _TEXT,
}
_VALUE_COLUMNS = ("ours", "fidelity")
_TREND_COLUMNS = ("x", "ours", "fidelity")


def judge(
    claims: Sequence[Claim], results_dir: str | Path, files: Iterable[str]
) -> list[dict[str, Any]]:
    """One row per claim with the columns of evidence/claims.parquet.

    The verdict and its reason follow from the numbers. ``results_dir`` holds the tables
    of one experiment. ``files`` names those that count (paths below it), so that what
    an earlier run left behind proves nothing. Where a table or a value is missing the
    claim is not attempted, and the reason says what is missing. Raises
    :class:`ClaimError` (one line: claim, key, what is allowed) where a query does not
    fit the tables.
    """
    with open_database(results_dir, files) as database:
        return [_judge_one(claim, database) for claim in claims]


def claims_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The rows of :func:`judge` as a typed table.

    A column of nothing but empty cells keeps its type.
    """
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in CLAIM_COLUMNS.items()}
    )


def count_verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How many claims of each kind have each verdict."""
    return {
        kind: {
            verdict: sum((row["kind"], row["verdict"]) == (kind, verdict) for row in rows)
            for verdict in VERDICTS
        }
        for kind in KINDS
    }


def _judge_one(claim: Claim, database: Database) -> dict[str, Any]:
    value: float | None = None
    fidelity: Fidelity | None = None
    try:
        tables = database.named(claim.settings.query)
        try:
            points = _points(claim, database.query(claim.settings.query), tables)
            value, finding = _find(claim, points)
            fidelity = _lowest(points)
            finding = limit_by_fidelity(claim, finding, fidelity)
        except NotAvailable as missing:
            finding = Finding("not attempted", str(missing))
    except ClaimError as error:
        raise ClaimError(f"claim {claim.id}: {error}") from None
    return _row(claim, value, fidelity, finding, tables)


def _points(claim: Claim, found: pa.Table, tables: Sequence[str]) -> list[dict[str, Any]]:
    """The rows that the query finds, checked.

    Checked are their columns, how many they are, and that every value is a finite
    number.
    """
    trend = claim.settings.comparison == "trend"
    columns = _TREND_COLUMNS if trend else _VALUE_COLUMNS
    if sorted(found.column_names) != sorted(columns):
        raise ClaimError(
            f"query: gives the columns {', '.join(found.column_names)}; allowed:"
            f" {', '.join(columns)}"
        )
    where = f" in {', '.join(tables)}" if tables else ""
    if not found.num_rows:
        raise NotAvailable(f"the query finds no row{where}")
    if not trend and found.num_rows != 1:
        raise ClaimError(f"query: gives {found.num_rows} rows; allowed: one")
    points: list[dict[str, Any]] = found.to_pylist()
    for point in points:
        for column in columns[:-1]:
            point[column] = _number(point[column], column)
    if trend:
        return _distinct([point for point in points if point["ours"] is not None])
    if points[0]["ours"] is None:
        raise NotAvailable(f"the query finds no value{where}")
    return points


def _distinct(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of a trend, checked: each has an x of its own."""
    seen = set()
    for point in points:
        if point["x"] is None:
            raise ClaimError("query: x is None; allowed: a number")
        if point["x"] in seen:
            raise ClaimError(f"query: gives two rows for x = {point['x']:g}; allowed: one")
        seen.add(point["x"])
    return points


def _number(value: Any, column: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ClaimError(f"query: {column} is {value!r}; allowed: a number") from None
    if not math.isfinite(number):
        raise NotAvailable(
            f"{column} is not a finite number (nothing measured, or a division by zero)"
        )
    return number


def _find(claim: Claim, points: list[dict[str, Any]]) -> tuple[float, Finding]:
    if claim.settings.comparison == "trend":
        return compare_trend(claim, [(point["x"], point["ours"]) for point in points])
    value = points[0]["ours"]
    return value, compare(claim, value)


def _lowest(points: list[dict[str, Any]]) -> Fidelity | None:
    """The least faithful origin among the rows.

    None where one of them has none.
    """
    found = [point["fidelity"] for point in points]
    for fidelity in found:
        if fidelity is not None and fidelity not in FIDELITIES:
            raise ClaimError(f"query: fidelity is {fidelity!r}; allowed: {', '.join(FIDELITIES)}")
    return None if None in found else min(found, key=FIDELITIES.index)


def _row(
    claim: Claim,
    value: float | None,
    fidelity: Fidelity | None,
    finding: Finding,
    tables: Sequence[str],
) -> dict[str, Any]:
    settings = claim.settings
    bound = {"at_most": "at most ", "at_least": "at least "}.get(settings.comparison, "")
    ours_unit = "last over first" if settings.comparison == "trend" else claim.unit
    return {
        "claim": claim.id,
        "kind": settings.kind,
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
        "notes": settings.notes,
        "tables": ", ".join(tables),
        "query": settings.query.strip(),
    }
