"""Stage tracking: every result becomes a run in MLflow and W&B, of one invocation."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from workflow.outputs import Json
from workflow.stage import Config, Job, Stage, Summary
from workflow.stages import results_folder, tracked_files, tracked_results


def run(job: Job) -> Summary:
    """Log the results of one invocation; return (and write) the ids of the runs.

    ``settings``: tracking, the experiment's name and config, the folder of all results
    and, per result, what :func:`workflow.stages.tracked_results` says of it.
    """
    from railx.provenance import collect_provenance
    from railx.tracking.runs import log_runs
    from railx.tracking.settings import TrackingSettings
    from railx.tracking.stage_results import stage_result
    from workflow.digest import code_modules, module_digest

    settings = job.settings
    tracking: TrackingSettings = job.load(TrackingSettings, "tracking")
    commit = collect_provenance()["commit"]
    now = datetime.datetime.now(datetime.UTC)
    invocation = f"{settings['experiment']}-{now:%Y%m%dT%H%M%S}"
    runs = log_runs(
        [
            stage_result(
                result, {name: module_digest(name) for name in code_modules(*result["modules"])}
            )
            for result in settings["results"]
        ],
        tracking,
        folder=settings["folder"],
        experiment=settings["experiment"],
        invocation=invocation,
        commit=commit,
        config=settings["config"],
    )
    summary = {
        "schema": "railx.tracking/1",
        "invocation": invocation,
        "commit": commit,
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    job.write_json("tracking", summary)
    return summary


def _stage_settings(experiment: Config, _: str) -> dict[str, Any]:
    return {
        "tracking": experiment["tracking"],
        "experiment": experiment["name"],
        "config": experiment,
        "folder": str(results_folder(experiment).parent),
        "results": tracked_results(experiment),
    }


STAGE = Stage(
    name="tracking",
    help="every result as a tracked run",
    message="Tracked runs in MLflow and W&B",
    settings=_stage_settings,
    inputs=lambda experiment, _: {"files": tracked_files(experiment)},
    outputs={"tracking": Json(claims=False)},
    run=run,
    in_folder=False,
)
