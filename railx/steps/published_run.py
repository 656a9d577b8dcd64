"""The simulator of the published Opus steps: its rings, its order and its rules.

Facts, no code, come from opusfabric/Opus at 795ee5b (simulation/) and from ASTRA-sim at
518bd51, on which it builds; every rule names its file there. With them the published
electrical steps come out to 5 us (at 2,048 GPUs to 0.02 %), those on rails to
0.04 %. Left out: the time until links have drained before circuits change
(TopologyManager.cpp). Steps run over latencies, modes and bandwidths.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from railx.performance.devices import DeviceSettings
from railx.progress import counted
from railx.replay.graph_pricing import COUNTS, Counts
from railx.steps.published_graphs import Links, PublishedStep, StageNodes, stage_nodes
from railx.steps.settings import StepJob, StepSettings

#: By rank: after which of its operations it asks for which stage, -1: for its ring.
Announced: TypeAlias = Sequence[Mapping[int, int]]
#: Tensor ranks that are simulated. More are like the first: circuits change when the
#: last of them is there.
_TENSOR_RANKS = 2
_RING = -1


@dataclass(frozen=True)
class Rings:
    """How the published simulator carries out a collective."""

    bytes_per_gb: float = 2.0**30
    """Of a rate's GB (astra-network-analytical at 0f6d65e, NetworkFunction.cc)."""
    parts: int = 4
    """Parts of a collective, one after the other (examples/stg-template/system.json:
    ``preferred-dataset-splits``, ``active-chunks-per-dimension``)."""
    latency_ns: float = 936.25
    """Of a link (examples/*/network.yml). A message arrives after it and keeps the link
    for twice as long (Link.cpp)."""
    endpoint_ns: int = 10
    """Before each send (system.json: ``endpoint-delay``; MemBus.cc)."""
    memory_passes: int = 3
    """A part that is summed is read twice and written once at the rate of the device's
    memory before it is sent on (PacketBundle.cc)."""

    def message_ns(self, size_bytes: float, gb_s: float) -> int:
        """Until a message of ``size_bytes`` has arrived."""
        return int(self.latency_ns + size_bytes / self.bytes_per_ns(gb_s))

    def bytes_per_ns(self, gb_s: float) -> float:
        """The rate of a link of ``gb_s``."""
        return gb_s * self.bytes_per_gb / 1e9

    def collective_ns(
        self, kind: str, size_bytes: float, members: int, gb_s: float, memory_gb_s: float
    ) -> int:
        """The time of a collective whose members begin together.

        ``size_bytes``: of a shard where it gathers, else of the tensor (Ring.cc).
        """
        message = int(size_bytes) // self.parts
        if kind != "all_gather":
            message //= members
        sent_ns = message / self.bytes_per_ns(gb_s)
        busy_ns, summed_ns = int(sent_ns), self.memory_passes * int(message / memory_gb_s)
        rounds = (members - 1) * (2 if kind == "all_reduce" else 1)
        sums = 0 if kind == "all_gather" else members - 1
        time_ns = free_ns = 0
        for _ in range(self.parts):
            time_ns += self.endpoint_ns
            for step in range(rounds):
                begin_ns = max(time_ns, free_ns)
                free_ns = int(begin_ns + busy_ns + 2 * self.latency_ns)
                arrived_ns = begin_ns + int(self.latency_ns + sent_ns)
                time_ns = arrived_ns + self.endpoint_ns + (summed_ns if step < sums else 0)
        return time_ns


