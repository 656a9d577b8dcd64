"""Verdicts on claims from the tables of an experiment, and what can be wrong with the
query of a claim before there is any result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from railx.evidence.claims import KINDS, Claim, NotTestable
from railx.evidence.database import Database, open_database, open_schemas
from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.expected import Recorded
from railx.evidence.lineage import Lineage
from railx.evidence.verdicts import (
    REPEATED,
    VERDICT_GROUPS,
    VERDICTS,
    Finding,
    compare,
    compare_assumptions,
    compare_trend,
    counted,
    limit_by_fidelity,
    limit_by_lineage,
    limit_by_size,
    number_text,
    without_repeats,
)
from railx.intervals import FEWEST, Estimate, estimate, weighted_mean
from railx.io import FIDELITIES, Fidelity

#: Columns of evidence/claims.parquet that hold no text.
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("published", "ours", "low", "high", "tolerance"), pa.float64()),
    **dict.fromkeys(("samples", "set_aside"), pa.int64()),
    "headline": pa.bool_(),
}
#: Columns of evidence/claims.parquet.
CLAIM_COLUMNS: dict[str, pa.DataType] = {
    name: _TYPES.get(name, pa.string())
    for name in (
        *("claim", "kind", "headline", "paper", "place", "sentence", "published"),
        *("published_text", "ours", "low", "high", "ours_text", "samples", "set_aside"),
        *("comparison", "tolerance", "unit", "fidelity", "fidelity_required", "verdict"),
        *("reason", "needs", "recorded_in", "recorded_verdict", "recorded_text", "inputs"),
        *("insensitive", "source", "confidence", "notes", "tables", "query"),
    )
}
#: Columns that every query gives, and those that it may give besides.
_VALUE_COLUMNS = ("ours", "fidelity")
_TREND_COLUMNS = ("x", "ours", "fidelity")
_SAMPLE_COLUMNS = ("sample", "disturbed", "weight")
_ASSUMPTION_COLUMNS = ("assumption", "ours", "fidelity")


@dataclass(frozen=True)
class _Evidence:
    """The checked result of a query.

    Points are what a trend runs over (0 for a single value) and the values there by
    repeat; a value that was not repeated has the name None. ``assumptions`` holds the
    values of a claim that turns on them, which has no points; ``weights`` those of
    batches. ``repeated`` says whether the query names repeats. ``set_aside`` is how
    many repeats were set aside, at one point of a trend or more; ``set_aside_rows``
    counts each point.
    """

    points: tuple[tuple[float, dict[Hashable, float]], ...]
    assumptions: Mapping[str, Estimate]
    weights: Mapping[Hashable, float]
    fidelity: Fidelity | None
    repeated: bool
    set_aside: int
    set_aside_rows: int
    smallest: Mapping[str, float]


def judge(
    claims: Sequence[Claim],
    results_dir: str | Path,
    files: Iterable[str],
    lineage: Lineage | None = None,
    recorded: Mapping[str, Mapping[str, Recorded]] | None = None,
) -> list[dict[str, Any]]:
    """One row per claim with the columns of evidence/claims.parquet.

    The verdict and its reason follow from the numbers. ``results_dir`` holds the tables
    of one experiment. ``files`` names those that count (paths below it), so that what
    an earlier run left behind proves nothing. ``lineage`` tells the published numbers
    that a value rests on. Where a table or a value is missing the claim is not judged
    here: the reason names the experiment of ``recorded`` (its verdicts by claim) that
    decides it, or says what is missing. Raises
    :class:`ClaimError` (one line: claim, key, what is allowed) where a query does not
    fit the tables.
    """
    with open_database(results_dir, files) as database:
        return [_judged(claim, database, lineage, recorded or {}) for claim in claims]


def claims_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The rows of :func:`judge` as a typed table; empty columns keep their type."""
    schema = pa.schema(list(CLAIM_COLUMNS.items()))
    return pa.Table.from_pylist(rows, schema)


