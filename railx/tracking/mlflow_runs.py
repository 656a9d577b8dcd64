"""Stage results as MLflow runs: params, metrics with their history, tags and files.

An invocation is one run with a run per result below it. All of them are written in one
transaction: eight jobs at once lose nothing, and a killed one leaves nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.io import dotted_leaves, write_json
from railx.tracking.results import (
    RECORD,
    Curve,
    Invocation,
    StageResult,
    few_numbers,
    numbers,
    table_json,
    verdict_counts,
)
from railx.tracking.settings import TrackingSettings
from railx.tracking.store import (
    INVOCATION_STAGE,
    TAG,
    artifact_folder,
    begin,
    open_experiment,
    open_store,
    store_address,
)

#: MLflow's own limits on keys and values, and on a digest of a data set.
_KEY_CHARACTERS = 250
_PARAM_CHARACTERS = 6000
_TAG_CHARACTERS = 5000
_DATASET_CHARACTERS = 36
#: MLflow's tables, those first that others refer to.
_TABLES = (
    *("SqlRun", "SqlTag", "SqlParam", "SqlMetric", "SqlLatestMetric"),
    *("SqlInput", "SqlInputTag"),
)
#: Numbers of a result that MLflow draws, each as a chart; numbers.json has all.
_MOST_CHARTS = 12
#: Steps of MLflow are whole numbers: others count in thousandths.
_STEPS = 1000


def first_mlflow_runs(
    results: Sequence[StageResult],
    settings: TrackingSettings,
    folder: Path,
    experiment: str,
    but: str = "",
) -> dict[str, str]:
    """The store's first run of each result by its key, but for invocation ``but``."""
    client = open_store(folder, create=True, store=settings.mlflow_store)
    identifier = int(open_experiment(client, experiment, folder))
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import select

    runs, tags = SqlRun.__table__, SqlTag.__table__
    group = tags.alias()
    asked = (
        select(tags.c.value, runs.c.run_uuid)
        .join(runs, runs.c.run_uuid == tags.c.run_uuid)
        .join(group, group.c.run_uuid == runs.c.run_uuid)
        .where(
            tags.c.key == f"{TAG}key",
            group.c.key == f"{TAG}invocation",
            group.c.value != but,
            runs.c.experiment_id == identifier,
            runs.c.lifecycle_stage == "active",
        )
        # The first to be written ends first; copies of it later.
        .order_by(runs.c.end_time.desc())
    )
    requested = {result.key for result in results}
    with begin(store_address(folder, settings.mlflow_store)) as connection:
        return {key: run for key, run in connection.execute(asked) if key in requested}


def log_to_mlflow(
    results: Sequence[StageResult],
    settings: TrackingSettings,
    folder: Path,
    invocation: Invocation,
    record: Mapping[str, Any],
    first: Mapping[str, str],
) -> dict[str, tuple[str, bool]]:
    """Log an invocation, once.

    ``first`` are the first runs of results that the store held before. Returns the run
    id by result key, and whether it was among those.
    """
    client = open_store(folder, create=True, store=settings.mlflow_store)
    identifier = open_experiment(client, invocation.experiment, folder)
    location = client.get_experiment(identifier).artifact_location
    address = store_address(folder, settings.mlflow_store)
    runs = {result.key: invocation.run_id(result.key) for result in results}
    rows = _Rows(int(identifier), location, invocation)
    tables: dict[str, list[str]] = {}
    for result in results:
        target = _artifacts(location, runs[result.key])
        source = _artifacts(location, first[result.key]) if result.key in first else None
        tables[result.key] = _copy_artifacts(result, settings, target, source)
    above = _artifacts(location, invocation.run_id(""))
    write_json(above / RECORD, record)
    write_json(above / "config.json", record["config"])
    from mlflow.store.tracking.dbmodels.models import SqlRun
    from sqlalchemy import select

    column = SqlRun.__table__.c.run_uuid
    logged = select(column).where(column == invocation.run_id(""))
    with begin(address) as connection:
        if connection.execute(logged).first() is None:
            rows.add_invocation(results, len(set(runs) - set(first)))
            for result in results:
                rows.add(result, runs[result.key], first.get(result.key), tables[result.key])
            rows.write(connection)
    return {result.key: (runs[result.key], result.key in first) for result in results}


