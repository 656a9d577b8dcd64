"""The backend between real processes: exact results, exact accounts, and errors instead
of hanging.

Two groups of processes (of two and of four ranks) run all scenarios of
backend_program.py once; the tests look at what they wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railx.fabric import FabricSettings, launch_controller
from railx_torch.backend import BackendOptions, begin_iteration
from tests.commands import environment

pytestmark = pytest.mark.system

PROGRAM = Path(__file__).with_name("backend_program.py")
LATENCY_NS = 50_000_000


def run(
    scenario: str, ranks: int, controllers: dict[str, int], folder: Path
) -> list[dict[str, Any]]:
    """Run a scenario; ``controllers``: the settings that need one, with their GPUs per
    server. Returns what each rank wrote.
    """
    with contextlib.ExitStack() as stack:
        addresses: dict[str, str | None] = {"electrical": None, "electrical:refusals": None}
        for name, gpus_per_server in controllers.items():
            mode: Any = name.partition(":")[0]
            settings = FabricSettings(gpus_per_server, "127.0.0.1", 0, 60, mode, 50)
            addresses[name] = stack.enter_context(launch_controller(settings, ranks)).address
        command = [sys.executable, str(PROGRAM), scenario]
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), str(folder), json.dumps(addresses)],
                env=environment(OMP_NUM_THREADS="1"),
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(
        "two",
        2,
        {"on_demand": 1, "on_demand:again": 1, "on_demand:messages": 1},
        tmp_path_factory.mktemp("two"),
    )


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    controllers = {
        "on_demand": 1,
        "provisioned": 1,
        "provisioned:wrong": 1,
        "on_demand:servers": 2,
        "on_demand:dies": 1,
    }
    return run("four", 4, controllers, tmp_path_factory.mktemp("four"))


def test_only_the_first_of_three_all_reduces_pays_the_latency(two: list[dict[str, Any]]) -> None:
    for written in two:
        rows = written["first_pays"]
        assert [row["values"] for row in rows] == [[3.0], [5.0], [7.0]]
        assert rows[0]["stall_ns"] >= LATENCY_NS
        assert [row["stall_ns"] for row in rows[1:]] == [0, 0]
        assert [row["reconfigurations"] for row in rows] == [1, 0, 0]
        assert [(row["requests"], row["held"]) for row in rows] == [(1, 0), (0, 1), (0, 1)]
        assert two[0]["first_pays"][0]["stall_ns"] == rows[0]["stall_ns"], (
            "the stall is the operation's, the same for its members"
        )


def test_the_trace_shows_the_stall_and_the_operations(two: list[dict[str, Any]]) -> None:
    for rank, written in enumerate(two):
        events = written["first_pays_trace"]
        assert [event["kind"] for event in events] == [
            "reconfiguration",
            "all_reduce",
            "all_reduce",
            "all_reduce",
        ]
        assert {(event["rank"], event["group"], event["phase"]) for event in events} == {
            (rank, "0,1", "ring 0,1")
        }
        assert [event["bytes"] for event in events] == [0, 4096, 4096, 4096]
        assert events[0]["end_ns"] - events[0]["start_ns"] == written["first_pays"][0]["stall_ns"]
        assert all(event["start_ns"] <= event["end_ns"] for event in events)
        assert all(one["end_ns"] <= other["start_ns"] for one, other in itertools.pairwise(events))


@pytest.mark.parametrize("mode", ["electrical", "on_demand:again"])
@pytest.mark.parametrize("where", ["collectives", "subgroup"])
def test_every_collective_gives_what_gloo_gives(
    two: list[dict[str, Any]], where: str, mode: str
) -> None:
    for written in two:
        found, of_gloo = dict(written[where][mode]), dict(written["plain"])
        if not of_gloo["all_to_all"]:
            # Gloo of torch 2.11 has no all-to-all of lists: nothing to compare with.
            del found["all_to_all"], of_gloo["all_to_all"]
        assert found == of_gloo


def test_every_collective_is_recorded(two: list[dict[str, Any]]) -> None:
    expected = {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "scatter",
    }
    for written in two:
        assert set(written["kinds"]["electrical"]) - {"send", "recv"} == expected
        assert set(written["kinds"]["on_demand:again"]) - {"send", "recv"} == expected | {
            "reconfiguration"
        }


def test_messages_in_both_directions_arrive_in_order_of_their_tag(
    two: list[dict[str, Any]],
) -> None:
    for rank, written in enumerate(two):
        assert written["messages"] == [[10.0 * (1 - rank) + number] for number in range(6)]
        assert written["batch"] == [float(1 - rank)]
        assert written["future"] == [1.0]
        assert written["message_events"] == [
            ["all_reduce", "0,1", "ring 0,1"],
            ["recv", "0,1", "pair 0,1"],
            ["send", "0,1", "pair 0,1"],
        ]
        assert written["message_bytes"] == 4 * 1000 * 21 + 4
        statistics = written["message_statistics"]
        # Fourteen messages over one circuit, then the ring that adds the second one.
        assert statistics["requests"] + statistics["held"] == 15
        assert statistics["requests"] < 15, "the circuit stays until the ring needs its ports"
        assert statistics["reconfigurations"] == 2
        assert statistics["phase_changes"] == 1


def test_what_cannot_be_done_is_refused_in_one_line(two: list[dict[str, Any]]) -> None:
    for rank, written in enumerate(two):
        assert "destroy_process_group before configure" in written["configure_while_open"]
        assert "allowed: none in mode electrical" in written["controller_in_electrical"]
        assert (
            written["wrong_rank"]
            == f"railx: configured for rank {rank + 1}, but this process is rank {rank}"
        )


def test_all_modes_compute_the_same(four: list[dict[str, Any]]) -> None:
    for written in four:
        values = [row["values"] for row in written["electrical"]]
        for mode in ("on_demand", "provisioned", "servers"):
            assert [row["values"] for row in written[mode]] == values
    halves, world = four[3]["electrical"][0]["values"][0], four[3]["electrical"][0]["values"][2]
    assert (halves, world) == ([7.0, 4.0], [10.0, 8.0])


def test_electrical_mode_never_asks(four: list[dict[str, Any]]) -> None:
    nothing = {
        "requests": 0,
        "reconfigurations": 0,
        "stall_ns": 0,
        "wait_ns": 0,
        "mispredictions": 0,
    }
    for written in four:
        assert all(nothing.items() <= row.items() for row in written["electrical"])


def test_schedule_is_the_order_of_operations(four: list[dict[str, Any]]) -> None:
    for rank, written in enumerate(four):
        half = "ring 0,1" if rank < 2 else "ring 2,3"
        assert written["schedule"] == {
            str(iteration): [half, half, "ring 0,1,2,3", "ring 0,1,2,3"] for iteration in range(3)
        }


def test_on_demand_pays_at_every_change_of_phase(four: list[dict[str, Any]]) -> None:
    for written in four:
        rows = written["on_demand"]
        assert [
            (row["requests"], row["held"], row["reconfigurations"], row["mispredictions"])
            for row in rows
        ] == [(2, 2, 2, 0)] * 3
        assert [row["phase_changes"] for row in rows] == [1, 2, 2]
        assert all(row["stall_ns"] >= 2 * LATENCY_NS for row in rows)
        stalls = [
            event for event in written["on_demand_trace"] if event["kind"] == "reconfiguration"
        ]
        assert [event["iteration"] for event in stalls] == [0, 0, 1, 1, 2, 2]
        assert sum(event["end_ns"] - event["start_ns"] for event in stalls) == sum(
            row["stall_ns"] for row in rows
        )


def test_provisioned_hides_what_the_window_covers(four: list[dict[str, Any]]) -> None:
    for written in four:
        rows = written["provisioned"]
        assert [
            (row["requests"], row["held"], row["reconfigurations"], row["mispredictions"])
            for row in rows
        ] == [(2, 2, 2, 0)] * 3
        assert [row["phase_changes"] for row in rows] == [1, 2, 2]
        # The change within the iteration was announced and the window waited for it;
        # the one at its start is not announced.
        stalls = [
            event for event in written["provisioned_trace"] if event["kind"] == "reconfiguration"
        ]
        assert [event["iteration"] for event in stalls] == [0, 1, 2]
        assert {event["phase"] for event in stalls} <= {"ring 0,1", "ring 2,3"}
        assert all(row["stall_ns"] >= LATENCY_NS for row in rows)


def test_a_wrong_announcement_is_counted_and_changes_no_result(four: list[dict[str, Any]]) -> None:
    for written in four:
        assert [row["values"] for row in written["wrong_schedule"]] == [
            row["values"] for row in written["electrical"]
        ]
        assert [row["mispredictions"] for row in written["wrong_schedule"]] == [0, 1, 0]


def test_groups_within_a_server_never_ask(four: list[dict[str, Any]]) -> None:
    for written in four:
        assert [
            (row["requests"], row["held"], row["reconfigurations"]) for row in written["servers"]
        ] == [(1, 1, 1), (0, 2, 0), (0, 2, 0)]


def test_a_rank_that_dies_is_an_error_for_the_others(four: list[dict[str, Any]]) -> None:
    for written in four[:-1]:
        assert written["death"].startswith(
            "railx: all_reduce of ranks 0, 1, 2, 3 failed: rank 3 lost its connection to the"
            " controller"
        )
        assert "\n" not in written["death"]


def test_nothing_works_before_configure() -> None:
    with pytest.raises(RuntimeError, match=r"call railx_torch\.backend\.configure"):
        begin_iteration(0)


def test_optical_modes_need_a_controller() -> None:
    with pytest.raises(
        ValueError, match="allowed: none in mode electrical, host:port in the other modes"
    ):
        BackendOptions("gloo", None, "on_demand", 1)
