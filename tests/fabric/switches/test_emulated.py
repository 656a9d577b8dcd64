"""The emulated switch: light as commanded, failures as ordered, nothing else. The files
of conf/fabric that name a technology say what its row says.
"""

from __future__ import annotations

import csv
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric import FabricSettings
from railx.fabric.circuits import Circuit, Layout, Port
from railx.fabric.decisions.state import SwitchAction
from railx.fabric.serving.base import make_switch
from railx.fabric.settings import EmulatedSwitchSettings, PortFailureSettings
from railx.fabric.switches import SwitchCallbacks, SwitchFault, parse_port, port_name
from railx.fabric.switches.emulated import EmulatedSwitch
from railx.settings import SettingsError, load, to_dict
from tests.builders import ROOT, checked
from workflow.mounts import choices

LAYOUT = Layout(1)


class Told:
    """What a driver told, in order; ``wait`` for a number of things."""

    def __init__(self) -> None:
        self.news: list[tuple[Any, ...]] = []
        self._changed = threading.Condition()
        self.callbacks = SwitchCallbacks(
            lambda command: self._tell("done", command),
            lambda command, reason: self._tell("failed", command, reason),
            lambda ports, reason: self._tell("lost", ports, reason),
            lambda ports: self._tell("back", ports),
        )

    def _tell(self, *news: Any) -> None:
        with self._changed:
            self.news.append(news)
            self._changed.notify_all()

    def wait(self, number: int) -> list[tuple[Any, ...]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.news) >= number, 60), self.news
            return self.news


@contextmanager
def emulated(
    told: Told, latency_ns: int = 0, ranks: int = 8, **settings: Any
) -> Iterator[EmulatedSwitch]:
    switch = EmulatedSwitch(
        latency_ns,
        told.callbacks,
        layout=LAYOUT,
        ranks=ranks,
        settings=EmulatedSwitchSettings(**settings),
    )
    try:
        yield switch
    finally:
        switch.close()


def command(number: int, *connect: Circuit, drop: tuple[Circuit, ...] = ()) -> SwitchAction:
    return SwitchAction(number, 0, connect, drop)


def test_each_command_is_reported_and_impossible_ones_are_refused() -> None:
    told = Told()
    with emulated(told) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        with pytest.raises(SwitchFault, match="two peers"):
            switch.apply(command(2, Circuit(0, 2)))
        with pytest.raises(SwitchFault, match="not there"):
            switch.apply(command(3, drop=(Circuit(5, 6),)))
        switch.apply(command(4, Circuit(0, 2), drop=(Circuit(0, 1),)))
        told.wait(2)
        assert switch.read() == {Circuit(0, 2)}
    assert told.news == [("done", 1), ("done", 4)]


def stopped(
    clock: Callable[[], int], latency_ns: int = 100, told: Told | None = None, **settings: Any
) -> EmulatedSwitch:
    """A switch whose timer does not run; ``times`` says what is due when."""
    switch = EmulatedSwitch(
        latency_ns,
        (told or Told()).callbacks,
        layout=LAYOUT,
        ranks=400,
        settings=EmulatedSwitchSettings(**settings),
        clock=clock,
    )
    switch.close()
    return switch


def times(switch: EmulatedSwitch) -> list[int]:
    return sorted(due for due, _, _ in switch._due)


def test_disjoint_ports_move_together_and_common_ones_in_turn() -> None:
    clock = [0]
    switch = stopped(lambda: clock[0])
    switch.apply(command(1, Circuit(0, 1)))
    switch.apply(command(2, Circuit(2, 3)))
    clock[0] = 10
    switch.apply(command(3, Circuit(4, 5)))
    assert times(switch) == [100, 100, 110]
    # What the core never does: drop a circuit that is still coming up.
    switch.apply(command(4, Circuit(0, 4 + 2), drop=(Circuit(0, 1),)))
    assert times(switch) == [100, 100, 110, 200]


