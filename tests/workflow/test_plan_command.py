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
from workflow import cli

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


def test_a_plan_is_written_for_other_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chosen = ("planner=flexsp", *_source(tmp_path, json.dumps(LENGTHS)))
    assert cli.main(["plan", *chosen, "--format", "megatron"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("# options of NVIDIA/Megatron-LM at ")
    assert "--max-seqlen-per-dp-cp-rank" in said.out
    assert "lost: which sequences form a micro-batch" in said.err
    out = tmp_path / "ds.json"
    assert cli.main(["plan", *chosen, "--format", "deepspeed", "--out", str(out)]) == 0
    beside = tmp_path / "ds.groups.json"
    assert capsys.readouterr().out == f"written: {out}\nwritten: {beside}\n"
    assert json.loads(out.read_text())["zero_optimization"] == {"stage": 3}
    groups = json.loads(beside.read_text())
    assert groups["ranks"] == 64
    assert sum(batch["tokens"] for batch in groups["batches"]) == sum(LENGTHS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--format", "nemo"), "--format: got 'nemo'; allowed: "),
        (("--format", "groups", "--json"), "--json: not allowed with argument --format"),
    ],
)
def test_formats_that_there_are_not(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", *_source(tmp_path, "[900]"), *words])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert expected in said.replace("argument --json", "--json")
    assert said.count("\n") == 1


@pytest.mark.parametrize("device", ["a100_80gb", "h100", "b200"])
def test_constants_of_the_step_model_are_in_the_plan(
    device: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    source = (*_source(tmp_path, json.dumps(LENGTHS)), "planner=static", "model=llama_7b")
    chosen = (f"cluster={device}_64", f"cost_model=step_{device}")
    # _source comes first: what is given later would be a second value.
    given = [word for word in source if word.partition("=")[0] not in ("cluster", "cost_model")]
    given = [word for word in given if word != "model=gpt_7b"]
    summary = printed(capsys, "plan", *given, *chosen, "--out", str(out))
    assert summary["fidelity"] == "analytic"
    costs = read_plan(out).settings["cost_model"]
    assert (costs["kind"], costs["device"], costs["model"]) == ("step", device, "llama_7b")
    assert costs["linear_ms_per_token"] > 0
