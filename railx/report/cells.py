"""Values as a reader sees them in a table, and the rows of tables and configs.

Claims of other experiments stand beside those of this one. Their tables were made at
other times, perhaps by other versions: what cannot be read is named with the reason,
and never ends the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from railx.evidence import VERDICTS
from railx.io import dotted_leaves, read_json, read_table
from railx.report.claims import count
from railx.report.entries import OtherResult, ReportTable

#: Rows of a result table that the page prints; the file has all.
MOST_ROWS = 40


def table_rows(table: ReportTable) -> dict[str, Any]:
    """Columns and first rows of a Parquet table, or keys and values of JSON."""
    if table.path.suffix == ".json":
        leaves = dotted_leaves(read_json(table.path))
        rows = [{"quantity": key, "value": value} for key, value in leaves]
        return {"columns": ["quantity", "value"], "rows": rows[:MOST_ROWS], "count": len(rows)}
    arrow = read_table(table.path, list(table.columns) or None)
    return {
        "columns": list(arrow.column_names),
        "rows": arrow.slice(0, MOST_ROWS).to_pylist(),
        "count": arrow.num_rows,
    }


def cell(value: Any) -> str:
    """A value for a reader: six digits, thousands separators, a dash for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return str(value)


def cut(text: str, most: int) -> str:
    """A text of about ``most`` characters at most, with the number of the others."""
    if len(text) <= most:
        return text
    return f"{text[:most].rstrip()} ... ({len(text) - most:,} characters more are left out here)"


def words(value: Any) -> str:
    """A value of a provenance file in one line, nested ones as ``key value``."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key.replace('_', ' ')} {words(item)}"
            for key, item in value.items()
            if item is not None
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(words, value))
    return cell(value)


_COLUMNS = ("claim", "kind", "verdict", "ours_text", "fidelity")


def read_others(others: Sequence[OtherResult]) -> list[dict[str, Any]]:
    """Per result: name, recorded, commit, dirty, created, counts, verdicts, trouble.

    ``verdicts`` holds the rows by claim, ``counts`` the published ones by verdict,
    ``trouble`` why nothing could be read (empty: all was).
    """
    return [_read(other) for other in others]


def _read(other: OtherResult) -> dict[str, Any]:
    rows, trouble = _rows(other)
    provenance: Any = None
    if other.provenance is not None and other.provenance.is_file():
        with suppress(ValueError):
            provenance = read_json(other.provenance)
    provenance = provenance if isinstance(provenance, dict) else {}
    return {
        "name": other.name,
        "recorded": other.recorded,
        "commit": str(provenance.get("commit") or ""),
        "dirty": bool(provenance.get("dirty")),
        "created": str(provenance.get("created_utc") or ""),
        "machine": str(provenance.get("cpu") or ""),
        "counts": count(row for row in rows if row["kind"] == "published"),
        "fidelities": sorted({row["fidelity"] for row in rows if row["fidelity"]}),
        "verdicts": {row["claim"]: row for row in rows},
        "trouble": trouble,
    }


def _rows(other: OtherResult) -> tuple[list[dict[str, Any]], str]:
    try:
        table = read_table(other.claims)
    except (OSError, ValueError) as error:
        return [], f"not read: {' '.join(str(error).split())}"
    missing = [column for column in _COLUMNS if column not in table.column_names]
    if missing:
        return [], f"not read: the claims table has no {', '.join(missing)}"
    rows: list[dict[str, Any]] = table.select(list(_COLUMNS)).to_pylist()
    unknown = sorted({str(row["verdict"]) for row in rows} - set(VERDICTS))
    if unknown:
        return [], f"not read: verdict {', '.join(unknown)} is not known here"
    return rows, ""
