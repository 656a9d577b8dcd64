"""What every figure keeps: real text of one size, colours that can be read on white and
on dark, identifiers of its own, no text over another, words and data of what is drawn.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib import image

from railx.figures import CanvasSettings, canvas, draw_figure, registry
from railx.figures.narrow import NARROW_INCHES, NarrowFigure, NoNarrowForm, cut_off
from railx.figures.theme import DARK_BACKGROUND, FAINT, GREY, PALETTE, contrast
from railx.io import read_json, read_rows, read_table, write_table
from tests.builders import write_result, write_stage_table
from tests.figures.conftest import PRINTED, draw_words
from tests.figures.gallery import Gallery, clashes
from workflow.config import choices

SHIPPED = choices("figure")
FigureFiles = dict[str, dict[str, list[Path]]]
SettingsOf = Callable[..., CanvasSettings]
_SVG = "{http://www.w3.org/2000/svg}"
#: Decoration that carries no data: grid lines, tints, hatching of what is idle.
_PALE = 1.6
#: Endings of the images that hold text.
_PAGES = {".svg": "#ffffff", ".dark.svg": DARK_BACKGROUND}


def _svg(path: Path, ending: str) -> ElementTree.Element:
    return ElementTree.parse(path.with_suffix(ending)).getroot()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_figure_keeps_the_look(
    name: str, gallery: Gallery, settings_of: SettingsOf
) -> None:
    """One case a figure, because drawing it is most of the work."""
    path, settings = gallery.path(name), settings_of(name)
    pages = {ending: _svg(path, ending) for ending in _PAGES}
    _check_size_and_edges(path, settings, pages[".svg"])
    _check_text(pages[".svg"], settings)
    assert gallery.overlaps(name) == []
    for ending, background in _PAGES.items():
        _check_colours(pages[ending], background)
    _check_words_and_data(path)
    _check_narrow(path, settings)


def _check_narrow(path: Path, settings: CanvasSettings) -> None:
    """Text of the form is as large on half the width; or it is the wide form."""
    narrow = _svg(path, ".narrow.svg")
    if narrow.attrib["width"] == "360pt":
        _check_text(narrow, settings)
        assert float(narrow.attrib["height"].removesuffix("pt")) <= 24 * 72 + 1
    else:
        same = path.with_suffix(".svg").read_bytes()
        assert path.with_suffix(".narrow.svg").read_bytes() == same


def _check_size_and_edges(path: Path, settings: CanvasSettings, svg: ElementTree.Element) -> None:
    """Ink on the outermost pixels would be a label or legend that does not fit."""
    picture = image.imread(path.with_suffix(".png"))
    assert picture.shape[:2] == (
        round(settings.height_inches * settings.dpi),
        round(settings.width_inches * settings.dpi),
    )
    assert svg.attrib["width"] == f"{settings.width_inches * 72:g}pt"
    picture = picture[:, :, :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert np.all(edge == 1.0)
    assert picture.min() < 0.3


def _check_text(svg: ElementTree.Element, settings: CanvasSettings) -> None:
    """Text is text and has one size."""
    texts = list(svg.iter(f"{_SVG}text"))
    assert len(texts) > 5
    sizes = {
        match[1]
        for text in texts
        for node in text.iter()
        for match in [re.search(r"([\d.]+)px", node.attrib.get("style", ""))]
        if match
    }
    assert sizes == {f"{settings.text_points:g}"}
    assert settings.width_inches == 10


def _check_colours(svg: ElementTree.Element, background: str) -> None:
    """Text at 4.5 to 1 or more, everything else that is no tint at 3 to 1."""
    for node in svg.iter():
        style = node.attrib.get("style", "")
        for kind, colour in re.findall(r"(fill|stroke): (#[0-9a-f]{6})", style):
            seen = contrast(colour, background)
            if node.tag == f"{_SVG}text":
                # On a filled area white text stands for the background.
                assert seen >= 4.5 or colour == background, (kind, colour)
            elif kind == "stroke":
                assert seen >= 3 or seen < _PALE, (kind, colour)


def _check_words_and_data(path: Path) -> None:
    words = json.loads(path.with_suffix(".json").read_text())
    assert list(words) == ["title", "paper", "caption", "alternative_text", "published", "tables"]
    papers = set(yaml.safe_load(Path("resources/papers.yaml").read_text())) | {"all"}
    assert words["paper"] in papers
    assert len(words["alternative_text"]) > 40
    assert len(words["caption"].split()) > 15
    assert path.with_suffix(".rst").read_text() == words["caption"]
    assert re.search(r"\d", words["caption"])
    assert re.search(r"\d", words["alternative_text"])
    assert len(pd.read_csv(path.with_suffix(".csv"))) > 0
    svg = path.with_suffix(".svg").read_text()
    assert "dc:date" not in svg
    assert not re.search(r"20\d\d-\d\d-\d\dT", svg)
    assert str(Path.home()) not in svg


def test_every_figure_has_a_narrow_form(gallery: Gallery) -> None:
    widths = {_svg(gallery.path(name), ".narrow.svg").attrib["width"] for name in SHIPPED}
    assert widths == {"360pt"}


def test_panels_that_share_an_axis_share_it_below_one_another() -> None:
    page = NarrowFigure(figsize=(NARROW_INCHES, 4))
    heights: list[float] = []
    page.frame = heights.append
    panels = page.subplots(2, 3, sharex="col", sharey="row", height_ratios=[2, 1])
    assert panels.shape == (2, 3)
    assert heights == [page.get_figheight()]
    assert page.get_figheight() > 2 * 4
    places = [axes.get_position() for axes in panels.flat]
    assert len({round(place.x0, 6) for place in places}) == 1
    assert all(above.y0 > below.y1 for above, below in itertools.pairwise(places))
    panels[0, 1].set(xlim=(3, 7), ylim=(1, 9), ylabel="seconds")
    assert panels[1, 1].get_xlim() == (3, 7)
    assert panels[0, 2].get_ylim() == (1, 9)
    assert panels[0, 0].get_xlim() != (3, 7)
    page.complete_labels()
    assert [axes.get_ylabel() for axes in panels.flat] == ["seconds"] * 3 + [""] * 3


def test_a_mosaic_is_stacked_line_by_line_and_long_names_break() -> None:
    page = NarrowFigure(figsize=(NARROW_INCHES, 4))
    page.frame = lambda _: None
    panels = page.subplot_mosaic(
        [["wide", "wide"], ["left", "right"]], height_ratios=[1, 2], width_ratios=[1, 1]
    )
    tops = [panels[name].get_position().y1 for name in ("wide", "left", "right")]
    assert tops == sorted(tops, reverse=True)
    heights = [panels[name].get_position().height for name in ("wide", "left", "right")]
    assert heights[1] == pytest.approx(heights[2]) == pytest.approx(2 * heights[0])
    panels["wide"].set_yticks([0, 1], ["short name", "a name of a row that is long"])
    text = panels["left"].text(0, 0, "a text beside a mark that is long")
    page.complete_labels()
    names = [label.get_text() for label in panels["wide"].get_yticklabels()]
    assert names == ["short name", "a name of a row that is\nlong"]
    assert text.get_text() == "a text beside a mark\nthat is long"


def test_parts_of_a_page_stack_their_panels_and_a_dot_is_none() -> None:
    page = NarrowFigure(figsize=(NARROW_INCHES, 8))
    page.frame = lambda _: None
    above, below = page.subfigures(2, 1, height_ratios=[3, 1])
    panels = [*above.subplots(1, 3, sharey=True), below.subplots()]
    assert page.get_figheight() == pytest.approx(8 * (0.75 * 3 * 0.9 + 0.25))
    page.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in panels]
    assert all(one.y0 > other.y1 for one, other in itertools.pairwise(boxes))
    panels[0].set_ylim(1, 9)
    assert panels[2].get_ylim() == (1, 9) != panels[3].get_ylim()
    page = NarrowFigure(figsize=(NARROW_INCHES, 4))
    page.frame = lambda _: None
    named = page.subplot_mosaic([["a", "b"], ["c", "."]], sharex=True, sharey=True)
    assert list(named) == ["a", "b", "c"]
    named["a"].set(xlim=(3, 7), xlabel="ms")
    assert named["c"].get_xlim() == (3, 7)
    page.complete_labels()
    assert [axes.get_xlabel() for axes in named.values()] == ["", "", "ms"]


def test_what_cannot_be_stacked_or_read_has_no_narrow_form() -> None:
    page = NarrowFigure(figsize=(NARROW_INCHES, 6))
    page.frame = lambda _: None
    for asked in (lambda: page.subfigures(1, 2), lambda: page.subplots(2, 9)):
        with pytest.raises(NoNarrowForm):
            asked()
    page = NarrowFigure(figsize=(NARROW_INCHES, 6))
    axes = page.subplots()
    page.draw_without_rendering()
    assert cut_off(page) == ""
    label = axes.text(0.9, 0.5, "a text that is longer than the page is wide " * 3)
    assert cut_off(page) == repr(label.get_text())
    label.set_text("above")
    label.set_x(0.1)
    assert cut_off(page) == ""
    axes.text(0.1, 0.51, "other")
    assert cut_off(page) == "a text over another"


def test_the_palette_can_be_seen_on_white() -> None:
    assert min(contrast(colour, "#ffffff") for colour in (*PALETTE, FAINT)) >= 3


def test_identifiers_of_two_figures_never_meet(gallery: Gallery) -> None:
    seen: set[str] = set()
    for path in map(gallery.path, SHIPPED):
        for ending in _PAGES:
            own = set(re.findall(r' id="([^"]+)"', path.with_suffix(ending).read_text()))
            used = set(
                re.findall(r'(?:url\(#|href="#)([^)"]+)', path.with_suffix(ending).read_text())
            )
            assert used == own
            assert not own & seen
            seen |= own
            assert "<style" not in path.with_suffix(ending).read_text()


@pytest.mark.parametrize(
    ("name", "key", "column"),
    [
        ("topology_metrics", "topologies", "diameter_node_hops"),
        ("all_to_all_bandwidth", "bounds", "bound_gb_s_per_chip"),
        ("channel_loads", "channels", "load"),
        ("ring_all_reduce", "collectives", "algorithm_gb_s"),
        ("collective_time", "collectives", "algorithm_gb_s"),
        ("latency_load", "points", "saturation_flits_per_chip_cycle"),
        ("agreement", "comparison", "ratio"),
        ("cost", "summary", "cost_usd"),
        ("price_sensitivity", "sensitivity", "injection_cost_ratio"),
        ("cost_scale", "scale", "usd_per_injection_gb_s"),
        ("claim_map", "claim_map", "boundary_intercept"),
    ],
)
def test_other_data_has_other_words(
    name: str,
    key: str,
    column: str,
    gallery: Gallery,
    inputs: FigureFiles,
    settings_of: SettingsOf,
    tmp_path: Path,
) -> None:
    settings, changed = settings_of(name), {}
    for other, paths in inputs[settings_of(name).figure].items():
        changed[other] = list(paths)
        if other != key:
            continue
        for i, path in enumerate(paths):
            frame = read_table(path).to_pandas()
            frame[column] = (frame[column] * 1.7).astype(frame[column].dtype)
            changed[other][i] = write_table_like(path, frame, tmp_path / f"{i}.parquet")
    draw_words(settings, changed, tmp_path / name)
    before, after = (
        json.loads(path.with_suffix(".json").read_text())
        for path in (gallery.path(name), tmp_path / name)
    )
    assert before["caption"] != after["caption"]
    # The one says what the other leaves out.
    assert before["alternative_text"] != after["alternative_text"] or name in ("claim_map", "cost")


def write_table_like(path: Path, frame: pd.DataFrame, target: Path) -> Path:
    import pyarrow as pa

    schema = read_table(path).schema
    columns = {field.name: frame[field.name] for field in schema}
    table = pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False)
    write_table(target, table.cast(schema) if table.schema.names == schema.names else table)
    return target


def test_equal_tables_give_equal_files_in_another_process(
    gallery: Gallery, inputs: FigureFiles, tmp_path: Path
) -> None:
    """Also where Python orders its sets in another way."""
    code = (
        "import json, sys; from pathlib import Path\n"
        "from railx.figures import FigureSettings, draw_figure\n"
        "from railx.settings import load\n"
        "from tests.builders import choice\n"
        "files = json.loads(sys.argv[1]).items()\n"
        "inputs = {key: [Path(p) for p in paths] for key, paths in files}\n"
        f"settings = load(FigureSettings, choice('figure', '{PRINTED}'), 'figure')\n"
        "draw_figure(settings, inputs, Path(sys.argv[2]))\n"
    )
    files = {key: [str(p) for p in paths] for key, paths in inputs[PRINTED].items()}
    target = tmp_path / PRINTED
    subprocess.run(
        [sys.executable, "-c", code, json.dumps(files), str(target)],
        check=True,
        env={"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin"},
    )
    for ending in (".svg", ".dark.svg", ".narrow.svg", ".png", ".pdf", ".csv"):
        assert (
            target.with_suffix(ending).read_bytes()
            == gallery.path(PRINTED).with_suffix(ending).read_bytes()
        ), ending
    pdf = target.with_suffix(".pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf
    assert b"CreationDate" not in pdf


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
    ("name", "key", "output", "change"),
    [
        ("rail_bills", "rails", "economics.rails", {"watts_per_gpu": 100.0}),
        ("rail_bills", "rails", "economics.rails", {"watts_per_gpu": 0.01}),
        ("step_windows", "timeline", "steps.timeline", {"window_ms": 1e4}),
        ("step_sweeps", "times", "steps.times", {"reconfiguration_latency_ms": 0.01}),
    ],
)
def test_limits_of_axes_follow_the_data(
    name: str,
    key: str,
    output: str,
    change: dict[str, float],
    inputs: FigureFiles,
    settings_of: SettingsOf,
    tmp_path: Path,
) -> None:
    """All marks in view, on at most a hundred times what they take."""
    ((column, factor),) = change.items()
    paths = []
    for number, path in enumerate(inputs[name][key]):
        rows = [row | {column: row[column] and factor * row[column]} for row in read_rows(path)]
        paths.append(write_stage_table(tmp_path / f"{number}.parquet", output, rows))
    settings = settings_of(name)
    if name == "step_sweeps":
        settings = replace(
            settings,
            latency_ms=factor * settings.latency_ms,
            expert_latency_ms=factor * settings.expert_latency_ms,
        )
    page = draw_words(settings, inputs[name] | {key: paths}, tmp_path / name)
    for axes in page.axes:
        for way in "xy":
            low, high = sorted(getattr(axes, f"get_{way}lim")())
            first, last = getattr(axes.dataLim, f"interval{way}")
            assert low <= first <= last <= high <= 100 * max(last, 1)


def test_names_of_networks_of_one_price_lie_apart(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices and tokens a second of the arena at 4,096 chips."""
    points = {
        "rail_only_1_plane": (9112, 777),
        "fat_tree_1_plane": (9112, 777),
        "railx_m4n4": (6208, 560),
        "railx_torus": (6208, 784),
        "railx_dragonfly": (11804, 695),
        "railx_m4n8": (11804, 628),
        "railx_split": (11804, 699),
        "opus_rails": (19200, 900),
        "nvl72_rails": (22574, 942),
        "fat_tree": (69351, 943),
    }
    rows = [
        {"network": network, "family": "railx_hyperx", "asked_chips": 4096, "chips": 4096}
        | {"subject": subject, "measure": measure, "value": value, "unit": "", "note": ""}
        for network, (usd, tokens_per_s) in points.items()
        for subject, measure, value in (
            ("", "usd_chip_with_node", float(usd)),
            ("dense_70b", "tokens_per_s", 4096.0 * tokens_per_s),
            ("decode", "tokens_per_s", 4096.0 * tokens_per_s),
        )
    ]
    table = write_result(tmp_path, "arena.comparison", rows, fidelity="analytic")
    overlaps: list[str] = []
    monkeypatch.setattr(canvas, "save", lambda page, *_: overlaps.extend(clashes(page)))
    monkeypatch.setattr(registry, "_draw_narrow", lambda *_: None)
    draw_figure(settings_of("arena"), {"comparison": [table]}, tmp_path / "arena")
    assert overlaps == []


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
