"""Logging the stage results of one invocation to the trackers that are on.

It is called once, when all stages are done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from railx.tracking.mlflow_runs import log_to_mlflow
from railx.tracking.results import StageResult, TrackedRun
from railx.tracking.settings import TrackingSettings
from railx.tracking.wandb_runs import log_to_wandb

__all__ = ["log_runs"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")


def log_runs(
    stage_results: Sequence[StageResult],
    settings: TrackingSettings,
    *,
    folder: str | Path,
    experiment: str,
    invocation: str,
    commit: str | None = None,
) -> list[TrackedRun]:
    """One tracked run per stage result.

    One that is there already (same stage, name and digest) is found, not added.
    ``folder`` is the results folder (MLflow in ``folder``/mlflow.db, W&B in
    ``folder``/wandb), ``experiment`` the MLflow experiment, ``invocation`` the pipeline
    invocation that groups the runs. A killed call can simply be repeated. Raises
    ValueError for names that a tracker cannot take or two results of the same stage and
    name, and RuntimeError where W&B online has no login.
    """
    for key, value in (("experiment", experiment), ("invocation", invocation)):
        if not _NAME.fullmatch(value):
            raise ValueError(
                f"{key}: got {value!r}; allowed: letters, digits, underscores, dots and hyphens, at"
                " most 100"
            )
    titles = [result.title for result in stage_results]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise ValueError(
            f"stage results: {', '.join(twice)} given more than once; allowed: one result for each"
            " stage and name"
        )
    tags = {"experiment": experiment} | ({"commit": commit} if commit else {})
    place = Path(folder)
    in_mlflow = (
        log_to_mlflow(stage_results, settings, place, experiment, invocation, tags)
        if settings.mlflow
        else {}
    )
    in_wandb = (
        log_to_wandb(stage_results, settings, place, experiment, invocation, tags)
        if settings.wandb != "disabled"
        else {}
    )
    tracked = []
    for result in stage_results:
        mlflow_run, mlflow_found = in_mlflow.get(result.key, (None, False))
        wandb_run, wandb_found = in_wandb.get(result.key, (None, False))
        tracked.append(
            TrackedRun(
                result.stage,
                result.name,
                result.digest,
                mlflow_run,
                mlflow_found,
                wandb_run,
                wandb_found,
            )
        )
    return tracked
