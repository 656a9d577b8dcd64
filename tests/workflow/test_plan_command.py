"""``railx plan``: a user's own lengths with every planner of the list, and one line for
what cannot be planned or written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railx.planning.format.files import read_plan
from railx.planning.planners import PLANNERS
from tests.workflow.test_cli import printed, refused

ON_A100 = ("cluster=a100_64", "model=gpt_7b", "cost_model=flexsp_7b", "batch=whole")
LENGTHS = [5000, 400, 3000, 9_000, 30, 900, 2000, 700]
#: What a planner needs besides, to use all 64 devices.
WHOLE = {
    "pipeline": ("planner.stages=8", "planner.replicas=1", "planner.sequence_parallel_degree=8")
}


def _source(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "lengths.json").write_text(text)
    return (*ON_A100, "corpus=file", f"corpus.path={folder / 'lengths.json'}")


@pytest.mark.parametrize("planner", [planner.name for planner in PLANNERS])
def test_every_planner_plans_a_users_own_lengths(
    planner: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    source = _source(tmp_path, json.dumps(LENGTHS))
    chosen = (f"planner={planner}", *WHOLE.get(planner, ()))
    summary = printed(capsys, "plan", *chosen, *source, "--out", str(out))
    assert (summary["planner"], summary["sequences"]) == (planner, len(LENGTHS))
    # Reading works the times out again.
    plan = read_plan(out)
    batch: Any
    (batch,) = plan.batches
    assert dict(zip(batch.sequences, batch.lengths, strict=True)) == dict(enumerate(LENGTHS))
    assert batch.predicted_ms == pytest.approx(summary["predicted_batch_ms"])
    assert batch.solved_by is not None
    assert plan.settings["max_length_tokens"] == 9_000


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ("[5, NaN]", "sequence 1 is nan; allowed: a whole number of tokens"),
        ("[5, -7]", "sequence 1 has length -7; allowed: at least 1 token"),
    ],
)
def test_lengths_that_are_none(
    lengths: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    message = refused(capsys, "plan", *_source(tmp_path, lengths), "--out", str(out))
    assert expected in message
    assert str(tmp_path / "lengths.json") in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (
            ("planner=static", "cluster.memory_gib=1.5"),
            "cluster.memory_gib: got 1.5; allowed: more than 1.60149, for the model's states",
        ),
        (
            ("planner=static_64", "model.heads=32", "model.kv_heads=32"),
            "got 64; allowed: 1, 2, 4, 8, 16, 32, those of the cluster that divide the model's 32",
        ),
        (
            ("planner=pipeline_8x8", "model.heads=4", "model.kv_heads=4"),
            "planner.sequence_parallel_degree: got 8; allowed: 1, 2, 4, those of the cluster that",
        ),
        (
            ("planner=pipeline_8x8", "cluster.devices=48"),
            "sequence_parallel_degree 8, 64 ranks, for 48 devices; allowed: as many ranks as",
        ),
    ],
)
def test_what_cannot_be_planned(
    choices: tuple[str, ...],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert expected in refused(capsys, "plan", *_source(tmp_path, "[900]"), *choices)


def test_degrees_that_are_left_out_are_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = (*_source(tmp_path, "[900]"), "planner=static")
    key = "degrees_that_do_not_divide_the_heads"
    assert printed(capsys, "plan", *source)[key] is None
    fewer = ("model.heads=8", "model.kv_heads=8")
    assert printed(capsys, "plan", *source, *fewer)[key] == "16, 32, 64"


def test_out_is_a_file_that_can_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "folder.json").mkdir()
    source = (*_source(tmp_path, "[900]"), "planner=static")

    def said(out: Path) -> str:
        return refused(capsys, "plan", *source, "--out", str(out))

    folder, below = tmp_path / "folder.json", tmp_path / "lengths.json" / "plan.json"
    assert said(folder) == f"--out: got {folder}, a folder; allowed: a file"
    assert said(below).startswith(f"--out: got {below}; allowed: a place that can be written, unli")
    nowhere = Path("/proc/plan.json")
    assert said(nowhere).startswith(f"--out: got {nowhere}; allowed: a place that can be written")
    assert list(folder.iterdir()) == []
