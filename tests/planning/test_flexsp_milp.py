"""FlexSP's published planner: rules, the choice of M, limits, ablations."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.make import make_plan
from railx.planning.sequence.blaster import cut_batch, fewest_micro_batches
from railx.planning.sequence.flexsp_milp import bucketed, plan_milp_batch
from railx.planning.sequence.programme import build_programme
from railx.planning.sequence.solver import SolverLimits, SolverPool, solve
from railx.workload.batches import BatchSettings, SampledBatch
from tests.builders import checked, drawn_batch

VARIANTS = ("", "_unsorted", "_equal_width", "_unbucketed", "_code")


@pytest.fixture(scope="module")
def pool() -> Iterator[SolverPool]:
    with SolverPool(1) as solvers:
        yield solvers


def _plan(
    lengths: list[int], cost: CostModel, pool: SolverPool, devices: int = 4, **changes: Any
) -> SequenceParallelBatch:
    chosen = checked("planner", "flexsp_milp", **changes)
    return plan_milp_batch(0, drawn_batch(lengths), chosen, devices, cost, pool)


def _check(
    batch: SequenceParallelBatch, drawn: SampledBatch, devices: int, cost: CostModel
) -> None:
    """Each sequence once, memory respected, times those of the true lengths."""
    seen: list[int] = []
    for micro_batch in batch.micro_batches:
        assert sum(group.degree for group in micro_batch.groups) <= devices
        for group in micro_batch.groups:
            seen += group.sequences
            assert group.tokens <= cost.tokens_per_device * group.degree
            assert group.predicted_ms == pytest.approx(
                cost.group_time_ms(group.lengths, group.degree).total_ms
            )
    assert sorted(seen) == sorted(drawn.sequences.tolist())


def _random(seed: int, count: int, longest: int = 180) -> list[int]:
    return [int(value) for value in np.random.default_rng(seed).integers(1, longest, count)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_keeps_the_rules(variant: str, small: CostModel, pool: SolverPool) -> None:
    drawn = drawn_batch(_random(5, 30))
    chosen = checked("planner", "flexsp_milp" + variant, work_limit=200, micro_batch_trials=2)
    planned = plan_milp_batch(0, drawn, chosen, 4, small, pool)
    _check(planned, drawn, 4, small)
    degrees = [[group.degree for group in m.groups] for m in planned.micro_batches]
    if variant == "_code":
        assert all(sum(one) == 4 and min(one) >= 2 for one in degrees)
    if variant == "_unsorted":
        order = {sequence: place for place, sequence in enumerate(drawn.sequences.tolist())}
        runs = [
            sorted(order[row] for group in m.groups for row in group.sequences)
            for m in planned.micro_batches
        ]
        assert [place for run in runs for place in run] == list(range(30))


def test_the_number_of_micro_batches_with_the_least_total_is_chosen(
    small: CostModel, pool: SolverPool
) -> None:
    """The account of every M equals a solve of its own, and the plan is the best."""
    lengths = _random(7, 14)
    values = np.array(lengths)
    planned = _plan(lengths, small, pool, bucketing="none", work_limit=None)
    trials = planned.solver["trials"]
    first = fewest_micro_batches(values, 400, "sorted")
    assert [trial["micro_batches"] for trial in trials] == list(range(first, first + 5))
    totals: list[float] = []
    for trial in trials:
        times = []
        for run in cut_batch(values, trial["micro_batches"], "sorted"):
            own = values[run]
            buckets = bucketed(own, checked("planner", "flexsp_milp", bucketing="none"), 400)
            programme = build_programme(own, buckets, 4, (1, 2, 4), small, "at_most")
            solved = solve(programme, SolverLimits(None, None))
            times.append(np.inf if solved.counts is None else programme.makespan_ms(solved.counts))
        totals.append(float(sum(times)))
        if trial["ended_by"] == "solved":
            assert trial["predicted_ms"] == pytest.approx(totals[-1], abs=0.02)
        elif trial["ended_by"] == "bound":
            assert totals[-1] >= planned.predicted_ms - 0.02
    assert planned.predicted_ms == pytest.approx(min(totals), abs=0.02)
    assert planned.predicted_ms == min(t["predicted_ms"] or np.inf for t in trials)


def test_a_later_number_of_micro_batches_can_win(small: CostModel, pool: SolverPool) -> None:
    """A dear constant keeps the first number, a free one lets more win."""
    lengths, chosen = _random(3, 6), []
    for constant_ms in (0.0, 100.0):
        planned = _plan(lengths, replace(small, constant_ms=constant_ms), pool, bucketing="none")
        chosen.append(len(planned.micro_batches) - planned.solver["trials"][0]["micro_batches"])
    assert chosen[0] > 0
    assert chosen[1] == 0


def test_processes_change_nothing(small: CostModel, pool: SolverPool) -> None:
    lengths, changes = _random(9, 24), {"work_limit": 200, "micro_batch_trials": 3}
    with SolverPool(2) as several:
        assert _plan(lengths, small, pool, **changes) == _plan(lengths, small, several, **changes)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=8), st.sampled_from(["sorted", "given"]))
def test_the_first_number_keeps_every_run_below_memory(values: list[int], order: Any) -> None:
    lengths = np.array(values)
    number = fewest_micro_batches(lengths, 100, order)

    def fits(count: int) -> bool:
        return all(lengths[run].sum() < 100 for run in cut_batch(lengths, count, order))

    assert fits(number)
    least = max(1, -(-sum(values) // 100))
    assert not any(fits(count) for count in range(least, number))


def test_buckets_follow_the_published_rule() -> None:
    chosen = checked("planner", "flexsp_milp")
    lengths = np.arange(1, 41) * 10
    rounded = sum(lengths[one].max() * len(one) for one in bucketed(lengths, chosen, 20_000))
    assert len(bucketed(lengths, chosen, 20_000)) == 16
    assert rounded > lengths.sum()
    # Memory for 60 tokens more than there are: half of that may be rounding.
    tight = bucketed(lengths, chosen, int(lengths.sum()) + 60)
    assert len(tight) > 16
    assert sum(lengths[one].max() * len(one) for one in tight) <= lengths.sum() + 30
    # As many buckets as sequences: none at all.
    assert [one.tolist() for one in bucketed(lengths[:16], chosen, 20_000)] == [
        [place] for place in range(15, -1, -1)
    ]
    assert len(bucketed(lengths, checked("planner", "flexsp_milp_unbucketed"), 20_000)) == 40


def test_a_time_limit_marks_the_plan_as_cut_short(large: CostModel, pool: SolverPool) -> None:
    lengths = [int(value) for value in np.random.default_rng(4).integers(200, 20_000, 30)]
    changes: dict[str, Any] = {"micro_batch_trials": 1, "smallest_degree": 2}
    cut = _plan(lengths, large, pool, 64, **changes, work_limit=None, time_limit_s=0.1)
    assert cut.solver["cut_short"]
    assert cut.solver["ended_by"] == {"time_limit": len(cut.micro_batches)}
    whole = _plan(lengths, large, pool, 64, **changes, work_limit=200)
    assert not whole.solver["cut_short"]
    assert whole.solver["ended_by"] == {"work_limit": len(whole.micro_batches)}
    assert 0 < whole.solver["effort"] < 5000


def test_a_number_without_a_plan_is_dropped(small: CostModel, pool: SolverPool) -> None:
    """With one bucket all four are rounded up to 180, more than memory holds."""
    lengths = [180, 60, 60, 60]
    naive: dict[str, Any] = {"bucketing": "equal_width", "buckets": 1}
    planned = _plan(lengths, small, pool, **naive)
    assert planned.solver["trials"][0]["ended_by"] == "infeasible"
    assert planned.solver["trials"][0]["predicted_ms"] is None
    assert len(planned.micro_batches) == 2
    with pytest.raises(
        PlanError,
        match=r"^planner\.micro_batch_trials: got 1, none of 1 to 1 micro-batches has a plan",
    ):
        _plan(lengths, small, pool, micro_batch_trials=1, **naive)


def test_devices_that_groups_cannot_fill_are_said(small: CostModel, pool: SolverPool) -> None:
    def refused(lengths: list[int], devices: int, **more: Any) -> str:
        changed = checked("planner", "flexsp_milp", devices="all", **more)
        with pytest.raises(PlanError) as raised:
            plan_milp_batch(0, drawn_batch(lengths), changed, devices, small, pool)
        return str(raised.value)

    assert refused([30, 40], 3, smallest_degree=2) == (
        "planner.devices: got all; allowed: at_most, as groups of 2 ranks or more leave some of 3"
        " devices idle"
    )
    # Two ranks and one are two groups, for two sequences or more.
    assert "; allowed: more, planner.devices at_most, or higher limits" in refused([30], 3)


def test_a_sequence_that_fits_no_group_is_named(small: CostModel, pool: SolverPool) -> None:
    with pytest.raises(PlanError, match=r"^sequence 101: 401 tokens; allowed: at most 400"):
        _plan([5, 401, 7], small, pool)
    with pytest.raises(PlanError, match=r"^batch: got a sequence of 400 tokens; allowed: below"):
        _plan([5, 400, 7], small, pool)


@settings(max_examples=8, deadline=None)
@given(values=st.lists(st.integers(1, 100), min_size=2, max_size=5))
def test_tiny_batches_have_the_optimum_of_their_cuts(
    values: list[int], small: CostModel, pool: SolverPool
) -> None:
    """Against brute force over cuts, mixes and assignments, where nothing is pruned."""
    lengths = np.array(values)

    def fastest(part: list[int]) -> float:
        best = np.inf
        for degrees in ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)):
            for owner in itertools.product(range(len(degrees)), repeat=len(part)):
                held = [
                    [one for one, group in zip(part, owner, strict=True) if group == index]
                    for index in range(len(degrees))
                ]
                if all(sum(h) <= 100 * d for h, d in zip(held, degrees, strict=True)):
                    best = min(
                        best,
                        max(
                            small.group_time_ms(h, d).total_ms
                            for h, d in zip(held, degrees, strict=True)
                            if h
                        ),
                    )
        return best

    planned = _plan(values, small, pool, work_limit=None)
    totals = [
        sum(fastest(lengths[run].tolist()) for run in cut_batch(lengths, number, "sorted"))
        for number in range(fewest_micro_batches(lengths, 400, "sorted"), len(values) + 1)
    ]
    assert planned.predicted_ms == pytest.approx(min(totals), abs=0.02)


def test_a_plan_of_the_list_can_be_written_and_read(tmp_path: Path) -> None:
    lengths = np.array(_random(13, 24, 900))
    plan = make_plan(
        checked("planner", "flexsp_milp", work_limit=500, processes=2),
        lengths,
        checked("cluster", "cpu_4"),
        checked("model", "tiny"),
        checked("cost_model", "analytic"),
        BatchSettings(12, 2, 1024, "truncate"),
        1,
    )
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    assert (plan.planner, plan.devices, len(plan.batches)) == ("flexsp_milp", 4, 2)
