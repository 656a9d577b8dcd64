"""What a job with ranks asks of a cluster, and how its ranks start there."""

import os
import socket
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.io import read_json
from tests.builders import ROOT
from training.nodes import head_address, nodes_here, ranks_command, reachable
from workflow.cluster import PLUGINS, asked, check_profile, main
from workflow.experiment import checked_experiment
from workflow.stage import Needs
from workflow.stages import STAGES


def test_one_machine_is_asked_for_nothing() -> None:
    assert set(asked(Needs(8, 2, "cuda"), {}).values()) == {None}


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        # GPUs of a node, not of the job; the launchers are no tasks then.
        ("auto", 1, {"nodes": 2, "gres": "gpu:4", "tasks": None, "cpus_per_task": 12}),
        ("cuda", 2, {"nodes": 2, "gres": "gpu:8", "tasks": None, "cpus_per_task": 12}),
        ("cuda", 0, {"nodes": 2, "gres": None, "tasks": 2, "cpus_per_task": 12}),
        ("cpu", 1, {"nodes": 2, "gres": None, "tasks": 2, "cpus_per_task": 12}),
    ],
)
def test_ranks_spread_over_nodes(device: str, gpus: int, expected: dict[str, object]) -> None:
    profile = {"ranks_per_node": 4, "gpus_per_rank": gpus}
    assert asked(Needs(8, 3, device), profile) == expected