def count_verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How many claims of each kind have each verdict."""
    return {
        kind: {
            verdict: sum((row["kind"], row["verdict"]) == (kind, verdict) for row in rows)
            for verdict in VERDICTS
        }
        for kind in KINDS
    }


def check_columns(claim: Claim, columns: Sequence[str]) -> None:
    """ClaimError where a query gives other columns than its comparison needs."""
    needed = _TREND_COLUMNS if claim.settings.comparison == "trend" else _VALUE_COLUMNS
    if claim.settings.chosen is not None:
        needed = _ASSUMPTION_COLUMNS
    always = [*needed, *claim.settings.requires]
    repeated = [name for name in columns if name in _SAMPLE_COLUMNS]
    if sorted(columns) != sorted([*always, *repeated]) or (repeated and "sample" not in repeated):
        allowed = f"{', '.join(always)}, and of what was repeated sample, with disturbed or weight"
        raise ClaimError(f"query: gives the columns {', '.join(columns)}; allowed: {allowed}")


def _judged(
    claim: Claim,
    database: Database,
    lineage: Lineage | None,
    recorded: Mapping[str, Mapping[str, Recorded]],
) -> dict[str, Any]:
    if claim.settings.not_testable is not None:
        return _row(claim, Finding("not testable", claim.settings.not_testable.reason))
    query = claim.settings.query or ""
    with _naming(claim):
        tables = database.named(query)
        inputs = () if lineage is None else lineage.of(claim, tables)
        try:
            finding, value, evidence = _find(claim, _evidence(claim, database.query(query), tables))
            if lineage is not None:
                finding = limit_by_lineage(finding, lineage.limit(claim, inputs))
            return _row(claim, finding, value, evidence, tables, inputs=inputs)
        except NotAvailable as missing:
            # Tables of recordings are there in every run, if only empty.
            waiting = None if missing.table_is_missing else claim.settings.unmeasured
            there = _elsewhere(claim, recorded)
            if there:
                finding = Finding("not here", f"decided in experiment {there['recorded_in']}")
            elif waiting is not None:
                finding = Finding("not testable", waiting.reason)
            else:
                finding = Finding("not here", f"{missing}; no recorded experiment decides it")
            row = _row(claim, finding, tables=tables, lacking=waiting, inputs=inputs)
            return row | there


def _elsewhere(claim: Claim, recorded: Mapping[str, Mapping[str, Recorded]]) -> dict[str, Any]:
    """The columns of a claim that another experiment decides; none where none does."""
    for experiment, verdicts in recorded.items():
        other = verdicts.get(claim.id)
        if other is not None and other.verdict not in VERDICT_GROUPS["not judged"]:
            return {
                "recorded_in": experiment,
                "recorded_verdict": other.verdict,
                "recorded_text": "" if other.ours is None else number_text(other.ours, claim.unit),
            }
    return {}


def _find(claim: Claim, evidence: _Evidence) -> tuple[Finding, Estimate | None, _Evidence]:
    # Only what runs on a machine is disturbed; a simulation has seeds.
    ran = evidence.fidelity in REPEATED or evidence.set_aside
    repeats = "repeats" if ran else "batches" if evidence.weights else "seeds"
    trend = claim.settings.comparison == "trend"
    value: Estimate | None = None
    if not all(values for _, values in evidence.points):
        few = f"no {repeats.removesuffix('s')} is left, where a verdict needs {FEWEST}"
        finding = Finding("undecided", f"too few: {few}")
    else:
        if evidence.assumptions:
            chosen = claim.settings.chosen or ""
            value = evidence.assumptions[chosen]
            finding = compare_assumptions(claim, evidence.assumptions, chosen)
        elif trend:
            value, finding = compare_trend(claim, evidence.points, repeats)
        else:
            ((_, values),) = evidence.points
            if evidence.weights:
                weights = [evidence.weights[name] for name in values]
                value = weighted_mean(list(values.values()), weights)
            elif evidence.repeated:
                value = estimate(list(values.values()))
            else:
                value = Estimate(values[None])
            finding = compare(claim, value, repeats)
        finding = without_repeats(finding, value, evidence.fidelity)
        finding = limit_by_fidelity(claim, finding, evidence.fidelity)
        finding = limit_by_size(claim, finding, evidence.smallest)
    if evidence.set_aside:
        where = f" at {counted(evidence.set_aside_rows, 'points')}" if trend else ""
        aside = f"{counted(evidence.set_aside, repeats)} set aside{where}"
        reason = f"{finding.reason}; {aside} because the machine was busy"
        finding = Finding(finding.verdict, reason)
    return finding, value, evidence


def _evidence(claim: Claim, result: pa.Table, tables: Sequence[str]) -> _Evidence:
    """The rows of a query, checked: their columns, their number, finite values.

    Rows that are set aside are only counted.
    """
    check_columns(claim, result.column_names)
    rows: list[dict[str, Any]] = result.to_pylist()
    undisturbed = [row for row in rows if not row.get("disturbed")]
    set_aside = (
        len({row["sample"] for row in rows if row.get("disturbed")}),
        len(rows) - len(undisturbed),
    )
    if claim.settings.chosen is not None:
        return _assumptions(claim, undisturbed, set_aside)
    trend, repeated = claim.settings.comparison == "trend", "sample" in result.column_names
    where = f" in {', '.join(tables)}" if tables else ""
    if not result.num_rows:
        raise NotAvailable(f"the query finds no row{where}")
    if not trend and not repeated and result.num_rows != 1:
        raise ClaimError(f"query: gives {result.num_rows} rows; allowed: one")
    points: dict[float, dict[Hashable, float]] = {}
    valued = []
    for row in rows:
        x = _number(row["x"], "x") if trend else 0.0
        if x is None:
            raise ClaimError("query: x is None; allowed: a number")
        if row.get("disturbed"):
            points.setdefault(x, {})
            continue
        value = _number(row["ours"], "ours")
        if value is not None:
            valued.append(row)
            _add(points.setdefault(x, {}), row, value, trend=trend, repeated=repeated)
    if not valued and undisturbed:
        raise NotAvailable(f"the query finds no value{where}")
    return _Evidence(
        tuple(sorted(points.items())),
        {},
        {row["sample"]: row["weight"] for row in valued if row.get("weight") is not None},
        _lowest(valued),
        repeated,
        *set_aside,
        _smallest(claim, valued),
    )


def _assumptions(
    claim: Claim, rows: Sequence[Mapping[str, Any]], set_aside: tuple[int, int]
) -> _Evidence:
    """The values of a claim by assumption; the chosen one is among them.

    A value of several batches is their mean by weight, with its interval.
    """
    batches: dict[str, dict[Any, tuple[float, float]]] = {}
    valued = []
    for row in rows:
        name, value = str(row["assumption"]), _number(row["ours"], "ours")
        of_name, batch = batches.setdefault(name, {}), row.get("sample")
        if batch in of_name:
            parts = f"assumption = {name}" + (f" and sample = {batch}" if "sample" in row else "")
            raise ClaimError(f"query: gives two rows for {parts}; allowed: one")
        if value is not None:
            of_name[batch] = (value, row.get("weight", 1.0))
            valued.append(row)
    values = {
        name: weighted_mean(*zip(*of_name.values(), strict=True))
        if None not in of_name
        else Estimate(of_name[None][0])
        for name, of_name in batches.items()
        if of_name
    }
    if not values:
        raise NotAvailable("the query finds no row")
    if claim.settings.chosen not in values:
        missing = f"no value for the assumption {claim.settings.chosen}"
        raise NotAvailable(f"the query finds {missing}, but for {', '.join(values)}")
    smallest = _smallest(claim, valued)
    return _Evidence((), values, {}, _lowest(valued), False, *set_aside, smallest)


def _smallest(claim: Claim, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The smallest value of each required column; 0 where a row has none."""
    return {
        column: min((_number(row[column], column) or 0.0 for row in rows), default=0.0)
        for column in claim.settings.requires
    }


