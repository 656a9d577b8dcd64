"""Torch's tools see the same operations over railx as over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from railx.fabric import FabricSettings, launch_controller
from tests.commands import environment

pytestmark = pytest.mark.system

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
