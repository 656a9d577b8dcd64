"""Which sweeps share a panel, and what they are called."""

from __future__ import annotations

import pandas as pd

from railx.figures import latency_load


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


def test_seeds_are_drawn_as_their_medians() -> None:
    seeds = {1: (20.0, False, 1.0), 2: (30.0, True, 0.8), 3: (28.0, True, 0.9)}
    rows = [
        {
            **dict.fromkeys(latency_load._COLUMNS, 2.0),
            **dict.fromkeys(("sweep", "topology", "family", "traffic", "routing"), "a"),
            "fidelity": "packet",
            "offered_flits_per_chip_cycle": load,
            "latency_mean_cycles": load * latency,
            "saturated": saturated,
            "saturation_flits_per_chip_cycle": point,
        }
        for latency, saturated, point in seeds.values()
        for load in (0.5, 1.0)
    ]
    drawn = latency_load._medians(pd.DataFrame(rows))
    assert list(drawn.columns) == list(latency_load._COLUMNS)
    assert drawn["offered_flits_per_chip_cycle"].tolist() == [0.5, 1.0]
    assert drawn["latency_mean_cycles"].tolist() == [14.0, 28.0]
    assert drawn["saturated"].tolist() == [True, True]
    assert drawn["saturation_flits_per_chip_cycle"].tolist() == [0.9, 0.9]
