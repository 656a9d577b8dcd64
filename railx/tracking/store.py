"""The MLflow store of a results folder: one SQLite file.

It is opened without noise, telemetry or network.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

__all__ = [
    "DIGEST",
    "INVOCATION",
    "NAME",
    "STAGE",
    "TAG",
    "finished_runs",
    "open_experiment",
    "open_store",
]

#: Prefix of the tags that this project sets.
TAG = "railx."
STAGE, NAME, DIGEST, INVOCATION = (
    f"{TAG}{word}" for word in ("stage", "name", "digest", "invocation")
)

_DATABASE = "mlflow.db"
_ARTIFACTS = "mlflow_artifacts"


def open_store(folder: Path, *, create: bool) -> Any:
    """An MLflow client for ``folder``/mlflow.db.

    A new database is filled beside its place and renamed, so that a killed run leaves
    no half schema. Raises ValueError where there is none and ``create`` is false.
    """
    database = folder / _DATABASE
    if not database.exists() and not create:
        raise ValueError(
            f"{database}: no tracked runs yet; allowed: a results folder in which tracking has run"
        )
    client_class = _quiet_client()
    if not database.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".mlflow.") as beside:
            fresh = Path(beside) / _DATABASE
            client_class(tracking_uri=f"sqlite:///{fresh.resolve()}").search_experiments(
                max_results=1
            )
            fresh.replace(database)
    return client_class(tracking_uri=f"sqlite:///{database.resolve()}")


def open_experiment(client: Any, name: str, folder: Path) -> str:
    """The id of the experiment, made or restored as needed.

    Its artifacts are kept in the results folder.
    """
    known = client.get_experiment_by_name(name)
    if known is None:
        identifier: str = client.create_experiment(
            name, artifact_location=(folder / _ARTIFACTS / name).resolve().as_uri()
        )
        return identifier
    if known.lifecycle_stage != "active":
        client.restore_experiment(known.experiment_id)
    return str(known.experiment_id)


def finished_runs(client: Any, experiments: list[str], condition: str = "") -> list[Any]:
    """The runs that were logged to their end, oldest first, of all pages."""
    runs: list[Any] = []
    token = None
    filters = " and ".join(filter(None, ("attributes.status = 'FINISHED'", condition)))
    while experiments:
        page = client.search_runs(
            experiments,
            filter_string=filters,
            max_results=1000,
            order_by=["start_time ASC"],
            page_token=token,
        )
        runs += page
        token = page.token
        if not token:
            break
    return runs


def _quiet_client() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient
    # Importing MLflow sets its own levels.
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient
