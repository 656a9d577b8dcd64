"""conf/ of a folder of work: what it has comes first, the rest from the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railx import places
from railx.settings import SettingsError
from tests.builders import CONF, ROOT
from tests.commands import environment, python
from workflow.choices import (
    about,
    choice_content,
    choices,
    conf_file,
    conf_files,
    file_of,
    group_files,
    groups_of,
    is_choice,
    is_group,
    layers,
)
from workflow.composer import compose
from workflow.plan_names import PlanNames


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty conf/ of a folder of work, its path with a space."""
    work = tmp_path / "my study"
    (work / "conf" / "topology").mkdir(parents=True)
    monkeypatch.setattr(places, "WORK", work)
    return work / "conf"


def topology(conf: Path, name: str, text: str) -> None:
    (conf / "topology" / f"{name}.yaml").write_text(text)


def test_only_a_folder_of_work_has_the_package_behind_it(conf: Path, tmp_path: Path) -> None:
    assert layers(conf) == (conf, CONF)
    assert layers(CONF) == (CONF,)
    assert layers(tmp_path / "conf") == (tmp_path / "conf",)


def test_an_empty_folder_reads_everything_from_the_package(conf: Path) -> None:
    assert choices(conf, "topology") == choices(CONF, "topology")
    assert groups_of(conf) == groups_of(CONF)
    assert conf_files(conf) == conf_files(CONF)
    assert is_group(conf, "planner")
    assert not is_group(conf, "nothing")
    name = "flexsp_7b_192k_github"
    assert PlanNames(conf).parts(name) == PlanNames(CONF).parts(name)
    for primary in ("stage", "stage_plan"):
        assert compose(conf, primary) == compose(CONF, primary)
    chosen = ["topology=torus_2d", "topology.n=3"]
    assert compose(conf, "stage", chosen) == compose(CONF, "stage", chosen)


def test_a_file_takes_the_place_of_the_packages_with_its_variants(conf: Path) -> None:
    assert "torus_2d_1296" in choices(conf, "topology")
    topology(conf, "torus_2d", "# Mine. More.\nfamily: torus_2d\nn: 7\nchoices:\n  wide: {n: 9}\n")
    assert choice_content(conf, "topology", "torus_2d") == {"family": "torus_2d", "n": 7}
    assert not is_choice(conf, "topology", "torus_2d_1296")
    assert is_choice(CONF, "topology", "torus_2d_1296")
    assert compose(conf, "stage", ["topology=wide"])["topology"] == {"family": "torus_2d", "n": 9}
    assert about(conf, "topology", "torus_2d") == "Mine"
    assert conf_file(conf, "topology/torus_2d.yaml") == (
        conf / "topology" / "torus_2d.yaml",
        conf.parent,
    )
    assert conf_file(conf, "topology/dragonfly.yaml")[1] == ROOT
    own, shipped = group_files(conf, "topology")
    assert list(own) == ["torus_2d"]
    assert "torus_2d" not in shipped
    assert len(shipped) > 10


def test_a_variant_comes_before_the_packages_choice_of_its_name(conf: Path) -> None:
    topology(
        conf, "mine", "family: torus_2d\nn: 7\nchoices:\n  torus_2d_1296: {n: 1}\n  fat_tree:\n"
    )
    for name in ("torus_2d_1296", "fat_tree"):
        assert file_of(conf, "topology", name) == conf / "topology" / "mine.yaml"
        assert compose(conf, "stage", [f"topology={name}"])["topology"]["family"] == "torus_2d"
    # Within a layer a name is still one choice.
    topology(conf, "other", "family: torus_2d\nchoices:\n  mine: {n: 2}\n")
    with pytest.raises(SettingsError, match="allowed: a name that no other choice has"):
        choices(conf, "topology")


def test_a_file_inherits_the_packages(conf: Path) -> None:
    topology(conf, "mine", "defaults: [railx_hyperx_m4n2]\nn: 3\n")
    mine = compose(conf, "stage", ["topology=mine"])["topology"]
    theirs = compose(CONF, "stage", ["topology=railx_hyperx_m4n2", "topology.n=3"])["topology"]
    assert mine == theirs


def test_a_broken_file_and_an_unknown_name_are_named(conf: Path) -> None:
    topology(conf, "mine", "family: [\n")
    with pytest.raises(SettingsError, match=r"^conf/topology/mine\.yaml: no YAML: line 2"):
        choices(conf, "topology")
    topology(conf, "mine", "family: torus_2d\n")
    with pytest.raises(SettingsError, match=r"got 'mime'; allowed: mine, \w+, \w+, \.\.\. "):
        choice_content(conf, "topology", "mime")


def test_the_commands_work_in_a_folder_of_work(conf: Path) -> None:
    """In a process of its own, as places are looked up once."""
    topology(conf, "mine", "family: torus_2d\nn: 7\n")
    work = conf.parent
    (conf / "config.yaml").write_bytes((CONF / "config.yaml").read_bytes())
    (work / "Snakefile").write_text("")
    (work / "lengths.json").write_text(json.dumps([900, 300, 200]))
    code = "import sys; from workflow.cli import main; sys.exit(main(sys.argv[1:]))"

    def railx(*words: str) -> tuple[int, str, str]:
        done = python("-c", code, *words, cwd=work, env=environment())
        return done.returncode, done.stdout, done.stderr

    assert json.loads(railx("topology", "topology=mine", "--json")[1])["family"] == "torus_2d"
    planned = railx("plan", "planner=static", "corpus.path=lengths.json", "--json")
    assert json.loads(planned[1])["sequences"] == 3, planned[2]
    returncode, _, said = railx("reproduce", "quik", "-n")
    assert (returncode, said.count("\n")) == (2, 1)
    assert "experiment: got 'quik'; allowed: quick, " in said
    listed = json.loads(railx("list", "topologies", "--json")[1])
    assert {"mine", "dragonfly"} <= {row["name"] for row in listed}
