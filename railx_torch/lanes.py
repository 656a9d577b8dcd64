"""Lanes: queues that run the operations of a process group under their circuits.

An operation whose circuits the rank holds, or that needs none, begins in the thread
that issues it, as in the inner group; the thread that waits for it, or else the lane's
thread, observes its end. Any other operation waits for its turn in its lane, requests
its circuits, runs on the host, through the host or on the device, and releases the
circuits. See :mod:`railx_torch.backend` for the design.
"""

from __future__ import annotations

import functools
import os
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

from railx.fabric import FabricError, OperationTimeout
from railx_torch.gate import Gate, has_gates
from railx_torch.session import Operation, Session

#: How long a group that is shut down waits for the threads of its lanes.
_SHUTDOWN_S = 5.0
#: How long a lane without operations has a thread: each tag of messages has a lane.
_IDLE_S = 1.0

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda

_NO_LIMIT = timedelta(0)

#: Completes futures and observes ends: a callback may issue operations and wait for
#: them, so it must run neither on a lane nor in a thread where another callback waits.
_FUTURES = ThreadPoolExecutor(256, "railx futures")

#: Operations whose end is observed when the inner handle's future calls for it.
_CALLED_FOR: set[Work] = set()
# A child has none of the threads that would call.
os.register_at_fork(after_in_child=_CALLED_FOR.clear)
#: Threads that run once Python, about to end, has closed the pool.
_LATE: list[threading.Thread] = []


def end_with_program() -> None:
    """Wait for the ends that C++ calls Python for, as the inner group's end does.

    A call that comes while Python ends would abort the process. The inner group limits
    the time of each operation.
    """
    for work in list(_CALLED_FOR):
        work.until_finished(None)
    while _LATE:
        _LATE.pop().join()


def _in_thread(call: Callable[..., None], *arguments: Any) -> None:
    try:
        _FUTURES.submit(call, *arguments)
    except RuntimeError:
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        thread.start()
        _LATE.append(thread)


#: From a tensor to the one that the inner group works on: itself, or its host copy.
ToHost = Callable[[torch.Tensor], torch.Tensor]


