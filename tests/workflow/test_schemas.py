"""Schemas for editors: every file of conf/ fits its own, every mistake does not."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from railx.field_docs import class_doc, field_doc
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    OneOf,
    Positive,
    PowerOfTwo,
    Registered,
    field_hints,
)
from tests.builders import schema_of
from tests.loops import for_every
from workflow import schemas
from workflow.config import CONF
from workflow.reference import keys_of, reference, unit_of
from workflow.schemas import SCHEMAS, generated_files, marked, schema, schema_name
from workflow.settings import CHOSEN, LISTED, Experiment, StageSettings, groups

FILES = sorted(CONF.rglob("*.yaml"))

POWERS = [2**exponent for exponent in range(32)]
CONSTRAINTS = [
    *(AtLeast(3), Between(-1, 5), OneOf(4, 9)),
    *(Positive(), NonNegative(), Fraction(), PowerOfTwo()),
]

Change = Callable[[dict[str, Any]], object]


@functools.cache
def validator(group: str) -> Draft202012Validator:
    return Draft202012Validator(schema(group))


def problems(group: str, written: Any) -> list[str]:
    return [error.message for error in validator(group).iter_errors(written)]


def written(path: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((CONF / path).read_text())
    return content


def settings_classes() -> list[type]:
    """Every class that the groups reach."""
    found: dict[type, None] = {}

    def visit(hint: Any) -> None:
        if isinstance(hint, Registered):
            for member in hint.members().values():
                visit(member)
        elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
            if hint not in found:
                found[hint] = None
                for inner in field_hints(hint).values():
                    visit(inner)
        else:
            for argument in get_args(hint):
                visit(argument)

    for hint in groups().values():
        visit(hint)
    return list(found)


def test_generated_files_are_written_beside_conf_and_outdated_ones_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generated = generated_files()
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "light.yaml").write_text("loads: [0.1]\n")
    (tmp_path / SCHEMAS).mkdir(parents=True)
    (tmp_path / SCHEMAS / "removed_group.schema.json").touch()
    monkeypatch.setattr(schemas, "CONF", tmp_path / "conf")
    assert schemas.main() == 0
    assert {
        path.relative_to(tmp_path): path.read_text() for path in (tmp_path / SCHEMAS).iterdir()
    } == generated
    said = capsys.readouterr().out
    assert "conf/sweep/light.yaml\n" in said
    assert "removed_group.schema.json removed\n" in said
    assert schemas.main() == 0
    assert capsys.readouterr().out == ""


def test_every_folder_of_conf_has_a_schema() -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders == set(groups()) - {"stage"}
    for path, text in generated_files().items():
        if path.suffix == ".json":
            Draft202012Validator.check_schema(json.loads(text))
            assert json.loads(text)["$id"] == path.name
        else:
            assert text == reference()


@for_every("path", FILES, name=lambda path: path.relative_to(CONF))
def test_every_file_fits_its_schema(path: Path) -> None:
    assert problems(schema_name(path), yaml.safe_load(path.read_text())) == []


def test_every_file_names_its_schema() -> None:
    assert [path for path in FILES if path.read_text() != marked(path)] == [], "run `make schemas`"


def test_the_comment_comes_once_and_below_those_that_speak_to_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflow.schemas.CONF", tmp_path)
    (tmp_path / "sweep").mkdir()
    path = tmp_path / "sweep" / "one.yaml"
    path.write_text("# @package _global_\n# What it is.\nload: 1\n")
    once = marked(path)
    assert once == (
        "# @package _global_\n"
        "# yaml-language-server: $schema=../../resources/schemas/conf/sweep.schema.json\n"
        "# What it is.\nload: 1\n"
    )
    path.write_text(once)
    assert marked(path) == once
    path = tmp_path / "config.yaml"
    path.write_text("name: paper\n")
    assert marked(path).splitlines() == [
        "# yaml-language-server: $schema=../resources/schemas/conf/config.schema.json",
        "name: paper",
    ]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("topology/railx_hyperx.yaml", lambda c: c.update(mm=2)),
        ("topology/railx_hyperx.yaml", lambda c: c.update(family="railx_hyperxx")),
        ("topology/railx_hyperx.yaml", lambda c: c.update(m=0)),
        ("topology/railx_hyperx.yaml", lambda c: c.update(m=2.5)),
        ("topology/railx_hyperx.yaml", lambda c: c.update(m=True)),
        ("topology/torus_2d.yaml", lambda c: c.update(n=0)),
        ("topology/railx_hyperx.yaml", lambda c: c.update(defaults=["torus_2d", 3])),
        ("traffic/base.yaml", lambda c: c["choices"]["hot_spot"].update(hot_share=1.5)),
        ("network/packet.yaml", lambda c: c.update(routing="shortest")),
        ("network/packet.yaml", lambda c: c.update(injection_ports=0)),
        ("sweep/base.yaml", lambda c: c["choices"]["fat_tree_1250"].update(loads=[0.1, 0])),
        ("sweep/base.yaml", lambda c: c["choices"]["fat_tree_1250"]["network"].update(routin=1)),
        ("sweep/base.yaml", lambda c: c["choices"]["fat_tree_1250"].update(topology="")),
        ("sweep/base.yaml", lambda c: c["choices"]["fat_tree_1250"].pop("loads")),
        ("sweep/base.yaml", lambda c: c["choices"].update(fat_tree_1250=None)),
        ("sweep/base.yaml", lambda c: c["choices"].update(fat_tree_1250=[])),
        ("collective/ring_all_reduce.yaml", lambda c: c["choices"]["all"].update(collectives=[])),
        ("collective/ring_all_reduce.yaml", lambda c: c["choices"]["all"].update(rows=0)),
        ("tenancy/base.yaml", lambda c: c["choices"]["small"]["stream"]["jobs"][0].pop("weight")),
        (
            "tenancy/base.yaml",
            lambda c: c["choices"]["small"]["stream"]["scenarios"]["healthy"].update(failed=1),
        ),
        ("corpus/base_like.yaml", lambda c: c["choices"]["github_like"].update(tail_fraction=0)),
        ("corpus/stdlib.yaml", lambda c: c.update(sequences="all")),
        ("cluster/cpu_4.yaml", lambda c: c.update(devices=0)),
        ("cluster/cpu_4.yaml", lambda c: c["all_to_all_gb_s"].update({"2": -1})),
        ("cost_model/analytic.yaml", lambda c: c.update(zero_stage=4)),
        ("planner/base_groups.yaml", lambda c: c["choices"]["static"].update(degree=3)),
        ("planner/base_groups.yaml", lambda c: c["choices"]["static_64"].update(degree=3)),
        ("planner/base_groups.yaml", lambda c: c["choices"]["static_64"].update(degrees=32)),
        ("planner/base_groups.yaml", lambda c: c["choices"]["static"].pop("planner")),
        (
            "plan/base_cpu_4.yaml",
            lambda c: c["choices"]["flexsp_stdlib"].update(planner={"buckets": 0}),
        ),
        ("plan/base_cpu_4.yaml", lambda c: c["choices"]["flexsp_stdlib"].pop("defaults")),
        ("plan/base_cpu_4.yaml", lambda c: c.pop("defaults")),
        ("plan/base_cpu_4.yaml", lambda c: c["defaults"].pop()),
        ("run/base.yaml", lambda c: c["choices"]["flexsp_stdlib"].update(fabric={"port": 70000})),
        ("run/base.yaml", lambda c: c["choices"]["flexsp_stdlib"].update(fabric={"defaults": []})),
        ("run/base.yaml", lambda c: c["choices"]["flexsp_stdlib"].pop("plan")),
        ("fabric/rails.yaml", lambda c: c.update(port=-1)),
        ("training/cpu_4.yaml", lambda c: c.update(optimizer={"beta1": 1})),
        ("tracking/off.yaml", lambda c: c.update(mlflow="no")),
        ("transition/base.yaml", lambda c: c["choices"]["torus_to_hyperx"].pop("after")),
        ("agreement/small.yaml", lambda c: c["traffics"]["uniform"].update(pattern="tornado")),
        ("experiment/quick.yaml", lambda c: c.update(sed=1)),
        ("experiment/quick.yaml", lambda c: c.update(seed=-1)),
        ("experiment/quick.yaml", lambda c: c.update(tenancy="huge")),
        ("experiment/quick.yaml", lambda c: c["plans"].append("flexsp_books")),
        ("experiment/quick.yaml", lambda c: c["plans"].append("flexsp_7b_192k_books")),
        ("experiment/quick.yaml", lambda c: c["plans"].append({"mine": "flexsp_books"})),
        ("experiment/planners.yaml", lambda c: c["plans"][0]["cross"].pop("corpus")),
        ("experiment/planners.yaml", lambda c: c["plans"][0]["cross"].update(corpus=["books"])),
        ("experiment/planners.yaml", lambda c: c["plans"][0]["cross"].update(model="gpt_7b")),
        ("experiment/planners.yaml", lambda c: c["plans"][0]["cross"].update(setting="7b")),
        ("experiment/planners.yaml", lambda c: c["plans"][0].update(excep=[])),
        ("experiment/end_to_end.yaml", lambda c: c["plans"][1].update({"except": "megatron_*"})),
        ("experiment/end_to_end.yaml", lambda c: c["plans"][1].pop("cross")),
        ("experiment/end_to_end.yaml", lambda c: c.update(plans={"except": ["megatron_*"]})),
        ("experiment/end_to_end.yaml", lambda c: c.update(runs=c["plans"])),
        ("experiment/quick.yaml", lambda c: c.update(sweeps={"mine": {"network": {"m": 1}}})),
        ("experiment/gpu.yaml", lambda c: c.update(training="tpu")),
        ("experiment/gpu.yaml", lambda c: c.update(defaults=["papers"])),
        ("experiment/gpu.yaml", lambda c: c.update(runs=["no name"])),
        ("figure/cost_opus.yaml", lambda c: c.update(dpi=10)),
        ("topology/torus_2d.yaml", lambda c: c.update(lane=10)),
        ("topology/torus_2d.yaml", lambda c: c["choices"]["torus_2d_1296"].update(lane=10)),
        ("topology/torus_2d.yaml", lambda c: c.pop("family")),
        ("config.yaml", lambda c: c.update(experiment="papers")),
        ("config.yaml", lambda c: c.update(tracking="none")),
        ("stage.yaml", lambda c: c.update(topologies={})),
    ],
)
def test_a_mistake_in_a_file_is_found(path: str, change: Change) -> None:
    content = written(path)
    assert problems(schema_name(CONF / path), content) == []
    change(content)
    assert problems(schema_name(CONF / path), content)


def test_what_a_file_leaves_to_those_that_it_mounts() -> None:
    defaults = [{"/traffic@traffic": "uniform"}, {"/network@network": "packet"}]
    held = {"topology": "torus", "loads": [0.1], "network": {"routing": "min"}}
    assert problems("sweep", {"defaults": defaults, **held}) == []
    assert problems("sweep", {"defaults": ["mine"]}) == []
    assert problems("sweep", {"defaults": defaults[1:], **held})
    assert problems("sweep", {"defaults": defaults, **held, "loads": "???"})
    assert problems("sweep", held)
    mine = {"defaults": defaults, "choices": {"base_mine": None, "mine": held}}
    assert problems("sweep.base", mine) == []
    assert problems("sweep.base", {**mine, "choices": {"mine": {}}})
    cross = {"planner": "flexsp", "setting": ["7b_192k"], "corpus": "wikipedia"}
    name = "flexsp_7b_192k_wikipedia"
    assert problems("experiment", {"plans": {"cross": cross, "mine": name, name: None}}) == []
    assert problems("experiment", {"plans": {"cross": cross, "mine": "flexsp"}})
    assert problems("sweep.base", {"loads": "???", "network": {"routing": "min"}}) == []
    assert problems("sweep.base", {"loads": "??"})
    assert problems("experiment", {"figures": {"cost": {"dpi": 300}}}) == []
    assert problems("experiment", {"figures": {"cost": {"dpii": 300}}})
    assert problems("experiment", {"defaults": ["paper"], "figures": ["mine"]}) == []
    assert problems("experiment", {"figures": ["mine"]})
    assert problems("experiment", {"figures": {"mine": "cost", "cost": None}}) == []


@dataclasses.dataclass(frozen=True)
class Ring:
    """A ring."""

    family: Literal["ring"]
    nodes: Annotated[int, AtLeast(3)]
    """Nodes of the ring.

    Chips count   twice, ``see there``.
    """
    degree: Annotated[int, PowerOfTwo()] | None = None


@dataclasses.dataclass(frozen=True)
class Wide(Ring):
    label: Annotated[str | None, NotEmpty()] = None


def test_what_stands_below_a_field_and_in_the_schema() -> None:
    described = "Nodes of the ring.\n\nChips count twice, `see there`."
    assert (class_doc(Ring), field_doc(Ring, "nodes")) == ("A ring.", described)
    assert (field_doc(Wide, "nodes"), field_doc(Wide, "label")) == (described, "")
    written = schema_of(Annotated[Any, Registered("family", lambda: {"ring": Wide})])
    (reference,) = written["oneOf"]
    assert written["discriminator"] == {"propertyName": "family"}
    wide = written["$defs"][reference["$ref"].removeprefix("#/$defs/")]
    assert wide["additionalProperties"] is False
    assert wide["required"] == ["family", "nodes"]
    assert wide["properties"] == {
        "family": {"const": "ring"},
        "nodes": {"description": described, "type": "integer", "minimum": 3},
        "degree": {"type": ["integer", "null"], "enum": [*POWERS, None], "default": None},
        "label": {"type": ["string", "null"], "minLength": 1, "default": None},
    }


@given(
    st.sampled_from(CONSTRAINTS),
    st.one_of(st.integers(-10, 2**31), st.sampled_from([*POWERS, 0, 1, 3, 4, 5, 9])),
)
def test_a_constraint_says_the_same_in_both_languages(constraint: Any, value: int) -> None:
    fits = Draft202012Validator(constraint.keywords).is_valid(value)
    assert fits == constraint.accepts(value)


def test_rows_of_the_reference_page() -> None:
    rows = [(row.key, row.allowed, row.unit, row.meaning) for row in keys_of(Wide)]
    assert rows == [
        ("family", "`ring`", "", ""),
        (
            "nodes",
            "integer, at least 3",
            "",
            "Nodes of the ring. Chips count twice, `see there`.",
        ),
        ("degree", "integer, a power of two (1, 2, 4, ...) or null; default null", "", ""),
        ("label", "text or null, not empty; default null", "", ""),
    ]
    named = ("port_gbps", "timeout_s", "all_to_all_gb_s", "usd_per_all_to_all_gb_s", "seed")
    units = {name: unit_of(name) for name in named}
    assert units == {
        "port_gbps": "10^9 bit/s",
        "timeout_s": "s",
        "all_to_all_gb_s": "10^9 byte/s",
        "usd_per_all_to_all_gb_s": "USD per 10^9 byte/s",
        "seed": "",
    }
    page = reference()
    assert page.startswith("<!-- Generated from the settings classes")
    assert "| `mix.jobs[].rows` | integer, at least 1 |" in page
    assert "| `loads` | list, each: number, greater than 0 |" in page
    assert "| `topologies` | mapping of names, not empty, each: a mapping |" in page


@for_every("cls", settings_classes())
def test_every_key_is_described(cls: type) -> None:
    silent = [field.name for field in dataclasses.fields(cls) if not field_doc(cls, field.name)]
    assert silent == []
    assert class_doc(cls)


def test_whatever_an_experiment_chooses_by_file_is_a_group() -> None:
    hints = field_hints(Experiment)
    for group in CHOSEN:
        assert groups()[group] == hints[group]
    for key, group in LISTED.items():
        if group not in field_hints(StageSettings):
            assert groups()[group] == get_args(hints[key])[1]
