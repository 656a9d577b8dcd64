"""Lanes: operations of a process group one after another, each under its circuits.

An operation whose circuits are held already, or that needs none, begins in the thread
that issues it, as the inner group's own would; whoever waits for it sees its end, or
else the lane's thread does. Any other waits for its turn in its lane, asks for its
circuits, is carried out on the host, through the host or on the device, and gives the
circuits back. What is notable stands in :mod:`training.backend`.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _TorchWork

from railx.fabric import FabricError
from training.session import Operation, Session

__all__ = ["Lanes", "Pair", "ToHost", "Work", "in_place"]

#: How long a group that is shut down waits for the threads of its lanes.
_SHUTDOWN_S = 5.0

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda

_NO_LIMIT = timedelta(0)

#: Completes futures: what is chained to one may issue operations and wait for them, so
#: it must run neither on a lane nor where another such one waits.
_FUTURES = ThreadPoolExecutor(256, "railx futures")

#: From a tensor to the one that the inner group works on: itself, or its host copy.
ToHost = Callable[[torch.Tensor], torch.Tensor]


class Pair:
    """What two ranks need before NCCL carries their first message.

    NCCL makes a communicator when it is first used, and both ends wait for each other
    in it. Each direction has one of its own, and two ranks may well begin with
    different directions. So the first message of a pair, whichever it is, brings up
    both in one order: ``exchanges`` move one number, to the higher rank, then to the
    lower one. This may take until the peer comes, and is never done in the thread that
    issues, where the peer may be waiting for something else of this rank.
    """

    def __init__(self, exchanges: tuple[Callable[[torch.Tensor], Any], ...]) -> None:
        self._exchanges = exchanges
        self._lock = threading.Lock()
        self.is_up = False

    def bring_up(self, device: torch.device) -> None:
        """Wait for the peer, once, on the current stream."""
        with self._lock:
            if self.is_up:
                return
            number = torch.zeros(1, device=device)
            for exchange in self._exchanges:
                exchange(number).wait()
            _passed(device)
            self.is_up = True


class Work(_TorchWork):
    """The handle of one operation.

    ``wait`` also makes the current CUDA stream wait for what the device still has to
    do. ``pair`` has to be up before the operation begins.
    """

    # What most operations never set stands in the class: making a handle is part of
    # every operation's cost.
    #: The inner group's handle, once there is one.
    inner: Any = None
    #: The rank of the group that sends what is received, where it is known.
    source: int | None = None
    #: Whether someone sees the end, whoever waits.
    watched = True
    #: Whose thread that is.
    lane: _Lane | None = None
    _finished = False
    _over: threading.Event | None = None
    _end: Callable[[Work], None] | None = None
    _error: BaseException | None = None
    _event: Any = None
    _future_stream: Any = None
    _future: Any = None

    def __init__(
        self, operation: Operation, call: Callable[[ToHost], Any], pair: Pair | None = None
    ) -> None:
        super().__init__()
        self.operation = operation
        self.call = call
        self.pair = pair
        self._lock = threading.Lock()

    def begun(self, end: Callable[[Work], None]) -> None:
        """It is under way; ``end`` waits for its end and finishes this work.

        It is called once, by whoever comes first.
        """
        with self._lock:
            self._end = end
            lane = self.lane if self.watched else None
        if lane is not None:
            # Someone asked for it before it had begun.
            lane.watch(self)

    def see_end(self) -> None:
        """Wait for the end, unless someone else does so already."""
        with self._lock:
            end, self._end = self._end, None
        if end is not None:
            end(self)

    def watch_in_lane(self) -> None:
        """Let the lane's thread see the end; before anything comes after it there."""
        with self._lock:
            watched, self.watched = self.watched, True
            lane = self.lane if self._end is not None else None
        if not watched and lane is not None:
            lane.watch(self)

    def have_watched(self) -> None:
        """Let someone see the end, unless someone does so already; does not wait.

        The lane's thread may be waiting for circuits that come only after this end. So
        what has not ended yet gets a thread of its own.
        """
        with self._lock:
            watched, self.watched = self.watched, True
            begun = self._end is not None
        if watched or not begun:
            return
        if self.inner is not None and self.inner.is_completed() and self.inner.is_success():
            self.see_end()
        else:
            threading.Thread(target=self.see_end, name="railx end", daemon=True).start()

    def finish(
        self, error: BaseException | None = None, event: Any = None, future_stream: Any = None
    ) -> None:
        """The host's part is over.

        ``event`` has passed when the device's part is over too; ``future_stream``
        has nothing to do but to wait for such events.
        """
        with self._lock:
            if self._finished:
                # The device failed after its part was launched.
                self._error = self._error or error
                return
            if error is not None:
                self._error = error
            if event is not None:
                self._event, self._future_stream = event, future_stream
            # Whoever keeps the handle keeps no tensors but the results.
            self.operation.inputs = []
            self.call = _nothing
            if self.source is not None or self.operation.kind != "recv":
                self.inner = None
            self._finished = True
            future, over = self._future, self._over
        if over is not None:
            over.set()
        if future is not None:
            _FUTURES.submit(self._complete, future)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait for the host's part; raises what went wrong.

        The current CUDA stream then waits for the device's part.
        """
        record = self.operation.record
        if record is None:
            return self._wait(timeout)
        with record.waiting():
            return self._wait(timeout)

    def _wait(self, timeout: timedelta) -> bool:
        if not self._finished:
            if timeout <= _NO_LIMIT:
                self.see_end()
                self._until_finished(None)
            else:
                self.have_watched()
                self._until_finished(timeout.total_seconds())
        if self._error is not None:
            raise self._error
        if self._event is not None:
            _cuda.current_stream(self.operation.device).wait_event(self._event)
        return True

    def _until_finished(self, limit_s: float | None) -> None:
        with self._lock:
            if self._finished:
                return
            if self._over is None:
                self._over = threading.Event()
            over = self._over
        if not over.wait(limit_s):
            raise RuntimeError(f"railx: {self.operation.kind} was not done within {limit_s:g} s")

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether host and device are through."""
        self.have_watched()
        return self._finished and (self._event is None or self._event.query())

    def is_success(self) -> bool:
        """Whether it ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The output tensors, once they are there."""
        self.wait()
        return self.operation.outputs

    def source_rank(self) -> int:
        """Which rank of the group sent what was received."""
        return self._source_rank()

    def _source_rank(self) -> int:
        self.wait()
        return int(self.inner._source_rank()) if self.source is None else self.source

    def get_future(self) -> Any:
        """A future of the output tensors."""
        self.have_watched()
        with self._lock:
            future, made = self._future, self._future is None
            if made:
                devices: list[int | str | torch.device] = (
                    [self.operation.device] if self.operation.device.type == "cuda" else []
                )
                future = self._future = torch.futures.Future(devices=devices)
            over = made and self._finished
        if over:
            self._complete(future)
        return future

    def _complete(self, future: Any) -> None:
        """Complete the future, outside the lock: what waits for it runs here."""
        if self._error is not None:
            future.set_exception(self._error)
        elif self._event is not None:
            # The future notes the current stream, which here has to stand behind the
            # operation, and behind nothing that came after it.
            with _cuda.stream(self._future_stream):
                self._future_stream.wait_event(self._event)
                future.set_result(self.operation.outputs)
        else:
            future.set_result(self.operation.outputs)


