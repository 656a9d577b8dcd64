"""Rendering the page: one HTML file that contains everything it needs.

Style and script are part of the file, and the browser runs them alone, by their
digests: the texts of claims, tables and configs are never more than
texts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from railx.errors import UserError
from railx.evidence import (
    KINDS,
    VERDICT_GROUPS,
    VERDICTS,
    Claim,
    Paper,
    PublishedTable,
    table_name,
)
from railx.evidence.verdicts import number_text
from railx.figures.words import FIDELITY_MEANING, counted, listed
from railx.io import dotted_leaves, read_json, write_text
from railx.report.arena import arena_sizes
from railx.report.cells import MOST_ROWS, cell, cut, read_others, table_rows, words
from railx.report.claims import (
    Row,
    abstract,
    count,
    did_not_hold,
    interval_text,
    missing_in_words,
    read_claims,
)
from railx.report.entries import OtherResult, ReportFigure, ReportTable, figure_words
from railx.report.images import image_size, image_source, rastered

T = TypeVar("T")

#: Characters of the config and of a figure's alternative text, names of tables behind a
#: figure: a page of a thousand sweep points stays one that opens.
_MOST_CONFIG, _MOST_ALTERNATIVE, _MOST_NAMES = 60_000, 2_000, 20
#: Tables of one kind, and jobs of one stage, that the page shows.
_MOST_ALIKE = 40
#: Claims of a group of verdicts that stand there unfolded.
_MOST_OPEN = 8
#: Figures of all papers together, and the name in place of a paper.
_ALL = "all"
#: The table of verdicts, below the results.
_VERDICTS = "evidence/claims"
#: Heading, explanation and name of the number that ours is compared with, by kind of
#: claim, in the order of the page.
_KIND_WORDS = {
    "published": (
        "Published claims",
        "What the paper states, held against its own number.",
        "Published",
    ),
    "derived": (
        "Derived claims",
        "What follows from the paper's design. This project states it, the paper does not.",
        "Expected",
    ),
    "check": ("Checks", "This project's own tables held against one another.", "Expected"),
}


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)


#: The class of a verdict's colour.
_GROUP_OF = {
    verdict: _slug(group) for group, verdicts in VERDICT_GROUPS.items() for verdict in verdicts
}
_VERDICT_MEANING = {
    "reproduced": "ours keeps the published number, within the tolerance that the claim states",
    "consistent": "ours keeps it too, but by a model where the paper measured, or from the paper's"
    " own constants",
    "direction only": "the effect is there, within a factor of two of the published size; it does"
    " not count as held",
    "depends": "it holds for a share of the assumptions that the paper leaves open",
    "undecided": "repeats are too few, or their interval lies on both sides",
    "not reproduced": "ours contradicts the claim, or is of another size",
    "not here": "another experiment decides it; its recorded verdict stands beside",
    "not testable": "nobody can test it here; the row says what it would take",
}


def write_report(
    path: str | Path,
    *,
    experiment: str,
    papers: Mapping[str, Paper],
    claims: str | Path,
    figures: Sequence[ReportFigure],
    tables: Sequence[ReportTable],
    config: str | Path,
    provenance: str | Path,
    published: Sequence[PublishedTable] = (),
    judged: Iterable[Claim] = (),
    others: Sequence[OtherResult] = (),
    jobs: Sequence[str | Path] = (),
    arena: Sequence[Path] = (),
) -> None:
    """Write the page of ``experiment`` as one HTML file, atomically.

    ``claims`` is the claims table, ``config`` the resolved config and ``provenance``
    the result of ``collect_provenance``, both JSON. ``published`` are the papers' own
    tables and ``judged`` the claims that are compared with their rows. ``others`` are
    verdicts of other experiments, ``jobs`` the provenance of each job, ``arena`` tables
    of networks that are ranked. Raises ValueError naming the file that lacks a column
    or holds an unknown paper, kind, verdict or fidelity.
    """
    rows = read_claims(claims, papers)
    tables, tables_left_out = _first_alike(tables, lambda table: table.kind)
    anchors = {table.name: f"table-{index}" for index, table in enumerate(tables)}
    # A query names a table in SQL, a figure names its file: both lead to the table.
    anchors |= {table_name(name): anchor for name, anchor in anchors.items() if "/" in name}
    drawn = [_figure(figure, papers) for figure in figures]
    elsewhere = read_others(others)
    settings = read_json(config)
    compared = {claim.id: (claim.published.file, claim.published.id) for claim in judged}
    for row in rows:
        _complete(row, experiment, elsewhere, compared)
    shown = [_published(table, drawn, rows) for table in published]
    records, jobs_left_out = _first_alike([_job(file) for file in jobs], lambda job: job["stage"])
    style, script = _asset("report.css"), _asset("report.js")
    html = (
        _environment()
        .get_template("report.html.jinja")
        .render(
            experiment=experiment,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            verdicts=VERDICTS,
            groups=VERDICT_GROUPS,
            verdict_meaning=_VERDICT_MEANING,
            fidelity_meaning=FIDELITY_MEANING,
            summary=_summary(rows, papers),
            papers=[_paper(key, paper, rows, drawn, shown) for key, paper in papers.items()],
            overview=_overview(drawn),
            arena=arena_sizes(arena),
            orphans=[entry for entry in shown if entry["paper"] not in papers],
            others=elsewhere,
            tables=[
                {"entry": table, "anchor": anchors[table.name], **table_rows(table)}
                for table in tables
            ],
            tables_left_out=tables_left_out,
            most_rows=MOST_ROWS,
            most_alike=_MOST_ALIKE,
            most_names=_MOST_NAMES,
            anchors=anchors,
            config=cut(json.dumps(settings, indent=2, ensure_ascii=False), _MOST_CONFIG),
            seeds=[
                (key, value)
                for key, value in dotted_leaves(settings)
                if key.rsplit(".", 1)[-1] == "seed"
            ],
            provenance=read_json(provenance),
            jobs=records,
            jobs_count=len(jobs),
            jobs_left_out=[
                (stage, len(selected), _in_words(selected)) for stage, selected in jobs_left_out
            ],
        )
    )
    write_text(path, html)


def _first_alike(
    entries: Sequence[T], kind: Callable[[T], str]
) -> tuple[list[T], list[tuple[str, list[T]]]]:
    """The first entries of each kind, and the others by kind.

    Those without a kind (empty) are all shown.
    """
    shown: list[T] = []
    left_out: dict[str, list[T]] = {}
    seen: Counter[str] = Counter()
    for entry in entries:
        group = kind(entry)
        seen[group] += 1
        if not group or seen[group] <= _MOST_ALIKE:
            shown.append(entry)
        else:
            left_out.setdefault(group, []).append(entry)
    return shown, list(left_out.items())


def _in_words(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Common and differing values of the jobs that are not shown."""
    parts = []
    # Digests are as short as in the rows.
    for key, most in (("commit", 12), ("code", 12), ("lock", 12), ("machine", None)):
        values = {str(job[key] or "not known") for job in jobs}
        several = f"{len(values):,} {key}s"
        parts.append(several if len(values) > 1 else f"{key} {values.pop()[:most]}")
    changed = sum(bool(job["dirty"]) for job in jobs)
    return ", ".join([*parts, f"{changed:,} with changes that are not committed"])


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("railx.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "slug": _slug,
        "group": _GROUP_OF.__getitem__,
        "cell": cell,
        "words": words,
        "quoted": _quoted,
        "counted": counted,
        "listed": lambda names: listed(names, len(names)),
    }
    environment.tests["numeric"] = _numeric
    environment.tests["number"] = lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return environment