class Pair:
    """The set-up of NCCL's communicators between two ranks.

    NCCL creates a communicator at its first use, in which both ends wait for each
    other. Each direction has a communicator, and two ranks may begin with different
    directions. So the first message of a pair sets up both in a fixed order:
    ``exchanges`` send one number to the higher rank, then to the lower one. This may
    wait for the peer and never runs in the thread that issues, because the peer may
    wait for another operation of this rank.
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

    ``wait`` also makes the current CUDA stream wait for the device's part. ``pair`` has
    to be up before the operation begins.
    """

    # Class attributes for values that most operations never set: creating a handle is
    # part of the cost of every operation.
    #: The inner group's handle, once there is one.
    inner: Any = None
    #: The sender's rank in the group, where it is known.
    source: int | None = None
    #: Whether a thread other than that of ``wait`` observes the end.
    watched = True
    #: The lane of that thread.
    lane: _Lane | None = None
    _finished = False
    _over: threading.Event | None = None
    _end: Callable[[Work], None] | None = None
    _error: BaseException | None = None
    _event: Any = None
    _future_stream: Any = None
    _future: Any = None
    #: The event at which the device begins its part.
    started: Any = None
    #: The tensors that the device works on: their memory is not free before the end.
    tensors: tuple[torch.Tensor, ...] = ()

    def __init__(
        self, operation: Operation, call: Callable[[ToHost], Any], pair: Pair | None = None
    ) -> None:
        super().__init__()
        self.operation = operation
        self.call = call
        self.pair = pair
        self._lock = threading.Lock()

    def begun(self, end: Callable[[Work], None]) -> None:
        """Mark it as under way; ``end``, called once, waits for its end, finishes."""
        with self._lock:
            self._end = end
            lane = self.lane if self.watched else None
        if lane is not None:
            # The watch was requested before the operation had begun.
            lane.watch(self)

    def see_end(self) -> None:
        """Wait for the end, unless another thread does."""
        with self._lock:
            end, self._end = self._end, None
        if end is not None:
            end(self)

    def watch_in_lane(self) -> None:
        """Let the lane's thread observe the end before later operations."""
        with self._lock:
            watched, self.watched = self.watched, True
            lane = self.lane if self._end is not None else None
        if not watched and lane is not None:
            lane.watch(self)

    def have_watched(self) -> None:
        """Let a thread observe the end, unless one does; does not wait.

        The lane's thread may wait for circuits that are granted only after this end. So
        the end of the inner handle's future calls for it; a handle without a future
        gets a new thread.
        """
        with self._lock:
            watched, self.watched = self.watched, True
            begun = self._end is not None
        if watched or not begun:
            return
        if self.inner is not None and self.inner.is_completed() and self.inner.is_success():
            self.see_end()
            return
        try:
            ended = self.inner.get_future()
        except (AttributeError, RuntimeError):
            # Messages of gloo have none.
            assert self.lane is not None
            self.lane.see_end_of(self)
        else:
            # In the thread that ends the future, the inner handle is not through yet.
            _CALLED_FOR.add(self)
            ended.add_done_callback(lambda _: _in_thread(self._see_called_end))

    def _see_called_end(self) -> None:
        self.see_end()
        _CALLED_FOR.discard(self)

    def finish(
        self, error: BaseException | None = None, event: Any = None, future_stream: Any = None
    ) -> None:
        """The host's part has ended.

        ``event`` marks the end of the device's part; ``future_stream`` is a stream that
        only waits for such events.
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
            # A handle that outlives the operation keeps only its results alive.
            self.operation.inputs = []
            self.call = lambda _: None
            if self.source is not None or self.operation.kind != "recv":
                self.inner = None
            self._finished = True
            future, over = self._future, self._over
        if over is not None:
            over.set()
        if future is not None:
            _in_thread(self._complete, future)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait for the host's part, or raise; the CUDA stream waits for the rest."""
        record = self.operation.record
        if record is None:
            return self._wait(timeout)
        with record.waiting():
            return self._wait(timeout)

    def _wait(self, timeout: timedelta) -> bool:
        if not self._finished:
            if timeout <= _NO_LIMIT:
                self.see_end()
                self.until_finished(None)
            else:
                self.have_watched()
                self.until_finished(timeout.total_seconds())
        if self._error is not None:
            raise self._error
        if self._event is not None:
            _cuda.current_stream(self.operation.device).wait_event(self._event)
        return True

    def until_finished(self, limit_s: float | None) -> None:
        """Wait until the host's part has ended; RuntimeError after ``limit_s``."""
        with self._lock:
            if self._finished:
                return
            if self._over is None:
                self._over = threading.Event()
            over = self._over
        if not over.wait(limit_s):
            assert limit_s is not None
            raise RuntimeError(f"railx: {_timed_out(limit_s)} for {self.operation.kind}")

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether host and device have finished."""
        self.have_watched()
        return self._finished and (self._event is None or self._event.query())

    def is_success(self) -> bool:
        """Whether it ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Wait for the output tensors."""
        self.wait()
        return self.operation.outputs

    def source_rank(self) -> int:
        """The sender's rank in the group."""
        return self._source_rank()

    def _source_rank(self) -> int:
        self.wait()
        return int(self.inner._source_rank()) if self.source is None else self.source

    def get_future(self) -> Any:
        """A future of the output tensors."""
        self.have_watched()
        with self._lock:
            future, created = self._future, self._future is None
            if created:
                device = self.operation.device
                devices: Any = [device] if device.type == "cuda" else []
                future = self._future = torch.futures.Future(devices=devices)
            over = created and self._finished
        if over:
            self._complete(future)
        return future

    def _complete(self, future: Any) -> None:
        """Complete the future, outside the lock: its callbacks run here."""
        if self._error is not None:
            future.set_exception(self._error)
        elif self._event is not None:
            # The future records the current stream, which must be behind the operation
            # and not behind later ones.
            with _cuda.stream(self._future_stream):
                self._future_stream.wait_event(self._event)
                future.set_result(self.operation.outputs)
        else:
            future.set_result(self.operation.outputs)


