"""The NETCONF driver against a real server over SSH on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.fabric import Configuration, FabricSettings, launch_controller
from railx.fabric.circuits import Circuit, Layout, Port
from railx.fabric.decisions.state import SwitchAction
from railx.fabric.observer import Observer, ObserverError
from railx.fabric.serving.base import make_switch
from railx.fabric.settings import NetconfSwitchSettings
from railx.fabric.switches import Switch, SwitchFault
from railx.fabric.switches.netconf import NetconfSwitch, _Broken, _Session
from railx.settings import SettingsError
from tests.builders import ROOT
from tests.fabric.switches.test_emulated import Told
from tests.fabric.test_failures import Ranks, granted, told, until

pytest.importorskip("ncclient", reason="needs ncclient (the extra netconf)")
pytest.importorskip("netconf", reason="needs PyPI's netconf, a server for tests (the extra dev)")

from ncclient.manager import Manager

from tests.fabric.switches.netconf_server import MODEL, Device, another_host_key, device


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("netconf")


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with device(folder) as running:
        monkeypatch.setenv("RAILX_SWITCH_PASSWORD", running.password)
        yield running


@pytest.fixture
def notifying(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with device(folder, notifies=True) as running:
        monkeypatch.setenv("RAILX_SWITCH_PASSWORD", running.password)
        yield running


def settings(*devices: Device, poll_s: float = 60) -> NetconfSwitchSettings:
    return NetconfSwitchSettings(
        driver="netconf",
        addresses=tuple(item.address for item in devices),
        host_keys=tuple(item.host_key for item in devices),
        username="railx",
        key_file=None,
        reply_timeout_s=60,
        poll_s=poll_s,
    )


@contextmanager
def connected(told: Told, *devices: Device, ranks: int = 4, **options: Any) -> Iterator[Switch]:
    switch = make_switch(
        settings(*devices, **options),
        layout=Layout(len(devices)),
        ranks=ranks,
        latency_ns=0,
        callbacks=told.callbacks,
    )
    try:
        yield switch
    finally:
        switch.close()


def command(number: int, *connect: Circuit, drop: tuple[Circuit, ...] = ()) -> SwitchAction:
    return SwitchAction(number, 0, connect, drop)


def test_commands_become_cross_connects_and_are_read_back(server: Device) -> None:
    told = Told()
    with connected(told, server) as switch:
        switch.apply(command(1, Circuit(0, 1), Circuit(1, 0)))
        switch.apply(command(2, Circuit(2, 3)))
        assert told.wait(2) == [("done", 1), ("done", 2)]
        # By server: 2 s is the left port, 2 s + 1 the right one.
        assert server.crossbar.joined == {1: 2, 3: 0, 5: 6}
        switch.apply(command(3, Circuit(1, 2), drop=(Circuit(1, 0),)))
        told.wait(3)
        assert server.crossbar.joined == {1: 2, 3: 4, 5: 6}
        assert switch.read() == {Circuit(0, 1), Circuit(1, 2), Circuit(2, 3)}
        assert server.crossbar.edits == 3
        with pytest.raises(SwitchFault, match="two peers"):
            switch.apply(command(4, Circuit(0, 3)))
        with pytest.raises(SwitchFault, match="not there"):
            switch.apply(command(5, drop=(Circuit(3, 0),)))
    # Light outlives the session, and the next controller reads it.
    with connected(told, server) as switch:
        assert switch.read() == {Circuit(0, 1), Circuit(1, 2), Circuit(2, 3)}
        switch.apply(command(6, Circuit(0, 3), drop=(Circuit(0, 1), Circuit(2, 3))))
        assert told.wait(4)[3] == ("done", 6)
        assert switch.read() == {Circuit(0, 3), Circuit(1, 2)}


def test_a_command_that_is_refused_leaves_its_ports_dark(server: Device) -> None:
    told = Told()
    with connected(told, server) as switch:
        switch.apply(command(1, Circuit(0, 1), Circuit(2, 3), Circuit(3, 2)))
        told.wait(1)
        server.crossbar.refuse.append("mirror stuck")
        switch.apply(command(2, Circuit(2, 1), drop=(Circuit(0, 1), Circuit(2, 3))))
        what, number, reason = told.wait(2)[1]
        assert (what, number) == ("failed", 2)
        assert "mirror stuck" in reason
        assert "\n" not in reason
        assert switch.read() == {Circuit(3, 2)}
        switch.apply(command(3, Circuit(0, 1), Circuit(2, 3)))
        assert told.wait(3)[2] == ("done", 3)


def test_a_port_out_of_service_is_told_with_its_reason_and_comes_back(server: Device) -> None:
    told = Told()
    with connected(told, server, poll_s=0.02) as switch:
        switch.apply(command(1, Circuit(0, 1), Circuit(2, 3)))
        told.wait(1)
        server.crossbar.lose(2, reason="laser bias high")
        assert told.wait(2)[1] == ("lost", {Port(1, "left")}, "laser bias high")
        assert switch.read() == {Circuit(2, 3)}
        switch.apply(command(2, Circuit(2, 1), drop=(Circuit(2, 3),)))
        assert told.wait(3)[2] == ("failed", 2, "port 1.left is lost (laser bias high)")
        assert switch.read() == set()
        server.crossbar.back(2)
        assert told.wait(4)[3] == ("back", {Port(1, "left")})
        switch.apply(command(3, Circuit(0, 1)))
        assert told.wait(5)[4] == ("done", 3)


def test_light_that_somebody_else_takes_away_is_a_loss(server: Device) -> None:
    told = Told()
    with connected(told, server, poll_s=0.02) as switch:
        switch.apply(command(1, Circuit(0, 1), Circuit(1, 2)))
        told.wait(1)
        with server.crossbar.lock:
            del server.crossbar.joined[1]
        ends = {Port(0, "right"), Port(1, "left")}
        vanished = f"the switch of rail 0 at {server.address} has dropped their light by itself"
        assert told.wait(3)[1:] == [("lost", ends, vanished), ("back", ends)]
        switch.apply(command(2, Circuit(0, 1)))
        assert told.wait(4)[3] == ("done", 2)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_session_that_breaks_in_a_command_is_made_anew(server: Device, when: str) -> None:
    told = Told()
    with connected(told, server) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        setattr(server.crossbar, f"hang_up_{when}", 1)
        switch.apply(command(2, Circuit(0, 2), drop=(Circuit(0, 1),)))
        assert told.wait(2)[1] == ("done", 2)
        assert switch.read() == {Circuit(0, 2)}


def test_a_switch_that_dies_is_lost_with_its_rail_and_dark_when_it_is_back(
    server: Device, folder: Path
) -> None:
    told = Told()
    with device(folder) as other:
        other.password = server.password
        other.stop()
        other.start()
        with connected(told, server, other, ranks=4, poll_s=0.02) as switch:
            # Rank 2 is on rail 0 of server 1, rank 3 on rail 1.
            switch.apply(SwitchAction(1, 0, (Circuit(0, 2),), ()))
            switch.apply(SwitchAction(2, 1, (Circuit(1, 3),), ()))
            told.wait(2)
            server.stop()
            what, ports, reason = told.wait(3)[2]
            assert (what, ports) == (
                "lost",
                {Port(gpu, side) for gpu in (0, 2) for side in ("left", "right")},  # type: ignore[arg-type]
            )
            assert reason.startswith(f"the switch of rail 0 at {server.address} is gone: ")
            assert "\n" not in reason
            switch.apply(SwitchAction(3, 0, (Circuit(2, 0),), ()))
            assert told.wait(4)[3][:2] == ("failed", 3)
            assert switch.read() == {Circuit(1, 3)}
            server.start()
            assert told.wait(5)[4] == ("back", ports)
            assert switch.read() == {Circuit(1, 3)}
            switch.apply(SwitchAction(4, 0, (Circuit(2, 0),), ()))
            assert told.wait(6)[5] == ("done", 4)


def test_a_switch_that_hangs_up_as_it_comes_back_is_dark_all_the_same(server: Device) -> None:
    told = Told()
    with connected(told, server, poll_s=0.02) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        server.stop()
        _, ports, _ = told.wait(2)[1]
        server.crossbar.hang_up_before = 1
        server.start()
        assert told.wait(3)[2] == ("back", ports)
        assert server.crossbar.joined == {}


def test_a_session_that_broke_is_closed_without_another_request(
    server: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _Session(settings(server), 0)
    server.crossbar.hang_up_before = 1
    with pytest.raises(_Broken):
        session.edit((), [(1, 2)])
    monkeypatch.setattr(Manager, "execute", lambda *_: pytest.fail("a request"))
    session.close()
    assert not session._manager.connected


def test_a_connection_is_closed_even_if_close_session_fails(
    server: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _Session(settings(server), 0)

    def no_answer(*_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(Manager, "execute", no_answer)
    session.close()
    assert not session._manager.connected


def test_a_controller_runs_on_it_and_the_next_one_reads_its_light(server: Device) -> None:
    fabric = FabricSettings(
        1, "127.0.0.1", 0, 60, "on_demand", 0, switch=settings(server, poll_s=0.05)
    )
    ring = Configuration("ring", (0, 1))
    with launch_controller(fabric, 2) as controller:
        ranks = Ranks(controller, 2)
        assert granted(ranks.ask(ring))
        assert server.crossbar.joined == {1: 2, 3: 0}
        server.crossbar.lose(0, reason="connector pulled")
        with Observer(str(controller.address)) as observer:
            until(observer, lambda status: bool(status["lost_ports"]))
            with pytest.raises(ObserverError, match="the netconf driver does not fail on order"):
                observer.fail_commands(1, "x")
        (line,) = told(ranks.ask(ring))
        assert "the left port of GPU 0 on rail 0 is lost (connector pulled)" in line
        ranks.close()
    assert server.crossbar.joined == {1: 2}, "light outlives the controller"
    with launch_controller(fabric, 2) as controller, Observer(str(controller.address)) as observer:
        status = observer.status()
        assert status["rails"]["0"]["circuits"] == [[0, 1]]
        assert status["controller"]["driver"] == "netconf"


def test_whom_the_driver_does_not_speak_to(server: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    good = settings(server)

    def problem(changed: NetconfSwitchSettings, ranks: int = 4, rails: int = 1) -> str:
        with pytest.raises(SettingsError) as error:
            make_switch(
                changed,
                layout=Layout(rails),
                ranks=ranks,
                latency_ns=0,
                callbacks=Told().callbacks,
            )
        assert "\n" not in str(error.value)
        assert server.password not in str(error.value)
        return str(error.value)

    assert problem(good, rails=2).startswith("switch.addresses: got 1 switches; allowed: 2")
    assert "switch.addresses.0: got 'nowhere'" in problem(replace(good, addresses=("nowhere",)))
    assert "switch.host_keys.0" in problem(replace(good, host_keys=("no key!",)))
    for another in (another_host_key(), "AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43):
        assert "no use of the switch" in problem(replace(good, host_keys=(another,)))
    assert "no use of the switch" in problem(replace(good, username="stranger"))
    assert "switch.key_file" in problem(replace(good, key_file="/nowhere/key"))
    server.crossbar.joined = {1: 40}
    assert "port 40 of rail 0 is no GPU's; allowed: 0 to 7" in problem(good)
    server.crossbar.joined = {2: 1}
    assert "which is no circuit" in problem(good)
    monkeypatch.delenv("RAILX_SWITCH_PASSWORD")
    assert "a password in RAILX_SWITCH_PASSWORD" in problem(good)
    server.stop()
    monkeypatch.setenv("RAILX_SWITCH_PASSWORD", "x")
    assert "no use of the switch" in problem(good)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds; a mistake makes it take a minute."""
    changed, late = threading.Event(), time.monotonic() + 60
    while not holds():
        assert time.monotonic() < late
        changed.wait(0.005)


