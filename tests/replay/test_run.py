"""The compiled engine and the plain one, which holds the controller's own core; what
keeps the compiling short.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.settings import Mode
from railx.replay.kernels.compiling import called, lent
from railx.replay.programs import COLUMNS, read_programs, write_programs
from railx.replay.run import prepare, replay_programs
from railx.replay.wiring import CircuitModel
from tests.replay.programs import (
    Logged,
    ReplayedOperation,
    Step,
    decisions,
    from_steps,
    programs,
    rails,
    steps_of,
)
from tests.replay.reference import replay, rows_of

MODES: tuple[Mode, ...] = ("electrical", "on_demand", "provisioned")


@settings(max_examples=300, deadline=None)
@given(
    steps=programs(),
    model=rails(),
    mode=st.sampled_from(MODES),
    latency_ns=st.integers(0, 9),
    message_ns=st.sampled_from((0, 0, 1, 2, 7)),
    held=st.booleans(),
)
def test_the_compiled_engine_decides_as_the_core_does(
    steps: dict[int, list[Step]],
    model: CircuitModel,
    mode: Mode,
    latency_ns: int,
    message_ns: int,
    held: bool,
) -> None:
    decide_alike(steps, model, mode, latency_ns, held, message_ns)


def decide_alike(
    steps: dict[int, list[Step]],
    model: CircuitModel,
    mode: Mode,
    latency_ns: int,
    held: bool,
    message_ns: int = 0,
) -> list[Logged]:
    """The decisions, after both engines agree on them and on all rows."""
    log: list[Logged] = []
    rows = replay(steps, model, mode, latency_ns, log=log, keep_leases=held, message_ns=message_ns)
    prepared = prepare(from_steps(steps), model)
    ours = replay_programs(prepared, mode, latency_ns, keep_leases=held, message_ns=message_ns)
    decided = decisions(prepared, mode, latency_ns, keep_leases=held, message_ns=message_ns)
    assert decided == log
    assert rows_of(ours) == rows
    return log


def test_a_hint_waits_for_operations_in_the_queue() -> None:
    """The ring of ranks 1 to 4 waits for the pair 0, 3 when all of the next ring, which
    takes its ports, have announced it.
    """

    def operation(number: int, kind: Literal["pair", "ring"], *members: int) -> ReplayedOperation:
        key = f"{kind} {members}", number
        return ReplayedOperation(key, Configuration(kind, members), dict.fromkeys(members, 0))

    first, queued = (operation(number, "ring", 1, 2, 3, 4) for number in range(2))
    pair, announced = operation(0, "pair", 0, 3), operation(0, "ring", 0, 1, 4)
    issued = {
        0: [pair, announced],
        1: [first, queued, announced],
        2: [first, queued],
        3: [first, pair, queued],
        4: [first, queued, announced],
    }
    steps = {
        rank: [
            Step(0, "begin"),
            *(Step(0, "issue", 0, operation) for operation in operations),
            Step(0, "end"),
        ]
        for rank, operations in issued.items()
    }
    steps[0].insert(2, Step(0, "wait", 0, pair))
    steps[3].insert(2, Step(0, "wait", 0, first))
    decide_alike(steps, Layout(1), "provisioned", 0, held=False, message_ns=2)


def test_a_hint_leaves_a_lease_to_those_who_go_on_with_it() -> None:
    """Ranks 1 and 5 hold a port that the pair 0, 3 needs: GPU 1 stands in for GPU 0.

    Neither member of the pair is a member of the lease, so that nobody is through with
    it before the pair is asked for.
    """
    two_to_a_server = Layout(2)
    steps: dict[int, list[Step]] = {rank: [Step(0, "begin")] for rank in range(8)}

    def do(number: int, kind: Literal["pair", "ring"], *members: int, gap_ns: int = 0) -> None:
        needs = Configuration(kind, members)
        key = f"{kind} {members}", number
        what = ReplayedOperation(key, needs, dict.fromkeys(members, 10))
        for rank in members:
            steps[rank] += [Step(0, "issue", gap_ns, what), Step(0, "wait", 0, what)]

    for number in range(4):
        do(number, "ring", 1, 5, gap_ns=20 * (number > 0))
    do(0, "pair", 0, 2)
    do(0, "pair", 3, 7)
    do(0, "pair", 0, 3, gap_ns=300)
    for rank in steps:
        steps[rank].append(Step(0, "end"))
    log = decide_alike(steps, two_to_a_server, "provisioned", 5, held=True)
    # The two hinted it at 15 ns, and come to it 300 ns later.
    wanted = two_to_a_server.circuits(Configuration("pair", (0, 3)))
    assert [item.time_ns for item in log if item.what[1:] == wanted] == [315]


@settings(max_examples=25, deadline=None)
@given(steps=programs())
def test_programs_are_the_same_as_arrays_and_in_a_file(
    steps: dict[int, list[Step]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = from_steps(steps)
    path = tmp_path_factory.mktemp("programs") / "job.parquet"
    write_programs(path, made, notes={"job": "drawn"})
    back = read_programs(path)
    for name in COLUMNS:
        assert np.array_equal(back.columns[name], made.columns[name]), name
    assert (back.channels, back.configurations) == (made.channels, made.configurations)
    for mode in MODES:
        again = replay(steps_of(back), Layout(1), mode, 3)
        assert again == replay(steps, Layout(1), mode, 3)


Array = npt.NDArray[Any]


class _Two(NamedTuple):
    one: Array
    other: Array


@called
def _add(s: _Two, place: int, amount: int) -> int:
    s.other[place] += amount
    return len(s.one)


@njit  # type: ignore[untyped-decorator]
def _run(two: _Two) -> int:
    s = lent(two)
    found = _add(s, 0, 5)
    found += _add(s, np.int32(1), two.one[0])  # type: ignore[arg-type]
    return found + _add(s, 1, two.one[0] > 0)


def test_callees_see_the_arrays_and_are_compiled_once_for_all_numbers() -> None:
    two = _Two(np.array([7, 8, 9], np.int8), np.zeros(2, np.int64))
    assert _run(two) == 9
    assert two.other.tolist() == [5, 8]
    kinds = list(cast("Any", _add).overloads)
    assert len(kinds) == 1
    # What it is called is part of the name of each function that takes it.
    assert len(str(kinds[0][0])) < 30
