"""Choices of a group: files, the variants that a file lists, classes of defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from railx.settings import SettingsError
from workflow.choices import about, choice_content, choices, is_choice
from workflow.composer import compose
from workflow.settings import with_defaults


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
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_files_variants_and_classes_are_choices(conf: Path) -> None:
    names = ["cart_wheel", "same_wheel", "small_wheel", "square", "wheel"]
    assert choices(conf, "shape") == names
    assert all(is_choice(conf, "shape", name) for name in names)
    assert not any(is_choice(conf, "shape", name) for name in ("circle", "base_round", "cube"))


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
    conf: Path, name: str, content: dict[str, object]
) -> None:
    primary = {"defaults": [{"/shape": name}]}
    assert compose(conf, primary) == {"shape": content}


def test_what_is_no_choice_is_refused_with_all_that_are(conf: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"^shape: got 'cube'; allowed: cart_wheel, same_wheel, small_wheel, square, wheel$",
    ):
        choice_content(conf, "shape", "cube")


@pytest.mark.parametrize("listed", ["wheel", "small_wheel"])
def test_each_name_is_one_choice(conf: Path, listed: str) -> None:
    (conf / "shape" / "other.yaml").write_text(f"shape: circle\nchoices: {{{listed}: {{}}}}\n")
    with pytest.raises(SettingsError, match=f"^choices: got '{listed}' in conf/shape/"):
        choices(conf, "shape")


def test_the_first_sentence_describes_a_choice(conf: Path) -> None:
    assert about(conf, "shape", "wheel") == "A wheel"
    assert about(conf, "shape", "small_wheel") == "A wheel of a child"
    assert about(conf, "shape", "cart_wheel") == "A wheel"
    assert about(conf, "shape", "square") == "A square with round corners"


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
