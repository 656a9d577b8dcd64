"""Logging one invocation's results to the trackers that are on, once all are done."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.tracking.mlflow_runs import first_mlflow_runs, log_to_mlflow
from railx.tracking.results import Invocation, StageResult, TrackedRun, invocation_record
from railx.tracking.settings import TrackingSettings
from railx.tracking.wandb_runs import first_wandb_runs, log_to_wandb

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")


def log_runs(
    stage_results: Sequence[StageResult],
    settings: TrackingSettings,
    *,
    folder: str | Path,
    experiment: str,
    invocation: str,
    commit: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[TrackedRun]:
    """One tracked run per stage result, and one for the invocation that groups them.

    A result that an earlier invocation had logged (same stage, name, digest and
    contents) becomes a copy that names its first run, so that an invocation is always
    whole. ``folder`` is the results folder (MLflow in ``folder``/mlflow.db unless the
    settings name another store, W&B in ``folder``/wandb), ``experiment`` the MLflow
    experiment, ``invocation`` the pipeline invocation, ``config`` the whole experiment.
    The same call again adds nothing, and a killed one can simply be repeated. Raises
    ValueError for names that a tracker cannot take or two results of the same stage and
    name, and RuntimeError where W&B online has no login.
    """
    for key, value in (("experiment", experiment), ("invocation", invocation)):
        if not _NAME.fullmatch(value):
            allowed = "letters, digits, underscores, dots and hyphens, at most 100"
            raise UserError(f"{key}: got {value!r}; allowed: {allowed}")
    titles = [result.title for result in stage_results]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        got = f"stage results: {', '.join(twice)} given more than once"
        raise ValueError(f"{got}; allowed: one result for each stage and name")
    root, in_wandb = Path(folder), settings.wandb != "disabled"
    group = Invocation(
        experiment,
        invocation,
        datetime.now(UTC).isoformat(timespec="milliseconds"),
        config or {},
        {"experiment": experiment} | ({"commit": commit} if commit else {}),
    )
    existing = (
        first_mlflow_runs(stage_results, settings, root, experiment, invocation)
        if settings.mlflow
        else first_wandb_runs(stage_results, root, experiment, invocation)
    )
    record = invocation_record(group, stage_results, existing)
    none: tuple[str | None, bool] = (None, False)
    runs: list[Mapping[str, tuple[str | None, bool]]] = [
        log_to_mlflow(stage_results, settings, root, group, record, existing)
        if settings.mlflow
        else {},
        log_to_wandb(stage_results, settings, root, group, record) if in_wandb else {},
    ]
    return [
        TrackedRun(
            result.stage,
            result.name,
            result.digest,
            *runs[0].get(result.key, none),
            *runs[1].get(result.key, none),
        )
        for result in stage_results
    ]
