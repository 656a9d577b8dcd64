"""Steps on the order of things on the device: one rank over NCCL that has to ask.

A world of one rank is inside one server and never asks. Here its scale-out is forced:
each operation needs the ring of this rank and a second one that exists for the
controller alone and asks, at once, for whatever this one issues. So grants, releases
and recalls are the real ones, and the data stays on one device. On the CPU gloo stands
in for NCCL.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from .clocks import DeviceClock
from .work import Findings, Work, busy, now_ms, one_rank, wait_for

#: The ranks that exist for the controller alone.
_PEERS = (1, 2)
_PATIENCE_S = 30.0


class _Peer:
    """A rank for the controller alone: its part of every operation ends at once."""

    def __init__(self, address: str, rank: int) -> None:
        from railx.fabric import FabricClient

        self._client = FabricClient(address, rank, gpus_per_server=1)
        self._operations: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"peer {rank}", daemon=True)
        self._thread.start()

    def join_in(self, operation: Any) -> None:
        """Ask for the circuits of an operation as its other member."""
        self._operations.put((operation.channel, operation.sequence, operation.configuration))

    def close(self) -> None:
        self._operations.put(None)
        self._thread.join(_PATIENCE_S)
        self._client.close()

    def _work(self) -> None:
        try:
            while (asked := self._operations.get()) is not None:
                channel, sequence, configuration = asked
                if not self._client.begin(channel, sequence, configuration):
                    self._client.acquire(channel, sequence, configuration)
                self._client.release(channel, sequence)
        except Exception as error:
            self.error = error


class _Forced:
    """A world of one rank whose operations need circuits with ``peer``."""

    def __init__(self, session: Any, peers: dict[int, _Peer]) -> None:
        self.session, self._peers = session, peers
        self.peer = _PEERS[0]
        self._granted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._times: dict[tuple[str, int], int] = {}

    def configuration(self, kind: str, members: tuple[int, ...]) -> Any:
        """What an operation needs, in place of the process group's own words."""
        from railx.fabric import Configuration

        return Configuration("ring", (*members, self.peer))

    def issue(self, operation: Any) -> None:
        """Note an operation, and let its other member know."""
        type(self.session).issue(self.session, operation)
        self._peers[operation.configuration.members[-1]].join_in(operation)

    def granted(self, asked: Any, **keywords: Any) -> Any:
        """Wait for circuits, and note when they were granted."""
        client = self.session.client
        grant = type(client).granted(client, asked, **keywords)
        self._granted.put((asked.channel, asked.sequence, grant.granted_ns))
        return grant

    def granted_ns(self, channel: str, sequence: int) -> int:
        """When the controller's grant came, on this host's clock."""
        while (channel, sequence) not in self._times:
            *key, granted_ns = self._granted.get(timeout=_PATIENCE_S)
            self._times[key[0], key[1]] = granted_ns
        return self._times[channel, sequence]

    @property
    def errors(self) -> list[str]:
        """What went wrong on the side of the peers."""
        return [str(peer.error) for peer in self._peers.values() if peer.error is not None]


@contextlib.contextmanager
def _forced(work: Work, latency_ms: float = 0.0) -> Iterator[_Forced]:
    """One rank over ``railx`` with scale-out forced, and a controller."""
    import torch.distributed as dist

    from railx.fabric import FabricSettings, Layout, launch_controller
    from railx_torch import backend, process_group
    from railx_torch.trace import Recorder

    class Beyond(Layout):
        """Every operation leaves the server."""

        def is_scale_up(self, members: Any) -> bool:
            return False

    fabric = FabricSettings(1, "127.0.0.1", 0, 60.0, "on_demand", latency_ms)
    module: Any = process_group
    before = module.Configuration
    with launch_controller(fabric, 1 + len(_PEERS)) as controller:
        inner: Any = "gloo" if work.dry else "nccl"
        options = backend.BackendOptions(inner, controller.address, "on_demand", 1)
        backend.configure(options, Recorder(0, device=work.device))
        session: Any = backend._session
        peers = {rank: _Peer(controller.address or "", rank) for rank in _PEERS}
        forced = _Forced(session, peers)
        session.layout, session.issue = Beyond(1), forced.issue
        session.client.granted = forced.granted
        module.Configuration = forced.configuration
        try:
            dist.init_process_group("railx", store=dist.HashStore(), rank=0, world_size=1)
            yield forced
            wait_for(work)
            dist.destroy_process_group()
        finally:
            module.Configuration = before
            for peer in peers.values():
                peer.close()


