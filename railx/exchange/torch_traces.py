"""Execution traces of PyTorch, with the times of the profile beside them, as graphs.

PREFIX.RANK.json is of torch's ``ExecutionTraceObserver``: operators with their
tensors. PREFIX.RANK.kineto.json is of its profiler: times. Both number operators alike
(``rf_id`` and ``Record function id``).

* The host computes in one line: operators of all threads, and the time between them.
* A collective is issued where its ``c10d`` operator begins. The first operator that
  touches one of its tensors afterwards waits for it, as does the next one at all where
  the call was synchronous. The host's idle time right before that, while the
  collective was under way, is no computation.
* Kernels of a device run in the order of their stream, from the launch by their
  operator on. A collective waits for the kernels launched before it, and kernels of
  operators that touch its tensors wait for it. A host that synchronises waits for all.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.exchange.chakra_graphs import GroupNumbers
from railx.exchange.rank_nodes import RankNodes
from railx.replay.graphs import COMPUTE, NODE_KINDS, RankGraphs

#: Kinds of the operators of ``c10d``, and the argument whose bytes count (Chakra's:
#: of a gather what a member gives, of others the tensor).
_OPERATORS = {
    f"c10d::{name}": (kind, argument)
    for kind, argument, names in (
        ("all_reduce", 0, ("allreduce_", "allreduce_coalesced_")),
        ("all_gather", 1, ("_allgather_base_", "allgather_", "allgather_into_tensor_coalesced_")),
        ("reduce_scatter", 1, ("_reduce_scatter_base_", "reduce_scatter_")),
        ("reduce_scatter", 1, ("reduce_scatter_tensor_coalesced_",)),
        ("all_to_all", 1, ("alltoall_base_", "alltoall_")),
        *(("broadcast", 0, ("broadcast_",)), ("reduce", 0, ("reduce_",))),
        *(("gather", 1, ("gather_",)), ("scatter", 0, ("scatter_",))),
        *(("barrier", 0, ("barrier",)), ("send", 0, ("send",)), ("recv", 0, ("recv_",))),
    )
    for name in names
}
#: What readers of a file in another form meet.
_UNKNOWN = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)
#: Nodes that are no operators: roots, and spans of a whole step.
_STEP = "ProfilerStep"
_NO_OPERATORS = ("[pytorch|", "## process_group", _STEP)
#: Nodes of threads that carry collectives out.
_WORKERS = ("gloo", "nccl", "mpi", "ucc", "railx")
_INIT = "## process_group:init ##"
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def is_torch_trace(path: Path) -> bool:
    """Whether a JSON file is an execution trace of PyTorch, by its first key."""
    with path.open(encoding="utf-8") as file:
        return re.match(r'\s*\{\s*"schema"\s*:', file.read(200)) is not None


def torch_groups(files: Sequence[Path], ranks: int) -> dict[str, list[int]]:
    """The groups of ranks by name and members, as their files state them."""
    groups: dict[str, list[int]] = {}
    for path in files:
        trace = _load(path)
        try:
            named = _groups(trace, ranks)
            groups |= {_key(name, members): members for name, members in named.items()}
        except _UNKNOWN as error:
            raise UserError(
                f"got {path} with groups in a form that is not known ({error!r}); allowed: traces"
                " of torch.profiler"
            ) from None
    return groups


def torch_nodes(
    path: Path, rank: int, groups: GroupNumbers, ranks: int
) -> tuple[RankNodes, dict[str, int]]:
    """The nodes of a rank, and how many dependencies and times are missing."""
    trace = _load(path)
    profile_path = path.with_name(f"{path.name.removesuffix('.json')}.kineto.json")
    if not profile_path.exists():
        raise UserError(
            f"got {path}, rank {rank}, without times; allowed: the profile of the same run beside"
            f" it, {profile_path.name} (examples/record_trace.py)"
        )
    profile = _load(profile_path)
    try:
        reader = _Rank(path, rank, trace, profile, groups, ranks)
        return reader.nodes(), {"untimed_operations": reader.untimed}
    except UserError:
        raise
    except _UNKNOWN as error:
        raise UserError(
            f"got {path}, rank {rank}, in a form that is not known ({error!r}); allowed: traces of"
            " torch.profiler"
        ) from None


def shortest_times(graphs: RankGraphs) -> RankGraphs:
    """The graphs with the time of each collective on the member where it was shortest.

    The recorded times of other members contain their wait for the last one.
    """
    columns = dict(graphs.columns)
    unknown = np.iinfo(np.int64).max
    durations = np.where(columns["duration_ns"] < 0, unknown, columns["duration_ns"])
    for group in np.unique(columns["group"][columns["group"] >= 0]).tolist():
        rows = np.flatnonzero(columns["group"] == group)
        members = [rows[columns["rank"][rows] == rank] for rank in graphs.groups[group]]
        if len({len(of_rank) for of_rank in members}) == 1:
            durations[np.array(members)] = durations[np.array(members)].min(axis=0)
    durations[durations == unknown] = -1
    return replace(graphs, columns=columns | {"duration_ns": durations})


def _load(path: Path) -> Any:
    try:
        # Microseconds since 1970 with nanoseconds are more digits than a float has.
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (ValueError, RecursionError):
        raise UserError(
            f"got {path}, which ends or breaks off; allowed: a whole trace of torch; record it"
            " again"
        ) from None
    key = "traceEvents" if ".kineto" in path.name else "nodes"
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        raise UserError(f"got {path} without {key}; allowed: a trace of torch.profiler")
    return content


def _groups(trace: Mapping[str, Any], ranks: int) -> dict[str, list[int]]:
    """The groups that a rank's process has set up."""
    for node in trace["nodes"]:
        if node.get("name") == _INIT:
            return {
                group["pg_name"]: sorted(group["ranks"]) or list(range(group["group_size"]))
                for group in json.loads(_values(node, "inputs")[0])
            }
    return {"0": list(range(ranks))}


