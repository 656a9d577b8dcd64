"""What a picture of times, losses or networks cannot show to be right: the data of
single figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from railx.figures import added_time, draw_figure, simulations
from railx.figures.repeats import medians, per_repeat, repeats_words
from railx.intervals import estimate
from railx.io import read_json
from tests.builders import write_result
from tests.figures.conftest import draw_words, load_settings
from tests.figures.tables import write_passes, write_planned, write_underlays


def write_times(results: Path, run: str, device: str, compute: str = "measured") -> Path:
    """A run whose wall time is known, on the recording and on a topology."""
    rows = [
        {"topology": topology, "mode": mode, "wall_ms": wall, "cluster_ms": ms, "compute": by}
        for mode, wall in (("electrical", 80.0), ("on_demand", 90.0))
        for topology, ms, by in (("recorded", 79.0, "measured"), ("fat_tree", 20.0, compute))
    ]
    named = {"run": run, "plan": "flexsp", "parallelism": "sequence_parallel", "device": device}
    return write_result(results, "replay.settings", rows, run, **named, fidelity="replay")


@pytest.mark.parametrize(
    ("device", "measured"), [("cpu", "measured_cpu"), ("cuda", "measured_gpu")]
)
def test_wall_time_is_measured_and_cluster_time_replayed(
    tmp_path: Path, device: str, measured: str
) -> None:
    inputs = {"settings": [write_times(tmp_path, "one", device)]}
    draw_figure(load_settings("cluster_time"), inputs, tmp_path / "figure")
    data = pd.read_csv(tmp_path / "figure.csv")
    rows = data[["topology", "ms", "fidelity"]].to_dict("split", index=False)["data"]
    assert rows == [["wall", 80.0, measured], ["fat_tree", 20.0, "replay"]]
    svg = (tmp_path / "figure.svg").read_text()
    assert f"wall time: {measured}" in svg
    assert "cluster time: replay" in svg
    assert read_json(tmp_path / "figure.json")["caption"].count("80 ms on the wall") == 1


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        ("measured", "with each rank's own processor time and"),
        ("profile", "with computation by a profile of a layer and"),
    ],
)
def test_it_says_where_computation_comes_from(tmp_path: Path, compute: str, words: str) -> None:
    inputs = {"settings": [write_times(tmp_path, "one", "cpu", compute)]}
    draw_words(load_settings("cluster_time"), inputs, tmp_path / "figure")
    assert words in read_json(tmp_path / "figure.json")["caption"]


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of a run, each of one rank in one iteration."""
    return pd.DataFrame(rows).assign(
        run="r", plan="p", parallelism="pipeline", device="cpu", fidelity="emulated"
    )


def row(mode: str, repeat: int, iteration_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "mode": mode,
        "reconfiguration_latency_ms": None if mode == "electrical" else 10.0,
        "repeat": repeat,
        "iteration": 1,
        "rank": 0,
        "iteration_ms": iteration_ms,
        "stall_ms": None,
        "disturbed": False,
        **more,
    }


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    ranks = [
        row("electrical", 0, 100.0, stall_ms=50.0),
        row("electrical", 0, 110.0, rank=1),
        row("electrical", 0, 400.0, iteration=2),
        row("electrical", 0, 100.0, iteration=3),
    ]
    one = per_repeat(frame(ranks)).iloc[0]
    assert one["iteration_ms"] == 110.0
    assert one["iterations"] == 3
    assert one["stall_percent"] == 0.0
    assert one["reconfiguration_latency_ms"] == 0.0
    both = per_repeat(frame(ranks[:2])).iloc[0]
    assert both["stall_percent"] == 25.0


def test_a_repeat_is_held_against_the_electrical_runs_of_the_same_repeat() -> None:
    rows = per_repeat(
        frame(
            [
                row("electrical", 0, 100.0),
                row("electrical", 1, 200.0),
                row("electrical", 2, 900.0, disturbed=True),
                row("on_demand", 0, 150.0),
                row("on_demand", 1, 250.0),
                row("on_demand", 2, 300.0),
            ]
        )
    )
    # The third has no electrical run that counts: the median of the others.
    assert rows["over_electrical"].tolist()[3:] == [1.5, 1.25, 2.0]


