"""Programs of ranks as Chakra execution traces.

A rank's file is a graph. Computation between two steps of its program is a node that
depends on the program's earlier computation and waits (``data_deps``). An operation
depends on the same, and follows the one before it on its channel (``ctrl_deps``); nodes
that wait for it depend on it. So a simulator overlaps the same operations as the
program. An iteration begins and ends with computation too, maybe of no time: ASTRA-sim
stalls behind nodes of metadata.

Collectives name a group by a number; a JSON file beside the traces has its ranks, one
group for each channel. Attributes that begin with ``railx.`` carry values without a
field in the schema (nanoseconds, iterations, channels). Whole microseconds are rounded
so that a rank's total computation is off by one at most.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from railx.exchange.chakra_messages import (
    COLL,
    COLLECTIVES,
    COMP,
    RECV,
    SEND,
    message,
    write_messages,
)
from railx.exchange.sources import BEGIN, END, WAIT, kinds_of, steps_of_ranks
from railx.io import write_text
from railx.replay.programs import DOES, KINDS, Programs

#: The version of the schema in traces, as in ASTRA-sim's own.
VERSION = "0.0.4"
#: Collectives that ASTRA-sim runs; a broadcast takes the time of the trace.
_RUN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_MESSAGES = {"send": SEND, "recv": RECV}


def write_chakra(prefix: Path, programs: Programs) -> tuple[list[Path], list[str]]:
    """Write PREFIX.RANK.et for every rank and PREFIX.groups.json.

    Returns the files, and the losses for a reader of the schema alone.
    """
    group_of = _groups(programs)
    written = []
    for rank, steps in steps_of_ranks(programs):
        path = prefix.with_name(f"{prefix.name}.{rank}.et")
        write_messages(path, _nodes(programs, rank, steps, group_of))
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
    missing = sorted(kinds_of(programs) - {*_RUN, *_MESSAGES})
    if missing:
        lost.append(f"{', '.join(missing)}: in the trace, but ASTRA-sim does not run them")
    if columns["pickup_ns"].any():
        lost.append("how late threads pick operations up")
    if columns["alone"].any():
        lost.append("which members of an operation wait for nobody")
    return lost


def _groups(programs: Programs) -> dict[int, tuple[int, int]]:
    """Number of the group and configuration of each channel of collectives, from 1 up.

    0 and a missing name mean all ranks.
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
    programs: Programs,
    rank: int,
    steps: Iterable[Mapping[str, Any]],
    group_of: Mapping[int, tuple[int, int]],
) -> Iterator[Any]:
    yield message("GlobalMetadata", {"railx.rank": ("int64", rank)}, version=VERSION)
    graph = _Graph()
    for step in steps:
        if step["does"] in (BEGIN, END):
            yield _computation(graph, DOES[step["does"]], step["gap_ns"], step["iteration"])
            continue
        if step["gap_ns"]:
            yield _computation(graph, "compute", step["gap_ns"])
        key = step["channel"], step["sequence"]
        if step["does"] == WAIT:
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