#: Nobody waits for this in a test: what is heard then was notified.
NEVER_S = 3600.0


def test_failures_of_ports_are_heard_when_the_switch_notifies_them(notifying: Device) -> None:
    told, crossbar = Told(), notifying.crossbar
    with connected(told, notifying, poll_s=NEVER_S) as switch:
        switch.apply(command(1, Circuit(0, 1), Circuit(2, 3)))
        told.wait(1)
        assert crossbar.subscriptions == 1
        crossbar.lose(2, reason="laser bias high")
        assert told.wait(2)[1] == ("lost", {Port(1, "left")}, "laser bias high")
        assert switch.read() == {Circuit(2, 3)}
        crossbar.back(2)
        assert told.wait(3)[2] == ("back", {Port(1, "left")})
        switch.apply(command(2, Circuit(0, 1)))
        assert told.wait(4)[3] == ("done", 2)
        crossbar.take(1)
        assert [what for what, *_ in told.wait(6)[4:]] == ["lost", "back"]
        assert told.news[4][1] == {Port(0, "right"), Port(1, "left")}


def test_failures_of_whole_switches_are_heard_when_the_switch_notifies_them(
    notifying: Device,
) -> None:
    told, crossbar = Told(), notifying.crossbar
    everything = {Port(gpu, side) for gpu in range(4) for side in ("left", "right")}  # type: ignore[arg-type]
    with connected(told, notifying, poll_s=NEVER_S) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        asked = crossbar.gets
        with crossbar.lock:
            crossbar.out = dict.fromkeys(range(16), "no power at the mirrors")
            crossbar.joined = {}
        crossbar.notify("switch-state", **{"in-service": "false"})
        assert told.wait(2)[1] == ("lost", everything, "no power at the mirrors")
        assert crossbar.gets == asked + 1
        with crossbar.lock:
            crossbar.out = {}
        crossbar.notify("switch-state", **{"in-service": "true"})
        assert told.wait(3)[2] == ("back", everything)
        # One that dies cannot say so; the end of the session does.
        notifying.stop(wait=False)
        what, ports, reason = told.wait(4)[3]
        assert (what, ports) == ("lost", everything)
        assert reason.startswith(f"the switch of rail 0 at {notifying.address} is gone: ")


