"""A comparison of two invocations as text and as an HTML page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from railx.io import write_text
from railx.text import aligned
from railx.tracking.compare import only_changed

#: Lines of a part on one screen.
_MOST_LINES = 10

#: The parts of a comparison: key, heading, columns.
_PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("config", "Config that changed", ("key", "a", "b")),
    ("code", "Code that changed", ("module", "a", "b", "stages")),
    ("packages", "Packages that changed", ("package", "a", "b")),
    ("stages", "Results", ("stage", "name", "state", "because", "a_seconds", "b_seconds")),
    ("verdicts", "Verdicts", ("claim", "a", "b", "a_ours", "b_ours", "published")),
    ("numbers", "Numbers",
     ("stage", "name", "metric", "a", "b", "ratio",
      "a_low", "a_high", "b_low", "b_high", "timed", "moved")),
)  # fmt: skip

#: Headings of the rows that changed, where a part has others too.
_CHANGED_HEADINGS = {
    "stages": "Results that were made anew",
    "verdicts": "Verdicts that flipped",
    "numbers": "Numbers that moved",
}


def comparison_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """The comparison for a terminal, part by part."""
    yield f"a  {_side(comparison['a'])}"
    yield f"b  {_side(comparison['b'])}"
    for key, heading, columns in _PARTS:
        rows = [[_words(row[column]) for column in columns] for row in comparison[key]]
        yield from ("", f"{heading}: {len(rows) or 'none'}")
        if rows:
            yield from _indented([list(columns), *rows])


def changed_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """What moved, on one screen: verdicts and numbers first, the largest first."""
    changed = only_changed(comparison)
    yield f"a  {_side(comparison['a'])}"
    yield f"b  {_side(comparison['b'])}"
    verdicts = [
        [row["claim"], f"{row['a'] or 'none'} -> {row['b'] or 'none'}",
         f"{row['a_ours'] or '-'} -> {row['b_ours'] or '-'}"]
        for row in changed["verdicts"]
    ]  # fmt: skip
    yield from _screen("Verdicts that flipped", verdicts)
    numbers = [
        [f"{row['stage']}/{row['name']}" if row["name"] else row["stage"], row["metric"],
         f"{_words(row['a']) or 'none'} -> {_words(row['b']) or 'none'}",
         "" if row["ratio"] is None else f"{(row['ratio'] - 1) * 100:+.3g} %"]
        for row in sorted(changed["numbers"], key=_size, reverse=True)
    ]  # fmt: skip
    yield from _screen("Numbers that moved", numbers)
    apart = sum(row["timed"] and row["a"] != row["b"] for row in comparison["numbers"])
    apart -= sum(row["timed"] for row in changed["numbers"])
    if apart:
        yield f"  apart: {apart} times of one run, or within their intervals"
    reasons = Counter(
        (row["stage"], ", ".join(row["because"]) or row["state"]) for row in changed["stages"]
    )
    stages = [[f"{count}", stage, because] for (stage, because), count in reasons.items()]
    yield from _screen("Results made anew", stages, len(changed["stages"]))
    config = [[row["key"], f"{row['a']} -> {row['b']}"[:90]] for row in changed["config"]]
    yield from _screen("Config", config)
    modules = Counter(".".join(row["module"].split(".")[:2]) for row in changed["code"])
    packages = [f"{row['package']} {row['a']} -> {row['b']}" for row in changed["packages"]]
    code = ", ".join(f"{name} {count}" for name, count in modules.most_common(_MOST_LINES))
    yield from ("", f"Modules that changed: {code or 'none'}")
    yield f"Packages that changed: {', '.join(packages[:_MOST_LINES]) or 'none'}"
    yield from ("", "All of it: --json, or as a page: --html FILE")


def _screen(heading: str, rows: Sequence[Sequence[str]], count: int = -1) -> Iterator[str]:
    """A part of the screen: its first rows, and the number of the others."""
    yield from ("", f"{heading}: {(len(rows) if count < 0 else count) or 'none'}")
    if rows:
        yield from _indented([[cell[:60] for cell in row] for row in rows[:_MOST_LINES]])
    if len(rows) > _MOST_LINES:
        yield f"  and {len(rows) - _MOST_LINES} more"


def _size(row: Mapping[str, Any]) -> float:
    """How far a number moved; farthest where one side lacks it."""
    ratio = row["ratio"]
    return math.inf if not ratio or ratio < 0 else abs(math.log(ratio))


def write_comparison(path: Any, comparison: Mapping[str, Any]) -> None:
    """Write the comparison as a page: what changed first, everything below."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("railx.tracking"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["words"] = _words
    page = environment.get_template("comparison.html.jinja").render(
        title=f"{comparison['a']['invocation']} against {comparison['b']['invocation']}",
        comparison=comparison,
        changed=only_changed(comparison),
        parts=_PARTS,
        changed_headings=_CHANGED_HEADINGS,
        side=_side,
    )
    write_text(path, page)


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


def _indented(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"  {line}" for line in aligned(rows))
