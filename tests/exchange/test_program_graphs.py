"""Programs as graphs: they take as long as programs, and are those of their traces. One
rank for all: the graphs are those of a trace that has all ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.errors import UserError
from railx.exchange.chakra import write_chakra
from railx.exchange.graph_files import read_graphs
from railx.exchange.rank_nodes import Axes
from railx.fabric.circuits import Configuration, Layout
from railx.replay.graph_run import prepare_graph, replay_graph
from railx.replay.programs import write_programs
from railx.replay.run import prepare, replay_programs
from tests.exchange.drawn import collectives_alone, job, said
from tests.exchange.traces import COLL, COMP, RECV, SEND, node, unpacked, write
from tests.replay.plain_graphs import plain_ends
from tests.replay.programs import ReplayedOperation, Step, from_steps
from tests.replay.programs import programs as drawn_steps


@settings(max_examples=40, deadline=None)
@given(steps=drawn_steps(), seed=st.integers(0, 2**32))
def test_graphs_take_as_long_as_their_programs(
    steps: dict[int, list[Any]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = collectives_alone(steps, seed)
    path = tmp_path_factory.mktemp("programs") / "job.parquet"
    write_programs(path, programs)
    imported = read_graphs(path)
    graphs, taken = imported.graphs, imported.graphs.columns["duration_ns"]
    replayed = replay_programs(prepare(programs, Layout(1)), "electrical", 0)
    for ends in (plain_ends(graphs, taken), replay_graph(prepare_graph(graphs, taken)).ended_ns):
        ranks, number = graphs.columns["rank"], graphs.columns["number"]
        last = [int(ends[ranks == r][number[ranks == r].argmax()]) for r in range(graphs.ranks)]
        assert last == replayed.table["end_ns"].tolist()
    assert imported.issued


def test_a_wait_for_what_has_not_begun_is_refused(tmp_path: Path) -> None:
    members = Configuration("ring", (0, 1))
    ring = ReplayedOperation(("ring", 3), members, {0: 5, 1: 5}, kind="all_reduce")
    steps = [Step(0, "begin"), Step(0, "issue", 0, ring), Step(0, "wait", 0, ring), Step(0, "end")]
    without = [step for step in steps if step.does != "issue"]
    write_programs(tmp_path / "job.parquet", from_steps({0: steps, 1: without}))
    with pytest.raises(UserError, match="rank 1, which waits for operation 3 of ring and has not"):
        read_graphs(tmp_path / "job.parquet")


def test_an_operation_of_others_is_refused(tmp_path: Path) -> None:
    ring = ReplayedOperation(
        ("ring", 3), Configuration("ring", (0, 1)), dict.fromkeys(range(3), 5), kind="all_reduce"
    )
    steps = [Step(0, "begin"), Step(0, "issue", 0, ring), Step(0, "end")]
    programs = from_steps({0: steps, 1: steps, 2: steps})
    write_programs(tmp_path / "job.parquet", programs)
    with pytest.raises(UserError, match=r"rank 2 in operation 3 of ring; allowed: ranks \(0, 1\)"):
        read_graphs(tmp_path / "job.parquet")


@settings(max_examples=30, deadline=None)
@given(steps=drawn_steps(), seed=st.integers(0, 2**32))
def test_graphs_have_the_nodes_of_the_programs_traces(
    steps: dict[int, list[Any]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = said(from_steps(steps), seed)
    folder = tmp_path_factory.mktemp("programs")
    write_programs(folder / "job.parquet", programs)
    write_chakra(folder / "traces", programs)
    ours = read_graphs(folder / "job.parquet").graphs
    theirs = read_graphs(folder / "traces").graphs
    for name in ("rank", "number", "kind", "duration_ns", "bytes", "peer", "tag"):
        assert (ours.columns[name] == theirs.columns[name]).all(), name
    members = [
        [graphs.groups[group] for group in graphs.columns["group"].tolist() if group >= 0]
        for graphs in (ours, theirs)
    ]
    assert members[0] == members[1]


def test_delays_of_threads_are_left_out(tmp_path: Path) -> None:
    programs = job((0, 1_400, 1_400, 1_400))
    programs.columns["pickup_ns"][1] = 5
    write_programs(tmp_path / "job.parquet", programs)
    imported = read_graphs(tmp_path / "job.parquet")
    assert imported.lost == ("1 operations that threads picked up late",)
    # What a member gives of an all-gather of two.
    gathers = imported.graphs.columns["group"] >= 0
    assert imported.graphs.columns["bytes"][gathers].tolist() == [500, 500]
    assert np.array_equal(imported.graphs.columns["duration_ns"][gathers], [2_500, 2_500])


#: dp 2 varies fastest, tp 3.
GROUPS = '{"a": [0, 1], "b": [2, 3], "c": [4, 5], "x": [0, 2, 4], "y": [1, 3, 5]}'


def rank_nodes(dp: str, tp: str, rank: int) -> list[object]:
    """A computation, an operation along each axis, a message round the second one."""
    after, before = (rank + 2) % 6, (rank - 2) % 6
    return [
        node(0, COMP, num_ops=7),
        node(1, COLL, (0,), comm_type=0, comm_size=8, pg_name=dp),
        node(2, COLL, (0,), comm_type=2, comm_size=4, pg_name=tp),
        node(3, SEND, (1, 2), comm_size=4, comm_dst=after),
        node(4, RECV, (2,), comm_size=4, comm_src=before),
    ]


def test_a_rank_stands_for_the_others(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text(GROUPS)
    names = ["ax", "ay", "bx", "by", "cx", "cy"]
    whole = write(tmp_path, {r: rank_nodes(dp, tp, r) for r, (dp, tp) in enumerate(names)}, "whole")
    one = write(tmp_path, {0: rank_nodes("a", "x", 0)}, "one")
    expected = read_graphs(whole, tmp_path / "groups.json").graphs
    axes = Axes.of_text("dp=2,tp=3")
    imported = read_graphs(one, tmp_path / "groups.json", symmetric=axes)
    found = imported.graphs
    assert len(imported.files) == 6
    for name in expected.columns:
        if name != "group":
            assert (found.columns[name] == expected.columns[name]).all(), name
    assert (found.offsets == expected.offsets).all()
    assert (found.dependencies == expected.dependencies).all()
    members = [
        [graphs.groups[group] if group >= 0 else None for group in graphs.columns["group"]]
        for graphs in (found, expected)
    ]
    assert members[0] == members[1]


def test_axes_are_found_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text(GROUPS)
    one = write(tmp_path, {0: rank_nodes("a", "x", 0)[:3]}, "one")
    graphs = read_graphs(one, tmp_path / "groups.json", symmetric=Axes.of_text("tp=3,dp=2")).graphs
    assert {(0, 1), (4, 5), (1, 3, 5)} <= set(graphs.groups)


def test_stages_of_a_pipeline_are_not_symmetric(tmp_path: Path) -> None:
    prefix = unpacked("stg_smoke_8", tmp_path)
    with pytest.raises(ValueError, match=r"workload\.0\.et, rank 0, node \d+, a recv of rank 4"):
        read_graphs(prefix, symmetric=Axes.of_text("dp=2,tp=2,pp=2"))


@pytest.mark.parametrize("text", ["", "dp", "dp=0", "dp=2,dp=3", "=4", "dp=x"])
def test_other_axes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--symmetric: got .*; allowed: axes with their degrees"):
        Axes.of_text(text)


def test_groups_beside_the_axes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text('{"a": [0, 5]}')
    own = [node(5, COLL, comm_type=0, comm_size=8, pg_name="a")]
    one = write(tmp_path, {0: own}, "one")
    with pytest.raises(ValueError) as refused:
        read_graphs(one, tmp_path / "groups.json", symmetric=Axes.of_text("dp=2,tp=3"))
    assert "one.0.et, rank 0, node 5 in a group of ranks [0, 5]; allowed with --symmetric" in str(
        refused.value
    )


def test_a_trace_of_one_rank_needs_the_word(tmp_path: Path) -> None:
    one = write(tmp_path, {0: [node(0, COMP)]}, "one")
    with pytest.raises(ValueError, match=r"or --symmetric with that of rank 0"):
        read_graphs(one)
    empty = write(tmp_path, {0: []}, "empty")
    with pytest.raises(ValueError, match=r"without nodes; allowed: a trace of rank 0"):
        read_graphs(empty, symmetric=Axes.of_text("dp=2"))
