"""The process group that requests circuits.

Integration with torch (measured on 2.11 and 2.13):

* It is a Python subclass of :class:`torch.distributed.ProcessGroup`. A Python backend
  inside an ordinary group would not work: torch's C++ never calls a ``Backend`` written
  in Python. It does call the virtual methods of a ``ProcessGroup`` written in Python,
  so functional and compiled collectives, DTensor and DDP's reducer, which resolve a
  group by name in C++, arrive here as calls of ``torch.distributed`` do.
* It wraps an ordinary inner group, with gloo for the host and gloo or NCCL for CUDA.
  Every method calls the inner group's method of the same name, so this group supports
  the same operations.
* The inner group's backends are registered on this group too, for code that reads the
  devices, the name, the timeout or the sequence number of a group.
* Torch's C++ calls a group's method directly, so no operator ``c10d::...`` would reach
  torch's tools. :mod:`railx_torch.dispatch` sends it through the dispatcher while a
  tool watches.

:mod:`railx_torch.backend` describes the operations.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as TorchWork

from railx.errors import UserError
from railx.fabric import Configuration, FabricClient, FabricError, OperationTimeout
from railx_torch.dispatch import dispatched, unrecorded
from railx_torch.lanes import Lanes, Pair, ToHost, Work, identity
from railx_torch.session import Operation, Session

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda
_distributed: Any = dist
_ProcessGroup: Any = dist.ProcessGroup

_HOST = torch.device("cpu")
_NO_LIMIT = timedelta(0)
#: Whether gloo exchanges lists of tensors.
_EXCHANGES_LISTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


@dataclass(frozen=True)
class _Channel:
    """The constants of all operations of a channel."""

    name: str
    group: tuple[int, ...]
    #: Their circuits; None inside a server.
    configuration: Configuration | None


class _Connection:
    """NCCL between two members, a communicator for each direction at once."""

    def __init__(self, up: Any, down: Any, *, is_low: bool) -> None:
        self._other = 1 if is_low else 0
        self.groups = (up, down)
        self.sending, self.receiving = (up, down) if is_low else (down, up)
        # Up comes first on both ranks.
        first, second = (self.send, self.recv) if is_low else (self.recv, self.send)
        self.pair = Pair((lambda number: first([number], 0), lambda number: second([number], 0)))

    def send(self, tensors: list[torch.Tensor], tag: int) -> Any:
        return self.sending.send(tensors, self._other, tag)

    def recv(self, tensors: list[torch.Tensor], tag: int) -> Any:
        return self.receiving.recv(tensors, self._other, tag)


def _store_of_attempt(store: Any) -> Any:
    """``store`` without the keys of earlier attempts.

    Ranks that torchrun restarts share the store of its agent with those before them,
    whose addresses they would find in it (pytorch/pytorch issue 135712).
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not shared or attempt == "0":
        return store
    return _distributed.PrefixStore(f"attempt_{attempt}/", store)


#: How often the members have used the name of a group before, the most of them.
_USES = "uses"


def _use(store: Any) -> int:
    return int(store.get(_USES)) if store.check([_USES]) else 0


def _raise_use(store: Any, number: int) -> None:
    """Let the uses in the store be ``number`` at least.

    A program may destroy a group and create another one of its name. The numbers of its
    operations begin anew, so that its channels need other names.
    """
    while (there := _use(store)) < number:
        store.compare_set(_USES, str(there) if there else "", str(number))


def _in_place(kind: str, name: str) -> Callable[..., TorchWork]:
    """The method of this name, an operation on tensors in place."""

    def method(self: RailxProcessGroup, tensors: Any, *further: Any, **keywords: Any) -> TorchWork:
        return self._collective(
            kind,
            (name,),
            (tensors,),
            further,
            keywords,
            inputs=tensors,
            outputs=tensors,
            size=lambda: _bytes(tensors),
        )

    return method


def _to_outputs(kind: str, *names: str) -> Callable[..., TorchWork]:
    """The method of these names, an operation from inputs to outputs."""

    def method(
        self: RailxProcessGroup, outputs: Any, inputs: Any, *further: Any, **keywords: Any
    ) -> TorchWork:
        return self._into_outputs(kind, names, outputs, inputs, further, keywords)

    return method


class RailxProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group whose operations wait for their circuits; see the module."""

    def __init__(self, options: Any, session: Session, pg_options: Any = None) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._session = session
        self._store, self._timeout = _store_of_attempt(options.store), options.timeout
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self._id = str(options.group_id)
        self._member = int(options.group_rank)
        self._nccl = session.options.inner == "nccl"
        self._inner_options = _inner_options(pg_options, session.options.inner)
        self._lanes = Lanes(session, inner_on_device=self._nccl)
        self._guard = threading.Lock()
        self._splits = 0
        if self._ranks[self._member] != session.recorder.rank:
            raise RuntimeError(
                f"railx: configured for rank {session.recorder.rank}, but this process is rank"
                f" {self._ranks[self._member]}"
            )
        number = session.next_use(self._id)
        _raise_use(self._store, number)
        self._inner = self._create_inner()
        # All members have raised it: each has met the others.
        number = max(number, _use(self._store))
        session.used(self._id, number)
        if number:
            self._id += f"~{number}"
        self._connections: dict[int, _Connection] = {}
        self._collectives = self._channel(self._id, "ring", self._ranks)
        self._messages: dict[tuple[int | None, int, int], _Channel] = {}
        self._methods: dict[tuple[str, ...], tuple[Any, Any]] = {}
        # Without CUDA, the device of tensors need not be checked.
        self._host_alone = not _cuda.is_available()
        self._inner_on_host = None if self._nccl else self._inner._get_backend(torch.device("cpu"))
        for device in self._inner._device_types:
            nccl = self._nccl and device.type == "cuda"
            self._register_backend(
                device,
                _ProcessGroup.BackendType.NCCL if nccl else _ProcessGroup.BackendType.GLOO,
                self._inner._get_backend(device),
            )
        self._set_default_backend(
            _ProcessGroup.BackendType.NCCL if self._nccl else _ProcessGroup.BackendType.GLOO
        )
        session.open_groups.add(self)

    def _create_inner(self) -> Any:
        store = _distributed.PrefixStore("collectives/", self._store)
        group = _distributed.ProcessGroup(store, self._member, len(self._ranks))
        kinds = _distributed.ProcessGroup.BackendType
        gloo_store = _distributed.PrefixStore("cpu/", store)
        if self._inner_options is None or self._nccl:
            gloo = _distributed.ProcessGroupGloo(
                gloo_store, self._member, len(self._ranks), timeout=self._timeout
            )
        else:
            self._inner_options._timeout = self._timeout
            gloo = _distributed.ProcessGroupGloo(
                gloo_store, self._member, len(self._ranks), self._inner_options
            )
        gloo._set_sequence_number_for_group()
        group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
        if self._nccl:
            store = _distributed.PrefixStore("cuda/", store)
            nccl = self._create_nccl(store, self._ranks)
            nccl._set_sequence_number_for_group()
            group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
        else:
            group._register_backend(torch.device("cuda"), kinds.GLOO, gloo)
        group._set_default_backend(kinds.NCCL if self._nccl else kinds.GLOO)
        group._set_group_name(f"{self._id}/inner")
        return group

    def _create_nccl(self, store: Any, ranks: tuple[int, ...]) -> Any:
        """NCCL among some members (global ranks); does not wait for them."""
        options = _distributed.ProcessGroupNCCL.Options()
        if self._inner_options is not None:
            for name in ("is_high_priority_stream", "config"):
                setattr(options, name, getattr(self._inner_options, name))
        options._timeout = self._timeout
        options.global_ranks_in_group = list(ranks)
        options.group_name = f"{self._id}/{','.join(map(str, ranks))}"
        member = ranks.index(self._ranks[self._member])
        return _distributed.ProcessGroupNCCL(store, member, len(ranks), options)

    def _connection(self, peer: int) -> _Connection:
        """The NCCL connection to another member, created at its first use."""
        with self._guard:
            if peer not in self._connections:
                low, high = sorted((self._member, peer))
                up, down = (
                    self._create_nccl(
                        _distributed.PrefixStore(f"{low}-{high}/{name}/", self._store),
                        (self._ranks[low], self._ranks[high]),
                    )
                    for name in ("up", "down")
                )
                self._connections[peer] = _Connection(up, down, is_low=self._member == low)
            return self._connections[peer]

    def getBackendName(self) -> str:
        """The name that torch.distributed shows."""
        return "railx"

    def get_group_store(self) -> Any:
        """The store that the members share."""
        return self._store

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        *_: Any,
    ) -> RailxProcessGroup | None:
        """A group of some members (ranks of this group); None for the others."""
        with self._guard:
            self._splits += 1
            name = group_name or f"{self._id}:split:{self._splits}"
        if self._member not in new_ranks:
            return None
        options = SimpleNamespace(
            store=_distributed.PrefixStore(f"{name}/", self._store),
            group_rank=new_ranks.index(self._member),
            group_size=len(new_ranks),
            group_id=name,
            global_ranks_in_group=tuple(self._ranks[member] for member in new_ranks),
            timeout=timeout or self._timeout,
        )
        group = RailxProcessGroup(options, self._session, opts)
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group

    splitGroup = split_group

    def shutdown(self) -> None:
        """End lanes and inner groups; operations that have not begun raise an error."""
        self._lanes.stop()
        self._inner.shutdown()
        for connection in self._connections.values():
            for group in connection.groups:
                group.shutdown()
        self._session.open_groups.discard(self)

    abort = shutdown

    def _channel(self, name: str, kind: Any, group: tuple[int, ...]) -> _Channel:
        within_server = self._session.layout.is_scale_up(group)
        configuration = None if within_server else Configuration(kind, group)
        return _Channel(name, group, configuration)

    def _messages_along(self, source: int | None, destination: int, tag: int) -> _Channel:
        """The channel of messages (global ranks; source None: any)."""
        path = (source, destination, tag)
        channel = self._messages.get(path)
        if channel is None:
            name = f"{self._id}:{source}>{destination}:{tag}"
            if source is None:
                # The circuit is unknown; the caller has checked that none is needed.
                channel = _Channel(name, self._ranks, None)
            else:
                channel = self._channel(name, "pair", tuple(sorted((source, destination))))
            self._messages[path] = channel
        return channel

    def _issue(self, *arguments: Any, **keywords: Any) -> Work:
        """Begin one operation or put it on its lane; see ``_try_issue``."""
        work = self._try_issue(*arguments, **keywords)
        assert work is not None
        return work

    def _try_issue(
        self,
        kind: str,
        call: Callable[[ToHost], Any],
        channel: _Channel,
        *,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        size: Callable[[], int],
        opts: Any = None,
        timeout: timedelta | None = None,
        asynchronous: bool = True,
        source: int | None = None,
        pair: Pair | None = None,
        sequence: int | None = None,
    ) -> Work | None:
        """Begin one operation or put it on its lane.

        ``source`` is the sender's rank in this group. Returns None where ``sequence``
        is given and is not the channel's next number.
        """
        limit = timeout or getattr(opts, "timeout", None)
        session = self._session
        operation = Operation(
            kind=kind,
            group=channel.group,
            configuration=channel.configuration,
            channel=channel.name,
            sequence=0,
            bytes=size() if session.recorder.records else 0,
            inputs=inputs,
            outputs=outputs,
            timeout_s=(
                limit if limit is not None and limit > _NO_LIMIT else self._timeout
            ).total_seconds(),
            device=_HOST if self._host_alone else self._device([*inputs, *outputs]),
        )
        if operation.device.type == "cuda":
            operation.ready = _cuda.Event(blocking=True)
            operation.ready.record(_cuda.current_stream(operation.device))
        work = Work(operation, call, pair)
        if source is not None:
            work.source = source
        synchronous = not asynchronous or not getattr(opts, "asyncOp", True)
        put = self._lanes.put(work, synchronous=synchronous, sequence=sequence)
        return work if put else None

    def _is_the_inner_groups(self, channel: _Channel, tensors: list[torch.Tensor]) -> bool:
        """Whether the inner group may run an operation directly; then counts it.

        True without a recorder and a controller, where no operation waits before it.
        """
        session = self._session
        if session.client is not None or session.recorder.records:
            return False
        if not self._host_alone and self._device(tensors).type == "cuda":
            # CUDA operations take separate streams, or host copies.
            return False
        if not self._lanes.nothing_waits(channel.name):
            return False
        if channel.configuration is not None:
            session.count(channel.configuration)
        return True

    def _device(self, tensors: list[torch.Tensor]) -> torch.device:
        for tensor in tensors:
            if tensor.device.type == "cuda":
                return tensor.device
        if self._nccl and not tensors:
            return torch.device("cuda", _cuda.current_device())
        return _HOST

    def _method(self, names: tuple[str, ...]) -> tuple[Any, Any]:
        """The first of ``names`` in the inner group, and (or None) on its host."""
        methods = self._methods.get(names)
        if methods is None:
            inner, host = self._inner, self._inner_on_host
            of_group = next(getattr(inner, name) for name in names if hasattr(inner, name))
            of_host = next((getattr(host, name) for name in names if hasattr(host, name)), None)
            methods = self._methods[names] = of_group, of_host
        return methods

    def _collective(
        self,
        kind: str,
        names: tuple[str, ...],
        arguments: tuple[Any, ...],
        further: tuple[Any, ...],
        keywords: dict[str, Any],
        **tensors: Any,
    ) -> TorchWork:
        """Issue the inner group's method of the first of ``names`` that it has.

        ``further`` and ``keywords`` are the arguments behind the tensors. Tensors in
        ``arguments`` (and in lists there) may be replaced by host copies.
        """
        methods = self._method(names)
        issue = functools.partial(
            self._issue_collective, kind, methods, arguments, further, keywords, **tensors
        )
        return dispatched(functools.partial(methods[0], *arguments, *further, **keywords), issue)

    def _issue_collective(
        self,
        kind: str,
        methods: tuple[Any, Any],
        arguments: tuple[Any, ...],
        further: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        inputs: Any,
        outputs: Any,
        size: Callable[[], int],
    ) -> TorchWork:
        of_group, of_host = methods
        sent, received = _flat(inputs), _flat(outputs)
        options_alone = len(further) + len(keywords) == 1 and keywords.keys() <= {"opts"}
        on_host = of_host is not None and options_alone and self._host_alone
        method = of_host if on_host else unrecorded(of_group)
        if self._is_the_inner_groups(self._collectives, [*sent, *received]):
            of_inner: TorchWork = method(*arguments, *further, **keywords)
            return of_inner

        def call(to_host: ToHost) -> Any:
            moved = arguments if to_host is identity else _map_tensors(arguments, to_host)
            return method(*moved, *further, **keywords)

        return self._issue(
            kind,
            call,
            self._collectives,
            inputs=sent,
            outputs=received,
            size=size,
            opts=further[0] if further else keywords.get("opts"),
            timeout=keywords.get("timeout"),
        )

    allreduce = _in_place("all_reduce", "allreduce")
    allreduce_coalesced = _in_place("all_reduce", "allreduce_coalesced")
    broadcast = _in_place("broadcast", "broadcast")
    reduce = _in_place("reduce", "reduce")

    def _into_outputs(
        self,
        kind: str,
        names: tuple[str, ...],
        outputs: Any,
        inputs: Any,
        further: tuple[Any, ...],
        keywords: dict[str, Any],
        size: Callable[[], int] | None = None,
    ) -> TorchWork:
        return self._collective(
            kind,
            names,
            (outputs, inputs),
            further,
            keywords,
            inputs=inputs,
            outputs=outputs,
            size=size or (lambda: max(_bytes(outputs), _bytes(inputs))),
        )

    allgather = _to_outputs("all_gather", "allgather")
    allgather_coalesced = _to_outputs("all_gather", "allgather_coalesced")
    all_gather_single = _to_outputs("all_gather", "all_gather_single", "_allgather_base")
    all_gather_single_coalesced = _to_outputs(
        "all_gather", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"
    )
    reduce_scatter = _to_outputs("reduce_scatter", "reduce_scatter")
    reduce_scatter_single = _to_outputs(
        "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"
    )
    reduce_scatter_single_coalesced = _to_outputs(
        "reduce_scatter", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
    )

    def gather(self, outputs: Any, inputs: Any, *further: Any, **keywords: Any) -> TorchWork:
        """Gather to the root."""
        size = functools.partial(self._bytes_of_all, inputs)
        return self._into_outputs("gather", ("gather",), outputs, inputs, further, keywords, size)

    def scatter(self, outputs: Any, inputs: Any, *further: Any, **keywords: Any) -> TorchWork:
        """Scatter from the root."""
        size = functools.partial(self._bytes_of_all, outputs)
        return self._into_outputs("scatter", ("scatter",), outputs, inputs, further, keywords, size)

    def _bytes_of_all(self, tensors: Any) -> int:
        return _bytes(tensors) * len(self._ranks)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Any,
        input_splits: Any,
        *further: Any,
        **keywords: Any,
    ) -> TorchWork:
        """Exchange rows of one tensor; empty splits mean equal parts."""
        return self._collective(
            "all_to_all",
            ("all_to_all_single", "alltoall_base"),
            (output, input, list(output_splits), list(input_splits)),
            further,
            keywords,
            inputs=input,
            outputs=output,
            size=lambda: _bytes(input),
        )

    def alltoall(self, outputs: Any, inputs: Any, *further: Any, **keywords: Any) -> TorchWork:
        """Exchange lists of tensors, joined where torch's gloo (2.11) has no such."""
        on_host = self._device([*_flat(inputs), *_flat(outputs)]).type == "cpu"
        if not _EXCHANGES_LISTS and (on_host or not self._nccl):
            dispatch = functools.partial(
                self._inner.alltoall, outputs, inputs, *further, **keywords
            )
            base = self._inner.alltoall_base

            def exchange(to_host: ToHost) -> Any:
                sent, received = _map_tensors(inputs, to_host), _map_tensors(outputs, to_host)
                joined = torch.cat([tensor.reshape(-1) for tensor in sent])
                sizes = [tensor.numel() for tensor in received]
                into = joined.new_empty(sum(sizes))
                work = base(into, joined, sizes, [tensor.numel() for tensor in sent], *further)
                return _Exchange(work, into, received)

            issue = functools.partial(
                self._issue,
                "all_to_all",
                exchange,
                self._collectives,
                inputs=_flat(inputs),
                outputs=_flat(outputs),
                size=lambda: _bytes(inputs),
                opts=further[0] if further else None,
                timeout=keywords.get("timeout"),
            )
            return dispatched(dispatch, issue)
        size = functools.partial(_bytes, inputs)
        return self._into_outputs(
            "all_to_all", ("alltoall",), outputs, inputs, further, keywords, size
        )

    def barrier(self, *further: Any, **keywords: Any) -> TorchWork:
        """Wait for all members; uses the ring like other collectives."""
        return self._collective(
            "barrier", ("barrier",), (), further, keywords, inputs=[], outputs=[], size=_nothing
        )

    # Names in torch before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names the missing ranks, as gloo's does (gloo only)."""
        inner = self._inner
        limit = self._timeout if timeout is None or timeout < _NO_LIMIT else timeout

        def call(_: ToHost) -> Any:
            inner.monitored_barrier(limit, wait_all_ranks)
            return _Done()

        def issue() -> None:
            limit_ms = round(1000 * limit.total_seconds())
            if limit == _NO_LIMIT:
                raise RuntimeError(
                    f"railx: Rank {self._member} timed out in monitoredBarrier after {limit_ms} ms."
                )
            try:
                self._issue(
                    "barrier",
                    call,
                    self._collectives,
                    inputs=[],
                    outputs=[],
                    size=_nothing,
                    timeout=limit,
                    asynchronous=False,
                ).wait()
            except RuntimeError as error:
                if not isinstance(error.__cause__, FabricError):
                    raise
                raise RuntimeError(
                    self._monitored(error.__cause__, limit_ms, all_ranks=wait_all_ranks)
                ) from error

        dispatched(functools.partial(inner.monitored_barrier, limit, wait_all_ranks), issue)

    def _monitored(self, error: FabricError, limit_ms: int, *, all_ranks: bool) -> str:
        """Gloo's text for a monitored barrier that the fabric refused."""
        if self._member:
            return (
                f"railx: Rank {self._member} successfully reached monitoredBarrier, but received"
                f" errors while waiting for send/recv from rank 0: {error}"
            )
        missing = error.missing if isinstance(error, OperationTimeout) else ()
        ranks = [str(self._ranks.index(rank)) for rank in missing]
        if not ranks:
            return f"railx: monitoredBarrier failed: {error}"
        named = f"Ranks {', '.join(ranks)}" if all_ranks else f"Rank {ranks[0]}"
        return f"railx: {named} failed to pass monitoredBarrier in {limit_ms} ms: {error}"

    def send(self, tensors: Any, destination: int, tag: int = 0) -> TorchWork:
        """Send to rank ``destination`` of this group."""
        return self._message("send", tensors, destination, tag, (self._member, destination))

    def recv(self, tensors: Any, source: int, tag: int = 0) -> TorchWork:
        """Receive from rank ``source`` of this group."""
        return self._message("recv", tensors, source, tag, (source, self._member))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> TorchWork:
        """Receive from the first sender; all or none may need circuits."""
        issue = functools.partial(self._recv_anysource, tensors, tag)
        return dispatched(functools.partial(self._inner.recv_anysource, tensors, tag), issue)

    def _recv_anysource(self, tensors: Any, tag: int) -> TorchWork:
        others = [member for member in range(self.size()) if member != self._member]
        if len(others) == 1:
            source = others[0]
            return self._issue_either("recv", tensors, source, tag, (source, self._member))
        client, layout = self._session.client, self._session.layout
        here = self._ranks[self._member]
        outputs = _flat(tensors)
        channel = self._messages_along(None, here, tag)
        on_device = self._nccl and self._device(outputs).type == "cuda"
        if client is None or layout.is_scale_up(self._ranks) or on_device:
            # NCCL raises an error: it has no receive from any source.
            inner = self._inner
            return self._issue(
                "recv",
                lambda to_host: inner.recv_anysource(_map_tensors(tensors, to_host), tag),
                channel,
                inputs=[],
                outputs=outputs,
                size=lambda: _bytes(tensors),
            )
        if any(layout.is_scale_up((here, self._ranks[member])) for member in others):
            raise RuntimeError(
                "railx: a receive from any source, where some need a circuit and others are in the"
                " same server; name the source"
            )
        operation = Operation(
            kind="recv",
            group=self._ranks,
            configuration=None,
            channel=channel.name,
            sequence=-1,
            bytes=0,
            inputs=[],
            outputs=outputs,
            timeout_s=self._timeout.total_seconds(),
            device=self._device(outputs),
        )
        work = Work(operation, lambda _: None)
        senders = {self._messages_along(self._ranks[item], here, tag).name: item for item in others}
        self._lanes.follow(work, lambda: self._find_sender(client, tensors, senders, tag))
        return work

    def _find_sender(
        self, client: FabricClient, tensors: Any, senders: dict[str, int], tag: int
    ) -> tuple[Work, int]:
        """Wait for one of several senders and issue the receive from it.

        ``senders``: their ranks in this group, by channel. The controller sees every
        send, because these pairs hold no circuits meanwhile. If an ordinary receive
        takes the sequence number first, the search continues.
        """
        while True:
            channels = {
                name: (self._ranks[member], self._lanes.next_sequence(name))
                for name, member in senders.items()
            }
            limit_s = min(self._timeout.total_seconds(), client.timeout_s)
            name, sequence = client.listen(channels, timeout_s=limit_s)
            member = senders[name]
            path = (member, self._member)
            work = self._issue_message("recv", tensors, member, tag, path, sequence)
            if work is not None:
                return work, member

    def _message(
        self, kind: str, tensors: Any, peer: int, tag: int, path: tuple[int, int]
    ) -> TorchWork:
        """Issue a message along ``path`` (source, destination: ranks here)."""
        issue = functools.partial(self._issue_either, kind, tensors, peer, tag, path)
        return dispatched(functools.partial(getattr(self._inner, kind), tensors, peer, tag), issue)

    def _issue_either(
        self, kind: str, tensors: Any, peer: int, tag: int, path: tuple[int, int]
    ) -> TorchWork:
        """Issue a message, in the inner group alone where no circuits matter."""
        channel = self._messages_along(self._ranks[path[0]], self._ranks[path[1]], tag)
        if self._is_the_inner_groups(channel, _flat(tensors)):
            of_inner: TorchWork = getattr(self._inner_on_host or self._inner, kind)(
                tensors, peer, tag
            )
            return of_inner
        work = self._issue_message(kind, tensors, peer, tag, path)
        assert work is not None
        return work

    def _issue_message(
        self,
        kind: str,
        tensors: Any,
        peer: int,
        tag: int,
        path: tuple[int, int],
        sequence: int | None = None,
    ) -> Work | None:
        """Issue a message; None where ``sequence`` is not the next number."""
        moved = _flat(tensors)
        if self._nccl and self._device(moved).type == "cuda":
            # NCCL has no tags: messages arrive in the order of sending.
            tag, connection = 0, self._connection(peer)
            method, pair = getattr(connection, kind), connection.pair
        else:
            method, pair = getattr(self._inner_on_host or self._inner, kind), None
        arguments = (tag,) if pair is not None else (peer, tag)
        channel = self._messages_along(self._ranks[path[0]], self._ranks[path[1]], tag)
        return self._try_issue(
            kind,
            lambda to_host: method(_map_tensors(tensors, to_host), *arguments),
            channel,
            inputs=moved if kind == "send" else [],
            outputs=moved if kind == "recv" else [],
            size=lambda: _bytes(tensors),
            source=path[0] if kind == "recv" else None,
            pair=pair,
            sequence=sequence,
        )