@given(circuits=st.integers(1, 160), switching_ms=st.integers(0, 200))
def test_latency_grows_with_the_ports_that_move(circuits: int, switching_ms: int) -> None:
    switch = stopped(lambda: 0, switching_ms=switching_ms, per_port_ms=0.25)
    switch.apply(command(1, *(Circuit(gpu, gpu + 1) for gpu in range(circuits))))
    assert times(switch) == [switching_ms * 1_000_000 + (2 * circuits - 2) * 250_000]


@given(data=st.data())
def test_light_is_what_the_commands_that_were_done_say(data: st.DataObject) -> None:
    """Conservation: under any commands and failures, ``read`` is the sum of the news.

    What is told, in its order, says what is lit: done adds and drops, failed leaves the
    ports of its command dark, a loss darkens its circuits.
    """
    told, ranks, commands = Told(), 5, {}
    switch = EmulatedSwitch(0, told.callbacks, layout=LAYOUT, ranks=ranks)
    circuits = [Circuit(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    ports = [Port(gpu, side) for gpu in range(ranks) for side in ("left", "right")]  # type: ignore[arg-type]
    expected: set[Circuit] = set()
    lost: set[Port] = set()
    number = news = 0
    to_fail = 0
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["command", "command", "lose", "back", "fail"]))
        if step == "command":
            chosen: dict[Port, Circuit] = {}
            for circuit in data.draw(st.lists(st.sampled_from(circuits), min_size=1, max_size=4)):
                if not chosen.keys() & set(circuit.ports):
                    chosen.update(dict.fromkeys(circuit.ports, circuit))
            connect = tuple(sorted(set(chosen.values()) - expected))
            moved = {port for circuit in connect for port in circuit.ports}
            drop = tuple(sorted(item for item in expected if not moved.isdisjoint(item.ports)))
            number += 1
            commands[number] = command(number, *connect, drop=drop)
            switch.apply(commands[number])
            expected -= set(drop)
            dead = not lost.isdisjoint(moved)
            if not dead and to_fail:
                to_fail, dead = to_fail - 1, True
            if not dead:
                expected |= set(connect)
            news += 1
            what = told.wait(news)[-1]
            assert what[:2] == ("failed" if dead else "done", number)
        elif step == "lose":
            chosen_ports = frozenset(data.draw(st.lists(st.sampled_from(ports), min_size=1)))
            switch.fail_ports(chosen_ports, "broke")
            if fresh := chosen_ports - lost:
                news += 1
                assert told.wait(news)[-1] == ("lost", fresh, "broke")
            lost |= chosen_ports
            expected = {item for item in expected if lost.isdisjoint(item.ports)}
        elif step == "back":
            chosen_ports = frozenset(data.draw(st.lists(st.sampled_from(ports), min_size=1)))
            switch.restore_ports(chosen_ports)
            if returned := chosen_ports & lost:
                news += 1
                assert told.wait(news)[-1] == ("back", returned)
            lost -= chosen_ports
        else:
            to_fail += 1
            switch.fail_commands(1, "stuck")
        assert switch.read() == expected
    switch.close()
    assert len(told.news) == news


def test_a_loss_fails_what_is_under_way_after_the_news_of_the_port() -> None:
    told = Told()
    with emulated(told, latency_ns=10**12) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        switch.apply(command(2, Circuit(2, 3)))
        switch.fail_ports(frozenset({Port(1, "left")}), "dirty connector")
        assert told.wait(2) == [
            ("lost", {Port(1, "left")}, "dirty connector"),
            ("failed", 1, "port 1.left is lost (dirty connector)"),
        ]
        # Its other port is free at once.
        switch.apply(command(3, Circuit(0, 4)))
        # The other command is not touched, and a second loss of the port is no news.
        switch.fail_ports(frozenset({Port(1, "left")}), "again")
        switch.fail_ports(frozenset({Port(3, "left")}), "cut")
        assert told.wait(4)[2:] == [
            ("lost", {Port(3, "left")}, "cut"),
            ("failed", 2, "port 3.left is lost (cut)"),
        ]