def stage_times(
    step: PublishedStep, device: DeviceSettings, links_gb_s: Mapping[Links, float], counts: Counts
) -> list[tuple[StageNodes, list[int]]]:
    """The nodes of each stage with their times in ns.

    A computation takes its operations at the peak or its bytes at the rate of the
    memory (Roofline.cc).
    """
    rings = Rings()

    @cache
    def node_ns(
        kind: str, links: Links | None, operations: float, memory: float, size: float
    ) -> int:
        if links is None:
            return int(max(operations / (device.peak_tflops * 1e3), memory / device.memory_gb_s))
        gb_s = links_gb_s[links]
        if links == "pipeline":
            return rings.message_ns(size, gb_s)
        members = step.data if links == "data" else step.tensor
        return rings.collective_ns(kind, size, members, gb_s, device.memory_gb_s)

    per_operation, per_element = counts.operations_per_multiply_add, counts.bytes_per_element
    stages = []
    for stage in range(step.pipeline):
        nodes = stage_nodes(step, stage)
        columns = (nodes.kinds, nodes.links, nodes.operations, nodes.memory, nodes.sizes)
        times_ns = [
            node_ns(
                kind, links, operations * per_operation, memory * per_element, size * per_element
            )
            for kind, links, operations, memory, size in zip(*columns, strict=True)
        ]
        stages.append((nodes, times_ns))
    return stages


def split_links(step: PublishedStep, scale_up_gb_s: float, gb_s: float) -> dict[Links, float]:
    """The rates of a bandwidth that is split once for all (topo_gen_baseline.py).

    All bandwidth of the links is shared in proportion to the roots of their traffic.
    Tensor ranks are joined pair by pair; their ring uses few of these links.
    """
    sent: dict[Links, float] = {"data": 0.0, "tensor": 0.0, "pipeline": 0.0}
    for stage in range(step.pipeline):
        nodes = stage_nodes(step, stage)
        for kind, links, size in zip(nodes.kinds, nodes.links, nodes.sizes, strict=True):
            if links == "pipeline":
                sent[links] += size * (kind == "send")
            elif links is not None:
                members = step.data if links == "data" else step.tensor
                share = {"all_gather": members, "all_reduce": 2}.get(kind, 1)
                sent[links] += size * share * (members - 1) / members
    neighbours = {"data": min(step.data - 1, 2), "pipeline": min(step.pipeline - 1, 2)}
    total_gb_s = max(neighbours.values()) * gb_s + (step.tensor - 1) * scale_up_gb_s
    roots = {links: math.sqrt(size) for links, size in sent.items()}
    counted = {**neighbours, "tensor": step.tensor - 1}
    shared = sum(roots.values())
    return {
        links: total_gb_s * root / shared / counted[links] if root else 0.0
        for links, root in roots.items()
    }


@dataclass
class _Circuits:
    """The bits of all stages and the links that they set (Scheduler.cc)."""

    latency_ns: int
    bits: list[int]
    """1: the stage asks for its pipeline, 0: for the rings of its replicas. A bit stays
    set where the switch refused it."""
    lit: tuple[int, ...] = ()
    in_flight: int = 0
    """Collectives on rails, anywhere: circuits do not change before they have ended
    (TopologyManager.cpp)."""
    commands: int = 0
    ready_ns: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lit = tuple(self.bits)

    def ask(self, now_ns: int, stages: Sequence[int], bit: int) -> bool:
        """Set the bits of stages; whether the circuits are there or on their way."""
        for stage in stages:
            self.bits[stage] = bit
        if tuple(self.bits) == self.lit:
            return True
        if self.in_flight:
            return False
        before, self.lit = self._links(), tuple(self.bits)
        for link in before ^ self._links():
            self.ready_ns[link] = now_ns + self.latency_ns + 1
        self.commands += 1
        return True

    def _links(self) -> set[tuple[int, ...]]:
        """Stages with rings, pairs in the cycle of stages (topo_gen_pp_split.py)."""
        count = len(self.lit)
        pairs = {
            pair
            for stage in range(count)
            for pair in ((stage, (stage + 1) % count), ((stage + 1) % count, stage))
            if self.lit[pair[0]] and self.lit[pair[1]]
        }
        joined = {stage for pair in pairs for stage in pair}
        return pairs | {(stage,) for stage in range(count) if stage not in joined}


