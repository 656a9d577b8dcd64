"""Graphs on the virtual clock: an executor of their own, closed forms, invariants."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from railx.replay.graph_run import ReplayedGraph, prepare_graph, replay_graph
from railx.replay.graphs import NODE_COLUMNS, NODE_KINDS, RankGraphs

Node = dict[str, Any]
GROUPS = ((0, 1), (0, 2), (0, 1, 2))


def compute(lasts: int, *after: int, stream: int = 0) -> Node:
    return {"kind": "compute", "lasts": lasts, "after": after, "stream": stream}


def collective(group: int, lasts: int, *after: int) -> Node:
    return {"kind": "all_reduce", "lasts": lasts, "after": after, "group": group}


def message(kind: str, peer: int, lasts: int, *after: int, tag: int = 0) -> Node:
    return {"kind": kind, "lasts": lasts, "after": after, "peer": peer, "tag": tag}


def graph_of(
    ranks: Sequence[Sequence[Node]], groups: tuple[tuple[int, ...], ...] = GROUPS
) -> tuple[RankGraphs, Any]:
    """The graph of the nodes of each rank, and what each node lasts."""
    nodes = [
        (rank, number, node) for rank, own in enumerate(ranks) for number, node in enumerate(own)
    ]
    first = np.cumsum([0, *map(len, ranks)])
    values = {
        name: np.full(len(nodes), default or 0) for name, (_, default) in NODE_COLUMNS.items()
    }
    dependencies: list[int] = []
    offsets = [0]
    for row, (rank, number, node) in enumerate(nodes):
        values["rank"][row], values["number"][row] = rank, number
        values["kind"][row] = NODE_KINDS.index(node["kind"])
        for name in ("stream", "group", "peer", "tag"):
            values[name][row] = node.get(name, NODE_COLUMNS[name][1])
        dependencies += [int(first[rank]) + other for other in node["after"]]
        offsets.append(len(dependencies))
    columns = {name: values[name].astype(kind) for name, (kind, _) in NODE_COLUMNS.items()}
    graph = RankGraphs(columns, np.array(offsets), np.array(dependencies, np.int64), groups)
    return graph, np.array([node["lasts"] for _, _, node in nodes], np.int64)


def run(
    ranks: Sequence[Sequence[Node]], groups: tuple[tuple[int, ...], ...] = GROUPS, **options: Any
) -> ReplayedGraph:
    graph, lasts = graph_of(ranks, groups)
    return replay_graph(prepare_graph(graph, lasts, **options))


def execute(ranks: Sequence[Sequence[Node]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Start and end of each node, by looking at all nodes at every event."""
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    arrived: dict[tuple[int, int], int] = {}
    ended: set[tuple[int, int]] = set()
    key: dict[tuple[int, int], tuple[Any, ...]] = {}
    for rank, own in enumerate(ranks):
        seen: dict[tuple[Any, ...], int] = {}
        for number, node in enumerate(own):
            ends = (rank, node.get("peer"))
            ends = ends if node["kind"] == "send" else ends[::-1]
            lane = (node["group"],) if "group" in node else (*ends, node.get("tag"))
            seen[lane] = seen.get(lane, -1) + 1
            key[rank, number] = (*lane, seen[lane])
    events = [0]
    while events:
        now = heapq.heappop(events)
        moved = True
        while moved:
            moved = False
            for node in [n for n, (_, end) in spans.items() if end <= now and n not in ended]:
                ended.add(node)
                moved = True
            for rank, own in enumerate(ranks):
                for number, node in enumerate(own):
                    if (rank, number) in spans or any(
                        (rank, n) not in ended for n in node["after"]
                    ):
                        continue
                    me = rank, number
                    if node["kind"] == "compute":
                        busy = any(
                            own[n]["kind"] == "compute"
                            and own[n]["stream"] == node["stream"]
                            and (rank, n) in spans
                            and (rank, n) not in ended
                            for n in range(len(own))
                        )
                        if busy:
                            continue
                        spans[me] = now, now + node["lasts"]
                        heapq.heappush(events, now + node["lasts"])
                        moved = True
                        continue
                    lane = key[me][:-1]
                    if any(
                        key[rank, n][:-1] == lane and (rank, n) not in ended
                        for n in range(number)
                        if own[n]["kind"] != "compute" and own[n]["kind"] == node["kind"]
                    ):
                        continue
                    if me not in arrived:
                        arrived[me] = now
                        moved = True
                    if node["kind"] == "send":
                        spans[me] = now, now + node["lasts"]
                        heapq.heappush(events, now + node["lasts"])
                        moved = True
                        continue
                    if node["kind"] == "recv":
                        [sender] = [o for o in key if key[o] == key[me] and o != me]
                        if sender in spans:
                            end = max(now, spans[sender][0] + node["lasts"])
                            spans[me] = now, end
                            heapq.heappush(events, end)
                            moved = True
                        continue
                    members = [o for o in key if key[o] == key[me]]
                    if all(o in arrived for o in members):
                        for o in members:
                            spans[o] = now, now + ranks[o[0]][o[1]]["lasts"]
                            heapq.heappush(events, spans[o][1])
                        moved = True
    return spans


@st.composite
def jobs(draw: st.DrawFn) -> list[list[Node]]:
    """Three ranks with computations, collectives and messages that depend backwards.

    No two chains of nodes last as long, so that no events of a rank fall together.
    """
    ranks: list[list[Node]] = [[], [], []]

    def after(rank: int) -> list[int]:
        numbers = st.integers(0, max(len(ranks[rank]) - 1, 0))
        return draw(st.lists(numbers, max_size=2, unique=True)) if ranks[rank] else []

    for bit in draw(st.permutations(range(draw(st.integers(1, 9))))):
        what = draw(st.sampled_from(["compute", "collective", "message"]))
        lasts = 2**bit
        if what == "compute":
            rank, stream = draw(st.integers(0, 2)), draw(st.integers(0, 1))
            ranks[rank].append(compute(lasts, *after(rank), stream=stream))
        elif what == "collective":
            group = draw(st.integers(0, len(GROUPS) - 1))
            for rank in GROUPS[group]:
                ranks[rank].append(collective(group, lasts, *after(rank)))
        else:
            source, target = draw(st.sampled_from([(0, 1), (1, 0), (1, 2), (2, 0)]))
            tag = draw(st.integers(0, 1))
            ranks[source].append(message("send", target, lasts, *after(source), tag=tag))
            ranks[target].append(message("recv", source, lasts, *after(target), tag=tag))
    return ranks


@given(jobs())
def test_graphs_run_as_an_executor_that_looks_at_every_node(ranks: list[list[Node]]) -> None:
    out, spans = run(ranks), execute(ranks)
    rows = zip(out.graph.columns["rank"], out.graph.columns["number"], strict=True)
    for row, (rank, number) in enumerate(rows):
        span = int(out.started_ns[row]), int(out.ended_ns[row])
        assert span == spans[rank, number], (rank, number)
