"""Labels, colours and quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import is_color_like, to_rgb

from railx.figures.theme import colours, degree_colours, label, lighter, quantity


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
