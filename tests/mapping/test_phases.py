"""Plans of ports and the windows of their changes, against brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.mapping.layout import compute_flops, step_transfers
from railx.mapping.phases import (
    Plan,
    Programme,
    Step,
    Turn,
    Use,
    plans,
    programme_of,
    stall_ns,
    uses_of,
    windows_of,
)
from railx.mapping.settings import JobSettings
from railx.performance.volumes import Transfer

ROWS, COLUMNS = ("x",), ("y",)
USES = (
    Use(ROWS, ("data",), 4),
    Use(ROWS, ("expert",), 2),
    Use(COLUMNS, ("pipeline",), 4),
    Use(COLUMNS, ("sequence",), 2),
)
STEPS = st.lists(
    st.tuples(st.sampled_from((None, *USES)), st.integers(1, 50).map(float)), min_size=1, max_size=8
)


def by_hand(programme: Programme, turns: dict[Use, int], steps: int) -> Counter[float]:
    """Windows of the last of so many steps, every operation written out."""
    timeline: list[tuple[int, Step]] = []
    for number in range(steps):
        for _ in range(programme.micro_batches):
            timeline += [(number, step) for step in programme.micro_batch]
        timeline += [(number, step) for step in programme.end]
    found: Counter[float] = Counter()
    clock, ends, owner = 0.0, dict[tuple[str, ...], float](), dict[tuple[str, ...], int]()
    for number, (use, time) in timeline:
        if use is not None:
            changed = use.axes in owner and owner[use.axes] != turns[use]
            if changed and number == steps - 1:
                found[clock - ends[use.axes]] += 1
            owner[use.axes], ends[use.axes] = turns[use], clock + time
        clock += time
    return found


@given(STEPS, STEPS, st.integers(1, 5), st.lists(st.integers(0, 1), min_size=4, max_size=4))
def test_windows_are_those_of_a_step_written_out(
    micro_batch: list[Step], end: list[Step], micro_batches: int, chosen: list[int]
) -> None:
    # Turns 0 and 1 for rows, 2 and 3 for columns.
    numbers = {
        use: 2 * (use.axes == COLUMNS) + turn for use, turn in zip(USES, chosen, strict=True)
    }
    plan = Plan(tuple(Turn({use: 1 for use in USES if numbers[use] == turn}) for turn in range(4)))
    programme = Programme(tuple(micro_batch), tuple(end), micro_batches, 0, 0.0)
    windows = windows_of(programme, plan)
    assert windows.count == by_hand(programme, numbers, 4)
    assert windows.changes == sum(windows.count.values())


def test_waiting_repeats_the_changes_of_a_further_micro_batch() -> None:
    data, expert = USES[:2]
    micro_batch: tuple[Step, ...] = ((expert, 10.0), (None, 4.0), (data, 3.0), (None, 2.0))
    own = Plan((Turn({data: 8}), Turn({expert: 8})))
    alone = windows_of(Programme(micro_batch, (), 2, 0, 0.0), own)
    assert alone.count == {2.0: 2, 4.0: 2}
    waiting = windows_of(Programme(micro_batch, (), 2, 3, 0.0), own)
    assert waiting.count == {2.0: 5, 4.0: 5}
    assert waiting.changes == alone.changes == 4


def test_a_stall_is_latency_on_demand_and_what_exceeds_the_window_provisioned() -> None:
    data, expert = USES[:2]
    micro_batch: tuple[Step, ...] = ((expert, 10.0), (None, 4.0), (data, 3.0), (None, 2.0))
    plan = Plan((Turn({data: 8}), Turn({expert: 8})))
    windows = windows_of(Programme(micro_batch, (), 2, 0, 0.0), plan)
    assert stall_ns(windows, 3.0, "on_demand") == 12.0
    assert stall_ns(windows, 3.0, "provisioned") == 2 * (3 - 2)
    assert stall_ns(windows, 10.0, "provisioned") == 2 * (10 - 2) + 2 * (10 - 4)
    assert stall_ns(windows, 2.0, "provisioned") == 0.0


def test_every_plan_is_there_once() -> None:
    three = [Use(ROWS, (name,), 2) for name in ("data", "expert", "pipeline")]
    found = list(plans(three, 8, dict.fromkeys(three, 1)))
    # One turn each; two share 8 rails (7 ways, 3 pairs); all three do (21).
    assert len(found) == 1 + 3 * 7 + 21
    assert len({str(plan) for plan in found}) == len(found)
    for plan in found:
        assert all(sum(turn.rails.values()) == 8 for turn in plan.turns)
        assert sorted(use.over for turn in plan.turns for use in turn.rails) == sorted(
            use.over for use in three
        )


def test_a_plan_leaves_a_wiring_its_rails_and_packets_have_no_owner() -> None:
    data, expert = USES[:2]
    fewest = {data: 1, expert: 7}
    shared = [plan for plan in plans([data, expert], 8, fewest) if len(plan.turns) == 1]
    assert [dict(plan.turns[0].rails) for plan in shared] == [{data: 1, expert: 7}]
    packets = [plan for plan in plans([data, expert], 1, fewest) if len(plan.turns) == 1]
    assert [dict(plan.turns[0].rails) for plan in packets] == [{data: 1, expert: 1}]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_programme_has_every_transfer_as_often_as_the_step(
    job_of: Callable[..., JobSettings], experts: dict[str, object], sparse: bool
) -> None:
    job = job_of(**(experts if sparse else {}))
    transfers = step_transfers(job)
    axes = (ROWS, COLUMNS)
    times: dict[Transfer, list[Step]] = {
        one: [(use, 1.0) for use in uses_of(job.layout, one, axes)] or [(None, 1.0)]
        for one in transfers
    }
    programme = programme_of(job, times)
    for per_step, steps in ((False, programme.micro_batch), (True, programme.end)):
        wanted: Counter[Use | None] = Counter()
        for one in transfers:
            if one.per_step == per_step:
                for use, _ in times[one]:
                    wanted[use] += one.times
        compute = 0.0 if per_step else programme.compute_ns
        found: Counter[Use | None] = Counter()
        for own, time in steps:
            found[own] += time  # type: ignore[assignment]
        found[None] -= compute  # type: ignore[assignment]
        assert {use: pytest.approx(number) for use, number in wanted.items() if use} == {
            use: number for use, number in found.items() if use
        }
        assert found[None] == pytest.approx(wanted[None], abs=1e-3)
    flops_ns = compute_flops(job) / (job.chip.peak_tflops * job.chip.efficiency) / 1e3
    assert programme.compute_ns == pytest.approx(flops_ns)
    assert programme.waits == job.layout.degree("pipeline") - 1


def test_rails_join_both_axes_and_rows_and_columns_are_apart(
    job_of: Callable[..., JobSettings], experts: dict[str, object]
) -> None:
    job = job_of(**experts)
    dense = next(one for one in step_transfers(job) if one.per_step)
    rails = uses_of(job.layout, dense, (("x", "y"),))
    assert rails == [Use(("x", "y"), ("expert", "data"), 8)]
    grid = uses_of(job.layout, dense, (ROWS, COLUMNS))
    assert grid == [Use(ROWS, ("expert",), 4), Use(COLUMNS, ("data",), 2)]
