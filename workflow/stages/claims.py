"""Stage claims: result tables and published numbers -> verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from railx.evidence import VERDICTS, claims_table, judge, load_claims
from railx.io import write_json, write_table

__all__ = ["run"]


def run(
    claims: str | Path,
    published: str | Path,
    results: str | Path,
    tables: Sequence[str | Path],
    *,
    claims_path: str | Path,
    counts_path: str | Path,
) -> dict[str, int]:
    """Judge every claim from ``tables`` (files under ``results``); write the verdicts
    and their counts, return the counts.
    """
    rows = judge(
        load_claims(claims, published),
        results,
        {str(Path(table).relative_to(results)) for table in tables},
    )
    write_table(claims_path, claims_table(rows))
    verdicts = [row["verdict"] for row in rows]
    counts: dict[str, int] = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    write_json(counts_path, counts)
    return counts
