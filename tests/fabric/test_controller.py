"""The controller as a process, with real sockets: accounts, errors, and an end for
everybody.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railx.fabric import (
    Configuration,
    Controller,
    FabricClient,
    FabricError,
    FabricSettings,
    Grant,
    RailSettings,
    launch_controller,
)
from railx.fabric.launch import go_first, priority_of
from railx.fabric.protocol import MessageDecoder, encode
from railx.settings import SettingsError, load, to_dict
from tests.builders import ROOT, choice
from tests.commands import loaded, python

SETTINGS = FabricSettings(
    mode="on_demand",
    reconfiguration_latency_ms=50,
    gpus_per_server=1,
    host="127.0.0.1",
    port=0,
    timeout_s=60,
)
LATENCY_NS = 50_000_000
PAIR = Configuration("ring", (0, 1))


@pytest.fixture
def controller() -> Iterator[Controller]:
    with launch_controller(SETTINGS, 4) as running:
        yield running


def connect(controller: Controller, rank: int) -> FabricClient:
    assert controller.address is not None
    return FabricClient(controller.address, rank, gpus_per_server=1)


def together(*calls: Callable[[], Grant]) -> list[Grant | Exception]:
    """Make blocking calls at the same time; their answers or errors, in order."""
    results: list[Grant | Exception] = [RuntimeError("no answer")] * len(calls)

    def make(place: int) -> None:
        try:
            results[place] = calls[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=make, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def grants(results: list[Grant | Exception]) -> list[Grant]:
    assert all(isinstance(result, Grant) for result in results), results
    return [result for result in results if isinstance(result, Grant)]


def test_first_operation_pays_the_latency_and_the_next_ones_do_not(controller: Controller) -> None:
    with connect(controller, 0) as zero, connect(controller, 1) as one:
        stalls = []
        for number in range(3):
            answers = grants(
                together(
                    *(lambda c=client, n=number: c.acquire("g", n, PAIR) for client in (zero, one))
                )
            )
            assert answers[0].stall_ns == answers[1].stall_ns
            stalls.append(answers[0].stall_ns)
            zero.release("g", number)
            one.release("g", number)
        assert stalls[0] >= LATENCY_NS
        assert stalls[1:] == [0, 0]
        statistics = zero.statistics()
        assert (statistics["requests"], statistics["grants"], statistics["reconfigurations"]) == (
            6,
            6,
            1,
        )
        assert statistics["rails"] == {"0": {"generation": 1, "circuits": [[0, 1], [1, 0]]}}


def test_a_rank_that_vanishes_is_an_error_for_those_who_wait(controller: Controller) -> None:
    with connect(controller, 0) as zero, connect(controller, 2) as two:
        raw = socket.create_connection(controller.address.rsplit(":", 1))  # type: ignore[union-attr]
        raw.sendall(
            encode("REGISTER", rank=1, gpus_per_server=1, incarnation=1, token=controller.token)
        )
        assert MessageDecoder().feed(raw.recv(4096))[0]["type"] == "REGISTERED"

        def wait_for_the_dead() -> Grant:
            return zero.acquire("w", 0, Configuration("ring", (0, 1, 2)))

        def die() -> Grant:
            # Rank 2's question is answered at once, so rank 0 or 2 has asked when the
            # connection is cut.
            two.statistics()
            raw.close()
            return two.acquire("w", 0, Configuration("ring", (0, 1, 2)))

        for result in together(wait_for_the_dead, die):
            assert isinstance(result, FabricError)
            assert "rank 1 lost its connection to the controller" in str(result)
            assert "\n" not in str(result)
        # The others can still work with each other.
        rest = Configuration("ring", (0, 2))
        grants(together(lambda: zero.acquire("r", 0, rest), lambda: two.acquire("r", 0, rest)))


def test_waiting_too_long_is_an_error_that_names_who_is_missing(controller: Controller) -> None:
    with (
        connect(controller, 0) as zero,
        pytest.raises(FabricError, match=r"rank 0 gave up .*: rank 1 has not asked for it"),
    ):
        zero.acquire("g", 0, PAIR, timeout_s=0.01)


def test_an_orderly_end_is_named_too(controller: Controller) -> None:
    with connect(controller, 0) as zero:
        connect(controller, 1).close()
        # The controller takes its connections in no order, so the question may come
        # before or after the other's goodbye.
        with pytest.raises(FabricError, match=r"rank 1 has left"):
            zero.acquire("g", 0, PAIR)


@pytest.mark.parametrize(
    ("rank", "gpus_per_server", "reason"),
    [
        (4, 1, "rank 4 registered; allowed: 0 to 3"),
        (0, 2, "rank 0 has gpus_per_server 2; allowed: 1, as the controller"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused(
    controller: Controller, rank: int, gpus_per_server: int, reason: str
) -> None:
    assert controller.address is not None
    with pytest.raises(FabricError, match=reason):
        FabricClient(controller.address, rank, gpus_per_server=gpus_per_server)


def test_rubbish_is_answered_and_does_not_disturb_the_others(controller: Controller) -> None:
    with connect(controller, 0) as zero:
        with pytest.raises(FabricError, match="rank 0 is already registered"):
            connect(controller, 0)
        for rubbish in (
            b"\xff" * 8,
            encode("ACQUIRE", request=1),
            encode("REGISTER", rank="x", gpus_per_server=1),
        ):
            raw = socket.create_connection(controller.address.rsplit(":", 1))  # type: ignore[union-attr]
            raw.sendall(rubbish)
            assert MessageDecoder().feed(raw.recv(4096))[0]["type"] == "ERROR"
            raw.close()
        assert zero.statistics()["requests"] == 0


def test_the_end_of_the_controller_ends_every_wait(controller: Controller) -> None:
    with connect(controller, 0) as zero, connect(controller, 1) as one:
        result = together(
            lambda: zero.acquire("g", 0, PAIR),
            lambda: (one._write(encode("SHUTDOWN")), one.acquire("h", 0, PAIR))[1],
        )
        assert all(
            isinstance(error, FabricError) and "controller" in str(error) for error in result
        )
        with pytest.raises(FabricError):
            zero.acquire("g", 1, PAIR)


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError) as error,
            launch_controller(dataclasses.replace(SETTINGS, port=port), 2),
        ):
            pass
    assert (
        str(error.value)
        == f"fabric.port: port {port} of 127.0.0.1 cannot be had (Address already in use); allowed:"
        " a free port, or 0 for any free one"
    )


def test_a_host_that_is_not_here_is_one_clear_line() -> None:
    with (
        pytest.raises(SettingsError, match=r"^fabric\.host: "),
        launch_controller(dataclasses.replace(SETTINGS, host="192.0.2.1"), 2),
    ):
        pass


def test_a_lease_that_lasts_costs_no_message_until_it_is_recalled(controller: Controller) -> None:
    other = Configuration("ring", (1, 2))
    late: list[tuple[str, int, Grant]] = []
    told = threading.Event()

    def granted_late(channel: str, sequence: int, grant: Grant) -> None:
        late.append((channel, sequence, grant))
        told.set()

    assert controller.address is not None
    zero = FabricClient(controller.address, 0, gpus_per_server=1, granted_late=granted_late)
    with zero, connect(controller, 1) as one, connect(controller, 2) as two:
        assert not zero.begin("g", 0, PAIR), "nothing is held before the first grant"
        grants(together(*(lambda c=c: c.acquire("g", 0, PAIR) for c in (zero, one))))
        for number in range(1, 5):
            for client in (zero, one):
                assert client.begin("g", number, PAIR)
                client.release("g", number)
        for client in (zero, one):
            client.release("g", 0)
        assert zero.statistics()["requests"] == 2
        # Rank 0 begins alone, and a third rank needs a port of its peer.
        assert zero.begin("g", 5, PAIR)
        grants(together(*(lambda c=c: c.acquire("h", 0, other) for c in (one, two))))
        assert not one.begin("g", 5, PAIR)
        for client in (one, two):
            client.release("h", 0)
        assert one.acquire("g", 5, PAIR).reconfigured == 1
        assert told.wait(SETTINGS.timeout_s)
        assert [(channel, number) for channel, number, _ in late] == [("g", 5)]
        assert late[0][2].stall_ns >= LATENCY_NS
        statistics = two.statistics()
        # Four operations of each member, and two questions for the lease.
        assert (statistics["held"], statistics["recalls"]) == (8, 4)


def test_times_are_durations_of_the_controllers_clock_alone(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of another host have a clock that began at another time."""
    moment = time.monotonic_ns()
    with connect(controller, 0) as zero, connect(controller, 1) as one:
        monkeypatch.setattr("railx.fabric.client.time.monotonic_ns", lambda: 5)
        answers = grants(together(*(lambda c=c: c.acquire("g", 0, PAIR) for c in (zero, one))))
    assert [answer.granted_ns for answer in answers] == [5, 5]
    assert all(LATENCY_NS <= answer.stall_ns < moment for answer in answers)


