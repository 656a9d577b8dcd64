"""A run that goes on from a checkpoint is the run that was never stopped.

The ranks are real processes; one launch runs all ways of training.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railx.fabric import Layout
from railx.io import read_json, read_rows, write_json
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.replay.recording import recorded_programs
from tests.builders import write_corpus
from tests.commands import environment, python
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.replay.programs import steps_of
from tests.replay.reference import replay
from tests.training import checkpoint_program as program
from tests.training.test_run import LENGTHS, pipeline, prepared, written
from training import run as command
from training.checkpoint import newest_checkpoint

pytestmark = pytest.mark.system

DYING = Path(__file__).with_name("dying_program.py")


@pytest.fixture(scope="module")
def launched() -> dict[str, Any]:
    done = python(Path(program.__file__))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    "way",
    [
        *(way.name for way in program.ways(4)[1:]),
        *(
            f"{source.name} -> {ranks} {way.name}"
            for ranks in (4, 2)
            for way, source in zip(program.ways(ranks), program.sources(ranks), strict=True)
        ),
    ],
)
def test_losses_and_norms_are_those_of_an_uninterrupted_run(
    way: str, launched: dict[str, Any]
) -> None:
    straight, own = launched["seen"]["whole_none"], launched["seen"][way]
    assert len(own) == (program.STEPS - program.SAVED if "->" in way else program.STEPS)
    for ours, theirs in zip(own, straight[-len(own) :], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=0)


def test_a_kill_in_the_middle_of_a_save_leaves_the_last_whole_one(
    launched: dict[str, Any],
) -> None:
    assert launched["codes"][1] == -9
    assert launched["last"] == 2
    assert launched["left"] == [".block_000_step_000003.part", "block_000_step_000002"]


# ---- whole runs


def prepared_run(folder: Path, plan: Plan, **changes: Any) -> list[str]:
    """The arguments of a run of six steps in double precision."""
    folder.mkdir(exist_ok=True)
    settings = prepared(
        folder,
        plan,
        **{
            "training.precision": "float64",
            "training.iterations": 5,
            "training.checkpoint_every": 2,
            # Other programs of a busy machine disturb no block.
            "training.disturbed_share": 1.0,
            "training.optimizer.epsilon": 1e-4,
            # A death is noticed, not waited out.
            "training.timeout_s": 3600.0,
            "fabric.timeout_s": 3600.0,
            **changes,
        },
    )
    return written(folder, settings)


def four_ranks() -> Plan:
    """The batches of ``sequence_parallel``, on four ranks."""
    together = micro_batch(((0, 1), {0: 90}), ((2, 3), {1: 61}))
    apart = micro_batch(((0,), {2: 40}), ((3,), {3: 33, 4: 17}))
    return sequence_parallel_plan(4, [together, apart], [apart])


def two_stages() -> Plan:
    """The same batches as a pipeline on two ranks."""
    rest = (chunk((2, 0, 40, 40)), chunk((3, 0, 33, 33), (4, 0, 17, 17)))
    first = (chunk((0, 0, 50, 90)), chunk((0, 50, 90, 90)), chunk((1, 0, 61, 61)))
    return pipeline_plan(2, [Pipeline(2, 0, (*first, *rest))], [Pipeline(2, 0, rest)])


@dataclass
class Runs:
    """One run killed twice and gone on with."""

    folder: Path
    killed: list[subprocess.CompletedProcess[str]]
    kept: list[dict[str, Any]]
    finished: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("killed")
    arguments = prepared_run(folder, four_ranks(), **{"training.sharding": "zero3"})
    killed, kept = [], []
    # In the first block, on gloo as it is; in the second, as its circuits are switched.
    for dies in ("2,0,3", "1,1,5"):
        killed.append(python(DYING, *arguments, cwd=folder, env=environment(DIES=dies)))
        kept.append(what_is_kept(folder / "out" / "unfinished"))
        shutil.copytree(folder / "out", folder / f"out_{len(kept)}")
    finished = python("-m", "training.run", *arguments, cwd=folder)
    return Runs(folder, killed, kept, finished)


def what_is_kept(folder: Path) -> dict[str, Any]:
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    blocks = sorted(folder.glob("block_*/block.json"))
    return {
        "blocks": [read_json(path)["fabric"]["mode"] for path in blocks if "step" not in str(path)],
        "checkpoint": (checkpoint.block, checkpoint.step),
    }


@pytest.fixture(scope="module")
def straight(runs: Runs) -> list[float]:
    """Losses of the timed iterations of the one block that nothing stopped."""
    assert runs.finished.returncode == 0, runs.finished.stderr
    result = read_json(runs.folder / "out/result.json")
    assert [block["disturbed"] for block in result["blocks"]] == [True, True, False]
    losses: list[float] = result["settings"][2]["losses"]
    assert len(losses) == 5
    assert (runs.folder / "out/checkpoint/block_002_step_000006/checkpoint.json").is_file()
    return losses


def test_a_killed_rank_is_named_and_what_was_done_is_kept(runs: Runs) -> None:
    for done, rank, told in zip(
        runs.killed,
        (2, 1),
        ("0 finished blocks and a checkpoint of block 1 after 2 steps",
         "1 finished block and a checkpoint of block 2 after 4 steps"),
        strict=True,
    ):  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            f"training.run: error: rank {rank} was killed by SIGKILL;"
            f" {runs.folder / 'out/unfinished'} keeps {told}; the same command goes on from there"
        )
    assert runs.kept == [
        {"blocks": [], "checkpoint": (0, 2)},
        {"blocks": ["electrical"], "checkpoint": (1, 4)},
    ]


def test_the_same_command_goes_on_to_the_same_results(runs: Runs, straight: list[float]) -> None:
    result = read_json(runs.folder / "out/result.json")
    for setting in result["settings"]:
        assert setting["losses"] == pytest.approx(straight, rel=1e-12, abs=0)
    trace = read_rows(runs.folder / "out/trace.parquet")
    traced = {(row["mode"], row["rank"], row["iteration"]) for row in trace}
    assert len(traced) == 3 * 4 * 6
    assert sorted(path.name for path in (runs.folder / "out").iterdir()) == [
        "checkpoint",
        "iterations.parquet",
        "passes.parquet",
        "result.json",
        "trace.json",
        "trace.parquet",
    ]


def test_provisioning_goes_by_the_schedule_of_the_first_launch(runs: Runs) -> None:
    """Which saw the steps before the kill; the second those behind it."""
    facts = read_json(runs.folder / "out_2/unfinished/block_000/block.json")
    assert [sorted(map(int, schedule)) for schedule in facts["schedules"]] == [list(range(6))] * 4


def test_the_trace_of_two_launches_can_be_replayed(runs: Runs) -> None:
    trace = read_rows(runs.folder / "out/trace.parquet")
    own = [row for row in trace if row["mode"] == "electrical"]
    rows = replay(steps_of(recorded_programs(own)), Layout(1), "electrical", 0)
    replayed = {(row.iteration, row.rank): row.duration_ns for row in rows}
    measured = {
        (row["iteration"], row["rank"]): row["end_ns"] - row["start_ns"]
        for row in own
        if row["kind"] == "iteration"
    }
    assert len(measured) == 4 * 6
    assert replayed == pytest.approx(measured, rel=0.02)


@pytest.mark.slow
def test_a_pipeline_of_two_ranks_goes_on_with_what_four_shared(
    runs: Runs, straight: list[float], tmp_path: Path
) -> None:
    arguments = [*prepared_run(tmp_path, two_stages()), "--resume", str(runs.folder / "out_2")]
    done = python("-m", "training.run", *arguments)
    assert done.returncode == 0, done.stderr
    result = read_json(tmp_path / "out/result.json")
    assert (result["ranks"], result["parallelism"], result["begun_at_step"]) == (2, "pipeline", 4)
    for setting in result["settings"]:
        # The step behind the checkpoint warms up.
        assert setting["losses"] == pytest.approx(straight[-1:], rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("changes", "plan", "line"),
    [
        ({"model.hidden": 64}, two_stages, "a checkpoint of another model: model.hidden: got 32;"),
        ({"model.tied_embeddings": True}, two_stages, "model.tied_embeddings: got False;"),
        ({"seed": 4}, two_stages, "seed: got 3; allowed: 4, that of the run"),
        ({"training.precision": "float32"}, two_stages, "precision: got float64; allowed: float32"),
        ({"training.iterations": 4}, two_stages, "training.iterations: got 4; allowed: more than"),
        ({}, pipeline, "step 0 took other sequences than this run's"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_line(
    changes: dict[str, Any],
    plan: Callable[[], Plan],
    line: str,
    runs: Runs,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    arguments = prepared_run(tmp_path, plan(), **changes)
    assert line in refused([*arguments, "--resume", str(runs.folder / "out_2")], capfd)
    assert not (tmp_path / "out").exists()


def test_other_tokens_of_the_same_lengths(
    runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = prepared_run(tmp_path, two_stages())
    write_corpus(tmp_path / "corpus.parquet", [bytes(length) for length in LENGTHS])
    line = refused([*arguments, "--resume", str(runs.folder / "out_2")], capfd)
    assert "step 0 took other tokens of them than this run's" in line


def test_a_checkpoint_with_other_parameters_than_it_says(
    runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last = newest_checkpoint(runs.folder / "out_2/unfinished")
    assert last is not None
    whole = shutil.copytree(last.folder, tmp_path / last.folder.name)
    said = read_json(whole / "checkpoint.json")
    said["model"]["feed_forward"] = 40
    write_json(whole / "checkpoint.json", said)
    changes = {"model.feed_forward": 40}
    arguments = prepared_run(tmp_path, two_stages(), **changes)
    line = refused([*arguments, "--resume", str(whole)], capfd)
    assert "layers.0" in line
    assert "got 32 x 48; allowed: 32 x 40" in line or "got 48 x 32; allowed: 40 x 32" in line


def test_no_checkpoint_where_one_is_said_to_be(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = prepared_run(tmp_path, two_stages())
    assert "no whole checkpoint; allowed: " in refused(
        [*arguments, "--resume", str(tmp_path)], capfd
    )


def test_what_another_run_left_is_dropped_on_demand_alone(
    runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = prepared_run(tmp_path, four_ranks(), **{"training.sharding": "none"})
    shutil.copytree(runs.folder / "out_2", tmp_path / "out")
    assert "holds an unfinished run: training.sharding was zero3 and is none" in refused(
        arguments, capfd
    )
    inside = ["--replace", "--resume", str(tmp_path / "out")]
    assert "--replace would drop this checkpoint" in refused([*arguments, *inside], capfd)


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    assert command.main(arguments) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    return error
