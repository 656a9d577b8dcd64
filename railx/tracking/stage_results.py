"""Results of stages as tracked runs: numbers, curves, intervals, digests of files."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.io import read_json, read_rows
from railx.tracking.history import read_curves
from railx.tracking.results import StageResult, file_digest, numbers, result_digest

__all__ = ["stage_result"]

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
        intervals={
            **_stated_intervals(metrics),
            **{key: pair for history in histories for key, pair in history.intervals.items()},
            **_claimed_intervals(verdicts),
        },
        points={
            **{key: value for history in histories for key, value in history.points.items()},
            **_claimed(verdicts),
        },
        verdicts=tuple({key: row.get(key) for key in _VERDICT} for row in verdicts),
        job=_benchmark(Path(result["benchmark"])),
        inputs={path: file_digest(path) for path in result["inputs"]},
        outputs={path: file_digest(path) for path in result["outputs"] if Path(path).is_file()},
        code=dict(code),
        packages=result["packages"],
    )


def _numbers(path: Path) -> tuple[dict[str, Any], str | None]:
    """The numbers of a summary.

    A JSON object as it is, a table as ``row.column`` with rows named by their first
    column.
    """
    if path.suffix == ".json":
        summary: dict[str, Any] = read_json(path)
        return summary, summary.get("fidelity")
    rows = read_rows(path)
    first = next(iter(rows[0]))
    fidelities = {row.get("fidelity") for row in rows} - {None}
    numbers = {
        str(row[first]): {key: value for key, value in row.items() if key != first} for row in rows
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


def _claimed(verdicts: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{row['claim']}.ours": float(row["ours"])
        for row in verdicts
        if row.get("ours") is not None
    }


def _claimed_intervals(verdicts: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    return {
        f"{row['claim']}.ours": (float(row["low"]), float(row["high"]))
        for row in verdicts
        if row.get("low") is not None and row.get("high") is not None
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
