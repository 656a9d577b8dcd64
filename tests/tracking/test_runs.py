"""Runs in a real SQLite MLflow store and real offline W&B folders: an invocation is
whole, found results are linked, nothing is added twice. Curves from rows: ranks become
one number, repeats a median and an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json
from railx.settings import SettingsError, load
from railx.tracking.compare import list_invocations
from railx.tracking.ledger import Ledger
from railx.tracking.results import Curve, StageResult
from railx.tracking.runs import log_runs
from railx.tracking.settings import TrackingSettings
from railx.tracking.stage_results import read_curves
from railx.tracking.store import finished_runs, open_store
from tests.builders import checked, choice
from tests.tracking.conftest import Tracked, results


def children(tracked: Tracked, invocation: str) -> list[Any]:
    client = open_store(tracked.folder, create=False)
    experiment = client.get_experiment_by_name("quick").experiment_id
    condition = f"tags.`railx.invocation` = '{invocation}' and tags.`railx.stage` != 'invocation'"
    return finished_runs(client, [experiment], condition)


def test_every_invocation_is_whole_and_says_what_it_found(tracked: Tracked) -> None:
    found = {
        name: [run.mlflow_logged_before for run in runs] for name, runs in tracked.runs.items()
    }
    assert found == {
        "run-1": [False] * 5,
        "run-2": [True] * 5,
        "run-3": [False, True, False, False, True],
    }
    for name, runs in tracked.runs.items():
        assert [run.wandb_logged_before for run in runs] == found[name]
        assert {run.info.run_id for run in children(tracked, name)} == {
            run.mlflow_run for run in runs
        }
        logged = [line for line in Ledger(tracked.folder).runs() if line["invocation"] == name]
        assert {line["run"] for line in logged if line["key"]} == {run.wandb_run for run in runs}
        assert len(logged) == 6
    ids = [run.mlflow_run for runs in tracked.runs.values() for run in runs]
    assert len(set(ids)) == 15


def test_a_found_result_names_its_first_run_and_holds_the_same(tracked: Tracked) -> None:
    client = open_store(tracked.folder, create=False)
    for place, run in enumerate(tracked.runs["run-2"]):
        first, again = (
            client.get_run(one.mlflow_run) for one in (tracked.runs["run-1"][place], run)
        )
        assert again.data.tags["railx.first_run"] == first.info.run_id
        assert "railx.first_run" not in first.data.tags
        assert again.data.metrics == first.data.metrics
        assert again.data.params == first.data.params
        names = [
            sorted(file.path for file in client.list_artifacts(one.info.run_id))
            for one in (first, again)
        ]
        assert names[0] == names[1]
    # The third invocation links what it found to the very first run, not to the copy.
    third = client.get_run(tracked.runs["run-3"][1].mlflow_run)
    assert third.data.tags["railx.first_run"] == tracked.runs["run-1"][1].mlflow_run


def test_mlflow_holds_params_metrics_tags_and_files(tracked: Tracked) -> None:
    client = open_store(tracked.folder, create=False)
    run = client.get_run(tracked.runs["run-1"][0].mlflow_run)
    assert run.data.metrics == {"chips": 1296.0, "all to all_ GB/s.bound": 49.9, "ok": 1.0}
    assert {key: run.data.params[key] for key in ("m", "nested.rails")} == {
        "m": "4",
        "nested.rails": "[1, 2]",
    }
    assert len(run.data.params["long"]) == 6000
    wanted = {
        "stage": "network",
        "name": "hyperx",
        "digest": "network 49.9",
        "fidelity": "analytic",
        "commit": "abc",
        "invocation": "run-1",
    }
    assert {key: run.data.tags[f"railx.{key}"] for key in wanted} == wanted
    assert run.data.tags["railx.files"] == "small.json, large.bin, bounds.parquet"
    listed = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert listed == {"small.json", "bounds.parquet", "tables", "lineage.json"}
    shown = read_json(client.download_artifacts(run.info.run_id, "tables/bounds.json"))
    assert shown == {"columns": ["topology", "bound", "note"], "data": [["hyperx", 49.9, None]]}
    assert len(client.get_run(tracked.runs["run-1"][1].mlflow_run).data.params) == 250


def test_mlflow_holds_the_history_and_how_long_the_job_took(tracked: Tracked) -> None:
    client = open_store(tracked.folder, create=False)
    training, packets = (tracked.runs["run-1"][place].mlflow_run for place in (2, 1))
    history = client.get_metric_history(training, "on_demand_50ms/iteration_ms")
    assert [(point.step, point.value) for point in history] == [(1, 180.0), (2, 181.0), (3, 179.0)]
    run = client.get_run(training)
    assert run.data.metrics["on_demand_50ms/iteration_ms"] == 179.0
    assert run.data.metrics["job.seconds"] == 12.5
    assert run.info.end_time - run.info.start_time == 12500
    # Loads are no whole numbers: they count in thousandths.
    swept = client.get_metric_history(packets, "sweep/latency")
    assert [(point.step, point.value) for point in swept] == [(500, 23.0), (1062, 31.0)]


def test_verdicts_are_tags_and_lineage_is_data_sets(tracked: Tracked) -> None:
    client = open_store(tracked.folder, create=False)
    experiment = client.get_experiment_by_name("quick").experiment_id
    evidence = client.get_run(tracked.runs["run-3"][3].mlflow_run)
    assert evidence.data.tags["verdict.faster"] == "not reproduced"
    above = client.get_run(evidence.data.tags["mlflow.parentRunId"])
    assert above.info.run_name == "run-3"
    assert above.data.tags["verdict.faster"] == "not reproduced"
    assert above.data.metrics == {
        "results": 5.0,
        "new_results": 3.0,
        "verdicts/not_reproduced": 1.0,
        "verdicts/reproduced": 1.0,
    }
    assert above.data.params["runs.quick.steps"] == "5"
    network = client.get_run(tracked.runs["run-1"][0].mlflow_run)
    sets = {
        (one.dataset.name, one.dataset.digest, one.tags[0].value)
        for one in network.inputs.dataset_inputs
    }
    assert sets == {
        ("topology/hyperx/graph.parquet", "a" * 36, "input"),
        ("network/hyperx/bounds.parquet", "b" * 36, "output"),
    }
    digest = "b" * 36
    asked = client.search_runs([experiment], f"dataset.digest = '{digest}'")
    assert {run.data.tags["railx.name"] for run in asked} == {"hyperx"}


def test_an_experiment_opens_on_its_runs_with_few_charts(tmp_path: Path) -> None:
    client = open_store(tmp_path, create=True)
    # One that an older version made is told later.
    client.create_experiment("quick")
    metrics = {f"number_{i}": i for i in range(127)}
    result = StageResult("network", "torus", "digest", {}, metrics)
    settings = replace(checked("tracking", "default"), wandb="disabled")
    (run,) = log_runs([result], settings, folder=tmp_path, experiment="quick", invocation="run-1")
    kind = client.get_experiment_by_name("quick").tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"
    logged = client.get_run(run.mlflow_run)
    assert len(logged.data.metrics) == 12
    # All of them are among its files.
    stored = Path(logged.info.artifact_uri.removeprefix("file://")) / "numbers.json"
    assert read_json(stored) == metrics


def test_offline_folders_and_names_tell_runs_apart(tracked: Tracked) -> None:
    lines = [line for line in Ledger(tracked.folder).runs() if line["invocation"] == "run-1"]
    for line in lines:
        about = f"-quick-{line['stage']}" + (f"-{line['name']}-" if line["key"] else "-")
        assert about in line["folder"]
    assert len({line["folder"] for line in lines}) == len(lines)


def test_the_same_call_again_adds_nothing(tracked: Tracked, tmp_path: Path) -> None:
    settings = checked("tracking", "default")
    folder = tmp_path / "results"

    def log() -> Any:
        return log_runs(
            results(tmp_path / "sources")[2:],
            settings,
            folder=folder,
            experiment="quick",
            invocation="run-1",
        )

    first = log()
    ledger = Ledger(folder).lines()
    assert log() == first
    assert Ledger(folder).lines() == ledger
    client = open_store(folder, create=False)
    assert len(finished_runs(client, [client.get_experiment_by_name("quick").experiment_id])) == 4
    assert len(list((folder / "wandb").glob("offline-run-*/*.wandb"))) == 4
    assert [(row["runs"], row["new"]) for row in list_invocations(folder)] == [(3, 3)]


def test_what_was_measured_again_is_a_new_result(tmp_path: Path) -> None:
    settings = replace(checked("tracking", "default"), wandb="disabled")
    found = []
    for invocation, contents in (("run-1", "x"), ("run-2", "y"), ("run-3", "x")):
        result = StageResult("training", "quick", "d", {}, {"ms": 1}, contents=contents)
        [run] = log_runs(
            [result], settings, folder=tmp_path, experiment="quick", invocation=invocation
        )
        found.append((run.mlflow_logged_before, run.wandb_run))
    assert found == [(False, None), (False, None), (True, None)]


def test_runs_that_others_log_at_the_same_time_are_left_alone(tmp_path: Path) -> None:
    settings = replace(checked("tracking", "default"), wandb="disabled")
    client = open_store(tmp_path, create=True)
    place = (tmp_path / "elsewhere").as_uri()
    experiment = client.create_experiment("quick", artifact_location=place)
    other = client.create_run(experiment, tags={"railx.digest": "d9"}).info.run_id
    result = StageResult("network", "half", "d9", {}, {"chips": 1})
    log_runs([result], settings, folder=tmp_path, experiment="quick", invocation="run-1")
    assert client.get_run(other).info.lifecycle_stage == "active"
    client.delete_experiment(experiment)
    [again] = log_runs([result], settings, folder=tmp_path, experiment="quick", invocation="run-2")
    assert again.mlflow_run is not None


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wandb": "on"}, r"tracking.wandb: got 'on'; allowed: offline, online, disabled"),
        ({"artifact_limit_mb": -1}, r"artifact_limit_mb: got -1.0; allowed: 0 or greater"),
        (
            {"mlflow_store": "mysql://host/runs"},
            r"mlflow_store: got a mysql address; allowed: null",
        ),
        ({"mlflow_store": "results"}, r"tracking.mlflow_store: got a relative address"),
        ({"mlflow_store": "postgresql://host"}, r"mlflow_store: got a postgresql address"),
    ],
)
def test_settings_name_what_is_allowed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(TrackingSettings, {**choice("tracking", "default"), **change}, "tracking")


def test_a_password_is_refused_and_not_repeated() -> None:
    given = {**choice("tracking", "default"), "mlflow_store": "postgresql://me:secret@host/runs"}
    with pytest.raises(SettingsError, match=r"mlflow_store: got an address with a pass") as refused:
        load(TrackingSettings, given, "tracking")
    assert "secret" not in str(refused.value)


STEPS: dict[str, Any] = {"step": "iteration", "curve": "{mode}_{latency:g}ms"}


def row(iteration: int, ms: float, loss: float = 1.0, **other: Any) -> dict[str, Any]:
    return {
        "mode": "on_demand",
        "latency": 50.0,
        "iteration": iteration,
        "ms": ms,
        "loss": loss,
        **other,
    }


def test_the_rows_of_a_step_become_one_number() -> None:
    rows = [row(2, 5.0), row(1, 3.0, 2.0, rank=0), row(1, 4.0, 4.0, rank=1)]
    found = read_curves(rows, **STEPS, values={"ms": "max", "loss": "mean"})
    assert found.curves == (
        Curve("on_demand_50ms/ms", "iteration", ((1.0, 4.0), (2.0, 5.0))),
        Curve("on_demand_50ms/loss", "iteration", ((1.0, 3.0), (2.0, 1.0))),
    )
    assert (found.intervals, found.points) == ({}, {})


def test_repeats_have_curves_of_their_own_and_a_median() -> None:
    rows = [
        row(1, ms + iteration, repeat=repeat, disturbed=disturbed) | {"iteration": iteration}
        for repeat, (ms, disturbed) in enumerate(
            ((10, False), (12, False), (90, True), (11, False))
        )
        for iteration in (1, 2)
    ]
    found = read_curves(rows, **STEPS, values={"ms": "max"}, repeat="repeat", aside="disturbed")
    curves = {curve.name: curve.points for curve in found.curves}
    assert curves["on_demand_50ms/ms"] == ((1.0, 12.0), (2.0, 13.0))
    assert curves["on_demand_50ms/repeat_2/ms"] == ((1.0, 91.0), (2.0, 92.0))
    assert len(curves) == 5
    assert found.intervals == {"on_demand_50ms.ms": (11.5, 13.5)}


def test_where_all_repeats_were_disturbed_they_are_drawn_without_an_interval() -> None:
    rows = [row(1, ms, repeat=ms, disturbed=True) for ms in (10, 30, 20)]
    found = read_curves(rows, **STEPS, values={"ms": "max"}, repeat="repeat", aside="disturbed")
    assert found.curves[0].points == ((1.0, 20.0),)
    assert found.intervals == {}


def test_one_repeat_or_none_is_the_curve_itself() -> None:
    for rows in ([row(1, 3.0, repeat=0)], [row(1, 3.0)]):
        found = read_curves(rows, **STEPS, values={"ms": "max"}, repeat="repeat")
        assert [curve.name for curve in found.curves] == ["on_demand_50ms/ms"]
        assert found.intervals == {}


def test_steps_that_are_settings_are_numbers_of_their_own() -> None:
    rows = [
        {"load": load, "seed": seed, "latency": load * 10 + seed}
        for load in (0.5, 1.25)
        for seed in (1, 2, 3)
    ]
    found = read_curves(
        rows, step="load", curve="sweep", values={"latency": "mean"}, repeat="seed", settings=True
    )
    assert found.points == {"sweep.latency@0.5": 7.0, "sweep.latency@1.25": 14.5}
    assert found.intervals == {"sweep.latency@0.5": (6.0, 8.0), "sweep.latency@1.25": (13.5, 15.5)}


def test_what_is_no_number_is_left_out_and_an_unknown_word_refused() -> None:
    rows = [row(1, float("nan")), row(2, 3.0), {**row(3, 1.0), "ms": None}]
    found = read_curves(rows, **STEPS, values={"ms": "max"})
    assert found.curves == (Curve("on_demand_50ms/ms", "iteration", ((2.0, 3.0),)),)
    with pytest.raises(ValueError, match="history: got sum; allowed: max, mean"):
        read_curves(rows, **STEPS, values={"ms": "sum"})
