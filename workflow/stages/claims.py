"""Stage claims: result tables and published numbers -> verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from railx.evidence import claims_table, count_verdicts, judge, load_claims
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
) -> dict[str, dict[str, int]]:
    """Judge every claim from ``tables`` (files under ``results``); write the verdicts
    and how many claims of each kind have each of them, return the counts.
    """
    files = [str(Path(table).relative_to(results)) for table in tables]
    rows = judge(load_claims(claims, published), results, files)
    write_table(claims_path, claims_table(rows))
    counts = count_verdicts(rows)
    write_json(counts_path, counts)
    return counts