@given(ranks=st.integers(1, 256), here=st.integers(1, 64), threads=st.integers(1, 4))
def test_the_fewest_nodes_with_as_many_ranks_each(ranks: int, here: int, threads: int) -> None:
    nodes, profile = -(-ranks // here), {"ranks_per_node": str(here)}
    if ranks % nodes:
        with pytest.raises(ValueError, match=f"allowed for {ranks} ranks"):
            asked(Needs(ranks, threads), profile)
        return
    found = asked(Needs(ranks, threads), profile)
    assert found["nodes"] == found["tasks"] == nodes
    assert found["cpus_per_task"] == ranks // nodes * threads
    assert ranks // nodes <= here


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"ranks_per_node": 0}, "ranks_per_node: got 0; allowed: 1 or more"),
        ({"ranks_per_node": "x"}, "ranks_per_node: got 'x'; allowed: a whole number"),
        (
            {"ranks_per_node": 3},
            "ranks_per_node: got 3; allowed for 8 ranks: 8 or more, or a divisor",
        ),
        (
            {"ranks_per_node": 4, "gpus_per_rank": "x"},
            "gpus_per_rank: got 'x'; allowed: a whole number",
        ),
        (
            {"ranks_per_node": 4, "gpus_per_rank": -1},
            "gpus_per_rank: got -1; allowed: 0 or more",
        ),
    ],
)
def test_what_a_profile_says_wrong_is_named(profile: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        asked(Needs(8), profile)
    assert str(caught.value) == said


def test_stages_with_ranks_say_how_many() -> None:
    experiment = checked_experiment(["experiment=quick"])
    training = STAGES["training"].needs(experiment, "flexsp_stdlib")
    assert training == Needs(4, 1, "auto")
    assert STAGES["metrics"].needs(experiment, "") == Needs()


def test_a_plain_start_without_a_cluster() -> None:
    assert nodes_here({}) == 1
    assert ranks_command("training.run", ["--out", "x"], 4, "logs", {}) == [
        *(sys.executable, "-m", "training.run", "--out", "x")
    ]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of this name that prints the file beside it for the job asked of."""
    said = tmp_path / "said"
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\ncat "{said}.$3"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return said


def test_slurm_is_asked_for_the_nodes_of_the_job(squeue: Path) -> None:
    squeue.with_suffix(".71").write_text("2\n")
    # What a step's variables say is its own.
    assert nodes_here({"SLURM_JOB_ID": "71", "SLURM_NNODES": "1"}) == 2
    with pytest.raises(ValueError, match="squeue: cannot tell the nodes of job 72"):
        nodes_here({"SLURM_JOB_ID": "72"})


def test_under_slurm_an_agent_on_each_node(squeue: Path) -> None:
    squeue.with_suffix(".73").write_text("3\n")
    own = {"SLURM_JOB_ID": "73", "SLURM_STEP_NODELIST": "one", "RAILX_HEAD_ADDRESS": "head"}
    command = ranks_command("training.run", ["--out", "x"], 12, "logs", own)
    step, agent = command[: command.index("sh")], command[command.index(sys.executable) :]
    # What is said of this step is not said to the other.
    assert step[:4] == ["env", "--unset=SLURM_STEP_NODELIST", "srun", "--jobid=73"]
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"} <= set(step)
    assert "PET_NODE_RANK=$SLURM_NODEID" in command[command.index("-c") + 1]
    said = dict(zip(agent[3::2], agent[4::2], strict=False))
    assert said["--nnodes"] == "3"
    assert said["--nproc-per-node"] == "4"
    assert said["--master-addr"] == "head"
    assert said["--log-dir"] == "logs"
    assert agent[-4:] == ["-m", "training.run", "--out", "x"]
    with socket.socket() as free:
        free.bind(("", int(said["--master-port"])))


def test_elsewhere_the_other_nodes_find_their_agent(tmp_path: Path) -> None:
    own = {
        "RAILX_NODES": "2",
        "RAILX_AGENTS": str(tmp_path / "agents"),
        "RAILX_HEAD_ADDRESS": "head",
        # A pod may be on a machine of Slurm.
        "SLURM_JOB_ID": "7",
    }
    command = ranks_command("training.run", [], 4, "logs", own)
    assert command[:2] == ["env", "PET_NODE_RANK=0"]
    assert read_json(tmp_path / "agents" / "command.json") == command[2:]
    assert command[command.index("--nnodes") + 1] == "2"


def test_ranks_that_do_not_spread_are_refused() -> None:
    with pytest.raises(ValueError, match="5 ranks on 2 nodes; allowed: a multiple of the nodes"):
        ranks_command("training.run", [], 5, "logs", {"RAILX_NODES": "2"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1", "unix:/tmp/socket"])
def test_a_controller_is_where_other_nodes_reach_it(host: str) -> None:
    own = {"RAILX_HEAD_ADDRESS": "head"}
    assert reachable(host, 1, own) == host
    assert reachable(host, 2, own) == "head"
    assert reachable("10.0.0.1", 2, own) == "10.0.0.1"
    assert head_address({}) == socket.gethostname()


def test_an_interface_stands_for_its_address() -> None:
    (loopback,) = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(one.address == "127.0.0.1" for one in addresses)
    )
    assert head_address({"RAILX_HEAD_ADDRESS": loopback}) == "127.0.0.1"


def test_an_interface_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"ib0": []})
    with pytest.raises(ValueError, match="RAILX_HEAD_ADDRESS: got ib0, an interface without an"):
        head_address({"RAILX_HEAD_ADDRESS": "ib0"})


def test_a_profile_without_its_plugin_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PLUGINS, "slurm", "snakemake_executor_plugin_absent")
    assert main(["slurm"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "error: PROFILE: slurm wants the package snakemake-executor-plugin-absent, which is not"
        " installed; it comes with the extra: pip install 'railx-lab[slurm]'\n"
    )


@pytest.mark.parametrize("name", ["", "nope", "../rules"])
def test_a_profile_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="allowed: default, gpu, kubernetes, slurm"):
        check_profile(name)


def test_extras_bring_the_plugins_of_their_profiles() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, package in PLUGINS.items():
        (wanted,) = extras["optional-dependencies"][name]
        assert wanted.split(">=")[0].replace("-", "_") == package
        executor = package.removeprefix("snakemake_executor_plugin_").replace("_", "-")
        profile = (ROOT / "workflow" / "profiles" / name / "config.yaml").read_text()
        assert f"executor: {executor}\n" in profile
