"""Which sweeps share a panel, and what they are called."""

from __future__ import annotations

import pandas as pd

from railx.figures import simulations


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
