"""The list of measurements on one GPU, dry-run on the CPU, where only torch, numpy and
pyarrow can be imported.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from railx.io import read_rows, write_json, write_table
from railx.performance.decoder import ModelSettings
from railx.settings import SettingsError
from scripts.gpu import cli, model, running, stages
from scripts.gpu import folder as prepared_folder
from scripts.gpu.host import HOST_GB_S, exchanged_bytes, layers_that_fit, run_seconds
from scripts.gpu.steps import STEPS, Step
from scripts.gpu.work import Findings, Skipped, Work
from tests.builders import choice
from tests.commands import environment, python
from tests.plans import micro_batch, sequence_parallel_plan
from tests.training.test_run import BARE, pipeline, prepared
from tests.workflow.test_recorded import stand_in
from training.records import SCHEMA, read_record

pytestmark = pytest.mark.system

#: What lies in the folder beside the library.
OWN = '"railx", "gpu", "tests", "__main__",'
#: What two steps need beside torch: setuptools for compiled layers, pytest for tests.
FURTHER = (
    '"_distutils_hack", "pkg_resources", "pytest", "_pytest", "pytest_timeout", "hypothesis",'
    '"_hypothesis_pytestplugin", "sortedcontainers", "attr", "attrs", "pluggy", "iniconfig",'
    '"packaging", "pygments", "psutil", "yaml", "py", "jaraco", "more_itertools", "backports",'
    '"platformdirs", "wheel", "importlib_metadata", "zipp", "exceptiongroup",'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder; its one run has sequences 0, 1 and 4 of a corpus of five."""
    place = tmp_path_factory.mktemp("prepared")
    profiles = {
        name: choice("profile", name) | {"model": choice("model", name.removesuffix("_slices"))}
        for name in ("llama_1b", "llama_7b", "llama_13b", "llama_30b", "llama_7b_slices")
    }
    prepared_folder.write_folder(
        place / "folder",
        {"alone": prepared(place, pipeline())},
        {"commit": "abc", "seed": 1},
        profiles,
    )
    (place / "plan.json").unlink()
    return place / "folder"