def _teach_monitored_barrier() -> None:
    """Let torch's ``monitored_barrier``, which checks names, accept this class."""
    torchs = _distributed.monitored_barrier

    @functools.wraps(torchs)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> Any:
        selected = _distributed.group.WORLD if group is None else group
        if not isinstance(selected, RailxProcessGroup):
            return torchs(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return selected.monitored_barrier(timeout, wait_all_ranks)

    _distributed.monitored_barrier = monitored_barrier
    _distributed.distributed_c10d.monitored_barrier = monitored_barrier


_teach_monitored_barrier()


def _inner_options(pg_options: Any, inner: str) -> Any:
    if pg_options is None:
        return None
    name = {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}[inner]
    kinds = getattr(_distributed, name)
    allowed = kinds.Options if inner == "nccl" else kinds._Options
    if not isinstance(pg_options, allowed):
        got = type(pg_options)
        raise UserError(
            f"pg_options: got {got.__module__}.{got.__qualname__}; allowed: None, or options of"
            f" {name}, the backend that moves the data (RAILX_INNER)"
        )
    return pg_options


class _Exchange:
    """The handle of lists that are sent as one tensor."""

    def __init__(self, work: Any, into: torch.Tensor, outputs: list[torch.Tensor]) -> None:
        self._work, self._into, self._outputs = work, into, outputs

    def is_completed(self) -> bool:
        """False: ``wait`` has to unpack the received tensor."""
        return False

    def wait(self) -> bool:
        self._work.wait()
        parts = torch.split(self._into, [tensor.numel() for tensor in self._outputs])
        with torch.no_grad():
            for part, output in zip(parts, self._outputs, strict=True):
                output.copy_(part.view(output.shape))
        return True


class _Done:
    """The handle of a call that has ended when it returns."""

    def wait(self) -> bool:
        return True


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _flat(value: Any) -> list[torch.Tensor]:
    """The tensors of a nest of lists, as a new list."""
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return value[:]
    return list(_tensors(value))


def _nothing() -> int:
    return 0


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))


def _map_tensors(value: Any, to_host: ToHost) -> Any:
    if isinstance(value, torch.Tensor):
        return to_host(value)
    if isinstance(value, (list, tuple)):
        return [_map_tensors(item, to_host) for item in value]
    return value
