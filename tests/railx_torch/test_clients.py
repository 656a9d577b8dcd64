"""Clients of torch.distributed over railx have the losses that they have over gloo.

Torchrun restarts a killed rank, with both forms of rendezvous, and a checkpoint of DCP
goes on. Lightning Fabric, accelerate and transformers are the extra ``clients``.
"""

from __future__ import annotations

import json
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

from railx.fabric import FabricSettings, launch_controller
from tests.commands import environment, python

pytestmark = pytest.mark.system

_PROGRAM = Path(__file__).with_name("clients_program.py")
_RANKS = 3
_PACKAGES = {
    "fabric": "lightning_fabric", "accelerate": "accelerate", "trainer": "transformers"
}  # fmt: skip


def trained(
    folder: Path, client: str, backend: str, *options: str, **variables: str
) -> dict[str, Any]:
    (folder / "saved").mkdir(parents=True)
    done = python(
        *("-m", "torch.distributed.run", "--nproc-per-node", str(_RANKS), *options),
        *(_PROGRAM, client, backend, folder),
        env=environment(OMP_NUM_THREADS="1", **variables),
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads((folder / f"{client}.json").read_text())
    assert said["backend"] == backend
    return said


def options_of(rendezvous: str) -> tuple[str, ...]:
    if rendezvous == "c10d":
        return ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return ("--master-addr", "127.0.0.1", "--master-port", str(port))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("whole") / "gloo", "restarted", "gloo", "--standalone")


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_a_killed_rank_is_restarted_and_goes_on(
    rendezvous: str, whole: dict[str, Any], tmp_path: Path
) -> None:
    fabric = FabricSettings(1, "127.0.0.1", 0, 60, cast("Any", "on_demand"), 1)
    with launch_controller(fabric, _RANKS) as controller:
        again = trained(
            *(tmp_path / "railx", "restarted", "railx"),
            *(*options_of(rendezvous), "--max-restarts", "1"),
            KILL="1", RAILX_FABRIC="on_demand", RAILX_GPUS_PER_SERVER="1",
            RAILX_CONTROLLER=controller.address or "",
        )  # fmt: skip
    assert (whole["restarts"], again["restarts"]) == (0, 1)
    assert again["losses"] == whole["losses"]


@pytest.mark.parametrize("client", _PACKAGES)
def test_a_client_has_the_losses_of_gloo(client: str, tmp_path: Path) -> None:
    if find_spec(_PACKAGES[client]) is None:
        pytest.skip(f"{_PACKAGES[client]} is not installed (extra clients)")
    gloo = trained(tmp_path / "gloo", client, "gloo", "--standalone")
    railx = trained(
        tmp_path / "railx", client, "railx", "--standalone", RAILX_FABRIC="electrical"
    )  # fmt: skip
    assert railx["losses"] == gloo["losses"]
    assert len(set(gloo["losses"])) > 1