def test_medians_leave_out_what_was_disturbed_and_say_so() -> None:
    rows = per_repeat(
        frame(
            [
                row("electrical", 0, 100.0),
                row("on_demand", 0, 150.0),
                row("on_demand", 1, 170.0),
                row("on_demand", 2, 990.0, disturbed=True),
            ]
        )
    )
    points = medians(rows, ["iteration_ms"], 0.95)
    own = points[(points["mode"] == "on_demand") & (points["shows"] == "iteration_ms")].iloc[0]
    assert own["median"] == 160.0
    assert own["repeats"] == 2
    assert np.isnan(own["low"])
    words = repeats_words(rows)
    assert "1 to 2 repeats of 1 timed iterations: too few for an interval" in words
    assert "1 of 4 set aside" in words


def test_what_was_run_again_counts_and_what_never_was_calm_is_shown_and_said() -> None:
    rows = per_repeat(
        frame(
            [
                row("electrical", 0, 100.0),
                row("on_demand", 0, 990.0, disturbed=True),
                row("on_demand", 0, 150.0),
                row("provisioned", 0, 120.0, disturbed=True),
            ]
        )
    )
    points = medians(rows, ["iteration_ms"], 0.95)
    drawn = points.set_index("mode")["median"]
    assert drawn.to_dict() == {"electrical": 100.0, "on_demand": 150.0, "provisioned": 120.0}
    words = repeats_words(rows)
    assert "1 of 4 set aside" in words
    assert "1 of 3 settings are shown although other work on the machine disturbed all" in words


def test_intervals_of_three_repeats_are_those_of_the_claims() -> None:
    times = [100.0, 110.0, 130.0]
    rows = per_repeat(
        frame(
            [row("electrical", number, 100.0) for number in range(3)]
            + [row("on_demand", number, ms) for number, ms in enumerate(times)]
        )
    )
    points = medians(rows, ["iteration_ms"], 0.95)
    shown = points[points["shows"] == "iteration_ms"].set_index("mode")
    drawn = shown.loc["on_demand"]
    assert (drawn["median"], drawn["low"], drawn["high"]) == (110.0, *estimate(times).ends)
    assert drawn["low"] < 100.0
    assert drawn["high"] > 130.0
    assert tuple(shown.loc["electrical", ["low", "high"]]) == (100.0, 100.0)
    added = added_time._overhead_ours(rows, 0.95)
    (median,) = added[added["source"] == "ours"].to_dict("records")
    ends = median["low_percent"], median["high_percent"]
    assert ends == pytest.approx(estimate([0.0, 10.0, 30.0]).ends)


RUNS = {"a": "First", "b": "Second"}


def write_losses(
    results: Path, run: str, losses: dict[int, float], mode: str = "electrical"
) -> Path:
    rows: list[dict[str, Any]] = [
        {"mode": mode, "iteration": step, "repeat": repeat, "rank": rank, "loss": loss + lift}
        for step, loss in losses.items()
        # The median of the repeats is the loss; the last one is far off.
        for repeat, lift in enumerate((0.0, 0.0, 5.0))
        for rank in range(2)
    ]
    return write_result(results, "training.iterations", rows, run, run=run, fidelity="measured_cpu")


def test_losses_are_held_against_those_of_the_first_run(tmp_path: Path) -> None:
    paths = [
        write_losses(tmp_path, "a", {1: 8.0, 2: 4.0}),
        write_losses(tmp_path, "b", {1: 8.0, 2: 4.002}),
    ]
    settings = load_settings("loss_curves", runs=RUNS)
    draw_words(settings, {"iterations": paths}, tmp_path / "figure")
    data = pd.read_csv(tmp_path / "figure.csv")
    assert data["step"].tolist() == [2, 3, 2, 3]
    assert data["loss"].tolist() == [8.0, 4.0, 8.0, 4.002]
    assert data["difference"].tolist() == pytest.approx([0, 0, 0, 0.0005])
    words = read_json(tmp_path / "figure.json")
    assert "over 2 steps: from 6 " in words["caption"]
    assert "from first, relative to the loss: second 0.0005." in words["caption"]


