"""GOAL schedules: programs as schedules that a strict reader takes, what is sent
arrives, and whoever carries them out with a network of no cost takes as long as our
replay; schedules as graphs, those that we write, and broken ones.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.goal import messages, write_goal
from railx.exchange.graph_files import check_times, read_graphs
from railx.fabric.circuits import Configuration, Layout
from railx.replay.graph_pricing import DeviceRates
from railx.replay.graphs import NODE_KINDS
from railx.replay.programs import KINDS
from railx.replay.run import prepare, replay_programs
from tests.exchange.drawn import job, operation_rows, said, together
from tests.exchange.readers import Operation, read_goal
from tests.replay.plain_graphs import plain_ends
from tests.replay.programs import ReplayedOperation, Step, from_steps
from tests.replay.programs import programs as drawn_steps


def carried_out(ranks: list[dict[str, Operation]]) -> list[int]:
    """When each rank is done if messages are there as soon as they are sent."""
    lanes: dict[tuple[str, int, int, int], list[tuple[int, str]]] = defaultdict(list)
    for rank, own in enumerate(ranks):
        for label, each in own.items():
            if each.what != "calc":
                ends = (rank, each.peer) if each.what == "send" else (each.peer, rank)
                lanes[(each.what, *ends, each.tag)].append((rank, label))
    sender = {}
    for (what, *lane), received in lanes.items():
        if what == "recv":
            sent = lanes["send", lane[0], lane[1], lane[2]]
            sender |= dict(zip(received, sent, strict=True))
    assert len(sender) == sum(each.what == "send" for own in ranks for each in own.values())
    for (rank, label), (other, source) in sender.items():
        assert ranks[rank][label].size == ranks[other][source].size
    done: dict[tuple[int, str], int] = {}
    left = [(rank, label) for rank, own in enumerate(ranks) for label in own]
    while left:
        waiting = []
        for rank, label in left:
            each = ranks[rank][label]
            before = [(rank, other) for other in each.after]
            if each.what == "recv":
                before.append(sender[rank, label])
            if all(place in done for place in before):
                start = max((done[place] for place in before), default=0)
                done[rank, label] = start + (each.size if each.what == "calc" else 0)
            else:
                waiting.append((rank, label))
        assert len(waiting) < len(left), "the schedule locks up"
        left = waiting
    return [max((done[rank, label] for label in own), default=0) for rank, own in enumerate(ranks)]


@settings(max_examples=40, deadline=None)
@given(steps=drawn_steps(8), seed=st.integers(0, 2**32))
def test_whoever_carries_a_schedule_out_takes_as_long_as_the_replay(
    steps: dict[int, list[Step]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = {rank: [step for step in own if step.iteration == 0] for rank, own in steps.items()}
    programs = together(said(from_steps(first), seed))
    path = tmp_path_factory.mktemp("goal") / "job.goal"
    write_goal(path, programs)
    # Messages take no time and nobody waits for whoever receives them.
    programs.columns["lasts_ns"][:] = 0
    programs.columns["alone"][:] = programs.columns["kind"] == KINDS.index("send")
    replayed = replay_programs(prepare(programs, Layout(1)), "electrical", 0)
    finished = carried_out(read_goal(path.read_text()))
    # Ranks go on without what they never waited for.
    for rank, own in enumerate(replayed.table["end_ns"].tolist()):
        ended = replayed.ended_ns[programs.columns["rank"] == rank]
        assert finished[rank] == max(own, int(ended.max()))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("send", "recv")])
def test_members_send_what_the_collective_moves(kind: str, count: int) -> None:
    size, members = 10 * count + 3, tuple(range(7, 7 + 2 * count, 2))
    rounds = {rank: messages(kind, size, members, rank) for rank in members}
    sent = sum(each.sent_bytes for own in rounds.values() for turn in own for each in turn)
    moved = {
        "all_reduce": 2 * (count - 1) * size,
        "broadcast": 2 * (count - 1) * size,
        "reduce": 2 * (count - 1) * size,
        "barrier": count * ceil(log2(count)),
    }
    assert sent == moved.get(kind, (count - 1) * size)
    for turn in range(len(rounds[members[0]])):
        out = {
            (rank, each.to): each.sent_bytes for rank, own in rounds.items() for each in own[turn]
        }
        back = {
            (each.source, rank): each.received_bytes
            for rank, own in rounds.items()
            for each in own[turn]
        }
        assert out == back


def sent_part(kind: str, count: int, rank: int, turn: int) -> int:
    """Which part of the tensor a member sends, found by the bytes of several tensors.

    Of a tensor of 10 * count + more bytes the first ``more`` parts are a byte larger.
    """
    larger = 0
    for more in range(count):
        (own,) = messages(kind, 10 * count + more, tuple(range(count)), rank)[turn]
        assert (own.to, own.source) == ((rank + 1) % count, (rank - 1) % count)
        larger += own.sent_bytes - 10
    return count - 1 - larger


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_ring_reduces_all_parts_and_brings_them_to_all(count: int) -> None:
    ranks = range(count)
    # Whose values are in each part that a member holds.
    held = [{part: {rank} for part in ranks} for rank in ranks]

    def carry(kind: str, first: int) -> None:
        for turn in range(count - 1):
            sent = [sent_part(kind, count, rank, first + turn) for rank in ranks]
            moving = [(rank, sent[rank], set(held[rank][sent[rank]])) for rank in ranks]
            for rank, part, values in moving:
                held[(rank + 1) % count][part] |= values

    carry("reduce_scatter", 0)
    assert [held[rank][rank] for rank in ranks] == [set(ranks)] * count
    held = [{part: set(ranks) if part == rank else set() for part in ranks} for rank in ranks]
    carry("all_gather", 0)
    assert all(values == set(ranks) for own in held for values in own.values())
    held = [{part: {rank} for part in ranks} for rank in ranks]
    carry("all_reduce", 0)
    carry("all_reduce", count - 1)
    assert all(values == set(ranks) for own in held for values in own.values())


def test_a_small_job_line_by_line(tmp_path: Path) -> None:
    lost = write_goal(tmp_path / "job.goal", job((0, 100, 200, 0), "all_gather", 9))
    assert (tmp_path / "job.goal").read_text().split("\nrank 1 {")[0] == (
        "num_ranks 2\n"
        "\n"
        "rank 0 {\n"
        "l0: calc 100 cpu 0\n"
        "l1: send 5b to 1 tag 0 cpu 1 nic 0\n"
        "l1 requires l0\n"
        "l2: recv 4b from 1 tag 0 cpu 1 nic 0\n"
        "l2 requires l0\n"
        "l3: calc 200 cpu 0\n"
        "l3 requires l0\n"
        "}\n"
    )
    assert lost == [
        "that ranks begin an iteration together",
        "how long operations took",
        "collectives: they are messages, of rings but for an all-to-all",
    ]


def test_a_member_with_more_bytes_says_how_many_an_operation_has(tmp_path: Path) -> None:
    programs = job(kind="all_to_all", size=8)
    programs.columns["bytes"][operation_rows(programs)[1]] = 20
    write_goal(tmp_path / "job.goal", programs)
    assert [each.size for each in read_goal((tmp_path / "job.goal").read_text())[0].values()] == [
        10,
        10,
    ]


def test_operations_of_a_channel_follow_each_other(tmp_path: Path) -> None:
    """The second one waits for the first, though the program does not."""
    operations = [
        ReplayedOperation(("0,1:a", n), Configuration("ring", (0, 1)), {0: 1, 1: 1}, kind="barrier")
        for n in range(2)
    ]
    own = [Step(0, "begin"), *(Step(0, "issue", 0, each) for each in operations), Step(0, "end")]
    write_goal(tmp_path / "job.goal", from_steps({0: own, 1: own}))
    for rank in read_goal((tmp_path / "job.goal").read_text()):
        assert [each.after for each in rank.values()] == [[], [], ["l0", "l1"], ["l0", "l1"]]


SCHEDULE = """num_ranks 2

