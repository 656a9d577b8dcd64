"""The process group that asks for circuits: an inner gloo or NCCL group behind lanes,
see the notes of :mod:`training.backend`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as _TorchWork

from railx.fabric import Configuration, FabricError
from training.session import Operation, Session

__all__ = ["RailxProcessGroup", "Work"]

#: How long a group that is shut down waits for the threads of its lanes.
_SHUTDOWN_S = 5.0

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda
_distributed: Any = dist

if TYPE_CHECKING:

    class _ProcessGroup:
        """What is used of torch's class; its stub fits neither its Python subclasses
        nor all versions from 2.11 on.
        """

        def __init__(self, rank: int, size: int) -> None: ...
        def size(self) -> int: ...

else:
    _ProcessGroup = dist.ProcessGroup

_Place = Callable[[torch.Tensor], torch.Tensor]


class Work(_TorchWork):
    """The handle of one operation. ``wait`` also makes the current CUDA stream wait for
    what the device still has to do.
    """

    def __init__(self, operation: Operation, call: Callable[[_Place], Any]) -> None:
        super().__init__()
        self.operation = operation
        self.call = call
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._event: Any = None
        self._future: Any = None

    def finish(self, error: BaseException | None = None, event: Any = None) -> None:
        """The host's part is over; ``event`` has passed when the device's part is over
        too.
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
        """Wait for the host's part, then let the current CUDA stream wait for the
        device's; raises what went wrong.
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
        """Refused: receives from any source are not supported."""
        return self._source_rank()

    def _source_rank(self) -> int:
        raise RuntimeError("railx: a receive names its source, see recv")

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
    """Runs jobs one after another, on a thread of its own or, where nothing is before
    it, in the thread that brings the job.
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
        """``job`` takes whether it may still be carried out (False once the lane was
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


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass
class _Pinned:
    """Host copies of an operation's CUDA tensors."""

    copies: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The host copy of a CUDA tensor (the same one each time), or the tensor itself
        where it is on the host.
        """
        if tensor.device.type != "cuda":
            return tensor
        if id(tensor) not in self.copies:
            self.copies[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return self.copies[id(tensor)]


class RailxProcessGroup(_ProcessGroup):
    """A process group whose operations wait for their circuits; see the notes of the
    module.
    """

    def __init__(self, options: Any, session: Session) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._session = session
        self._store, self._timeout = options.store, options.timeout
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self._id = str(options.group_id)
        self._member = int(options.group_rank)
        self._nccl = session.options.inner == "nccl"
        self._inners: dict[str, Any] = {}
        self._lanes: dict[str, _Lane] = {}
        self._streams: dict[str, Any] = {}
        self._sequences: Counter[str] = Counter()
        self._guard = threading.Lock()
        if self._ranks[self._member] != session.recorder.rank:
            raise RuntimeError(
                f"railx: configured for rank {session.recorder.rank}, but this process is rank"
                f" {self._ranks[self._member]}"
            )
        self._inner("collectives")
        session.open_groups.add(self)

    # ---------------------------------------------------------------------------------------------
    # the inner groups

    def _inner(self, name: str) -> Any:
        name = name if self._nccl else "collectives"
        with self._guard:
            if name not in self._inners:
                self._inners[name] = self._create_inner(name)
            return self._inners[name]

    def _create_inner(self, name: str) -> Any:
        store = _distributed.PrefixStore(f"{name}/", self._store)
        if not self._nccl:
            return _distributed.ProcessGroupGloo(
                store, self._member, len(self._ranks), timeout=self._timeout
            )
        options = _distributed.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        options.global_ranks_in_group = list(self._ranks)
        options.group_name = f"{self._id}/{name}"
        return _distributed.ProcessGroupNCCL(store, self._member, len(self._ranks), options)

    def getBackendName(self) -> str:
        """The name that torch.distributed shows."""
        return "railx"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")] if self._nccl else [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> Any:
        return self._inner("collectives")

    def shutdown(self) -> None:
        """End the lanes and the inner groups; what has not begun ends in an error."""
        for lane in list(self._lanes.values()):
            lane.stop()
        for inner in self._inners.values():
            if hasattr(inner, "shutdown"):
                inner.shutdown()
        self._session.open_groups.discard(self)

    def abort(self) -> None:
        """The same as ``shutdown``."""
        self.shutdown()

    # -------------------------------------------------------------------------------------------------
    # one operation

    def _issue(
        self,
        kind: str,
        call: Callable[[_Place], Any],
        *,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        size: int,
        opts: Any = None,
        peers: tuple[int, int] | None = None,
        tag: int = 0,
    ) -> Work:
        """Put one operation on its lane. ``peers``: source and destination (global
        ranks) of a message, in that order.
        """
        channel = self._id if peers is None else f"{self._id}:{peers[0]}>{peers[1]}:{tag}"
        group = self._ranks if peers is None else tuple(sorted(set(peers)))
        within_server = self._session.layout.is_scale_up(group)
        timeout = getattr(opts, "timeout", None)
        operation = Operation(
            kind=kind,
            group=group,
            configuration=(
                None if within_server else Configuration("ring" if peers is None else "pair", group)
            ),
            channel=channel,
            sequence=self._sequences[channel],
            bytes=size,
            inputs=list(inputs),
            outputs=list(outputs),
            timeout_s=(
                timeout if timeout is not None and timeout > timedelta(0) else self._timeout
            ).total_seconds(),
            device=self._device([*inputs, *outputs]),
        )
        self._sequences[channel] += 1
        if operation.device.type == "cuda":
            operation.ready = _cuda.Event(enable_timing=self._nccl)
            operation.ready.record(_cuda.current_stream(operation.device))
        self._session.issue(operation)
        work = Work(operation, call)
        lane = self._lanes.get(channel) or self._lanes.setdefault(
            channel, _Lane(f"railx {channel}")
        )
        if self._nccl and self._session.client is None:
            # Packet switches need no leave: issue as plain NCCL does, and let the lane
            # look after the end alone.
            self._session.drop(operation)
            self._launch(work)
            lane.put(lambda _: self._guarded(work, self._watch), in_place=False)
        else:
            in_place = peers is None and not self._nccl and not getattr(opts, "asyncOp", True)
            lane.put(lambda wanted: self._carry_out(work, wanted), in_place=in_place)
        return work

    def _device(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        for tensor in tensors:
            if tensor.device.type == "cuda":
                return tensor.device
        return torch.device("cuda", _cuda.current_device()) if self._nccl else torch.device("cpu")

    def _stream(self, operation: Operation) -> Any:
        """The CUDA stream of the operation's lane."""
        if operation.channel not in self._streams:
            self._streams[operation.channel] = _cuda.Stream(operation.device)
        return self._streams[operation.channel]

    def _carry_out(self, work: Work, wanted: bool) -> None:
        if not wanted:
            self._session.drop(work.operation)
            work.finish(
                RuntimeError(
                    f"railx: the process group was shut down before its {work.operation.kind} began"
                )
            )
        elif self._nccl:
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

    def _on_host(self, work: Work, place: _Place) -> None:
        with self._session.circuits(work.operation):
            start_ns, busy_ns = time.monotonic_ns(), time.thread_time_ns()
            work.call(place).wait()
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
        """Start an NCCL operation and let the work's handle end with an event behind
        it.
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

    # --------------------------------------------------------------------- collectives,
    # as torch.distributed calls them

    def _collective(
        self,
        kind: str,
        name: str,
        arguments: tuple[Any, ...],
        opts: Any,
        inputs: Any,
        outputs: Any,
        size: int,
    ) -> Work:
        """Issue the inner group's method ``name``; tensors in ``arguments`` (and in
        lists there) may be replaced by host copies.
        """
        method = getattr(self._inner("collectives"), name)
        further = () if opts is None else (opts,)
        return self._issue(
            kind,
            lambda place: method(*_placed(arguments, place), *further),
            inputs=inputs,
            outputs=outputs,
            size=size,
            opts=opts,
        )

    def _one_by_one(
        self, kind: str, name: str, outputs: Any, inputs: Any, opts: Any, size: int
    ) -> Work:
        """Issue several calls of ``name`` (output, input) as one operation."""
        method = getattr(self._inner("collectives"), name)
        further = () if opts is None else (opts,)

        def call(place: _Place) -> Any:
            works = [
                method(place(one), place(other), *further)
                for one, other in zip(outputs, inputs, strict=True)
            ]
            for work in works[:-1]:
                work.wait()
            return works[-1]

        return self._issue(kind, call, inputs=inputs, outputs=outputs, size=size, opts=opts)

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce over all members, in place."""
        tensors = _listed(tensors)
        return self._collective(
            "all_reduce", "allreduce", (tensors,), opts, tensors, tensors, _bytes(tensors)
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce several tensors as one operation."""
        return self._collective(
            "all_reduce", "allreduce_coalesced", (tensors,), opts, tensors, tensors, _bytes(tensors)
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Copy from the root, in place."""
        tensors = _listed(tensors)
        return self._collective(
            "broadcast", "broadcast", (tensors,), opts, tensors, tensors, _bytes(tensors)
        )

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce to the root, in place."""
        tensors = _listed(tensors)
        return self._collective(
            "reduce", "reduce", (tensors,), opts, tensors, tensors, _bytes(tensors)
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Gather from all members into lists of tensors."""
        flat = _flat(outputs)
        return self._collective(
            "all_gather", "allgather", (outputs, inputs), opts, inputs, flat, _bytes(flat)
        )

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Gather from all members into one tensor."""
        return self._collective(
            "all_gather",
            "_allgather_base",
            (output, input),
            opts,
            [input],
            [output],
            _bytes([output]),
        )

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Several gathers into one tensor each, as one operation."""
        return self._one_by_one(
            "all_gather", "_allgather_base", outputs, inputs, opts, _bytes(outputs)
        )

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Gather to the root."""
        return self._collective(
            "gather",
            "gather",
            (outputs, inputs),
            opts,
            inputs,
            _flat(outputs),
            _bytes(inputs) * self.size(),
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Scatter from the root."""
        return self._collective(
            "scatter",
            "scatter",
            (outputs, inputs),
            opts,
            _flat(inputs),
            outputs,
            _bytes(outputs) * self.size(),
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Reduce lists of tensors and scatter the sums."""
        flat = _flat(inputs)
        return self._collective(
            "reduce_scatter", "reduce_scatter", (outputs, inputs), opts, flat, outputs, _bytes(flat)
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduce one tensor and scatter its parts."""
        return self._collective(
            "reduce_scatter",
            "_reduce_scatter_base",
            (output, input),
            opts,
            [input],
            [output],
            _bytes([input]),
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Several of these as one operation."""
        return self._one_by_one(
            "reduce_scatter", "_reduce_scatter_base", outputs, inputs, opts, _bytes(inputs)
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Any,
        input_splits: Any,
        opts: Any = None,
    ) -> Work:
        """Exchange rows of one tensor; empty splits mean equal parts."""
        arguments = (output, input, list(output_splits), list(input_splits))
        return self._collective(
            "all_to_all", "alltoall_base", arguments, opts, [input], [output], _bytes([input])
        )

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Exchange lists of tensors; RuntimeError over gloo, which has no such
        operation.
        """
        if not self._nccl:
            raise RuntimeError(
                "railx: gloo has no all_to_all on lists of tensors; use all_to_all_single"
            )
        return self._collective(
            "all_to_all", "alltoall", (outputs, inputs), opts, inputs, outputs, _bytes(inputs)
        )

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all members; carries no data but takes the ring like any collective."""
        return self._collective("barrier", "barrier", (), opts, [], [], 0)

    # torch before 2.13 calls these by the names that they had then.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --------------------------------------------------------------------------------------------------------
    # messages

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Work:
        """Send to rank ``destination`` of this group."""
        return self._message("send", tensors, destination, tag, (self._member, destination))

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receive from rank ``source`` of this group."""
        return self._message("recv", tensors, source, tag, (source, self._member))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Refused: a circuit has two known ends."""
        raise RuntimeError("railx: a receive from any source has no known circuit; name the source")

    def _message(self, kind: str, tensors: Any, peer: int, tag: int, path: tuple[int, int]) -> Work:
        """Issue a send or receive of ``tensors`` along ``path`` (source, destination:
        ranks of this group).
        """
        tag = 0 if self._nccl else tag
        method = getattr(self._inner("up" if path[0] < path[1] else "down"), kind)
        return self._issue(
            kind,
            lambda place: method(_placed(tensors, place), peer, tag),
            inputs=tensors if kind == "send" else [],
            outputs=tensors if kind == "recv" else [],
            size=_bytes(tensors),
            peers=(self._ranks[path[0]], self._ranks[path[1]]),
            tag=tag,
        )


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _flat(rows: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for row in rows for tensor in row]


def _placed(value: Any, place: _Place) -> Any:
    """The same nest of lists with every tensor in its place."""
    if isinstance(value, torch.Tensor):
        return place(value)
    return [_placed(item, place) for item in value] if isinstance(value, (list, tuple)) else value
