"""Failures of ports and switches in a running controller: what its ranks and the people
beside it are told, and that its journal repeats it all.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from railx.fabric import (
    Configuration,
    Controller,
    FabricClient,
    FabricError,
    FabricSettings,
    Grant,
    launch_controller,
)
from railx.fabric.circuits import Port
from railx.fabric.journal import replay_journal
from railx.fabric.observer import Observer, ObserverError, status_text
from railx.fabric.serving.metrics import metrics_text
from railx.fabric.settings import (
    EmulatedSwitchSettings,
    JournalSettings,
    NetconfSwitchSettings,
    PortFailureSettings,
)
from railx.settings import SettingsError

LEFT = Configuration("ring", (0, 1))
RIGHT = Configuration("ring", (2, 3))
ALL = Configuration("ring", (0, 1, 2, 3))
FORWARD = Configuration("pair", (0, 1))


def settings(**changes: Any) -> FabricSettings:
    return FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 1, **changes)


class Ranks:
    """A rank's connection each, and what they say when they ask together."""

    def __init__(self, controller: Controller, ranks: int = 4) -> None:
        assert controller.address is not None
        self.clients = [
            FabricClient(controller.address, rank, gpus_per_server=1) for rank in range(ranks)
        ]
        self._number = 0

    def ask(self, configuration: Configuration) -> list[Grant | FabricError]:
        """The members' answers to one operation, in the order of ranks."""
        self._number += 1
        answers: dict[int, Grant | FabricError] = {}

        def one(rank: int) -> None:
            client = self.clients[rank]
            try:
                answers[rank] = client.acquire(configuration.name, self._number, configuration)
                client.release(configuration.name, self._number)
            except FabricError as error:
                answers[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in configuration.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers[rank] for rank in configuration.members]

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Controller, Ranks, Observer]]:
    journal = JournalSettings(str(tmp_path / "events.jsonl"), 16)
    with launch_controller(settings(journal=journal), 4) as controller:
        assert controller.address is not None
        ranks = Ranks(controller)
        with Observer(controller.address) as observer:
            yield controller, ranks, observer
        ranks.close()


def granted(answers: list[Grant | FabricError]) -> bool:
    return all(isinstance(answer, Grant) for answer in answers)


def told(answers: list[Grant | FabricError]) -> set[str]:
    assert all(isinstance(answer, FabricError) for answer in answers), answers
    return {str(answer) for answer in answers}


