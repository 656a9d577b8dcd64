"""Graphs carried out step by step in plain Python, for comparison.

A rank computes one node of a stream at a time, of several that may begin the one that
comes first in its columns. A collective begins when all members have come to it, each
group's in the order in which the rank came to them. A send waits for nobody; a receive
ends with the send that meets it, or at once where that has ended. Nothing else is
limited, and no circuit is asked for. Graphs of a few nodes are written row by row.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import Any

import numpy as np

from railx.replay.graphs import COMPUTE, NODE_COLUMNS, NODE_KINDS, RankGraphs

__all__ = ["graphs_of_rows", "plain_ends", "row"]


def plain_ends(graphs: RankGraphs, node_ns: Any) -> Any:
    """The end of each node in ns, int[nodes]; -1 for those that never end."""
    columns = {name: values.tolist() for name, values in graphs.columns.items()}
    takes = np.asarray(node_ns).tolist()
    after = graphs.dependencies.tolist()
    offsets = graphs.offsets.tolist()
    left = np.diff(graphs.offsets).tolist()
    followers: dict[int, list[int]] = defaultdict(list)
    for node in range(len(graphs)):
        for before in after[offsets[node] : offsets[node + 1]]:
            followers[before].append(node)
    ends = [-1] * len(graphs)
    ready: dict[tuple[int, int], list[int]] = defaultdict(list)
    busy: set[tuple[int, int]] = set()
    met: dict[Any, list[int]] = defaultdict(list)
    count: dict[Any, int] = defaultdict(int)
    arrives: dict[Any, int] = {}
    events: list[tuple[int, int, int]] = []

    def lane(node: int) -> tuple[int, int]:
        return columns["rank"][node], columns["stream"][node]

    def come(node: int, now: int) -> None:
        kind, rank = columns["kind"][node], columns["rank"][node]
        if kind == COMPUTE:
            heapq.heappush(ready[lane(node)], node)
            return
        group, peer = columns["group"][node], columns["peer"][node]
        if group >= 0:
            key = group, count[rank, group]
            count[rank, group] += 1
            met[key].append(node)
            if len(met[key]) == len(graphs.groups[group]):
                for member in met[key]:
                    heapq.heappush(events, (now + takes[member], 0, member))
            return
        sends = NODE_KINDS[kind] == "send"
        side = (*((rank, peer) if sends else (peer, rank)), columns["tag"][node]), sends
        key = side[0], count[side]
        count[side] += 1
        if sends:
            arrives[key] = now + takes[node]
            heapq.heappush(events, (arrives[key], 0, node))
            if key in met:
                heapq.heappush(events, (arrives[key], 0, met[key][0]))
        elif key in arrives:
            heapq.heappush(events, (max(now, arrives[key]), 0, node))
        else:
            met[key].append(node)

    def start(now: int) -> None:
        for place, nodes in ready.items():
            if nodes and place not in busy:
                node = heapq.heappop(nodes)
                busy.add(place)
                heapq.heappush(events, (now + takes[node], 0, node))

    for node in range(len(graphs)):
        if not left[node]:
            come(node, 0)
    start(0)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            node = heapq.heappop(events)[2]
            ends[node] = now
            if columns["kind"][node] == COMPUTE:
                busy.discard(lane(node))
            for follower in followers[node]:
                left[follower] -= 1
                if not left[follower]:
                    come(follower, now)
        start(now)
    return np.array(ends, np.int64)


def row(rank: int, kind: str, *after: int, **columns: int) -> tuple[dict[str, int], Any]:
    """A node after other rows of its rank."""
    return {"rank": rank, "kind": NODE_KINDS.index(kind), **columns}, after


def graphs_of_rows(
    rows: list[tuple[dict[str, int], Any]], groups: tuple[tuple[int, ...], ...] = ()
) -> RankGraphs:
    """Graphs of rows whose ranks ascend."""
    columns = {
        name: np.array(
            [
                said.get(name, number if name == "number" else default)
                for number, (said, _) in enumerate(rows)
            ],
            kind,
        )
        for name, (kind, default) in NODE_COLUMNS.items()
    }
    counts = [len(after) for _, after in rows]
    return RankGraphs(
        columns,
        np.cumsum([0, *counts]),
        np.array([before for _, after in rows for before in after], np.int64),
        groups,
    )
