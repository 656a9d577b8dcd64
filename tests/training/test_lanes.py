"""Lanes by themselves: who begins an operation, in which order, who sees its end."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from railx.fabric import Configuration, FabricError
from railx_torch import lanes as module
from railx_torch.lanes import Lanes, Pair, Work
from railx_torch.session import BackendOptions, Operation, Session, Watched
from railx_torch.trace import Recorder

RING = Configuration("ring", (0, 1))


class Gate(Session):
    """A session whose circuits come when the test lets them."""

    def __init__(self) -> None:
        super().__init__(BackendOptions("gloo", None, "electrical", 1), Recorder(0))
        self.held = False
        self.coming = threading.Event()
        self.asked = threading.Event()
        self.dropped: list[Operation] = []

    def drop(self, operation: Operation) -> None:
        self.dropped.append(operation)
        super().drop(operation)

    def try_hold(self, operation: Operation, work: Watched | None = None) -> bool:
        return self.held and super().try_hold(operation, work)

    @contextlib.contextmanager
    def circuits(self, operation: Operation) -> Iterator[None]:
        self.asked.set()
        assert self.coming.wait(60)
        self.drop(operation)
        yield


class Handle:
    """What an inner group returns: it ends when the test says so."""

    def __init__(self, *, over: bool = False, error: str = "") -> None:
        self.over = threading.Event()
        self.error = error
        if over:
            self.over.set()

    def is_completed(self) -> bool:
        return self.over.is_set()

    def is_success(self) -> bool:
        return not self.error

    def wait(self) -> bool:
        assert self.over.wait(60)
        if self.error:
            raise RuntimeError(self.error)
        return True


def operation(channel: str = "group", tensor: torch.Tensor | None = None) -> Operation:
    tensors = [torch.zeros(1) if tensor is None else tensor]
    return Operation(
        "all_reduce", (0, 1), RING, channel, 0, 4, tensors, tensors, 60.0, torch.device("cpu")
    )


@pytest.fixture
def session() -> Gate:
    return Gate()


@pytest.fixture
def lanes(session: Gate) -> Iterator[Lanes]:
    lanes = Lanes(session, inner_on_device=False)
    yield lanes
    lanes.stop()


def test_held_circuits_need_no_thread(session: Gate, lanes: Lanes) -> None:
    session.held = True
    begun_by = []

    def call(_: Any) -> Handle:
        begun_by.append(threading.current_thread())
        return Handle(over=True)

    threads = threading.active_count()
    for _ in range(3):
        work = Work(operation(), call)
        lanes.put(work, synchronous=True)
        assert work.wait()
    assert begun_by == [threading.current_thread()] * 3
    assert threading.active_count() <= threads
    assert not session.asked.is_set()


def test_a_lane_ends_what_nobody_waits_for(session: Gate, lanes: Lanes) -> None:
    session.held = True
    handle = Handle()
    work = Work(operation(), lambda _: handle)
    lanes.put(work, synchronous=False)
    future = work.get_future()
    assert not work.is_completed()
    handle.over.set()
    assert future.wait() == work.operation.outputs
    assert work.is_success()


def test_nothing_overtakes_what_waits_for_circuits(session: Gate, lanes: Lanes) -> None:
    """Gloo tells collectives apart by their order alone."""
    order: list[int] = []

    def numbered(number: int) -> Work:
        def call(_: Any) -> Handle:
            order.append(number)
            return Handle(over=True)

        return Work(operation(), call)

    works = [numbered(number) for number in range(4)]
    lanes.put(works[0], synchronous=False)
    session.held = True
    lanes.put(works[1], synchronous=False)
    third = threading.Thread(target=lanes.put, args=(works[2],), kwargs={"synchronous": True})
    third.start()
    assert order == []
    session.coming.set()
    works[1].wait()
    third.join(60)
    lanes.put(works[3], synchronous=True)
    for work in works:
        work.wait()
    assert order == [0, 1, 2, 3]
    assert [work.operation.sequence for work in works] == [0, 1, 2, 3]


def test_a_lane_without_operations_has_no_thread(
    session: Gate, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may give every message a tag of its own."""
    monkeypatch.setattr(module, "_IDLE_S", 0.001)
    session.coming.set()
    begun_by: list[threading.Thread] = []

    def call(_: Any) -> Handle:
        begun_by.append(threading.current_thread())
        return Handle(over=True)

    for number in range(2):
        work = Work(operation(), call)
        lanes.put(work, synchronous=False)
        assert work.wait()
        begun_by[number].join(60)
        assert not begun_by[number].is_alive()
    lanes.stop()
    late = Work(operation(), lambda _: Handle(over=True))
    lanes.put(late, synchronous=False)
    with pytest.raises(RuntimeError, match="shut down before its all_reduce began"):
        late.wait()


