"""Planning of the next batch while this one is trained: on eight sharded ranks, with a
real planner process, and what happens when it is killed, refuses or differs.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from railx.io import read_json, read_rows, read_table, write_json
from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModelSettings
from railx.planning.format.files import plan_file, read_plan, write_plan
from railx.planning.format.plan import Plan
from railx.planning.make import make_plan
from railx.planning.planners import PlannerSettings
from railx.planning.replan import replanner
from railx.settings import SettingsError, load
from railx.workload.batches import BatchSettings
from tests.builders import choice, stage_columns
from tests.commands import environment, python
from tests.training.test_run import (
    BARE,
    LENGTHS,
    members,
    prepared,
    refused,
    sequence_parallel,
    wait_until,
    written,
)
from training.planning import PlannerFailed, planning_ahead
from training.settings import load_run_settings

pytestmark = pytest.mark.system

WHILE = {"training.planning": "while_training"}
#: Electrical switching alone, in double precision, sharded.
EXACT = {
    "training.precision": "float64",
    "training.sharding": "zero3",
    "training.on_demand_latencies_ms": [],
    "training.provisioned_latencies_ms": [],
    "training.optimizer.clip_norm": 1.0,
    "training.iterations": 4,
}


def made(settings: dict[str, Any], planner: str, devices: int) -> Plan:
    """A plan for the corpus of a run: three batches of four of its five sequences."""
    degrees = [degree for degree in (2, 4, 8) if degree <= devices]
    return make_plan(
        load(PlannerSettings, choice("planner", planner)),
        LENGTHS,
        load(
            ClusterSettings,
            choice(
                "cluster",
                "cpu_4",
                devices=devices,
                tokens_per_device=96 // min(devices, 4),
                all_to_all_gb_s={str(degree): 0.002 / degree for degree in degrees},
            ),
        ),
        load(ModelSettings, settings["model"]),
        load(CostModelSettings, choice("cost_model", "analytic")),
        BatchSettings(4, 3, None, "truncate"),
        seed=11,
    )


def planned(folder: Path, planner: str, devices: int, **changes: Any) -> dict[str, Any]:
    """A run of a plan by ``planner``."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = prepared(folder, sequence_parallel(), **{**WHILE, **changes})
    write_plan(folder / "plan.json", made(settings, planner, devices))
    return settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same batches: planned while eight ranks train them, and by another planner in
    a file for two ranks.
    """
    found = {}
    for planner, devices, changes in (
        ("flexsp", 8, EXACT),
        ("static", 2, {**EXACT, "training.planning": "file"}),
    ):
        folder = tmp_path_factory.mktemp(planner)
        arguments = written(folder, planned(folder, planner, devices, **changes))
        done = python("-m", "training.run", *arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
        found[planner] = folder / "out"
    return found


def test_static_and_adaptive_loss_curves_coincide(runs: dict[str, Path]) -> None:
    """In double precision, on ranks that keep their share of the model alone."""
    static, adaptive = (read_json(runs[one] / "result.json") for one in ("static", "flexsp"))
    assert (static["ranks"], adaptive["ranks"]) == (2, 8)
    (expected,), (found,) = static["settings"], adaptive["settings"]
    assert len(expected["losses"]) == 4
    for curve in ("losses", "gradient_norms"):
        assert found[curve] == pytest.approx(expected[curve], rel=1e-12)


def test_groups_of_several_degrees_run_at_once(runs: dict[str, Path]) -> None:
    plan = read_plan(runs["flexsp"].parent / "plan.json")
    degrees = [
        sorted((group.degree for group in micro_batch.groups), reverse=True)
        for batch in plan.sequence_parallel_batches()
        for micro_batch in batch.micro_batches
    ]
    assert [4, 2, 2] in degrees


def test_a_run_says_what_planning_took_and_what_was_hidden(runs: dict[str, Path]) -> None:
    result = read_json(runs["flexsp"] / "result.json")
    rows = read_rows(runs["flexsp"] / "iterations.parquet")
    assert result["planning"] == "while_training"
    assert all(row["planning_ms"] > 0 and row["planning_wait_ms"] >= 0 for row in rows)
    # One planner: its time is the same on every rank.
    assert len({(row["iteration"], row["planning_ms"]) for row in rows}) == 4
    (setting,) = result["settings"]
    steps = sorted({row["iteration"] for row in rows})
    waited = [
        max(row["planning_wait_ms"] for row in rows if row["iteration"] == step) for step in steps
    ]
    took = [row["planning_ms"] for row in rows if row["rank"] == 0]
    assert setting["planning_ms"] == pytest.approx(sum(took) / 4)
    assert setting["planning_wait_ms"] == pytest.approx(sum(waited) / 4)
    assert setting["planning_hidden_share"] == pytest.approx(max(0, 1 - sum(waited) / sum(took)))
    assert result["blocks"][0]["planning_hidden_share"] == setting["planning_hidden_share"]


def test_groups_are_made_once_as_batches_need_them(runs: dict[str, Path]) -> None:
    """Five steps over three batches; what a batch needs again is there."""
    for run in runs.values():
        plan = read_plan(run.parent / "plan.json")
        several = {
            group.ranks
            for batch in plan.sequence_parallel_batches()
            for micro_batch in batch.micro_batches
            for group in micro_batch.groups
            if group.degree > 1
        }
        (setting,) = read_json(run / "result.json")["settings"]
        assert setting["process_groups"] == len(several)
        assert setting["group_creation_ms"] > 0


def test_a_run_from_a_file_plans_nothing(runs: dict[str, Path]) -> None:
    table = read_table(runs["static"] / "iterations.parquet")
    assert table.column_names == stage_columns("training.iterations")
    assert table["planning_ms"].null_count == table["planning_wait_ms"].null_count == len(table)
    result = read_json(runs["static"] / "result.json")
    assert result["planning"] == "file"
    for one in (*result["settings"], *result["blocks"]):
        assert one["planning_ms"] is one["planning_hidden_share"] is None


@pytest.mark.parametrize("planner", ["flexsp", "static", "wlb", "any_degree"])
def test_a_batch_planned_alone_is_that_of_the_plan(planner: str, tmp_path: Path) -> None:
    plan = made(prepared(tmp_path, sequence_parallel()), planner, 4)
    again = replanner(plan)
    for place in (2, 0, 1):
        assert again(place) == plan.batches[place]


def test_a_planner_that_is_killed_ends_the_run_with_one_line(tmp_path: Path) -> None:
    settings = planned(
        tmp_path,
        "static",
        2,
        **{
            "training.sharding": "zero3",
            "training.iterations": 100_000,
            "training.checkpoint_every": 2,
        },
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "training.run", *written(tmp_path, settings)],
        env=environment(),
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Two steps are done.
        wait_until(lambda: any((tmp_path / "out").glob("unfinished/*/checkpoint.json")), 200)
        (planner,) = [
            process
            for process in members(launcher.pid)
            if b"railx.planning.replan" in said(process)
        ]
        os.kill(planner, signal.SIGKILL)
        _, error = launcher.communicate(timeout=200)
    finally:
        launcher.kill()
        launcher.wait()
        left = members(launcher.pid)
        for process in left:
            os.kill(process, signal.SIGKILL)
    assert launcher.returncode == 1
    assert error.count("\n") == 1
    assert error.startswith(
        f"training.run: error: the planner process (pid {planner}) was killed by SIGKILL while it"
        " planned batch "
    )
    assert "and a checkpoint of block 1 after " in error


def said(process: int) -> bytes:
    """The command line of a process; nothing where it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def alone_of_two() -> Iterator[Any]:
    """Rank 0 of two ranks, the other of which is not there: all that they share."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD
    dist.destroy_process_group()


def ahead(settings: dict[str, Any]) -> Any:
    """The planner process of a run."""
    return planning_ahead(load_run_settings(settings), read_plan(settings["plan"]), 0)


def test_a_batch_is_planned_while_another_is_trained(tmp_path: Path, alone_of_two: Any) -> None:
    """The answer to come is there before it is taken."""
    settings = planned(tmp_path, "static", 2)
    plan = read_plan(settings["plan"])
    with ahead(settings) as planning:
        process = planning.process
        for step in range(5):
            assert planning.take(step, step + 1, alone_of_two).batch == plan.batches[step % 3]
            # Nobody takes it, and yet it comes.
            assert select.select([process.stdout], [], [], 60)[0]
        assert planning.processes == (process.pid,)
    assert process.returncode == 0


def test_other_ranks_and_files_have_no_planner_process(tmp_path: Path) -> None:
    settings = planned(tmp_path, "static", 2)
    plan, run = read_plan(settings["plan"]), load_run_settings(settings)
    with planning_ahead(run, plan, 1) as planning:
        assert planning is not None
        assert planning.processes == ()
    settings["training"]["planning"] = "file"
    with planning_ahead(load_run_settings(settings), plan, 0) as planning:
        assert planning is None


def test_a_batch_that_comes_out_otherwise_ends_the_run(tmp_path: Path, alone_of_two: Any) -> None:
    """A plan by another planner than the one that it names."""
    settings = planned(tmp_path, "static", 2)
    data = plan_file(made(settings, "flexsp", 2))
    data["settings"]["planner"] = choice("planner", "static")
    data["digest"] = None
    write_json(tmp_path / "plan.json", data)
    with ahead(settings) as planning, pytest.raises(PlannerFailed) as failed:
        planning.take(0, 1, alone_of_two)
    assert str(failed.value) == (
        "batch 0, planned while training, is not that of the plan; allowed: a planner that plans a"
        " batch always and alone alike, not flexsp"
    )


def test_a_planner_that_a_bare_node_has_not(
    tmp_path: Path, alone_of_two: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = planned(tmp_path, "flexsp", 2)
    (tmp_path / "sitecustomize.py").write_text(BARE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ahead(settings) as planning, pytest.raises(SettingsError) as refusal:
        planning.take(0, 1, alone_of_two)
    assert str(refusal.value) == (
        "training.planning: got while_training, but the plan's planner needs numba, not here;"
        " allowed here: file"
    )


def test_a_planner_that_takes_too_long(tmp_path: Path, alone_of_two: Any) -> None:
    """It is told before the other ranks give up."""
    settings = planned(tmp_path, "static", 2, **{"training.timeout_s": 1e-6})
    with (
        ahead(settings) as planning,
        pytest.raises(PlannerFailed, match="takes longer for batch 0"),
    ):
        planning.take(0, 1, alone_of_two)


def test_a_plan_by_hand_has_no_planner(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(prepared(tmp_path, sequence_parallel(), **WHILE), tmp_path, capfd)
    assert line.startswith(
        "training.run: error: training.planning: got while_training, but settings.planner: is"
        " missing; allowed where it is to be planned once more: "
    )
