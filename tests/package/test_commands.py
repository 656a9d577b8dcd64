"""The commands of an installed package: init, list, completion, reproduce and sweep."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from railx import __version__
from tests.builders import ROOT
from tests.commands import environment
from workflow import cli, cluster
from workflow.commands import reproduce, shared, sweep
from workflow.commands.completion import override_choices
from workflow.commands.listing import KINDS
from workflow.mounts import choices


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"railx-lab {__version__}\n"


def test_the_lock_pins_one_version_of_a_package() -> None:
    """Forks by Python's version would give mypy other stubs on another Python."""
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pins) > 200
    assert len(pins) == len(set(pins))


def test_init_writes_a_study_and_a_second_time_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "deep" / "my study"
    assert cli.main(["init", str(study)]) == 0
    said = capsys.readouterr().out
    for name in ("Snakefile", "conf/experiment/study.yaml"):
        assert (study / name).read_text() == (ROOT / "workflow" / "study" / name).read_text()
    assert "experiment: study" in (study / "conf/config.yaml").read_text()
    files = [path for path in study.rglob("*") if path.is_file()]
    assert len(files) <= 20, "what it lacks is read from the package"
    assert all(f"written: {path}" in said for path in files)
    # The choices of the experiment that have a file, as the package has them.
    for name in ("topology/torus_2d", "network/static_min", "tenancy/base"):
        path = f"conf/{name}.yaml"
        assert (study / path).read_bytes() == (ROOT / path).read_bytes()
    # A file names its schema for editors by a path that has to be there.
    for path in study.glob("conf/**/*.yaml"):
        named = path.read_text().split("$schema=")[1].split()[0]
        assert (path.parent / named).is_file(), path
    assert f"cd '{study}'" in said
    assert cli.main(["init", str(study)]) == 0
    assert "nothing to write" in capsys.readouterr().out