def test_a_command_that_crosses_the_news_of_a_loss_fails_and_is_no_mistake() -> None:
    told = Told()
    with emulated(told) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        told.wait(1)
        switch.fail_ports(frozenset({Port(0, "right")}), "dark")
        switch.apply(command(2, Circuit(2, 1), drop=(Circuit(0, 1),)))
        switch.apply(command(3, Circuit(0, 3)))
        assert told.wait(4)[2:] == [
            ("done", 2),
            ("failed", 3, "port 0.right is lost (dark)"),
        ]
        with pytest.raises(SwitchFault, match="not there"):
            switch.apply(command(4, drop=(Circuit(0, 1),)))
        assert switch.read() == {Circuit(2, 1)}


def test_failures_come_as_the_settings_plan_them() -> None:
    told = Told()
    planned = (
        PortFailureSettings(("1.left", "1.right"), 0.0, 0.001, "server 1 lost its power"),
        PortFailureSettings(("2.left",), 0.0, None, "worn out"),
    )
    both = {Port(1, "left"), Port(1, "right")}
    with emulated(told, failures=planned):
        assert told.wait(3) == [
            ("lost", both, "server 1 lost its power"),
            ("lost", {Port(2, "left")}, "worn out"),
            ("back", both),
        ]


def test_a_switch_that_starts_anew_reads_the_light_of_the_last(tmp_path: Path) -> None:
    state = tmp_path / "light.json"
    told = Told()
    with emulated(told, state_file=str(state)) as switch:
        switch.apply(command(1, Circuit(0, 1), Circuit(1, 0)))
        switch.apply(command(2, Circuit(2, 3)))
        told.wait(2)
        switch.fail_ports(frozenset({Port(3, "left")}), "dust")
        told.wait(3)
    with emulated(told, 10**12, state_file=str(state)) as switch:
        assert told.wait(4)[3:] == [("lost", {Port(3, "left")}, "dust")]
        assert switch.read() == {Circuit(0, 1), Circuit(1, 0)}
        # A command under way at the end leaves dark what it moved.
        switch.apply(command(3, Circuit(0, 2), drop=(Circuit(0, 1),)))
    with emulated(told, state_file=str(state)) as switch:
        assert switch.read() == {Circuit(1, 0)}
        switch.restore_ports(frozenset({Port(3, "left")}))
        told.wait(6)
    with emulated(told, state_file=str(state)) as switch:
        assert switch.read() == {Circuit(1, 0)}
        switch.apply(command(4, Circuit(0, 3)))
        assert told.wait(7)[-1] == ("done", 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".light.json.lock", "light.json"]


def test_light_has_one_controller_at_a_time(tmp_path: Path) -> None:
    """A refused one, and one that could not start, leave it to the next."""
    state = tmp_path / "light.json"
    with emulated(Told(), state_file=str(state)) as switch:
        switch.apply(command(1, Circuit(0, 1)))
        with pytest.raises(SettingsError, match=r"^switch\.state_file: another controller keeps"):
            emulated(Told(), state_file=str(state)).__enter__()
    kept = state.read_text()
    state.write_text("{")
    with pytest.raises(SettingsError, match=r"holds no light"):
        emulated(Told(), state_file=str(state)).__enter__()
    state.write_text(kept)
    with emulated(Told(), state_file=str(state)):
        pass


def test_a_state_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    state = tmp_path / "nowhere" / "light.json"
    with pytest.raises(SettingsError) as error:
        emulated(Told(), state_file=str(state)).__enter__()
    assert str(error.value) == (
        f"switch.state_file: cannot write {state} (No such file or directory); allowed: a file in"
        " a folder that can be written to"
    )


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"version": 2, "circuits": [], "lost": {}}',
        '{"version": 1, "circuits": [[0, 1], [0, 2]], "lost": {}}',
        '{"version": 1, "circuits": [[0, 99]], "lost": {}}',
        '{"version": 1, "circuits": [[0, 1]], "lost": {"0.right": "dust"}}',
        '{"version": 1, "circuits": [[0, 1]], "lost": []}',
    ],
)
def test_a_state_file_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    state = tmp_path / "light.json"
    state.write_text(content)
    with (
        pytest.raises(SettingsError, match=r"^switch\.state_file: .*allowed: a file that") as error,
        emulated(Told(), state_file=str(state)),
    ):
        pass
    assert "\n" not in str(error.value)