class _Rows:
    """The rows of an invocation, gathered by table and written at once."""

    def __init__(self, experiment: int, location: str, invocation: Invocation) -> None:
        self._experiment, self._location, self._invocation = experiment, location, invocation
        self._now = time.time_ns() // 1_000_000
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._datasets: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)

    def add_invocation(self, results: Sequence[StageResult], new: int) -> None:
        """The parent run: the config of the experiment, and the verdicts."""
        invocation = self._invocation
        verdicts = [row for result in results for row in result.verdicts]
        counts: dict[str, float] = {"results": len(results), "new_results": new}
        counts |= {f"verdicts/{word}": count for word, count in verdict_counts(verdicts).items()}
        tags = {
            "stage": INVOCATION_STAGE,
            "name": invocation.name,
            "logged_utc": invocation.logged_utc,
            "results": str(len(results)),
            "new": str(new),
        }
        run = invocation.run_id("")
        self._add_run(run, invocation.name, 0.0, tags, _verdict_tags(verdicts))
        self._add_params(run, invocation.config)
        self._add_metrics(run, counts, ())

    def add(self, result: StageResult, run: str, first: str | None, tables: list[str]) -> None:
        """A result below its invocation, with a link to the first run of the same."""
        tags = {
            **{key: getattr(result, key) for key in ("stage", "name", "digest", "key")},
            "files": ", ".join(path.name for path in result.artifacts),
        }
        if result.fidelity:
            tags["fidelity"] = result.fidelity
        if first is not None:
            tags["first_run"] = first
        others = {"mlflow.parentRunId": self._invocation.run_id("")}
        if tables:
            listed = [{"path": path, "type": "table"} for path in tables]
            others["mlflow.loggedArtifacts"] = json.dumps(listed)
        others |= _verdict_tags(result.verdicts)
        self._add_run(run, result.title, result.job.get("seconds", 0.0), tags, others)
        self._add_params(run, result.config)
        job = {f"job.{key}": value for key, value in result.job.items()}
        few = few_numbers(result.metrics, _MOST_CHARTS)
        self._add_metrics(run, {**few, **job}, result.curves)
        for context, files in (("input", result.inputs), ("output", result.outputs)):
            for name, digest in files.items():
                key = (name[-500:], digest[:_DATASET_CHARACTERS])
                self._datasets[key].append((run, context))

    def write(self, connection: Any) -> None:
        """Everything that was added, in one go."""
        from mlflow.store.tracking.dbmodels import models
        from sqlalchemy import insert

        self._add_datasets(connection)
        for name in _TABLES:
            if rows := self._rows[name]:
                connection.execute(insert(getattr(models, name)), rows)

    def _add_run(
        self,
        run: str,
        title: str,
        seconds: float,
        tags: Mapping[str, str],
        others: Mapping[str, str],
    ) -> None:
        """A run with this project's tags, its invocation's among them, and others."""
        self._rows["SqlRun"].append(
            {
                "run_uuid": run,
                "name": title[:_KEY_CHARACTERS],
                "source_type": "LOCAL",
                "status": "FINISHED",
                # It lasts as long as its job did.
                "start_time": self._now - round(seconds * 1000),
                "end_time": self._now,
                "lifecycle_stage": "active",
                "artifact_uri": f"{self._location}/{run}/artifacts",
                "experiment_id": self._experiment,
                **dict.fromkeys(("source_name", "source_version", "entry_point_name"), ""),
                "user_id": "",
            }
        )
        tags = {**tags, "invocation": self._invocation.name, **self._invocation.tags}
        given = {"mlflow.runName": title, **{f"{TAG}{key}": tags[key] for key in tags}, **others}
        self._rows["SqlTag"] += (
            {"run_uuid": run, "key": key, "value": value[:_TAG_CHARACTERS]}
            for key, value in {_allowed(key): value for key, value in given.items()}.items()
        )

    def _add_params(self, run: str, config: Mapping[str, Any]) -> None:
        leaves = dotted_leaves(config)
        given = {_allowed(key): str(value)[:_PARAM_CHARACTERS] for key, value in leaves}
        self._rows["SqlParam"] += (
            {"run_uuid": run, "key": key, "value": value} for key, value in given.items()
        )

    def _add_metrics(self, run: str, values: Mapping[str, float], curves: Sequence[Curve]) -> None:
        last: dict[str, dict[str, Any]] = {}
        for name, step, value in _steps(values, curves):
            row = {
                "run_uuid": run,
                "key": name,
                "value": value,
                "timestamp": self._now,
                "step": step,
                "is_nan": False,
            }
            self._rows["SqlMetric"].append(row)
            last[name] = row
        self._rows["SqlLatestMetric"] += last.values()

    def _add_datasets(self, connection: Any) -> None:
        """Input and output files as data sets, which many runs share."""
        from mlflow.store.tracking.dbmodels.models import SqlDataset
        from sqlalchemy import select
        from sqlalchemy.dialects import postgresql, sqlite

        table = SqlDataset.__table__
        given = sorted(self._datasets)
        if not given:
            return
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        # In one order, so that two jobs never wait for each other.
        connection.execute(
            dialect.insert(SqlDataset).on_conflict_do_nothing(),
            [
                {
                    "dataset_uuid": uuid.uuid4().hex,
                    "experiment_id": self._experiment,
                    "name": name,
                    "digest": digest,
                    "dataset_source_type": "local",
                    "dataset_source": json.dumps({"uri": name}),
                }
                for name, digest in given
            ],
        )
        columns = (table.c.name, table.c.digest, table.c.dataset_uuid)
        asked = select(*columns).where(table.c.experiment_id == self._experiment)
        logged = {(name, digest): link for name, digest, link in connection.execute(asked)}
        for key in given:
            joined: dict[str, list[str]] = defaultdict(list)
            for run, context in self._datasets[key]:
                joined[run].append(context)
            for run, contexts in joined.items():
                link = {"input_uuid": uuid.uuid4().hex}
                source = {"source_type": "DATASET", "source_id": logged[key]}
                target = {"destination_type": "RUN", "destination_id": run}
                self._rows["SqlInput"].append(link | source | target)
                tag = {"name": "mlflow.data.context", "value": ", ".join(contexts)}
                self._rows["SqlInputTag"].append(link | tag)


