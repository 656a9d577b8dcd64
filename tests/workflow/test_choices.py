"""Choices of a group: files, the variants that a file lists, classes of defaults. conf/
of a folder of work: what it has comes first, the rest from the package. Plans as a
product of planners, settings and corpora.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from railx import places
from railx.settings import SettingsError, with_defaults
from tests.builders import ROOT
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
from workflow.config import CONF, compose_experiment
from workflow.plan_names import PlanNames, PlanParts, crossed
from workflow.renamed import new_name
from workflow.settings import Experiment


@dataclass(frozen=True)
class Corner:
    """How a corner is cut. Not told apart from others."""

    radius: float = 0.5


@dataclass(frozen=True)
class Square:
    """A square with round corners. One of two."""

    shape: Literal["square"]
    side: int = 1
    corner: Corner = Corner()


@dataclass(frozen=True)
class Circle:
    """A circle."""

    shape: Literal["circle"]
    radius: float


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conf/ with one group, ``shape``."""
    monkeypatch.setattr("workflow.settings.groups", lambda: {"shape": Square | Circle})
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "base_round.yaml").write_text("shape: circle\n")
    (tmp_path / "shape" / "wheel.yaml").write_text(
        """# A wheel. It turns.
defaults: [base_round]
radius: 3.0
choices:
  # A wheel
  # of a child. Small.
  small_wheel: {radius: 1.0}
  cart_wheel: {defaults: [small_wheel], radius: 2.0}
  same_wheel:
"""
    )
    return tmp_path


def test_files_variants_and_classes_are_choices(shapes: Path) -> None:
    names = ["cart_wheel", "same_wheel", "small_wheel", "square", "wheel"]
    assert choices(shapes, "shape") == names
    assert all(is_choice(shapes, "shape", name) for name in names)
    assert not any(is_choice(shapes, "shape", name) for name in ("circle", "base_round", "cube"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("wheel", {"shape": "circle", "radius": 3.0}),
        ("small_wheel", {"shape": "circle", "radius": 1.0}),
        ("cart_wheel", {"shape": "circle", "radius": 2.0}),
        ("same_wheel", {"shape": "circle", "radius": 3.0}),
        ("square", {"shape": "square"}),
    ],
)
def test_a_choice_is_its_file_with_its_own_keys_on_top(
    shapes: Path, name: str, content: dict[str, object]
) -> None:
    primary = {"defaults": [{"/shape": name}]}
    assert compose(shapes, primary) == {"shape": content}


def test_what_is_no_choice_is_refused_with_all_that_are(shapes: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"^shape: got 'cube'; allowed: cart_wheel, same_wheel, small_wheel, square, wheel$",
    ):
        choice_content(shapes, "shape", "cube")


@pytest.mark.parametrize("listed", ["wheel", "small_wheel"])
def test_each_name_is_one_choice(shapes: Path, listed: str) -> None:
    (shapes / "shape" / "other.yaml").write_text(f"shape: circle\nchoices: {{{listed}: {{}}}}\n")
    with pytest.raises(SettingsError, match=f"^choices: got '{listed}' in conf/shape/"):
        choices(shapes, "shape")


def test_the_first_sentence_describes_a_choice(shapes: Path) -> None:
    assert about(shapes, "shape", "wheel") == "A wheel"
    assert about(shapes, "shape", "small_wheel") == "A wheel of a child"
    assert about(shapes, "shape", "cart_wheel") == "A wheel"
    assert about(shapes, "shape", "square") == "A square with round corners"


def test_defaults_of_the_classes_fill_what_is_left_out() -> None:
    hint = Square | Circle
    assert with_defaults(hint, {"shape": "square"}) == {
        "shape": "square",
        "side": 1,
        "corner": {"radius": 0.5},
    }
    partial = {"shape": "square", "corner": {}, "side": 2}
    assert with_defaults(hint, partial) == {
        "shape": "square",
        "side": 2,
        "corner": {"radius": 0.5},
    }
    assert with_defaults(dict[str, Circle], {"a": {"shape": "circle"}}) == {
        "a": {"shape": "circle"}
    }


