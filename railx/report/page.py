"""Rendering the report: one page that holds everything it needs.

Rows of the claims table, images and tables are put into it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from railx.evidence import CLAIM_COLUMNS, KINDS, VERDICTS, table_name
from railx.figures.fidelity import FIDELITY_MEANING
from railx.io import read_json, read_table, write_text
from railx.report.entries import ReportFigure, ReportTable, image_source

__all__ = ["write_report"]

#: Heading, explanation and what the number held against ours is, for each kind of
#: claim, in the order of the page.
_KIND_WORDS = {
    "published": (
        "Published claims",
        "What a paper states, held against its own number.",
        "Published",
    ),
    "derived": (
        "Derived claims",
        "What follows from a paper's design. This project states it, the paper does not.",
        "Expected",
    ),
    "check": (
        "Checks",
        "This project's own tables held against one another.",
        "Expected",
    ),
}
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

    ``claims`` is the claims table, ``config`` the resolved config and ``provenance``
    the result of ``collect_provenance``, both JSON. Raises ValueError naming the file
    that lacks a column or holds an unknown kind, verdict or fidelity.
    """
    rows = _claim_rows(Path(claims))
    settings = read_json(config)
    anchors = {table.name: f"table-{index}" for index, table in enumerate(tables)}
    # A query names a table in SQL, a figure names its file: both lead to the table.
    anchors |= {table_name(name): anchor for name, anchor in anchors.items() if "/" in name}
    page = _environment().get_template("report.html.jinja")
    html = page.render(
        experiment=experiment,
        verdicts=VERDICTS,
        kinds=[_kind(kind, rows) for kind in KINDS],
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
    environment.filters["quoted"] = _quoted
    environment.tests["number"] = lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return environment


def _claim_rows(path: Path) -> list[dict[str, Any]]:
    table = read_table(path)
    missing = [column for column in CLAIM_COLUMNS if column not in table.column_names]
    if missing:
        raise ValueError(
            f"{path}: column {', '.join(missing)} is missing; found:"
            f" {', '.join(table.column_names)}"
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for column, allowed in (
            ("kind", KINDS),
            ("verdict", VERDICTS),
            ("fidelity", (*FIDELITY_MEANING, None)),
        ):
            if row[column] not in allowed:
                raise ValueError(
                    f"{path}: claim {row['claim']}: {column} {row[column]!r}; allowed:"
                    f" {', '.join(word for word in allowed if word)}"
                )
        row["tables"] = [name for name in row["tables"].split(", ") if name]
    return rows


def _kind(kind: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the page says of the claims of one kind: all together and by paper."""
    own = [row for row in rows if row["kind"] == kind]
    papers: dict[str, list[dict[str, Any]]] = {}
    for row in own:
        papers.setdefault(row["paper"], []).append(row)
    title, meaning, number = _KIND_WORDS[kind]
    return {
        "kind": kind,
        "title": title,
        "meaning": meaning,
        "number": number,
        "count": len(own),
        "counts": _counts(own),
        "papers": {
            paper: {"rows": claims, "counts": _counts(claims)} for paper, claims in papers.items()
        },
    }


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS}


def _quoted(text: str) -> str:
    """A text as one argument of a shell, in double quotes."""
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'


def _table(table: ReportTable) -> dict[str, Any]:
    """Columns and first rows of a Parquet table, or keys and values of JSON."""
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
