"""``railx train``: a plan file really run; what cannot be is one line, no process.
``railx fabric``: what it prints is what a rank needs, and what people ask for.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from railx.fabric import Configuration, FabricClient, FabricSettings, launch_controller
from railx.fabric.settings import JournalSettings
from railx.io import read_rows
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import operations, ordered
from tests.builders import ROOT
from tests.commands import environment, python
from tests.plans import chunk, pipeline_plan
from tests.workflow.test_cli import refused
from workflow import cli
from workflow.cli import main
from workflow.mounts import choices

pytestmark = pytest.mark.system


def _plan(**changes: object) -> Plan:
    pipeline = Pipeline(2, 0, (chunk((0, 0, 10, 10)), chunk((1, 0, 10, 10))))
    return pipeline_plan(2, [replace(pipeline, **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_what_is_simulated_only_starts_nothing(
    schedule: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_plan(tmp_path / "plan.json", _plan(schedule=schedule))
    line = refused(capsys, "train", str(tmp_path / "plan.json"), "--out", str(tmp_path / "run"))
    assert line.startswith(
        f"{tmp_path / 'plan.json'}: batch 0, pipeline 0: schedule {schedule} is simulated only;"
    )
    assert not (tmp_path / "run").exists()


def test_a_plan_of_another_program_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, replace(_plan(), planner="slim_pipe"))
    line = refused(capsys, "train", str(path), "--out", str(tmp_path / "run"))
    assert line.startswith(f"{path}: got a plan of slim_pipe, which is simulated only: attention")
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, _plan())
    assert refused(capsys, "train", str(path), "--out", str(path)) == (
        f"--out: got {path}, a file; allowed: a folder"
    )
    assert refused(capsys, "train", str(path), "--out", "/proc/run").startswith(
        "--out: got /proc/run; allowed: a place that can be written, unlike /proc"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "PLAN: got {path}: No such file or directory; allowed: a plan (railx plan"),
        (b"\xff\xfe", "{path}: byte 0 is no text; allowed: JSON"),
        (b"[" * 200_000, "{path}: JSON nested too deeply; allowed: a few levels"),
    ],
)
def test_a_file_that_is_no_plan_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    line = refused(capsys, "train", str(path), "--out", str(tmp_path / "run"))
    assert line.startswith(said.format(path=path))


@pytest.mark.slow
def test_an_order_written_out_is_really_run(tmp_path: Path) -> None:
    machine = ("cluster=cpu_4_pipeline", "cluster.devices=2", "model=tiny", "cost_model=analytic")
    chosen = ("planner=pipeline_2x1", "corpus=stdlib", "batch=small", "batch.batches=1")
    path, mine = tmp_path / "plan.json", tmp_path / "mine.json"
    assert main(["plan", *chosen, *machine, "--out", str(path)]) == 0
    search = ("--schedule", "searched", "--out", str(mine))
    assert main(["schedule", str(path), *search]) == 0
    once = ("training.iterations=1", "training.warmup_iterations=1")
    modes = ("training.on_demand_latencies_ms=[0]", "training.provisioned_latencies_ms=[0]")
    out = tmp_path / "run"
    run = ("train", str(mine), *once, *modes, "--out", str(out), "--json")
    done = python("-m", "workflow.cli", *run)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["peak_live_chunks"] == summary["planned_peak_live_chunks"]
    (batch,) = read_plan(mine).pipeline_batches()
    (pipeline,) = batch.pipelines
    assert pipeline.order == ordered(pipeline)
    for stage in range(2):
        rows = [row for row in read_rows(out / "passes.parquet") if row["stage"] == stage]
        rows.sort(key=lambda row: (row["iteration"], row["position"]))
        ran = [(row["kind"], row["chunk"]) for row in rows]
        expected = [(op.kind, op.chunk) for op in operations(pipeline, stage)]
        assert ran[: len(expected)] == expected


def test_its_variables_let_ranks_in_and_ctrl_c_ends_it_with_statistics() -> None:
    env = environment()
    env.pop("RAILX_TOKEN", None)
    arguments = ("--ranks", "2", "--latency-ms", "0", "--mode", "provisioned")
    process = subprocess.Popen(
        [sys.executable, "-m", "workflow.cli", "fabric", "serve", *arguments],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(6)]
    variables = dict(line.removeprefix("export ").split("=", 1) for line in lines[1:5])
    assert variables["RAILX_FABRIC"] == "provisioned"
    assert variables["RAILX_GPUS_PER_SERVER"] == "1"
    ranks = [
        FabricClient(
            variables["RAILX_CONTROLLER"], rank, gpus_per_server=1, token=variables["RAILX_TOKEN"]
        )
        for rank in (0, 1)
    ]
    for client in ranks:
        client.prepare(Configuration("ring", (0, 1)))
    for client in ranks:
        client.close()
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    statistics = dict(line.split() for line in printed.splitlines())
    assert statistics["hints"] == "2"
    assert statistics["requests"] == "0"
    assert "wait_ms" in statistics


def test_settings_that_cannot_be_used_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in (
        (("--ranks", "0"), "error: --ranks: got 0; allowed: at least 1\n"),
        (
            ("--ranks", "2", "--gpus-per-server", "0"),
            "error: fabric.gpus_per_server: got 0; allowed: at least 1\n",
        ),
    ):
        done = python("-m", "workflow.cli", "fabric", "serve", *arguments)
        assert (done.returncode, done.stderr) == (2, line)
        assert done.stdout == ""
    for arguments, line in (
        (
            ("--fabric", "magic"),
            f"--fabric: got 'magic'; allowed: {', '.join(choices('fabric'))}",
        ),
        (
            ("--fabric", "polatis", "--latency-ms", "3"),
            "fabric.reconfiguration_latency_ms: got 3.0; allowed: 25.0, which the switch has",
        ),
        (
            ("--fabric", "netconf", "--state-file", "light.json"),
            "fabric.switch.state_file: unknown key; allowed: driver, addresses, host_keys",
        ),
    ):
        assert by_hand("serve", "--ranks", "2", *arguments) == 2
        printed, errors = capsys.readouterr()
        assert (printed, errors.count("\n")) == ("", 1)
        assert errors.startswith(f"error: {line}")


def by_hand(*arguments: str) -> int:
    return cli.main(["fabric", *arguments])


def test_people_look_order_stop_and_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    journal = JournalSettings(str(path), 16)
    settings = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 1, journal=journal)
    with launch_controller(settings, 2) as controller:
        assert controller.address is not None
        address = controller.address
        with FabricClient(address, 0, gpus_per_server=1):
            assert by_hand("fail-port", address, "1.left", "--reason", "dust") == 0
            assert by_hand("fail-command", address, "--count", "2") == 0
            assert by_hand("status", address) == 0
            printed = capsys.readouterr().out
            assert printed.startswith("lost: 1.left (dust)\nthe next 2 commands fail (on order)\n")
            assert "  1.left  dust\n" in printed
            assert by_hand("restore-port", address, "1.left") == 0
            assert by_hand("status", address, "--json") == 0
            back, _, status = capsys.readouterr().out.partition("\n")
            assert back == "back: 1.left"
            assert json.loads(status)["lost_ports"] == []
            assert by_hand("metrics", address) == 0
            assert "railx_ranks_present 1\n" in capsys.readouterr().out
            assert by_hand("fail-port", address, "1.up") == 2
            assert by_hand("status", address, "--token", "wrong") == 2
            assert capsys.readouterr().err == (
                "error: got '1.up'; allowed: GPU.left or GPU.right, e.g. 3.right\n"
                "error: an observer came with another token; allowed: RAILX_TOKEN of the"
                " controller\n"
            )
        assert by_hand("stop", address) == 0
        assert controller.process is not None
        assert controller.process.wait(60) == 0
    capsys.readouterr()
    assert by_hand("replay-log", str(path)) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("same: every event gave the actions that the controller took\n")
    assert "1 ports_lost" in printed
    assert by_hand("replay-log", str(path), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["by_event"]["register"], facts["different_events"]) == (1, 0)
    lines = path.read_text().splitlines()
    register = next(n for n, line in enumerate(lines) if '"register"' in line)
    lines[register] = lines[register].replace('"answer":[0,0]', '"answer":[1,7]')
    path.write_text("\n".join(lines) + "\n")
    assert by_hand("replay-log", str(path)) == 1
    assert "different: 1 events, the first is event" in capsys.readouterr().out


def test_prometheus_reads_the_metrics_over_http() -> None:
    settings = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 1)
    with launch_controller(settings, 2) as controller:
        assert controller.address is not None
        arguments = ("metrics", controller.address, "--serve", "0")
        process = subprocess.Popen(
            [sys.executable, "-m", "workflow.cli", "fabric", *arguments],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            # A suite in the background may have been told to ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urlopen(url) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"# TYPE railx_connections gauge\nrailx_connections 1\n" in answer.read()
        with pytest.raises(HTTPError, match="404"):
            urlopen(url.replace("/metrics", "/etc"))
    with pytest.raises(HTTPError, match="503"):
        urlopen(url)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0
    process.stdout.close()
