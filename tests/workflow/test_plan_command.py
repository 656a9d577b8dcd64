"""``railx plan``: a user's own lengths with every planner of the list. ``railx
schedule``: what it prints and writes of a plan. One line for what cannot be planned,
read or written.
"""

from __future__ import annotations

import json
import signal
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json, write_json
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.schedule import pipeline_ms, schedule_name
from railx.planning.planners import PLANNERS
from tests.commands import environment, python
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.workflow.test_cli import printed, refused
from workflow import cli
from workflow.cli import main

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
        (("--format", "groups", "--json"), "--json: got --format, too; allowed: one of them"),
    ],
)
def test_formats_that_there_are_not(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", *_source(tmp_path, "[900]"), *words])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {expected}")
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


SCHEDULED = [5000, 400, 3000, 9_000, 30, 900, 2000, 700, 1500, 2500]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedule")
    (folder / "lengths.json").write_text(json.dumps(SCHEDULED))
    out = folder / "plan.json"
    source = ("corpus=file", f"corpus.path={folder / 'lengths.json'}", "batch=whole")
    machine = ("cluster=a100_64", "cluster.devices=32", "model=gpt_7b", "cost_model=flexsp_7b")
    chosen = ("planner=pipeline_4x8", "planner.alignment_tokens=64", "planner.most_slices=4")
    assert main(["plan", *chosen, *source, *machine, "--out", str(out)]) == 0
    return out


