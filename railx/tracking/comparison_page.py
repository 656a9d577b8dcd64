"""A comparison of two invocations as text and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from railx.io import write_text
from railx.tracking.compare import only_changed

__all__ = ["comparison_lines", "write_comparison"]

#: The parts of a comparison: key, heading, columns.
_PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("config", "Config that changed", ("key", "a", "b")),
    ("code", "Code that changed", ("module", "a", "b", "stages")),
    ("packages", "Packages that changed", ("package", "a", "b")),
    ("stages", "Results", ("stage", "name", "state", "because", "a_seconds", "b_seconds")),
    ("verdicts", "Verdicts", ("claim", "a", "b", "a_ours", "b_ours", "published")),
    (
        "numbers",
        "Numbers",
        (
            *("stage", "name", "metric", "a", "b", "ratio"),
            *("a_low", "a_high", "b_low", "b_high", "moved"),
        ),
    ),
)  # fmt: skip

_RULE = (
    "A number counts as moved where the intervals of both sides lie apart, or, without"
    " intervals, where it differs at all."
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{
  font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
}}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }}
th, td {{
  text-align: left; vertical-align: top;
  padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884;
}}
td {{ overflow-wrap: anywhere; min-width: 4rem; max-width: 28rem; }}
summary {{ cursor: pointer; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def comparison_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """The comparison for a terminal: what there is of it, part by part."""
    yield f"a  {_side(comparison['a'])}"
    yield f"b  {_side(comparison['b'])}"
    for key, heading, columns in _PARTS:
        rows = [[_words(row[column]) for column in columns] for row in comparison[key]]
        yield ""
        yield f"{heading}: {len(rows) or 'none'}"
        if rows:
            yield from _columns([list(columns), *rows])


def write_comparison(path: Any, comparison: Mapping[str, Any]) -> None:
    """Write the comparison as a page: what changed first, everything below."""
    title = f"{comparison['a']['invocation']} against {comparison['b']['invocation']}"
    changed = only_changed(comparison)
    parts = [
        f"<p>a: {_html(_side(comparison['a']))}<br>b: {_html(_side(comparison['b']))}</p>",
        f"<p>{_RULE}</p>",
    ]
    headings = {
        "stages": "Results that were made anew",
        "verdicts": "Verdicts that flipped",
        "numbers": "Numbers that moved",
    }
    for key, heading, columns in _PARTS:
        rows = changed[key]
        parts.append(f"<h2>{_html(headings.get(key, heading))}: {len(rows) or 'none'}</h2>")
        parts += [_table(columns, rows)] if rows else []
    for key, heading, columns in _PARTS:
        if key in headings:
            rows = comparison[key]
            parts.append(
                f"<details><summary>All {_html(heading.lower())} ({len(rows)})</summary>"
                f"{_table(columns, rows)}</details>"
            )
    write_text(path, _PAGE.format(title=_html(title), body="\n".join(parts)))


def _side(about: Mapping[str, Any]) -> str:
    commit = (about["commit"] or "unknown")[:12]
    return f"{about['invocation']} ({about['logged_utc'][:19]} UTC, commit {commit})"


def _words(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return str(value)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{_html(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_html(_words(row[column]))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _html(text: str) -> str:
    from html import escape

    return escape(text)
