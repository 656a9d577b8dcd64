"""Graphs on the virtual clock: an executor of their own, closed forms, invariants."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.errors import UserError
from railx.fabric.circuits import Configuration, Layout
from railx.replay.graph_run import (
    ReplayedGraph,
    in_order_of_start,
    prepare_graph,
    replay_graph,
)
from railx.replay.graphs import NODE_COLUMNS, NODE_KINDS, RankGraphs
from railx.replay.run import prepare, replay_programs
from tests.replay.programs import ReplayedOperation, Step, from_steps

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
            peer = node.get("peer")
            ends = (rank, peer) if node["kind"] == "send" else (peer, rank)
            lane = (node["group"],) if "group" in node else (*ends, node.get("tag"))
            seen[lane] = seen.get(lane, -1) + 1
            key[rank, number] = (*lane, seen[lane])
    events = [0]
    while events:
        now = heapq.heappop(events)
        moved = True
        while moved:
            moved = False
            over = {name for name, (_, end) in spans.items() if end <= now} - ended
            ended |= over
            moved = bool(over)
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
def jobs(draw: st.DrawFn, *, messages: bool = True) -> list[list[Node]]:
    """Three ranks with computations, collectives and messages that depend backwards.

    No two chains of nodes last as long, so that no events of a rank fall together.
    """
    ranks: list[list[Node]] = [[], [], []]

    def after(rank: int) -> list[int]:
        numbers = st.integers(0, max(len(ranks[rank]) - 1, 0))
        return draw(st.lists(numbers, max_size=2, unique=True)) if ranks[rank] else []

    for bit in draw(st.permutations(range(draw(st.integers(1, 9))))):
        what = draw(st.sampled_from(["compute", "collective", *["message"] * messages]))
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


def test_a_chain_lasts_the_sum_and_a_fork_the_longer_branch() -> None:
    chain = [compute(3), compute(5, 0), compute(7, 1)]
    assert run([chain]).step_ns == 15
    fork = [compute(3), compute(5, 0, stream=1), compute(7, 0, stream=2), compute(1, 1, 2)]
    assert run([fork]).step_ns == 3 + 7 + 1
    # One stream runs both branches.
    assert run([[compute(3), compute(5, 0), compute(7, 0), compute(1, 1, 2)]]).step_ns == 16


def test_of_the_ready_computations_the_first_in_the_order_of_issue_goes_on() -> None:
    out = run([[compute(4), compute(1, 0), compute(2)]])
    # Node 2 is ready at once and yet waits for node 0, which is ready too.
    assert out.started_ns.tolist() == [0, 4, 5]


def test_streams_of_any_number_run_beside_each_other() -> None:
    """Numbers of threads, times that of many ranks, are more than 32 bits hold."""
    last = 2**16 - 1
    ranks = [[]] * last + [[compute(10), compute(10, stream=2**16)]]
    assert run(ranks).step_ns == 10


def test_messages_move_down_a_pipeline() -> None:
    stages = 3
    ranks = [
        [
            *([message("recv", rank - 1, 10)] if rank else []),
            compute(100, *([0] if rank else [])),
            *([message("send", rank + 1, 10, 1 if rank else 0)] if rank < stages - 1 else []),
        ]
        for rank in range(stages)
    ]
    assert run(ranks, ()).step_ns == stages * 100 + (stages - 1) * 10


def test_a_receive_that_comes_late_finds_the_message_there() -> None:
    out = run([[message("send", 1, 10)], [compute(7), message("recv", 0, 10, 0)]], ())
    assert out.ended_ns.tolist() == [10, 7, 10]
    later = run([[message("send", 1, 10)], [compute(70), message("recv", 0, 10, 0)]], ())
    assert later.ended_ns.tolist() == [10, 70, 70]


def test_a_ring_that_sends_before_it_receives_ends() -> None:
    ranks = [
        [message("send", (rank + 1) % 3, 10), message("recv", (rank - 1) % 3, 10, 0)]
        for rank in range(3)
    ]
    assert run(ranks, ()).step_ns == 10


def test_collectives_of_groups_overlap_unless_a_rank_runs_one_at_a_time() -> None:
    ranks = [
        [collective(0, 10), collective(1, 20)],
        [collective(0, 10)],
        [collective(1, 20)],
    ]
    assert run(ranks).step_ns == 20
    assert run(ranks, one_collective=True).step_ns == 30


def test_a_group_of_one_rank_moves_nothing() -> None:
    out = run([[collective(0, 50), compute(3, 0)]], ((0,),))
    assert out.exposed_ns(0).get("all_reduce", 0) == 50
    assert out.step_ns == 53


def test_exposed_time_is_that_of_the_operation_that_ends_last() -> None:
    ranks = [
        [compute(10), collective(0, 30), message("send", 1, 25)],
        [collective(0, 30), message("recv", 0, 25)],
    ]
    out = run(ranks, ((0, 1),))
    assert out.compute_ns(0) == 10
    assert out.exposed_ns(0) == {"all_reduce": 20}
    assert out.exposed_ns(1) == {"all_reduce": 30}
    assert out.last_rank == 0


def test_circuits_delay_operations_between_servers_only() -> None:
    ranks = [[collective(0, 10), compute(5, 0)], [collective(0, 10)]]
    graph, lasts = graph_of(ranks, ((0, 1),))
    inside = prepare_graph(graph, lasts, Layout(2))
    across = prepare_graph(graph, lasts, Layout(1))
    assert replay_graph(inside, "on_demand", 100).step_ns == 15
    assert replay_graph(across, "electrical", 100).step_ns == 15
    assert replay_graph(across, "on_demand", 0).step_ns == 15
    out = replay_graph(across, "on_demand", 100)
    assert out.step_ns == 115
    assert (out.commands, out.requests) == (1, 2)


def test_circuits_that_are_asked_for_ahead_hide_their_switch_behind_computation() -> None:
    # Ranks 0 and 1 exchange, compute, and then each exchanges with another rank.
    ranks = [
        [collective(0, 10), compute(60, 0), collective(1, 10, 1)],
        [collective(0, 10), compute(60, 0), collective(2, 10, 1)],
        [collective(1, 10)],
        [collective(2, 10)],
    ]
    graph, lasts = graph_of(ranks, ((0, 1), (0, 2), (1, 3)))
    prepared = prepare_graph(graph, lasts, Layout(1))
    assert replay_graph(prepared, "on_demand", 100).step_ns == 100 + 10 + 60 + 100 + 10
    assert replay_graph(prepared, "provisioned", 100).step_ns == 100 + 10 + 100 + 10


def test_a_receive_that_is_posted_early_stops_no_announcement_of_what_comes_before() -> None:
    # Rank 0 receives, computes, sends to rank 1, and has posted a receive all along.
    ranks = [
        [message("recv", 3, 10), compute(60, 0), message("send", 1, 10, 1), message("recv", 2, 10)],
        [message("recv", 0, 10)],
        [collective(0, 300), message("send", 0, 10, 0)],
        [message("send", 0, 10)],
        [collective(0, 300)],
    ]
    graph, lasts = graph_of(ranks, ((2, 4),))
    prepared = prepare_graph(graph, lasts, Layout(1))
    assert replay_graph(prepared, "provisioned", 50).started_ns[2] == 50 + 10 + 60
    assert replay_graph(prepared, "on_demand", 50).started_ns[2] == 50 + 10 + 60 + 50


@given(jobs(messages=False), st.sampled_from(["on_demand", "provisioned"]), st.integers(0, 50))
def test_nodes_wait_for_what_they_depend_on_under_every_mode(
    ranks: list[list[Node]], mode: Any, latency: int
) -> None:
    graph, lasts = graph_of(ranks)
    out = replay_graph(prepare_graph(graph, lasts, Layout(1)), mode, latency)
    for row in range(len(graph)):
        before = graph.dependencies[graph.offsets[row] : graph.offsets[row + 1]]
        assert (out.ended_ns[before] <= out.started_ns[row]).all()
    assert (out.ended_ns - out.started_ns <= lasts).all()
    for rank in range(graph.ranks):
        for stream in range(2):
            columns = graph.columns
            rows = (
                (columns["rank"] == rank) & (columns["kind"] == 0) & (columns["stream"] == stream)
            )
            order = np.argsort(out.started_ns[rows])
            starts, ends = out.started_ns[rows][order], out.ended_ns[rows][order]
            assert (starts[1:] >= ends[:-1]).all()


def test_a_chain_of_a_graph_is_a_program() -> None:
    """Electrical, on demand and provisioned, to the nanosecond."""
    programs = from_steps(
        {
            rank: [
                Step(0, "begin"),
                Step(0, "issue", 30, ring),
                Step(0, "wait", 0, ring),
                Step(0, "issue", 20, other),
                Step(0, "wait", 0, other),
                Step(0, "end", 5),
            ]
            for rank, (ring, other) in {
                0: (_operation("a", 0, 1), _operation("b", 0, 2)),
                1: (_operation("a", 0, 1), _operation("c", 1, 3)),
                2: (_operation("b", 0, 2), _operation("d", 2, 3)),
                3: (_operation("c", 1, 3), _operation("d", 2, 3)),
            }.items()
        }
    )
    ranks = [
        [compute(30), collective(a, 10, 0), compute(20, 1), collective(b, 10, 2), compute(5, 3)]
        for a, b in ((0, 1), (0, 2), (1, 3), (2, 3))
    ]
    graph, lasts = graph_of(ranks, ((0, 1), (0, 2), (1, 3), (2, 3)))
    prepared = prepare_graph(graph, lasts, Layout(1))
    for mode, latency in product(("electrical", "on_demand"), (0, 7, 100)):
        step = replay_programs(prepare(programs, Layout(1)), mode, latency)  # type: ignore[arg-type]
        out = replay_graph(prepared, mode, latency)  # type: ignore[arg-type]
        assert out.step_ns == max(step.iteration_ns().values()), (mode, latency)
        assert out.commands == step.commands


def _operation(name: str, *members: int) -> ReplayedOperation:
    return ReplayedOperation(
        (name, 0), Configuration("ring", members), dict.fromkeys(members, 10), kind="all_reduce"
    )


@pytest.mark.parametrize(
    ("ranks", "groups", "words"),
    [
        ([[collective(0, 1)], []], ((0, 1),), "missing on ranks [1]"),
        (
            [[collective(0, 1)], [{**collective(0, 1), "kind": "all_gather"}]],
            ((0, 1),),
            "another kind",
        ),
        ([[message("send", 1, 1)], [compute(1)]], (), "has no recv on rank 1"),
        ([[compute(1, 1), compute(1, 0)]], (), "no circle of dependencies"),
        (
            [
                [collective(0, 1), collective(1, 1, 0)],
                [collective(0, 1, 1), collective(1, 1)],
            ],
            ((0, 1), (0, 1)),
            "never ends",
        ),
    ],
)
def test_graphs_that_cannot_end_name_the_node(
    ranks: list[list[Node]], groups: tuple[tuple[int, ...], ...], words: str
) -> None:
    with pytest.raises(UserError, match=r"rank [01], node 0") as error:
        run(ranks, groups)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_tags_of_any_size_have_an_order_of_start() -> None:
    """The tags of a lane's messages are numbered anew, with no overflow."""
    most = int(np.iinfo(np.int64).max)
    ranks = [
        [compute(9), *[message(kind, 1 - rank, 5, tag=most)] * 2]
        for rank, kind in enumerate(("send", "recv"))
    ]
    graphs, order = in_order_of_start(*graph_of(ranks), one_collective=True)
    assert graphs.columns["number"].tolist() == [0, 1, 2] * 2
    assert graphs.columns["tag"].tolist() == [-1, most, most] * 2
    assert order.tolist() == [9, 5, 5] * 2