def _key(name: str, members: Sequence[int]) -> str:
    return f"{name} of {','.join(map(str, members))}"


def _values(node: Mapping[str, Any], key: str) -> list[Any]:
    """The values of an operator: its inputs or outputs, in the newer form or older."""
    values = node.get(key, [])
    return list(values["values"] if isinstance(values, dict) else values)


def _tensors(value: Any) -> Iterator[list[Any]]:
    """Tensors of a value: number, storage, offset, elements, bytes of one, device."""
    if isinstance(value, list):
        if len(value) == 6 and isinstance(value[5], str) and type(value[0]) is int:
            yield value
        else:
            for item in value:
                yield from _tensors(item)


@dataclass(frozen=True)
class _Span:
    """An operator on the host: its node in the trace, its span and its tensors."""

    node: Mapping[str, Any]
    start_ns: int
    end_ns: int
    external: int
    storages: frozenset[int]

    @property
    def number(self) -> int:
        return int(self.node["id"])

    @property
    def name(self) -> str:
        return str(self.node["name"])


@dataclass(frozen=True)
class _Collective:
    """A collective in flight: its node, the end of its call, its span."""

    number: int
    called_ns: int
    times: tuple[int, int] | None
    storages: frozenset[int]
    synchronous: bool


class _Rank:
    """Turns the trace and the profile of a rank into nodes."""

    def __init__(
        self,
        path: Path,
        rank: int,
        trace: Mapping[str, Any],
        profile: Mapping[str, Any],
        groups: GroupNumbers,
        ranks: int,
    ) -> None:
        self._nodes = RankNodes(path, rank)
        self._groups, self._ranks = groups, ranks
        self._members = _groups(trace, ranks)
        self._next = 1 + max((int(node["id"]) for node in trace["nodes"]), default=0)
        self._children = _parents_first(trace)
        self._pending: list[_Collective] = []
        #: What the next node of the host waits for, and the last kernel of each stream.
        self._tail: list[int] = []
        self._streams: dict[int, int] = {}
        #: How many operators the profile lacks.
        self.untimed = 0
        self._check_world(profile.get("distributedInfo") or {})
        events = [event for event in profile["traceEvents"] if event.get("ph") == "X"]
        self._kernels = self._by_operator(events)
        self._spans = self._timed(trace, events)
        self._synchronised = [
            _times_ns(event)
            for event in events
            if "Synchronize" in event["name"] and event.get("cat") == "cuda_runtime"
        ]
        # A step begins before its first operator and ends after its last one.
        steps = [event for event in events if event["name"].startswith(_STEP)]
        bounds = {time for span in self._spans for time in (span.start_ns, span.end_ns)}
        bounds |= {time for event in steps for time in _times_ns(event)}
        self._bounds = sorted(bounds)
        self._cursor_ns = self._bounds[0] if bounds else 0

    def _check_world(self, run: Mapping[str, Any]) -> None:
        rank, world = run.get("rank", self._nodes.rank), run.get("world_size", self._ranks)
        if rank != self._nodes.rank or world != self._ranks:
            raise UserError(
                f"got {self._nodes.path}, rank {self._nodes.rank}, which is rank {rank} of {world}"
                f" in its run, with {self._ranks} here; allowed: the files of all ranks of a run,"
                " or --symmetric with as many"
            )

    def nodes(self) -> RankNodes:
        """The nodes, in the order of time."""
        moments: list[tuple[int, int, Any]] = [
            *((span.start_ns, 1, span) for span in self._spans),
            *((end_ns, 0, name) for end_ns, name in _outermost(self._spans)),
            *((start_ns, 2, end_ns) for start_ns, end_ns in self._synchronised),
        ]
        name = "host"
        for time_ns, what, of in sorted(moments, key=lambda moment: moment[:2]):
            if what == 0:
                self._compute(time_ns, of)
            elif what == 2:
                self._compute(time_ns, name)
                self._cursor_ns = max(self._cursor_ns, of)
                self._tail += self._streams.values()
            else:
                self._begin(of, name)
                name = of.name
        if self._bounds:
            end_ns = self._bounds[-1]
            self._wait([of for of in self._pending if of.synchronous], end_ns, name)
            self._compute(end_ns, name)
            if self._tail:
                self._add("end", COMPUTE, [*self._tail, *self._streams.values()], duration_ns=0)
        return self._nodes

    def _begin(self, span: _Span, before: str) -> None:
        """An operator begins after ``before``: it may wait, launch, be a collective."""
        reached = [
            of
            for of in self._pending
            if span.start_ns >= of.called_ns and (of.synchronous or of.storages & span.storages)
        ]
        kernels = self._kernels.get(span.external, ())
        if not kernels:
            self._wait(reached, span.start_ns, before)
        else:
            self._compute(span.start_ns, before)
            self._launch(kernels, [of.number for of in reached])
        if span.name in _OPERATORS:
            self._compute(span.start_ns, before)
            self._issue(span)

    def _wait(self, reached: Sequence[_Collective], until_ns: int, before: str) -> None:
        """The host waits for collectives until a time; it was idle while they ran."""
        if not reached:
            return
        last_ns = self._bounds[bisect_left(self._bounds, until_ns) - 1]
        ended_ns = max(until_ns if of.times is None else of.times[1] for of in reached)
        idle_ns = max(0, min(until_ns, ended_ns) - last_ns)
        self._compute(until_ns - idle_ns, before)
        self._cursor_ns = max(self._cursor_ns, until_ns)
        self._pending = [of for of in self._pending if of not in reached]
        self._tail += [of.number for of in reached]

    def _compute(self, until_ns: int, name: str) -> None:
        """The host computes until a time."""
        lasts_ns = until_ns - self._cursor_ns
        if lasts_ns > 0:
            self._cursor_ns = until_ns
            self._tail = [self._add(name, COMPUTE, self._tail, duration_ns=lasts_ns)]

    def _add(self, name: str, kind: int, after: Sequence[int], **values: int) -> int:
        number, self._next = self._next, self._next + 1
        self._nodes.add(number, name, kind, list(after), **values)
        return number

    def _launch(self, kernels: Sequence[Any], awaited: Sequence[int]) -> None:
        for kernel in kernels:
            stream = 1 + int(kernel.get("args", {}).get("stream", 0))
            after = [*self._tail, *awaited]
            if stream in self._streams:
                after.append(self._streams[stream])
            start_ns, end_ns = _times_ns(kernel)
            values = {"stream": stream, "duration_ns": end_ns - start_ns}
            self._streams[stream] = self._add(kernel["name"], COMPUTE, after, **values)

    def _issue(self, span: _Span) -> None:
        kind, argument = _OPERATORS[span.name]
        inputs = _values(span.node, "inputs")
        counted = inputs[argument] if argument < len(inputs) else []
        size_bytes = sum(tensor[3] * tensor[4] for tensor in _tensors(counted))
        name, members = self._group(span)
        values = {"bytes": size_bytes}
        if kind in ("send", "recv"):
            peer, tag = inputs[2], inputs[3] if len(inputs) > 3 else 0
            if type(peer) is not int or not 0 <= peer < len(members):
                raise UserError(
                    f"{self._nodes.where(span.number)} with peer {peer!r}; allowed: a rank of its"
                    f" group of {len(members)}"
                )
            values |= {"peer": members[peer], "tag": tag if type(tag) is int else 0}
        else:
            values["group"] = self._groups.number(self._nodes, span.number, name)
            if kind == "scatter":
                values["bytes"] *= len(members)
        times = self._ran(span)
        if times is not None:
            values["duration_ns"] = times[1] - times[0]
        after = [*self._tail, *self._streams.values()]
        number = self._add(span.name, NODE_KINDS.index(kind), after, **values)
        flags = [value for value in inputs if isinstance(value, bool)]
        may_wait = "async_op" in str(_attributes(span.node).get("op_schema"))
        waits = may_wait and flags[-1:] == [False]
        self._pending.append(_Collective(number, span.end_ns, times, span.storages, waits))

    def _group(self, span: _Span) -> tuple[str, list[int]]:
        """The name of a collective's group, and its members."""
        nodes = (span.node, *self._children.get(span.number, ()))
        names = [_attributes(node).get("pg_name") for node in nodes]
        name = next((name for name in names if name is not None), None)
        if name is None and len(self._members) == 1:
            (name,) = self._members
        if name is None or name not in self._members:
            named = ", ".join(self._members)
            raise UserError(
                f"{self._nodes.where(span.number)}, {span.name} of group {name}; allowed: a"
                f" group that the trace names ({named}); gloo names none where there are several"
            )
        members = self._members[name]
        key = _key(name, members)
        return (key if key in self._groups.names else name), members

    def _ran(self, span: _Span) -> tuple[int, int] | None:
        """When the operation of a call ran: its span on another thread, or kernels."""
        record, below = _record(span.node), map(_record, self._children.get(span.number, ()))
        launchers = {span.external, *(self._times[n][2] for n in below if n in self._times)}
        ran = [_times_ns(kernel) for number in launchers for kernel in self._nccl.get(number, ())]
        # The trace puts a worker's span below any operator; its tensors tell. Where the
        # trace misses a span that the profile has, the first one left is taken.
        workers = [n for n in self._workers if n > record and n in self._times]
        touching = [n for n in workers if self._workers[n] & span.storages]
        for number in (touching or [n for n in workers if not self._workers[n]])[:1]:
            ran.append(self._times[number][:2])
            del self._workers[number]
        return (min(start for start, _ in ran), max(end for _, end in ran)) if ran else None

    def _by_operator(self, events: Sequence[Any]) -> dict[int, list[Any]]:
        """The kernels by the external id of their operator, those of NCCL aside."""
        kernels: dict[int, list[Any]] = {}
        self._nccl: dict[int, list[Any]] = {}
        for event in events:
            if event.get("cat") in _KERNELS:
                chosen = self._nccl if "nccl" in event["name"].lower() else kernels
                external = int(event.get("args", {}).get("External id", -1))
                chosen.setdefault(external, []).append(event)
        return kernels

    def _timed(self, trace: Mapping[str, Any], events: Sequence[Any]) -> list[_Span]:
        """The operators that ran on the host, by their start."""
        self._times: dict[int, tuple[int, int, int]] = {}
        for event in events:
            details = event.get("args", {})
            if "Record function id" in details:
                times = *_times_ns(event), int(details.get("External id", -1))
                self._times[int(details["Record function id"])] = times
        spans = []
        #: The tensors of the spans that carry collectives out, by record; none where
        #: the trace misses the span.
        self._workers: dict[int, frozenset[int]] = {
            int(event["args"]["Record function id"]): frozenset()
            for event in sorted(events, key=_start_ns)
            if "Record function id" in event.get("args", {}) and _is_worker(event["name"])
        }
        for node in sorted(trace["nodes"], key=_record):
            record, name, storages = _record(node), str(node["name"]), _storages(node)
            if _is_worker(name):
                self._workers[record] = storages
                continue
            if name.startswith(_NO_OPERATORS):
                continue
            if record not in self._times:
                if name in _OPERATORS:
                    raise UserError(
                        f"{self._nodes.where(int(node['id']))}, {name}, has no time in the profile;"
                        " allowed: a profile of the same steps; record both in one run"
                    )
                self.untimed += 1
                continue
            spans.append(_Span(node, *self._times[record], storages))
        return sorted(spans, key=lambda span: (span.start_ns, -span.end_ns, span.number))


