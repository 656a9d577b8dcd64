"""The list of measurements on one GPU, dry-run on the CPU, where only torch, numpy and
pyarrow can be imported.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from railx.io import read_rows
from tests.builders import ROOT
from tests.commands import environment, python
from tests.training.test_run import BARE, pipeline, prepared

SCRIPT = ROOT / "scripts" / "gpu.py"


def loaded() -> ModuleType:
    spec = spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["gpu_script"] = module
    spec.loader.exec_module(module)
    return module


gpu: Any = loaded()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder; its one run has sequences 0, 1 and 4 of a corpus of five."""
    place = tmp_path_factory.mktemp("prepared")
    gpu.write_folder(place / "folder", {"alone": prepared(place, pipeline())}, {"commit": "abc"})
    (place / "plan.json").unlink()
    return place / "folder"


def dry(folder: Path, out: Path, *steps: str, limit_s: float = 200) -> dict[str, Any]:
    """The report of a dry run in a place where nothing else can be imported."""
    bare = out.parent / "bare"
    bare.mkdir(exist_ok=True)
    (bare / "sitecustomize.py").write_text(BARE)
    variables = environment(bare)
    variables["PYTHONPATH"] = str(bare)
    done = python(
        *(str(folder / "gpu.py"), "run", folder, "--out", out, "--dry-run", "--steps", *steps),
        cwd=out.parent,
        env=variables,
        timeout_s=limit_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was measured on a GPU (fidelity measured_cpu)\n")
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def test_a_bare_machine_takes_steps_and_says_that_no_gpu_was_measured(
    folder: Path, tmp_path: Path
) -> None:
    dry(folder, tmp_path / "out", "versions,streams")
    # A later call adds to the report.
    report = dry(folder, tmp_path / "out", "eager", "profiles")
    assert (report["fidelity"], report["measured_on_a_gpu"]) == ("measured_cpu", False)
    assert "nothing was measured on a GPU" in report["note"]
    steps = {row["step"]: row for row in report["steps"]}
    assert list(steps) == ["versions", "streams", "profiles", "eager"]
    assert {row["fidelity"] for row in steps.values()} == {"measured_cpu"}
    assert {
        name: row["status"] for name, row in steps.items() if name != "profiles"
    } == dict.fromkeys(("versions", "streams", "eager"), "ok")
    assert steps["profiles"]["status"] == "skipped"
    assert steps["versions"]["found"]["folder"] == {"commit": "abc"}
    assert steps["versions"]["found"]["torch"] == torch.__version__
    assert steps["streams"]["found"]["losses_agree"] is True
    (setting,) = steps["eager"]["found"]["settings"]
    assert setting["tokens_per_s"] > 0
    assert (setting["mfu"], setting["peak_memory_bytes"]) == (None, None)
    assert len(setting["losses"]) == 2


@pytest.mark.slow
def test_every_step_runs_on_the_cpu(folder: Path, tmp_path: Path) -> None:
    report = dry(folder, tmp_path / "out", limit_s=1500)
    steps = {row["step"]: row for row in report["steps"]}
    assert list(steps) == [step.name for step in gpu.STEPS]
    assert {row["status"] for name, row in steps.items() if name != "profiles"} == {"ok"}
    assert all(row["equal"] for row in steps["equality"]["found"]["rows"])
    assert "rank 3" in steps["kill"]["found"]["said"]
    predicted = [row["predicted_bytes"] for row in steps["stages"]["found"]["rows"]]
    # Checkpointing none, half and all of the layers takes less and less.
    assert predicted[0] > predicted[2] > predicted[4] > 0


def test_a_step_that_fails_or_takes_too_long_does_not_stop_the_next(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "folder"
    shutil.copytree(folder, broken)
    (broken / "dry" / "runs" / "alone.json").unlink()
    steps = [
        gpu.Step(gpu.eager, 60, 1),
        gpu.Step(gpu.equality, 0, 1),
        gpu.Step(gpu.profiles, 60, 1),
    ]
    monkeypatch.setattr(gpu, "STEPS", steps)
    assert gpu.main(["run", str(broken), "--out", str(tmp_path / "out"), "--dry-run"]) == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["status"] for row in report["steps"]] == ["failed", "too long", "skipped"]
    assert "alone.json" in report["steps"][0]["why"]
    assert "nothing was measured on a GPU" in capsys.readouterr().out


def test_each_part_fits_a_call_of_eight_minutes() -> None:
    parts: Counter[int] = Counter()
    for step in gpu.STEPS:
        parts[step.part] += step.limit_s
    assert sorted(parts) == [1, 2, 3]
    assert max(parts.values()) <= 480


def test_steps_are_chosen_by_part_and_by_name() -> None:
    assert [step.name for step in gpu.chosen(["kernels,versions"])] == ["versions", "kernels"]
    assert {step.part for step in gpu.chosen(["2"])} == {2}
    assert gpu.chosen([]) == list(gpu.STEPS)
    with pytest.raises(ValueError, match="--steps: got '4'; allowed: 1, 2, 3, attention"):
        gpu.chosen(["4"])


def test_only_the_sequences_of_a_plan_travel(folder: Path) -> None:
    rows = read_rows(folder / "corpora" / "alone.parquet")
    assert [row["sequence"] for row in rows] == [0, 1, 4]
    settings = json.loads((folder / "runs" / "alone.json").read_text())
    assert (settings["plan"], settings["corpus"]) == ("plans/alone.json", "corpora/alone.parquet")


def test_a_folder_with_something_else_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match="allowed: a folder that this command made"):
        gpu.write_folder(tmp_path, {}, {})
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_without_a_gpu_a_dry_run_has_to_be_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["run", str(folder), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == ("error: no CUDA device is there; allowed here: --dry-run\n")
