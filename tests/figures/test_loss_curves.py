"""What a picture of losses cannot show to be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from railx.io import read_json
from tests.builders import write_result
from tests.figures.conftest import draw_words, load_settings

RUNS = {"a": "First", "b": "Second"}


def write(results: Path, run: str, losses: dict[int, float], mode: str = "electrical") -> Path:
    rows: list[dict[str, Any]] = [
        {"mode": mode, "iteration": step, "repeat": repeat, "rank": rank, "loss": loss + lift}
        for step, loss in losses.items()
        # The median of the repeats is the loss; the last one is far off.
        for repeat, lift in enumerate((0.0, 0.0, 5.0))
        for rank in range(2)
    ]
    return write_result(results, "training.iterations", rows, run, run=run, fidelity="measured_cpu")


def test_losses_are_held_against_those_of_the_first_run(tmp_path: Path) -> None:
    paths = [write(tmp_path, "a", {1: 8.0, 2: 4.0}), write(tmp_path, "b", {1: 8.0, 2: 4.002})]
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
    one = write(tmp_path, "a", {1: 8.0})
    settings = load_settings("loss_curves", runs=RUNS)
    for other, message in (
        (write(tmp_path, "b", {5: 8.0}), "runs: b has no step in common with a; allowed"),
        (
            write(tmp_path / "other", "b", {1: 8.0}, "on_demand"),
            "runs: b has no iterations under electr",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            draw_words(settings, {"iterations": [one, other]}, tmp_path / "figure")