def _rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["schedule", *arguments, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_stages_with_bubbles_and_memory(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = _rows(capsys, str(plan))
    (batch,) = read_plan(plan).pipeline_batches()
    assert [row["stage"] for row in rows] == [0, 1, 2, 3] * len(batch.pipelines)
    for row in rows:
        whole = pipeline_ms(batch.pipelines[row["pipeline"]])
        assert row["busy_ms"] + row["idle_ms"] == pytest.approx(whole)
        assert 0 < row["peak_gib"] <= row["capacity_gib"]
    assert main(["schedule", str(plan)]) == 0
    printed = capsys.readouterr().out
    assert f"batch 0: {batch.predicted_ms:.6g} ms predicted" in printed
    assert "simulated only" not in printed


def test_every_schedule_in_a_line_and_the_best_written(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = {row["schedule"]: row for row in _rows(capsys, str(plan), "--compare")}
    assert set(rows) == {"plan", "1f1b", "gpipe", "interleaved", "zero_bubble", "searched"}
    assert rows["plan"]["batch_ms"] >= rows["searched"]["batch_ms"]
    assert rows["1f1b"]["of_1f1b"] == 1.0
    assert [name for name, row in rows.items() if not row["trains"]] == [
        "interleaved",
        "zero_bubble",
    ]
    out = tmp_path / "best.json"
    assert main(["schedule", str(plan), "--schedule", "best_trained", "--out", str(out)]) == 0
    assert f"written: {out}" in capsys.readouterr().out
    (batch,) = read_plan(out).pipeline_batches()
    trained = [rows[name]["batch_ms"] for name in ("1f1b", "searched", "gpipe")]
    assert batch.predicted_ms == pytest.approx(min(trained))
    assert batch.solver["one_f_one_b_ms"] == pytest.approx(rows["1f1b"]["batch_ms"])
    # Another choice has no account of these.
    other = tmp_path / "gpipe.json"
    assert main(["schedule", str(out), "--schedule", "gpipe", "--out", str(other)]) == 0
    (changed,) = read_plan(other).pipeline_batches()
    told = {"schedules", "schedule_ms", "one_f_one_b_ms"}
    assert set(batch.solver) - set(changed.solver) == told


def test_an_order_can_be_written_out_edited_and_read_again(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "mine.json"
    assert main(["schedule", str(plan), "--explicit", "--out", str(out)]) == 0
    capsys.readouterr()
    (batch,) = read_plan(out).pipeline_batches()
    assert {schedule_name(one) for one in batch.pipelines} == {"explicit"}
    shown = _rows(capsys, str(out), "--orders")
    assert shown == _rows(capsys, str(plan), "--orders")
    assert shown[0]["order"].split() == list(batch.pipelines[0].order[0])
    data = read_json(out)
    data["digest"] = None
    orders = data["batches"][0]["pipelines"][0]["order"]
    orders[1].remove("B0")
    write_json(out, data)
    assert refused(capsys, "schedule", str(out)).startswith(
        f"{out}: batch 0, pipeline 0, stage 1: chunk 0 is dropped, no B0; allowed"
    )


def test_a_picture_and_a_trace(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = {"--memory": "memory.svg", "--chrome": "trace.json"}
    files = {option: tmp_path / name for option, name in names.items()}
    written = [word for option, path in files.items() for word in (option, str(path))]
    assert main(["schedule", str(plan), "--schedule", "zero_bubble", *written]) == 0
    assert "simulated only, railx train refuses it" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert "room of the stage that has least" in files["--memory"].read_text()
    events = read_json(files["--chrome"])["traceEvents"]
    passes = [event for event in events if event["ph"] == "X"]
    (batch,) = read_plan(plan).pipeline_batches()
    assert len(passes) == 3 * 4 * sum(len(one.chunks) for one in batch.pipelines)
    assert {event["cat"] for event in passes} == {"forward", "backward", "weight"}
    for stage in range(4):
        own = sorted((one["ts"], one["dur"]) for one in passes if one["tid"] == stage)
        assert all(begin + length <= after + 1e-6 for (begin, length), (after, _) in pairwise(own))
    end = max(one["ts"] + one["dur"] for one in passes)
    compared = {row["schedule"]: row for row in _rows(capsys, str(plan), "--compare")}
    once_ms = batch.predicted_other_ms
    assert end == pytest.approx(1e3 * (compared["zero_bubble"]["batch_ms"] - once_ms))
    last = [event for event in events if event["ph"] == "C" and event["tid"] == 0][-1]
    assert last["args"]["GiB"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--iteration", "3"), "--iteration: got 3; allowed: 0"),
        (("--gantt", "x.txt"), "--gantt: got x.txt; allowed: a file that ends in .svg or .png"),
        (("--chrome", "x.svg"), "--chrome: got x.svg; allowed: a file that ends in .json"),
        (("--explicit",), "--explicit: got no --out; allowed: with --out, the plan to write"),
        (("--out", "{folder}.json"), "--out: got {folder}.json; allowed: a file that ends in"),
        (
            ("--chrome", "{folder}/a.json", "--out", "{folder}/a.json"),
            "--out: got {folder}/a.json; allowed: a file that ends in .json, one for each option",
        ),
        (
            ("--chrome", "{folder}/a.json", "--gantt", "/proc/a.svg"),
            "--gantt: got /proc/a.svg; allowed: a place that can be written",
        ),
        (("--virtual-stages", "1"), "--virtual-stages: got 1; allowed: at least 2"),
        (("--compare", "--virtual-stages", "9"), "--virtual-stages: got 9; allowed: 2 to 8"),
        (
            ("--schedule", "interleaved", "--virtual-stages", "9"),
            "--virtual-stages: got 9; allowed: 2 to 8, for 4 stages of 32 layers in all",
        ),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    plan: Path,
    arguments: tuple[str, ...],
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Before anything is written."""
    folder = tmp_path / "given"
    folder.with_suffix(".json").mkdir()
    given = [word.format(folder=folder) for word in arguments]
    assert refused(capsys, "schedule", str(plan), *given).startswith(line.format(folder=folder))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("killed", "arguments"),
    [
        ("railx.figures.draw_figure", ("schedule", "{plan}", "--gantt", "{folder}/a.svg")),
        ("railx.io.write_table", ("findings",)),
    ],
)
def test_a_terminated_command_leaves_no_file(
    plan: Path, tmp_path: Path, killed: str, arguments: tuple[str, ...]
) -> None:
    code = (
        "import os, signal, sys, unittest.mock; from workflow.cli import main\n"
        "end = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "with unittest.mock.patch(sys.argv[1], end): main(sys.argv[2:])"
    )
    given = [word.format(plan=plan, folder=tmp_path) for word in arguments]
    done = python("-c", code, killed, *given, env=environment(TMPDIR=str(tmp_path)))
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_without_times_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As someone writes one by hand who says nothing of times."""
    free = [
        replace(one, predicted_forward_ms=0.0, predicted_backward_ms=0.0)
        for one in (chunk((0, 0, 5, 9)), chunk((0, 5, 9, 9)), chunk((1, 0, 7, 7)))
    ]
    path = tmp_path / "plan.json"
    write_plan(path, pipeline_plan(2, [Pipeline(2, 0, tuple(free))]))
    assert [row["peak_chunks"] for row in _rows(capsys, str(path))] == [3, 2]
    compared = _rows(capsys, str(path), "--compare")
    assert {(row["batch_ms"], row["of_1f1b"], row["bubble_share"]) for row in compared} == {
        (0, 1, 0)
    }
    pictures = [tmp_path / "new" / name for name in ("gantt.svg", "memory.svg")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = ("--gantt", str(pictures[0]), "--memory", str(pictures[1]))
        assert main(["schedule", str(path), *options]) == 0
    assert all(picture.is_file() for picture in pictures)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("cluster", {}, "settings.cluster.name: is missing; allowed: text, not empty"),
        (
            "max_length_tokens",
            "long",
            "settings.max_length_tokens: got 'long'; allowed: at least 1",
        ),
        ("max_length_tokens", True, "settings.max_length_tokens: got True; allowed: at least 1"),
    ],
)
def test_settings_that_cost_nothing_are_named_with_their_file(
    plan: Path,
    key: str,
    value: Any,
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Of a plan whose times are its own nobody has read them before."""
    data = read_json(plan) | {"predictions": "own", "digest": None}
    data["settings"][key] = value
    path = tmp_path / "plan.json"
    write_json(path, data)
    assert refused(capsys, "schedule", str(path)) == f"{path}: {line}"


def test_what_memory_does_not_hold_is_said(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capsys.readouterr()
    assert main(["schedule", str(plan)]) == 0
    assert "memory" not in capsys.readouterr().out
    data = read_json(plan) | {"predictions": "own", "digest": None}
    data["settings"]["cluster"]["tokens_per_device"] = 1
    path = tmp_path / "plan.json"
    write_json(path, data)
    assert main(["schedule", str(path)]) == 0
    assert "; more than the stages' memory holds" in capsys.readouterr().out


def test_a_file_that_is_no_text_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe")
    assert refused(capsys, "schedule", str(path)) == (f"{path}: byte 0 is no text; allowed: JSON")


def test_a_plan_of_the_other_kind_has_no_schedule(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, sequence_parallel_plan(1, [micro_batch(((0,), {0: 5}))]))
    assert refused(capsys, "schedule", str(path)) == (
        "the plan is of kind sequence_parallel; allowed here: pipeline"
    )


def test_times_of_a_planner_of_its_own_are_not_priced_anew(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One stage has no bubble to fill: every order takes what Megatron's takes."""
    (tmp_path / "lengths.json").write_text("[900, 300, 100, 40]")
    out = tmp_path / "plan.json"
    source = ("corpus=file", f"corpus.path={tmp_path / 'lengths.json'}", "batch=whole")
    machine = ("cluster=cpu_4_pipeline", "model=tiny", "cost_model=analytic")
    chosen = ("planner=megatron_pipeline", "planner.tensor=2", "planner.stages=1")
    assert main(["plan", *chosen, *source, *machine, "--out", str(out)]) == 0
    rows = _rows(capsys, str(out), "--compare")
    assert {row["schedule"] for row in rows} >= {"interleaved", "zero_bubble"}
    assert [row["of_1f1b"] for row in rows] == [pytest.approx(1.0)] * len(rows)
    for name in ("interleaved", "best"):
        (shown, *_) = _rows(capsys, str(out), "--schedule", name)
        assert shown["busy_ms"] == pytest.approx(rows[0]["batch_ms"])
