"""What is drawn can be seen and told apart: limits of axes, marks and legends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railx.figures import CanvasSettings
from railx.figures.theme import GREY, PALETTE
from railx.io import read_json, read_rows
from tests.builders import write_result
from tests.figures.conftest import draw_words

FigureFiles = dict[str, dict[str, list[Path]]]
SettingsOf = Callable[..., CanvasSettings]


def _legend(page: Any) -> dict[str, Any]:
    """The entries of the legend by their text."""
    (legend,) = page.legends
    texts = [text.get_text() for text in legend.get_texts()]
    return dict(zip(texts, legend.legend_handles, strict=True))


def test_a_device_has_the_same_mark_in_every_panel(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    """Also where the first panel lacks the first device of the others."""
    settings = settings_of("step_sweeps", bandwidth=["gb200_512"])
    page = draw_words(settings, inputs["step_sweeps"], tmp_path / "sweeps")
    marks = {device: _legend(page)[device].get_marker() for device in ("GB200", "H200")}
    bandwidth, scaling = page.axes[:2]
    assert bandwidth.lines[0].get_marker() == marks["GB200"] == "o"
    assert scaling.lines[0].get_marker() == marks["H200"] == "s"


def test_a_plan_slower_than_its_baseline_is_drawn(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    given = inputs["adaptive_speedups"]
    rows = [row for path in given["groups"] for row in read_rows(path)]
    slow = [
        row | {"predicted_ms": row["predicted_ms"] * (4 if row["planner"] == "flexsp" else 1)}
        for row in rows
    ]
    groups = [write_result(tmp_path, "plan.groups", slow, "flexsp_7b_192k_wikipedia")]
    page = draw_words(
        settings_of("adaptive_speedups"), given | {"groups": groups}, tmp_path / "drawn"
    )
    low, high = page.axes[0].get_ylim()
    assert low < 8 / 20 < high


def test_networks_of_the_arena_are_told_apart_by_a_legend(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    page = draw_words(settings_of("arena"), inputs["arena"], tmp_path / "arena")
    colours = {text: entry.get_color() for text, entry in _legend(page).items()}
    assert colours == {
        "On the line": PALETTE[0],
        "RailX, Opus rails": PALETTE[1],
        "Other networks": GREY,
    }
    page = draw_words(settings_of("arena", marked=[]), inputs["arena"], tmp_path / "arena")
    assert list(_legend(page)) == ["On the line", "Other networks"]


@pytest.mark.parametrize(
    ("compare", "expected"), [({"injection": None}, False), ({"injection": 0.1}, True)]
)
def test_a_limit_is_in_the_legend_where_there_is_one(
    compare: dict[str, float | None],
    expected: bool,
    inputs: FigureFiles,
    settings_of: SettingsOf,
    tmp_path: Path,
) -> None:
    page = draw_words(settings_of("cost", compare=compare), inputs["cost"], tmp_path / "cost")
    assert ("limit, published" in _legend(page)) == expected


def test_equal_cost_names_the_network_that_is_the_measure(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    changed = []
    for path in inputs["underlay"]["mix"]:
        rows = read_rows(path)
        # The other network gets a faster port for the same money.
        for row in rows:
            if row["basis"] == "equal_cost" and row["network"] == "rails":
                row["outside_gb_s"] = 20.0
        changed.append(write_result(tmp_path, "underlay.mix", rows, rows[0]["network"]))
    page = draw_words(settings_of("underlay"), {"mix": changed}, tmp_path / "drawn")
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in page.axes]
    assert titles[1] == "Equal cost: as tree"


def test_points_that_add_nothing_are_counted(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    given = inputs["step_switches"]
    times = []
    for path in given["times"]:
        rows = read_rows(path)
        for row in rows:
            if row["mode"] == "provisioned":
                row["step_ms"] = row["electrical_ms"]
        times.append(write_result(tmp_path, "steps.times", rows, rows[0]["step"]))
    draw_words(settings_of("step_switches"), given | {"times": times}, tmp_path / "drawn")
    data = (tmp_path / "drawn.csv").read_text()
    caption = read_json(tmp_path / "drawn.json")["caption"]
    hidden = [line for line in data.splitlines()[1:] if float(line.split(",")[5] or "nan") <= 0.05]
    published = sum(line.startswith("published") for line in hidden)
    assert len(hidden) > published > 0
    assert f"{len(hidden)} points that add nothing, {published} of them published, are" in caption


def test_every_size_of_a_job_and_of_a_server_is_drawn(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    (path,) = inputs["fault_trace"]["trace"]
    rows = [row | {"job_chips": 2**power} for row in read_rows(path)[::2] for power in range(10)]
    trace = write_result(tmp_path, "tenancy.trace", rows)
    page = draw_words(settings_of("fault_trace"), {"trace": [trace]}, tmp_path / "trace")
    assert {f"Jobs of {2**power} chips" for power in range(10)} <= set(_legend(page))
    settings = settings_of("switch_technologies", chips_per_server=[4, 8, 32])
    page = draw_words(settings, inputs["switch_technologies"], tmp_path / "switches")
    entries = [entry for text, entry in _legend(page).items() if text.startswith("ours")]
    assert len({entry.get_color() for entry in entries}) == 3