class PublishedRun:
    """One step on the published simulator.

    A rank computes one node and carries out one collective or send at a time; whatever
    ends on it, it begins of the nodes that wait for nothing those with the lowest
    numbers (Workload.cc, HardwareResource.cc). On rails (``latency_ns``) a collective
    begins on a rank once all members have tried to begin it; those that tried in vain
    try again when something ends on them. With ``announced`` a rank also asks for
    circuits after some of its operations.
    """

    def __init__(
        self,
        step: PublishedStep,
        stages: Sequence[tuple[StageNodes, Sequence[int]]],
        latency_ns: int | None = None,
        announced: Announced = (),
    ) -> None:
        self._stages, self._announced = stages, announced
        # Without circuits the ranks of a stage do the same at the same time.
        self._members = {"data": 1, "tensor": 1}
        self.circuits = None
        if latency_ns is not None:
            self._members = {"data": step.data, "tensor": min(step.tensor, _TENSOR_RANKS)}
            self.circuits = _Circuits(latency_ns, [0] * step.pipeline)
        self.ranks = [
            (stage, tensor, replica)
            for stage in range(step.pipeline)
            for tensor in range(self._members["tensor"])
            for replica in range(self._members["data"])
        ]
        count = len(self.ranks)
        self.operations: list[list[int]] = [[] for _ in range(count)]
        """Of each rank, those that ended, in order."""
        self.ended_ns = [0] * count
        self._pending = [list(map(len, self._nodes(rank).after)) for rank in range(count)]
        self._ready = [
            [node for node, waits in enumerate(pending) if not waits] for pending in self._pending
        ]
        self._busy: list[set[str]] = [set() for _ in range(count)]
        self._turns: Counter[tuple[int, str]] = Counter()
        self._left: Counter[tuple[object, ...]] = Counter()
        self._tried: defaultdict[tuple[object, ...], set[int]] = defaultdict(set)
        self._joined: defaultdict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        self._sent: set[tuple[int, int]] = set()
        self._posted: dict[tuple[int, int], int] = {}
        self._events: list[tuple[int, int, int, int]] = []
        self._now_ns = self._event = 0
        self._carry_out()

    @property
    def last_rank(self) -> int:
        """The rank that ends last; of several the first."""
        return self.ended_ns.index(max(self.ended_ns))

    def compute_ns(self, rank: int) -> int:
        """How long a rank computes."""
        nodes, times_ns = self._stages[self.ranks[rank][0]]
        return sum(ns for ns, links in zip(times_ns, nodes.links, strict=True) if links is None)

    def _nodes(self, rank: int) -> StageNodes:
        return self._stages[self.ranks[rank][0]][0]

    def _carry_out(self) -> None:
        """All events; where there are none left, all ranks try again (main.cc)."""
        while True:
            for rank in range(len(self.ranks)):
                self._begin(rank)
            if not self._events:
                break
            while self._events:
                self._now_ns, _, rank, node = heapq.heappop(self._events)
                self._end(rank, node)
            if self.circuits and self.circuits.ready_ns:
                self._now_ns = max(self._now_ns, *self.circuits.ready_ns.values())
        waiting = next((rank for rank, ready in enumerate(self._ready) if ready), None)
        assert waiting is None, f"rank {waiting} never ends"

    def _ends(self, rank: int, node: int, begin_ns: int | None = None) -> None:
        """A node will have ended; by default it takes no time."""
        time_ns = self._now_ns
        if begin_ns is not None:
            time_ns = begin_ns + self._stages[self.ranks[rank][0]][1][node]
        self._event += 1
        heapq.heappush(self._events, (time_ns, self._event, rank, node))

    def _begin(self, rank: int) -> None:
        """Begin the nodes that wait for nothing, as far as the rank is free."""
        nodes, busy = self._nodes(rank), self._busy[rank]
        left = []
        for node in sorted(self._ready[rank], key=nodes.numbers.__getitem__):
            links, kind = nodes.links[node], nodes.kinds[node]
            stream = "compute" if links is None else "communication"
            if kind == "recv":
                self._receive(rank, node)
            elif stream in busy or not self._may_begin(rank, node):
                left.append(node)
            else:
                busy.add(stream)
                if links is None:
                    self._ends(rank, node, self._now_ns)
                elif kind == "send":
                    stage = self.ranks[rank][0]
                    self._ends(rank, node, self._lit_ns((stage, stage + nodes.stages[node])))
                else:
                    self._join(rank, node)
        self._ready[rank] = left

    def _may_begin(self, rank: int, node: int) -> bool:
        """Whether nothing but its stream is in the way of a node."""
        nodes, stage = self._nodes(rank), self.ranks[rank][0]
        links = nodes.links[node]
        if self.circuits is None or links in (None, "tensor"):
            return True
        if links == "pipeline":
            return self.circuits.ask(self._now_ns, (stage, stage + nodes.stages[node]), 1)
        key = self._operation(rank, "data")
        tried = self._tried[key]
        tried.add(rank)
        if len(tried) < self._members["data"]:
            return False
        if key not in self._joined:
            if not self.circuits.ask(self._now_ns, (stage,), 0):
                return False
            self.circuits.in_flight += 1
        return True

    def _operation(self, rank: int, links: str) -> tuple[object, ...]:
        """The collective that a rank joins next."""
        stage, tensor, replica = self.ranks[rank]
        group = tensor if links == "data" else replica
        return links, stage, group, self._turns[rank, links]

    def _join(self, rank: int, node: int) -> None:
        """Begin a collective; the last member sets its end."""
        links = self._nodes(rank).links[node]
        assert links is not None
        key = self._operation(rank, links)
        joined = self._joined[key]
        joined.append((rank, node))
        if len(joined) == self._members[links]:
            begin_ns = self._now_ns if links == "tensor" else self._lit_ns((self.ranks[rank][0],))
            for member, its in sorted(joined):
                self._ends(member, its, begin_ns)

    def _lit_ns(self, link: tuple[int, ...]) -> int:
        """When a link may be used."""
        ready_ns = self.circuits.ready_ns.get(link, 0) if self.circuits else 0
        return max(self._now_ns, ready_ns)

    def _receive(self, rank: int, node: int) -> None:
        """Wait for a message, or take the one that is there."""
        stage, tensor, replica = self.ranks[rank]
        sender = self.ranks.index((stage + self._nodes(rank).stages[node], tensor, replica))
        if (sender, rank) in self._sent:
            self._ends(rank, node)
        else:
            self._posted[sender, rank] = node

    def _end(self, rank: int, node: int) -> None:
        """A node has ended: announce circuits, and begin what waited for it."""
        nodes, (stage, tensor, replica) = self._nodes(rank), self.ranks[rank]
        links, kind = nodes.links[node], nodes.kinds[node]
        self.ended_ns[rank] = self._now_ns
        if kind != "recv":
            self._busy[rank].discard("compute" if links is None else "communication")
        if links in ("data", "tensor"):
            key = self._operation(rank, links)
            self._turns[rank, links] += 1
            self._left[key] += 1
            if links == "data" and self.circuits and self._left[key] == self._members[links]:
                self.circuits.in_flight -= 1
        if links is not None:
            self.operations[rank].append(node)
            self._announce(rank)
        if kind == "send":
            receiver = self.ranks.index((stage + nodes.stages[node], tensor, replica))
            self._sent.add((rank, receiver))
            if (rank, receiver) in self._posted:
                self._ends(receiver, self._posted[rank, receiver])
        for follower in nodes.followers[node]:
            self._pending[rank][follower] -= 1
            if not self._pending[rank][follower]:
                self._ready[rank].append(follower)
        self._begin(rank)

    def _announce(self, rank: int) -> None:
        """Ask for the circuits that come next; a refusal is not repeated."""
        if self.circuits is None or not self._announced:
            return
        other = self._announced[rank].get(len(self.operations[rank]) - 1)
        if other is not None:
            stage = self.ranks[rank][0]
            stages, bit = ((stage,), 0) if other == _RING else ((stage, other), 1)
            self.circuits.ask(self._now_ns, stages, bit)


