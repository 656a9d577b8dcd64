"""What a picture of networks cannot show to be right."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from railx.io import read_json
from tests.figures.conftest import draw_words, load_settings
from tests.figures.papers import write_underlays


def test_a_bar_is_an_iteration_and_its_parts_are_device_time(tmp_path: Path) -> None:
    inputs = {"mix": write_underlays(tmp_path)}
    draw_words(load_settings("underlay"), inputs, tmp_path / "figure")
    data = pd.read_csv(tmp_path / "figure.csv")
    panels = list(dict.fromkeys(data["panel"]))
    assert [panel.split(":")[0] for panel in panels] == ["Equal rate", "Equal cost", "Equal rate"]
    for _, bar in data.groupby(["panel", "network"]):
        whole = bar.set_index("mark")["seconds"]
        parts = bar[bar["mark"] == "degree"].set_index("degree")["seconds"]
        assert parts.sum() == pytest.approx(whole["made for it"])
        assert parts[8] == pytest.approx(0.4 * whole["made for it"])
    first = data[data["panel"] == panels[0]]
    assert list(dict.fromkeys(first["network"])) == ["published", "rails", "tree"]
    marks = first[first["network"] == "rails"].set_index("mark")["seconds"]
    assert marks["made for it"] == 15.0
    assert marks["made for the published bandwidths"] == 15.5
    assert marks["best single degree"] == 21.0
    words = read_json(tmp_path / "figure.json")["caption"]
    assert "No paper has this comparison; it is ours." in words
    assert "rails: 15 s (best single degree 21 s; most in degree 8 40 %" in words


def test_a_plan_that_is_not_there_is_named(tmp_path: Path) -> None:
    inputs = {"mix": write_underlays(tmp_path)}
    with pytest.raises(ValueError, match="single: got other; allowed: flexsp_7b_384k_commoncr"):
        draw_words(load_settings("underlay", single="other"), inputs, tmp_path / "figure")
