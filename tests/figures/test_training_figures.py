"""What the figures of training runs say of their tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from railx.io import read_json
from tests.figures.conftest import draw_words, load_settings
from tests.figures.training_tables import write_passes, write_planned


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
