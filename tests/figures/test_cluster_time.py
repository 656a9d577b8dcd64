"""What a picture of times cannot show to be right."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from railx.figures import draw_figure
from railx.io import read_json
from tests.builders import write_result
from tests.figures.conftest import draw_words, load_settings


def write(results: Path, run: str, device: str, compute: str = "measured") -> Path:
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
    inputs = {"settings": [write(tmp_path, "one", device)]}
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
    inputs = {"settings": [write(tmp_path, "one", "cpu", compute)]}
    draw_words(load_settings("cluster_time"), inputs, tmp_path / "figure")
    assert words in read_json(tmp_path / "figure.json")["caption"]