class _Slow:
    """The inner group, where an operation takes a while and changes what it is given.

    NCCL has nothing to do in a world of one rank, so that no mistake in the order could
    be seen in its results.
    """

    def __init__(self, work: Work, inner: Any, ms: float) -> None:
        self._work, self._inner, self._ms = work, inner, ms
        #: When each operation began and ended: host times in ns, or events.
        self.begun: list[Any] = []
        self.ended: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        # Gathering into one tensor, by its names before and from torch 2.13 on.
        if name not in ("_allgather_base", "all_gather_single"):
            return found

        def gather(*arguments: Any, **keywords: Any) -> Any:
            self._wait()
            return found(*arguments, **keywords)

        return gather

    def allreduce(self, tensors: Any, *further: Any, **keywords: Any) -> Any:
        self.begun.append(_moment(self._work))
        self._wait()
        for tensor in tensors:
            tensor.add_(1)
        handle = self._inner.allreduce(tensors, *further, **keywords)
        # What the device still has to do stands before what comes next on this stream.
        if handle is not None:
            handle.wait()
        self.ended.append(_moment(self._work))
        return handle

    def _wait(self) -> None:
        if self._work.dry:
            time.sleep(self._ms / 1e3)
        else:
            busy(self._work, self._ms)


def _slowed(work: Work, group: Any, ms: float) -> _Slow:
    slow = _Slow(work, group._inner, ms)
    group._inner = slow
    # Nothing of the inner group as it was may be left.
    group._inner_on_host = None
    group._methods.clear()
    return slow


def _moment(work: Work) -> Any:
    """Now on the host, or where the current stream comes to stand."""
    if work.dry:
        return time.monotonic_ns()
    import torch

    cuda: Any = torch.cuda
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class _HostClock:
    """The clock of moments that are the host's already."""

    error_ms = 0.0

    def close(self) -> None:
        """There is nothing to compare."""

    def ns(self, moment: int) -> float:
        return float(moment)