def test_what_a_switch_has_no_room_for_is_one_line() -> None:
    make = {"layout": Layout(2), "latency_ns": 0, "callbacks": Told().callbacks}
    settings = EmulatedSwitchSettings(ports=4)
    make_switch(settings, ranks=4, **make).close()  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"^switch\.ports: got 4, but 3 GPUs .* take 6"):
        make_switch(settings, ranks=5, **make)  # type: ignore[arg-type]
    planned = PortFailureSettings(("6.left",), 0, None, "x")
    with pytest.raises(SettingsError, match=r"^switch\.failures\.0\.ports: got port 6\.left"):
        make_switch(replace(settings, ports=None, failures=(planned,)), ranks=5, **make)  # type: ignore[arg-type]
    with emulated(Told()) as switch, pytest.raises(ValueError, match=r"got port 8\.right"):
        switch.fail_ports(frozenset({Port(8, "right")}), "x")


@pytest.mark.parametrize("name", ["", "3", "3.up", "-1.left", "3.left.", "٣.left"])
def test_names_of_ports(name: str) -> None:
    assert parse_port(port_name(Port(3, "right"))) == Port(3, "right")
    with pytest.raises(ValueError, match=r"allowed: GPU\.left or GPU\.right"):
        parse_port(name)


def test_the_state_is_whole_at_every_moment(tmp_path: Path) -> None:
    state = tmp_path / "light.json"
    told = Told()
    with emulated(told, state_file=str(state)) as switch:
        for number in range(20):
            here, there = Circuit(0, number % 2 + 1), Circuit(0, (number + 1) % 2 + 1)
            switch.apply(command(number, here, drop=(there,) if number else ()))
            told.wait(number + 1)
            assert json.loads(state.read_text())["circuits"] == [list(here)]


_UNITS_MS = {"ms": 1.0, "us": 1e-3, "ns": 1e-6}


def rows() -> dict[str, dict[str, str]]:
    table = ROOT / "resources" / "published" / "opus_ocs_technologies.csv"
    with table.open(encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


TECHNOLOGIES = {
    name: checked("fabric", name).switch
    for name in choices("fabric")
    if name not in ("rails", "netconf")
}


@pytest.mark.parametrize("name", TECHNOLOGIES)
def test_a_file_says_what_its_row_says(name: str) -> None:
    switch = TECHNOLOGIES[name]
    assert isinstance(switch, EmulatedSwitchSettings)
    row = rows()[str(switch.technology)]
    assert row["ports"].split()[0] == str(switch.ports)
    assert switch.ports is not None
    assert switch.switching_ms is not None
    found = re.search(r"([0-9.]+) (ms|us|ns)", row["switching_time"])
    assert found is not None
    published_ms = float(found[1]) * _UNITS_MS[found[2]]
    if row["switching_time"].startswith("bulk"):
        whole_ms = switch.switching_ms + switch.per_port_ms * (switch.ports - 2)
        assert whole_ms == pytest.approx(published_ms, rel=1e-3)
    else:
        assert (switch.switching_ms, switch.per_port_ms) == (pytest.approx(published_ms), 0)


def test_a_technology_sets_the_latency_of_the_run() -> None:
    plain = to_dict(checked("fabric", "polatis")) | {"mode": "on_demand"}
    settings: FabricSettings = load(
        FabricSettings, plain | {"reconfiguration_latency_ms": 25.0}, "fabric"
    )
    assert isinstance(settings.switch, EmulatedSwitchSettings)
    with pytest.raises(SettingsError, match=r"^fabric\.reconfiguration_latency_ms: got 10.*: 25"):
        load(FabricSettings, plain | {"reconfiguration_latency_ms": 10.0}, "fabric")
    load(
        FabricSettings,
        plain | {"mode": "electrical", "reconfiguration_latency_ms": 0.0},
        "fabric",
    )
