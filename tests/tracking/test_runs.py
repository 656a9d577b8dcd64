"""Runs in a real SQLite MLflow store and real offline W&B folders: added once, found
again, grouped, compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from railx.io import read_json
from railx.settings import SettingsError, load
from railx.tracking import (
    StageResult,
    TrackedRun,
    TrackingSettings,
    compare_runs,
    list_invocations,
    log_runs,
)
from railx.tracking.store import finished_runs, open_store
from tests.builders import checked, choice


def results(folder: Path, hyperx_bound: float = 49.9, digest: str = "d1") -> list[StageResult]:
    small, large = folder / "small.json", folder / "large.bin"
    small.write_text("{}")
    large.write_bytes(bytes(2_000_000))
    config = {"family": "railx_hyperx", "m": 4, "nested": {"rails": [1, 2]}, "long": "x" * 10_000}
    metrics = {
        "chips": 1296,
        "all to all, GB/s": {"bound": hyperx_bound},
        "name": "text",
        "nothing": None,
        "nan": float("nan"),
        "ok": True,
    }
    return [
        StageResult("network", "hyperx", digest, config, metrics, "analytic", (small, large)),
        StageResult(
            "network",
            "fat_tree",
            "d2",
            {f"key_{i}": i for i in range(250)},
            {"chips": 1250},
            "analytic",
        ),
        StageResult(
            "training", "quick", "d3", {"seed": 1}, {"iteration_ms": 180.5}, "measured_cpu"
        ),
    ]


Tracked = tuple[Path, list[TrackedRun], list[TrackedRun], list[TrackedRun]]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """Three invocations: the first, the same again, and one with a changed result; run
    from a folder that must stay clean.
    """
    folder, sources, elsewhere = (
        tmp_path_factory.mktemp(name) for name in ("results", "sources", "elsewhere")
    )
    settings, before, environment = checked("tracking", "default"), Path.cwd(), dict(os.environ)
    os.chdir(elsewhere)
    try:
        runs = [
            log_runs(
                given,
                settings,
                folder=folder,
                experiment="quick",
                invocation=invocation,
                commit="abc",
            )
            for invocation, given in (
                ("run-1", results(sources)),
                ("run-2", results(sources)),
                ("run-3", results(sources, 60.0, "d1-changed")),
            )
        ]
    finally:
        os.chdir(before)
    assert list(elsewhere.iterdir()) == []
    assert {key for key in os.environ if key.startswith("WANDB")} == {
        key for key in environment if key.startswith("WANDB")
    }
    return folder, runs[0], runs[1], runs[2]


def test_a_rerun_finds_its_runs_and_a_change_adds_one(tracked: Tracked) -> None:
    folder, first, second, third = tracked
    assert [(run.mlflow_found, run.wandb_found) for run in first] == [(False, False)] * 3
    assert [(run.mlflow_found, run.wandb_found) for run in second] == [(True, True)] * 3
    assert [(run.mlflow_found, run.wandb_found) for run in third] == [
        (False, False),
        (True, True),
        (True, True),
    ]
    assert [run.mlflow_run for run in first] == [run.mlflow_run for run in second]
    assert [run.wandb_run for run in first] == [run.wandb_run for run in second]
    client = open_store(folder, create=False)
    assert len(finished_runs(client, [client.get_experiment_by_name("quick").experiment_id])) == 4
    assert len(list((folder / "wandb").glob("offline-run-*/*.wandb"))) == 4


def test_mlflow_holds_params_metrics_tags_and_small_files(tracked: Tracked) -> None:
    folder, first, _, _ = tracked
    client = open_store(folder, create=False)
    run = client.get_run(first[0].mlflow_run)
    assert run.data.metrics == {"chips": 1296.0, "all to all_ GB/s.bound": 49.9, "ok": 1.0}
    assert {key: run.data.params[key] for key in ("m", "nested.rails")} == {
        "m": "4",
        "nested.rails": "[1, 2]",
    }
    assert len(run.data.params["long"]) == 6000
    wanted = {
        "stage": "network",
        "name": "hyperx",
        "digest": "d1",
        "fidelity": "analytic",
        "commit": "abc",
        "invocation": "run-1",
    }
    assert {key: run.data.tags[f"railx.{key}"] for key in wanted} == wanted
    assert run.data.tags["railx.files"] == "small.json, large.bin"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["small.json"]
    assert len(client.get_run(first[1].mlflow_run).data.params) == 250


def test_ledger_names_the_folder_of_every_offline_run(tracked: Tracked) -> None:
    folder, first, _, _ = tracked
    ledger = read_json(folder / "wandb" / "ledger.json")
    assert set(ledger["runs"]) == {
        "quick/network/hyperx@d1",
        "quick/network/hyperx@d1-changed",
        "quick/network/fat_tree@d2",
        "quick/training/quick@d3",
    }
    entry = ledger["runs"]["quick/network/hyperx@d1"]
    assert entry["run"] == first[0].wandb_run
    assert entry["invocation"] == "run-1"
    written = folder / "wandb" / entry["folder"] / f"run-{entry['run']}.wandb"
    contents = written.read_bytes()
    for text in (b"network/hyperx", b"run-1", b"railx-lab", b"49.9"):
        assert text in contents


def test_invocations_are_listed_and_compared(tracked: Tracked) -> None:
    folder, *_ = tracked
    listed = list_invocations(folder)
    assert [(row["invocation"], row["runs"], row["new"]) for row in listed] == [
        ("run-1", 3, 3),
        ("run-2", 3, 0),
        ("run-3", 3, 1),
    ]
    same = compare_runs(folder, "run-1", "run-2")
    assert {(row["stage"], row["name"], row["metric"]) for row in same} == {
        ("network", "hyperx", "chips"), ("network", "hyperx", "ok"),
        ("network", "hyperx", "all to all_ GB/s.bound"),
        ("network", "fat_tree", "chips"), ("training", "quick", "iteration_ms"),
    }  # fmt: skip
    assert all(row["ratio"] == 1.0 for row in same)
    changed = {
        (row["name"], row["metric"]): row
        for row in compare_runs(folder, "previous", "latest", "quick")
    }
    row = changed["hyperx", "all to all_ GB/s.bound"]
    assert (row["a"], row["b"]) == (49.9, 60.0)
    assert row["ratio"] == pytest.approx(60.0 / 49.9)


def test_unknown_invocations_and_empty_folders_are_named(tracked: Tracked, tmp_path: Path) -> None:
    folder, *_ = tracked
    with pytest.raises(
        ValueError, match="invocation: got 'run-9'; allowed: run-1, run-2, run-3, latest, previous"
    ):
        compare_runs(folder, "run-1", "run-9")
    with pytest.raises(ValueError, match="experiment: got 'paper'; allowed: Default, quick"):
        list_invocations(folder, "paper")
    with pytest.raises(ValueError, match=r"mlflow.db: no tracked runs yet"):
        list_invocations(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_half_logged_run_is_replaced(tracked: Tracked, tmp_path: Path) -> None:
    folder, *_ = tracked
    client = open_store(folder, create=False)
    experiment = client.create_experiment("killed", artifact_location=tmp_path.as_uri())
    result = StageResult("network", "half", "d9", {}, {"chips": 1})
    half = client.create_run(
        experiment, tags={"railx.stage": "network", "railx.name": "half", "railx.digest": "d9"}
    ).info.run_id
    settings = replace(checked("tracking", "default"), wandb="disabled")
    [run] = log_runs([result], settings, folder=folder, experiment="killed", invocation="again")
    assert (run.mlflow_found, run.wandb_run) == (False, None)
    assert run.mlflow_run != half
    assert client.get_run(half).info.lifecycle_stage == "deleted"
    client.delete_experiment(experiment)
    [again] = log_runs([result], settings, folder=folder, experiment="killed", invocation="again")
    assert again.mlflow_found
    client.delete_experiment(experiment)


def test_off_writes_nothing(tmp_path: Path) -> None:
    result = StageResult("network", "hyperx", "d1", {}, {"chips": 1})
    [run] = log_runs(
        [result],
        checked("tracking", "off"),
        folder=tmp_path / "results",
        experiment="quick",
        invocation="run-1",
    )
    assert (run.mlflow_run, run.wandb_run) == (None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "experiment", "invocation", "message"),
    [
        ([("a", "b")], "quick run", "run-1", "experiment: got 'quick run'; allowed: letters"),
        ([("a", "b")], "quick", "../run", "invocation: got '../run'; allowed: letters"),
        ([("a", "b"), ("a", "b")], "quick", "run-1", "a/b given more than once"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_written(
    given: Sequence[tuple[str, str]], experiment: str, invocation: str, message: str, tmp_path: Path
) -> None:
    made = [StageResult(stage, name, f"d{i}", {}, {}) for i, (stage, name) in enumerate(given)]
    with pytest.raises(ValueError, match=message):
        log_runs(
            made,
            checked("tracking", "default"),
            folder=tmp_path,
            experiment=experiment,
            invocation=invocation,
        )
    assert list(tmp_path.iterdir()) == []


def test_settings_name_what_is_allowed() -> None:
    plain = choice("tracking", "default")
    with pytest.raises(
        SettingsError, match=r"tracking.wandb: got 'on'; allowed: offline, online, disabled"
    ):
        load(TrackingSettings, {**plain, "wandb": "on"}, "tracking")
    with pytest.raises(
        SettingsError, match=r"tracking.artifact_limit_mb: got -1.0; allowed: 0 or greater"
    ):
        load(TrackingSettings, {**plain, "artifact_limit_mb": -1}, "tracking")
