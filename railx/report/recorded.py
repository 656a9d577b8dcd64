"""The page of verdicts that a run has recorded, without that run's tables.

It needs the claims and the recorded verdicts alone, which are in the repository: each
value, interval, fidelity and verdict, and the figure of all claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from railx.evidence import (
    Claim,
    Recorded,
    claims_table,
    judge,
    load_claims,
    published_tables,
    read_expected,
    read_papers,
)
from railx.evidence.verdicts import number_text
from railx.figures import draw_figure, figure_of
from railx.io import write_json, write_table
from railx.report.entries import ReportFigure
from railx.report.page import write_report

#: Height of the figure of a paper's claims.
_PAPER_INCHES = 7.5
_REASON = "as recorded; the page of a run says why"


def recorded_rows(
    claims: Sequence[Claim], recorded: Mapping[str, Recorded], folder: Path
) -> list[dict[str, Any]]:
    """A row of the claims table for each claim, with its recorded verdict.

    ``folder`` is empty: a claim that was not recorded is not here.
    """
    rows = []
    for claim, row in zip(claims, judge(claims, folder, ()), strict=True):
        result = recorded.get(claim.id)
        if result is not None and result.ours is not None:
            values = ("ours", "low", "high", "samples", "fidelity")
            row |= {value: getattr(result, value) for value in values}
            row["ours_text"] = number_text(result.ours, claim.unit)
        if result is not None:
            reason = row["reason"] if result.verdict == "not testable" else _REASON
            row |= {"verdict": result.verdict, "reason": reason}
        rows.append(row)
    return rows


def write_recorded_report(
    path: str | Path, experiment: str, resources: Path, commit: str, date: str
) -> None:
    """Write the page of the verdicts in ``resources``/expected/``experiment``.yaml.

    ``commit`` and ``date`` are those of that file.
    """
    published = resources / "published"
    papers = resources / "papers.yaml"
    claims = load_claims(resources / "claims", published, papers)
    recorded = read_expected(resources / "expected" / f"{experiment}.yaml")
    with TemporaryDirectory(prefix="railx-recorded-") as name:
        folder = Path(name) / experiment
        table = folder / "evidence" / "claims.parquet"
        table.parent.mkdir(parents=True)
        write_table(table, claims_table(recorded_rows(claims, recorded, folder)))
        read = read_papers(papers)
        figures = [_claims_figure(folder, table, paper) for paper in (None, *read)]
        write_json(folder / "config.json", {"recorded": f"resources/expected/{experiment}.yaml"})
        write_json(folder / "provenance.json", _provenance(commit, date))
        write_report(
            path,
            experiment=experiment,
            papers=read,
            claims=table,
            figures=figures,
            tables=[],
            published=published_tables(published),
            judged=claims,
            config=folder / "config.json",
            provenance=folder / "provenance.json",
        )


def _claims_figure(folder: Path, table: Path, paper: str | None) -> ReportFigure:
    """The figure of all claims, or of a paper's published ones."""
    name = f"claims_{paper}" if paper else "all_claims"
    drawn = folder / "figure" / f"{name}.svg"
    drawn.parent.mkdir(exist_ok=True)
    settings: type[Any] = figure_of("all_claims").settings
    height = {"height_inches": _PAPER_INCHES} if paper else {}
    draw_figure(settings(figure="all_claims", paper=paper, **height), {"claims": [table]}, drawn)
    files = map(drawn.with_suffix, (".json", ".dark.svg", ".narrow.svg"))
    return ReportFigure(name, drawn, *files)


def _provenance(commit: str, date: str) -> dict[str, Any]:
    """The provenance of the run: the commit of its recorded verdicts."""
    unknown = "not recorded"
    return {
        "commit": commit, "dirty": False, "created_utc": date, "project": unknown,
        "python": unknown, "system": "", "machine": "", "cpu": unknown, "cores": "unknown",
        "memory_gb": None, "gpus": [], "packages": {},
    }  # fmt: skip
