"""examples/fsdp_pipeline.py, unmodified: over railx it trains as over gloo, changes its
phase as often as published, and its cycle is found and announced without a mistake.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from railx.fabric import FabricSettings, launch_controller
from tests.builders import ROOT
from tests.commands import environment, python

# A minute, or several where other work shares the processors.
pytestmark = pytest.mark.system

PROGRAM = Path(__file__).with_name("example_program.py")
ITERATIONS = 6
#: Iterations until a cycle was seen twice, the first one being different.
LEARNT = 4
#: By micro-batches, for each rank and iteration. Six with two is published (Opus).
PHASE_CHANGES = {2: 6, 4: 10}
SETTINGS = [
    (mode, micro_batches)
    for micro_batches in PHASE_CHANGES
    for mode in ("gloo", "on_demand", "provisioned")
]
OVER_RAILX = [setting for setting in SETTINGS if setting[0] != "gloo"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote."""
    folder = tmp_path_factory.mktemp("example")
    settings = []
    with contextlib.ExitStack() as stack:
        for mode, micro_batches in SETTINGS:
            # The store of the last setting may still be there.
            variables = {"MASTER_PORT": str(free_port())}
            if mode != "gloo":
                fabric = FabricSettings(1, "127.0.0.1", 0, 60, cast("Any", mode), 5)
                address = stack.enter_context(launch_controller(fabric, 4)).address
                assert address is not None
                variables |= {"RAILX_CONTROLLER": address, "RAILX_FABRIC": mode}
                variables |= {"RAILX_GPUS_PER_SERVER": "1"}
            settings.append(
                {
                    "name": f"{mode} {micro_batches}",
                    "backend": "gloo" if mode == "gloo" else "railx",
                    "micro_batches": micro_batches,
                    "iterations": ITERATIONS,
                    "variables": variables,
                }
            )
        launched = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
        variables = environment(**launched)
        done = python(PROGRAM, folder, json.dumps(settings), env=variables)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def test_the_example_imports_nothing_of_this_project() -> None:
    text = (ROOT / "examples" / "fsdp_pipeline.py").read_text()
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    assert imported <= {"__future__", "argparse", "json", "os", "torch"}


def per_iteration(written: dict[str, Any], name: str) -> list[int]:
    """How much a count grew in each iteration but the first, which differs."""
    counts = [row[name] for row in written["counts"]]
    return [after - before for before, after in itertools.pairwise(counts)]


@pytest.mark.parametrize(("mode", "micro_batches"), OVER_RAILX)
def test_it_trains_as_over_gloo(
    written: list[dict[str, Any]], mode: str, micro_batches: int
) -> None:
    over_gloo = json.loads(written[3][f"gloo {micro_batches}"]["printed"])["losses"]
    over_railx = json.loads(written[3][f"{mode} {micro_batches}"]["printed"])["losses"]
    assert over_railx == over_gloo
    assert len(over_gloo) == ITERATIONS
    assert over_gloo[-1] < over_gloo[0] / 2


@pytest.mark.parametrize(("mode", "micro_batches"), OVER_RAILX)
def test_phase_changes_are_those_published(
    written: list[dict[str, Any]], mode: str, micro_batches: int
) -> None:
    for of_rank in written:
        run = of_rank[f"{mode} {micro_batches}"]
        expected = [PHASE_CHANGES[micro_batches]] * (ITERATIONS - 1)
        assert per_iteration(run, "phase_changes") == expected


@pytest.mark.parametrize(("mode", "micro_batches"), OVER_RAILX)
def test_circuits_are_switched_as_often_as_the_phase_changes(
    written: list[dict[str, Any]], mode: str, micro_batches: int
) -> None:
    """However late a rank is: a collective lets the messages before it go first."""
    for of_rank in written:
        run = of_rank[f"{mode} {micro_batches}"]
        expected = [PHASE_CHANGES[micro_batches]] * (ITERATIONS - 1)
        assert per_iteration(run, "reconfigurations") == expected


@pytest.mark.parametrize("micro_batches", PHASE_CHANGES)
def test_the_cycle_is_found_and_announced_without_a_mistake(
    written: list[dict[str, Any]], micro_batches: int
) -> None:
    for rank, of_rank in enumerate(written):
        run = of_rank[f"provisioned {micro_batches}"]
        assert run["phase_changes"] == PHASE_CHANGES[micro_batches]
        assert per_iteration(run, "mispredictions")[LEARNT - 1 :] == [0] * (ITERATIONS - LEARNT)
        cycle = run["cycle"]
        peer, other = rank ^ 1, rank ^ 2
        ring, pair = (
            "ring " + ",".join(map(str, sorted((rank, peer)))),
            "pair " + ",".join(map(str, sorted((rank, other)))),
        )
        assert set(cycle) == {ring, pair}
        # Each micro-batch goes to the next stage and its gradient comes back.
        assert cycle.count(pair) == 2 * micro_batches
        # Three units (two layers and the rest) are gathered for the forward pass of
        # each micro-batch and again for its backward pass, as far as they were
        # resharded in between, and reduced once.
        assert (len(cycle) - cycle.count(pair) - int(rank >= 2)) % 3 == 0


def test_nothing_is_announced_on_demand(written: list[dict[str, Any]]) -> None:
    for of_rank in written:
        assert of_rank["on_demand 2"]["cycle"] == []