rank 0 { // a comment
l1: calc 100 cpu 0
l2: send 10b to 1 tag 7 cpu 1 nic 0;
l2 requires l1
l3: calc 50 cpu 2
l3 irequires l2
}
rank 1 {
a: recv 10b from 0 tag 7
/* another */
b: calc 5
b requires a
}
"""


def test_a_schedule_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "job.goal"
    path.write_text(SCHEDULE)
    imported = read_graphs(path)
    graphs = imported.graphs
    columns = {name: values.tolist() for name, values in graphs.columns.items()}
    assert [NODE_KINDS[kind] for kind in columns["kind"]] == [
        *("compute", "send", "compute"),
        *("recv", "compute"),
    ]
    assert columns["number"] == [4, 5, 7, 11, 13]
    assert columns["duration_ns"] == [100, -1, 50, -1, 5]
    assert (columns["bytes"], columns["tag"]) == ([0, 10, 0, 10, 0], [-1, 7, -1, 7, -1])
    assert (columns["peer"], columns["stream"]) == ([-1, 1, -1, 0, -1], [0, 0, 2, 0, 0])
    # What starts with the send waits for what it waits for.
    assert graphs.dependencies.tolist() == [0, 0, 3]
    assert graphs.names == ("l1", "l2", "l3", "a", "b")
    assert imported.lost == (
        "1 lines that wait for the start of another wait for the same lines instead",
    )


@pytest.mark.parametrize("order", [(3, 2), (2, 3)])
def test_a_start_may_wait_for_another_start(order: tuple[int, int], tmp_path: Path) -> None:
    starts = "".join(f"l{number} irequires l{number - 1}\n" for number in order)
    tasks = "".join(f"l{number}: calc 10 cpu {number}\n" for number in range(4))
    path = tmp_path / "job.goal"
    path.write_text(f"num_ranks 1\nrank 0 {{\n{tasks}{starts}l1 requires l0\n}}")
    graphs = read_graphs(path).graphs
    # All three begin when the first computation has ended.
    assert graphs.offsets.tolist() == [0, 0, 1, 2, 3]
    assert graphs.dependencies.tolist() == [0, 0, 0]


@settings(max_examples=30, deadline=None)
@given(steps=drawn_steps(), seed=st.integers(0, 2**32))
def test_what_we_write_reads_as_the_strict_reader_has_it(
    steps: dict[int, list[Any]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = together(said(from_steps(steps), seed, most_bytes=10_000))
    path = tmp_path_factory.mktemp("goal") / "job.goal"
    write_goal(path, programs)
    expected = read_goal(path.read_text())
    graphs = read_graphs(path).graphs
    found: list[dict[str, Any]] = [{} for _ in expected]
    columns = {name: values.tolist() for name, values in graphs.columns.items()}
    for row, name in enumerate(graphs.names):
        before = graphs.dependencies[graphs.offsets[row] : graphs.offsets[row + 1]].tolist()
        kind = NODE_KINDS[columns["kind"][row]]
        size = columns["duration_ns" if kind == "compute" else "bytes"][row]
        found[columns["rank"][row]][name] = (
            "calc" if kind == "compute" else kind,
            size,
            columns["peer"][row],
            sorted(graphs.names[other] for other in before),
        )
    assert found == [
        {
            label: (each.what, each.size, each.peer, sorted(set(each.after)))
            for label, each in own.items()
        }
        for own in expected
    ]
    taken = np.maximum(graphs.columns["duration_ns"], 0)
    assert (plain_ends(graphs, taken) >= 0).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "without num_ranks; allowed: a GOAL schedule"),
        ("num_ranks 1\nrank 0 {\nl1: calc 5\n", "ends or breaks off in rank 0"),
        ("num_ranks 1\nrank 1 {\n}", "line 2: 'rank 1 {'; allowed"),
        ("num_ranks 1\nrank 0 {\nl1: sleep 5\n}", "line 3: 'l1: sleep 5'; allowed"),
        ("num_ranks 1\nrank 0 {\nl1: calc 5 to 0\n}", "line 3"),
        ("num_ranks 2\nrank 0 {\nl1: send 5b to 0\n}", "line 3"),
        ("num_ranks 2\nrank 0 {\nl1: send 5b to 2\n}", "allowed: ranks below 2"),
        (
            "num_ranks 1\nrank 0 {\nl1: calc 5\nl1 requires l9\n}",
            "rank 0, line 4: 'l1 requires l9' with label l9, which is not there",
        ),
        (
            "num_ranks 1\nrank 0 {\na: calc 5\nb: calc 5\na requires b\nb requires a\n}",
            "rank 0, line 3, which depends on itself",
        ),
        (
            "num_ranks 1\nrank 0 {\na: calc 5\nb: calc 5\na irequires b\nb irequires a\n}",
            "rank 0, line 3, which waits for its own start; allowed: no circle of irequires",
        ),
        (
            "num_ranks 2\nrank 0 {\nl1: send 5b to 1 tag 3\n}",
            "a send of rank 0 to rank 1, tag 3, with 1 sends for 0 receives",
        ),
        (
            "num_ranks 2\nrank 0 {\n\nsend 6b to 1\n}\nrank 1 {\nrecv 7b from 0\n}",
            "rank 0, line 4, a send of 6 bytes to rank 1, tag 0, of which {path}, rank 1, line 7",
        ),
        ("num_ranks 99999999999\nrank 0 {\n}", "num_ranks: got 99999999999 in "),
        ("num_ranks 0", "without ranks; allowed: "),
        ("num_ranks 2\nrank 0 {\n}\nrank 0 {\n}", "line 4: 'rank 0 {'; allowed: rank R { once"),
        ("num_ranks 1\nrank 0 {\nl1: calc 9223372036854775808\n}", "at most 18 digits"),
        ("num_ranks 1\nrank 0 {\na: calc 5\na: calc 6\n}", "with the label of line 3; allowed: "),
    ],
)
def test_broken_schedules_are_refused_in_one_line(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "job.goal"
    path.write_text(text)
    with pytest.raises(ValueError) as refused:
        read_graphs(path)
    assert expected.replace("{path}", str(path)) in str(refused.value)
    path.write_text("num_ranks 2\nrank 0 {\n}\nrank 1 {\n}")
    with pytest.raises(ValueError, match=r"job\.goal without nodes; allowed: a trace with some"):
        check_times(read_graphs(path), DeviceRates())
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