def test_a_token_is_wanted_where_the_controller_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAILX_TOKEN", "sesame")
    with launch_controller(SETTINGS, 2) as running:
        assert running.address is not None
        for token, what in (("", "another token"), ("wrong", "another token")):
            with pytest.raises(FabricError, match=f"with {what}; allowed: RAILX_TOKEN") as error:
                FabricClient(running.address, 0, gpus_per_server=1, token=token)
            assert "sesame" not in str(error.value)
        with FabricClient(running.address, 0, gpus_per_server=1, token="sesame") as client:
            assert client.ranks == 2


def test_a_controller_makes_a_token_where_there_is_none_and_says_how_to_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everywhere = dataclasses.replace(SETTINGS, host="0.0.0.0")
    monkeypatch.delenv("RAILX_TOKEN", raising=False)
    with launch_controller(everywhere, 2) as running:
        assert running.address is not None
        assert not running.address.startswith("0.0.0.0")
        assert running.token is not None
        assert len(running.token) >= 16
        with pytest.raises(FabricError, match="with another token"):
            FabricClient(running.address, 1, gpus_per_server=1, token="")
        with FabricClient(running.address, 1, gpus_per_server=1) as client:
            assert client.statistics()["requests"] == 0


def test_electrical_fabric_has_no_controller() -> None:
    with launch_controller(
        dataclasses.replace(SETTINGS, mode="electrical", reconfiguration_latency_ms=0), 2
    ) as running:
        assert running == Controller(None)
        assert running.processes == ()


