"""``railx train``: a plan file really run; what cannot be is one line, no process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from railx.io import read_rows
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import operations, ordered
from tests.commands import python
from tests.plans import chunk, pipeline_plan
from tests.workflow.test_cli import refused
from workflow.cli import main

pytestmark = pytest.mark.system


def _plan(**changes: object) -> Plan:
    pipeline = Pipeline(2, 0, (chunk((0, 0, 10, 10)), chunk((1, 0, 10, 10))))
    return pipeline_plan(2, [replace(pipeline, **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_what_is_simulated_only_starts_nothing(
    schedule: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_plan(tmp_path / "plan.json", _plan(schedule=schedule))
    line = refused(capsys, "train", str(tmp_path / "plan.json"), "--out", str(tmp_path / "run"))
    assert line.startswith(
        f"{tmp_path / 'plan.json'}: batch 0, pipeline 0: schedule {schedule} is simulated only;"
    )
    assert not (tmp_path / "run").exists()


def test_a_plan_of_another_program_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, replace(_plan(), planner="slim_pipe"))
    line = refused(capsys, "train", str(path), "--out", str(tmp_path / "run"))
    assert line.startswith(f"{path}: got a plan of slim_pipe, which is simulated only: attention")
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, _plan())
    assert refused(capsys, "train", str(path), "--out", str(path)) == (
        f"--out: got {path}, a file; allowed: a folder"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "PLAN: got {path}: No such file or directory; allowed: a plan (railx plan"),
        (b"\xff\xfe", "PLAN: got {path}, which is no text; allowed: a plan (railx plan"),
        (b"[" * 200_000, "{path}: JSON nested too deeply; allowed: a few levels"),
    ],
)
def test_a_file_that_is_no_plan_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    line = refused(capsys, "train", str(path), "--out", str(tmp_path / "run"))
    assert line.startswith(said.format(path=path))


@pytest.mark.slow
def test_an_order_written_out_is_really_run(tmp_path: Path) -> None:
    machine = ("cluster=cpu_4_pipeline", "cluster.devices=2", "model=tiny", "cost_model=analytic")
    chosen = ("planner=pipeline_2x1", "corpus=stdlib", "batch=small", "batch.batches=1")
    path, mine = tmp_path / "plan.json", tmp_path / "mine.json"
    assert main(["plan", *chosen, *machine, "--out", str(path)]) == 0
    search = ("--schedule", "searched", "--out", str(mine))
    assert main(["schedule", str(path), *search]) == 0
    once = ("training.iterations=1", "training.warmup_iterations=1")
    modes = ("training.on_demand_latencies_ms=[0]", "training.provisioned_latencies_ms=[0]")
    out = tmp_path / "run"
    run = ("train", str(mine), *once, *modes, "--out", str(out), "--json")
    done = python("-m", "workflow.cli", *run)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["peak_live_chunks"] == summary["planned_peak_live_chunks"]
    (batch,) = read_plan(mine).pipeline_batches()
    (pipeline,) = batch.pipelines
    assert pipeline.order == ordered(pipeline)
    for stage in range(2):
        rows = [row for row in read_rows(out / "passes.parquet") if row["stage"] == stage]
        rows.sort(key=lambda row: (row["iteration"], row["position"]))
        ran = [(row["kind"], row["chunk"]) for row in rows]
        expected = [(op.kind, op.chunk) for op in operations(pipeline, stage)]
        assert ran[: len(expected)] == expected
