"""Stage track: every stage result becomes a run in MLflow and W&B."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.io import read_json, read_rows, write_json
from railx.provenance import collect_provenance
from railx.settings import load
from railx.tracking import StageResult, TrackingSettings, log_runs, result_digest

__all__ = ["run"]


def run(
    settings: Mapping[str, Any],
    *,
    experiment: str,
    folder: str | Path,
    stages: Sequence[Mapping[str, Any]],
    tracking_path: str | Path,
) -> dict[str, Any]:
    """Log the results of one invocation; return (and write) where each run is.

    ``stages``: stage, name, settings, code (digest), inputs, summary (a JSON or Parquet
    file of numbers), artifacts and fidelity (None: what the summary says).
    """
    tracking: TrackingSettings = load(TrackingSettings, settings, "tracking")
    commit = collect_provenance()["commit"]
    invocation = f"{experiment}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}"
    results = [_result(stage) for stage in stages]
    runs = log_runs(
        results,
        tracking,
        folder=folder,
        experiment=experiment,
        invocation=invocation,
        commit=commit,
    )
    summary = {
        "schema": "railx.tracking/1",
        "invocation": invocation,
        "commit": commit,
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    write_json(tracking_path, summary)
    return summary


def _result(stage: Mapping[str, Any]) -> StageResult:
    metrics, fidelity = _numbers(Path(stage["summary"]))
    return StageResult(
        stage=stage["stage"],
        name=stage["name"],
        digest=result_digest(stage["settings"], stage["inputs"], stage["code"]),
        config=stage["settings"] if isinstance(stage["settings"], Mapping) else {},
        metrics=metrics,
        fidelity=stage["fidelity"] or fidelity,
        artifacts=tuple(Path(path) for path in stage["artifacts"]),
    )


def _numbers(path: Path) -> tuple[dict[str, Any], str | None]:
    """The numbers of a summary: a JSON object as it is, a table as ``row.column`` with
    rows named by their first column.
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