def _numeric(value: Any) -> bool:
    """Whether a text of a published table is a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _asset(name: str) -> str:
    return resources.files("railx.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The content policy: this style, this script and images in the file only."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")

    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest(style)}';"
        f" script-src 'sha256-{digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _figure(figure: ReportFigure, papers: Mapping[str, Paper]) -> dict[str, Any]:
    words, size = figure_words(figure), image_size(figure.image)
    allowed = (*papers, _ALL)
    if words["paper"] not in allowed:
        got = f"paper: got {words['paper']!r}; allowed: {', '.join(allowed)}"
        raise UserError(f"{figure.words}: {got}")
    # One drawing of so many marks is enough for both kinds of pages.
    dark = None if rastered(figure.image) else figure.dark
    # A figure without a form for narrow screens has the wide one in its place.
    narrow = figure.narrow if figure.narrow and image_size(figure.narrow) != size else None
    return {
        **words,
        "alternative_text": cut(words["alternative_text"], _MOST_ALTERNATIVE),
        "size": size,
        "light": Markup(image_source(figure.image)),
        "narrow": Markup(image_source(narrow) if narrow else ""),
        "rastered": rastered(figure.image),
        "dark": Markup(image_source(dark) if dark else ""),
    }


def _overview(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of all papers, those of the verdicts themselves first."""
    selected = [figure for figure in figures if figure["paper"] == _ALL]
    return sorted(
        selected, key=lambda figure: not any(_VERDICTS in name for name in figure["tables"])
    )


def _complete(
    row: Row,
    experiment: str,
    elsewhere: Sequence[dict[str, Any]],
    compared: Mapping[str, tuple[str, str]],
) -> None:
    """Texts of a claim besides its columns.

    ``takes`` is the command that decides it, where this run does not.
    """
    row["interval"] = interval_text(row)
    row["spread"] = [number_text(row[end]) if row["interval"] else "" for end in ("low", "high")]
    row["elsewhere"] = [
        {**other["verdicts"][row["claim"]], "experiment": other["name"]}
        for other in elsewhere
        if row["claim"] in other["verdicts"]
    ]
    missing, row["takes"] = missing_in_words(row)
    row["reason"] = missing or row["reason"]
    if row["recorded_in"]:
        row["takes"] = f"make reproduce EXPERIMENT={row['recorded_in']}"
    row["file"], row["row"] = compared.get(row["claim"], ("", ""))
    command = f"railx sql {_quoted(row['query'])} --experiment {experiment}"
    row["command"] = command if row["query"] else ""


