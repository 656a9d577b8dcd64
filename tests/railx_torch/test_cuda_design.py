"""How operations on a CUDA device wait, held by fakes of events and streams.

A fake event has passed once the gates and events before it on its stream have.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch

from railx.fabric import Configuration, FabricError
from railx_torch import lanes as module
from railx_torch import trace
from railx_torch.lanes import Lanes, Work
from railx_torch.session import BackendOptions, Operation, Session
from railx_torch.trace import Recorder

RING = Configuration("ring", (0, 1))
DEVICE = torch.device("cuda", 0)
CHANGED = threading.Condition()
LIMIT_S = 60


def _until(condition: Callable[[], bool]) -> None:
    with CHANGED:
        assert CHANGED.wait_for(condition, LIMIT_S)


class Device:
    """What stands in for ``torch.cuda``."""

    def __init__(self) -> None:
        self.program = Stream()
        self.current = threading.local()
        self.waits: list[tuple[threading.Thread, Event]] = []
        self.Stream = lambda device=None: Stream()
        self.Event = lambda **options: Event(self, **options)

    def current_stream(self, device: Any = None) -> Stream:
        return getattr(self.current, "stream", self.program)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self.current.stream = stream
        try:
            yield
        finally:
            self.current.stream = before

    def device(self, device: Any) -> Any:
        return contextlib.nullcontext()


class Stream:
    """Holds back what comes behind gates that are closed and events ahead."""

    cuda_stream = 0

    def __init__(self) -> None:
        self.before: list[Callable[[], bool]] = []

    def wait_event(self, event: Event) -> None:
        self.before.append(event.query)


class Event:
    """Notes who waits for it on the host, and how."""

    def __init__(
        self, device: Device, *, enable_timing: bool = False, blocking: bool = False
    ) -> None:
        self._device = device
        self.timed, self.blocking = enable_timing, blocking
        self._before: tuple[Callable[[], bool], ...] = ()

    def record(self, stream: Stream | None = None) -> None:
        self._before = tuple((stream or self._device.current_stream()).before)

    def query(self) -> bool:
        return all(passed() for passed in self._before)

    def synchronize(self) -> None:
        assert self.blocking, "a host wait that spins"
        self._device.waits.append((threading.current_thread(), self))
        _until(self.query)

    def elapsed_time(self, end: Event) -> float:
        assert self.timed
        assert end.timed
        return 1.0


class Gate:
    """A gate, and all of them by the order of their making."""

    created: ClassVar[list[Gate]] = []

    def __init__(self) -> None:
        self.opened = False
        self.created.append(self)

    def hold(self, stream: Stream) -> None:
        stream.before.append(lambda: self.opened)

    def open(self) -> None:
        with CHANGED:
            self.opened = True
            CHANGED.notify_all()


class Circuits(Session):
    """A session whose circuits come, or are refused, when the test says so."""

    def __init__(self) -> None:
        super().__init__(BackendOptions("nccl", None, "electrical", 1), Recorder(0, keep=False))
        self.granted = False
        self.refused = False
        self.held = False

    def grant(self) -> None:
        with CHANGED:
            self.granted = True
            CHANGED.notify_all()

    def try_hold(self, operation: Operation, work: Any = None) -> bool:
        return self.held and super().try_hold(operation, work)

    @contextlib.contextmanager
    def circuits(self, operation: Operation) -> Iterator[None]:
        _until(lambda: self.granted)
        self.drop(operation)
        if self.refused:
            raise FabricError("no light")
        yield


class Handle:
    """What NCCL returns: its wait is one of the stream."""

    def wait(self) -> bool:
        return True


def _refuse(*_: object) -> None:
    raise AssertionError("the allocator would look at a stream where a reference does")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(module, "_cuda", device)
    monkeypatch.setattr(trace, "_cuda", device)
    monkeypatch.setattr(module, "Gate", Gate)
    monkeypatch.setattr(module, "has_gates", lambda _: True)
    monkeypatch.setattr(Gate, "created", [])
    monkeypatch.setattr(torch.Tensor, "record_stream", _refuse, raising=False)
    return device


@pytest.fixture
def session() -> Circuits:
    return Circuits()


@pytest.fixture
def lanes(device: Device, session: Circuits) -> Iterator[Lanes]:
    lanes = Lanes(session, inner_on_device=True)
    yield lanes
    session.grant()
    lanes.stop()


def _work(device: Device, call: Callable[[], Any] = lambda: None, kind: str = "all_gather") -> Work:
    """An operation behind what the program's stream has to do."""
    given, result = [torch.zeros(1)], [torch.zeros(1)]
    operation = Operation(kind, (0, 1), RING, "w", 0, 4, given, result, 60.0, DEVICE)
    operation.ready = device.Event(blocking=True)
    operation.ready.record(device.program)

    def launch(_: Any) -> Handle:
        call()
        return Handle()

    return Work(operation, launch)


def test_the_program_does_not_wait_for_circuits_but_its_stream_does(
    device: Device, session: Circuits, lanes: Lanes
) -> None:
    launched: list[int] = []
    works = [_work(device, lambda number=number: launched.append(number)) for number in range(3)]  # type: ignore[misc]
    for work in works:
        lanes.put(work, synchronous=True)
        assert work.wait()
    assert launched == [0, 1, 2]
    behind = device.Event(blocking=True)
    behind.record(device.program)
    assert not behind.query()
    assert not any(work.is_completed() for work in works)
    session.grant()
    behind.synchronize()
    assert all(gate.opened for gate in Gate.created)
    assert len(Gate.created) == 3
    me = threading.current_thread()
    assert [event for thread, event in device.waits if thread is me] == [behind]


