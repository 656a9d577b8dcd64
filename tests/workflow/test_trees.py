"""What is composed without Hydra is what Hydra composes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from railx.settings import SettingsError
from workflow import config
from workflow.config import CHOSEN, CONF, choices
from workflow.mounts import primary_config
from workflow.trees import Unplain, composed_plainly

#: Hydra composes the others in seconds to a minute.
FAST = {"quick"}
OVERRIDES: dict[str, tuple[str, ...]] = {
    "values": ("++topologies.torus_2d.n=3", "seed=4", "++tracking.project=own"),
    "an entry": ("topologies.mine=torus_2d", "~topologies.railx_hyperx_full"),
    "a choice below": ("training@runs.flexsp_stdlib.training=gpu",),
    "of all": ("training=cpu_4_sweep", "tracking=off"),
    "a mapping": ("++tracking={project: own, mlflow: false}",),
    "a list": ("++sweeps.railx_hyperx_min.loads=[0.5, 1e0]",),
}


def both(*overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    mounted, rest = primary_config(overrides, CHOSEN)
    return composed_plainly(CONF, mounted, rest), config._with_hydra(mounted, rest)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
        for name in choices("experiment")
    ],
)
def test_experiments_are_those_that_hydra_composes(name: str) -> None:
    plain, wanted = both(f"experiment={name}")
    assert plain == wanted
    assert _order(plain) == _order(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", OVERRIDES)
def test_overrides_do_what_they_do_in_hydra(overrides: str) -> None:
    plain, wanted = both("experiment=quick", *OVERRIDES[overrides])
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
def test_drawn_files_are_composed_as_by_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for name, content in _drawn(random.Random(seed)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.setattr(config, "CONF", tmp_path)
    for one, other in (("f0", "f2"), ("f2", "f1")):
        primary = {
            "defaults": [{"/a@one": one}, {"/a@two": other}, {"/b": "f1"}, "_self_"],
            "one": {"q": 7},
        }
        overrides = ["++two.p=3", "b@two.x=f0"] if seed % 3 == 0 else ["++one.r={s: 1}"]
        try:
            plain = composed_plainly(tmp_path, primary, overrides)
        except Unplain:
            continue
        assert plain == config._with_hydra(primary, overrides)


@pytest.mark.parametrize(
    ("content", "overrides"),
    [
        ({"n": "${m}"}, []),
        ({"defaults": [{"/b@_here_": "f"}]}, []),
        ({"defaults": ["optional f"]}, []),
        ({"n": 1}, ["n=1,2"]),
        ({"n": 1}, ["+a@x=f"]),
        ({"n": 1}, ["no_such_key=1"]),
    ],
)
def test_what_only_hydra_says_is_left_to_it(
    tmp_path: Path, content: dict[str, Any], overrides: list[str]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(Unplain):
        composed_plainly(tmp_path, {"defaults": [{"/a": "f"}]}, overrides)


def test_files_that_inherit_each_other_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for one, other in (("f", "g"), ("g", "f")):
        (tmp_path / "a" / f"{one}.yaml").write_text(f"defaults: [{other}]\n")
    with pytest.raises(SettingsError, match=r"^defaults: conf/a/[fg]\.yaml inherits itself$"):
        composed_plainly(tmp_path, {"defaults": [{"/a": "f"}]}, [])


@pytest.mark.parametrize("value", ["7", "null", "true", "0.5"])
def test_a_choice_that_is_no_word_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^traffic: got .*; allowed: a file of conf/traffic$"):
        composed_plainly(CONF, "stage", [f"traffic={value}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e9", 1e9), ("1_000", 1000), ("010", 8), ("yes", True), ("2024-01-01", "2024-01-01")],
)
def test_numbers_and_words_are_read_as_hydra_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: object
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.yaml").write_text(f"n: {text}\n")
    monkeypatch.setattr(config, "CONF", tmp_path)
    primary = {"defaults": [{"/a": "f"}]}
    plain = composed_plainly(tmp_path, primary, [])
    assert plain == config._with_hydra(primary, []) == {"a": {"n": value}}