def test_runs_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    one = write_losses(tmp_path, "a", {1: 8.0})
    settings = load_settings("loss_curves", runs=RUNS)
    for other, message in (
        (write_losses(tmp_path, "b", {5: 8.0}), "runs: b has no step in common with a; allowed"),
        (
            write_losses(tmp_path / "other", "b", {1: 8.0}, "on_demand"),
            "runs: b has no iterations under electr",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            draw_words(settings, {"iterations": [one, other]}, tmp_path / "figure")


def test_hidden_is_what_nobody_waits_for(tmp_path: Path) -> None:
    """The slowest rank counts, disturbed repeats do not, nor do plans from a file."""
    paths = write_planned(tmp_path, np.random.default_rng(1))
    settings = load_settings("planning_hidden")
    draw_words(settings, {"iterations": paths}, tmp_path / "hidden")
    rows = pd.read_csv(tmp_path / "hidden.csv")
    shares = rows.groupby("run")["hidden_share"].apply(list).to_dict()
    assert {run: [round(share, 9) for share in own] for run, own in shares.items()} == {
        "flexsp_stdlib": [0.99, 0.99],
        "pipeline_stdlib": [0.9, 0.9],
    }
    assert "90 % of 40 ms hidden" in read_json(tmp_path / "hidden.json")["caption"]
    with pytest.raises(ValueError, match="no run plans while it trains"):
        draw_words(settings, {"iterations": paths[2:]}, tmp_path / "none")


def test_memory_is_that_of_the_first_rank_of_each_stage(tmp_path: Path) -> None:
    passes = {"passes": write_passes(tmp_path)}
    draw_words(load_settings("held_memory"), passes, tmp_path / "held")
    caption = read_json(tmp_path / "held.json")["caption"]
    assert "stage 0: 2 chunks and 7 MiB at most, expected 2 and 7" in caption
    assert "stage 1: 1 chunks and 4 MiB at most, expected 1 and 4" in caption
    assert len(pd.read_csv(tmp_path / "held.csv")) == 8


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
    panels = simulations._panels(frame, wanted)
    assert panels == {"RailX": ["a", "b"], "Trees": ["c"], "Other networks": ["d"]}
    names = simulations._names(frame)
    assert names == {
        "a": "RailX 2D HyperX, min",
        "b": "RailX 2D HyperX, balanced",
        "c": "Fat tree, 1250",
        "d": "Dragonfly",
    }
    assert simulations._panels(frame[frame["sweep"] == "d"], wanted) == {"Latency": ["d"]}


def test_seeds_are_drawn_as_their_medians_and_how_far_they_go() -> None:
    seeds = {1: (20.0, False, 1.0), 2: (30.0, True, 0.8), 3: (28.0, True, 0.9)}
    rows = [
        {
            **dict.fromkeys(simulations.latency_load.inputs[0].columns.split(), 2.0),
            **dict.fromkeys(("sweep", "topology", "family", "traffic", "routing"), "a"),
            "fidelity": "packet",
            "seed": seed,
            "offered_flits_per_chip_cycle": load,
            "latency_mean_cycles": load * latency,
            "saturated": saturated,
            "saturation_flits_per_chip_cycle": point,
        }
        for seed, (latency, saturated, point) in seeds.items()
        for load in (0.5, 1.0)
    ]
    frame = pd.DataFrame(rows)
    points = simulations._points(frame)
    assert points["offered_flits_per_chip_cycle"].tolist() == [0.5, 1.0]
    assert points["latency"].tolist() == [14.0, 28.0]
    assert points["least"].tolist() == [10.0, 20.0]
    assert points["most"].tolist() == [15.0, 30.0]
    assert points["saturated"].tolist() == [True, True]
    sweep = simulations._sweeps(frame).loc["a"]
    assert sweep[["saturation", "saturation_least", "saturation_most"]].tolist() == [0.9, 0.8, 1.0]
    assert sweep["seeds"] == 3
    one = simulations._sweeps(frame[frame["seed"] == 1])
    both = simulations._sweeps(frame)
    texts = [" ".join(simulations._caption(rows.assign(name="A")).split()) for rows in (one, both)]
    assert "under 1 seed." in texts[0]
    assert "within 25 % over the seeds" in texts[1]


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
