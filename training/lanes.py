"""Lanes: operations of a process group one after another, each under its circuits.

A lane asks for the circuits of an operation when its turn comes, carries it out on the
host, through the host or on the device, records when it ran, and gives the circuits
back. What is notable stands in :mod:`training.backend`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _TorchWork

from railx.fabric import FabricError
from training.session import Operation, Session

__all__ = ["Lanes", "ToHost", "Work"]

#: How long a group that is shut down waits for the threads of its lanes.
_SHUTDOWN_S = 5.0

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda

#: From a tensor to the one that the inner group works on: itself, or its host copy.
ToHost = Callable[[torch.Tensor], torch.Tensor]


class Work(_TorchWork):
    """The handle of one operation.

    ``wait`` also makes the current CUDA stream wait for what the device still has to
    do.
    """

    def __init__(self, operation: Operation, call: Callable[[ToHost], Any]) -> None:
        super().__init__()
        self.operation = operation
        self.call = call
        #: The inner group's handle, once there is one.
        self.inner: Any = None
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._event: Any = None
        self._future: Any = None

    def finish(self, error: BaseException | None = None, event: Any = None) -> None:
        """The host's part is over.

        ``event`` has passed when the device's part is over too.
        """
        with self._lock:
            if self._finished.is_set():
                # The device failed after its part was launched.
                self._error = self._error or error
                return
            self._error, self._event = error, event
            self._finished.set()
            if self._future is not None:
                self._complete_future()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the host's part; raises what went wrong.

        The current CUDA stream then waits for the device's part.
        """
        limit_s = timeout.total_seconds()
        if not self._finished.wait(limit_s if limit_s > 0 else None):
            raise RuntimeError(f"railx: {self.operation.kind} was not done within {limit_s:g} s")
        if self._error is not None:
            raise self._error
        if self._event is not None:
            _cuda.current_stream(self.operation.device).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether host and device are through."""
        return self._finished.is_set() and (self._event is None or self._event.query())

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
        return int(self.inner._source_rank())

    def get_future(self) -> Any:
        """A future of the output tensors."""
        with self._lock:
            if self._future is None:
                devices: list[int | str | torch.device] = (
                    [self.operation.device] if self.operation.device.type == "cuda" else []
                )
                self._future = torch.futures.Future(devices=devices)
                if self._finished.is_set():
                    self._complete_future()
            return self._future

    def _complete_future(self) -> None:
        if self._error is not None:
            self._future.set_exception(self._error)
        elif self._event is not None:
            # The future notes the current stream, which here has to stand behind the
            # operation.
            with _cuda.stream(_cuda.Stream(self.operation.device)):
                _cuda.current_stream(self.operation.device).wait_event(self._event)
                self._future.set_result(self.operation.outputs)
        else:
            self._future.set_result(self.operation.outputs)


class _Lane:
    """Runs jobs one after another, on a thread of its own.

    Where nothing is before it, a job may run in the thread that brings it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[bool], None] | None] = queue.SimpleQueue()
        self._running = threading.Lock()
        self._count = threading.Lock()
        self._unfinished = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def put(self, job: Callable[[bool], None], *, in_place: bool) -> None:
        """Add a job.

        ``job`` takes whether it may still be carried out (False once the lane was
        stopped).
        """
        with self._count:
            run_now = in_place and self._unfinished == 0
            self._unfinished += 1
            if run_now:
                self._running.acquire()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        if not run_now:
            self._jobs.put(job)
            return
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
            self._done()


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


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

    ``inner_on_device`` says that the inner group works on the device (NCCL), not on
    host memory (gloo).
    """

    def __init__(self, session: Session, *, inner_on_device: bool) -> None:
        self._session = session
        self._inner_on_device = inner_on_device
        self._lanes: dict[str, _Lane] = {}
        self._streams: dict[str, Any] = {}

    def put(self, work: Work, *, in_place: bool) -> None:
        """Bring a work to its lane without waiting.

        ``in_place``: it may run in this thread where nothing is before it.
        """
        channel = work.operation.channel
        lane = self._lanes.get(channel) or self._lanes.setdefault(
            channel, _Lane(f"railx {channel}")
        )
        if self._inner_on_device and self._session.client is None:
            # Packet switches need no leave: issue as plain NCCL does, and let the lane
            # look after the end alone.
            self._session.drop(work.operation)
            self._launch(work)
            lane.put(lambda _: self._guarded(work, self._watch), in_place=False)
        else:
            lane.put(lambda wanted: self._carry_out(work, wanted), in_place=in_place)

    def stop(self) -> None:
        """End all lanes; what has not begun ends in an error."""
        for lane in list(self._lanes.values()):
            lane.stop()

    def _stream(self, operation: Operation) -> Any:
        """The CUDA stream of the operation's lane."""
        if operation.channel not in self._streams:
            self._streams[operation.channel] = _cuda.Stream(operation.device)
        return self._streams[operation.channel]

    def _carry_out(self, work: Work, wanted: bool) -> None:
        """Carry a work out where its tensors are.

        Refuse it where it is not wanted any more.
        """
        if not wanted:
            self._session.drop(work.operation)
            work.finish(
                RuntimeError(
                    f"railx: the process group was shut down before its {work.operation.kind} began"
                )
            )
        elif self._inner_on_device:
            self._guarded(work, self._on_device)
        elif work.operation.device.type == "cuda":
            self._guarded(work, self._through_host)
        else:
            self._guarded(work, self._within_host)

    def _guarded(self, work: Work, part: Callable[[Work], None]) -> None:
        """Whatever goes wrong belongs to whoever waits for the work."""
        try:
            with torch.no_grad():
                part(work)
        except Exception as error:
            self._session.drop(work.operation)
            work.finish(self._explain(work.operation, error))

    def _explain(self, operation: Operation, error: Exception) -> Exception:
        ranks = ", ".join(map(str, operation.group))
        client = self._session.client
        reason = str(error)
        if client is not None and client.notice is not None and not isinstance(error, FabricError):
            # The inner group only saw a connection close; the controller knows whose.
            reason = client.notice
        explained = RuntimeError(f"railx: {operation.kind} of ranks {ranks} failed: {reason}")
        explained.__cause__ = error
        return explained

    def _on_host(self, work: Work, place: ToHost) -> None:
        with self._session.circuits(work.operation):
            start_ns, busy_ns = time.monotonic_ns(), time.thread_time_ns()
            work.inner = work.call(place)
            work.inner.wait()
            times = (start_ns, time.monotonic_ns(), time.thread_time_ns() - busy_ns)
        self._record(work.operation, *times)

    def _within_host(self, work: Work) -> None:
        self._on_host(work, _identity)
        work.finish()

    def _through_host(self, work: Work) -> None:
        operation, pinned = work.operation, _Pinned()
        with _cuda.device(operation.device):
            stream = self._stream(operation)
            with _cuda.stream(stream):
                operation.ready.synchronize()
                for tensor in operation.inputs:
                    pinned.of(tensor).copy_(tensor, non_blocking=True)
                stream.synchronize()
                self._on_host(work, pinned.of)
                for tensor in operation.outputs:
                    tensor.copy_(pinned.of(tensor), non_blocking=True)
                    tensor.record_stream(stream)
                end = _cuda.Event()
                end.record(stream)
        work.finish(event=end)

    def _on_device(self, work: Work) -> None:
        # Only when the device has come this far does the operation stand before its
        # circuits.
        work.operation.ready.synchronize()
        with self._session.circuits(work.operation):
            self._launch(work)
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
                work.call(_identity).wait()
                for tensor in (*operation.inputs, *operation.outputs):
                    tensor.record_stream(stream)
                end = _cuda.Event(enable_timing=True)
                end.record(stream)
        work.finish(event=end)

    def _watch(self, work: Work) -> None:
        """Wait for the device and record what it did."""
        end = work._event
        end.synchronize()
        end_ns, busy_ns = time.monotonic_ns(), round(work.operation.ready.elapsed_time(end) * 1e6)
        self._record(work.operation, end_ns - busy_ns, end_ns, busy_ns)

    def _record(self, operation: Operation, start_ns: int, end_ns: int, busy_ns: int) -> None:
        self._session.recorder.add(
            operation.kind,
            operation.group,
            operation.bytes,
            start_ns,
            end_ns,
            busy_ns,
            operation.phase,
            iteration=operation.iteration,
        )