def dry(folder: Path, out: Path, *steps: str, further: str = "") -> dict[str, Any]:
    """The report of a dry run in a place where nothing else can be imported."""
    bare = out.parent / "bare"
    bare.mkdir(exist_ok=True)
    (bare / "sitecustomize.py").write_text(BARE.replace('"railx",', OWN + further))
    variables = environment(bare)
    variables["PYTHONPATH"] = str(bare)
    done = python(
        *(str(folder / "gpu"), "run", folder, "--out", out, "--dry-run", "--steps", *steps),
        cwd=out.parent,
        env=variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was measured on a GPU (fidelity measured_cpu)\n")
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def test_the_folder_has_all_of_pytest(folder: Path) -> None:
    variables = environment(PYTHONPATH=str(folder / "packages"))
    done = python("-S", "-c", "import pytest", env=variables)
    assert done.returncode == 0, done.stderr


def test_steps_with_times_run_alone_and_the_others_together() -> None:
    order = running._in_order(STEPS)
    assert [step.name for step in order[0]] == ["versions"]
    assert order[1] == [step for step in STEPS if not step.timed]
    assert [step for (step,) in (*order[:1], *order[2:])] == [step for step in STEPS if step.timed]
    assert running._in_order([]) == []


def test_a_bare_machine_takes_steps_and_says_that_no_gpu_was_measured(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    dry(folder, out, "versions,order,reuse")
    first = (out / "steps" / "versions.json").read_text()
    # A later call adds to the report, and takes nothing twice.
    report = dry(folder, out, "versions", "profile_1b")
    assert (out / "steps" / "versions.json").read_text() == first
    assert (report["fidelity"], report["measured_on_a_gpu"]) == ("measured_cpu", False)
    assert "nothing was measured on a GPU" in report["note"]
    assert [row["step"] for row in report["steps"]] == ["versions", "profile_1b", "order", "reuse"]
    assert not list((out / "steps").glob("*.found"))
    assert not list((out / "running").iterdir())
    records = {
        name: read_record(out / "steps" / f"{name}.json") for name in ("versions", "order", "reuse")
    }
    for name, record in records.items():
        assert (record.step, record.status, record.fidelity) == (name, "passed", "measured_cpu")
        assert record.provenance.commit == "abc"
        assert record.provenance.seed == 1
        assert record.provenance.torch == torch.__version__
        assert f"step {name}" in record.provenance.command
    order, reuse = (
        {check.name: check.found for check in records[name].checks} for name in ("order", "reuse")
    )
    assert order["operations_that_asked"] == 8
    assert order["wrong_results_after_waits_out_of_order"] == 0
    assert reuse["operations"] == 121
    assert reuse["operations_that_asked"] == 7
    profile = read_record(out / "steps" / "profile_1b.json")
    assert {check.name for check in profile.checks if check.goal} == {
        "held_out_time_error", "held_out_memory_error", "recomputing_error",
    }  # fmt: skip
    assert {one.subject for one in profile.measurements} >= {
        "flexsp llama_1b", "infinipipe llama_1b",
    }  # fmt: skip
    assert len(profile.details["points"]) == 27


#: Takes step `order` where circuits are given back before the operation has ended.
EARLY = """
import contextlib, json, sys
from pathlib import Path
from scripts.gpu import streams
from scripts.gpu.work import Work
from railx_torch.session import Session

circuits = Session.circuits

@contextlib.contextmanager
def early(self, operation):
    with circuits(self, operation):
        pass
    yield

Session.circuits = early
found = streams.order(Work(Path("."), Path("."), dry=True))
print(json.dumps([one["name"] for one in found.checks if one["passed"] is False]))
"""


class Trained(Work):
    """A run of 96 steps on a GPU, three parts of different speed."""

    def train(self, name: str, settings: Any) -> dict[str, Any]:
        ms = [30.0, 50.0, 100.0, 220.0] * 24
        ms = [one * (1 + number // 32) / 2 for number, one in enumerate(ms)]
        rows = [{"iteration": number, "iteration_ms": one} for number, one in enumerate(ms)]
        place = self.out / "runs" / name / "iterations.parquet"
        place.parent.mkdir(parents=True)
        write_table(place, pa.Table.from_pylist(rows))
        setting = {"mfu": 0.4, "iteration_ms": 75.0, "model_tflop": 20.0, "losses": [2.0, 1.0]}
        setting |= {"tokens_per_s": 1.0, "peak_memory_bytes": 1}
        of_the_run = {"device_name": "NVIDIA H200", "precision": "bfloat16", "settings": [setting]}
        return dict.fromkeys(
            ("run", "plan", "model", "parameters", "ranks", "backend", "attention", "iterations",
             "losses_agree", "loss_difference")
        ) | of_the_run  # fmt: skip


def test_mfu_of_a_part_is_of_its_operations_and_its_time(folder: Path, tmp_path: Path) -> None:
    """With batches of several lengths, medians of rates and of times do not give it."""
    found = model._alone(Trained(folder, tmp_path, dry=True), "eager", compiled=True)
    parts = [one["value"] for one in found.measurements if one["name"] == "mfu"]
    assert parts == pytest.approx([20 / (share * 0.1) / 989.4 for share in (0.5, 1, 1.5)])


def test_predicted_memory_is_of_the_steps_that_are_measured() -> None:
    assert stages._timed("abc", {"warmup_iterations": 1, "iterations": 2}) == ("b", "c")
    assert stages._timed("a", {"warmup_iterations": 1, "iterations": 2}) == ("a", "a")


def test_circuits_that_are_given_back_too_early_are_noticed() -> None:
    done = python("-c", EARLY)
    assert done.returncode == 0, done.stderr
    assert "granted_before_the_last_one_ended" in json.loads(done.stdout)


@pytest.mark.slow
def test_every_step_runs_on_the_cpu(folder: Path, tmp_path: Path) -> None:
    report = dry(folder, tmp_path / "out", further=FURTHER)
    steps = {row["step"]: row for row in report["steps"]}
    assert list(steps) == [step.name for step in STEPS]
    assert {row["status"] for row in steps.values()} == {"passed"}
    for name in steps:
        assert read_record(tmp_path / "out" / "steps" / f"{name}.json").checks


def test_a_node_without_a_c_compiler_skips_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (compiled,) = (step for step in STEPS if step.name == "compiled")
    with pytest.raises(Skipped, match=r"no C compiler is there \(CC, cc, gcc or clang\)"):
        compiled.take(Work(tmp_path, tmp_path, dry=True))
    (tmp_path / "gcc").touch(mode=0o755)
    with pytest.raises(Skipped, match=r"the folder has no runs/alone\.json"):
        compiled.take(Work(tmp_path, tmp_path, dry=True))


def off(work: Work) -> Findings:
    found = work.findings()
    found.check("difference", 3.0, "at_most", 1.0)
    found.check("goal", 0.1, "at_least", 0.5, goal=True)
    return found


def fine(work: Work) -> Findings:
    found = work.findings()
    found.check("memory", None, "at_most", 1.0)
    found.check("goal", 0.1, "at_least", 0.5, goal=True)
    found.measured("memory", None)
    return found


def test_a_step_that_fails_or_takes_too_long_does_not_stop_the_next(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken_folder = tmp_path / "folder"
    shutil.copytree(folder, broken_folder)
    (broken_folder / "dry" / "runs" / "alone.json").write_text("{")
    (broken_folder / "dry" / "profiles" / "llama_1b.json").unlink()
    limits = {"eager": 60, "equality": 0, "profile_1b": 60}
    steps = tuple(Step(step.take, 1, 1, limits[step.name]) for step in STEPS if step.name in limits)
    monkeypatch.setattr(running, "STEPS", steps)
    out = tmp_path / "out"
    assert cli.main(["run", str(broken_folder), "--out", str(out), "--dry-run"]) == 1
    report = json.loads((out / "report.json").read_text())
    rows = {row["step"]: row for row in report["steps"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "equality": "too long", "profile_1b": "skipped", "eager": "failed",
    }  # fmt: skip
    assert "Expecting property name" in rows["eager"]["why"]
    assert "llama_1b.json" in rows["profile_1b"]["why"]
    assert "nothing was measured on a GPU" in capsys.readouterr().out


def test_a_check_that_does_not_hold_is_wrong_and_a_missed_goal_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STEPS", [Step(one, 1, 1, 1) for one in (off, fine)])
    (tmp_path / "steps").mkdir()
    found = {}
    for name in ("off", "fine"):
        arguments = type("Given", (), {"name": name, "folder": tmp_path, "out": tmp_path})
        arguments.dry_run = True  # type: ignore[attr-defined]
        assert running.take(arguments) == 0  # type: ignore[arg-type]
        found[name] = json.loads((tmp_path / "steps" / f"{name}.found").read_text())
    assert found["off"]["status"] == "wrong"
    assert found["off"]["why"] == "does not hold: difference"
    assert (found["fine"]["status"], found["fine"]["why"]) == ("passed", "")
    assert found["fine"]["checks"][0]["passed"] is None
    assert found["fine"]["measurements"] == []


def test_a_call_that_is_over_leaves_the_rest_to_the_next(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(folder), "--out", str(tmp_path), "--dry-run", "--steps", "versions"]
    assert cli.main([*command, "--call-s", "1"]) == 1
    assert "left for the next call of the same command: versions" in capsys.readouterr().out
    assert not list((tmp_path / "steps").iterdir())
    assert cli.main(command) == 0
    assert read_record(tmp_path / "steps" / "versions.json").status == "passed"


def test_a_call_that_is_killed_leaves_no_process_and_no_half_record(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = subprocess.Popen(
        [
            *(sys.executable, str(folder / "gpu"), "run", str(folder), "--out", str(out)),
            *("--dry-run", "--steps", "kill"),
        ],
        stdout=subprocess.DEVNULL,
    )
    noted = out / "running" / "kill.json"
    while not noted.exists():
        assert call.poll() is None
        time.sleep(0.05)
    step = json.loads(noted.read_text())["process"]
    call.send_signal(signal.SIGTERM)
    assert call.wait(60) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{step}").exists()
    assert not list((out / "steps").glob("*.json"))


def test_records_of_a_dry_run_and_of_a_gpu_do_not_mix(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out, *_) = {path.parent.parent for path in stand_in(tmp_path)}
    assert cli.main(["run", str(folder), "--out", str(out), "--dry-run"]) == 2
    assert "is measured_gpu; allowed: another or an empty folder" in capsys.readouterr().err


def test_records_of_a_gpu_are_kept_once_and_those_of_a_dry_run_never(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = stand_in(tmp_path)
    out, kept = paths[0].parent.parent, tmp_path / "kept"
    arguments = ["record", str(out), "--recorded", str(kept)]
    assert cli.main(arguments) == 0
    target = kept / "a_stand_in_of_a_gpu_2026_01_01"
    assert sorted(path.name for path in (target / "steps").iterdir()) == sorted(
        path.name for path in paths
    )
    assert cli.main(arguments) == 2
    assert "is there already; allowed: another --name" in capsys.readouterr().err
    plain = json.loads(paths[0].read_text())
    plain["provenance"]["commit"] = "0123-dirty"
    write_json(paths[0], plain)
    assert cli.main([*arguments, "--name", "other"]) == 2
    assert "allowed: a folder made of committed code" in capsys.readouterr().err
    plain["fidelity"], plain["provenance"]["device"] = "measured_cpu", "cpu"
    for one in (*plain["checks"], *plain["measurements"]):
        one["fidelity"] = "measured_cpu"
    write_json(paths[0], plain)
    assert cli.main([*arguments, "--name", "other"]) == 2
    assert "measured_cpu; allowed: records of a run on a GPU" in capsys.readouterr().err
    assert not (kept / "other").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "railx.gpu_step/0"}, "schema: got 'railx.gpu_step/0'"),
        ({"status": "passed"}, "status: got passed; allowed by the checks: wrong"),
        ({"checks": []}, "checks: got none; allowed: at least one where it was taken"),
        ({"status": "failed", "why": ""}, "why: is missing; allowed: the reason for failed"),
        ({"fidelity": "measured_cpu"}, "fidelity: got measured_cpu on cuda; allowed: the same"),
        ({"extra": 1}, "extra: unknown key"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    stand_in(tmp_path, early=7.0)
    path = tmp_path / "made_up" / "steps" / "order.json"
    plain = json.loads(path.read_text())
    assert plain["schema"] == SCHEMA
    write_json(path, plain | change)
    with pytest.raises(SettingsError) as error:
        read_record(path)
    assert str(error.value).startswith(f"order.json.{message}")
    assert "\n" not in str(error.value)


def test_a_check_says_what_its_number_says(tmp_path: Path) -> None:
    stand_in(tmp_path)
    path = tmp_path / "made_up" / "steps" / "order.json"
    plain = json.loads(path.read_text())
    plain["checks"][1]["passed"] = False
    write_json(path, plain)
    with pytest.raises(SettingsError, match=r"checks\[1\]\.passed: got False for 0\.5 at_most 1"):
        read_record(path)


def test_each_part_fits_a_call_of_eight_minutes() -> None:
    parts: Counter[int] = Counter()
    for step in STEPS:
        parts[step.part] += step.expected_s
        assert step.expected_s < step.limit_s <= 300
    assert sorted(parts) == [1, 2, 3]
    assert max(parts.values()) <= 470


def test_a_run_with_switching_has_the_layers_that_its_time_allows() -> None:
    plan = sequence_parallel_plan(4, [micro_batch(((0, 1, 2, 3), {0: 4096}))])
    model = ModelSettings("wide", 24, 2048, 16, 16, 5504, 32000)
    training = {
        "warmup_iterations": 1,
        "iterations": 2,
        "repeats": 1,
        "on_demand_latencies_ms": [100],
        "provisioned_latencies_ms": [100],
    }

    def seconds(layers: int) -> float:
        return run_seconds(replace(model, layers=layers), plan, training)

    assert layers_that_fit(model, plan, training, seconds(5)) == 5
    assert layers_that_fit(model, plan, training, seconds(24)) == 8
    assert layers_that_fit(model, plan, training, 0) == 2
    # Nine steps of one micro-batch.
    exchanged = exchanged_bytes(replace(model, layers=5), plan.batches[0], 4)
    assert seconds(5) == pytest.approx(9 * exchanged / (HOST_GB_S * 1e9))


def test_steps_are_chosen_by_part_and_by_name() -> None:
    assert [step.name for step in running.chosen(["kernels,versions"])] == ["versions", "kernels"]
    assert {step.part for step in running.chosen(["2"])} == {2}
    assert running.chosen([]) == list(STEPS)
    with pytest.raises(ValueError, match="--steps: got '4'; allowed: 1, 2, 3, attention"):
        running.chosen(["4"])


def test_only_the_sequences_of_a_plan_travel(folder: Path) -> None:
    rows = read_rows(folder / "corpora" / "alone.parquet")
    assert [row["sequence"] for row in rows] == [0, 1, 4]
    settings = json.loads((folder / "runs" / "alone.json").read_text())
    assert (settings["plan"], settings["corpus"]) == ("plans/alone.json", "corpora/alone.parquet")


def test_a_folder_with_something_else_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match="allowed: a folder that this command made"):
        prepared_folder.write_folder(tmp_path, {}, {})
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_without_a_gpu_a_dry_run_has_to_be_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(folder), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == ("error: no CUDA device is there; allowed here: --dry-run\n")