def test_channels_do_not_wait_for_each_other(session: Gate, lanes: Lanes) -> None:
    waiting = Work(operation("one"), lambda _: Handle(over=True))
    lanes.put(waiting, synchronous=False)
    session.held = True
    other = Work(operation("other"), lambda _: Handle(over=True))
    lanes.put(other, synchronous=False)
    assert other.wait()
    assert not waiting.is_completed()
    session.coming.set()
    assert waiting.wait()


def test_errors_come_to_who_waits_and_to_futures(session: Gate, lanes: Lanes) -> None:
    session.held = True
    line = "railx: all_reduce of ranks 0, 1 failed: peer gone"
    for synchronous in (True, False):
        work = Work(operation(), lambda _: Handle(over=True, error="peer gone"))
        lanes.put(work, synchronous=synchronous)
        with pytest.raises(RuntimeError, match=line):
            work.wait()
        with pytest.raises(RuntimeError, match=line):
            work.get_future().wait()
        assert work.is_completed()
        assert not work.is_success()

    def refuse(_: Any) -> Handle:
        raise ValueError("no such tensor")

    work = Work(operation(), refuse)
    lanes.put(work, synchronous=True)
    with pytest.raises(RuntimeError, match="failed: no such tensor"):
        work.wait()


def test_what_hangs_on_a_future_may_use_the_work(session: Gate, lanes: Lanes) -> None:
    """It runs outside the work's lock."""
    session.held = True
    handle = Handle()
    work = Work(operation(), lambda _: handle)
    lanes.put(work, synchronous=False)
    seen = work.get_future().then(lambda _: (work.is_success(), work.get_future().done()))
    handle.over.set()
    assert seen.wait() == (True, True)


def test_a_finished_work_keeps_its_results_alone(session: Gate, lanes: Lanes) -> None:
    session.held = True
    sent, received = torch.zeros(4), torch.zeros(4)
    asked = operation(tensor=sent)
    asked.outputs = [received]
    kept = weakref.ref(sent)
    work = Work(asked, lambda _, sent=sent: Handle(over=True))  # type: ignore[misc]
    del sent
    lanes.put(work, synchronous=False)
    work.wait()
    lanes.stop()
    gc.collect()
    assert kept() is None
    assert work.result()[0] is received


def test_no_thread_watches_what_needs_no_end(session: Gate, lanes: Lanes) -> None:
    """A program may end while it does not care for a message."""
    session.held = True
    session.recorder = Recorder(0, keep=False)
    handle = Handle()
    work = Work(operation(), lambda _: handle)
    threads = threading.active_count()
    lanes.put(work, synchronous=False)
    assert threading.active_count() <= threads
    assert not work.is_completed(), "from here on a thread looks after it"
    handle.over.set()
    assert work.get_future().wait() == work.operation.outputs


def test_a_wait_may_have_a_limit(session: Gate, lanes: Lanes) -> None:
    session.held = True
    handle = Handle()
    work = Work(operation(), lambda _: handle)
    lanes.put(work, synchronous=False)
    with pytest.raises(RuntimeError, match=r"Timed out waiting 1ms for all_reduce"):
        work.wait(timedelta(milliseconds=1))
    handle.over.set()
    assert work.wait()


