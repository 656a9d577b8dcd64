"""The parts behind the figures: labels, colours, fidelity lines, and the arithmetic
that a picture cannot show to be right.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import is_color_like, to_rgb

from railx.figures import latency_load, pipeline_schedule, reconfiguration
from railx.figures.fidelity import fidelity_line, ordered
from railx.figures.tables import named_files, read_frames
from railx.figures.theme import colours, degree_colours, label, lighter, quantity
from railx.io import FIDELITIES, write_table


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


def test_only_picks_rows_by_their_column_in_its_order(tmp_path: Path) -> None:
    """The names of the files say nothing."""
    for number, topology in enumerate("abc"):
        write_table(tmp_path / f"{number}.parquet", [{"topology": topology, "value": number}] * 2)
    inputs = {"bounds": [tmp_path / f"{number}.parquet" for number in range(3)]}
    columns = ("topology", "value")
    chosen = read_frames(inputs, "bounds", columns, "topology", ["c", "a"])
    assert chosen["topology"].tolist() == ["c", "c", "a", "a"]
    assert chosen["value"].tolist() == [2, 2, 0, 0]
    everything = read_frames(inputs, "bounds", columns, "topology")
    assert everything["topology"].tolist() == ["a", "a", "b", "b", "c", "c"]
    with pytest.raises(ValueError, match="only: no topology x in the bounds tables; allowed: a, b"):
        read_frames(inputs, "bounds", columns, "topology", ["c", "x"])


def test_a_table_without_rows_may_be_that_of_any_name(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", [{"topology": "a"}])
    write_table(tmp_path / "none.parquet", {"topology": []})
    inputs = {"bounds": [tmp_path / "a.parquet", tmp_path / "none.parquet"]}
    chosen = read_frames(inputs, "bounds", ("topology",), "topology", ["large", "a"])
    assert chosen["topology"].tolist() == ["a"]
    with pytest.raises(ValueError, match="only: no topology large, x in the bounds tables"):
        read_frames(inputs, "bounds", ("topology",), "topology", ["large", "a", "x"])
    with pytest.raises(ValueError, match=r"none.parquet: no rows; allowed: one row or more"):
        read_frames({"bounds": inputs["bounds"][1:]}, "bounds", ("topology",))


def test_files_are_named_by_their_metadata(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        write_table(tmp_path / f"{number}.parquet", {"x": [1]}, metadata={"name": name})
    inputs = {"graph": [tmp_path / "0.parquet", tmp_path / "1.parquet"]}
    assert named_files(inputs, "graph", ["b"]) == [("b", tmp_path / "1.parquet")]
    assert [name for name, _ in named_files(inputs, "graph")] == ["a", "b"]


def test_pipelines_follow_one_another_in_both_ways_of_counting() -> None:
    own_start = pd.DataFrame(
        {
            "replica": [0, 0, 0],
            "pipeline": [0, 0, 1],
            "start_ms": [0.0, 4.0, 0.0],
            "end_ms": [4.0, 9.0, 5.0],
        }
    )
    batch_start = own_start.assign(start_ms=[0.0, 4.0, 9.0], end_ms=[4.0, 9.0, 14.0])
    for table in (own_start, batch_start):
        moved = pipeline_schedule._one_after_another(table)
        assert moved[["start_ms", "end_ms"]].to_numpy().tolist() == [
            [0.0, 4.0],
            [4.0, 9.0],
            [9.0, 14.0],
        ]


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    rows = [
        {
            "iteration": i,
            "rank": r,
            "iteration_ms": 100.0 + 10 * r,
            "stall_ms": stall,
            "reconfiguration_latency_ms": None,
        }
        for i in range(2)
        for r, stall in ((0, 50.0), (1, None))
    ]
    frame = pd.DataFrame(rows).assign(
        parallelism="pipeline", plan="p", device="cpu", mode="electrical", run="r"
    )
    steps = reconfiguration._steps(frame)
    assert steps["iteration_ms"].tolist() == [110.0, 110.0]
    assert steps["stall_percent"].tolist() == [25.0, 25.0]
    assert steps["reconfiguration_latency_ms"].tolist() == [0.0, 0.0]


def test_sweeps_are_grouped_by_family_and_named_by_what_tells_them_apart() -> None:
    sweeps = {
        "a": ("railx_hyperx", "railx_hyperx", "min"),
        "b": ("railx_hyperx", "railx_hyperx", "balanced"),
        "c": ("fat_tree_1250", "fat_tree", "min"),
        "d": ("dragonfly", "dragonfly", "min"),
    }
    rows = [(item, *names, "uniform") for item, names in sweeps.items() for _ in range(2)]
    frame = pd.DataFrame(rows, columns=["sweep", "topology", "family", "routing", "traffic"])
    wanted = {
        "RailX": ("railx_hyperx", "railx_torus"),
        "Meshes": ("mesh_2d",),
        "Trees": ("fat_tree",),
    }
    panels = latency_load._panels(frame, wanted)
    assert panels == {"RailX": ["a", "b"], "Trees": ["c"], "Other networks": ["d"]}
    names = latency_load._names(frame)
    assert names == {
        "a": "RailX 2D HyperX, min",
        "b": "RailX 2D HyperX, balanced",
        "c": "Fat tree, 1250",
        "d": "Dragonfly",
    }
    assert latency_load._panels(frame[frame["sweep"] == "d"], wanted) == {"Latency": ["d"]}