def _steps(
    values: Mapping[str, float], curves: Sequence[Curve]
) -> Iterator[tuple[str, int, float]]:
    """Every metric with its step, a step once for each name, in order."""
    for name, value in {_allowed(name): value for name, value in values.items()}.items():
        yield name, 0, value
    for curve in curves:
        unit = 1 if all(step == round(step) for step, _ in curve.points) else _STEPS
        points = {round(step * unit): value for step, value in curve.points}
        for step, value in points.items():
            yield _allowed(curve.name), step, value


def _verdict_tags(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {f"verdict.{row['claim']}": str(row["verdict"]) for row in rows}


def _artifacts(location: str, run: str) -> Path:
    folder = artifact_folder(location)
    if folder is None:
        raise UserError(f"MLflow's artifacts: got {location}; allowed: a folder")
    return folder / run / "artifacts"


def _copy_artifacts(
    result: StageResult, settings: TrackingSettings, target: Path, source: Path | None
) -> list[str]:
    """Copy the files of a result, or link those that its first run has.

    Returns the paths of the tables that MLflow shows.
    """
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    if result.inputs or result.outputs:
        lineage = {"inputs": dict(result.inputs), "outputs": dict(result.outputs)}
        write_json(target / "lineage.json", lineage)
    if len(values := numbers(result.metrics)) > _MOST_CHARTS:
        write_json(target / "numbers.json", values)
    tables = []
    for path in result.artifacts:
        if path.stat().st_size > settings.artifact_limit_mb * 1e6:
            continue
        if not _link(source, path.name, target):
            shutil.copyfile(path, target / path.name)
        if path.suffix != ".parquet":
            continue
        shown = f"tables/{path.stem}.json"
        if not _link(source, shown, target):
            contents = table_json(path, settings.table_rows)
            if contents is None:
                continue
            write_json(target / shown, contents)
        tables.append(shown)
    return tables


def _link(source: Path | None, name: str, target: Path) -> bool:
    """Link a file of the first run, where it has it; whether it has."""
    if source is None or not (source / name).exists():
        return False
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source / name, target / name)
    except OSError:
        # Another file system, or one without links.
        shutil.copyfile(source / name, target / name)
    return True


def _allowed(key: str) -> str:
    """A key with the characters that MLflow takes, and no more of them."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:_KEY_CHARACTERS]
