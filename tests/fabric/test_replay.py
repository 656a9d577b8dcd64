"""The formula against published numbers, and the replay against the formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.replay import (
    ReplayedOperation,
    Step,
    iteration_ms,
    programs_of,
    replay,
    stall_ms,
    utilisation,
)

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


def test_utilisation_counts_stalls() -> None:
    assert utilisation(60.0, 30.0, 0.0, [0.0]) == pytest.approx(2 / 3)
    assert utilisation(60.0, 30.0, 30.0, [0.0]) == pytest.approx(0.5)


def alternating(window_ns: int, iterations: int) -> dict[int, list[Step]]:
    """Four ranks that go from halves to the world and back, with the same computation
    before every operation.
    """
    programs: dict[int, list[Step]] = {rank: [] for rank in range(4)}
    for rank, steps in programs.items():
        for iteration in range(iterations):
            steps.append(Step(iteration, None, 0))
            for configuration in (HALVES[rank], WORLD):
                after = len(steps) - 1 if steps else None
                operation = ReplayedOperation((configuration.name, iteration), configuration, 5)
                steps.append(Step(iteration, operation, window_ns, after))
            steps.append(Step(iteration, None, 0, len(steps) - 1))
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


def test_groups_within_servers_never_ask() -> None:
    rows = replay(alternating(10, 2), Layout(4), "on_demand", 1000)
    assert {(row.requests, row.stall_ns, row.duration_ns) for row in rows} == {(0, 0, 30)}
    halves_inside = replay(alternating(10, 2), Layout(2), "on_demand", 1000)
    assert [(row.requests, row.reconfigurations) for row in halves_inside] == [(1, 1)] * 4 + [
        (1, 0)
    ] * 4


def event(
    rank: int, kind: str, group: str, start_ns: int, end_ns: int, *, iteration: int = 0
) -> dict[str, object]:
    return {
        "iteration": iteration,
        "rank": rank,
        "kind": kind,
        "group": group,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }


TRACE = [
    event(0, "forward", "", 1000, 1010),
    event(1, "forward", "", 1000, 1004),
    event(0, "send", "0,1", 1010, 1013),
    event(1, "recv", "0,1", 1004, 1013),
    event(0, "forward", "", 1010, 1020),
    event(1, "forward", "", 1013, 1030),
    event(0, "all_reduce", "0,1", 1020, 1036),
    event(1, "all_reduce", "0,1", 1030, 1036),
    event(0, "update", "", 1036, 1040),
    event(1, "update", "", 1036, 1041),
    event(0, "all_reduce", "0,1", 1050, 1056, iteration=1),
    event(1, "all_reduce", "0,1", 1050, 1056, iteration=1),
]


def test_a_recorded_run_is_replayed_as_it_was() -> None:
    rows = replay(programs_of(TRACE), Layout(1), "electrical", 0)
    assert {(row.iteration, row.rank): row.duration_ns for row in rows} == {
        (0, 0): 40,
        (0, 1): 41,
        (1, 0): 6,
        (1, 1): 6,
    }


def test_a_recorded_run_meets_the_switch() -> None:
    rows = replay(programs_of(TRACE), Layout(1), "on_demand", 100)
    first = {row.rank: row for row in rows if row.iteration == 0}
    # The pair's circuit is half of the ring, so each change makes one circuit; the
    # second iteration changes nothing.
    assert first[0].duration_ns == 40 + 200
    assert first[1].duration_ns == 41 + 200
    assert [row.reconfigurations for row in rows] == [2, 2, 0, 0]
    assert first[1].wait_ns == 6, "rank 1 stood ready 6 ns before the message was sent"


def test_an_operation_that_a_member_did_not_record_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"operation 0 of 0:0,1:0>1 is there for ranks \[0\], but not for \[1\]"
    ):
        programs_of(TRACE[:3])


def test_only_electrical_runs_are_replayed() -> None:
    with pytest.raises(ValueError, match="allowed: the trace of an electrical run"):
        programs_of([event(0, "reconfiguration", "0,1", 0, 1)])


def test_programs_that_cannot_end_are_named() -> None:
    steps = alternating(0, 1)
    del steps[3][2]
    with pytest.raises(
        ValueError,
        match=r"rank 0 never ends step 2 \(iteration 0\): operation \('ring 0,1,2,3', 0\)",
    ):
        replay(steps, Layout(1), "on_demand", 1)
