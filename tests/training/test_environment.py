"""Any torch program, with nothing but the environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch.distributed as dist

import railx_torch
from railx.fabric import Controller, FabricSettings, launch_controller
from railx_torch.environment import read
from railx_torch.session import BackendOptions
from tests.commands import ROOT, environment

pytestmark = pytest.mark.system

GOOD = {
    "RAILX_FABRIC": "on_demand",
    "RAILX_CONTROLLER": "127.0.0.1:4200",
    "RAILX_GPUS_PER_SERVER": "2",
    "RAILX_INNER": "gloo",
}


def test_all_variables_become_options() -> None:
    found = read({**GOOD, "RAILX_TOKEN": "t", "RAILX_TRACE": "folder", "RAILX_REPORT": "1"})
    assert found.options == BackendOptions("gloo", "127.0.0.1:4200", "on_demand", 2, "t")
    assert (found.trace, found.report) == (Path("folder"), True)


def test_electrical_needs_no_controller_and_torchrun_says_the_server() -> None:
    for address in ({}, {"RAILX_CONTROLLER": "nowhere"}):
        found = read({"RAILX_FABRIC": "electrical", "LOCAL_WORLD_SIZE": "4", **address})
        assert (found.options.controller, found.options.gpus_per_server) == (None, 4)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"RAILX_FABRIC": ""},
            "RAILX_FABRIC: is missing; allowed: electrical, on_demand, provisioned",
        ),
        (
            {"RAILX_FABRIC": "optical"},
            "RAILX_FABRIC: got optical; allowed: electrical, on_demand, provisioned",
        ),
        (
            {"RAILX_CONTROLLER": ""},
            (
                "RAILX_CONTROLLER: is missing; allowed: host:port of a running controller"
                " (RAILX_FABRIC=electrical needs none)"
            ),
        ),
        (
            {"RAILX_CONTROLLER": "host"},
            (
                "RAILX_CONTROLLER: got host; allowed: host:port of a running controller"
                " (RAILX_FABRIC=electrical needs none)"
            ),
        ),
        (
            {"RAILX_CONTROLLER": "host:99999"},
            (
                "RAILX_CONTROLLER: got host:99999; allowed: host:port of a running controller"
                " (RAILX_FABRIC=electrical needs none)"
            ),
        ),
        ({"RAILX_GPUS_PER_SERVER": ""}, "RAILX_GPUS_PER_SERVER: is missing; allowed: 1, 2, 3, ..."),
        (
            {"RAILX_GPUS_PER_SERVER": "0"},
            "RAILX_GPUS_PER_SERVER: got 0; allowed: 1, 2, 3, ...",
        ),
        ({"RAILX_INNER": "mpi"}, "RAILX_INNER: got mpi; allowed: gloo, nccl"),
        ({"RAILX_REPORT": "yes"}, "RAILX_REPORT: got yes; allowed: 0, 1"),
    ],
)
def test_a_wrong_variable_is_one_line(changed: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError) as raised:
        read({**GOOD, **changed})
    assert str(raised.value) == line


PROGRAM = """
import os

import torch
import torch.distributed as dist

dist.init_process_group(
    "railx",
    init_method="file://" + os.path.abspath("store"),
    rank=int(os.environ["RANK"]),
    world_size=2,
)
tensor = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(tensor)
assert tensor.item() == 3, tensor
dist.destroy_process_group()
"""


def launched(
    folder: Path, program: str, variables: dict[str, str], ranks: int = 2
) -> list[subprocess.CompletedProcess[str]]:
    """Run the first of two ranks of a program, or both, where this package is
    installed.
    """
    installed = folder / "railx_lab-0.dist-info"
    installed.mkdir(exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: railx-lab\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["torch.backends"].items()
    (installed / "entry_points.txt").write_text(f"[torch.backends]\n{' = '.join(entry)}\n")
    (folder / "program.py").write_text(program)
    processes = [
        subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=folder,
            env=environment(folder, RANK=str(rank), **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ended = []
    for process in processes:
        output, error = process.communicate(timeout=120)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, output, error))
    return ended


def test_a_program_needs_only_variables(tmp_path: Path) -> None:
    variables = {
        "RAILX_FABRIC": "electrical",
        "RAILX_GPUS_PER_SERVER": "1",
        "RAILX_TRACE": str(tmp_path / "trace"),
        "RAILX_REPORT": "1",
    }
    for rank, process in enumerate(launched(tmp_path, PROGRAM, variables)):
        assert process.returncode == 0, process.stderr
        report = json.loads(process.stderr.splitlines()[-1])
        assert (report["rank"], report["requests"]) == (rank, 0)
        events = pq.read_table(tmp_path / "trace" / f"{rank}.parquet").to_pylist()
        assert [(event["rank"], event["kind"]) for event in events] == [(rank, "all_reduce")]


def on_demand(controller: Controller) -> dict[str, str]:
    assert controller.address is not None
    assert controller.token is not None
    return {
        "RAILX_FABRIC": "on_demand",
        "RAILX_CONTROLLER": controller.address,
        "RAILX_TOKEN": controller.token,
        "RAILX_GPUS_PER_SERVER": "1",
    }


LEFT_OPEN = """
import atexit
import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
store = dist.FileStore(os.path.abspath("store"), 2)
dist.init_process_group("railx", store=store, rank=rank, world_size=2)
tensor = torch.ones(1)
dist.all_reduce(tensor)