def until(observer: Observer, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status for which this holds; asking is the waiting."""
    late_s = time.monotonic() + 60
    while not holds(status := observer.status()):
        assert time.monotonic() < late_s, status
    return status


def test_a_failed_port_reaches_the_ranks_as_one_line_that_names_it(
    run: tuple[Controller, Ranks, Observer], tmp_path: Path
) -> None:
    _, ranks, observer = run
    assert granted(ranks.ask(LEFT))
    assert granted(ranks.ask(RIGHT))
    observer.fail_ports([Port(1, "right")], "dirty connector")
    lost = {"gpu": 1, "side": "right", "reason": "dirty connector"}
    assert until(observer, lambda s: bool(s["lost_ports"]))["lost_ports"] == [lost]
    (line,) = told(ranks.ask(LEFT))
    assert "the right port of GPU 1 on rail 0 is lost (dirty connector)" in line
    assert "\n" not in line
    # Who does not need the port sees nothing of it.
    assert granted(ranks.ask(FORWARD))
    assert granted(ranks.ask(RIGHT))
    observer.restore_ports([Port(1, "right")])
    until(observer, lambda s: not s["lost_ports"])
    assert granted(ranks.ask(LEFT))
    status = observer.status()
    assert status["refusals"]["port"] == 2
    assert status["statistics"]["failures"] == {"switches": 0, "ports": 1, "ranks": 0}
    ranks.close()
    observer.shut_down()
    journal = tmp_path / "events.jsonl"
    replayed = replay_journal(journal)
    assert replayed.different == []
    assert replayed.kinds["RefuseAction"] >= 2
    assert replayed.core.statistics()["refusals"] == {"port": 2}


def test_a_whole_switch_that_fails_stops_all_of_its_rail_and_no_more_than_once(
    run: tuple[Controller, Ranks, Observer],
) -> None:
    _, ranks, observer = run
    every = [Port(gpu, side) for gpu in range(4) for side in ("left", "right")]  # type: ignore[arg-type]
    observer.fail_ports(every, "power supply")
    until(observer, lambda s: len(s["lost_ports"]) == 8)
    for configuration in (LEFT, RIGHT, ALL):
        (line,) = told(ranks.ask(configuration))
        assert "is lost (power supply)" in line
    observer.restore_ports(every)
    until(observer, lambda s: not s["lost_ports"])
    assert granted(ranks.ask(ALL))


def test_a_command_that_fails_is_told_and_the_next_question_tries_again(
    run: tuple[Controller, Ranks, Observer],
) -> None:
    _, ranks, observer = run
    observer.fail_commands(1, "mirror stuck")
    (line,) = told(ranks.ask(LEFT))
    assert "mirror stuck" in line
    assert "\n" not in line
    assert granted(ranks.ask(LEFT))
    assert observer.status()["statistics"]["failures"]["switches"] == 1


def test_a_failure_that_the_settings_plan_comes_by_itself() -> None:
    planned = PortFailureSettings(("0.left",), 0.0, None, "worn out")
    switch = EmulatedSwitchSettings(failures=(planned,))
    with launch_controller(settings(switch=switch), 2) as controller:
        assert controller.address is not None
        with Observer(controller.address) as observer:
            until(observer, lambda s: bool(s["lost_ports"]))
        ranks = Ranks(controller, 2)
        (line,) = told(ranks.ask(LEFT))
        assert "the left port of GPU 0 on rail 0 is lost (worn out)" in line
        assert granted(ranks.ask(FORWARD)), "it takes the right port of rank 0"
        ranks.close()


def test_people_see_what_goes_on(run: tuple[Controller, Ranks, Observer]) -> None:
    _, ranks, observer = run
    assert granted(ranks.ask(LEFT))
    assert granted(ranks.ask(FORWARD))
    observer.fail_ports([Port(3, "left")], "dust")
    until(observer, lambda s: bool(s["lost_ports"]))
    asked = ranks.clients[2].ask("later", 0, RIGHT)
    with pytest.raises(FabricError):
        ranks.clients[2].granted(asked)
    # One of two has asked for this: it waits.
    waiting = ranks.clients[1].ask("0>2", 0, Configuration("pair", (1, 2)))
    status = until(observer, lambda s: bool(s["waiting"]))
    text = status_text(status)
    for expected in (
        "emulated switches, 1 ms, 5 connections",
        "0     1        0>1, 1>0",
        "pair 0,1; ring 0,1",
        "pair 1,2  0>2 #0     1      2",
        "reason  count",
        "port    1",
        "3.left  dust",
        "events.jsonl: ",
    ):
        assert expected in text, f"{expected!r} is not in\n{text}"
    incarnation = status["ranks"]["0"]["incarnation"]
    assert re.search(rf"^  0     {incarnation:x} +present", text, re.MULTILINE)
    ranks.clients[1].abandon(waiting)
    metrics = observer.metrics()
    sample = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\})? [0-9.e+-]+')
    for line in metrics.splitlines():
        assert line.startswith(("# HELP railx_", "# TYPE railx_")) or sample.fullmatch(line), line
    assert 'railx_refusals_total{reason="port"} 1\n' in metrics
    assert "railx_ports_lost 1\n" in metrics
    assert 'railx_circuits_lit{rail="0"} 2\n' in metrics
    named = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")]
    assert len(named) == len(set(named))


def test_names_from_the_network_bring_no_control_characters_to_a_terminal() -> None:
    status = {
        "controller": {"incarnation": 1, "up_s": 1, "driver": "emulated", "latency_ms": 1.0}
        | {"connections": 0},
        "statistics": dict.fromkeys(("requests", "grants", "reconfigurations", "held"), 0),
        "recovering": False,
        "last_heard_s": {},
        "refusals": {"\x1b[2J": 1},
        **{key: {} for key in ("rails", "ranks")},
        **{key: [] for key in ("leases", "queue", "waiting", "lost_ports")},
    }
    assert "?[2J" in status_text(status)
    assert all(line.isprintable() for line in status_text(status).split("\n"))


def test_labels_of_metrics_are_escaped() -> None:
    text = metrics_text({"refusals": {'a"b\\c\nd': 3}})
    assert text.splitlines()[-1] == r'railx_refusals_total{reason="a\"b\\c\nd"} 3'
    assert metrics_text({}) == ""


def test_who_may_not_look_or_order_is_one_line(run: tuple[Controller, Ranks, Observer]) -> None:
    controller, _, observer = run
    assert controller.address is not None
    with pytest.raises(ObserverError, match="with another token; allowed: RAILX_TOKEN"):
        Observer(controller.address, "wrong")
    with pytest.raises(ObserverError, match=r"got port 4\.left; allowed: left and right of 0 to 3"):
        observer.fail_ports([Port(4, "left")], "dust")
    assert observer.status()["lost_ports"] == [], "it goes on"
    with pytest.raises(ObserverError, match=r"address of the controller: got 'nowhere'"):
        Observer("nowhere")
    with pytest.raises(ObserverError, match=r"no controller answers at 127\.0\.0\.1:1 \("):
        Observer("127.0.0.1:1")


def test_a_journal_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = JournalSettings(str(tmp_path / "file" / "events.jsonl"), 1)
    with (
        pytest.raises(SettingsError, match=r"^fabric\.journal\.path: cannot write the journal"),
        launch_controller(settings(journal=journal), 2),
    ):
        pass


def test_a_driver_without_its_library_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ncclient.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    switch = NetconfSwitchSettings("netconf", ("127.0.0.1:1",), ("AAAA",), "railx", None, 1.0, 1.0)
    with (
        pytest.raises(SettingsError) as error,
        launch_controller(dataclasses.replace(settings(), switch=switch), 2),
    ):
        pass
    assert str(error.value).startswith("fabric.switch.driver: got 'netconf', but ncclient is not")
