"""Stage results as MLflow runs: params, metrics, tags and small files.

A digest that is there already is only marked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from railx.tracking.results import StageResult, flat, numbers
from railx.tracking.settings import TrackingSettings
from railx.tracking.store import (
    DIGEST,
    INVOCATION,
    NAME,
    STAGE,
    TAG,
    finished_runs,
    open_experiment,
    open_store,
)

__all__ = ["log_to_mlflow"]

#: MLflow's own limits: params in one request, and characters of a param's value.
_PARAMS_AT_ONCE = 100
_PARAM_CHARACTERS = 6000
_METRICS_AT_ONCE = 1000


def log_to_mlflow(
    results: Sequence[StageResult],
    settings: TrackingSettings,
    folder: Path,
    experiment: str,
    invocation: str,
    tags: Mapping[str, str],
) -> dict[str, tuple[str, bool]]:
    """Log what is new and mark all as part of ``invocation``.

    Returns the run id by result key, and whether it was found.
    """
    client = open_store(folder, create=True)
    identifier = open_experiment(client, experiment, folder)
    known = {_key(run): run.info.run_id for run in finished_runs(client, [identifier])}
    _remove_unfinished(client, identifier)
    logged: dict[str, tuple[str, bool]] = {}
    for result in results:
        run = known.get(result.key)
        found = run is not None
        if run is None:
            run = _log_one(client, identifier, result, settings, invocation, tags)
            known[result.key] = run
        mark = (
            f"{'found' if found else 'new'} {datetime.now(UTC).isoformat(timespec='milliseconds')}"
        )
        client.set_tag(run, f"{INVOCATION}/{invocation}", mark)
        logged[result.key] = (run, found)
    return logged


def _key(run: Any) -> str:
    tags = run.data.tags
    return StageResult(tags.get(STAGE, ""), tags.get(NAME, ""), tags.get(DIGEST, ""), {}, {}).key


def _remove_unfinished(client: Any, experiment: str) -> None:
    """Runs that a killed process left half-logged; only ours carry a digest."""
    for run in client.search_runs(
        [experiment], filter_string="attributes.status != 'FINISHED'", max_results=1000
    ):
        if DIGEST in run.data.tags:
            client.delete_run(run.info.run_id)


def _log_one(
    client: Any,
    experiment: str,
    result: StageResult,
    settings: TrackingSettings,
    invocation: str,
    tags: Mapping[str, str],
) -> str:
    from mlflow.entities import Metric, Param

    own = {STAGE: result.stage, NAME: result.name, DIGEST: result.digest, INVOCATION: invocation}
    extra = {f"{TAG}{key}": value for key, value in tags.items()}
    if result.fidelity:
        extra[f"{TAG}fidelity"] = result.fidelity
    run: str = client.create_run(
        experiment, tags={**extra, **own}, run_name=result.title
    ).info.run_id
    now = time.time_ns() // 1_000_000
    params = [
        Param(_allowed(key), str(value)[:_PARAM_CHARACTERS]) for key, value in flat(result.config)
    ]
    metrics = [
        Metric(_allowed(key), value, now, 0) for key, value in numbers(result.metrics).items()
    ]
    for start in range(0, len(params), _PARAMS_AT_ONCE):
        client.log_batch(run, params=params[start : start + _PARAMS_AT_ONCE])
    for start in range(0, len(metrics), _METRICS_AT_ONCE):
        client.log_batch(run, metrics=metrics[start : start + _METRICS_AT_ONCE])
    for path in result.artifacts:
        if path.stat().st_size <= settings.artifact_limit_mb * 1e6:
            client.log_artifact(run, str(path))
    client.set_tag(run, f"{TAG}files", ", ".join(path.name for path in result.artifacts))
    client.set_terminated(run)
    return run


def _allowed(key: str) -> str:
    """A key with the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", key)
