"""The MLflow store: moved with its folder, on a PostgreSQL server, and written by eight
jobs at once.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.tracking.compare import compare_invocations, list_invocations
from railx.tracking.results import StageResult
from railx.tracking.runs import log_runs
from railx.tracking.store import finished_runs, open_store, store_address
from tests.builders import checked
from tests.tracking.conftest import Tracked, at_once, results

pytestmark = pytest.mark.system

JOBS = 8


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of an empty database on a server of our own."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    tool = str(found[-1]) if found else shutil.which("initdb")
    if tool is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    binaries = Path(tool).resolve().parent
    # The server refuses to run as root, and its socket needs a short path.
    own: dict[str, Any] = {"user": "postgres"} if os.getuid() == 0 else {}
    place = Path(tempfile.mkdtemp(prefix="railx-pg-", dir="/tmp"))
    if own:
        shutil.chown(place, own["user"])

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [binaries / program, *arguments],
            cwd=place,
            env={**os.environ, "LC_ALL": "C"},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **own,
        )

    data = str(place / "data")
    user = own.get("user", getpass.getuser())
    try:
        run("initdb", "-D", data, "-U", user, "-A", "trust", "--no-sync")
        options = f"-k {place} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", str(place / "log"), "-o", options, "start")
        try:
            run("createdb", "-h", str(place), "-U", user, "runs")
            yield f"postgresql://{user}@/runs?host={place}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place)


def one_job(folder: Path, sources: Path, store: str | None, number: int) -> None:
    """What one of several tracking jobs does; two results are everyone's."""
    settings = replace(checked("tracking", "default"), mlflow_store=store, wandb="disabled")
    own = StageResult("network", "own", f"own {number}", {"number": number}, {"number": number})
    given = [*results(sources / str(number))[:2], own]
    log_runs(given, settings, folder=folder, experiment="quick", invocation=f"run-{number}")


def eight_jobs(folder: Path, sources: Path, store: str | None) -> None:
    at_once(one_job, [(folder, sources, store, number) for number in range(JOBS)])
    listed = list_invocations(folder)
    assert {row["invocation"] for row in listed} == {f"run-{number}" for number in range(JOBS)}
    assert {row["runs"] for row in listed} == {3}
    client = open_store(folder, create=False)
    runs = finished_runs(client, [client.get_experiment_by_name("quick").experiment_id])
    assert len(runs) == 4 * JOBS
    numbers = {run.data.metrics["number"] for run in runs if "number" in run.data.metrics}
    assert numbers == set(range(JOBS))
    for run in runs:
        if run.data.tags["railx.name"] == "hyperx" and run.data.tags["railx.stage"] == "packets":
            assert len(client.get_metric_history(run.info.run_id, "sweep/latency")) == 2
            assert len(run.data.params) == 250


def test_eight_jobs_at_once_lose_nothing_in_sqlite(tmp_path: Path) -> None:
    eight_jobs(tmp_path / "results", tmp_path / "sources", None)


def test_eight_jobs_at_once_lose_nothing_in_postgresql(tmp_path: Path, postgresql: str) -> None:
    folder = tmp_path / "results"
    eight_jobs(folder, tmp_path / "sources", postgresql)
    assert not (folder / "mlflow.db").exists()
    # Whoever asks next needs not be told where the runs are.
    assert store_address(folder) == postgresql
    comparison = compare_invocations(folder, "run-1", "run-2")
    moved = [row for row in comparison["numbers"] if row["moved"]]
    assert [(row["name"], row["metric"]) for row in moved] == [("own", "number")]
    # Another folder can read the same store, and leaves its artifacts where they are.
    client = open_store(tmp_path / "other", create=True, store=postgresql)
    place = client.get_experiment_by_name("quick").artifact_location
    assert place == (folder / "mlflow_artifacts" / "quick").resolve().as_uri()
    # One that was moved is followed there too.
    moved_to = folder.rename(tmp_path / "moved")
    run = finished_runs(open_store(moved_to, create=False), ["1"])[0]
    assert run.info.artifact_uri.startswith((moved_to / "mlflow_artifacts").resolve().as_uri())


def test_a_moved_folder_keeps_every_artifact(tracked: Tracked, tmp_path: Path) -> None:
    before = {}
    client = open_store(tracked.folder, create=False)
    for runs in tracked.runs.values():
        for run in runs:
            before[run.mlflow_run] = contents(client, run.mlflow_run)
    assert any(len(files) > 3 for files in before.values())
    copied = tmp_path / "copied"
    shutil.copytree(tracked.folder, copied, symlinks=True)
    moved = copied.rename(tmp_path / "a new place")
    client = open_store(moved, create=False)
    for run, files in before.items():
        assert contents(client, run) == files
        assert client.get_run(run).info.artifact_uri.startswith(moved.resolve().as_uri())
    # The one it was copied from still reads its own files.
    again = open_store(tracked.folder, create=False)
    assert again.get_run(next(iter(before))).info.artifact_uri.startswith(
        tracked.folder.resolve().as_uri()
    )
    # A further invocation links what it finds where it stands now.
    settings = replace(checked("tracking", "default"), wandb="disabled")
    [run] = log_runs(
        results(tmp_path / "sources")[:1],
        settings,
        folder=moved,
        experiment="quick",
        invocation="run-4",
    )
    assert run.mlflow_logged_before
    assert contents(client, str(run.mlflow_run)) == before[tracked.runs["run-1"][0].mlflow_run]


def contents(client: Any, run: str) -> dict[str, bytes]:
    """Every artifact of a run as it is downloaded, by its path."""
    found, waiting = {}, [""]
    while waiting:
        for file in client.list_artifacts(run, waiting.pop()):
            if file.is_dir:
                waiting.append(file.path)
            else:
                found[file.path] = Path(client.download_artifacts(run, file.path)).read_bytes()
    return found


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mlflow.db: no tracked runs yet; allowed: a results"):
        open_store(tmp_path, create=False)
    with pytest.raises(ValueError, match=r"^other/mine.db: no tracked runs yet; allowed: a resul"):
        open_store(tmp_path, create=False, store="sqlite:///other/mine.db")
    assert list(tmp_path.iterdir()) == []
