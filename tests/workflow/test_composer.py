"""What is composed is what Hydra composes of the same files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf

from railx.settings import SettingsError
from workflow.choices import choice_content, choices
from workflow.composer import compose
from workflow.config import CONF
from workflow.mounts import primary_config
from workflow.settings import CHOSEN

OVERRIDES: dict[str, tuple[str, ...]] = {
    "none": (),
    "values": ("++topologies.torus_2d.n=3", "seed=4", "++tracking.project=own"),
    "an entry": ("topologies.mine=torus_2d", "~topologies.railx_hyperx_full"),
    "a choice below": ("training@runs.flexsp_stdlib.training=gpu",),
    "of all": ("training=cpu_4_sweep", "tracking=off"),
    "a mapping": ("++tracking={project: own, mlflow: false}",),
    "a list": ("++sweeps.railx_hyperx_min.loads=[0.5, 1e0]",),
    "another choice added": ("+topology@topologies.mine=torus_2d",),
    "a choice removed": ("~topology@topologies.torus_2d",),
    "a reference": ("++topologies.torus_2d.n=${seed}",),
}


def by_hydra(conf: Path, primary: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The same composition by Hydra, which gets every choice as if it had a file."""
    store = ConfigStore.instance()
    store.store("mounted", primary)
    # Hydra reads files that list choices of its own as if these were keys.
    for group in (path.name for path in conf.iterdir() if path.is_dir() and conf == CONF):
        bases = [path.stem for path in (conf / group).glob("base*.yaml")]
        for name in [*bases, *choices(conf, group)]:
            store.store(name, choice_content(conf, group, name), group=group)
    with (
        initialize(None, version_base="1.3")
        if conf == CONF
        else initialize_config_dir(str(conf), version_base="1.3")
    ):
        config = hydra_compose("mounted", overrides=overrides)
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@pytest.mark.slow
@pytest.mark.parametrize("overrides", OVERRIDES)
def test_overrides_do_what_they_do_in_hydra(overrides: str) -> None:
    mounted, rest = primary_config(
        ("experiment=quick", "plans=[flexsp_stdlib, static_stdlib, pipeline_stdlib]")
        + OVERRIDES[overrides],
        CHOSEN,
    )
    plain, wanted = compose(CONF, mounted, rest), by_hydra(CONF, mounted, rest)
    assert plain == wanted
    assert _order(plain) == _order(wanted)


def _order(node: Any) -> Any:
    """Keys in their order, which lists of names rest on."""
    return [(key, _order(item)) for key, item in node.items()] if isinstance(node, dict) else None