def test_a_subscription_that_breaks_is_made_anew_and_nothing_in_between_is_missed(
    notifying: Device,
) -> None:
    told, crossbar = Told(), notifying.crossbar
    with connected(told, notifying, poll_s=NEVER_S) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        with crossbar.lock:
            crossbar.out[2] = "unheard"
        crossbar.hang_up_on_subscribers()
        assert told.wait(2)[1] == ("lost", {Port(1, "left")}, "unheard")
        switch.apply(command(2, Circuit(2, 3)))
        assert told.wait(3)[2] == ("done", 2)
        assert crossbar.subscriptions == 2
        crossbar.lose(4, reason="heard")
        assert told.wait(4)[3] == ("lost", {Port(2, "left")}, "heard")


def test_what_fails_while_the_subscription_is_made_is_not_missed(notifying: Device) -> None:
    told = Told()
    notifying.crossbar.lost_meanwhile = {2: "just before"}
    with connected(told, notifying, poll_s=NEVER_S):
        assert told.wait(1) == [("lost", {Port(1, "left")}, "just before")]
        assert notifying.crossbar.subscriptions == 1


def test_a_notification_that_comes_during_an_answer_is_a_new_question(notifying: Device) -> None:
    told, crossbar = Told(), notifying.crossbar
    with connected(told, notifying, poll_s=NEVER_S) as switch:
        assert isinstance(switch, NetconfSwitch)
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        asked = crossbar.gets
        crossbar.may_answer.clear()
        crossbar.notify("port-state", number=7)
        eventually(lambda: crossbar.gets > asked)
        # The answer is made up, and knows nothing of this.
        crossbar.lose(7, reason="dust")
        (rail,) = switch._rails
        eventually(lambda: not rail._commands.empty())
        crossbar.may_answer.set()
        assert told.wait(2)[1] == ("lost", {Port(3, "right")}, "dust")