def at_end():
    # The other rank takes part, or hears that this one leaves, once the call is asked for.
    handle = dist.all_reduce(tensor, async_op=True)
    handle.get_future().then(lambda _: print("ended", flush=True))
    store.set("asked", "1")


if rank == 0:
    atexit.register(at_end)
else:
    store.wait(["asked"])
    dist.all_reduce(tensor)
"""


def test_a_program_may_end_with_a_group_and_an_operation_open(tmp_path: Path) -> None:
    settings = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 0)
    with launch_controller(settings, 2) as controller:
        zero, _ = launched(tmp_path, LEFT_OPEN, on_demand(controller))
    assert (zero.returncode, zero.stdout) == (0, "ended\n"), zero.stderr


AGAIN = """
import os
from datetime import timedelta

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
for use in range(3):
    store = "file://" + os.path.abspath(f"store{use}")
    limit = timedelta(seconds=60)
    dist.init_process_group("railx", timeout=limit, init_method=store, rank=rank, world_size=3)
    pair = dist.new_group([0, 1])
    for group, total in ((None, 6), (pair, 3), (None, 6))[: 3 - use]:
        tensor = torch.tensor([1.0 + rank])
        if group is None or rank < 2:
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == total, tensor
    dist.destroy_process_group()
"""


def test_a_program_may_create_groups_of_the_same_names_again(tmp_path: Path) -> None:
    settings = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 0)
    with launch_controller(settings, 3) as controller:
        variables = on_demand(controller) | {"RAILX_TRACE": str(tmp_path / "trace")}
        for process in launched(tmp_path, AGAIN, variables, ranks=3):
            assert process.returncode == 0, process.stderr
    for rank in range(3):
        events = pq.read_table(tmp_path / "trace" / f"{rank}.parquet").to_pylist()
        keys = [(event["channel"], event["sequence"]) for event in events if event["channel"]]
        assert len(keys) == (4 if rank == 2 else 6)
        assert len(set(keys)) == len(keys), keys


FOREIGN = """
import os
import torch
import {module}
assert {module}.MINE, {module}
"""


@pytest.mark.parametrize("file", ["railx.py", "railx/__init__.py"])
def test_a_program_may_have_a_module_called_railx(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("MINE = True\n")
    program = f"{FOREIGN.format(module='railx')}\nprint('imported', flush=True)\n{PROGRAM}"
    (process,) = launched(tmp_path, program, {"RAILX_FABRIC": "electrical"}, ranks=1)
    assert process.stdout == "imported\n", process.stderr
    assert process.stderr.splitlines()[-1] == (
        f"RuntimeError: railx: the backend is unavailable: import railx finds {path},"
        f" not {ROOT / 'railx'}; rename that module"
    )


def test_modules_that_the_backend_does_not_need_may_be_called_as_ours(tmp_path: Path) -> None:
    names = ("training", "workflow", "conf", "tests")
    for name in names:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    # A folder without __init__.py hides no package.
    (tmp_path / "railx").mkdir()
    program = "".join(FOREIGN.format(module=name) for name in names) + PROGRAM
    variables = {"RAILX_FABRIC": "electrical", "RAILX_GPUS_PER_SERVER": "1"}
    for process in launched(tmp_path, program, variables):
        assert process.returncode == 0, process.stderr


def test_a_torch_that_refuses_the_backend_is_imported_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no more backends")

    monkeypatch.setattr(dist.Backend, "register_backend", refuse)
    with pytest.warns(UserWarning, match="railx: the backend is unavailable: no more backends"):
        railx_torch.register()


def test_a_missing_variable_ends_the_program_in_one_line(tmp_path: Path) -> None:
    (process,) = launched(tmp_path, PROGRAM, {"RAILX_GPUS_PER_SERVER": "1"}, ranks=1)
    assert process.returncode != 0
    assert process.stderr.splitlines()[-1].endswith(
        "railx.errors.UserError: RAILX_FABRIC: is missing; allowed: electrical, on_demand,"
        " provisioned"
    )
