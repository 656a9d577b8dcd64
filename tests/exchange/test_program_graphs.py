"""Programs as graphs: they take as long as programs, and are those of their traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.chakra import write_chakra
from railx.exchange.graph_files import read_graphs
from railx.fabric.circuits import Layout
from railx.replay.graph_run import prepare_graph, replay_graph
from railx.replay.graphs import NODE_KINDS
from railx.replay.programs import write_programs
from railx.replay.run import prepare, replay_programs
from tests.exchange.drawn import collectives_alone, job, said
from tests.replay.objects import from_steps
from tests.replay.plain_graphs import plain_ends
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
    alike = ours.columns["kind"] != NODE_KINDS.index("gather")
    for name in ("rank", "number", "kind", "duration_ns", "peer", "tag"):
        assert (ours.columns[name] == theirs.columns[name]).all(), name
    assert (ours.columns["bytes"] == theirs.columns["bytes"])[alike].all()
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
