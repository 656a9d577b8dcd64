"""Rendering the report: rows of the claims table, images and tables put into one page
that holds everything it needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from railx.evidence import VERDICTS
from railx.figures.fidelity import FIDELITY_MEANING
from railx.io import read_json, read_table, write_text
from railx.report.entries import ReportFigure, ReportTable, image_source

__all__ = ["write_report"]

_CLAIM_COLUMNS = (
    "claim",
    "paper",
    "place",
    "sentence",
    "published_text",
    "ours_text",
    "fidelity",
    "fidelity_required",
    "verdict",
    "reason",
    "table",
)
_MOST_ROWS = 40


def write_report(
    path: str | Path,
    *,
    experiment: str,
    claims: str | Path,
    figures: Sequence[ReportFigure],
    tables: Sequence[ReportTable],
    config: str | Path,
    provenance: str | Path,
) -> None:
    """Write the report of ``experiment`` as one HTML file, atomically.

    ``claims`` is the claims table (its ``expression`` column is shown where it has
    one), ``config`` the resolved config and ``provenance`` the result of
    ``collect_provenance``, both JSON. Raises ValueError naming the file that lacks a
    column or holds an unknown verdict or fidelity.
    """
    rows = _claim_rows(Path(claims))
    settings = read_json(config)
    anchors = {table.name: f"table-{index}" for index, table in enumerate(tables)}
    page = _environment().get_template("report.html.jinja")
    html = page.render(
        experiment=experiment,
        verdicts=[
            (verdict, sum(row["verdict"] == verdict for row in rows)) for verdict in VERDICTS
        ],
        papers=_by_paper(rows),
        claim_count=len(rows),
        figures=[{"entry": figure, "source": image_source(figure.image)} for figure in figures],
        tables=[
            {"entry": table, "anchor": anchors[table.name], **_table(table)} for table in tables
        ],
        anchors=anchors,
        config=json.dumps(settings, indent=2, ensure_ascii=False),
        seeds=list(_seeds(settings)),
        provenance=read_json(provenance),
        fidelities=FIDELITY_MEANING,
    )
    write_text(path, html)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("railx.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = lambda text: text.replace(" ", "-")
    environment.filters["cell"] = _cell
    environment.tests["number"] = lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return environment


def _claim_rows(path: Path) -> list[dict[str, Any]]:
    table = read_table(path)
    missing = [column for column in _CLAIM_COLUMNS if column not in table.column_names]
    if missing:
        raise ValueError(
            f"{path}: column {', '.join(missing)} is missing; found:"
            f" {', '.join(table.column_names)}"
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        if row["verdict"] not in VERDICTS:
            raise ValueError(
                f"{path}: claim {row['claim']}: verdict {row['verdict']!r}; allowed:"
                f" {', '.join(VERDICTS)}"
            )
        if row["fidelity"] is not None and row["fidelity"] not in FIDELITY_MEANING:
            raise ValueError(
                f"{path}: claim {row['claim']}: fidelity {row['fidelity']!r}; allowed:"
                f" {', '.join(FIDELITY_MEANING)}"
            )
        row.setdefault("expression", None)
        row.setdefault("selection", None)
        row["tables"] = [name.strip() for name in (row["table"] or "").split(",") if name.strip()]
    return rows


def _by_paper(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    papers: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        papers.setdefault(row["paper"], []).append(row)
    return papers


def _table(table: ReportTable) -> dict[str, Any]:
    """Columns and the first rows of a Parquet table, or the keys and values of a JSON
    object.
    """
    if table.path.suffix == ".json":
        rows = [{"quantity": key, "value": value} for key, value in _flat(read_json(table.path))]
        columns = ["quantity", "value"]
    else:
        arrow = read_table(table.path, list(table.columns) or None)
        columns, rows = list(arrow.column_names), arrow.slice(0, _MOST_ROWS).to_pylist()
        return {"columns": columns, "rows": rows, "count": arrow.num_rows}
    return {"columns": columns, "rows": rows[:_MOST_ROWS], "count": len(rows)}


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings with dotted keys."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _seeds(config: Any) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in _flat(config) if key.rsplit(".", 1)[-1] == "seed")


def _cell(value: Any) -> str:
    """A value for a reader: six digits, thousands separators, a dash for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e6 and abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return str(value)