def _outermost(spans: Sequence[_Span]) -> Iterator[tuple[int, str]]:
    """End and name of the operators that lie in no other one; spans by their start."""
    reached_ns = -1
    for span in spans:
        if span.end_ns > reached_ns:
            reached_ns = span.end_ns
            yield span.end_ns, span.name


def _parents_first(trace: Mapping[str, Any]) -> dict[int, list[Any]]:
    """The nodes below each node."""
    children: dict[int, list[Any]] = {}
    for node in trace["nodes"]:
        children.setdefault(int(node.get("ctrl_deps", node.get("parent", 0))), []).append(node)
    return children


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node, in the newer form of the trace and the older."""
    if "attrs" in node:
        return {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
    return dict(node)


def _record(node: Mapping[str, Any]) -> int:
    return int(_attributes(node)["rf_id"])


def _storages(node: Mapping[str, Any]) -> frozenset[int]:
    """The memory that the tensors of an operator lie in."""
    values = [_values(node, key) for key in ("inputs", "outputs")]
    return frozenset(int(tensor[1]) for tensor in _tensors(values))


def _is_worker(name: str) -> bool:
    """Whether a span is of a thread that carries a collective out."""
    return name.partition(":")[0] in _WORKERS


def _start_ns(event: Mapping[str, Any]) -> int:
    start_us: Decimal | int = event["ts"]
    return round(start_us * 1000)


def _times_ns(event: Mapping[str, Any]) -> tuple[int, int]:
    start_ns, lasts_ns = _start_ns(event), round(event.get("dur", 0) * 1000)
    if lasts_ns < 0:
        raise ValueError(f"dur {event['dur']} of {event['name']}")
    return start_ns, start_ns + lasts_ns
