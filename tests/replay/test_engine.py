"""The formula against published numbers, and the replay against the formula."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.settings import Mode
from railx.replay.changes import stall_ms
from railx.replay.wiring import CircuitModel
from tests.replay.programs import ReplayedOperation, Step, rails
from tests.replay.programs import programs as drawn
from tests.replay.reference import replay

WORLD = Configuration("ring", (0, 1, 2, 3))
HALVES = {rank: Configuration("ring", (0, 1) if rank < 2 else (2, 3)) for rank in range(4)}


# Provisioned runs of the published simulation (Opus artifact, figs. 12, 13): T0 in s,
# windows in ms, step latency in s by L in ms.
PUBLISHED = [
    (
        12.193,
        [0.0] * 3 + [75.9] * 3 + [1000.0] * 4,
        {10: 12.223, 50: 12.343, 100: 12.565, 250: 13.465, 500: 14.965, 750: 16.465, 1000: 17.965},
    ),
    (
        2.723,
        [0.0] * 3 + [16.2] * 3 + [276.6] * 4,
        {10: 2.753, 50: 2.975, 100: 3.275, 250: 4.175, 500: 6.568, 750: 9.068, 1000: 11.568},
    ),
]


def iteration_ms(electrical_ms: float, latency_ms: float, windows_ms: list[float]) -> float:
    """T(L) = T0 + sum of max(0, L - W)."""
    return electrical_ms + stall_ms(latency_ms, windows_ms)


@pytest.mark.parametrize(("electrical_s", "windows_ms", "published"), PUBLISHED)
def test_formula_gives_the_published_latencies(
    electrical_s: float, windows_ms: list[float], published: dict[int, float]
) -> None:
    for latency_ms, published_s in published.items():
        assert iteration_ms(electrical_s * 1e3, latency_ms, windows_ms) / 1e3 == pytest.approx(
            published_s, abs=1.1e-3
        )


def test_on_demand_is_the_formula_without_windows() -> None:
    assert iteration_ms(100.0, 10.0, [0.0] * 6) == 160.0
    assert stall_ms(10.0, [-5.0, 4.0, 10.0, 99.0]) == 16.0


def operation(key: str, number: int, members: Configuration, lasts_ns: int) -> ReplayedOperation:
    return ReplayedOperation((key, number), members, dict.fromkeys(members.members, lasts_ns))


def synchronous(iteration: int, gap_ns: int, what: ReplayedOperation) -> list[Step]:
    return [Step(iteration, "issue", gap_ns, what), Step(iteration, "wait", 0, what)]


def alternating(window_ns: int, iterations: int, in_a_row: int = 1) -> dict[int, list[Step]]:
    """Four ranks that go from halves to the world and back, with the same computation
    before every operation.
    """
    programs: dict[int, list[Step]] = {rank: [] for rank in range(4)}
    for rank, steps in programs.items():
        for iteration in range(iterations):
            steps.append(Step(iteration, "begin"))
            for members in (HALVES[rank], WORLD):
                for number in range(iteration * in_a_row, (iteration + 1) * in_a_row):
                    what = operation(members.name, number, members, 5)
                    steps += synchronous(iteration, window_ns, what)
            steps.append(Step(iteration, "end"))
    return programs


@given(window_ns=st.integers(0, 100), latency_ns=st.integers(0, 100), iterations=st.integers(1, 4))
def test_replay_follows_the_formula_where_ranks_are_alike(
    window_ns: int, latency_ns: int, iterations: int
) -> None:
    programs = alternating(window_ns, iterations)
    electrical = {
        row.rank: row.duration_ns
        for row in replay(programs, Layout(1), "electrical", 0)
        if row.iteration == iterations - 1
    }
    on_demand = [
        row
        for row in replay(programs, Layout(1), "on_demand", latency_ns)
        if row.iteration == iterations - 1
    ]
    provisioned = [
        row
        for row in replay(programs, Layout(1), "provisioned", latency_ns)
        if row.iteration == iterations - 1
    ]
    assert set(electrical.values()) == {2 * (window_ns + 5)}
    for row in on_demand:
        assert (row.requests, row.reconfigurations, row.mispredictions) == (2, 2, 0)
        assert row.duration_ns == iteration_ms(electrical[row.rank], latency_ns, [0, 0])
        assert row.stall_ns == 2 * latency_ns
    for row in provisioned:
        # The change at the start of an iteration is not announced: predictions do not
        # cross iterations.
        assert row.duration_ns == iteration_ms(electrical[row.rank], latency_ns, [0, window_ns])
        assert (row.reconfigurations, row.mispredictions) == (2, 0)


@given(
    window_ns=st.integers(0, 100),
    latency_ns=st.integers(0, 100),
    in_a_row=st.integers(1, 4),
    mode=st.sampled_from(["on_demand", "provisioned"]),
)
def test_leases_that_stay_change_what_is_asked_and_no_time(
    window_ns: int, latency_ns: int, in_a_row: int, mode: Mode
) -> None:
    """As in a run: of operations in a row on the same circuits the first asks."""
    programs = alternating(window_ns, 3, in_a_row)
    asking = replay(programs, Layout(1), mode, latency_ns)
    holding = replay(programs, Layout(1), mode, latency_ns, keep_leases=True)
    for one, other in zip(asking, holding, strict=True):
        assert (other.begin_ns, other.end_ns) == (one.begin_ns, one.end_ns)
        assert (other.stall_ns, other.reconfigurations) == (one.stall_ns, one.reconfigurations)
        assert (one.requests, other.requests) == (2 * in_a_row, 2)


@given(
    window_ns=st.integers(0, 100),
    latency_ns=st.integers(0, 100),
    message_ns=st.integers(0, 50),
    in_a_row=st.integers(1, 3),
    held=st.booleans(),
)
def test_messages_take_their_time(
    window_ns: int, latency_ns: int, message_ns: int, in_a_row: int, held: bool
) -> None:
    """A question and its answer; where others hold the ports, a recall as well."""
    programs = alternating(window_ns, 3, in_a_row)

    def lasted(mode: Mode) -> set[int]:
        rows = replay(
            programs, Layout(1), mode, latency_ns, keep_leases=held, message_ns=message_ns
        )
        assert all(row.mispredictions == 0 for row in rows)
        return {row.duration_ns for row in rows if row.iteration > 0}

    electrical_ns = 2 * in_a_row * (window_ns + 5)
    asked = 2 if held else 2 * in_a_row
    # Nobody gives back ports for an iteration that nobody has announced.
    recalled_ns = 2 * message_ns if held else 0
    questions_ns = electrical_ns + 2 * message_ns * asked
    assert lasted("electrical") == {electrical_ns}
    assert lasted("on_demand") == {questions_ns + 2 * (latency_ns + recalled_ns)}
    assert lasted("provisioned") == {
        questions_ns + latency_ns + recalled_ns + max(0, latency_ns - window_ns)
    }


@settings(max_examples=100, deadline=None)
@given(
    steps=drawn(),
    model=rails(),
    mode=st.sampled_from(["on_demand", "provisioned"]),
    latency_ns=st.integers(0, 9),
    message_ns=st.integers(1, 9),
    held=st.booleans(),
)
def test_every_program_ends_however_long_messages_take(
    steps: dict[int, list[Step]],
    model: CircuitModel,
    mode: Mode,
    latency_ns: int,
    message_ns: int,
    held: bool,
) -> None:
    rows = replay(steps, model, mode, latency_ns, keep_leases=held, message_ns=message_ns)
    plain = replay(steps, model, "electrical", 0)
    assert [(row.rank, row.iteration) for row in rows] == [
        (row.rank, row.iteration) for row in plain
    ]
    assert [row.compute_ns for row in rows] == [row.compute_ns for row in plain]


def test_groups_within_servers_never_ask() -> None:
    rows = replay(alternating(10, 2), Layout(4), "on_demand", 1000)
    assert {(row.requests, row.stall_ns, row.duration_ns) for row in rows} == {(0, 0, 30)}
    halves_inside = replay(alternating(10, 2), Layout(2), "on_demand", 1000)
    assert [(row.requests, row.reconfigurations) for row in halves_inside] == [(1, 1)] * 4 + [
        (1, 0)
    ] * 4


def test_programs_that_cannot_end_are_named() -> None:
    steps = alternating(0, 1)
    del steps[3][3:5]
    with pytest.raises(
        ValueError,
        match=r"rank 0 never ends step 4 \(iteration 0\): wait operation \('ring 0,1,2,3', 0\)",
    ):
        replay(steps, Layout(1), "on_demand", 1)


def asynchronous(compute_ns: int, lasts_ns: int) -> dict[int, list[Step]]:
    """Two ranks that compute while an operation is under way, and then wait for it."""
    members = Configuration("ring", (0, 1))
    what = operation("gather", 0, members, lasts_ns)
    steps = [
        Step(0, "begin"),
        Step(0, "issue", 0, what),
        Step(0, "wait", compute_ns, what),
        Step(0, "end", 3),
    ]
    return {0: steps, 1: steps}


@given(compute_ns=st.integers(0, 50), lasts_ns=st.integers(0, 50))
def test_computation_hides_what_is_under_way(compute_ns: int, lasts_ns: int) -> None:
    for row in replay(asynchronous(compute_ns, lasts_ns), Layout(1), "electrical", 0):
        assert row.duration_ns == max(compute_ns, lasts_ns) + 3
        assert row.compute_ns == compute_ns + 3
        assert row.communication_ns == lasts_ns
        assert row.hidden_ns == min(compute_ns, lasts_ns)


def test_operations_of_a_lane_follow_each_other_and_lanes_do_not_wait() -> None:
    members = Configuration("ring", (0, 1))
    first, second = operation("a", 0, members, 10), operation("a", 1, members, 10)
    beside = operation("b", 0, members, 15)
    steps = [
        Step(0, "begin"),
        *(Step(0, "issue", 0, what) for what in (first, second, beside)),
        *(Step(0, "wait", 0, what) for what in (beside, second)),
        Step(0, "end"),
    ]
    rows = replay({0: steps, 1: steps}, Layout(1), "electrical", 0)
    assert [(row.duration_ns, row.communication_ns) for row in rows] == [(20, 20)] * 2


def test_who_waits_for_nobody_ends_before_the_others_come() -> None:
    pair = Configuration("pair", (0, 1))
    message = ReplayedOperation(("m", 0), pair, {0: 4, 1: 6}, frozenset({0}))
    late = synchronous(0, 20, message)
    programs = {
        0: [Step(0, "begin"), *synchronous(0, 0, message), Step(0, "end")],
        1: [Step(0, "begin"), *late, Step(0, "end")],
    }
    rows = replay(programs, Layout(1), "electrical", 0)
    assert [row.duration_ns for row in rows] == [4, 26]
    switched = replay(programs, Layout(1), "on_demand", 100)
    assert [row.duration_ns for row in switched] == [124, 126]


def test_iterations_begin_together() -> None:
    programs = {
        rank: [
            Step(0, "begin", rank),
            Step(0, "end", 10 * rank),
            Step(1, "begin", 7 * rank),
            Step(1, "end", 1),
        ]
        for rank in range(2)
    }
    rows = replay(programs, Layout(1), "electrical", 0)
    assert [(row.begin_ns, row.end_ns) for row in rows] == [(0, 0), (1, 11), (11, 12), (18, 19)]