def test_a_group_that_is_shut_down_refuses_what_has_not_begun(
    session: Gate, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Work(operation(), lambda _: Handle(over=True))
    second = Work(operation(), lambda _: Handle(over=True))
    lanes.put(first, synchronous=False)
    lanes.put(second, synchronous=False)
    assert session.asked.wait(60)
    monkeypatch.setattr(module, "_SHUTDOWN_S", 0)
    lanes.stop()
    session.coming.set()
    assert first.wait()
    with pytest.raises(RuntimeError, match="shut down before its all_reduce began"):
        second.wait()
    # A question that it had asked is taken back.
    assert session.dropped == [first.operation, second.operation]


def test_a_group_that_is_shut_down_waits_for_the_ends_that_are_watched(
    session: Gate, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that comes out of gloo while Python ends would abort the process."""
    session.held = True
    session.recorder = Recorder(0, keep=False)
    handle = Handle()
    work = Work(operation(), lambda _: handle)
    lanes.put(work, synchronous=False)
    assert not work.is_completed(), "from here on a thread looks after it"
    monkeypatch.setattr(module, "_SHUTDOWN_S", 60)
    threading.Timer(0.2, handle.over.set).start()
    lanes.stop()
    assert handle.over.is_set()
    assert work._finished


class Communicator:
    """Comes up when both ends have come; one direction."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)
        self.uses = 0

    def exchange(self, _: torch.Tensor) -> Handle:
        self.uses += 1
        if self.uses <= 2:
            self._both.wait(60)
        return Handle(over=True)


def test_two_ranks_may_begin_with_different_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each issues its send first.

    A communicator that comes up with the first message of its direction would wait for
    the other rank, which waits in the other one.
    """
    monkeypatch.setattr(module, "_passed", lambda _: None)
    up, down = Communicator(), Communicator()
    ranks = [Pair((up.exchange, down.exchange)) for _ in range(2)]
    errors = []

    def lane(pair: Pair) -> None:
        try:
            pair.bring_up(torch.device("cpu"))
        except threading.BrokenBarrierError as error:
            errors.append(error)

    # Two lanes on each rank, one for each direction.
    threads = [threading.Thread(target=lane, args=(pair,)) for pair in ranks for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert all(pair.is_up for pair in ranks)
    assert (up.uses, down.uses) == (2, 2), "once on each rank"


def test_a_message_of_a_pair_that_is_not_up_never_begins_in_its_thread(
    session: Gate, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever issues may be what the peer waits for."""
    session.held = True
    pair = Pair(())
    work = Work(operation(), lambda _: Handle(over=True), pair)
    assert not lanes._may_begin_here(work)
    monkeypatch.setattr(module, "_passed", lambda _: None)
    pair.bring_up(torch.device("cpu"))
    assert lanes._may_begin_here(work)


def test_an_end_is_seen_while_the_lane_waits_for_circuits(session: Gate, lanes: Lanes) -> None:
    """They may come only after that end, where its lease was recalled."""
    session.held = True
    session.recorder = Recorder(0, keep=False)
    handle = Handle()
    first = Work(operation(), lambda _: handle)
    lanes.put(first, synchronous=False)
    session.held = False
    second = Work(operation(), lambda _: Handle(over=True))
    lanes.put(second, synchronous=False)
    assert session.asked.wait(60)
    future = first.get_future()
    handle.over.set()
    assert future.wait() == first.operation.outputs
    assert not second.is_completed()
    session.coming.set()
    assert second.wait()


def test_a_receive_that_finds_its_sender_ends_with_what_it_found(
    session: Gate, lanes: Lanes
) -> None:
    session.held = True
    asked = operation("any")
    asked.kind = "recv"
    work = Work(asked, lambda _: None)
    coming = threading.Event()

    def find() -> tuple[Work, int]:
        assert coming.wait(60)
        found = Work(operation("3>0"), lambda _: Handle(over=True))
        assert not lanes.put(found, synchronous=False, sequence=lanes.next_sequence("3>0") + 1)
        assert lanes.put(found, synchronous=False, sequence=lanes.next_sequence("3>0"))
        return found, 3

    lanes.follow(work, find)
    assert not work.is_completed()
    coming.set()
    assert work.wait()
    assert work._source_rank() == 3

    def refuse() -> tuple[Work, int]:
        raise FabricError("rank 3 has left")

    work = Work(asked, lambda _: None)
    lanes.follow(work, refuse)
    with pytest.raises(RuntimeError, match=r"recv of ranks 0, 1 failed: rank 3 has left"):
        work.wait()
