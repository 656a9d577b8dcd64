"""One rank for all: the graphs are those of a trace that has all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from railx.exchange.graph_files import read_graphs
from railx.exchange.symmetric_ranks import Axes
from tests.exchange.traces import COLL, COMP, RECV, SEND, node, unpacked, write

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