def test_held_circuits_need_no_gate(device: Device, session: Circuits, lanes: Lanes) -> None:
    session.held = True
    work = _work(device)
    lanes.put(work, synchronous=False)
    assert work.wait()
    assert Gate.created == []
    session.held = False
    # One that has to ask comes behind, and no later one before it.
    lanes.put(_work(device), synchronous=False)
    session.held = True
    lanes.put(_work(device), synchronous=False)
    assert len(Gate.created) == 2
    assert not Gate.created[1].opened


def test_without_gates_the_launch_comes_after_the_grant(
    device: Device, session: Circuits, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_gates", lambda _: False)
    launched: list[bool] = []
    work = _work(device, lambda: launched.append(session.granted))
    lanes.put(work, synchronous=False)
    assert launched == []
    session.grant()
    assert work.wait()
    assert launched == [True]
    assert Gate.created == []


def test_references_keep_memory_until_the_device_is_through(
    device: Device, session: Circuits, lanes: Lanes
) -> None:
    work = _work(device)
    kept = weakref.ref(work.operation.inputs[0])
    lanes.put(work, synchronous=False)
    work.wait()
    end = work._event
    del work
    gc.collect()
    assert kept() is not None
    session.grant()
    end.synchronize()
    lanes.stop()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("held", [True, False])
def test_a_synchronous_collective_of_nccl_has_no_handle(
    device: Device, session: Circuits, lanes: Lanes, *, held: bool
) -> None:
    session.held = held
    session.grant()
    work = _work(device)
    work.call = lambda _: None
    lanes.put(work, synchronous=True)
    assert work.wait()
    work._event.synchronize()


@pytest.mark.parametrize("held", [True, False])
def test_a_barrier_of_nccl_blocks_its_lane_and_not_at_a_gate(
    device: Device, session: Circuits, lanes: Lanes, *, held: bool
) -> None:
    session.held = held
    blocked = []

    def barrier() -> None:
        blocked.append(threading.current_thread())
        passed = device.Event(blocking=True)
        passed.record(device.current_stream())
        passed.synchronize()

    work = _work(device, barrier, "barrier")
    lanes.put(work, synchronous=False)
    session.grant()
    assert work.wait()
    assert Gate.created == []
    assert threading.current_thread() not in blocked


def test_the_device_may_read_a_gate_after_a_failure(
    device: Device, session: Circuits, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[weakref.ref[Gate]] = []

    class Weak(Gate):
        def __init__(self) -> None:
            gates.append(weakref.ref(self))
            self.opened = False

        def hold(self, stream: Stream) -> None:
            here = weakref.ref(self)
            stream.before.append(lambda: (gate := here()) is not None and gate.opened)

    monkeypatch.setattr(module, "Gate", Weak)
    session.refused = True
    for launch in (lambda: None, lambda: None, lambda: 1 / 0):
        lanes.put(_work(device, launch), synchronous=False)
    behind = device.Event(blocking=True)
    behind.record(next(iter(lanes._streams.values())))
    session.grant()
    lanes.stop()
    gc.collect()
    assert len(gates) == 3
    assert behind.query(), "a gate that is gone may be closed again"


def test_a_refusal_opens_the_gate_and_reaches_the_program(
    device: Device, session: Circuits, lanes: Lanes
) -> None:
    session.refused = True
    work = _work(device)
    lanes.put(work, synchronous=False)
    assert work.wait(), "the program is ahead of the refusal"
    session.grant()
    device.current_stream().wait_event(work._event)
    behind = device.Event(blocking=True)
    behind.record(device.program)
    behind.synchronize()
    lanes.stop()
    with pytest.raises(RuntimeError, match="all_gather of ranks 0, 1 failed: no light"):
        work.wait()
    with pytest.raises(RuntimeError, match="no light"):
        lanes.put(_work(device), synchronous=False)


def test_copies_through_the_host_wait_without_spinning(device: Device, session: Circuits) -> None:
    lanes = Lanes(session, inner_on_device=False)
    session.grant()
    work = _work(device)
    lanes.put(work, synchronous=False)
    assert work.wait()
    lanes.stop()
    assert len(device.waits) == 3, "for the device, for the copies there, for those back"


def test_marks_of_a_trace_wait_without_spinning(device: Device) -> None:
    recorder = Recorder(0, device="cuda")
    recorder.begin_iteration(0)
    with recorder.span("forward"):
        pass
    recorder.end_iteration()
    assert recorder.table().num_rows == 2
    assert device.waits


class Pending:
    """A handle of gloo with a future that ends when the test says so."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.future: torch.futures.Future[None] = torch.futures.Future()

    def is_completed(self) -> bool:
        return self.over.is_set()

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[None]:
        return self.future

    def wait(self) -> bool:
        assert self.over.wait(LIMIT_S)
        return True

    def end(self) -> None:
        # As gloo does: the future ends before the handle.
        self.future.set_result(None)
        self.over.set()


def test_a_future_for_each_bucket_takes_no_thread_for_each() -> None:
    session = Circuits()
    session.held = True
    lanes = Lanes(session, inner_on_device=False)
    handles = [Pending() for _ in range(50)]
    works = []
    before = threading.active_count()
    for handle in handles:
        tensors = [torch.zeros(1)]
        host = torch.device("cpu")
        operation = Operation("all_reduce", (0, 1), RING, "w", 0, 4, tensors, tensors, 60.0, host)
        works.append(Work(operation, lambda _, handle=handle: handle))  # type: ignore[misc]
        lanes.put(works[-1], synchronous=False)
    futures = [work.get_future() for work in works]
    assert threading.active_count() <= before
    for handle in handles:
        handle.end()
    assert [future.wait() for future in futures] == [work.operation.outputs for work in works]
    lanes.stop()
