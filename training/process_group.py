"""The process group that asks for circuits.

Torch's collectives and messages are operations on lanes, behind which an inner gloo or
NCCL group does the work. What is notable stands in :mod:`training.backend`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from railx.fabric import Configuration
from training.lanes import Lanes, ToHost, Work
from training.session import Operation, Session

__all__ = ["RailxProcessGroup"]

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda
_distributed: Any = dist

if TYPE_CHECKING:

    class _ProcessGroup:
        """What is used of torch's class.

        Its stub fits neither its Python subclasses nor all versions from 2.11 on.
        """

        def __init__(self, rank: int, size: int) -> None: ...
        def size(self) -> int: ...

else:
    _ProcessGroup = dist.ProcessGroup


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class RailxProcessGroup(_ProcessGroup):
    """A process group whose operations wait for their circuits.

    See the notes of the module.
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
        self._lanes = Lanes(session, inner_on_device=self._nccl)
        self._sequences: Counter[str] = Counter()
        self._guard = threading.Lock()
        if self._ranks[self._member] != session.recorder.rank:
            raise RuntimeError(
                f"railx: configured for rank {session.recorder.rank}, but this process is rank"
                f" {self._ranks[self._member]}"
            )
        self._inner("collectives")
        session.open_groups.add(self)

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
        self._lanes.stop()
        for inner in self._inners.values():
            if hasattr(inner, "shutdown"):
                inner.shutdown()
        self._session.open_groups.discard(self)

    def abort(self) -> None:
        """The same as ``shutdown``."""
        self.shutdown()

    def _issue(
        self,
        kind: str,
        call: Callable[[ToHost], Any],
        *,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        size: int,
        opts: Any = None,
        peers: tuple[int, int] | None = None,
        tag: int = 0,
    ) -> Work:
        """Put one operation on its lane.

        ``peers``: source and destination (global ranks) of a message, in that order.
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
        in_place = peers is None and not self._nccl and not getattr(opts, "asyncOp", True)
        self._lanes.put(work, in_place=in_place)
        return work

    def _device(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        for tensor in tensors:
            if tensor.device.type == "cuda":
                return tensor.device
        return torch.device("cuda", _cuda.current_device()) if self._nccl else torch.device("cpu")

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
        """Issue the inner group's method ``name``.

        Tensors in ``arguments`` (and in lists there) may be replaced by host copies.
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

        def call(place: ToHost) -> Any:
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
        """Exchange lists of tensors.

        RuntimeError over gloo, which has no such operation.
        """
        if not self._nccl:
            raise RuntimeError(
                "railx: gloo has no all_to_all on lists of tensors; use all_to_all_single"
            )
        return self._collective(
            "all_to_all", "alltoall", (outputs, inputs), opts, inputs, outputs, _bytes(inputs)
        )

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all members; carries no data but takes the ring as others do."""
        return self._collective("barrier", "barrier", (), opts, [], [], 0)

    # torch before 2.13 calls these by the names that they had then.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

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
        """Issue a send or receive of ``tensors`` along ``path``.

        ``path``: source and destination, ranks of this group.
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


def _placed(value: Any, place: ToHost) -> Any:
    """The same nest of lists with every tensor in its place."""
    if isinstance(value, torch.Tensor):
        return place(value)
    return [_placed(item, place) for item in value] if isinstance(value, (list, tuple)) else value
