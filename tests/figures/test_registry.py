"""Every figure is drawn from tables of the column contract: within its frame,
deterministic, and clear about bad input. Tables are read by name, files by their
metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import matplotlib as mpl
import numpy as np
import pytest
import yaml
from matplotlib import image

from railx.field_docs import class_doc, field_doc
from railx.figures import FIGURES, CanvasSettings, FigureSettings, draw_figure, figure_of, registry
from railx.figures.figure import Canvas, Drawn, figure, reads
from railx.figures.tables import FigureInput, Tables
from railx.io import read_table, write_table
from railx.settings import SettingsError, load, to_dict
from tests.builders import choice
from tests.commands import loaded
from tests.figures.gallery import Gallery
from workflow.config import choices

SHIPPED = choices("figure")
FigureFiles = dict[str, dict[str, list[Path]]]
SettingsOf = Callable[..., CanvasSettings]


@pytest.mark.parametrize("name", ["rail_rings", "cost", "reconfiguration"])
def test_equal_tables_give_equal_files(
    name: str, gallery: Gallery, inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    settings = settings_of(name)
    draw_figure(settings, inputs[settings.figure], tmp_path / name)
    for suffix in (".svg", ".png"):
        again, drawn = (path.with_suffix(suffix) for path in (tmp_path / name, gallery.path(name)))
        assert again.read_bytes() == drawn.read_bytes()


def test_drawing_leaves_no_figure_open_and_no_style_behind(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    from matplotlib import pyplot

    draw_figure(settings_of("agreement"), inputs["agreement"], tmp_path / "agreement")
    assert pyplot.get_fignums() == []
    assert mpl.rcParams["svg.hashsalt"] is None


def test_every_figure_has_a_paper_and_defaults_for_all_settings() -> None:
    assert set(FIGURES) <= set(SHIPPED)
    papers = set(yaml.safe_load(Path("resources/papers.yaml").read_text())) | {"all"}
    for name in FIGURES:
        figure = figure_of(name)
        assert figure.paper in papers
        assert get_args(get_type_hints(figure.settings)["figure"]) == (name,)
        assert load(FigureSettings, {"figure": name}) == figure.settings()
    for name in SHIPPED:
        plain = choice("figure", name)
        settings: CanvasSettings = load(FigureSettings, plain, "figure")
        assert set(plain) == set(to_dict(settings))
        assert type(settings) is figure_of(settings.figure).settings


def test_every_figure_and_each_of_its_options_is_described() -> None:
    for name in FIGURES:
        settings = figure_of(name).settings
        assert class_doc(settings).endswith("."), name
        options = [option.name for option in fields(settings)]
        assert [option for option in options if not field_doc(settings, option)] == []
    names = [figure_of(name).settings.__qualname__ for name in FIGURES]
    assert len(set(names)) == len(names)


def test_figures_need_no_plotting_library_before_they_are_drawn() -> None:
    code = "from railx.figures import FIGURES, figure_of\n"
    code += "assert all(figure_of(name).inputs for name in FIGURES)"
    assert loaded(code, {"matplotlib", "seaborn", "pandas"}) == set()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width_inches": 100}, r"figure.width_inches: got 100.0; allowed: from 3 to 30"),
        (
            {"colour": "red"},
            r"figure.colour: unknown key; allowed: figure, width_inches, height_inches",
        ),
        (
            {"figure": "pie"},
            (r"figure.figure: got 'pie'; allowed: "),
        ),
        (
            {"quantiles": [0.9, 0.5]},
            r"figure.quantiles: got \[0.9, 0.5\]; allowed: distinct numbers in ascending order",
        ),
    ],
)
def test_wrong_settings_name_the_key(change: dict[str, Any], message: str) -> None:
    plain = choice("figure", "corpus_lengths")
    with pytest.raises(SettingsError, match=message):
        load(FigureSettings, {**plain, **change}, "figure")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "rail_rings",
            {"line": 9},
            r"no circuits in dimension x, line 9; allowed: a topology with optical switches",
        ),
        (
            "rail_rings",
            {"only": ["torus"]},
            r"only: no graph file for torus; allowed: railx_hyperx",
        ),
        (
            "latency_load",
            {"only": ["fat_tree", "mesh"]},
            r"only: no sweep mesh in the points tables; allowed: railx_min, railx_balanced",
        ),
        (
            "all_to_all_bandwidth",
            {"traffic": "tornado"},
            r"traffic: got tornado; allowed: uniform",
        ),
        (
            "cost",
            {"reference": "mesh"},
            r"reference: got mesh; allowed: railx_hyperx_full, fat_tree_full",
        ),
        ("cost", {"only": ["mesh"]}, r"only: got mesh; allowed: railx_hyperx_full"),
        (
            "cost_opus",
            {"compare": {"all_to_all": None}},
            r"compare.all_to_all: opus_rails_h200 has no usd_per_all_to_all_gb_s",
        ),
        ("rail_bills", {"switch": "mesh"}, r"switch: got mesh; allowed: polatis_6000n"),
        (
            "switch_technologies",
            {"sides": {"mirror": "left"}},
            r"sides: got mirror; allowed: polatis_6000n",
        ),
        (
            "price_sensitivity",
            {"all_to_all": "none"},
            r"no price ratios for fat_tree_full with none; allowed: fat_tree_full with",
        ),
        (
            "cost_scale",
            {"price_set": "gold"},
            r"price_set: got gold; allowed: opus_400g, hammingmesh_2022",
        ),
        (
            "cost_scale",
            {"only": ["mesh"]},
            r"only: got mesh; allowed: railx_hyperx_full, opus_rails_equal",
        ),
        (
            "sequence_parallel_plan",
            {"iteration": 3},
            r"plan static: iteration 3 is not in the plan; allowed: 0",
        ),
        (
            "pipeline_schedule",
            {"iteration": 3},
            r"plan pipeline: iteration 3 is not in the schedule; allowed: 0",
        ),
        (
            "ring_all_reduce",
            {"scope": "globe"},
            r"no ring all-reduce in scope 'globe'; allowed: chips",
        ),
    ],
)
def test_what_a_table_does_not_hold_is_named(
    name: str,
    change: dict[str, Any],
    message: str,
    inputs: FigureFiles,
    settings_of: SettingsOf,
    tmp_path: Path,
) -> None:
    settings = settings_of(name, **change)
    with pytest.raises(ValueError, match=message):
        draw_figure(settings, inputs[settings.figure], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_wrong_inputs_name_the_key_or_file_and_column(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    settings = settings_of("all_to_all_bandwidth")
    with pytest.raises(
        ValueError, match="input plan: not known to all_to_all_bandwidth; allowed: bounds"
    ):
        draw_figure(settings, {"plan": [tmp_path / "x"]}, tmp_path / "figure")
    with pytest.raises(ValueError, match="input bounds, derived: no file given"):
        draw_figure(settings, {}, tmp_path / "figure")
    known = inputs["all_to_all_bandwidth"]
    table = read_table(known["bounds"][0])
    write_table(tmp_path / "less.parquet", table.drop_columns(["bound_gb_s_per_chip"]))
    with pytest.raises(
        ValueError, match=r"less.parquet: column bound_gb_s_per_chip is missing; found: topology"
    ):
        draw_figure(settings, {**known, "bounds": [tmp_path / "less.parquet"]}, tmp_path / "figure")
    write_table(
        tmp_path / "unknown.parquet",
        table.set_column(
            table.column_names.index("fidelity"), "fidelity", [["guessed"] * len(table)]
        ),
    )
    with pytest.raises(ValueError, match="unknown fidelity guessed; allowed: analytic"):
        draw_figure(
            settings, {**known, "bounds": [tmp_path / "unknown.parquet"]}, tmp_path / "figure"
        )


@dataclass(frozen=True)
class TinySettings(CanvasSettings):
    """A line through a column."""

    colour: str = "#0000ff"
    """Colour of the line."""


def tiny(settings: TinySettings, tables: Tables, canvas: Canvas) -> Drawn:
    rows = tables.read("points", "sweep")
    with canvas("A line", []) as page:
        page.subplots().plot(rows["value"], color=settings.colour, linewidth=9)
    return Drawn(f"A line of {len(rows)} points.", "A line.", rows)


def test_an_entry_of_the_list_is_all_that_a_figure_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"figure": "tiny", "width_inches": 6, "height_inches": 4, "dpi": 50, "text_points": 9}
    plain |= {"colour": "#ff0000"}
    with pytest.raises(SettingsError, match=r"figure\.figure: got 'tiny'; allowed: "):
        load(FigureSettings, plain, "figure")
    module: Any = ModuleType("railx.figures.tiny")
    module.tiny = figure("Tiny", "railx", height=6)(reads(points="a.b: sweep value")(tiny))
    monkeypatch.setitem(sys.modules, "railx.figures.tiny", module)
    monkeypatch.setattr(registry, "FIGURES", FIGURES | {"tiny": "tiny"})
    settings: CanvasSettings = load(FigureSettings, plain, "figure")
    write_table(tmp_path / "points.parquet", {"sweep": ["a", "a"], "value": [1.0, 2.0]})
    draw_figure(settings, {"points": [tmp_path / "points.parquet"]}, tmp_path / "tiny")
    picture = image.imread(tmp_path / "tiny.png")[:, :, :3]
    assert picture.shape[:2] == (200, 300)
    assert (np.abs(picture - (1.0, 0.0, 0.0)).max(axis=2) < 0.1).sum() > 100


def bounds(paths: list[Path], columns: str) -> Tables:
    return Tables((FigureInput.of("bounds", f"network.bounds: {columns}"),), {"bounds": paths})


def test_only_picks_rows_by_their_column_in_its_order(tmp_path: Path) -> None:
    """The names of the files say nothing."""
    for number, topology in enumerate("abc"):
        write_table(tmp_path / f"{number}.parquet", [{"topology": topology, "value": number}] * 2)
    tables = bounds([tmp_path / f"{number}.parquet" for number in range(3)], "topology value")
    chosen = tables.read("bounds", "topology", ["c", "a"])
    assert chosen["topology"].tolist() == ["c", "c", "a", "a"]
    assert chosen["value"].tolist() == [2, 2, 0, 0]
    everything = tables.read("bounds", "topology")
    assert everything["topology"].tolist() == ["a", "a", "b", "b", "c", "c"]
    with pytest.raises(ValueError, match="only: no topology x in the bounds tables; allowed: a, b"):
        tables.read("bounds", "topology", ["c", "x"])


def test_a_table_without_rows_may_be_that_of_any_name(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", [{"topology": "a"}])
    write_table(tmp_path / "none.parquet", {"topology": []})
    paths = [tmp_path / "a.parquet", tmp_path / "none.parquet"]
    tables = bounds(paths, "topology")
    chosen = tables.read("bounds", "topology", ["large", "a"])
    assert chosen["topology"].tolist() == ["a"]
    with pytest.raises(ValueError, match="only: no topology large, x in the bounds tables"):
        tables.read("bounds", "topology", ["large", "a", "x"])
    with pytest.raises(ValueError, match=r"none.parquet: no rows; allowed: one row or more"):
        bounds(paths[1:], "topology").read("bounds")


def test_files_are_named_by_their_metadata(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        write_table(tmp_path / f"{number}.parquet", {"x": [1]}, metadata={"name": name})
    tables = bounds([tmp_path / "0.parquet", tmp_path / "1.parquet"], "x")
    assert tables.files("bounds", ["b"]) == [("b", tmp_path / "1.parquet")]
    assert [name for name, _ in tables.files("bounds")] == ["a", "b"]
