"""Peers that hang, crowd, stay silent or read nothing, and a controller that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from railx.fabric import (
    Configuration,
    FabricClient,
    FabricError,
    FabricSettings,
    launch_controller,
)
from railx.fabric.circuits import Port
from railx.fabric.controller import serve
from railx.fabric.observer import Observer, ObserverError
from railx.fabric.protocol import TOKEN, MessageDecoder, encode
from railx.fabric.serving import base
from railx.fabric.serving.base import OBSERVERS
from railx.fabric.settings import EmulatedSwitchSettings
from railx.settings import SettingsError, to_dict
from tests.commands import environment
from tests.fabric.raw import answers, register, stranger

SETTINGS = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 0)
IMPATIENT = dataclasses.replace(SETTINGS, timeout_s=3, heartbeat_s=1)
PAIR = Configuration("ring", (0, 1))


def test_who_says_nothing_is_not_waited_for() -> None:
    """Neither a stranger nor a rank that has stopped; those who answer stay."""
    with launch_controller(IMPATIENT, 2) as controller:
        assert controller.address is not None
        with FabricClient(controller.address, 0, gpus_per_server=1) as zero:
            silent = stranger(controller)
            stopped = register(controller, 1)
            with pytest.raises(FabricError, match=r"rank 1 has been silent for 3 s"):
                zero.acquire("g", 0, PAIR, timeout_s=60)
            (told,) = answers(silent)
            assert told["reason"] == "silent_stranger"
            assert {answer["type"] for answer in answers(stopped)} == {"PING"}
            refusals = zero.statistics()["refusals"]
            assert (refusals["silent_stranger"], refusals["silent"]) == (1, 1)


def test_who_reads_nothing_is_cut_off_and_its_peers_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "MAXIMUM_UNREAD_BYTES", 1 << 16)

    async def story() -> dict[str, object]:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[int] = loop.create_future()
        serving = asyncio.ensure_future(
            serve(SETTINGS, 2, token="t", ready=lambda _, port: ready.set_result(port))
        )
        port = await ready

        async def rank(number: int) -> socket.socket:
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
            said = encode("REGISTER", rank=number, gpus_per_server=1, token="t", incarnation=1)
            await loop.sock_sendall(peer, said)
            await loop.sock_recv(peer, 4096)
            return peer

        deaf, other = await rank(1), await rank(0)
        waits = encode("ACQUIRE", request=1, channel="g", sequence=0, kind="ring", members=[0, 1])
        await loop.sock_sendall(other, waits)
        asks = b"".join(encode("STATS", request=number) for number in range(200))
        with contextlib.suppress(ConnectionError):
            while True:
                await loop.sock_sendall(deaf, asks)
        decoder, heard = MessageDecoder(), list[dict[str, object]]()
        while not heard:
            messages = decoder.feed(await loop.sock_recv(other, 4096))
            # On a busy machine it is asked for a sign of life before.
            heard = [message for message in messages if message["type"] != "PING"]
        (told,) = heard
        assert (told["type"], told["request"]) == ("ERROR", 1)
        assert "rank 1 does not read what the controller sends" in told["message"]
        await loop.sock_sendall(other, encode("SHUTDOWN"))
        statistics = await serving
        for peer in (deaf, other):
            peer.close()
        return statistics

    assert asyncio.run(story())["refusals"] == {"does_not_read": 1, "lost": 1}


def start(settings: FabricSettings, before: str = "") -> subprocess.Popen[str]:
    """A controller of two ranks with the token "t", after some lines of its own."""
    code = f"import resource, sys\nfrom railx.fabric.controller import main\n{before}\n"
    arguments = ["--ranks", "2", "--settings", json.dumps(to_dict(settings))]
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}sys.exit(main({arguments!r}))"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**{TOKEN: "t"}),
    )


def address(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    return told["host"], told["port"]


@pytest.mark.parametrize(
    ("taken", "reason"),
    [(0, "too_many_connections"), (30, "no_descriptor")],
)
def test_more_connections_than_it_can_hold_are_survived(taken: int, reason: str) -> None:
    """Bounded by the limit of descriptors, and when those are gone all the same."""
    limits = "resource.setrlimit(resource.RLIMIT_NOFILE, (44, 44))"
    files = f"kept = [open('/dev/null') for _ in range({taken})]"
    process = start(SETTINGS, f"{limits}\n{files}")
    with contextlib.ExitStack() as crowd:
        place = address(process)
        crowded = [crowd.enter_context(socket.create_connection(place)) for _ in range(40)]
        host, port = place
        with FabricClient(f"{host}:{port}", 0, gpus_per_server=1, token="t") as client:
            assert client.statistics()["refusals"][reason] > 0
            # The oldest made place, not the newest.
            crowded[0].settimeout(60)
            assert MessageDecoder().feed(crowded[0].recv(4096))[0]["reason"] == reason
            client._write(encode("SHUTDOWN"))
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    # Each is counted, few are told of.
    assert 1 <= said.count(f"refused ({reason}") <= 8


def test_a_mistake_of_its_own_ends_it_with_a_word_and_a_code() -> None:
    broken = "from railx.fabric.core import ControllerCore\nControllerCore.hint = None"
    process = start(SETTINGS, broken)
    host, port = address(process)
    client = FabricClient(f"{host}:{port}", 0, gpus_per_server=1, token="t")
    client.prepare(PAIR)
    said = process.communicate(timeout=60)[1]
    client.close()
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("the controller broke down: TypeError(")
    assert "Traceback" in said


def test_a_socket_file_serves_one_user_and_one_controller(tmp_path: Path) -> None:
    path = tmp_path / "controller"
    local = dataclasses.replace(SETTINGS, host=f"unix:{path}")
    with launch_controller(local, 2) as controller:
        assert controller.address == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with FabricClient(controller.address, 0, gpus_per_server=1) as client:
            assert client.ranks == 2
        with (
            pytest.raises(SettingsError, match=r"^fabric\.host: cannot listen on unix:.*in use"),
            launch_controller(local, 2),
        ):
            pass
        assert controller.process is not None
        os.kill(controller.process.pid, signal.SIGKILL)
        controller.process.wait()
        # The file of a dead one is in nobody's way.
        with launch_controller(local, 2):
            pass
    assert not path.exists()
    with pytest.raises(SettingsError, match=r"port: got 7; allowed: 0 where host"):
        dataclasses.replace(local, port=7)


def test_nobody_takes_the_port_while_the_controller_is_down() -> None:
    with launch_controller(SETTINGS, 2) as controller, socket.socket() as other:
        assert controller.process is not None
        assert controller.address is not None
        controller.process.kill()
        controller.process.wait()
        host, _, port = controller.address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        with pytest.raises(OSError, match="Address already in use"):
            other.bind((host, int(port)))
        controller.restart()
        with FabricClient(controller.address, 0, gpus_per_server=1) as client:
            assert client.ranks == 2


def test_a_run_goes_on_after_the_controller_was_killed_and_started_again(tmp_path: Path) -> None:
    """An operation under way, a lease that lasts and an open question survive it."""
    switch = EmulatedSwitchSettings(state_file=str(tmp_path / "light"))
    keeps = dataclasses.replace(SETTINGS, switch=switch)
    other = Configuration("ring", (1, 2))
    with launch_controller(keeps, 3) as controller, contextlib.ExitStack() as stack:
        assert controller.address is not None
        zero, one, two = (
            stack.enter_context(FabricClient(controller.address, rank, gpus_per_server=1))
            for rank in range(3)
        )
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda client: client.acquire("g", 0, PAIR), (zero, one)))
            asked = two.ask("h", 0, other)
            before = controller.processes
            controller.restart()
            assert controller.processes != before
            # Its circuits are leased until both ends are told, so that it goes first.
            waits = pool.submit(one.acquire, "h", 0, other)
            for client in (zero, one):
                client.release("g", 0)
            assert two.granted(asked).reconfigured == 1
            waits.result()
            for client in (one, two):
                client.release("h", 0)
            list(pool.map(lambda client: client.acquire("g", 1, PAIR), (zero, one)))


def test_what_was_given_up_without_a_controller_is_known_to_the_next(tmp_path: Path) -> None:
    """Its peer has begun and ended it on a lease, and would be taken to wait for it."""
    switch = EmulatedSwitchSettings(state_file=str(tmp_path / "light"))
    keeps = dataclasses.replace(SETTINGS, switch=switch)
    with launch_controller(keeps, 3) as controller, contextlib.ExitStack() as stack:
        assert controller.address is not None
        zero, one, two = (
            stack.enter_context(FabricClient(controller.address, rank, gpus_per_server=1))
            for rank in range(3)
        )
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda client: client.acquire("g", 0, PAIR), (zero, one)))
            for client in (zero, one):
                client.release("g", 0)
            zero.prepare(Configuration("ring", (0, 2)))
            assert not zero.begin("g", 1, PAIR), "it has given its part back"
            assert one.begin("g", 1, PAIR)
            one.release("g", 1)
            for process in controller.processes:
                os.kill(process, signal.SIGSTOP)
            zero.abandon(zero.ask("g", 1, PAIR))
            controller.restart()
            for client in (two, one, zero, one):
                statistics = client.statistics()
            assert statistics["open"] == 0
            assert statistics["refusals"] == {"abandoned": 1}
            list(pool.map(lambda client: client.acquire("g", 2, PAIR), (zero, one)))


def test_bad_input_is_refused_with_a_reason_and_touches_nobody_else() -> None:
    """Of another job, of another size, unknown ports, too early, without the token."""
    with launch_controller(SETTINGS, 4) as controller, contextlib.ExitStack() as stack:
        assert controller.address is not None
        zero, one = (
            stack.enter_context(FabricClient(controller.address, rank, gpus_per_server=1))
            for rank in range(2)
        )
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda client: client.acquire("g", 0, PAIR), (zero, one)))
        # A schedule of a job with more ranks, and of a group that this one is not in.
        for configuration, said in (
            (Configuration("ring", (0, 9)), "allowed: ranks 0 to 3"),
            (Configuration("ring", (1, 2)), "of which it is no member"),
        ):
            with pytest.raises(FabricError, match=said):
                zero.acquire("h", 0, configuration)
        # Members that count differently who belongs to a group.
        asked = zero.ask("i", 0, Configuration("ring", (0, 1, 2)))
        with pytest.raises(FabricError, match="disagree about operation 0 of i"):
            one.acquire("i", 0, PAIR)
        with pytest.raises(FabricError, match="disagree about operation 0 of i"):
            zero.granted(asked)
        with Observer(controller.address) as observer:
            with pytest.raises(ObserverError, match=r"got port 9\.left; allowed"):
                observer.fail_ports([Port(9, "left")], "pulled out")
            refusals = observer.status()["refusals"]
        with pytest.raises(ObserverError, match="with another token"):
            Observer(controller.address, "wrong")
        early = stranger(controller)
        early.sendall(encode("SHUTDOWN"))
        (told,) = answers(early)
        assert told["message"] == "SHUTDOWN before REGISTER"
        assert refusals["order"] == 1
        assert zero.statistics()["refusals"].keys() - refusals.keys() == {"token", "not_registered"}
        # The two have held their circuits all the time.
        for client in (zero, one):
            assert client.begin("g", 1, PAIR)
            client.release("g", 1)


@pytest.mark.parametrize(("places", "reason"), [(44, "too_many_connections"), (4096, "")])
def test_whoever_knows_the_token_gets_in_and_ends_it(places: int, reason: str) -> None:
    """However many silent observers are there: the one silent for longest goes."""
    process = start(SETTINGS, f"resource.setrlimit(resource.RLIMIT_NOFILE, ({places}, {places}))")
    host, port = address(process)
    # Of 44 descriptors it keeps 32 for itself.
    count = min(OBSERVERS, places - 32)
    with contextlib.ExitStack() as stack:
        watching = [
            stack.enter_context(Observer(f"{host}:{port}", "t", timeout_s=60)) for _ in range(count)
        ]
        watching[0].status()
        last = stack.enter_context(Observer(f"{host}:{port}", "t", timeout_s=60))
        with pytest.raises(ObserverError, match="this observer has asked nothing for longest"):
            watching[1].status()
        for stays in (watching[0], *watching[2:]):
            assert stays.status()["refusals"] == {reason or "too_many_observers": 1}
        last.shut_down()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_patience_with_a_rank_is_bounded() -> None:
    with launch_controller(SETTINGS, 2) as controller, contextlib.ExitStack() as stack:
        assert controller.address is not None
        observer = stack.enter_context(Observer(controller.address))
        # A process that the controller has declared dead does not know it yet.
        dead = stranger(controller)
        fields = {"rank": 0, "gpus_per_server": 1, "token": controller.token, "incarnation": 5}
        known = observer.status()["controller"]["incarnation"]
        dead.sendall(encode("REGISTER", **fields, controller=known))
        (told,) = answers(dead)
        assert (told["reason"], told["message"][-22:]) == (
            "declared_dead",
            "allowed: a new process",
        )
        # What a rank may not say is told it a hundred times.
        rank, wrong = register(controller, 1), encode("STATUS", request=1)
        rank.sendall(wrong * 99 + encode("STATS", request=2) + wrong + encode("STATS", request=3))
        heard = [answer["type"] for answer in answers(rank) if answer["type"] != "PING"]
        assert heard == ["ERROR"] * 99 + ["STATS", "ERROR"]


def test_what_a_former_process_was_part_of_is_over_after_a_restart_too(tmp_path: Path) -> None:
    """Nobody waits for its part of operations that its peer alone remembers."""
    switch = EmulatedSwitchSettings(state_file=str(tmp_path / "light"))
    keeps = dataclasses.replace(SETTINGS, switch=switch)
    with launch_controller(keeps, 2) as controller, contextlib.ExitStack() as stack:
        assert controller.address is not None

        def come(rank: int) -> FabricClient:
            assert controller.address is not None
            return stack.enter_context(FabricClient(controller.address, rank, gpus_per_server=1))

        zero, one = come(0), come(1)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda client: client.acquire("g", 0, PAIR), (zero, one)))
            for client in (zero, one):
                client.release("g", 0)
            one.close()
            one = come(1)
            # The answer stands behind the news in the stream.
            zero.statistics()
            controller.restart()
            # Who is answered has presented what it had begun.
            one.statistics()
            zero.statistics()
            assert one.statistics()["open"] == 0
            list(pool.map(lambda client: client.acquire("g", 1, PAIR), (zero, one)))