def _summary(rows: Sequence[Row], papers: Mapping[str, Paper]) -> dict[str, Any]:
    """The numbers and words of the first screen."""
    published = [row for row in rows if row["kind"] == "published"]
    fidelities = [*FIDELITY_MEANING, None]
    counts = count(published)
    return {
        "rows": len(rows),
        "count": len(published),
        "counts": counts,
        "groups": {
            group: sum(counts[verdict] for verdict in verdicts)
            for group, verdicts in VERDICT_GROUPS.items()
        },
        "elsewhere": _recorded(published),
        "not_testable": [row for row in published if row["verdict"] == "not testable"],
        "by_paper": {
            key: count(row for row in published if row["paper"] == key)
            for key in papers
            if any(row["paper"] == key for row in published)
        },
        "by_fidelity": {
            fidelity: count(selected)
            for fidelity in fidelities
            if (selected := [row for row in published if row["fidelity"] == fidelity])
        },
        "failed": did_not_hold(rows),
        "apart": [
            {
                "kind": kind,
                "title": _KIND_WORDS[kind][0],
                "counts": count(selected),
                "count": len(selected),
                "failed": [row for row in selected if row["verdict"] == "not reproduced"],
            }
            for kind in KINDS
            if kind != "published" and (selected := [row for row in rows if row["kind"] == kind])
        ],
    }


def _recorded(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """The verdicts that other experiments have recorded, counted by experiment."""
    experiments = dict.fromkeys(row["recorded_in"] for row in rows if row["recorded_in"])
    return {
        experiment: count(
            (row for row in rows if row["recorded_in"] == experiment), "recorded_verdict"
        )
        for experiment in experiments
    }


def _parts(rows: Sequence[Row], published: bool) -> list[dict[str, Any]]:
    """Claims of a kind by group of verdicts, failed ones first; long groups fold."""
    parts = []
    for group in ("failed", "open", "held", "not judged"):
        selected = [row for row in rows if row["verdict"] in VERDICT_GROUPS[group]]
        recorded = [row for row in selected if row["recorded_verdict"]]
        if selected:
            part = {
                "group": group,
                "rows": selected,
                "counts": count(selected),
                "recorded": count(recorded, "recorded_verdict") if recorded else {},
                "open": published and group != "not judged" and len(selected) <= _MOST_OPEN,
            }
            parts.append(part)
    return parts


def _paper(
    key: str,
    paper: Paper,
    rows: Sequence[Row],
    figures: Sequence[dict[str, Any]],
    published: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """A paper's section: its claims by kind, figures and published tables."""
    selected = [row for row in rows if row["paper"] == key]
    kinds = []
    for kind in KINDS:
        claims = [row for row in selected if row["kind"] == kind]
        title, meaning, number = _KIND_WORDS[kind]
        if claims:
            head = {"kind": kind, "title": title, "meaning": meaning, "number": number}
            parts = _parts(claims, kind == "published")
            kinds.append({**head, "rows": claims, "counts": count(claims), "parts": parts})
    return {
        **vars(paper),
        "key": key,
        "abstract": abstract(selected, key, paper),
        "headlines": [row for row in selected if row["headline"]],
        "counts": count(row for row in selected if row["kind"] == "published"),
        "kinds": kinds,
        "figures": [figure for figure in figures if figure["paper"] == key],
        "published": [table for table in published if table["paper"] == key],
    }


def _published(
    table: PublishedTable, figures: Iterable[Mapping[str, Any]], rows: Iterable[Row]
) -> dict[str, Any]:
    """A paper's table, with the figures that draw it and the claims that judge it."""
    return {
        **vars(table),
        "anchor": f"file-{_slug(Path(table.file).stem)}",
        "figures": [figure for figure in figures if table.file in figure["published"]],
        "claims": [row for row in rows if row["file"] == table.file],
    }


def _job(file: str | Path) -> dict[str, Any]:
    """The record of a job; missing values are empty."""
    content = read_json(file)
    keys = ("stage", "item", "commit", "dirty", "code", "config", "lock", "load", "ended_utc")
    gpus = [gpu.get("name") for gpu in content.get("gpus") or []]
    cores = content.get("cores")
    machine = [content.get("cpu"), f"{cores} cores" if cores else "", *gpus, content.get("python")]
    return {
        **{key: content.get(key) for key in keys},
        **{key: content.get(key) or {} for key in ("inputs", "outputs", "packages")},
        "machine": ", ".join(filter(None, machine)),
    }


def _quoted(text: str) -> str:
    """A text as one argument of a shell, in double quotes."""
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'
