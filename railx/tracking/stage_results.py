"""Results of stages as tracked runs: numbers, curves, intervals, digests of files.

In a curve rows of one step and repeat become one number, repeats a median and an
interval.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from railx.errors import UserError
from railx.io import read_json, read_rows
from railx.text import in_digits
from railx.tracking.results import Curve, StageResult, file_digest, numbers, result_digest

#: Columns of Snakemake's benchmark files and how they are called here.
_BENCHMARK = {"s": "seconds", "cpu_time": "cpu_seconds", "max_rss": "most_memory_mb"}
#: What is kept of a verdict.
_VERDICT = (
    *("claim", "paper", "kind", "headline", "verdict", "published_text"),
    *("ours", "low", "high", "ours_text", "fidelity", "reason"),
)


def stage_result(result: Mapping[str, Any], code: Mapping[str, str]) -> StageResult:
    """The tracked values of a result, read from its files.

    ``result``: as ``tracked_results`` of the workflow has it; ``code``: digests of the
    modules behind it, by name.
    """
    metrics, fidelity = _numbers(Path(result["numbers"])) if result["numbers"] else ({}, None)
    settings = result["settings"]
    histories = [
        read_curves(
            read_rows(history["output"]),
            **{key: value for key, value in history.items() if key != "output"},
        )
        for history in result["history"]
    ]
    verdicts = read_rows(result["verdicts"]) if result["verdicts"] else []
    intervals, points = _stated_intervals(metrics), dict[str, float]()
    for history in histories:
        intervals |= history.intervals
        points |= history.points
    for row in verdicts:
        if row.get("low") is not None and row.get("high") is not None:
            intervals[f"{row['claim']}.ours"] = (float(row["low"]), float(row["high"]))
        if row.get("ours") is not None:
            points[f"{row['claim']}.ours"] = float(row["ours"])
    logged = [result["numbers"], result["verdicts"], *result["artifacts"]]
    logged += [history["output"] for history in result["history"]]
    contents = sorted({file_digest(path) for path in logged if path})
    return StageResult(
        stage=result["stage"],
        name=result["name"],
        digest=result_digest(settings, result["inputs"], result["code"]),
        contents=hashlib.sha256("\n".join(contents).encode()).hexdigest(),
        config=settings if isinstance(settings, Mapping) else {},
        metrics=metrics,
        fidelity=result["fidelity"] or fidelity,
        artifacts=tuple(Path(path) for path in result["artifacts"]),
        curves=tuple(curve for history in histories for curve in history.curves),
        intervals=intervals,
        points=points,
        verdicts=tuple({key: row.get(key) for key in _VERDICT} for row in verdicts),
        job=_benchmark(Path(result["benchmark"])),
        inputs={path: file_digest(path) for path in result["inputs"]},
        outputs={path: file_digest(path) for path in result["outputs"] if Path(path).is_file()},
        code=dict(code),
        packages=result["packages"],
    )


def _numbers(path: Path) -> tuple[dict[str, Any], str | None]:
    """The numbers of a summary.

    A JSON object as it is, a table as ``row.column`` with rows named by as many of
    their first columns as tell them apart.
    """
    if path.suffix == ".json":
        summary: dict[str, Any] = read_json(path)
        return summary, summary.get("fidelity")
    rows = read_rows(path)
    columns, named, names = list(rows[0]) if rows else [], 0, list[str]()
    while len(set(names)) < len(rows) and named < len(columns):
        named += 1
        names = [".".join(in_digits(row[column]) for column in columns[:named]) for row in rows]
    fidelities = {row.get("fidelity") for row in rows} - {None}
    numbers = {
        name: {column: row[column] for column in columns[named:]}
        for name, row in zip(names, rows, strict=True)
    }
    return numbers, fidelities.pop() if len(fidelities) == 1 else None


def _stated_intervals(metrics: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Intervals that a summary states itself: ``x_low`` and ``x_high`` beside ``x``."""
    totals = numbers(metrics)
    return {
        name: (totals[f"{name}_low"], totals[f"{name}_high"])
        for name in totals
        if f"{name}_low" in totals and f"{name}_high" in totals
    }