def announced(run: PublishedRun) -> Announced:
    """What ranks announce after a run on demand (trace_parser.py).

    A rank asks for the circuits of its next operations on rails when the last one on
    the circuits before them has ended; for the first ones after its first operation.
    """
    asks = []
    for (stage, _, _), operations in zip(run.ranks, run.operations, strict=True):
        nodes = run._stages[stage][0]
        other, last = None, 0
        asked: dict[int, int] = {}
        for number, node in enumerate(operations):
            if nodes.links[node] == "tensor":
                continue
            then = _RING if nodes.links[node] == "data" else stage + nodes.stages[node]
            if then != other:
                asked[last] = other = then
            last = number
        asks.append(asked)
    return asks


def graph_time_rows(step: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job, count, bandwidth, mode and latency.

    Times are those of the rank that ends last; ``exposed_ms``: time in which it does
    not compute, as the artifact counts. ``added_ms``: over the same mode at latency 0.
    Mode ``static_split``: electrical, on bandwidth that is split once for all.
    """
    if settings.published is None:
        return
    of_degrees = {job.degrees: (name, job) for name, job in reversed(settings.jobs().items())}
    pairs = [(*named, counts) for named in of_degrees.values() for counts in COUNTS]
    for name, job, counts in counted(pairs, "published graphs"):
        for gb_s, latencies_ms in _points(settings, job).items():
            zero_ms: dict[str, float] = {}
            runs = _runs(_step(settings, job), job, counts, gb_s, latencies_ms)
            for mode, latency_ms, run in runs:
                rank = run.last_rank
                step_ms, compute_ms = run.ended_ns[rank] / 1e6, run.compute_ns(rank) / 1e6
                zero_ms.setdefault(mode, step_ms)
                yield {
                    "step": step,
                    "job": name,
                    "layer": settings.published,
                    "gpus": job.degrees.ranks,
                    "counts": counts,
                    "scale_out_gb_s": gb_s,
                    "mode": mode,
                    "reconfiguration_latency_ms": latency_ms,
                    "step_ms": step_ms,
                    "electrical_ms": zero_ms["electrical"],
                    "added_ms": step_ms - zero_ms[mode],
                    "compute_ms": compute_ms,
                    "exposed_ms": step_ms - compute_ms,
                    "switches": run.circuits.commands if run.circuits else 0,
                    "fidelity": "replay",
                }


def _runs(
    step: PublishedStep, job: StepJob, counts: str, gb_s: float, latencies_ms: tuple[float, ...]
) -> Iterator[tuple[str, float, PublishedRun]]:
    """Mode, latency and run; first the electrical one."""
    up = job.device.scale_up_gb_s

    def stages(links_gb_s: Mapping[Links, float]) -> Any:
        return stage_times(step, job.device, links_gb_s, COUNTS[counts])

    full = stages({"data": gb_s, "tensor": up, "pipeline": gb_s})
    yield "electrical", 0.0, PublishedRun(step, full)
    yield "static_split", 0.0, PublishedRun(step, stages(split_links(step, up, gb_s)))
    for latency_ms in sorted({0.0, *latencies_ms}):
        latency_ns = round(latency_ms * 1e6)
        on_demand = PublishedRun(step, full, latency_ns)
        yield "on_demand", latency_ms, on_demand
        yield "provisioned", latency_ms, PublishedRun(step, full, latency_ns, announced(on_demand))


def _points(settings: StepSettings, job: StepJob) -> dict[float, tuple[float, ...]]:
    """The latencies by the bandwidth of rails."""
    sweep = settings.sweep
    points = dict.fromkeys(sweep.bandwidths_gb_s, sweep.bandwidth_latencies_ms)
    return {**points, job.device.scale_out_gb_s: sweep.latencies_ms}


def _step(settings: StepSettings, job: StepJob) -> PublishedStep:
    degrees = job.degrees
    assert settings.published is not None
    return PublishedStep(
        *(degrees.data, degrees.tensor, degrees.pipeline, settings.published),
        batch=degrees.data * job.micro_batches * job.micro_batch_sequences,
        length=job.sequence_tokens,
        layers=job.model.layers,
        hidden=job.model.hidden,
    )
