"""The MLflow store of a results folder: a SQLite file in it, or a PostgreSQL database.

It is opened without log output, telemetry or network. Artifacts are in the results
folder; opening the store updates their paths after the folder was moved.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from railx.errors import UserError
from railx.io import write_text

#: Prefix of the tags that this project sets.
TAG = "railx."
#: The stage of an invocation's own run.
INVOCATION_STAGE = "invocation"

_DATABASE = "mlflow.db"
_ARTIFACTS = "mlflow_artifacts"
#: Names the store of a folder that is not its SQLite file.
_POINTER = "mlflow_store.txt"
_LOCK = ".mlflow.lock"
#: MLflow opens its pages for language models unless an experiment says that it is none.
_KIND, _TRAINING = "mlflow.experimentKind", "custom_model_development"
#: MLflow's own limit on a page of runs, which no results folder reaches.
_MOST_RUNS = 50_000
#: How long one job waits for the others that write to the same SQLite file.
_PATIENCE_S = 300.0


def store_address(folder: Path, store: str | None = None) -> str:
    """The address of a folder's store: ``store``, else the one that was used last."""
    pointer = folder / _POINTER
    if store is None and pointer.exists():
        store = pointer.read_text(encoding="utf-8").strip()
    return store or f"sqlite:///{(folder / _DATABASE).resolve()}"


def open_store(folder: Path, *, create: bool, store: str | None = None) -> Any:
    """An MLflow client for the store of ``folder``.

    A new database is filled beside its place and renamed, so that a killed run leaves
    no half schema. Raises ValueError where there is none and ``create`` is false.
    """
    database, pointer = folder / _DATABASE, folder / _POINTER
    _, lite, file = store_address(folder, store).partition("sqlite:///")
    if not create and lite and not Path(file.partition("?")[0]).is_file():
        allowed = "a results folder in which tracking has run"
        raise UserError(f"{file}: no tracked runs yet; allowed: {allowed}")
    client_class = _quiet_client()
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        if create and store is not None:
            write_text(pointer, store + "\n")
        elif create:
            pointer.unlink(missing_ok=True)
        address = store_address(folder, store)
        if create and address.startswith("sqlite:") and not database.exists():
            with tempfile.TemporaryDirectory(dir=folder, prefix=".mlflow.") as beside:
                fresh = Path(beside) / _DATABASE
                filling = client_class(tracking_uri=f"sqlite:///{fresh.resolve()}")
                filling.search_experiments(max_results=1)
                fresh.replace(database)
        client = client_class(tracking_uri=address)
        client.search_experiments(max_results=1)
        _follow(client, address, folder)
    return client


def open_experiment(client: Any, name: str, folder: Path) -> str:
    """The id of the experiment, made or restored; artifacts in the results folder."""
    from mlflow.exceptions import MlflowException

    stored = client.get_experiment_by_name(name)
    if stored is None:
        location = (folder / _ARTIFACTS / name).resolve().as_uri()
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException:
            # Another job was faster.
            if client.get_experiment_by_name(name) is None:
                raise
        stored = client.get_experiment_by_name(name)
    if _KIND not in stored.tags:
        client.set_experiment_tag(stored.experiment_id, _KIND, _TRAINING)
    if stored.lifecycle_stage != "active":
        client.restore_experiment(stored.experiment_id)
    return str(stored.experiment_id)


def finished_runs(client: Any, experiments: list[str], condition: str = "") -> list[Any]:
    """The runs that were logged to their end, oldest first."""
    if not experiments:
        return []
    filters = " and ".join(filter(None, ("attributes.status = 'FINISHED'", condition)))
    runs = client.search_runs(
        experiments, filter_string=filters, max_results=_MOST_RUNS, order_by=["start_time ASC"]
    )
    return list(runs)


def artifact_folder(address: str) -> Path | None:
    """The folder behind a ``file:`` address or a path; None for any other."""
    parts = urlsplit(address)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


@contextmanager
def begin(address: str) -> Iterator[Any]:
    """One transaction of a store: all of it is written, or nothing.

    Several jobs may write to one store; in a SQLite file they take turns.
    """
    import sqlalchemy

    options = {"timeout": _PATIENCE_S} if address.startswith("sqlite:") else {}
    engine = sqlalchemy.create_engine(address, connect_args=options)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Opening a store, one job at a time; where nothing can be written, without."""
    from filelock import FileLock

    with ExitStack() as locks:
        with suppress(PermissionError):
            locks.enter_context(FileLock(folder / _LOCK, timeout=_PATIENCE_S))
        yield


def _follow(client: Any, address: str, folder: Path) -> None:
    """Update the paths of artifacts after the results folder was moved.

    MLflow stores absolute addresses. A store in the folder always refers to the
    artifacts beside it; any other store is unchanged while the old folder exists.
    """
    lite = address.startswith("sqlite:")
    moved = []
    for experiment in client.search_experiments():
        here = (folder / _ARTIFACTS / experiment.name).resolve()
        old = artifact_folder(experiment.artifact_location)
        if old is None or old == here or not here.is_dir() or (old.is_dir() and not lite):
            continue
        # Experiments of others, such as MLflow's Default, are unchanged.
        if old.parts[-2:] == (_ARTIFACTS, experiment.name):
            moved.append((experiment.artifact_location, here.as_uri(), experiment.experiment_id))
    if not moved:
        return
    from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlRun
    from sqlalchemy import func, update

    experiments, runs = SqlExperiment.__table__, SqlRun.__table__
    address_of_run = runs.c.artifact_uri
    with begin(address) as connection:
        for old_location, location, identifier in moved:
            mine = int(identifier)
            moved_to = update(experiments).values(artifact_location=location)
            connection.execute(moved_to.where(experiments.c.experiment_id == mine))
            replaced = func.replace(address_of_run, old_location, location)
            inside = address_of_run.like(f"{old_location}/%")
            moved_runs = update(runs).where(runs.c.experiment_id == mine, inside)
            connection.execute(moved_runs.values(artifact_uri=replaced))


def _quiet_client() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    # Of a server that is not there MLflow would ask for four minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient
    # Importing MLflow sets its own levels.
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient
