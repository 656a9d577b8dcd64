"""Labels, colours, quantities, and the line that says how faithful the numbers are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import is_color_like, to_rgb

from railx.figures.canvas import canvas
from railx.figures.figure import CanvasSettings
from railx.figures.step_times import cut_bars
from railx.figures.theme import (
    DARK_BACKGROUND,
    FAINT,
    GREY,
    INK,
    PALETTE,
    colours,
    contrast,
    dark_colour,
    degree_colours,
    label,
    lighter,
    readable,
    text_colour,
)
from railx.figures.words import fidelity_line, ordered, quantity
from railx.io import FIDELITIES


@given(
    st.lists(
        st.sampled_from(["fat_tree", "fat_tree_full", "flexsp", "railx_hyperx_m2", "a", "b", "c"]),
        min_size=1,
    )
)
def test_colours_are_distinct_and_stay_with_their_name(names: list[str]) -> None:
    chosen = colours(names)
    assert list(chosen) == list(dict.fromkeys(names))
    assert len(set(chosen.values())) == len(chosen)
    assert all(is_color_like(colour) for colour in chosen.values())
    if "flexsp" in names:
        assert chosen["flexsp"] == colours(["flexsp"])["flexsp"]


@given(st.integers(0, 10))
def test_higher_degrees_are_darker(exponent: int) -> None:
    largest = 2**exponent
    shades = degree_colours([2**i for i in range(exponent + 1)], largest)
    lightness = [sum(to_rgb(shade)) for shade in shades.values()]
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(lightness)) == exponent + 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("railx_hyperx", "RailX 2D HyperX"),
        ("fat_tree_full_copper", "Fat tree, full copper"),
        ("on_demand", "On demand"),
        ("switch_port", "Switch port"),
        ("fat_treehouse", "Fat treehouse"),
    ],
)
def test_labels(name: str, wanted: str) -> None:
    assert label(name) == wanted


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.03456, "0.0346"), (12.345, "12.3"), (123.4, "123"), (294767.4, "294,767")],
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


def test_lighter_mixes_with_white() -> None:
    assert lighter("#000000", 0.25) == (0.25, 0.25, 0.25)
    assert lighter("#123456", 1.0) == (1.0, 1.0, 1.0)


@given(st.sampled_from([*PALETTE, INK, GREY, FAINT]))
def test_dark_colours_stand_out_as_much_and_keep_their_hue(colour: str) -> None:
    dark = dark_colour(colour)
    assert contrast(dark, DARK_BACKGROUND) >= min(contrast(colour, "#ffffff"), 8.2)
    light, other = to_rgb(colour), to_rgb(dark)
    if max(light) - min(light) > 0.2:
        assert other.index(max(other)) == light.index(max(light))
    assert contrast(readable(colour), "#ffffff") >= 4.5
    assert contrast(text_colour(colour), colour) >= 3
    assert dark_colour("#ffffff") == DARK_BACKGROUND


def test_contrast_is_that_of_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def _drawn(draw: Callable[[Any], None], tmp_path: Path) -> str:
    """The SVG of one panel."""
    settings = CanvasSettings("any", 6, 4, 50, 9)
    with canvas(settings, tmp_path / "any", "One panel", "", "Any") as figure:
        axes = figure.subplots()
        axes.set(title="Panel", xlabel="Across", ylabel="Up")
        draw(axes)
    return (tmp_path / "any.svg").read_text()


def test_compressed_axes_say_so_and_without_a_label_are_refused(tmp_path: Path) -> None:
    def logarithmic(axes: Any) -> None:
        axes.plot([1, 100], [1, 2])
        axes.set_xscale("log")

    def without(axes: Any) -> None:
        logarithmic(axes)
        axes.set_xlabel("")

    text = _drawn(logarithmic, tmp_path)
    assert "Across, logarithmic" in text
    assert "Up, logarithmic" not in text
    with pytest.raises(ValueError, match="panel 'Panel': the x axis is compressed and has no"):
        _drawn(without, tmp_path)


def test_a_legend_over_a_panel_is_refused(tmp_path: Path) -> None:
    def covered(axes: Any) -> None:
        axes.plot([1, 2], [1, 2], label="line")
        axes.legend(loc="upper left")

    with pytest.raises(ValueError, match="panel 'Panel': the legend covers a panel"):
        _drawn(covered, tmp_path)


def test_a_bar_that_the_edge_cuts_is_refused_and_a_marked_one_says_its_value(
    tmp_path: Path,
) -> None:
    cut = []

    def edged(axes: Any) -> None:
        axes.barh([0, 1], [1.0, 9.0])
        axes.set_xlim(0, 4)

    def marked(axes: Any) -> None:
        axes.barh([0, 1], [1.0, 3.0])
        axes.set_xlim(0, 4)
        cut.append(cut_bars(axes, [1.0, 9.0], 3.0))

    with pytest.raises(ValueError, match="panel 'Panel': a bar of 9 ends at the edge, 4"):
        _drawn(edged, tmp_path)
    text = _drawn(marked, tmp_path)
    assert text.count(">9<") == 1
    assert cut == [1]


@given(st.lists(st.sampled_from(FIDELITIES)))
def test_fidelities_are_listed_once_from_the_least_faithful(names: list[str]) -> None:
    found = ordered(names)
    assert sorted(found, key=FIDELITIES.index) == found
    assert set(found) == set(names)
    line = fidelity_line(names, "Note")
    assert all(line.count(f"{name} (") == 1 for name in found)
    assert line.endswith("Note")


def test_fidelity_line_says_what_is_measured_and_what_is_emulated() -> None:
    line = fidelity_line(
        ["measured_cpu", "emulated"], shows={"emulated": "on demand", "measured_cpu": "electrical"}
    )
    assert line.index("on demand: emulated (") < line.index("electrical: measured_cpu (")