def _drawn(random: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Files of two groups: some inherit, mount and override, all hold values."""
    for group, other in (("a", "b"), ("b", None)):
        for number in range(3):
            defaults: list[Any] = [f"f{number - 1}"] if number and random.random() < 0.7 else []
            inherits = bool(defaults)
            key = random.choice(["x", "y.z"])
            if other is not None and random.random() < 0.7:
                chosen = f"f{random.randrange(3)}"
                # What is mounted already can only be overridden.
                if not inherits:
                    defaults.append({f"/{other}@{key}": chosen})
            if random.random() < 0.5:
                defaults.insert(random.randrange(len(defaults) + 1), "_self_")
            content: dict[str, Any] = {
                name: random.choice([1, "word", 2.5, None, [1, 2], {"k": random.randrange(9)}])
                for name in random.sample(["p", "q", "x"], 2)
                if name != "x" or group == "b"
            }
            if defaults:
                content = {"defaults": defaults, **content}
            yield f"{group}/f{number}.yaml", content


@pytest.mark.parametrize("seed", range(12))
def test_drawn_files_are_composed_as_by_hydra(tmp_path: Path, seed: int) -> None:
    for name, content in _drawn(random.Random(seed)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    for one, other in (("f0", "f2"), ("f2", "f1")):
        primary = {
            "defaults": [{"/a@one": one}, {"/a@two": other}, {"/b": "f1"}, "_self_"],
            "one": {"q": 7},
        }
        overrides = ["++two.p=3", "b@two.x=f0"] if seed % 3 == 0 else ["++one.r={s: 1}"]
        try:
            wanted = by_hydra(tmp_path, primary, overrides)
        except HydraException:
            wanted = None
        refused = ""
        try:
            plain = compose(tmp_path, primary, overrides)
        except SettingsError as error:
            plain, refused = None, str(error)
        # Hydra lays a list on a mapping where a third file says null in between.
        if "a list and a mapping" not in refused:
            assert plain == wanted
            assert refused.startswith("b@two.x: is not chosen here" if wanted is None else "")


@pytest.mark.parametrize(
    ("content", "overrides", "message"),
    [
        ({"n": "${m}"}, [], "a.n: Interpolation key 'm' not found; allowed: ${KEY}"),
        ({"defaults": "f"}, [], "defaults: got 'f' in conf/a/f.yaml; allowed: a list of NAME, "),
        ({"defaults": ["optional f"]}, [], "defaults: got 'optional f'; allowed: a list of NAME"),
        ({"defaults": [{"override /a@b": "f"}]}, [], "defaults: override /a@b: nothing is mount"),
        ({"n": 1}, ["a@x=f"], "a@x: is not chosen here; allowed: with + in front, to choose it"),
        ({"n": 1}, ["~a.m"], "a.m: cannot be removed: there is no such value"),
        ({"n": 1}, ["~b.m"], "b.m: cannot be removed: there is no such value"),
    ],
)
def test_what_cannot_be_composed_is_refused(
    tmp_path: Path, content: dict[str, Any], overrides: list[str], message: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(SettingsError) as refused:
        compose(tmp_path, {"defaults": [{"/a": "f"}]}, overrides)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_an_empty_mapping_replaces_a_number(tmp_path: Path) -> None:
    """The settings class says what is allowed there."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.yaml").write_text("n: 1\n")
    assert compose(tmp_path, {"defaults": [{"/a": "f"}]}, ["a.n={}"]) == {"a": {"n": {}}}


def test_files_that_inherit_each_other_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for one, other in (("f", "g"), ("g", "f")):
        (tmp_path / "a" / f"{one}.yaml").write_text(f"defaults: [{other}]\n")
    with pytest.raises(SettingsError, match=r"^defaults: conf/a/[fg]\.yaml inherits itself$"):
        compose(tmp_path, {"defaults": [{"/a": "f"}]})


def test_a_wrong_name_in_a_choice_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.yaml").write_text("defaults: [g]\n")
    with pytest.raises(SettingsError, match=r"^a: got 'g'; allowed: f \(in conf/a/f\.yaml\)$"):
        compose(tmp_path, {"defaults": [{"/a": "f"}]})
    with pytest.raises(SettingsError, match=r"^a: got 'h'; allowed: f$"):
        compose(tmp_path, {"defaults": [{"/a": "f"}]}, ["a=h"])
    # What the command line chooses below a file is not of that file.
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "e.yaml").write_text("defaults: [{/a@x: f}]\n")
    with pytest.raises(SettingsError, match=r"^a: got 'h'; allowed: f$"):
        compose(tmp_path, {"defaults": [{"/b": "e"}]}, ["a@b.x=h"])


@pytest.mark.parametrize("value", ["7", "null", "true", "0.5"])
def test_a_choice_that_is_no_word_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^traffic: got .*; allowed: a choice of conf/traff"):
        compose(CONF, "stage", [f"traffic={value}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e9", 1e9), ("1_000", 1000), ("010", 8), ("yes", True), ("2024-01-01", "2024-01-01")],
)
def test_numbers_and_words_are_read_as_hydra_reads_them(
    tmp_path: Path, text: str, value: object
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.yaml").write_text(f"n: {text}\n")
    primary = {"defaults": [{"/a": "f"}]}
    assert compose(tmp_path, primary) == by_hydra(tmp_path, primary, []) == {"a": {"n": value}}