class _Lane:
    """The operations of one channel, in the order of issue.

    They begin in this order. Those that wait run one after another on the lane's
    thread; where nothing is before it, one may run in the thread that brings it.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._jobs: queue.SimpleQueue[Callable[[bool], None] | None] = queue.SimpleQueue()
        #: Held while the order of the channel is decided.
        self.order = threading.Lock()
        self.sequence = 0
        self._running = threading.Lock()
        self._count = threading.Lock()
        self._unfinished = 0
        self._not_begun = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def all_begun(self) -> bool:
        """Whether nothing waits for its turn."""
        return self._not_begun == 0

    def watch(self, work: Work) -> None:
        """Let the thread see to the end of an operation that has begun."""
        self._add(lambda _: work.see_end(), in_place=False)

    def put(self, job: Callable[[bool], None], *, in_place: bool) -> Callable[[], None] | None:
        """Add an operation that begins when its turn comes; ``begun`` says so.

        ``job`` takes whether it may still be carried out (False once the lane was
        stopped). ``in_place``: it may run in this thread where nothing is before it;
        then it is returned instead, to be called without the lock on the order.
        """
        with self._count:
            self._not_begun += 1
        return self._add(job, in_place=in_place)

    def begun(self) -> None:
        """An operation that was put has begun, or will not."""
        with self._count:
            self._not_begun -= 1

    def _add(self, job: Callable[[bool], None], *, in_place: bool) -> Callable[[], None] | None:
        with self._count:
            run_now = in_place and self._unfinished == 0
            self._unfinished += 1
            if run_now:
                self._running.acquire()
            elif self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name=f"railx {self._channel}", daemon=True
                )
                self._thread.start()
        if not run_now:
            self._jobs.put(job)
            return None
        return functools.partial(self._run_here, job)

    def _run_here(self, job: Callable[[bool], None]) -> None:
        try:
            job(not self._stopped)
        finally:
            self._running.release()
            self._done()

    def stop(self) -> None:
        """Refuse what has not begun and end the thread."""
        self._stopped = True
        self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SHUTDOWN_S)

    def _done(self) -> None:
        with self._count:
            self._unfinished -= 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._running:
                job(not self._stopped)
            # What the last job held must not live until the next one comes.
            del job
            self._done()


def in_place(tensor: torch.Tensor) -> torch.Tensor:
    """The inner group works on the tensor itself."""
    return tensor


def _refused(operation: Operation) -> str:
    return f"railx: the process group was shut down before its {operation.kind} began"


def _nothing(_: ToHost) -> None:
    return None


def _passed(device: torch.device) -> None:
    """Wait, without spinning, until the current stream has come this far."""
    event = _cuda.Event(blocking=True)
    event.record(_cuda.current_stream(device))
    event.synchronize()


@dataclass
class _Pinned:
    """Host copies of an operation's CUDA tensors."""

    copies: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The host copy of a CUDA tensor (the same one each time).

        A tensor on the host stands for itself.
        """
        if tensor.device.type != "cuda":
            return tensor
        if id(tensor) not in self.copies:
            self.copies[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return self.copies[id(tensor)]


class Lanes:
    """The lanes of one process group, by channel.

    ``inner_on_device`` says that the inner group works on CUDA tensors on the device
    (NCCL), not on copies in host memory (gloo).
    """

    def __init__(self, session: Session, *, inner_on_device: bool) -> None:
        self._session = session
        self._inner_on_device = inner_on_device
        self._lanes: dict[str, _Lane] = {}
        self._streams: dict[str, Any] = {}

    def put(self, work: Work, *, synchronous: bool, sequence: int | None = None) -> bool:
        """Begin a work at once where its circuits allow it, else bring it to its lane.

        ``synchronous``: whoever brings it waits for it next. False where ``sequence``
        is given and the number of the next operation is another: nothing has happened.
        """
        operation = work.operation
        lane = self._lane(operation.channel)
        with lane.order:
            if sequence not in (None, lane.sequence):
                return False
            operation.sequence, lane.sequence = lane.sequence, lane.sequence + 1
            self._session.issue(operation)
            first = lane.all_begun()
            if first and self._may_begin_here(work):
                work.lane, work.watched = lane, False
                if self._session.try_hold(operation, work):
                    self._begin_here(work)
                    if self._on_device(operation) or (
                        not synchronous and self._session.end_matters(operation)
                    ):
                        work.watch_in_lane()
                    return True
                work.lane, work.watched = None, True
            if first and operation.device.type == "cpu":
                # On a device it stands before its circuits when the device does.
                self._session.ask_ahead(operation)
            on_host = operation.device.type == "cpu" or not self._inner_on_device
            run = lane.put(
                functools.partial(self._carry_out, work, lane), in_place=synchronous and on_host
            )
        if run is not None:
            run()
        return True

    def follow(self, work: Work, find: Callable[[], tuple[Work, int]]) -> None:
        """Carry a receive out that has to find its sender.

        ``find`` waits for one, and issues the receive from it; what it returns is that
        receive and the sender's rank in the group. It runs on the lane's thread.
        """
        lane = self._lane(work.operation.channel)

        def carry_out(wanted: bool) -> None:
            lane.begun()
            try:
                if not wanted:
                    raise RuntimeError(_refused(work.operation))
                found, work.source = find()
                found.wait()
                work.finish(event=found._event, future_stream=found._future_stream)
            except FabricError as error:
                work.finish(self._explain(work.operation, error))
            except Exception as error:
                work.finish(error)

        lane.put(carry_out, in_place=False)

    def next_sequence(self, channel: str) -> int:
        """The number of the operation that is issued next on a channel."""
        return self._lane(channel).sequence

    def _lane(self, channel: str) -> _Lane:
        return self._lanes.get(channel) or self._lanes.setdefault(channel, _Lane(channel))

    def nothing_waits(self, channel: str) -> bool:
        """Whether every operation of a channel has begun."""
        lane = self._lanes.get(channel)
        return lane is None or lane.all_begun()

    def stop(self) -> None:
        """End all lanes; what has not begun ends in an error."""
        self._session.watch_unseen()
        for lane in list(self._lanes.values()):
            lane.stop()

    def _on_device(self, operation: Operation) -> bool:
        return self._inner_on_device and operation.device.type == "cuda"

    def _may_begin_here(self, work: Work) -> bool:
        """Whether beginning it takes no waiting (for copies, or for a peer)."""
        if work.operation.device.type == "cuda" and not self._inner_on_device:
            return False
        return work.pair is None or work.pair.is_up

    def _begin_here(self, work: Work) -> None:
        """Begin an operation that holds its circuits."""
        operation = work.operation
        try:
            if self._on_device(operation):
                with torch.no_grad():
                    self._launch(work)
                work.begun(self._end_on_device)
            elif operation.record is None:
                work.inner = work.call(in_place)
                work.begun(self._end_on_host)
            else:
                start_ns, busy_ns = time.monotonic_ns(), time.thread_time_ns()
                work.inner = work.call(in_place)
                busy_ns = time.thread_time_ns() - busy_ns
                work.begun(functools.partial(self._record_end, start_ns, busy_ns))
        except Exception as error:
            self._session.end(operation)
            work.finish(self._explain(operation, error))

    def _end_on_host(self, work: Work) -> None:
        error: Exception | None = None
        try:
            work.inner.wait()
        except Exception as found:
            error = self._explain(work.operation, found)
        self._session.end(work.operation)
        work.finish(error)

    def _record_end(self, start_ns: int, busy_ns: int, work: Work) -> None:
        error: Exception | None = None
        began_ns = time.thread_time_ns()
        try:
            work.inner.wait()
            busy_ns += time.thread_time_ns() - began_ns
            self._record(work.operation, start_ns, time.monotonic_ns(), busy_ns)
        except Exception as found:
            error = self._explain(work.operation, found)
        self._session.end(work.operation)
        work.finish(error)

    def _end_on_device(self, work: Work) -> None:
        try:
            self._watch(work)
        except Exception as error:
            work.finish(self._explain(work.operation, error))
        self._session.end(work.operation)

    def _stream(self, operation: Operation, purpose: str = "") -> Any:
        """The CUDA stream of the operation's lane (for one purpose of several)."""
        name = f"{operation.channel} {operation.device.index} {purpose}"
        if name not in self._streams:
            self._streams[name] = _cuda.Stream(operation.device)
        return self._streams[name]

    def _carry_out(self, work: Work, lane: _Lane, wanted: bool) -> None:
        """Carry a work out where its tensors are.

        Refuse it where it is not wanted any more.
        """
        begun = _Once(lane.begun)
        try:
            if not wanted:
                self._session.drop(work.operation)
                work.finish(RuntimeError(_refused(work.operation)))
            elif self._on_device(work.operation):
                self._guarded(work, self._through_device, begun)
            elif work.operation.device.type == "cuda":
                self._guarded(work, self._through_host, begun)
            else:
                self._guarded(work, self._within_host, begun)
        finally:
            begun()

    def _guarded(
        self, work: Work, part: Callable[[Work, Callable[[], None]], None], begun: _Once
    ) -> None:
        """Whatever goes wrong belongs to whoever waits for the work."""
        try:
            with torch.no_grad():
                part(work, begun)
        except Exception as error:
            self._session.drop(work.operation)
            begun()
            work.finish(self._explain(work.operation, error))

    def _explain(self, operation: Operation, error: Exception) -> Exception:
        ranks = ", ".join(map(str, operation.group))
        client = self._session.client
        reason = str(error)
        if client is not None and not isinstance(error, FabricError):
            # The inner group only saw a connection close; the controller knows whose.
            reason = client.reason_of_failure(operation.group) or reason
        explained = RuntimeError(f"railx: {operation.kind} of ranks {ranks} failed: {reason}")
        explained.__cause__ = error
        return explained

    def _on_host(self, work: Work, place: ToHost, begun: Callable[[], None]) -> None:
        with self._session.circuits(work.operation):
            start_ns, busy_ns = time.monotonic_ns(), time.thread_time_ns()
            work.inner = work.call(place)
            begun()
            work.inner.wait()
            times = (start_ns, time.monotonic_ns(), time.thread_time_ns() - busy_ns)
        self._record(work.operation, *times)

    def _within_host(self, work: Work, begun: Callable[[], None]) -> None:
        self._on_host(work, in_place, begun)
        work.finish()

    def _through_host(self, work: Work, begun: Callable[[], None]) -> None:
        operation, pinned = work.operation, _Pinned()
        with _cuda.device(operation.device):
            stream = self._stream(operation)
            with _cuda.stream(stream):
                operation.ready.synchronize()
                for tensor in operation.inputs:
                    pinned.of(tensor).copy_(tensor, non_blocking=True)
                _passed(operation.device)
                self._on_host(work, pinned.of, begun)
                for tensor in operation.outputs:
                    tensor.copy_(pinned.of(tensor), non_blocking=True)
                    tensor.record_stream(stream)
                end = _cuda.Event()
                end.record(stream)
        work.finish(event=end, future_stream=self._stream(operation, "future"))

    def _through_device(self, work: Work, begun: Callable[[], None]) -> None:
        # Only when the device has come this far does the operation stand before its
        # circuits.
        work.operation.ready.synchronize()
        with self._session.circuits(work.operation):
            if work.pair is not None:
                with (
                    _cuda.device(work.operation.device),
                    _cuda.stream(self._stream(work.operation)),
                ):
                    work.pair.bring_up(work.operation.device)
            self._launch(work)
            begun()
            self._watch(work)

    def _launch(self, work: Work) -> None:
        """Start an NCCL operation.

        The work's handle ends with an event behind it.
        """
        operation = work.operation
        with _cuda.device(operation.device):
            stream = self._stream(operation)
            stream.wait_event(operation.ready)
            with _cuda.stream(stream):
                operation.ready = _cuda.Event(enable_timing=True)
                operation.ready.record(stream)
                work.call(in_place).wait()
                for tensor in (*operation.inputs, *operation.outputs):
                    if tensor.device.type == "cuda":
                        tensor.record_stream(stream)
                end = _cuda.Event(enable_timing=True, blocking=True)
                end.record(stream)
        work.finish(event=end, future_stream=self._stream(operation, "future"))

    def _watch(self, work: Work) -> None:
        """Wait for the device and record what it did."""
        end = work._event
        end.synchronize()
        end_ns, busy_ns = time.monotonic_ns(), round(work.operation.ready.elapsed_time(end) * 1e6)
        self._record(work.operation, end_ns - busy_ns, end_ns, busy_ns)

    def _record(self, operation: Operation, start_ns: int, end_ns: int, busy_ns: int) -> None:
        if operation.record is not None:
            operation.record.ran(start_ns, end_ns, busy_ns)


class _Once:
    """A call that is made at the first of several occasions."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
