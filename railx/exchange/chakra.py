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
from railx.exchange.programs import ProgramWalk, kinds_of, steps_of_ranks
from railx.io import write_text
from railx.replay.graph_pricing import OF_A_MEMBER
from railx.replay.programs import KINDS, Programs

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
        write_messages(path, _Graph(programs, rank, group_of).messages(steps))
        written.append(path)
    configuration_of = programs.configuration_of.tolist()
    groups = {
        str(number): list(programs.configurations[configuration_of[channel]].members)
        for channel, number in group_of.items()
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


def _groups(programs: Programs) -> dict[int, int]:
    """The group number of each channel of collectives, from 1: 0 means all ranks."""
    channel, kind = programs.columns["channel"], programs.columns["kind"]
    collective = np.isin(kind, [KINDS.index(name) for name in COLLECTIVES]) & (channel >= 0)
    return {c: number for number, c in enumerate(np.unique(channel[collective]).tolist(), 1)}


class _Graph(ProgramWalk):
    """Writes the program of a rank as nodes, which it numbers."""

    def __init__(self, programs: Programs, rank: int, group_of: Mapping[int, int]) -> None:
        super().__init__(programs, rank)
        self._group_of = group_of
        self._nodes: list[Any] = []
        #: Dependencies of each operation, by its node.
        self._behind: dict[int, list[int]] = {}
        self._next = self._computed_ns = 0

    def messages(self, steps: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        """The metadata of the rank, then its nodes."""
        yield message("GlobalMetadata", {"railx.rank": ("int64", self.rank)}, version=VERSION)
        for step in steps:
            self.take(step)
            yield from self._nodes
            self._nodes.clear()

    def _add(self, name: str, kind: int, attrs: dict[str, Any], **fields: Any) -> int:
        fields |= {"id": self._next, "name": name, "type": kind}
        fields["data_deps"] = list(dict.fromkeys(self.tail))
        self._nodes.append(message("Node", attrs, **fields))
        self._next += 1
        return self._next - 1

    def wait(self, operation: list[int]) -> None:
        """Further nodes depend on an operation, and so on its dependencies."""
        behind = self._behind.pop(operation[0], [])
        self.tail = [*(number for number in self.tail if number not in behind), *operation]

    def _micros(self, lasts_ns: int) -> int:
        """Whole microseconds that add up to the computation so far."""
        before, self._computed_ns = self._computed_ns, self._computed_ns + lasts_ns
        return (self._computed_ns + 500) // 1000 - (before + 500) // 1000

    def compute(self, name: str, lasts_ns: int, iteration: int | None = None) -> None:
        """A node of computation."""
        attrs: dict[str, Any] = {
            "is_cpu_op": ("bool", False),
            "railx.does": ("string", name),
            "railx.duration_ns": ("uint64", lasts_ns),
        }
        if iteration is not None:
            attrs["railx.iteration"] = ("int64", iteration)
            name = f"{name} iteration {iteration}"
        self.tail = [self._add(name, COMP, attrs, duration_micros=self._micros(lasts_ns))]

    def issue(self, kind: str, members: tuple[int, ...], step: Mapping[str, Any]) -> list[int]:
        """A node of an operation."""
        channel, size = step["channel"], step["bytes"]
        name = self.programs.channels[channel]
        attrs: dict[str, Any] = {"is_cpu_op": ("bool", False)}
        if kind in _MESSAGES:
            peer = self.peer(members)
            ends = (self.rank, peer) if kind == "send" else (peer, self.rank)
            attrs |= {
                "comm_size": ("int64", size),
                "comm_src": ("int32", ends[0]),
                "comm_dst": ("int32", ends[1]),
                "comm_tag": ("int32", channel),
            }
        else:
            if kind in OF_A_MEMBER:
                size = -(-size // len(members))
            attrs |= {
                "comm_type": ("int64", COLLECTIVES[kind]),
                "comm_size": ("int64", size),
                "pg_name": ("string", str(self._group_of[channel])),
            }
        attrs |= {
            "railx.channel": ("string", name),
            "railx.sequence": ("int64", step["sequence"]),
            "railx.bytes": ("int64", step["bytes"]),
            "railx.duration_ns": ("uint64", step["lasts_ns"]),
        }
        for key in ("pickup_ns", "alone"):
            if step[key]:
                attrs[f"railx.{key}"] = ("int64", int(step[key]))
        number = self._add(
            f"{kind} {step['sequence']} of {name}",
            _MESSAGES.get(kind, COLL),
            attrs,
            ctrl_deps=self.last.get(channel, []),
            duration_micros=round(step["lasts_ns"] / 1000),
        )
        self._behind[number] = list(self.tail)
        return [number]
