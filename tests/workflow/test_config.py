"""Composition and its checks: every experiment is valid, every file complete, every
mistake named before a job starts.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from railx.settings import SettingsError, load, to_dict
from workflow.config import CONF, Experiment, compose_experiment, compose_stage
from workflow.experiment import checked_experiment, overrides_from

ROOT = CONF.parent
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_under_its_own_name(name: str) -> None:
    experiment = compose_experiment([f"experiment={name}"])
    assert experiment.name == name
    assert load(Experiment, to_dict(experiment)) == experiment


@pytest.mark.parametrize(
    "choice",
    sorted(
        f"{path.parent.name}={path.stem}"
        for group in (
            "topology",
            "traffic",
            "network",
            "collective",
            "economics",
            "cluster",
            "model",
            "cost_model",
            "planner",
            "batch",
            "fabric",
            "training",
            "tracking",
        )
        for path in (CONF / group).glob("*.yaml")
    ),
)
def test_every_choice_is_valid(choice: str) -> None:
    group = choice.split("=")[0]
    # What only a user can say.
    own = ["traffic.path=shares.csv"] if choice == "traffic=matrix" else []
    assert compose_stage([choice, *own], [group])[group] is not None


def test_overrides_come_from_snakemakes_config() -> None:
    config = {"experiment": "quick", "tracking": "off", "seed": 3, "hydra": "a.b=1 'c.d=[1, 2]'"}
    assert overrides_from(config) == [
        "experiment=quick",
        "tracking=off",
        "seed=3",
        "a.b=1",
        "c.d=[1, 2]",
    ]
    assert overrides_from({"hydra": ["a.b=1"], "x": [1, {"y": True}], "z": None}) == [
        "a.b=1",
        "x=[1,{y:true}]",
        "z=null",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "topologies.railx_hyperx.mm=3",
            "topologies.railx_hyperx.mm: unknown key; allowed: family, m, n",
        ),
        ("topologies.railx_hyperx.m=0", "topologies.railx_hyperx.m: got 0; allowed: at least 1"),
        ("topologies.railx_hyperx.ocs_radix=4", "topologies.railx_hyperx.ocs_radix"),
        ("experiment=fast", "experiment: got 'fast'; allowed: gpu, paper, quick"),
        ("sed=3", "sed: unknown key; allowed: name, seed, topologies"),
        (
            "plans.flexsp_stdlib.corpus=books",
            "plans.flexsp_stdlib.corpus: got 'books'; allowed: stdlib, wikipedia",
        ),
        (
            "runs.flexsp_stdlib.plan=none",
            "runs.flexsp_stdlib.plan: got 'none'; allowed: static_wikipedia",
        ),
        (
            "runs.flexsp_stdlib.training.precision=float8",
            "runs.flexsp_stdlib.training.precision: got 'float8'; allowed: float32",
        ),
        (
            "runs.flexsp_stdlib.fabric.port=70000",
            "runs.flexsp_stdlib.fabric.port: got 70000; allowed: from 0 to 65535",
        ),
        ("name=a/b", "name: got 'a/b'; allowed: letters, digits and underscores"),
        ("figures.cost.dpi=10", "figures.cost.dpi: got 10; allowed: from 50 to 600"),
    ],
)
def test_a_mistake_is_named_in_one_line(override: str, expected: str) -> None:
    overrides = [override] if override.startswith("experiment") else ["experiment=quick", override]
    with pytest.raises(SettingsError) as caught:
        compose_experiment(overrides)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_snakemake_ends_before_any_job_with_that_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "Snakefile"),
        "--directory",
        str(tmp_path),
        "--cores",
        "1",
    ]
    result = subprocess.run(
        [*command, "--config", "experiment=quick", "hydra=topologies.torus_2d.n=none"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "torus_2d" in line]
    assert lines == ["error: topologies.torus_2d.n: got 'none'; allowed: an integer"]
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "results").exists()


def test_a_checked_experiment_is_kept_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = to_dict(compose_experiment(["experiment=quick", "seed=3"]))
    assert checked_experiment(["experiment=quick", "seed=3"]) == json.loads(json.dumps(wanted))

    def fail(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr("workflow.config.compose_experiment", fail)
    assert checked_experiment(["experiment=quick", "seed=3"])["seed"] == 3
    with pytest.raises(AssertionError, match="checked again"):
        checked_experiment(["experiment=quick", "seed=4"])