@pytest.fixture
def work_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty conf/ of a folder of work, its path with a space."""
    work = tmp_path / "my study"
    (work / "conf" / "topology").mkdir(parents=True)
    monkeypatch.setattr(places, "WORK", work)
    return work / "conf"


def topology(work_conf: Path, name: str, text: str) -> None:
    (work_conf / "topology" / f"{name}.yaml").write_text(text)


def test_only_a_folder_of_work_has_the_package_behind_it(work_conf: Path, tmp_path: Path) -> None:
    assert layers(work_conf) == (work_conf, CONF)
    assert layers(CONF) == (CONF,)
    assert layers(tmp_path / "conf") == (tmp_path / "conf",)


def test_an_empty_folder_reads_everything_from_the_package(work_conf: Path) -> None:
    assert choices(work_conf, "topology") == choices(CONF, "topology")
    assert groups_of(work_conf) == groups_of(CONF)
    assert conf_files(work_conf) == conf_files(CONF)
    assert is_group(work_conf, "planner")
    assert not is_group(work_conf, "nothing")
    name = "flexsp_7b_192k_github"
    assert PlanNames(work_conf).parts(name) == PlanNames(CONF).parts(name)
    for primary in ("stage", "stage_plan"):
        assert compose(work_conf, primary) == compose(CONF, primary)
    chosen = ["topology=torus_2d", "topology.n=3"]
    assert compose(work_conf, "stage", chosen) == compose(CONF, "stage", chosen)


def test_a_file_takes_the_place_of_the_packages_with_its_variants(work_conf: Path) -> None:
    assert "torus_2d_1296" in choices(work_conf, "topology")
    topology(
        work_conf, "torus_2d", "# Mine. More.\nfamily: torus_2d\nn: 7\nchoices:\n  wide: {n: 9}\n"
    )
    assert choice_content(work_conf, "topology", "torus_2d") == {"family": "torus_2d", "n": 7}
    assert not is_choice(work_conf, "topology", "torus_2d_1296")
    assert is_choice(CONF, "topology", "torus_2d_1296")
    assert compose(work_conf, "stage", ["topology=wide"])["topology"] == {
        "family": "torus_2d",
        "n": 9,
    }
    assert about(work_conf, "topology", "torus_2d") == "Mine"
    assert conf_file(work_conf, "topology/torus_2d.yaml") == (
        work_conf / "topology" / "torus_2d.yaml",
        work_conf.parent,
    )
    assert conf_file(work_conf, "topology/dragonfly.yaml")[1] == ROOT
    own, shipped = group_files(work_conf, "topology")
    assert list(own) == ["torus_2d"]
    assert "torus_2d" not in shipped
    assert len(shipped) > 10


def test_a_variant_comes_before_the_packages_choice_of_its_name(work_conf: Path) -> None:
    topology(
        work_conf,
        "mine",
        "family: torus_2d\nn: 7\nchoices:\n  torus_2d_1296: {n: 1}\n  fat_tree:\n",
    )
    for name in ("torus_2d_1296", "fat_tree"):
        assert file_of(work_conf, "topology", name) == work_conf / "topology" / "mine.yaml"
        assert compose(work_conf, "stage", [f"topology={name}"])["topology"]["family"] == "torus_2d"
    # Within a layer a name is still one choice.
    topology(work_conf, "other", "family: torus_2d\nchoices:\n  mine: {n: 2}\n")
    with pytest.raises(SettingsError, match="allowed: a name that no other choice has"):
        choices(work_conf, "topology")


def test_a_file_inherits_the_packages(work_conf: Path) -> None:
    topology(work_conf, "mine", "defaults: [railx_hyperx_m4n2]\nn: 3\n")
    mine = compose(work_conf, "stage", ["topology=mine"])["topology"]
    theirs = compose(CONF, "stage", ["topology=railx_hyperx_m4n2", "topology.n=3"])["topology"]
    assert mine == theirs


def test_a_broken_file_and_an_unknown_name_are_named(work_conf: Path) -> None:
    topology(work_conf, "mine", "family: [\n")
    with pytest.raises(SettingsError, match=r"^conf/topology/mine\.yaml: no YAML: line 2"):
        choices(work_conf, "topology")
    topology(work_conf, "mine", "family: torus_2d\n")
    with pytest.raises(SettingsError, match=r"got 'mime'; allowed: mine, \w+, \w+, \.\.\. "):
        choice_content(work_conf, "topology", "mime")


def test_the_commands_work_in_a_folder_of_work(work_conf: Path) -> None:
    """In a process of its own, as places are looked up once."""
    topology(work_conf, "mine", "family: torus_2d\nn: 7\n")
    work = work_conf.parent
    (work_conf / "config.yaml").write_bytes((CONF / "config.yaml").read_bytes())
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


NAMES = PlanNames(CONF)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("flexsp_7b_192k_wikipedia", ("flexsp", "7b_192k", "wikipedia")),
        ("flexsp_milp_code_7b_192k_commoncrawl", ("flexsp_milp_code", "7b_192k", "commoncrawl")),
        ("static_7b_128k_16_commoncrawl", ("static", "7b_128k_16", "commoncrawl")),
        ("deepspeed_a800_13b_192k_github", ("deepspeed", "a800_13b_192k", "github")),
        ("flexsp_7b_192k_stdlib", ("flexsp", "7b_192k", "stdlib")),
    ],
)
def test_a_name_says_planner_setting_and_corpus(name: str, parts: tuple[str, str, str]) -> None:
    assert NAMES.parts(name) == PlanParts(*parts)


@pytest.mark.parametrize(
    "name", ["flexsp_stdlib", "flexsp_wikipedia", "best_7b_192k_github", "flexsp_7b_192k_books"]
)
def test_other_names_are_no_product(name: str) -> None:
    assert NAMES.parts(name) is None


def test_a_cross_has_every_plan_but_those_left_out() -> None:
    cross = {
        "setting": ["7b_64k", "7b_128k"],
        "corpus": "github",
        "planner": ["static", "megatron"],
    }
    assert crossed({"cross": cross, "except": ["megatron_7b_64k_*"]}) == [
        "static_7b_64k_github",
        "static_7b_128k_github",
        "megatron_7b_128k_github",
    ]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"cross": {"planner": "flexsp"}}, "plans: got cross: {'planner': 'flexsp'}; allowed: a"),
        ({"cross": {"planner": 1, "setting": "a", "corpus": "b"}}, "plans: got cross: {'planner'"),
        (
            {"cross": {"planner": "a", "setting": "b", "corpus": "c"}, "except": ["d_*"]},
            "plans: got except: d_*; allowed: a_b_c",
        ),
        ({"cross": {"planner": "a", "setting": "b", "corpus": "c"}, "but": 1}, "plans: got {"),
        ({"cross": {"planner": "a", "setting": "b", "corpus": "c"}, "with": 40}, "plans: got {"),
    ],
)
def test_a_cross_that_cannot_be_is_refused(item: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        crossed(item)
    assert str(refused.value).startswith(message)


def test_what_a_setting_says_of_a_planner_counts_in_its_plans_alone() -> None:
    planner = "planner"
    names = {
        "static_7b_192k_wikipedia": (planner, "degree", 64),
        "static_7b_192k_github": (planner, "degree", None),
        "deepspeed_a800_7b_48k_github": (planner, "degree", 16),
        "deepspeed_a800_30b_48k_github": (planner, "degree", 32),
        "pipeline_a800_7b_48k_github": (planner, "stages", 4),
        "pipeline_7b_192k_github": (planner, "stages", 8),
        "flexsp_a800_30b_48k_github": ("cost_model", "checkpoint_layers", 36),
        "pipeline_a800_30b_48k_github": ("cost_model", "checkpoint_layers", 0),
    }
    listed = ",".join(names)
    plans = compose_experiment(["experiment=end_to_end", f"plans=[{listed}]", "figures=[]"]).plans
    assert list(plans) == list(names)
    for name, (group, key, value) in names.items():
        assert getattr(getattr(plans[name], group), key) == value, name
        assert plans[name].corpus == {"github": "github_like"}.get(name.split("_")[-1], "wikipedia")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flexsp_wikipedia", "flexsp_7b_192k_wikipedia"),
        ("pipeline_github_like", "pipeline_7b_192k_github"),
        ("flexsp_wikipedia_railx", "flexsp_7b_192k_railx_wikipedia"),
        ("flexsp_7b_128k_commoncrawl_16", "flexsp_7b_128k_16_commoncrawl"),
        ("pipeline_a800_7b_48k_commoncrawl_40g", "pipeline_a800_7b_48k_40g_commoncrawl"),
        ("flexsp_7b_192k_wikipedia", None),
        ("flexsp_a800_7b_48k_commoncrawl", None),
        ("flexsp_stdlib", None),
    ],
)
def test_old_names_have_one_new_name_each(old: str, new: str | None) -> None:
    assert new_name("plan", old) == new


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "plans=[flexsp_wikipedia]",
            "plans: got 'flexsp_wikipedia'; renamed: flexsp_7b_192k_wikipedia",
        ),
        (
            "plans.flexsp_wikipedia.planner.effort=2",
            "plans: got 'flexsp_wikipedia'; renamed: flexsp_7b_192k_wikipedia",
        ),
        (
            "runs.flexsp_stdlib.plan=flexsp_wikipedia",
            "runs.flexsp_stdlib.plan: got 'flexsp_wikipedia'; renamed: flexsp_7b_192k_wikipedia",
        ),
        ("plans=[flexsp_7b_9k_wikipedia]", "plans: got 'flexsp_7b_9k_wikipedia'; allowed (conf/p"),
    ],
)
def test_a_name_that_is_no_plan_is_refused(override: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        compose_experiment(["experiment=quick", override])
    assert str(refused.value).startswith(message)


def test_overrides_reach_the_plans_of_a_product() -> None:
    plans = compose_experiment(
        [
            "experiment=quick",
            "plans.flexsp_7b_192k_wikipedia.planner.effort=2",
            "plans.mine=static_7b_384k_wikipedia",
            "planner@plans.static_7b_192k_wikipedia.planner=megatron",
            "~plans.pipeline_stdlib",
            "~runs.pipeline_stdlib",
            "figures=[cost]",
        ]
    ).plans
    assert plans["flexsp_7b_192k_wikipedia"].planner.effort == 2  # type: ignore[attr-defined]
    assert plans["mine"].batch.max_length_tokens == 384000
    assert plans["static_7b_192k_wikipedia"].planner.planner == "megatron"
    assert "pipeline_stdlib" not in plans


def test_an_heir_crosses_further_plans(mine: Callable[..., Experiment]) -> None:
    added = (
        "{cross: {planner: [wlb, static], setting: 7b_64k, corpus: wikipedia}, except: [static_*]}"
    )
    plans = mine(f"defaults: [quick]\nplans: {added}\n").plans
    inherited = compose_experiment(["experiment=quick"]).plans
    assert list(plans) == [*inherited, "wlb_7b_64k_wikipedia"]


@pytest.mark.parametrize("plans", ["[{cross}, static_7b_64k_github]", "{cross}"])
def test_keys_of_a_cross_are_keys_of_all_its_plans(
    mine: Callable[..., Experiment], plans: str
) -> None:
    cross = (
        "{cross: {planner: [wlb, static], setting: 7b_64k, corpus: wikipedia},"
        " with: {batch: {batches: 40}}}"
    )
    text = f"defaults: [planners]\nfigures: []\nplans: {plans.replace('{cross}', cross)}\n"
    composed = mine(text).plans
    batches = {name: plan.batch.batches for name, plan in composed.items()}
    assert batches["wlb_7b_64k_wikipedia"] == batches["static_7b_64k_wikipedia"] == 40
    inherited = set(batches) - {"wlb_7b_64k_wikipedia", "static_7b_64k_wikipedia"}
    assert inherited
    assert 40 not in {batches[name] for name in inherited}
