"""What W&B has written offline, read back with W&B's own reader; its views; uploads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json
from railx.tracking.ledger import Ledger
from railx.tracking.sync import pending_runs, pending_views, sync
from tests.commands import environment, python
from tests.tracking.conftest import LATENCIES, TIMES, Tracked, at_once


def records(tracked: Tracked, run: str | None) -> list[dict[str, Any]]:
    """The records of an offline run, as `wandb leet inspect` reads them."""
    (line,) = (line for line in Ledger(tracked.folder).runs() if line["run"] == run)
    place = tracked.folder / "wandb" / line["folder"]
    done = python("-m", "wandb", "leet", "inspect", "--json", place)
    assert done.returncode == 0, done.stderr
    return [json.loads(row) for row in done.stdout.splitlines()]


def of_kind(found: list[dict[str, Any]], kind: str) -> list[Any]:
    return [record[kind] for record in found if record["type"] == kind]


def history(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row["item"] for row in of_kind(found, "history")]


def metrics_named(names: Mapping[str, Any]) -> set[str]:
    """Every metric and media key that the panels ask for."""
    return (
        set(names["steps"])
        | {curve for curves in names["steps"].values() for curve in curves}
        | {f"verdict_counts.{verdict}" for verdict in names["verdicts"]}
        | ({"job.seconds"} if names["jobs"] else set())
        | set(names["media"])
    )


def test_history_steps_and_summary_are_read_back(tracked: Tracked) -> None:
    found = records(tracked, tracked.runs["run-1"][2].wandb_run)
    rows = [(row[TIMES[1]], row[TIMES[0]]) for row in history(found) if TIMES[0] in row]
    assert rows == [(1, 180), (2, 181), (3, 179)]
    steps = {one["name"]: one.get("step_metric") for one in of_kind(found, "metric")}
    assert steps == {TIMES[1]: None, TIMES[0]: TIMES[1]}
    (run,) = of_kind(found, "run")
    assert run["run_group"] == "run-1"
    assert run["config"]["update"]["seed"] == 1
    updates = [one.get("update", {}) for one in of_kind(found, "summary")]
    assert {"seconds": 12.5, "cpu_seconds": 20} in [one.get("job") for one in updates]
    assert {"iteration_ms": 180} in [one.get("on_demand_50ms") for one in updates]


def test_a_found_result_is_whole_in_its_new_group(tracked: Tracked) -> None:
    first, again = (
        records(tracked, tracked.runs[name][1].wandb_run) for name in ("run-1", "run-2")
    )
    rows = [
        [(row[LATENCIES[1]], row[LATENCIES[0]]) for row in history(found)]
        for found in (first, again)
    ]
    assert rows[0] == rows[1] == [(0.5, 23), (1.0625, 31)]
    (run,) = of_kind(again, "run")
    assert run["run_group"] == "run-2"
    assert run["config"]["update"]["railx"]["first_run"] == tracked.runs["run-1"][1].wandb_run


def test_pictures_pages_tables_verdicts_and_digests_are_there(tracked: Tracked) -> None:
    lines = {line["run"]: line["folder"] for line in Ledger(tracked.folder).runs()}
    network, _, _, evidence, figure = (run.wandb_run for run in tracked.runs["run-3"])
    media = tracked.folder / "wandb" / lines[figure] / "files" / "media"
    assert [path.suffix for path in media.rglob("figures/cost_*")] == [".png"]
    assert [path.suffix for path in media.rglob("pages/report_*")] == [".html"]
    table = tracked.folder / "wandb" / lines[network] / "files" / "media" / "table"
    (written,) = table.rglob("bounds_*.table.json")
    assert read_json(written)["data"] == [["hyperx", 60.0, None]]
    found = records(tracked, evidence)
    (run,) = of_kind(found, "run")
    assert "faster: not reproduced" in run["tags"]
    found = records(tracked, network)
    assert "sha256://" + "b" * 64 in json.dumps(of_kind(found, "artifact"))


def test_every_metric_that_the_views_name_was_logged(tracked: Tracked) -> None:
    views = read_json(tracked.folder / "wandb" / "quick.views.json")
    assert views["invocations"] == ["run-2", "run-3"]
    named = metrics_named(views["names"])
    assert {TIMES[0], LATENCIES[0], "figures/cost", "pages/report", "job.seconds"} <= named
    assert {"verdict_counts.not_reproduced", "verdict_counts.reproduced"} <= named
    logged: set[str] = set()
    above = [line["run"] for line in Ledger(tracked.folder).runs()
             if line["invocation"] == "run-3" and not line["key"]]  # fmt: skip
    for run in [*(one.wandb_run for one in tracked.runs["run-3"]), *above]:
        found = records(tracked, run)
        updates = [one.get("update", {}) for one in of_kind(found, "summary")]
        logged |= set().union(*map(names_in, [*history(found), *updates]))
    assert named <= logged
    # What the built views ask for is what they say they name.
    for view in ("workspace", "report"):
        drawn = panel_metrics(views[view])
        assert drawn
        assert drawn <= named


def names_in(node: Any, prefix: str = "") -> set[str]:
    """Dotted names of everything in a record, and of what they stand in."""
    parts = prefix.split(".")
    names = {".".join(parts[: i + 1]) for i in range(len(parts))}
    if isinstance(node, dict):
        for key, value in node.items():
            names |= names_in(value, f"{prefix}.{key}" if prefix else key)
    return names


def panel_metrics(node: Any) -> set[str]:
    """Metrics and media of all panels of a stored view."""
    if isinstance(node, list):
        return set().union(*map(panel_metrics, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    own = {*node.get("metrics", ()), *node.get("mediaKeys", ())} if "chartTitle" in node else set()
    own |= {node["xAxis"]} if "chartTitle" in node and "xAxis" in node else set()
    return own.union(*map(panel_metrics, node.values()))


def test_two_invocations_lie_over_one_another_in_the_report(tracked: Tracked) -> None:
    report = read_json(tracked.folder / "wandb" / "quick.views.json")["report"]
    grids = [block for block in report["spec"]["blocks"] if block["type"] == "panel-grid"]
    assert len(grids) == 3
    for grid in grids:
        assert [runs["name"] for runs in grid["metadata"]["runSets"]] == ["run-2", "run-3"]


def test_what_is_pending_is_uploaded_once(
    tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results"
    (folder / "wandb").mkdir(parents=True)
    for name in ("offline-run-1-a", "offline-run-2-b"):
        (folder / "wandb" / name).mkdir()
        (folder / "wandb" / name / f"run-{name[-1]}.wandb").write_bytes(b"")
    views = (tracked.folder / "wandb" / "quick.views.json").read_text(encoding="utf-8")
    (folder / "wandb" / "quick.views.json").write_text(views, encoding="utf-8")
    sent: list[str] = []

    def upload(runs: Sequence[Path]) -> None:
        for run in runs[: 1 if not sent else None]:
            sent.append(run.name)
            # The mark that wandb sets.
            (run / f"run-{run.name[-1]}.wandb.synced").touch()

    def save(kind: str, _: Any) -> None:
        sent.append(kind)

    functions = {"_check_login": lambda: None, "_upload": upload, "_save": save}
    for name, function in functions.items():
        monkeypatch.setattr(f"railx.tracking.sync.{name}", function)
    with pytest.raises(RuntimeError, match=r"1 of 2 runs were not uploaded, the first is .*-2-b"):
        sync(folder)
    assert sync(folder) == {"runs": 1, "views": 2}
    assert sync(folder) == {"runs": 0, "views": 0}
    assert sent == ["offline-run-1-a", "offline-run-2-b", "workspace", "report"]
    assert Ledger(folder).uploaded() >= {"offline-run-1-a", "offline-run-2-b"}
    (folder / "wandb" / "quick.views.json").write_text(views.replace("run-3", "run-4"))
    assert [kind for _, kind, _ in pending_views(folder)] == ["report"]


def test_without_a_login_there_is_one_line_and_nothing_is_sent(
    tracked: Tracked, tmp_path: Path
) -> None:
    own = environment(HOME=str(tmp_path), NETRC=str(tmp_path / "netrc"))
    own = {key: value for key, value in own.items() if not key.startswith("WANDB")}
    command = ["-m", "workflow.cli", "sync", "--results", tracked.folder]
    before = pending_runs(tracked.folder)
    done = python(*command, env=own)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: W&B: not logged in; run `wandb login` first, or set WANDB_API_KEY (nothing was"
        " sent)\n"
    )
    assert pending_runs(tracked.folder) == before
    dry = python(*command, "--dry-run", env=own)
    assert dry.stdout == "pending: 18 runs, 2 views\n"


def add_lines(folder: Path, number: int) -> None:
    ledger = Ledger(folder)
    for place in range(5):
        ledger.add({"run": f"{number}-{place}"})


def test_a_ledger_that_eight_jobs_write_loses_no_line(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "ledger.jsonl").write_bytes(b'{"run": "half')
    at_once(add_lines, [(tmp_path, number) for number in range(8)])
    wanted = {f"{number}-{place}" for number in range(8) for place in range(5)}
    assert {line["run"] for line in Ledger(tmp_path).runs()} == wanted


def test_nothing_of_an_offline_run_lies_outside_the_results(tracked: Tracked) -> None:
    assert sorted(path.name for path in tracked.folder.iterdir() if path.name[0] != ".") == [
        "mlflow.db",
        "mlflow_artifacts",
        "wandb",
    ]
    assert os.environ.get("WANDB_MODE") is None