def test_many_notifications_are_few_questions_and_those_of_others_none(
    notifying: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, crossbar = Told(), notifying.crossbar
    arrived: list[object] = []
    heard: list[bool] = []
    take, notified = Manager.take_notification, _Session.notified

    def taken(self: Any, *args: Any, **options: Any) -> Any:
        found = take(self, *args, **options)
        if found is not None:
            arrived.append(found)
        return found

    def heeded(self: Any, timeout_s: float) -> bool:
        found = notified(self, timeout_s)
        if found:
            heard.append(found)
        return found

    monkeypatch.setattr(Manager, "take_notification", taken)
    monkeypatch.setattr(_Session, "notified", heeded)
    with connected(told, notifying, poll_s=NEVER_S) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        for _ in range(20):
            crossbar.notify("link-state", model="urn:example:another-model")
        crossbar.lose(7, reason="dust")
        told.wait(2)
        # They come one after the other, so that with the last all others are done with.
        eventually(lambda: len(arrived) == 21)
        assert len(heard) == 1
        asked = crossbar.gets
        for _ in range(200):
            crossbar.notify("port-state", number=7)
        crossbar.back(7)
        told.wait(3)
        assert crossbar.gets < asked + 100


@pytest.mark.parametrize("announced", [False, True])
def test_without_a_subscription_the_driver_polls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    told = Told()
    with device(folder, notifies=announced) as server:
        server.crossbar.refuse_subscriptions = True
        monkeypatch.setenv("RAILX_SWITCH_PASSWORD", server.password)
        with connected(told, server, poll_s=0.02):
            server.crossbar.lose(2, reason="laser bias high")
            assert told.wait(1) == [("lost", {Port(1, "left")}, "laser bias high")]
            assert server.crossbar.subscriptions == 0


def test_the_model_is_documented_as_ours() -> None:
    text = (ROOT / "resources" / "yang" / "railx-cross-connect.yang").read_text()
    assert f'namespace "{MODEL}";' in text
    assert "no vendor's" in text
    for event in ("port-state", "switch-state", "light-lost"):
        assert f"notification {event} {{" in text
    assert text.count("{") == text.count("}")
