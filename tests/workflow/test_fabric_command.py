"""``railx fabric serve``: what it prints is what a rank needs."""

from __future__ import annotations

import signal
import subprocess
import sys

from railx.fabric import Configuration, FabricClient
from tests.builders import ROOT
from tests.commands import environment, python


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
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    statistics = dict(line.split() for line in printed.splitlines())
    assert statistics["hints"] == "2"
    assert statistics["requests"] == "0"
    assert "wait_ms" in statistics


def test_settings_that_cannot_be_used_are_one_line() -> None:
    for arguments, line in (
        (("--ranks", "0"), "error: --ranks: got 0; allowed: at least 1\n"),
        (
            ("--ranks", "2", "--gpus-per-server", "0"),
            "error: fabric.gpus_per_server: got 0; allowed: at least 1\n",
        ),
    ):
        done = python("-m", "workflow.cli", "fabric", "serve", *arguments)
        assert (done.returncode, done.stderr) == (2, line)
