"""One rank's standing with the fabric, without a fabric."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from railx.fabric import CircuitSchedule, Configuration, Grant
from railx_torch import session as module
from railx_torch.session import BackendOptions, Operation, Session
from railx_torch.trace import RECONFIGURATION, Recorder

RING = Configuration("ring", (0, 1))
PAIR = Configuration("pair", (0, 2))


@pytest.mark.parametrize(("keep", "remembered"), [(True, (RING,) * 3), (False, ())])
def test_a_program_that_nobody_records_leaves_no_schedule_behind(
    keep: bool, remembered: tuple[Configuration, ...]
) -> None:
    session = Session(BackendOptions("gloo", None, "electrical", 1), Recorder(0, keep=keep))
    for number in range(3):
        operation = Operation(
            "all_reduce", (0, 1), RING, "group", number, 4, [], [], 60.0, torch.device("cpu")
        )
        session.issue(operation)
        assert session.try_hold(operation)
        session.end(operation)
    assert tuple(session.recorded_schedule().iterations.get(0, ())) == remembered


class Controller:
    """A client whose answers the test gives; what it was asked and told, in order."""

    timeout_s = 60.0

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.held: set[Configuration] = set()
        self.answers: dict[str, threading.Event] = {}
        self.grant = Grant(0, 0, 0, 0, 0, False)

    def begin(self, channel: str, sequence: int, configuration: Configuration) -> bool:
        return configuration in self.held

    def ask(self, channel: str, sequence: int, configuration: Configuration) -> Any:
        self.seen.append(("ask", channel))
        answer = self.answers.setdefault(channel, threading.Event())
        return Question(channel, answer)

    def granted(self, asked: Any, *, timeout_s: float) -> Grant:
        assert asked.answer.wait(60)
        return self.grant

    def abandon(self, asked: Any) -> None:
        self.seen.append(("abandon", asked.channel))

    def release(self, channel: str, sequence: int, *, prepare: Configuration | None = None) -> None:
        self.seen.append(("release", channel, prepare))


class Question:
    """A question that is answered when the test says so."""

    def __init__(self, channel: str, answer: threading.Event) -> None:
        self.channel = channel
        self.answer = answer

    @property
    def answered(self) -> bool:
        return self.answer.is_set()


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def connected(controller: Controller) -> Session:
    session = Session(BackendOptions("gloo", None, "electrical", 1), Recorder(0, keep=False))
    session.client = controller  # type: ignore[assignment]
    return session


_numbers = itertools.count()


def issued(session: Session, kind: str, channel: str, configuration: Configuration) -> Operation:
    """An operation that has just been issued."""
    number, device = next(_numbers), torch.device("cpu")
    operation = Operation(kind, (), configuration, channel, number, 4, [], [], 60.0, device)
    session.issue(operation)
    return operation


@contextlib.contextmanager
def carried_out(session: Session, operation: Operation) -> Iterator[threading.Event]:
    """On a thread of its own; the event says that it has its circuits."""
    begun = threading.Event()

    def run() -> None:
        with session.circuits(operation):
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield begun
    thread.join(60)
    assert begun.is_set()


def test_a_collective_lets_an_earlier_message_go_first(
    connected: Session, controller: Controller
) -> None:
    """Even on circuits that are held: the message would break in on the next ones."""
    controller.held.add(RING)
    message = issued(connected, "send", "0>2", PAIR)
    connected.ask_ahead(message)
    ring = issued(connected, "all_gather", "ring", RING)
    assert not connected.try_hold(ring)
    connected.ask_ahead(ring)
    assert controller.seen == [("ask", "0>2")]
    with carried_out(connected, ring) as ring_begun, carried_out(connected, message):
        assert not ring_begun.is_set()
        controller.answers["0>2"].set()


def test_neither_receives_nor_later_messages_hold_a_collective_up(
    connected: Session, controller: Controller
) -> None:
    controller.held.add(RING)
    connected.ask_ahead(issued(connected, "recv", "2>0", PAIR))
    ring = issued(connected, "all_gather", "ring", RING)
    connected.ask_ahead(issued(connected, "send", "0>2", PAIR))
    elsewhere = Configuration("pair", (2, 3))
    connected.ask_ahead(issued(connected, "send", "2>3", elsewhere))
    assert connected.try_hold(ring)
    assert controller.seen == [("ask", "2>0"), ("ask", "0>2"), ("ask", "2>3")]


def test_a_collective_that_waits_in_vain_goes_on_and_waits_less_the_next_time(
    connected: Session, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its receiver may come only after the collective."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.002)
    monkeypatch.setattr(module, "_IMPATIENT_S", 0.001)
    connected.ask_ahead(issued(connected, "send", "0>2", PAIR))
    controller.answers["ring"] = threading.Event()
    controller.answers["ring"].set()
    for _ in range(2):
        ring = issued(connected, "all_gather", "ring", RING)
        connected.ask_ahead(ring)
        assert ring.asked is None
        with carried_out(connected, ring):
            pass
    ring = issued(connected, "all_gather", "ring", RING)
    connected.ask_ahead(ring)
    assert ring.asked is not None, "after two waits in vain none is made"


def test_what_is_dropped_after_it_has_asked_is_taken_back(
    connected: Session, controller: Controller
) -> None:
    operation = issued(connected, "recv", "2>0", PAIR)
    connected.ask_ahead(operation)
    connected.drop(operation)
    connected.drop(operation)
    assert controller.seen == [("ask", "2>0"), ("abandon", "2>0")]


@pytest.mark.parametrize(("overtaken", "announced"), [(False, None), (True, PAIR)])
def test_a_posted_receive_holds_announcements_back_until_a_collective_overtakes_it(
    connected: Session, controller: Controller, overtaken: bool, announced: Configuration | None
) -> None:
    object.__setattr__(connected.options, "mode", "provisioned")
    connected.schedule = CircuitSchedule({0: (PAIR, RING, PAIR, RING, PAIR)})
    controller.held.add(RING)

    def ring() -> None:
        collective = issued(connected, "all_gather", "ring", RING)
        assert connected.try_hold(collective)
        if not overtaken:
            connected.ask_ahead(issued(connected, "recv", "2>0", PAIR))
        connected.end(collective)

    connected.ask_ahead(issued(connected, "recv", "2>0", PAIR))
    if not overtaken:
        connected.schedule = CircuitSchedule({0: (PAIR, RING, PAIR, PAIR)})
    ring()
    assert controller.seen[-1] == ("release", "ring", announced)


def test_what_follows_on_the_same_circuits_is_not_announced(
    connected: Session, controller: Controller
) -> None:
    object.__setattr__(connected.options, "mode", "provisioned")
    connected.schedule = CircuitSchedule({0: (RING, RING, PAIR)})
    controller.held.add(RING)
    for _ in range(2):
        collective = issued(connected, "all_gather", "ring", RING)
        assert connected.try_hold(collective)
        connected.end(collective)
    assert controller.seen == [("release", "ring", None), ("release", "ring", PAIR)]


def test_what_had_to_wait_after_all_counts_as_asked_and_not_as_held(
    connected: Session, controller: Controller
) -> None:
    controller.held.add(RING)
    collective = issued(connected, "all_gather", "ring", RING)
    assert connected.try_hold(collective)
    assert (connected.statistics.held, connected.statistics.requests) == (1, 0)
    for _ in range(2):
        connected._granted_late("ring", collective.sequence, Grant(0, 9, 3, 5, 1, False))
    seen = connected.statistics
    assert (seen.held, seen.requests, seen.reconfigurations) == (0, 1, 1)
    assert (seen.wait_ns, seen.stall_ns) == (3, 5)


def test_stalls_are_in_the_trace_up_to_the_grant(controller: Controller) -> None:
    session = Session(BackendOptions("gloo", None, "electrical", 1), Recorder(0))
    session.client = controller  # type: ignore[assignment]
    for stall_ns in (0, 5):
        operation = issued(session, "all_gather", "ring", RING)
        session.ask_ahead(operation)
        controller.grant = Grant(0, 1_000, 3, stall_ns, 1, False)
        controller.answers["ring"].set()
        with session.circuits(operation):
            pass
    rows = [row for row in session.recorder.table().to_pylist() if row["kind"] == RECONFIGURATION]
    assert [(row["start_ns"], row["end_ns"]) for row in rows] == [(995, 1_000)]
