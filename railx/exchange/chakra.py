"""Programs of ranks as Chakra execution traces, and back.

A rank's file is a graph. Computation between two steps of its program is a node that
depends on the program's earlier computation and waits (``data_deps``). An operation
depends on the same, and follows the one before it on its channel (``ctrl_deps``); nodes
that wait for it depend on it. So a simulator overlaps the same operations as the
program. An iteration begins and ends with computation too, maybe of no time: ASTRA-sim
stalls behind nodes of metadata.

Collectives name a group by a number; a JSON file beside the traces has its ranks, one
group for each channel. Attributes that begin with ``railx.`` carry values without a
field in the schema (nanoseconds, iterations, channels); with them a trace of ours can
be read back unchanged. Whole microseconds are rounded so that a rank's total
computation is off by one at most.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.exchange.chakra_messages import (
    ALL_GATHER,
    COLL,
    COLLECTIVES,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    RECV,
    SEND,
    attributes,
    message,
    read_messages,
    write_messages,
)
from railx.fabric.circuits import Configuration
from railx.io import write_text
from railx.replay.programs import DOES, KINDS, Programs

__all__ = ["VERSION", "Imported", "read_chakra", "write_chakra"]

#: The version of the schema in traces, as in ASTRA-sim's own.
VERSION = "0.0.4"
#: Collectives that ASTRA-sim runs; a broadcast takes the time of the trace.
_RUN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_NAMES = {number: name for name, number in COLLECTIVES.items()} | {8: "reduce_scatter"}
_MESSAGES = {"send": SEND, "recv": RECV}
_BEGIN, _ISSUE, _WAIT, _END = range(4)
_FILE = re.compile(r"\.(\d+)\.et$")

#: How long an operation takes: kind, bytes and members to ns.
Price = Callable[[str, int, tuple[int, ...]], float]


def write_chakra(prefix: Path, programs: Programs) -> tuple[list[Path], list[str]]:
    """Write PREFIX.RANK.et for every rank and PREFIX.groups.json.

    Returns the files, and the losses for a reader of the schema alone.
    """
    group_of = _groups(programs)
    rows = _by_rank(programs)
    written = []
    for rank in range(programs.ranks):
        path = prefix.with_name(f"{prefix.name}.{rank}.et")
        write_messages(path, _nodes(programs, rank, rows[rank], group_of))
        written.append(path)
    groups = {
        str(number): list(programs.configurations[configuration].members)
        for number, configuration in group_of.values()
    }
    path = prefix.with_name(f"{prefix.name}.groups.json")
    write_text(path, json.dumps(groups) + "\n")
    return [*written, path], _lost(programs)


def _lost(programs: Programs) -> list[str]:
    columns = programs.columns
    lost = ["that ranks begin an iteration together"]
    used = {KINDS[number] for number in np.unique(columns["kind"]) if number >= 0}
    missing = sorted(used - {*_RUN, *_MESSAGES})
    if missing:
        lost.append(f"{', '.join(missing)}: in the trace, but ASTRA-sim does not run them")
    if columns["pickup_ns"].any():
        lost.append("how late threads pick operations up")
    if columns["alone"].any():
        lost.append("which members of an operation wait for nobody")
    return lost


def _groups(programs: Programs) -> dict[int, tuple[int, int]]:
    """Number of the group and configuration of each channel of collectives, from 1 up.

    0 and no name at all stand for all ranks.
    """
    columns = programs.columns
    collective = np.isin(columns["kind"], [KINDS.index(name) for name in COLLECTIVES])
    chosen = collective & (columns["configuration"] >= 0)
    pairs = dict(
        zip(
            columns["channel"][chosen].tolist(),
            columns["configuration"][chosen].tolist(),
            strict=True,
        )
    )
    return {channel: (number, pairs[channel]) for number, channel in enumerate(sorted(pairs), 1)}


def _by_rank(programs: Programs) -> list[range]:
    bounds = np.searchsorted(programs.columns["rank"], np.arange(programs.ranks + 1))
    return [range(*pair) for pair in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


@dataclass
class _Graph:
    """Numbers the nodes of a rank and tracks the dependencies of the next one."""

    tail: list[int] = field(default_factory=list)
    #: Dependencies of each operation, by its node.
    behind: dict[int, frozenset[int]] = field(default_factory=dict)
    #: Last operation of each channel, and the node of each operation.
    last: dict[int, int] = field(default_factory=dict)
    operation: dict[tuple[int, int], int] = field(default_factory=dict)
    next: int = 0
    computed_ns: int = 0

    def node(self, name: str, kind: int, attrs: dict[str, Any], **fields: Any) -> Any:
        node = message(
            "Node",
            attrs,
            id=self.next,
            name=name,
            type=kind,
            data_deps=list(dict.fromkeys(self.tail)),
            **fields,
        )
        self.next += 1
        return node

    def wait(self, operation: int) -> None:
        """Further nodes depend on an operation, and so on its dependencies."""
        behind = self.behind.pop(operation, frozenset())
        self.tail = [*(number for number in self.tail if number not in behind), operation]

    def micros(self, lasts_ns: int) -> int:
        """Whole microseconds that add up to the computation so far."""
        before, self.computed_ns = self.computed_ns, self.computed_ns + lasts_ns
        return (self.computed_ns + 500) // 1000 - (before + 500) // 1000


def _nodes(
    programs: Programs, rank: int, rows: range, group_of: Mapping[int, tuple[int, int]]
) -> Iterator[Any]:
    yield message("GlobalMetadata", {"railx.rank": ("int64", rank)}, version=VERSION)
    columns = {
        name: values[rows.start : rows.stop].tolist() for name, values in programs.columns.items()
    }
    graph = _Graph()
    for row in range(len(rows)):
        step = {name: values[row] for name, values in columns.items()}
        if step["does"] in (_BEGIN, _END):
            yield _computation(graph, DOES[step["does"]], step["gap_ns"], step["iteration"])
            continue
        if step["gap_ns"]:
            yield _computation(graph, "compute", step["gap_ns"])
        key = step["channel"], step["sequence"]
        if step["does"] == _WAIT:
            graph.wait(graph.operation[key])
            if step["resume_ns"]:
                yield _computation(graph, "resume", step["resume_ns"])
            continue
        yield _operation(graph, programs, rank, step, group_of)
        graph.operation[key] = graph.last[step["channel"]] = graph.next - 1
        graph.behind[graph.next - 1] = frozenset(graph.tail)


def _computation(graph: _Graph, name: str, lasts_ns: int, iteration: int | None = None) -> Any:
    attrs: dict[str, Any] = {
        "is_cpu_op": ("bool", False),
        "railx.does": ("string", name),
        "railx.duration_ns": ("uint64", lasts_ns),
    }
    if iteration is not None:
        attrs["railx.iteration"] = ("int64", iteration)
        name = f"{name} iteration {iteration}"
    node = graph.node(name, COMP, attrs, duration_micros=graph.micros(lasts_ns))
    graph.tail = [node.id]
    return node


def _operation(
    graph: _Graph,
    programs: Programs,
    rank: int,
    step: Mapping[str, Any],
    group_of: Mapping[int, tuple[int, int]],
) -> Any:
    kind, channel = KINDS[step["kind"]], step["channel"]
    members = programs.configurations[step["configuration"]].members
    attrs: dict[str, Any] = {"is_cpu_op": ("bool", False)}
    if kind in _MESSAGES:
        (peer,) = (member for member in members if member != rank)
        ends = (rank, peer) if kind == "send" else (peer, rank)
        attrs |= {
            "comm_size": ("int64", step["bytes"]),
            "comm_src": ("int32", ends[0]),
            "comm_dst": ("int32", ends[1]),
            "comm_tag": ("int32", channel),
        }
    else:
        size = step["bytes"]
        if kind == "all_gather":
            size = -(-size // len(members))
        attrs |= {
            "comm_type": ("int64", COLLECTIVES[kind]),
            "comm_size": ("int64", size),
            "pg_name": ("string", str(group_of[channel][0])),
        }
    attrs |= {
        "railx.channel": ("string", programs.channels[channel]),
        "railx.sequence": ("int64", step["sequence"]),
        "railx.bytes": ("int64", step["bytes"]),
        "railx.duration_ns": ("uint64", step["lasts_ns"]),
    }
    for name in ("pickup_ns", "alone"):
        if step[name]:
            attrs[f"railx.{name}"] = ("int64", int(step[name]))
    return graph.node(
        f"{kind} {step['sequence']} of {programs.channels[channel]}",
        _MESSAGES.get(kind, COLL),
        attrs,
        ctrl_deps=[graph.last[channel]] if channel in graph.last else [],
        duration_micros=round(step["lasts_ns"] / 1000),
    )


# Reading


@dataclass(frozen=True)
class Imported:
    """Programs from traces, and the contents of the traces that they lack."""

    programs: Programs
    lost: tuple[str, ...]


@dataclass
class _Rank:
    """The steps of one rank."""

    rank: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    issued: Counter[str] = field(default_factory=Counter)
    iteration: int = 0
    gap_ns: int = 0
    #: Operations without a wait so far, by node.
    open: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, does: int, **attrs: Any) -> None:
        step = {"rank": self.rank, "iteration": self.iteration, "does": does}
        step |= {"gap_ns": self.gap_ns, "channel": -1, "sequence": -1, "configuration": -1}
        self.gap_ns = 0
        self.steps.append(step | attrs)

    def wait(self, node: int) -> None:
        operation = self.open.pop(node, None)
        if operation is not None:
            fields = ("channel", "sequence", "configuration")
            self.add(_WAIT, **{name: operation[name] for name in fields})


class _Reader:
    """Reads the traces of all ranks into programs."""

    def __init__(
        self,
        groups: Mapping[str, Sequence[int]],
        ranks: int,
        price: Price | None,
        tflops: float | None,
    ) -> None:
        self._groups = groups
        self._ranks = ranks
        self._price = price
        self._tflops = tflops
        self.channels: dict[str, int] = {}
        self.configurations: dict[Configuration, int] = {}
        self.untimed = self.memory = 0

    def read(self, path: Path, rank: int) -> list[dict[str, Any]]:
        messages = read_messages(path)
        next(messages)
        nodes = {node.id: node for node in messages}
        state = _Rank(rank)
        attrs = {number: attributes(node) for number, node in nodes.items()}
        marked = any(values.get("railx.does") == "begin" for values in attrs.values())
        if not marked:
            state.add(_BEGIN)
        for number in _in_order(path, nodes):
            self._take(path, state, nodes[number], attrs[number], nodes)
        if not marked:
            for number in list(state.open):
                state.wait(number)
            state.add(_END)
        return state.steps

    def programs(self, steps: Sequence[dict[str, Any]]) -> Programs:
        names = ("rank", "iteration", "does", "gap_ns", "channel", "sequence", "configuration")
        columns = {name: [step[name] for step in steps] for name in names}
        for name, default in (
            ("kind", -1),
            *((name, 0) for name in ("bytes", "lasts_ns", "alone", "pickup_ns", "resume_ns")),
        ):
            columns[name] = [step.get(name, default) for step in steps]
        return Programs.from_columns(columns, list(self.channels), list(self.configurations))

    def _take(
        self,
        path: Path,
        state: _Rank,
        node: Any,
        attrs: Mapping[str, Any],
        nodes: Mapping[int, Any],
    ) -> None:
        """Add a node whose dependencies are done."""
        communicates = node.type in (SEND, RECV, COLL)
        lane = self._lane(path, state.rank, node, attrs) if communicates else None
        for number in node.data_deps:
            state.wait(number)
        for number in node.ctrl_deps:
            # Operations of a channel follow each other without the program's help.
            if number in state.open and (lane is None or state.open[number]["channel"] != lane[0]):
                state.wait(number)
        if "railx.iteration" in attrs:
            state.iteration = int(attrs["railx.iteration"])
            state.gap_ns += self._computed_ns(path, node, attrs)
            state.add(DOES.index(attrs["railx.does"]))
        elif attrs.get("railx.does") == "resume" and state.steps:
            state.steps[-1]["resume_ns"] = int(attrs["railx.duration_ns"])
        elif lane is not None:
            self._operation(state, node, attrs, lane)
        else:
            state.gap_ns += self._computed_ns(path, node, attrs)

    def _computed_ns(self, path: Path, node: Any, attrs: Mapping[str, Any]) -> int:
        if "railx.duration_ns" in attrs:
            return int(attrs["railx.duration_ns"])
        if node.duration_micros:
            return int(node.duration_micros) * 1000
        if node.type != COMP:
            self.memory += node.type in (MEM_LOAD, MEM_STORE)
            return 0
        if attrs.get("num_ops") and self._tflops is not None:
            return round(float(attrs["num_ops"]) / self._tflops / 1e3)
        if attrs.get("num_ops"):
            raise UserError(
                f"got {path}, node {node.id} with num_ops and no duration; allowed: durations, or"
                " --tflops to turn num_ops into time"
            )
        return 0

    def _lane(
        self, path: Path, rank: int, node: Any, attrs: Mapping[str, Any]
    ) -> tuple[int, int, str] | None:
        """Channel, configuration and kind of an operation; None where one is alone."""
        where = f"got {path}, node {node.id}"
        if node.type == COLL:
            kind = _NAMES.get(int(attrs.get("comm_type", -1)))
            if kind is None:
                raise UserError(f"{where} with comm_type {attrs.get('comm_type')}; allowed: 0 to 9")
            name = str(attrs.get("pg_name", ""))
            if name in self._groups:
                members = tuple(sorted(self._groups[name]))
            elif name in ("", "0"):
                members = tuple(range(self._ranks))
            else:
                raise UserError(
                    f"{where} with pg_name {name!r}; allowed: a group of --groups"
                    f" ({', '.join(self._groups) or 'it has none'})"
                )
            if rank not in members:
                raise UserError(f"{where} in group {name} of other ranks; allowed: one of its own")
            label = name or "all"
            shape = "ring"
        else:
            kind = "send" if node.type == SEND else "recv"
            ends = int(attrs.get("comm_src", rank)), int(attrs.get("comm_dst", rank))
            if ends[node.type == RECV] != rank or ends[0] == ends[1]:
                raise UserError(
                    f"{where}, a {kind} from {ends[0]} to {ends[1]}; allowed: of its own"
                )
            if not all(0 <= end < self._ranks for end in ends):
                raise UserError(
                    f"{where}, a {kind} from {ends[0]} to {ends[1]}; allowed: ranks below"
                    f" {self._ranks}"
                )
            members = tuple(sorted(ends))
            label = f"{ends[0]}>{ends[1]}.{attrs.get('comm_tag', 0)}"
            shape = "pair"
        if len(members) < 2:
            return None
        name = str(attrs.get("railx.channel", f"{','.join(map(str, members))}:{label}"))
        channel = self.channels.setdefault(name, len(self.channels))
        configuration = Configuration("pair" if shape == "pair" else "ring", members)
        return (
            channel,
            self.configurations.setdefault(configuration, len(self.configurations)),
            kind,
        )

    def _operation(
        self, state: _Rank, node: Any, attrs: Mapping[str, Any], lane: tuple[int, int, str]
    ) -> None:
        channel, configuration, kind = lane
        members = tuple(self.configurations)[configuration].members
        size = int(attrs.get("comm_size", 0))
        if node.type == COLL and attrs.get("comm_type") == ALL_GATHER:
            size *= len(members)
        size = int(attrs.get("railx.bytes", size))
        lasts_ns = int(attrs.get("railx.duration_ns", node.duration_micros * 1000))
        if self._price is not None:
            lasts_ns = round(self._price(kind, size, members))
        self.untimed += not lasts_ns
        issued = state.issued[str(channel)]
        state.issued[str(channel)] += 1
        state.add(
            _ISSUE,
            channel=channel,
            configuration=configuration,
            sequence=int(attrs.get("railx.sequence", issued)),
            kind=KINDS.index(kind),
            bytes=size,
            lasts_ns=lasts_ns,
            alone=int(attrs.get("railx.alone", 0)),
            pickup_ns=int(attrs.get("railx.pickup_ns", 0)),
        )
        state.open[node.id] = state.steps[-1]


def read_chakra(
    prefix: Path,
    groups: Path | None = None,
    *,
    price: Price | None = None,
    tflops: float | None = None,
) -> Imported:
    """Read PREFIX.0.et, PREFIX.1.et, ... as programs.

    ``groups`` is the JSON file of communicator groups (None: PREFIX.groups.json, where
    there is one). ``price`` replaces the durations of operations, ``tflops`` turns
    the operations of computation without a duration into time. A program is
    sequential: nodes follow the order of their dependencies, of several the one with
    the lowest number first, and nodes that depend on an operation wait for it.
    ValueError naming the fault.
    """
    files = {}
    for path in sorted(prefix.parent.glob(f"{prefix.name}.*.et")):
        number = _FILE.match(path.name[len(prefix.name) :])
        if number is not None:
            files[int(number.group(1))] = path
    if sorted(files) != list(range(len(files))) or len(files) < 2:
        ranks = ", ".join(map(str, sorted(files))) or "none"
        raise UserError(
            f"got ranks {ranks} of {prefix}; allowed: at least two, in files {prefix.name}.0.et,"
            f" {prefix.name}.1.et and so on, one for each rank"
        )
    reader = _Reader(_read_groups(prefix, groups, len(files)), len(files), price, tflops)
    steps = [step for rank in range(len(files)) for step in reader.read(files[rank], rank)]
    _check_matched(prefix, steps, list(reader.channels), list(reader.configurations))
    lost = []
    if reader.untimed:
        lost.append(f"{reader.untimed} operations have no duration: they take no time")
    if reader.memory:
        lost.append(f"{reader.memory} transfers from or to memory take no time")
    return Imported(reader.programs(steps), tuple(lost))


def _read_groups(prefix: Path, given: Path | None, ranks: int) -> dict[str, list[int]]:
    path = given or prefix.with_name(f"{prefix.name}.groups.json")
    if given is None and not path.exists():
        return {}
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--groups: got {path} ({error}); allowed: a JSON file") from None
    if not isinstance(groups, dict) or not all(
        isinstance(members, list)
        and members
        and all(type(rank) is int and 0 <= rank < ranks for rank in members)
        and len(set(members)) == len(members)
        for members in groups.values()
    ):
        raise UserError(
            f"--groups: got {path}; allowed: an object of lists of ranks from 0 to {ranks - 1}"
        )
    return groups


def _in_order(path: Path, nodes: Mapping[int, Any]) -> Iterator[int]:
    """Numbers of the nodes so that each comes after those that it depends on."""
    left, after = {}, defaultdict(list)
    for number, node in nodes.items():
        before = {*node.data_deps, *node.ctrl_deps}
        unknown = before - set(nodes)
        if unknown:
            raise UserError(
                f"got {path}, node {number} after node {min(unknown)}, which is not there; allowed:"
                " nodes of the file"
            )
        left[number] = len(before)
        for neighbour in before:
            after[neighbour].append(number)
    ready = [number for number, count in left.items() if not count]
    heapq.heapify(ready)
    done = 0
    while ready:
        number = heapq.heappop(ready)
        done += 1
        yield number
        for neighbour in after[number]:
            left[neighbour] -= 1
            if not left[neighbour]:
                heapq.heappush(ready, neighbour)
    if done < len(nodes):
        raise UserError(f"got {path} with nodes that depend on each other; allowed: no circle")


def _check_matched(
    prefix: Path,
    steps: Sequence[Mapping[str, Any]],
    channels: Sequence[str],
    configurations: Sequence[Configuration],
) -> None:
    """ValueError where members of an operation lack it or have another kind."""
    met: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for step in steps:
        if step["does"] == _ISSUE:
            met[step["channel"], step["sequence"]].append(step)
    for (channel, sequence), issues in met.items():
        members = configurations[issues[0]["configuration"]].members
        ranks = sorted(step["rank"] for step in issues)
        kinds = {step["kind"] for step in issues}
        message = {KINDS.index(name) for name in _MESSAGES}
        alike = kinds == message if kinds & message else len(kinds) == 1
        if ranks != list(members) or not alike:
            what = f"operation {sequence} of {channels[channel]}"
            named = ", ".join(sorted(KINDS[kind] for kind in kinds))
            raise UserError(
                f"got {prefix} with {what} on ranks {ranks} ({named}); allowed: one operation on"
                f" ranks {list(members)}"
            )