def test_init_refreshes_the_schemas_of_the_folder_that_it_is_called_in(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    (tmp_path / "conf/experiment/study.yaml").write_text("seed: 1\ntopologies: [mine]\n")
    (tmp_path / "conf/topology/mine.yaml").write_text("family: torus_2d\n")
    schema = tmp_path / "resources/schemas/conf/experiment.schema.json"
    assert '"mine"' not in schema.read_text()
    code = "from workflow.cli import main; raise SystemExit(main(['init', '.']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"mine"' in schema.read_text()
    assert "topologies: [mine]" in (tmp_path / "conf/experiment/study.yaml").read_text()


def test_init_copies_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    capsys.readouterr()

    def copied(name: str, *more: str) -> str:
        assert cli.main(["init", str(tmp_path), "--copy", name, *more]) == 0
        return capsys.readouterr().out

    assert str(tmp_path / "conf/topology/dragonfly.yaml") in copied("topology/dragonfly")
    # A variant comes with the file that holds it; a choice of a class alone gets one.
    copied("topology/fat_tree_1250")
    held = (tmp_path / "conf/topology/fat_tree.yaml").read_text()
    assert "fat_tree_1250:" in held
    assert not (ROOT / "conf/topology/mesh_2d.yaml").exists()
    copied("topology/mesh_2d")
    written = (tmp_path / "conf/topology/mesh_2d.yaml").read_text()
    assert written.endswith("topology.schema.json\nfamily: mesh_2d\n")
    # With the schema of a group that was not there.
    assert "planner.schema.json" in copied("planner/joint")
    assert copied("planner/joint") == f"there already: {tmp_path / 'conf/planner/joint.yaml'}\n"
    for name in ("default", "gpu", "slurm", "kubernetes"):
        copied(f"profiles/{name}")
    for path in (ROOT / "workflow" / "profiles").rglob("*"):
        if path.is_file():
            own = tmp_path / "profiles" / path.relative_to(ROOT / "workflow" / "profiles")
            assert "workflow/profiles" not in own.read_text()
            assert own.stat().st_mode & 0o111 == path.stat().st_mode & 0o111, path
    # What was changed since stays.
    (tmp_path / "conf/planner/joint.yaml").write_text("planner: joint\n")
    assert cli.main(["init", str(tmp_path), "--copy", "planner/joint"]) == 2
    assert "1 of these files" in capsys.readouterr().err
    (tmp_path / "conf/config.yaml").write_text("experiment: mine\n")
    copied("planner/joint", "--force")
    assert (tmp_path / "conf/config.yaml").read_text() == "experiment: mine\n"
    joint = "conf/planner/joint.yaml"
    assert (tmp_path / joint).read_bytes() == (ROOT / joint).read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "error: DIR: is missing; allowed: a folder"),
        (("--copy", "topologies/x"), "--copy: got 'topologies/x'; allowed: GROUP/NAME with one of"),
        (
            ("--copy", "topology/torus_2e"),
            "'topology/torus_2e'; allowed: topology/ with torus_2d, ",
        ),
        (("--copy", "profiles/slum"), "--copy: got 'profiles/slum'; allowed: profiles/ with "),
        (("--copy", "../conf"), "--copy: got '../conf'; allowed: GROUP/NAME with one of"),
    ],
)
def test_init_refuses_what_it_cannot_copy(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_init_leaves_what_was_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "conf" / "config.yaml"
    changed.parent.mkdir()
    changed.write_text("experiment: mine\n")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert "1 of these files" in capsys.readouterr().err
    assert changed.read_text() == "experiment: mine\n"
    assert not (tmp_path / "Snakefile").exists()
    assert cli.main(["init", str(tmp_path), "--force", "--resources"]) == 0
    assert "experiment: study" in changed.read_text()
    assert (tmp_path / "resources" / "claims").is_dir()


@pytest.mark.parametrize("kind", ["a file", "the checkout", "below a file", "no folders"])
def test_init_refuses_places_that_cannot_be(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system says so of /proc to its administrator, and no folder can be made there.
    monkeypatch.setattr(os, "access", lambda *_: True)
    # A script may be run, which for a folder means that it can be entered.
    (tmp_path / "file").touch(mode=0o755)
    place = {
        "a file": tmp_path / "file",
        "the checkout": ROOT,
        "below a file": tmp_path / "file/x",
        "no folders": Path("/proc/study"),
    }
    assert cli.main(["init", str(place[kind])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: DIR: got ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_lists_have_a_row_for_every_choice(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    group = {"topologies": "topology", "planners": "planner", "figures": "figure"}
    if kind == "claims":
        assert len({row["id"] for row in rows}) == len(rows) > 100
    elif kind in ("models", "devices"):
        catalogue = ROOT / "resources/performance" / f"{kind}.yaml"
        assert [row["name"] for row in rows] == list(yaml.safe_load(catalogue.read_text()))
    else:
        assert [row["name"] for row in rows] == choices(group.get(kind, "experiment"))
    assert all(value for row in rows for value in row.values()), "every cell says something"
    assert cli.main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[0].split() == list(rows[0])


def test_completion_offers_groups_then_choices() -> None:
    assert "topology=" in set(override_choices("top"))
    assert set(override_choices("planner=", ["planner"])) == {
        f"planner={name}" for name in choices("planner")
    }
    # A stage by hand takes its own groups only.
    assert list(override_choices("", ["planner", "seed"])) == ["planner="]


def _offered(line: str) -> set[str]:
    """What the shell would be told: argcomplete writes it to file descriptor 8."""
    read, write = os.pipe()
    code = f"import os; os.dup2({write}, 8); import sys; sys.argv = ['railx']\n"
    code += "from workflow.cli import main; main()"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(**asked), pass_fds=(write,), cwd=ROOT
    )
    os.close(write)
    with os.fdopen(read) as stream:
        offered = stream.read()
    process.wait()
    return set(offered.split("\n"))


def test_the_shell_is_told_commands_and_choices() -> None:
    assert _offered("railx rep") == {"replay", "reproduce"}
    assert "quick" in _offered("railx reproduce qu")
    assert "topology=torus_2d" in _offered("railx topology topology=torus_")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_lines(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "railx" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ("cores: 1\nset-threads: {}\n", False),
        ("cares: 1\n", True),
        ("__use_yte__: true\n?if True:\n  cores: 1\n", False),
    ],
)
def test_a_profile_holds_options_of_snakemake_or_a_template(
    tmp_path: Path, keys: str, refused: bool
) -> None:
    (tmp_path / "config.v8+.yaml").write_text(keys)
    options = argparse.Namespace(cores=None, profile=tmp_path)
    if not refused:
        assert shared.running(options) == ["--workflow-profile", str(tmp_path)]
        return
    with pytest.raises(ValueError, match=r"whose config\.v8\+\.yaml has cares, no options"):
        shared.running(options)


class Called:
    """Snakemake's calls, in the place of Snakemake."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []

    def __call__(self, arguments: Any, experiment: str, overrides: Any, stdout: Any = None) -> int:
        self.calls.append((list(arguments), [experiment, *overrides]))
        return 0


def test_reproduce_hands_its_choices_to_snakemake(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Called()
    monkeypatch.setattr(reproduce, "snakemake", called)
    told = ["reproduce", "quick", "seed=3", "--until", "metrics", "--dry-run", "--cores", "2"]
    assert cli.main([*told, "--profile", "profiles/gpu"]) == 0
    ((arguments, entries),) = called.calls
    assert arguments == [
        *("--cores", "2", "--workflow-profile", str(ROOT / "profiles/gpu")),
        *("--dry-run", "--until", "metrics"),
    ]
    assert entries == ["quick", "seed=3"]


def test_a_profile_without_its_plugin_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = Called()
    monkeypatch.setattr(reproduce, "snakemake", called)
    monkeypatch.setitem(cluster.PLUGINS, "gpu", "no_such_plugin")
    assert cli.main(["reproduce", "quick", "--profile", "profiles/gpu"]) == 2
    assert "railx-lab[gpu]" in capsys.readouterr().err
    assert not called.calls


#: What a setting of a sweep may be.
SEVERAL = "allowed: 1 to 1000 values, as a,b, range(a,b) or choice(a,b)\n"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["reproduce", "seed=3"], "EXPERIMENT: got 'seed=3'"),
        (["reproduce", "nope"], "experiment: got 'nope'"),
        (["reproduce", "quick", "--until", "nope"], "--until: got 'nope'"),
        (["reproduce", "quick", "--profile", "nope"], "--profile: got nope"),
        (
            ["reproduce", "quick", "--profile", "conf"],
            (
                "--profile: got conf, whose config.yaml has experiment, traffic, collective,"
                " economics, validation, scaling, arena, design, no options of Snakemake;"
                " allowed: a Snakemake"
                " profile, e.g."
                " profiles/slurm\n"
            ),
        ),
        (["reproduce", "quick", "--cores", "0"], "--cores: got '0'"),
        (["sweep", "quick", "seed=1"], "OVERRIDE: got no values in seed=1"),
        (["sweep", "quick", "seed=range(1,5000)"], "seed: got 'range(1,5000)'; allowed: 1 to 1000"),
        (["sweep", "quick", "seed=range(5,1)"], "seed: got 'range(5,1)'; allowed: 1 to 1000"),
        (
            ["sweep", "quick", "seed=range(1,41)", "topologies.torus_2d.n=range(1,41)"],
            "OVERRIDE: got 1600 values",
        ),
        (["sweep", "quick", "seed=interval(1,2)"], f"seed: got 'interval(1,2)'; {SEVERAL}"),
        (["sweep", "quick", "seed=glob(*)"], f"seed: got 'glob(*)'; {SEVERAL}"),
        (["sweep", "quick", "seed=range(1,2,0)"], f"seed: got 'range(1,2,0)'; {SEVERAL}"),
        # Hydra counts up by 0.0 for ever.
        (["sweep", "quick", "seed=range(1,2,0.0)"], f"seed: got 'range(1,2,0.0)'; {SEVERAL}"),
        (
            ["sweep", "quick", "seed=choice()"],
            (
                "seed: got 'choice()', empty choice is not legal; allowed: a value, or several as"
                " a,b, range(a,b) or choice(a,b)\n"
            ),
        ),
        (["sweep", "quick", "seed=1,2,"], "seed: got '1,2,', mismatched input"),
        (["sweep", "quick", "seed=1,2", "seed=3,4"], "seed: got '3,4' after other values"),
        (["sweep", "quick", "name=a,b", "seed=1,2"], "name: got 'a,b', several values; allowed: o"),
        (["sweep", "quick", "seed=1,1"], "seed: got 1 and 1, which are one run; allowed: "),
        # Equal once they are composed.
        (["sweep", "quick", "seed=1,1.0"], "seed: got 1 and 1.0, which are one run; allowed: "),
        (
            ["sweep", "quick", "topologies.torus_2d.n=2,3", "--sql", "select 1"],
            "--sql: got 'select 1', which reads no table; allowed: ",
        ),
        (["sweep", "quick", "seed=x,1"], "seed"),
        (
            ["sweep", "quick", "seed=1,2", "--claim", "railx_simulated_comparison"],
            "claim railx_simulated_comparison: has no query; allowed: ",
        ),
        (["sweep", "quick", "seed=1,2", "--claim", "nope"], "--claim: got 'nope'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    told: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = Called()
    monkeypatch.setattr(reproduce, "snakemake", called)
    monkeypatch.setattr(sweep, "snakemake", called)
    assert cli.main(told) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
    assert not called.calls


@pytest.mark.parametrize("installed", [True, False])
def test_snakemake_runs_in_no_installed_package(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path] = []

    def run(command: list[str], *, check: bool, cwd: Path, stdout: object) -> Any:
        ran.append(cwd)
        assert command[3:] == ["-n", "--config", "experiment=quick", "hydra='a b=3' c=4"]
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(shared.subprocess, "run", run)
    monkeypatch.setattr(shared, "is_checkout", lambda: not installed)
    if installed:
        with pytest.raises(ValueError, match="railx init"):
            shared.snakemake(["-n"], "quick", ["a b=3", "c=4"])
    else:
        assert shared.snakemake(["-n"], "quick", ["a b=3", "c=4"]) == 0
    assert ran == ([] if installed else [ROOT])


def test_points_are_every_combination_under_names_of_their_own() -> None:
    found = sweep.points(
        "quick", ["topologies.torus_2d.n=2,3", "seed=range(1,4)", "tracking=off", "name=mine"]
    )
    assert [point.values for point in found] == [
        {"topologies.torus_2d.n": n, "seed": seed} for n in ("2", "3") for seed in ("1", "2", "3")
    ]
    names = [point.name for point in found]
    assert len(set(names)) == len(found)
    assert len(sweep.points("quick", ["seed=range(0,1000)"])) == sweep.LIMIT
    assert names[0] == "mine_n_2_seed_1"
    assert found[0].overrides == (
        *("tracking=off", "topologies.torus_2d.n=2", "seed=1", "name=mine_n_2_seed_1"),
    )
    (long, other) = sweep.points("quick", [f"traffic={'a' * 300},{'a' * 301}"])
    assert len(long.name) < 100
    assert long.name != other.name


def test_points_that_would_share_a_name_do_not() -> None:
    found = sweep.points("quick", ["traffic=a.b,a_b"])
    assert [point.name for point in found] == ["quick_traffic_a_b", "quick_traffic_a_b_"]


def test_a_sweep_makes_only_what_the_question_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called = Called()
    monkeypatch.setattr(sweep, "snakemake", called)
    monkeypatch.setattr(sweep, "WORK", tmp_path)
    query = "select count(*) as rows from network.torus_2d.bounds"
    told = ["sweep", "quick", "topologies.torus_2d.n=2,3", "--sql", query]
    assert cli.main(told) == 2, "no table is there: nothing was made"
    assert [arguments[0] for arguments, _ in called.calls] == [
        f"results/quick_n_{n}/network/torus_2d/bounds.parquet" for n in (2, 3)
    ]
    assert [entries[-1].split("name=")[1] for _, entries in called.calls] == [
        *("quick_n_2", "quick_n_3"),
    ]
