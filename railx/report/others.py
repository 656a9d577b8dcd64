"""Verdicts of other experiments beside those of this one.

Their claims tables were made at other times, perhaps by other versions: what cannot be
read is named with the reason, and never ends the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from railx.evidence import VERDICTS
from railx.io import read_json, read_table
from railx.report.claims import count
from railx.report.entries import OtherResult

__all__ = ["read_others"]

_COLUMNS = ("claim", "kind", "verdict", "ours_text", "fidelity")


def read_others(others: Sequence[OtherResult]) -> list[dict[str, Any]]:
    """Per result: name, recorded, commit, dirty, created, counts, verdicts, trouble.

    ``verdicts`` holds the rows by claim, ``counts`` the published ones by verdict,
    ``trouble`` why nothing could be read (empty: all was).
    """
    return [_read(other) for other in others]


def _read(other: OtherResult) -> dict[str, Any]:
    rows, trouble = _rows(other)
    provenance: dict[str, Any] = {}
    if other.provenance is not None and other.provenance.is_file():
        try:
            content = read_json(other.provenance)
        except ValueError:
            content = None
        provenance = content if isinstance(content, dict) else {}
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
