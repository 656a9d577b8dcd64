"""GOAL schedules as graphs: those that we write, and broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.goal import write_goal
from railx.exchange.graph_files import read_graphs
from railx.replay.graphs import NODE_KINDS
from tests.exchange.drawn import said, together
from tests.exchange.readers import read_goal
from tests.replay.objects import from_steps
from tests.replay.plain_graphs import plain_ends
from tests.replay.programs import programs as drawn_steps

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
            "rank 0, node 3, which depends on itself",
        ),
        (
            "num_ranks 2\nrank 0 {\nl1: send 5b to 1 tag 3\n}",
            "a send of rank 0 to rank 1, tag 3, with 1 sends for 0 receives",
        ),
    ],
)
def test_broken_schedules_are_refused_in_one_line(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "job.goal"
    path.write_text(text)
    with pytest.raises(ValueError) as refused:
        read_graphs(path)
    assert expected in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