def test_a_running_controller_names_its_process(controller: Controller) -> None:
    """Its work is the training's own, wherever processor time is counted."""
    assert controller.process is not None
    assert controller.processes == (controller.process.pid,)


def test_nobody_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(FabricError, match=f"no controller answers at 127.0.0.1:{port}"):
        FabricClient(f"127.0.0.1:{port}", 0, gpus_per_server=1)
    with pytest.raises(FabricError, match="allowed: host:port"):
        FabricClient("nowhere", 0, gpus_per_server=1)


def test_command_line_explains_itself_and_refuses_bad_settings() -> None:
    shown = python("-m", "railx.fabric.controller", "--help")
    assert (shown.returncode, "example:" in shown.stdout) == (0, True)
    settings = dataclasses.asdict(SETTINGS) | {"mode": "magic"}
    bad = python(
        "-m", "railx.fabric.controller", "--ranks", "2", "--settings", json.dumps(settings)
    )
    assert bad.returncode == 2
    assert bad.stderr == "fabric.mode: got 'magic'; allowed: electrical, on_demand, provisioned\n"


def test_electrical_fabric_has_no_latency() -> None:
    with pytest.raises(SettingsError, match="reconfiguration_latency_ms"):
        dataclasses.replace(SETTINGS, mode="electrical")


def test_the_room_needs_the_standard_library_alone() -> None:
    heavy = {"numpy", "pandas", "pyarrow", "torch", "yaml"}
    assert loaded("import railx.fabric, railx.fabric.controller", heavy) == set()


def test_the_file_of_conf_lists_the_settings_that_no_sweep_makes() -> None:
    plain = choice("fabric", "rails")
    assert load(RailSettings, plain, "fabric") == RailSettings(1, "127.0.0.1", 0, 120)
    with pytest.raises(SettingsError, match=r"fabric\.mode: unknown key; allowed: gpus_per_server"):
        load(RailSettings, plain | {"mode": "on_demand"}, "fabric")


def _may_go_first() -> bool:
    """Whether the system lets a process of this user run before others."""
    code = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    return python("-c", code).returncode == 0


def _schedulers(process: int) -> set[int]:
    """How the system schedules the threads of a process."""
    return {os.sched_getscheduler(int(one.name)) for one in Path(f"/proc/{process}/task").iterdir()}


def test_a_controller_runs_before_others_where_it_shall_and_may() -> None:
    first = dataclasses.replace(
        SETTINGS, controller_priority="real_time", reconfiguration_latency_ms=1
    )
    with launch_controller(first, 2) as running:
        with connect(running, 0) as zero, connect(running, 1) as one:
            grants(together(*(lambda c=c: c.acquire("g", 0, PAIR) for c in (zero, one))))
            assert running.process is not None
            # Those of the switch, too.
            wanted = os.SCHED_RR if _may_go_first() else os.sched_getscheduler(0)
            assert _schedulers(running.process.pid) == {wanted}
        assert running.priority == ("real_time" if wanted == os.SCHED_RR else "normal")


@pytest.mark.parametrize("error", [PermissionError(1, ""), OSError(38, ""), AttributeError("")])
def test_a_system_without_such_priorities_changes_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "sched_getscheduler", refuse)
    go_first()
    assert priority_of() == "normal"


def test_a_controller_is_as_any_process_by_default(controller: Controller) -> None:
    assert controller.priority == "normal"


@pytest.mark.skipif(not _may_go_first(), reason="nothing to take away: the test before is this")
def test_a_controller_without_the_capability_serves_as_any_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAILX_TOKEN", "sesame")
    settings = {**to_dict(SETTINGS), "controller_priority": "real_time"}
    command = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", sys.executable]
    command += ["-m", "railx.fabric.controller", "--until-stdin-closes", "--ranks", "2"]
    with subprocess.Popen(
        [*command, "--settings", json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with FabricClient(f"{told['host']}:{told['port']}", 0, gpus_per_server=1):
            assert _schedulers(process.pid) == {os.sched_getscheduler(0)}
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