def _add(
    values: dict[Hashable, float],
    row: Mapping[str, Any],
    value: float,
    *,
    trend: bool,
    repeated: bool,
) -> None:
    """Put a value beside the others of its point, under the name of its repeat."""
    name = row["sample"] if repeated else None
    if repeated and name is None:
        raise ClaimError("query: sample is None; allowed: the number or name of a repeat")
    if name in values:
        parts = [f"x = {row['x']:g}"] if trend else []
        parts += [f"sample = {name}"] if repeated else []
        raise ClaimError(f"query: gives two rows for {' and '.join(parts)}; allowed: one")
    values[name] = value


def _number(value: Any, column: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ClaimError(f"query: {column} is {value!r}; allowed: a number") from None
    if not math.isfinite(number):
        causes = "nothing measured, or a division by zero"
        raise NotAvailable(f"{column} is not a finite number ({causes})")
    return number


def _lowest(rows: Sequence[Mapping[str, Any]]) -> Fidelity | None:
    """The least faithful origin among the rows; None where one of them has none."""
    origins = [row["fidelity"] for row in rows]
    for fidelity in origins:
        if fidelity is not None and fidelity not in FIDELITIES:
            raise ClaimError(f"query: fidelity is {fidelity!r}; allowed: {', '.join(FIDELITIES)}")
    return None if None in origins else min(origins, key=FIDELITIES.index, default=None)


def _row(
    claim: Claim,
    finding: Finding,
    value: Estimate | None = None,
    evidence: _Evidence | None = None,
    tables: Sequence[str] = (),
    lacking: NotTestable | None = None,
    inputs: Sequence[str] = (),
) -> dict[str, Any]:
    settings, published = claim.settings, claim.published
    lacking = lacking or settings.not_testable
    bound = {"at_most": "at most ", "at_least": "at least "}.get(settings.comparison, "")
    ours = None if value is None or not math.isfinite(value.value) else value.value
    ends = (None, None) if value is None or ours is None else (value.low, value.high)
    values = vars(settings) | {
        "claim": claim.id,
        "paper": claim.paper,
        "published": published.value if published.available else None,
        "published_text": bound + number_text(published.value, claim.unit)
        if published.available
        else "not available",
        "ours": ours,
        "low": ends[0],
        "high": ends[1],
        "ours_text": "" if ours is None else number_text(ours, claim.unit),
        "samples": None if value is None else value.samples,
        "set_aside": 0 if evidence is None else evidence.set_aside,
        "unit": claim.unit,
        "fidelity": None if evidence is None else evidence.fidelity,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "needs": "" if lacking is None else lacking.needs,
        **dict.fromkeys(("recorded_in", "recorded_verdict", "recorded_text"), ""),
        "inputs": ", ".join(inputs),
        "source": published.source,
        "confidence": published.confidence,
        "tables": ", ".join(tables),
        "query": (settings.query or "").strip(),
    }
    return {name: values[name] for name in CLAIM_COLUMNS}


# Queries before there is any result

_STRINGS = re.compile(r"'(?:[^']|'')*'")
_NUMBERS = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
#: What can be the table of an item, as in network.torus_2d.bounds.
_ITEM_TABLE = re.compile(r"\b(\w+)\.(\w+)\.(\w+)")
#: A column by its number, as in ``order by 2``.
_NUMBERED_COLUMN = re.compile(r"\bby\s+\d", re.IGNORECASE)


def check_queries(claims: Sequence[Claim], declared: Mapping[str, pa.Schema | None]) -> None:
    """Check every query against the tables that a run could have.

    ``declared`` holds their schemas by name, with a star where the name of an item
    stands (``network.*.bounds``). A schema of None is not known beforehand: of a query
    that names such a table only the tables are checked. Raises :class:`ClaimError`, one
    line naming file, claim and what is allowed.
    """
    asked = [
        (claim, _shape(claim.settings.query, declared))
        for claim in claims
        if claim.settings.query is not None
    ]
    named: dict[str, tuple[str, ...]] = {}
    schemas: dict[str, pa.Schema | None] = {}
    with open_schemas({}) as database:
        for claim, shape in asked:
            if shape in named:
                continue
            with _naming(claim):
                tables = named[shape] = database.named(claim.settings.query or "")
                schemas |= {name: _declared(name, declared) for name in tables}
    declared_schemas = {name: schema for name, schema in schemas.items() if schema is not None}
    columns: dict[str, tuple[str, ...]] = {}
    with open_schemas(declared_schemas) as database:
        for claim, shape in asked:
            if not declared_schemas.keys() >= set(named[shape]):
                continue
            with _naming(claim):
                if shape not in columns:
                    columns[shape] = database.columns(claim.settings.query or "", named[shape])
                check_columns(claim, columns[shape])


def _shape(query: str, declared: Collection[str]) -> str:
    """A query without its texts and numbers, items numbered in the order of the text:
    which they are changes neither columns nor what is declared.

    In a query with comments or quoted names a quotation mark may stand for itself.
    """
    if any(mark in query for mark in ("--", "/*", '"', "$")):
        return query
    items: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        stage, item, table = match.groups()
        if f"{stage}.*.{table}" not in declared:
            return match[0]
        return f"{stage}.{items.setdefault(item, len(items))}.{table}"

    shape = _ITEM_TABLE.sub(numbered, _STRINGS.sub("''", query))
    return shape if _NUMBERED_COLUMN.search(shape) else _NUMBERS.sub("0", shape)


def _declared(name: str, declared: Mapping[str, pa.Schema | None]) -> pa.Schema | None:
    parts = name.split(".")
    for pattern, schema in declared.items():
        declared_parts = pattern.split(".")
        if len(parts) == len(declared_parts) and all(
            allowed in ("*", part) for allowed, part in zip(declared_parts, parts, strict=True)
        ):
            return schema
    near = [pattern for pattern in declared if pattern.split(".")[0] == parts[0]]
    shown = ", ".join(pattern.replace("*", "NAME") for pattern in near or declared)
    raise ClaimError(f"query: no stage makes a table {name}; allowed: {shown}")


@contextmanager
def _naming(claim: Claim) -> Iterator[None]:
    """Name the claim in the errors of its query."""
    try:
        yield
    except ClaimError as error:
        raise ClaimError(f"{claim.file}: claim {claim.id}: {error}") from None
