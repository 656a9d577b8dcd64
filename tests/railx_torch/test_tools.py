"""Torch's tools see the same operations over railx as over gloo; the options of a new
group reach the inner backend, or are refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

import railx_torch
from railx.errors import UserError
from railx.fabric import FabricSettings, launch_controller
from railx_torch import backend
from railx_torch.process_group import RailxProcessGroup
from railx_torch.session import BackendOptions, Session
from railx_torch.trace import Recorder
from tests.commands import environment

_PROGRAM = Path(__file__).with_name("tools_program.py")
_RANKS = 2


def _seen(folder: Path, backend: str, **variables: str) -> list[dict[str, Any]]:
    outs = [folder / f"{backend}{rank}.json" for rank in range(_RANKS)]
    store = folder / f"{backend}.store"
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, str(_PROGRAM), str(rank), str(_RANKS)),
                *(str(store), backend, str(out)),
            ],
            env=environment(OMP_NUM_THREADS="1", **variables),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.system
def test_modes_and_the_profiler_see_what_they_see_on_gloo(tmp_path: Path) -> None:
    gloo = _seen(tmp_path, "gloo")
    assert all(gloo[0][name]["counts"] for name in ("collectives", "functionals", "tensors"))
    assert all(gloo[0][name]["operators"] for name in ("collectives", "messages"))
    assert all(case["events"] for case in gloo[0].values())
    fabric = FabricSettings(1, "127.0.0.1", 0, 60, cast("Any", "on_demand"), 1)
    with launch_controller(fabric, _RANKS) as controller:
        variables = {"RAILX_FABRIC": "on_demand", "RAILX_GPUS_PER_SERVER": "1"}
        railx = _seen(tmp_path, "railx", RAILX_CONTROLLER=controller.address or "", **variables)
    for seen, expected in zip(railx, gloo, strict=True):
        for name, case in expected.items():
            assert seen[name] == case, name


_distributed: Any = dist


def _group(pg_options: Any) -> RailxProcessGroup:
    options = SimpleNamespace(
        store=_distributed.HashStore(),
        group_rank=0,
        group_size=1,
        group_id="alone",
        global_ranks_in_group=[0],
        timeout=timedelta(seconds=60),
    )
    session = Session(BackendOptions("gloo", None, "electrical", 1), Recorder(0, keep=False))
    return RailxProcessGroup(options, session, pg_options)


def test_options_of_the_inner_backend_reach_it() -> None:
    options = _distributed.ProcessGroupGloo._Options()
    options._devices = [_distributed.ProcessGroupGloo.create_default_device()]
    options._threads = 3
    group = _group(options)
    inner = group._inner._get_backend(torch.device("cpu"))
    assert inner.options._threads == 3
    assert inner.options._timeout == timedelta(seconds=60)
    group.shutdown()


@pytest.mark.parametrize("pg_options", [{"threads": 3}, object()])
def test_other_options_are_refused_in_one_line(pg_options: Any) -> None:
    with pytest.raises(UserError) as refused:
        _group(pg_options)
    line = str(refused.value)
    assert line.startswith("pg_options: got builtins.")
    assert "allowed: None, or options of ProcessGroupGloo" in line
    assert "\n" not in line


def test_torch_hands_the_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(backend, "create_group", lambda *arguments: given.append(arguments))
    railx_torch._create_group("group", "options")
    assert given == [("group", "options")]