class _Lane:
    """The operations of one channel, in the order of issue.

    They begin in this order. Waiting operations run one after another on the lane's
    thread; on an empty lane an operation may run in the calling thread.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._jobs: queue.SimpleQueue[Callable[[bool], None] | None] = queue.SimpleQueue()
        #: Locks the order of issue of the channel.
        self.order = threading.Lock()
        self.sequence = 0
        self._running = threading.Lock()
        self._count = threading.Lock()
        self._unfinished = 0
        self._not_begun = 0
        self._behind_gates = 0
        self._thread: threading.Thread | None = None
        #: Threads that wait for the end of one operation each.
        self._ends: list[threading.Thread] = []
        self._stopped = False

    def all_begun(self) -> bool:
        return self._not_begun == 0

    def all_launched(self) -> bool:
        """Whether every operation has begun, or waits at a gate in its stream."""
        return self._not_begun == self._behind_gates

    def watch(self, work: Work) -> None:
        self._add(lambda _: work.see_end(), inline=False)

    def see_end_of(self, work: Work) -> None:
        """Let a new thread observe the end of an operation under way."""
        thread = threading.Thread(target=work.see_end, name="railx end", daemon=True)
        with self._count:
            self._ends = [item for item in self._ends if item.is_alive()]
            thread.start()
            self._ends.append(thread)

    def put(
        self, job: Callable[[bool], None], *, inline: bool, gated: bool = False
    ) -> Callable[[], None] | None:
        """Queue an operation, which calls ``begun`` when it begins.

        ``job`` takes whether the lane is still open. With ``inline`` and an empty lane
        the job is returned instead, to be called without the lock on the order.
        """
        with self._count:
            self._not_begun += 1
            self._behind_gates += gated
        return self._add(job, inline=inline)

    def begun(self, *, gated: bool = False) -> None:
        """A queued operation has begun, or was refused."""
        with self._count:
            self._not_begun -= 1
            self._behind_gates -= gated

    def _add(self, job: Callable[[bool], None], *, inline: bool) -> Callable[[], None] | None:
        with self._count:
            run_now = inline and self._unfinished == 0
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

    def stop(self) -> list[threading.Thread]:
        """Refuse operations that have not begun; the threads, which end."""
        self._stopped = True
        with self._count:
            if self._thread is None:
                return self._ends
            self._jobs.put(None)
            return [self._thread, *self._ends]

    def _done(self) -> None:
        with self._count:
            self._unfinished -= 1

    def _is_left(self) -> bool:
        """Whether the lane's thread, which found no operation, is to end."""
        with self._count:
            if self._unfinished == 0:
                self._thread = None
            return self._thread is None

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                job = None
            if job is None:
                if self._is_left():
                    return
                continue
            with self._running:
                job(not self._stopped)
            # Free the tensors of the job before waiting for the next.
            del job
            self._done()


