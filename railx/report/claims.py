"""The claims table as a reader meets it: checked, counted and grouped by paper.

The page and the summary in the terminal count the same way: what the papers publish
apart from what this project derives or checks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.evidence import CLAIM_COLUMNS, KINDS, VERDICT_GROUPS, VERDICTS, Paper
from railx.evidence.verdicts import number_text
from railx.io import FIDELITIES, read_table

#: What a table of a stage is about in words, and the key that adds one to a run.
_STAGE_WORDS = {
    "bandwidth": ("bandwidth of groups on", "topologies"),
    "corpus": ("the lengths of", "corpora"),
    "live": ("the torch program", "live"),
    "network": ("exact loads on", "topologies"),
    "packets": ("packets of the sweep", "sweeps"),
    "plan": ("the plan", "plans"),
    "profile": ("the profile of a device", "profiles"),
    "replay": ("the replay of the training run", "runs"),
    "steps": ("the training step", "steps"),
    "topology": ("the topology", "topologies"),
    "training": ("the training run", "runs"),
    "transition": ("the transition", "transitions"),
}
#: A table that a query names and a run lacks, as the verdict's reason says it.
_MISSING = re.compile(r"([a-z_]+)\.(\w+)(?:\.\w+)? is not among the results")
#: The order of the verdicts in a paper's paragraph.
_ABSTRACT = (
    *VERDICT_GROUPS["held"],
    "depends",
    *[verdict for verdict in VERDICT_GROUPS["open"] if verdict != "depends"],
    *VERDICT_GROUPS["failed"],
    *VERDICT_GROUPS["not judged"],
)
#: A space where no line may end.
_TIGHT = "\N{NO-BREAK SPACE}"
#: One claim with its verdict: the columns of evidence/claims.parquet.
Row = dict[str, Any]


def read_claims(path: str | Path, papers: Mapping[str, Paper]) -> list[Row]:
    """The rows of a claims table, ``tables`` as a list of names.

    Raises ValueError naming the file that lacks a column or holds an unknown kind,
    verdict, fidelity or paper.
    """
    table = read_table(path)
    missing = [column for column in CLAIM_COLUMNS if column not in table.column_names]
    if missing:
        found = ", ".join(table.column_names)
        raise UserError(f"{path}: column {', '.join(missing)} is missing; found: {found}")
    rows: list[Row] = table.to_pylist()
    for row in rows:
        for column, allowed in (
            ("kind", KINDS),
            ("verdict", VERDICTS),
            ("fidelity", (*FIDELITIES, None)),
            ("paper", tuple(papers)),
        ):
            if row[column] not in allowed:
                got = f"{path}: claim {row['claim']}: {column} {row[column]!r}"
                raise UserError(f"{got}; allowed: {', '.join(filter(None, allowed))}")
        row["tables"] = [name for name in (row["tables"] or "").split(", ") if name]
    return rows


def count(rows: Iterable[Mapping[str, Any]], column: str = "verdict") -> dict[str, int]:
    """How many rows have each verdict in a column, in the order of the verdicts."""
    verdicts = [row[column] for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def did_not_hold(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The published claims that did not hold, by verdict, failed ones first.

    Neither held nor left out: those that are not judged here say nothing about the
    paper.
    """
    order = [*VERDICT_GROUPS["failed"], *VERDICT_GROUPS["open"]]
    published = [row for row in rows if row["kind"] == "published"]
    return {
        verdict: verdicts
        for verdict in order
        if (verdicts := [row for row in published if row["verdict"] == verdict])
    }


def abstract(rows: Sequence[Row], key: str, paper: Paper) -> list[dict[str, Any]]:
    """A paper's published claims in a paragraph: number and topics of each verdict.

    Verdicts of this run come first (``experiment`` empty), then those that other
    experiments have recorded of claims that this run does not decide.
    """
    parts: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        if row["kind"] != "published" or row["paper"] != key:
            continue
        part = (row["recorded_in"], row["recorded_verdict"] or row["verdict"])
        parts.setdefault(part, Counter())[paper.topic(row["claim"], row["place"])] += 1
    order = sorted(parts, key=lambda part: (part[0], _ABSTRACT.index(part[1])))
    return [
        {
            "experiment": experiment,
            "verdict": verdict,
            "number": parts[experiment, verdict].total(),
            "topics": parts[experiment, verdict].most_common(),
            "turns_on": paper.depends if verdict == "depends" else "",
        }
        for experiment, verdict in order
    ]


def summary_lines(
    name: str, rows: Sequence[Mapping[str, Any]], papers: Mapping[str, Paper]
) -> list[str]:
    """The counts as a table, then a line for each published claim that did not hold."""
    published = [row for row in rows if row["kind"] == "published"]
    table = [["published claims", *VERDICTS, "all"]]
    for key, paper in papers.items():
        rows_of_paper = [row for row in published if row["paper"] == key]
        if rows_of_paper:
            counts = (*count(rows_of_paper).values(), len(rows_of_paper))
            table.append([paper.name, *map(str, counts)])
    table.append(["all", *map(str, (*count(published).values(), len(published)))])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [f"experiment {name}", ""]
    for first, *numbers in table:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    for verdict, claims in did_not_hold(list(map(dict, rows))).items():
        lines += ["", f"{verdict}:"]
        for row in claims:
            lines.append(f"  {papers[row['paper']].name}, {row['claim']}: {row['reason']}")
    return [*lines, ""]


def interval_text(row: Mapping[str, Any]) -> str:
    """The 95 % interval of ours in words; empty where ours has no samples."""
    low, high, samples = row["low"], row["high"], row["samples"]
    if low is None or high is None or samples is None:
        return ""
    return f"95 %: {number_text(low)} to {number_text(high)}, n{_TIGHT}={_TIGHT}{samples}"


def missing_in_words(row: Mapping[str, Any]) -> tuple[str, str]:
    """Why a claim is not decided here, and the command that decides it.

    Empty texts for a row whose reason names no missing table.
    """
    match = _MISSING.match(row["reason"] or "")
    if match is None:
        return "", ""
    stage, item = match.groups()
    words, key = _STAGE_WORDS.get(stage, ("", ""))
    if not words:
        return f"this run has no stage {stage}, and no recorded run decides it", ""
    command = f"make claim CLAIM={row['claim']} OVERRIDES='{key}.{item}={item}'"
    return f"this run has not {words} {item}, and no recorded run decides it", command