def _benchmark(path: Path) -> dict[str, float]:
    """Snakemake's measurements of a job; empty where it did not run it."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        (*_, row) = csv.DictReader(file, delimiter="\t")
    parameters = {}
    for column, name in _BENCHMARK.items():
        try:
            parameters[name] = float(row[column])
        except (KeyError, TypeError, ValueError):
            # Too short a job to be measured: Snakemake writes NA.
            continue
    return parameters


_HOW: dict[str, Callable[[list[float]], float]] = {"max": max, "mean": fmean}


@dataclass(frozen=True)
class Curves:
    """The curves of a table, with intervals and points for comparisons.

    ``intervals`` are the least and the greatest of the repeats, by
    ``curve.value``, or by ``curve.value@step`` where steps are settings; ``points`` the
    medians under the latter names.
    """

    curves: tuple[Curve, ...]
    intervals: dict[str, tuple[float, float]]
    points: dict[str, float]


def read_curves(
    rows: Iterable[Mapping[str, Any]],
    *,
    step: str,
    curve: str,
    values: Mapping[str, str],
    repeat: str = "",
    aside: str = "",
    settings: bool = False,
) -> Curves:
    """Curves named ``curve/value``: the median of all repeats that are not set aside.

    With two repeats or more each also has its curves, ``curve/repeat_0/value``. See
    :class:`workflow.stage.History` for the arguments.
    ValueError for a word of ``values`` that is none of max and mean.
    """
    unknown = sorted(set(values.values()) - set(_HOW))
    if unknown:
        raise UserError(f"history: got {', '.join(unknown)}; allowed: {', '.join(_HOW)}")
    # By curve and value, then repeat, then step: the rows' numbers (one per rank).
    gathered: dict[tuple[str, str], dict[Any, dict[float, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    disturbed: set[tuple[str, Any]] = set()
    for row in rows:
        name, which = curve.format(**row), row.get(repeat) if repeat else None
        if aside and row.get(aside):
            disturbed.add((name, which))
        for value in values:
            number = row.get(value)
            if number is not None and math.isfinite(number):
                gathered[name, value][which][float(row[step])].append(float(number))
    curves: list[Curve] = []
    intervals: dict[str, tuple[float, float]] = {}
    points: dict[str, float] = {}
    for (name, value), repeats in gathered.items():
        reduced = {
            which: {at: _HOW[values[value]](numbers) for at, numbers in sorted(steps.items())}
            for which, steps in repeats.items()
        }
        chosen = {which: line for which, line in reduced.items() if (name, which) not in disturbed}
        # Where all were disturbed there is nothing better to draw.
        middle = _medians((chosen or reduced).values())
        curves.append(Curve(f"{name}/{value}", step, tuple(middle.items())))
        if len(reduced) > 1:
            curves += [
                Curve(f"{name}/{repeat}_{which}/{value}", step, tuple(line.items()))
                for which, line in reduced.items()
            ]
        key = f"{name}.{value}"
        if settings:
            points |= {f"{key}@{at:g}": number for at, number in middle.items()}
        if len(chosen) > 1 and settings:
            spread = {at: [line[at] for line in chosen.values() if at in line] for at in middle}
            intervals |= {f"{key}@{at:g}": (min(all_), max(all_)) for at, all_ in spread.items()}
        elif len(chosen) > 1:
            means = [fmean(line.values()) for line in chosen.values()]
            intervals[key] = (min(means), max(means))
    return Curves(tuple(curves), intervals, points)


def _medians(lines: Iterable[Mapping[float, float]]) -> dict[float, float]:
    at: dict[float, list[float]] = defaultdict(list)
    for line in lines:
        for step, value in line.items():
            at[step].append(value)
    return {step: median(numbers) for step, numbers in sorted(at.items())}