def identity(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, for an inner group that works on it directly."""
    return tensor


def _timed_out(limit_s: float) -> str:
    """What gloo says, and programs look for."""
    return f"Timed out waiting {1000 * limit_s:.0f}ms"


def _refused(operation: Operation) -> str:
    return f"railx: the process group was shut down before its {operation.kind} began"


def _passed(device: torch.device) -> None:
    """Wait for the current stream without spinning."""
    event = _cuda.Event(blocking=True)
    event.record(_cuda.current_stream(device))
    event.synchronize()


@dataclass
class _Pinned:
    """Host copies of an operation's CUDA tensors."""

    copies: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The host copy of a CUDA tensor, created once; a host tensor itself."""
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
        #: The first operation that failed when the device already had it.
        self._failed: Work | None = None
        #: Operations that failed, with their gates: the device may still come to them.
        self._abandoned: list[tuple[Work, Gate]] = []

    def put(self, work: Work, *, synchronous: bool, sequence: int | None = None) -> bool:
        """Begin an operation at once where its circuits allow it, else queue it.

        ``synchronous``: the caller waits for it next. Returns False, without effect,
        where ``sequence`` is given and is not the channel's next number.
        """
        operation = work.operation
        lane = self._lane(operation.channel)
        if self._failed is not None:
            self._failed.wait()
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
            if lane.all_launched() and self._may_wait_at_gate(work):
                self._launch_behind_gate(work, lane)
                return True
            if first and operation.device.type == "cpu":
                # A CUDA operation asks when the device reaches it.
                self._session.ask_ahead(operation)
            on_host = operation.device.type == "cpu" or not self._inner_on_device
            run = lane.put(
                functools.partial(self._carry_out, work, lane), inline=synchronous and on_host
            )
        if run is not None:
            run()
        return True

    def follow(self, work: Work, find: Callable[[], tuple[Work, int]]) -> None:
        """Run a receive from any source.

        ``find`` waits for a sender, issues the receive from it, and returns that
        receive and the sender's rank in the group. It runs on the lane's thread.
        """
        lane = self._lane(work.operation.channel)

        def carry_out(lane_open: bool) -> None:
            lane.begun()
            try:
                if not lane_open:
                    raise RuntimeError(_refused(work.operation))
                receive, work.source = find()
                receive.wait()
                work.finish(event=receive._event, future_stream=receive._future_stream)
            except FabricError as error:
                work.finish(self._explain(work.operation, error))
            except Exception as error:
                work.finish(error)

        lane.put(carry_out, inline=False)

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
        """End all lanes; operations that have not begun raise an error."""
        self._session.watch_unseen()
        threads = [thread for lane in list(self._lanes.values()) for thread in lane.stop()]
        # One that comes out of C++ while Python ends would abort the process.
        limit = time.monotonic() + _SHUTDOWN_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))

    def _on_device(self, operation: Operation) -> bool:
        return self._inner_on_device and operation.device.type == "cuda"

    def _may_begin_here(self, work: Work) -> bool:
        """Whether it can begin without waiting for copies, or a barrier or a peer."""
        operation = work.operation
        # The host waits in NCCL's barrier. At a gate, which a lane opens, it would wait
        # for ever.
        blocks = not self._inner_on_device or operation.kind == "barrier"
        if operation.device.type == "cuda" and blocks:
            return False
        return work.pair is None or work.pair.is_up

    def _may_wait_at_gate(self, work: Work) -> bool:
        """Whether the device can have it before its circuits are there."""
        return (
            self._on_device(work.operation)
            and self._may_begin_here(work)
            and has_gates(work.operation.device)
        )

    def _launch_behind_gate(self, work: Work, lane: _Lane) -> None:
        """Launch an operation whose stream waits for its circuits, not the program."""
        gate = Gate()
        try:
            with torch.no_grad():
                self._launch(work, gate)
        except Exception as error:
            gate.open()
            self._abandoned.append((work, gate))
            self._session.drop(work.operation)
            work.finish(self._explain(work.operation, error))
            return
        lane.put(functools.partial(self._open, work, lane, gate), inline=False, gated=True)

    def _open(self, work: Work, lane: _Lane, gate: Gate, lane_open: bool) -> None:
        """Request the circuits of an operation at a gate, and open the gate."""
        operation = work.operation
        # Counted once, as below: at the beginning, or at a failure before it.
        begun = functools.cache(functools.partial(lane.begun, gated=True))
        try:
            if not lane_open:
                raise RuntimeError(_refused(operation))
            # The operation requests its circuits when the device has reached it.
            operation.ready.synchronize()
            with self._session.circuits(operation):
                gate.open()
                begun()
                self._watch(work)
        except Exception as error:
            self._session.drop(operation)
            work.finish(self._explain(operation, error))
            # The program waits for it no more: the next operation raises the error.
            self._failed = self._failed or work
            self._abandoned.append((work, gate))
        finally:
            # A stream cannot leave out what it waits for.
            gate.open()
            begun()

    def _begin_here(self, work: Work) -> None:
        """Begin an operation that holds its circuits."""
        operation = work.operation
        try:
            if self._on_device(operation):
                with torch.no_grad():
                    self._launch(work)
                work.begun(self._end_on_device)
            elif operation.record is None:
                work.inner = work.call(identity)
                work.begun(self._end_on_host)
            else:
                start_ns, busy_ns = time.monotonic_ns(), time.thread_time_ns()
                work.inner = work.call(identity)
                busy_ns = time.thread_time_ns() - busy_ns
                work.begun(functools.partial(self._record_end, start_ns, busy_ns))
        except Exception as error:
            self._session.end(operation)
            work.finish(self._explain(operation, error))

    def _end_on_host(self, work: Work) -> None:
        error: Exception | None = None
        try:
            work.inner.wait()
        except Exception as failure:
            error = self._explain(work.operation, failure)
        self._session.end(work.operation)
        work.finish(error)

    def _record_end(self, start_ns: int, busy_ns: int, work: Work) -> None:
        error: Exception | None = None
        began_ns = time.thread_time_ns()
        try:
            work.inner.wait()
            busy_ns += time.thread_time_ns() - began_ns
            self._record(work.operation, start_ns, time.monotonic_ns(), busy_ns)
        except Exception as failure:
            error = self._explain(work.operation, failure)
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

    def _carry_out(self, work: Work, lane: _Lane, lane_open: bool) -> None:
        """Run an operation where its tensors are; refuse it on a closed lane."""
        operation, begun = work.operation, functools.cache(lane.begun)
        carry = self._within_host
        if operation.device.type == "cuda":
            carry = self._through_device if self._inner_on_device else self._through_host
        try:
            if lane_open:
                with torch.no_grad():
                    carry(work, begun)
            else:
                self._session.drop(operation)
                work.finish(RuntimeError(_refused(operation)))
        except Exception as error:
            # The thread that waits for the work gets the error.
            self._session.drop(operation)
            begun()
            work.finish(self._explain(operation, error))
        finally:
            begun()

    def _explain(self, operation: Operation, error: Exception) -> Exception:
        ranks = ", ".join(map(str, operation.group))
        client = self._session.client
        reason = str(error)
        if isinstance(error, OperationTimeout) and error.limit_s is not None:
            reason = f"{_timed_out(error.limit_s)}: {reason}"
        elif client is not None and not isinstance(error, FabricError):
            # The inner group sees a closed connection; the controller knows whose.
            reason = client.reason_of_failure(operation.group) or reason
        explained = RuntimeError(f"railx: {operation.kind} of ranks {ranks} failed: {reason}")
        explained.__cause__ = error
        return explained

    def _on_host(self, work: Work, to_host: ToHost, begun: Callable[[], None]) -> None:
        with self._session.circuits(work.operation):
            start_ns, busy_ns = time.monotonic_ns(), time.thread_time_ns()
            work.inner = work.call(to_host)
            begun()
            work.inner.wait()
            times = (start_ns, time.monotonic_ns(), time.thread_time_ns() - busy_ns)
        self._record(work.operation, *times)

    def _within_host(self, work: Work, begun: Callable[[], None]) -> None:
        self._on_host(work, identity, begun)
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
                end = _cuda.Event(blocking=True)
                end.record(stream)
        work.finish(event=end, future_stream=self._stream(operation, "future"))
        # Until the copies are through, the outputs' memory is not free.
        end.synchronize()

    def _through_device(self, work: Work, begun: Callable[[], None]) -> None:
        # The operation requests its circuits when the device has reached it.
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

    def _launch(self, work: Work, gate: Gate | None = None) -> None:
        """Start an NCCL operation; its handle ends with an event behind it."""
        operation = work.operation
        with _cuda.device(operation.device):
            stream = self._stream(operation)
            stream.wait_event(operation.ready)
            if gate is not None:
                gate.hold(stream)
            with _cuda.stream(stream):
                work.started = _cuda.Event(enable_timing=True)
                work.started.record(stream)
                work.tensors = (*operation.inputs, *operation.outputs)
                handle = work.call(identity)
                # A synchronous collective of NCCL runs on this stream and has none.
                if handle is not None:
                    handle.wait()
                end = _cuda.Event(enable_timing=True, blocking=True)
                end.record(stream)
        work.finish(event=end, future_stream=self._stream(operation, "future"))

    def _watch(self, work: Work) -> None:
        """Wait for the device and record its times."""
        end = work._event
        end.synchronize()
        work.tensors = ()
        end_ns, busy_ns = time.monotonic_ns(), round(work.started.elapsed_time(end) * 1e6)
        self._record(work.operation, end_ns - busy_ns, end_ns, busy_ns)

    def _record(self, operation: Operation, start_ns: int, end_ns: int, busy_ns: int) -> None:
        if operation.record is not None:
            operation.record.ran(start_ns, end_ns, busy_ns)
