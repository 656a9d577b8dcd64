"""Stage report: verdicts, figures, tables, config and provenance -> one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.io import write_json
from railx.provenance import collect_provenance
from railx.report import ReportTable, figure_entry, write_report

__all__ = ["run"]


def run(
    *,
    experiment: str,
    results: str | Path,
    settings: Mapping[str, Any],
    claims_path: str | Path,
    figures: Sequence[Mapping[str, Any]],
    tables: Sequence[Mapping[str, Any]],
    config_path: str | Path,
    provenance_path: str | Path,
    report_path: str | Path,
) -> None:
    """Write the resolved config and the provenance beside the report, then the report.

    ``figures``: kind, name, image, tables; ``tables``: title, path (below
    ``results``), columns.
    """
    write_json(config_path, settings)
    write_json(provenance_path, collect_provenance())
    folder = Path(results)
    write_report(
        report_path,
        experiment=experiment,
        claims=claims_path,
        figures=[
            figure_entry(
                figure["kind"],
                figure["name"],
                figure["image"],
                [str(Path(table).relative_to(folder)) for table in figure["tables"]],
            )
            for figure in figures
        ],
        tables=[
            ReportTable(
                table["title"],
                str(Path(table["path"]).relative_to(folder)),
                Path(table["path"]),
                tuple(table["columns"]),
            )
            for table in tables
        ],
        config=config_path,
        provenance=provenance_path,
    )