def order(work: Work) -> Findings:
    """Granted after the device is ready, released after the end on the device.

    Two groups take turns with circuits that exclude each other, so that each operation
    has to ask, and the grant of one tells when the one before it was given back.
    """
    import torch
    import torch.distributed as dist

    from railx_torch import backend

    found = work.findings()
    operations = 8 if work.dry else 24
    with _forced(work) as forced:
        groups: list[Any] = [dist.group.WORLD]
        # A group's other member is settled when the group is made.
        forced.peer = _PEERS[1]
        groups.append(dist.new_group([0]))
        slow = [_slowed(work, group, 10.0) for group in groups]
        tensors = [
            torch.full((1 << 10,), float(number), device=work.device)
            for number in range(operations)
        ]
        wait_for(work)
        clock = _HostClock() if work.dry else DeviceClock(lambda: _moment(work))
        ready, granted, handles = [], [], []
        for number, tensor in enumerate(tensors):
            if number % 4 == 0:
                # The device comes to this operation long after the host has issued it.
                busy(work, 20.0)
            turn = number % 2
            ready.append(_moment(work))
            handles.append(dist.all_reduce(tensor, group=groups[turn], async_op=True))
            operation = handles[-1].operation
            granted.append(forced.granted_ns(operation.channel, operation.sequence))
        for handle in reversed(handles):
            handle.wait()
        wait_for(work)
        clock.close()
        wrong = sum(int(tensor[-1].item() != number + 1) for number, tensor in enumerate(tensors))
        begun = [clock.ns(slow[number % 2].begun[number // 2]) for number in range(operations)]
        ended = [clock.ns(slow[number % 2].ended[number // 2]) for number in range(operations)]
        statistics = backend.statistics()
        errors = forced.errors
    early_ms = {
        "granted_before_ready": [
            (clock.ns(moment) - at) / 1e6 for moment, at in zip(ready, granted, strict=True)
        ],
        "launched_before_granted": [
            (at - moment) / 1e6 for at, moment in zip(granted, begun, strict=True)
        ],
        "granted_before_the_last_one_ended": [
            (end - at) / 1e6 for end, at in zip(ended[:-1], granted[1:], strict=True)
        ],
    }
    for name, values in early_ms.items():
        found.check(name, max(values), "at_most", clock.error_ms, unit="ms")
        found.measured(name, max(values), unit="ms")
    found.measured("error_of_the_clocks", clock.error_ms, unit="ms")
    # Were nothing under way when the next one is ready, nothing would have been shown.
    waited = sum(end > clock.ns(moment) for end, moment in zip(ended[:-1], ready[1:], strict=True))
    found.check("operations_ready_before_the_last_ended", waited, "at_least", operations // 2)
    found.check("operations_that_asked", statistics.requests, "equal", operations)
    found.check("wrong_results_after_waits_out_of_order", wrong, "equal", 0)
    found.check("errors_of_the_controller", len(errors), "equal", 0)
    found.details = {"early_ms": early_ms, "errors": errors}
    return found


def reuse(work: Work) -> Findings:
    """Buffers that are written again at once, inputs that nobody keeps; a barrier.

    Every ten operations the circuits change, so that both kinds are there: operations
    that ask, and operations on circuits still held.
    """
    import torch
    import torch.distributed as dist

    from railx_torch import backend

    found = work.findings()
    # Its name until torch 2.13.
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    repeats = 60 if work.dry else 1000
    size = 1 << 10 if work.dry else 1 << 20
    with _forced(work) as forced:
        groups: list[Any] = [dist.group.WORLD]
        # A group's other member is settled when the group is made.
        forced.peer = _PEERS[1]
        groups.append(dist.new_group([0]))
        for group in groups:
            _slowed(work, group, 0.2)
        buffer = torch.empty(size, device=work.device)
        reduced = torch.empty(repeats, device=work.device)
        gathered = torch.empty(repeats, device=work.device)
        for number in range(repeats):
            turn = number // 10 % 2
            group = groups[turn]
            buffer.fill_(number)
            dist.all_reduce(buffer, group=group)
            reduced[number] = buffer[-1]
            # Written again before anything has waited for the device.
            buffer.fill_(-1)
            result = torch.empty(size, device=work.device)
            given = torch.full((size,), float(number), device=work.device)
            handle = gather(result, given, group=group, async_op=True)
            del given
            # Its memory is free for this one, unless the operation still keeps it.
            torch.full((size,), -5.0, device=work.device)
            handle.wait()
            gathered[number] = result[-1]
        # Over NCCL the host waits in it.
        dist.barrier(device_ids=None if work.dry else [0])
        expected = torch.arange(repeats, dtype=torch.float32, device=work.device)
        wrong = int((reduced != expected + 1).sum())
        mixed = int((gathered != expected).sum())
        statistics = backend.statistics()
        errors = forced.errors
    found.check("wrong_results_of_buffers_used_again", wrong, "equal", 0)
    found.check("wrong_results_of_inputs_let_go", mixed, "equal", 0)
    found.check("operations_that_asked", statistics.requests, "at_least", repeats // 10)
    found.check("operations_on_held_circuits", statistics.held, "at_least", 1)
    found.check("operations", statistics.requests + statistics.held, "equal", 2 * repeats + 1)
    found.check("errors_of_the_controller", len(errors), "equal", 0)
    found.details = {"repeats": repeats, "statistics": vars(statistics), "errors": errors}
    return found


def fsdp(work: Work) -> Findings:
    """FSDP2 and DDP over railx that asks a controller, over NCCL alone, and neither.

    FSDP2 sends nothing in a world of one rank; DDP reduces its gradients all the same.
    """
    from railx_torch import backend

    found = work.findings()
    runs: dict[str, Any] = {}
    asked = {}
    with _forced(work) as forced:
        for kind in ("fsdp2", "ddp"):
            backend.reset_statistics()
            runs[f"{kind} railx"] = _trained(work, kind)
            asked[kind] = vars(backend.statistics())
        errors = forced.errors
    with one_rank(work, "nccl", plain=True):
        for kind in ("fsdp2", "ddp"):
            runs[f"{kind} nccl"] = _trained(work, kind)
        runs["alone"] = _trained(work, "")
    for kind in ("fsdp2", "ddp"):
        ours = runs[f"{kind} railx"]
        for other, allowed in ((f"{kind} nccl", 0.0), ("alone", 1e-5)):
            furthest = max(
                abs(one - two) / abs(two)
                for one, two in zip(ours["losses"], runs[other]["losses"], strict=True)
            )
            subject = f"{kind} railx to {other}"
            found.check("loss_difference", furthest, "at_most", allowed, subject=subject)
        nccl = runs[f"{kind} nccl"]
        ratio = ours["step_ms"] / nccl["step_ms"]
        found.check("step_time_over_nccl", ratio, "at_most", 1.1, subject=kind, goal=True)
        for sample, (one, two) in enumerate(zip(ours["parts_ms"], nccl["parts_ms"], strict=True)):
            found.measured("step_time_over_nccl", one / two, subject=kind, sample=sample)
        operations = asked[kind]["requests"] + asked[kind]["held"]
        found.measured("operations_of_a_step", operations / runs["alone"]["steps"], subject=kind)
    operations = asked["ddp"]["requests"] + asked["ddp"]["held"]
    found.check("operations_with_circuits", operations, "at_least", runs["alone"]["steps"])
    found.check("errors_of_the_controller", len(errors), "equal", 0)
    alone_ms = None if work.dry else runs["alone"]["step_ms"]
    found.check("step_alone", alone_ms, "at_least", 100.0, unit="ms", goal=True)
    for name, run in runs.items():
        found.measured("step", run["step_ms"], subject=name, unit="ms")
    found.details = {"runs": runs, "statistics": asked, "errors": errors}
    return found


def _trained(work: Work, kind: str) -> dict[str, Any]:
    """A few steps of a small model: losses and the median time of a step."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    # On an H100 in single precision a step takes more than 100 ms by its operations.
    tokens, width = (64, 32) if work.dry else (16_384, 4096)
    torch.manual_seed(0)
    model: Any = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(work.device)
    if kind == "fsdp2":
        mesh = init_device_mesh(work.device, (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    given = torch.randn(tokens, width, device=work.device)
    losses, times = [], []
    steps = 4 if work.dry else 22
    for _ in range(steps):
        wait_for(work)
        begin_ms = now_ms()
        optimizer.zero_grad()
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(now_ms() - begin_ms)
    parts = [times[first : first + steps // 3] for first in range(1, steps, steps // 3)]
    return {
        "losses": losses,
        "step_ms": median(times[1:]),
        "parts_ms": [median(part) for part in parts],
        "steps": steps,
    }
