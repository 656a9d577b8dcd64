"""Programs of ranks as graphs: those that ``railx steps`` writes, and recorded runs.

A node waits for the computation of its rank before it and for the operations that the
program has waited for; an operation also for the one before it on its channel, which is
a group. Delays of threads have no node.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from railx.exchange.rank_nodes import RankNodes
from railx.replay.graphs import COMPUTE, NODE_KINDS
from railx.replay.programs import DOES, KINDS, Programs

__all__ = ["program_nodes"]

_BEGIN, _ISSUE, _WAIT, _END = map(DOES.index, ("begin", "issue", "wait", "end"))
#: Kinds whose bytes a graph states for each member.
_OF_A_MEMBER = ("all_gather", "gather")


def program_nodes(
    path: Path, programs: Programs
) -> tuple[list[RankNodes], list[tuple[int, ...]], dict[str, int]]:
    """The nodes of all ranks, the members of each channel, and how many delays of
    threads are left out. The number of a node is its own on the rank.
    """
    columns = {name: values.tolist() for name, values in programs.columns.items()}
    members: list[tuple[int, ...]] = [()] * len(programs.channels)
    for channel, number in zip(columns["channel"], columns["configuration"], strict=True):
        if channel >= 0:
            members[channel] = programs.configurations[number].members
    bounds = np.searchsorted(programs.columns["rank"], np.arange(programs.ranks + 1)).tolist()
    ranks = []
    for rank in range(programs.ranks):
        nodes = RankNodes(path, rank)
        program = _Program(nodes, members)
        for row in range(bounds[rank], bounds[rank + 1]):
            program.take({name: values[row] for name, values in columns.items()})
        ranks.append(nodes)
    return ranks, members, {"delays": int((programs.columns["pickup_ns"] > 0).sum())}


class _Program:
    """Adds the nodes of one program, step by step."""

    def __init__(self, nodes: RankNodes, members: list[tuple[int, ...]]) -> None:
        self._nodes, self._members = nodes, members
        self._tail: list[int] = []
        self._last: dict[int, int] = {}
        self._operations: dict[tuple[int, int], int] = {}

    def take(self, step: dict[str, int]) -> None:
        """Add the nodes of a step."""
        does, key = step["does"], (step["channel"], step["sequence"])
        if does in (_BEGIN, _END):
            self._compute(DOES[does], step["gap_ns"])
            return
        if step["gap_ns"]:
            self._compute("compute", step["gap_ns"])
        if does == _WAIT:
            self._tail.append(self._operations[key])
            if step["resume_ns"]:
                self._compute("resume", step["resume_ns"])
            return
        self._issue(step)

    def _issue(self, step: dict[str, int]) -> None:
        kind, channel = KINDS[step["kind"]], step["channel"]
        members, rank = self._members[channel], self._nodes.rank
        values = {"bytes": step["bytes"], "duration_ns": step["lasts_ns"]}
        if kind in ("send", "recv"):
            (peer,) = (member for member in members if member != rank)
            values |= {"peer": peer, "tag": channel}
        else:
            values["group"] = channel
            if kind in _OF_A_MEMBER:
                values["bytes"] = -(-step["bytes"] // len(members))
        after = [*self._tail, *([self._last[channel]] if channel in self._last else [])]
        number = len(self._nodes.numbers)
        self._nodes.add(number, kind, NODE_KINDS.index(kind), after, **values)
        self._last[channel] = self._operations[channel, step["sequence"]] = number

    def _compute(self, name: str, lasts_ns: int) -> None:
        number = len(self._nodes.numbers)
        self._nodes.add(number, name, COMPUTE, tuple(self._tail), duration_ns=lasts_ns)
        self._tail = [number]
