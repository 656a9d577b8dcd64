"""FlexSP: exact optima of small cases, invariants, never slower than static plans."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.planning.blaster import bucket_lengths
from railx.planning.flexsp import plan_flexsp_batch
from railx.planning.groups import Assignment, micro_batch_ms
from railx.planning.milp import SolverLimits, solve_micro_batch, virtual_groups
from railx.planning.mixes import all_mixes, fill_mix, lower_bound_ms, search_mix
from railx.planning.plan import PlanError, SequenceParallelBatch
from railx.planning.static import plan_static_batch
from railx.workload import CostModel, SampledBatch
from tests.builders import checked, drawn_batch

EXACT = SolverLimits(relative_gap=0.0, node_limit=100_000, time_guard_s=60.0)


def _optimum_ms(lengths: list[int], devices: int, cost: CostModel) -> float:
    """The fastest micro-batch by trying every mix and every assignment."""
    best = float("inf")
    for mix in all_mixes(devices, cost.degrees, devices):
        for owner in itertools.product(range(len(mix)), repeat=len(lengths)):
            held = [
                [length for length, group in zip(lengths, owner, strict=True) if group == index]
                for index in range(len(mix))
            ]
            if all(
                sum(part) <= cost.tokens_per_device * degree
                for part, degree in zip(held, mix, strict=True)
            ):
                best = min(
                    best,
                    max(
                        cost.group_time_ms(part, degree).total_ms
                        for part, degree in zip(held, mix, strict=True)
                        if part
                    ),
                )
    return best


def _partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in _partitions(items[1:]):
        yield [[items[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [items[0], *rest[index]], *rest[index + 1 :]]


def _check(
    batch: SequenceParallelBatch, drawn: SampledBatch, devices: int, cost: CostModel
) -> None:
    """Each sequence once with its length, memory respected, times as the cost model has
    them.
    """
    length_of = dict(zip(drawn.sequences.tolist(), drawn.lengths.tolist(), strict=True))
    seen: list[int] = []
    for micro_batch in batch.micro_batches:
        assert sum(group.degree for group in micro_batch.groups) <= devices
        assert micro_batch.predicted_ms == max(group.predicted_ms for group in micro_batch.groups)
        for group in micro_batch.groups:
            seen += group.sequences
            assert [length_of[sequence] for sequence in group.sequences] == list(group.lengths)
            assert group.tokens <= cost.tokens_per_device * group.degree
            assert group.predicted_ms == pytest.approx(
                cost.group_time_ms(group.lengths, group.degree).total_ms
            )
    assert sorted(seen) == sorted(length_of)


@pytest.mark.parametrize(
    "lengths", [[100], [90, 80], [150, 40, 30, 20], [60, 60, 60, 60], [99, 51, 50, 49, 3], [390]]
)
def test_the_programme_finds_the_optimum(lengths: list[int], small: CostModel) -> None:
    values = np.array(lengths)
    buckets = bucket_lengths(values, len(values), 0, "least_error")
    groups = tuple(degree for degree in small.degrees for _ in range(4 // degree))
    solution = solve_micro_batch(values, buckets, groups, 4, small, EXACT, None)
    assert solution.assignment is not None
    assert solution.ended_by == "gap"
    assert micro_batch_ms(solution.assignment, values, small) == pytest.approx(
        _optimum_ms(lengths, 4, small)
    )
    assert solution.bound_ms == pytest.approx(_optimum_ms(lengths, 4, small))


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 180), min_size=1, max_size=5))
def test_search_and_programme_are_never_better_than_the_optimum(
    lengths: list[int], small: CostModel
) -> None:
    values, optimum = np.array(lengths), _optimum_ms(lengths, 4, small)
    if optimum == float("inf"):
        assert search_mix(values, 4, small.degrees, small, 0.0) is None
        return
    assert lower_bound_ms(values, 4, small.degrees, small) <= optimum * (1 + 1e-9)
    found = search_mix(values, 4, small.degrees, small, 0.0)
    start = found.assignment if found is not None else None
    if found is not None:
        assert found.time_ms == pytest.approx(micro_batch_ms(found.assignment, values, small))
        assert found.time_ms >= optimum * (1 - 1e-9)
    groups = tuple(degree for degree in small.degrees for _ in range(4 // degree))
    buckets = bucket_lengths(values, len(values), 0, "least_error")
    solution = solve_micro_batch(values, buckets, groups, 4, small, EXACT, start)
    assert solution.assignment is not None
    assert micro_batch_ms(solution.assignment, values, small) == pytest.approx(optimum)


def test_a_programme_without_room_has_no_solution(small: CostModel) -> None:
    values = np.array([150, 150, 150])
    solution = solve_micro_batch(
        values, bucket_lengths(values, 3, 0, "least_error"), (1, 1, 2), 4, small, EXACT, None
    )
    assert solution.assignment is None
    assert solution.ended_by == "infeasible"


def test_a_start_that_breaks_the_rounded_up_cap_is_left_out(small: CostModel) -> None:
    values = np.array([60, 40, 50, 50])
    start = Assignment((1, 1), ((0, 1), (2, 3)))
    solution = solve_micro_batch(
        values, bucket_lengths(values, 1, 10**9, "least_error"), (1, 1, 2), 4, small, EXACT, start
    )
    assert solution.assignment is not None
    assert sorted(position for group in solution.assignment.groups for position in group) == [
        0,
        1,
        2,
        3,
    ]


def test_virtual_groups_follow_the_pruning(small: CostModel) -> None:
    assert virtual_groups(np.array([50, 50]), 4, small.degrees, small) == (1, 1, 1, 1, 2, 2, 4)
    assert virtual_groups(np.array([150, 50]), 4, small.degrees, small) == (1, 1, 2, 2, 4)
    assert virtual_groups(np.array([150, 150, 150]), 4, small.degrees, small) == (1, 1, 2, 2, 4)
    assert virtual_groups(np.array([350, 50]), 4, small.degrees, small) == (4,)


@pytest.mark.parametrize(
    ("devices", "count"), [(1, 1), (2, 2), (4, 4), (8, 10), (16, 36), (32, 202), (64, 1828)]
)
def test_mixes_are_the_binary_partitions(devices: int, count: int) -> None:
    degrees = tuple(2**power for power in range(devices.bit_length()))
    mixes = list(all_mixes(devices, degrees, devices))
    assert len(mixes) == len(set(mixes)) == count
    assert all(sum(mix) == devices for mix in mixes)
    assert set(all_mixes(devices, degrees, 3)) == {mix for mix in mixes if len(mix) <= 3}


def test_a_mix_without_room_is_refused(small: CostModel) -> None:
    assert fill_mix(np.array([150]), (1, 1, 1, 1), small) is None
    assert fill_mix(np.array([90, 90, 90, 90, 90]), (4,), small) is None


def test_the_motivating_picture(large: CostModel) -> None:
    """64 devices, one sequence of 100K and four of 48K: mixed degrees beat two groups
    of 32 (FlexSP's first figure, 4 s to 3 s).
    """
    drawn = drawn_batch([100_000, 48_000, 48_000, 48_000, 48_000])
    planned = plan_flexsp_batch(0, drawn, checked("planner", "flexsp"), 64, large)
    _check(planned, drawn, 64, large)
    assert len(planned.micro_batches) == 1
    degrees = sorted((group.degree for group in planned.micro_batches[0].groups), reverse=True)
    assert degrees == [32, 8, 8, 8, 8]
    halves = [Assignment((32, 32), ((0,), (1, 2, 3, 4))), Assignment((32, 32), ((0, 1), (2, 3, 4)))]
    two_groups = min(micro_batch_ms(assignment, drawn.lengths, large) for assignment in halves)
    assert planned.predicted_ms < 0.9 * two_groups
    all_to_all = max(group.predicted_all_to_all_ms for group in planned.micro_batches[0].groups[1:])
    assert all_to_all < 200 < large.group_time_ms([48_000] * 4, 32).all_to_all_ms * 0.2 + 200


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=25), smallest=st.sampled_from([1, 2])
)
def test_plans_keep_every_rule_and_are_never_slower_than_static(
    lengths: list[int],
    smallest: int,
    small: CostModel,
) -> None:
    drawn = drawn_batch(lengths)
    planned = plan_flexsp_batch(
        0, drawn, checked("planner", "flexsp", smallest_degree=smallest), 4, small
    )
    _check(planned, drawn, 4, small)
    assert all(
        group.degree >= smallest
        for micro_batch in planned.micro_batches
        for group in micro_batch.groups
    )
    for degree in (2, 4):
        if max(lengths) <= 100 * degree:
            static = plan_static_batch(0, drawn, degree, 4, small, 0.9)
            _check(static, drawn, 4, small)
            assert planned.predicted_ms <= static.predicted_ms * (1 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_no_plan_beats_the_optimum_over_all_divisions(
    lengths: list[int],
    small: CostModel,
) -> None:
    optimum = min(
        sum(_optimum_ms(part, 4, small) for part in parts) for parts in _partitions(lengths)
    )
    planned = plan_flexsp_batch(
        0,
        drawn_batch(lengths),
        checked("planner", "flexsp", relative_gap=0.0, node_limit=1000),
        4,
        small,
    )
    assert planned.predicted_ms >= optimum * (1 - 1e-9)
    assert planned.predicted_ms <= optimum * 1.5


def test_variants_keep_the_rules(small: CostModel) -> None:
    drawn = drawn_batch([int(value) for value in np.random.default_rng(5).integers(1, 380, 30)])
    for changes in (
        {"order": "given"},
        {"bucketing": "equal_width"},
        {"largest_programme": 0},
        {"micro_batch_trials": 1},
        {"buckets": 2},
    ):
        _check(
            plan_flexsp_batch(0, drawn, checked("planner", "flexsp", **changes), 4, small),
            drawn,
            4,
            small,
        )


def test_the_solver_can_better_the_search(large: CostModel) -> None:
    """The report counts how micro-batches ended; solving never makes a plan slower."""
    drawn = drawn_batch(
        [int(value) for value in np.random.default_rng(2).integers(2_000, 60_000, 24)]
    )
    without = plan_flexsp_batch(
        0, drawn, checked("planner", "flexsp", largest_programme=0), 64, large
    )
    solved = plan_flexsp_batch(0, drawn, checked("planner", "flexsp"), 64, large)
    assert solved.predicted_ms <= without.predicted_ms
    assert solved.solver["lower_bound_ms"] <= solved.predicted_ms
    assert set(solved.solver["ended_by"]) <= {"bound", "gap", "nodes", "too_large"}
    assert sum(solved.solver["ended_by"].values()) == len(solved.micro_batches)


def test_a_sequence_that_fits_no_group_is_named(small: CostModel) -> None:
    with pytest.raises(
        PlanError,
        match=(
            r"^sequence 101: 401 tokens; allowed: at most 400, the longest that a group of degree 4"
            r" holds$"
        ),
    ):
        plan_flexsp_batch(0, drawn_batch([5, 401, 7]), checked("planner", "flexsp"), 4, small)


def test_plans_repeat_exactly(large: CostModel) -> None:
    drawn = drawn_batch(
        [int(value) for value in np.random.default_rng(8).pareto(1.3, 60) * 3000 + 100]
    )
    first, second = (
        plan_flexsp_batch(0, drawn, checked("planner", "flexsp"), 64, large) for _ in range(2)
    )
    assert first == second
