"""Stage tracking: every result becomes a run in MLflow and W&B.

One job writes all tracked runs: MLflow's SQLite store cannot take concurrent first
writes.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflow.stage import Inputs, Job, Json, Settings, Stage, Summary

if TYPE_CHECKING:
    from railx.tracking import StageResult

__all__ = ["STAGE", "run"]


def run(job: Job) -> Summary:
    """Log the results of one invocation; return (and write) where each run is.

    ``settings``: tracking, the experiment's name, the folder of all results and, per
    result, stage, name, settings, code (digest), inputs, numbers (a JSON or Parquet
    file), artifacts and fidelity (None: what the numbers say).
    """
    from railx.provenance import collect_provenance
    from railx.settings import load
    from railx.tracking import TrackingSettings, log_runs

    settings = job.settings
    tracking: TrackingSettings = load(TrackingSettings, settings["tracking"], "tracking")
    commit = collect_provenance()["commit"]
    now = datetime.datetime.now(datetime.UTC)
    invocation = f"{settings['experiment']}-{now:%Y%m%dT%H%M%S}"
    runs = log_runs(
        [_result(result) for result in settings["results"]],
        tracking,
        folder=settings["folder"],
        experiment=settings["experiment"],
        invocation=invocation,
        commit=commit,
    )
    summary = {
        "schema": "railx.tracking/1",
        "invocation": invocation,
        "commit": commit,
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    job.write_json("tracking", summary)
    return summary


def _result(result: Mapping[str, Any]) -> StageResult:
    from railx.tracking import StageResult, result_digest

    metrics, fidelity = _numbers(Path(result["numbers"]))
    own = result["settings"]
    return StageResult(
        stage=result["stage"],
        name=result["name"],
        digest=result_digest(own, result["inputs"], result["code"]),
        config=own if isinstance(own, Mapping) else {},
        metrics=metrics,
        fidelity=result["fidelity"] or fidelity,
        artifacts=tuple(Path(path) for path in result["artifacts"]),
    )


def _numbers(path: Path) -> tuple[dict[str, Any], str | None]:
    """The numbers of a summary.

    A JSON object as it is, a table as ``row.column`` with rows named by their first
    column.
    """
    from railx.io import read_json, read_rows

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


def _own(experiment: Settings, _: str) -> dict[str, Any]:
    from workflow.stages import results_folder, tracked_results

    return {
        "tracking": experiment["tracking"],
        "experiment": experiment["name"],
        "folder": str(results_folder(experiment).parent),
        "results": tracked_results(experiment),
    }


def _inputs(experiment: Settings, _: str) -> Inputs:
    from workflow.stages import tracked_results

    files = {
        path
        for result in tracked_results(experiment)
        for path in (result["numbers"], *result["inputs"], *result["artifacts"])
    }
    return {"files": [Path(path) for path in sorted(files)]}


STAGE = Stage(
    name="tracking",
    help="every result as a tracked run",
    message="Tracked runs in MLflow and W&B",
    settings=_own,
    inputs=_inputs,
    outputs={"tracking": Json("tracking.json")},
    run=run,
    in_folder=False,
)
