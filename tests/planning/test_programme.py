"""FlexSP's integer programme: exact optima of small cases, pruning, first solutions,
and prices against a general solver.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import lil_array

from railx.performance.sequence_cost import CostModel
from railx.planning.groups import micro_batch_ms
from railx.planning.sequence.blaster import bucket_lengths
from railx.planning.sequence.bound import Numbers, class_prices
from railx.planning.sequence.programme import (
    Programme,
    build_programme,
    hand_out,
    homogeneous_fills,
    micro_batch_bound_ms,
)
from railx.planning.sequence.solver import SolverLimits, solve

EXACT = SolverLimits(work=None, time_s=None)


def _optimum_ms(programme: Programme) -> float:
    """The least makespan by trying every assignment of the rounded-up sequences.

    Written from the rows of the programme, without its own check.
    """
    bounds = np.repeat(programme.bounds, programme.sizes)
    times = np.repeat(programme.times_ms, programme.sizes, axis=0)
    least = float("inf")
    for owner in itertools.product(range(len(programme.degrees)), repeat=len(bounds)):
        used = sorted(set(owner))
        taken = sum(int(programme.degrees[group]) for group in used)
        if taken > programme.devices or (programme.use == "all" and taken < programme.devices):
            continue
        tokens, busy = np.zeros(len(programme.degrees)), np.zeros(len(programme.degrees))
        for sequence, group in enumerate(owner):
            tokens[group] += bounds[sequence]
            busy[group] += times[sequence, group]
        if np.all(tokens <= programme.caps):
            least = min(least, float(busy.max()) + programme.constant_ms)
    return least


def _programme(lengths: list[int], cost: CostModel, use: Any, count: int = 9) -> Programme:
    values = np.array(lengths)
    buckets = bucket_lengths(values, count, 10**9, "least_error")
    return build_programme(values, buckets, 4, (1, 2, 4), cost, use)


def _check(programme: Programme) -> None:
    solved, optimum = solve(programme, EXACT), _optimum_ms(programme)
    if optimum == float("inf"):
        assert (solved.counts, solved.ended_by) == (None, "infeasible")
        return
    assert solved.ended_by == "optimal"
    assert solved.counts is not None
    assert programme.holds(solved.counts)
    assert programme.makespan_ms(solved.counts) == pytest.approx(optimum, abs=1e-2)
    assert solved.bound_ms == pytest.approx(optimum, abs=1e-2)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 220), min_size=1, max_size=4),
    use=st.sampled_from(["all", "at_most"]),
    count=st.integers(1, 4),
    dear=st.booleans(),
)
def test_the_solver_finds_the_optimum(
    lengths: list[int], use: Any, count: int, dear: bool, small: CostModel
) -> None:
    cost = replace(small, all_to_all_ms={1: 0.0, 2: 0.2, 4: 0.3}) if dear else small
    _check(_programme(lengths, cost, use, count))


@pytest.mark.parametrize("use", ["all", "at_most"])
@pytest.mark.parametrize(
    "lengths", [[60, 60, 60, 60], [99, 51, 50, 3], [390], [90, 90, 90, 90], [150, 40, 30, 20]]
)
def test_known_cases_have_their_optimum(lengths: list[int], use: Any, small: CostModel) -> None:
    _check(_programme(lengths, small, use))


def test_all_devices_are_used_only_where_asked_for(small: CostModel) -> None:
    """One short sequence: alone on one device, or on all four where all must work."""
    dear = replace(small, all_to_all_ms={1: 0.0, 2: 1.0, 4: 1.0})
    for use, degree in (("at_most", 1), ("all", 4)):
        solved = solve(_programme([10], dear, use), EXACT)
        assert solved.counts is not None
        (group,) = np.flatnonzero(solved.counts.any(axis=0))
        assert _programme([10], dear, use).degrees[group] == degree


def test_groups_share_the_devices(small: CostModel) -> None:
    """Four sequences that would each like all devices: the rows of m hold them back."""
    programme = _programme([80, 80, 80, 80], small, "at_most")
    solved = solve(programme, EXACT)
    assert solved.counts is not None
    assert programme.degrees[solved.counts.any(axis=0)].sum() <= 4


def test_virtual_groups_follow_the_published_pruning(small: CostModel) -> None:
    def degrees(*lengths: int) -> list[int]:
        return _programme(list(lengths), small, "all").degrees.tolist()

    assert degrees(50, 50) == [1, 1, 1, 1, 2, 2, 4]
    assert degrees(150, 50) == [1, 1, 2, 2, 4]
    assert degrees(150, 150, 50) == [2, 2, 4]
    # Three that need 2 leave less than nothing below 2.
    assert degrees(150, 150, 150, 50) == [2, 2, 4]
    assert degrees(350, 50) == [4]


def test_no_count_where_a_group_is_too_small(small: CostModel) -> None:
    programme = _programme([150, 50], small, "all")
    assert programme.allowed.tolist() == [[False, False, True, True, True], [True] * 5]


def test_the_least_degree_is_that_of_the_bucket(small: CostModel) -> None:
    """90 is rounded up to 150, which one device does not hold."""
    programme = _programme([150, 90], small, "all", count=1)
    assert programme.bounds.tolist() == [150]
    assert programme.degrees.tolist() == [2, 2, 4]


def test_first_solutions_are_homogeneous_and_keep_every_row(small: CostModel) -> None:
    programme = _programme([60, 50, 40, 30, 20, 10], small, "all")
    fills = homogeneous_fills(programme)
    assert [sorted(set(programme.degrees[fill.any(axis=0)].tolist())) for fill in fills] == [
        [1],
        [2],
        [4],
    ]
    assert all(programme.holds(fill) for fill in fills)
    # Longest first, each to the group with the fewest tokens: 60+30+20, 50+40+10.
    halves = fills[1][:, programme.degrees == 2]
    assert sorted((programme.bounds @ halves).tolist()) == [100, 110]
    assert len(homogeneous_fills(_programme([60], small, "all"))) == 1


def test_an_answer_is_never_worse_than_the_first_solution(large: CostModel) -> None:
    lengths = np.random.default_rng(3).integers(200, 6_000, 60)
    buckets = bucket_lengths(lengths, 16, 10**9, "least_error")
    programme = build_programme(lengths, buckets, 64, large.degrees, large, "at_most")
    solved = solve(programme, SolverLimits(work=1, time_s=None))
    best = min(programme.makespan_ms(fill) for fill in homogeneous_fills(programme))
    assert solved.ended_by == "work_limit"
    assert solved.counts is not None
    assert programme.makespan_ms(solved.counts) <= best
    assert solved.bound_ms <= best


def test_work_limits_repeat_exactly_and_time_limits_say_so(large: CostModel) -> None:
    lengths = np.random.default_rng(4).integers(200, 5_000, 80)
    buckets = bucket_lengths(lengths, 16, 10**9, "least_error")
    programme = build_programme(lengths, buckets, 64, large.degrees, large, "at_most")
    first, second = (solve(programme, SolverLimits(1000, None)) for _ in range(2))
    assert first.ended_by == second.ended_by == "work_limit"
    assert first.counts is not None
    assert np.array_equal(first.counts, second.counts)
    assert (first.bound_ms, first.work) == (second.bound_ms, second.work)
    assert solve(programme, SolverLimits(None, 0.1)).ended_by == "time_limit"


def test_sequences_are_drawn_from_their_buckets(small: CostModel) -> None:
    lengths = np.array([60, 50, 40, 30, 20, 10])
    buckets = bucket_lengths(lengths, 2, 10**9, "least_error")
    programme = build_programme(lengths, buckets, 4, (1, 2, 4), small, "all")
    counts = homogeneous_fills(programme)[0]
    drawn = [
        hand_out(counts, buckets, programme, np.random.default_rng(seed)) for seed in (1, 1, 2, 3)
    ]
    assert drawn[0] == drawn[1]
    assert len({assignment.groups for assignment in drawn}) > 1
    for assignment in drawn:
        assert sorted(itertools.chain(*assignment.groups)) == list(range(6))
        assert micro_batch_ms(assignment, lengths, small) <= programme.makespan_ms(counts)
        for bucket, row in zip(buckets, counts, strict=True):
            held = [len(set(group) & set(bucket.tolist())) for group in assignment.groups]
            assert sorted(held) == sorted(row[counts.any(axis=0)].tolist())


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 180), min_size=1, max_size=4))
def test_no_programme_beats_the_bound(lengths: list[int], small: CostModel) -> None:
    programme = _programme(lengths, small, "at_most")
    bound = micro_batch_bound_ms(np.array(lengths), 4, (1, 2, 4), small)
    assert bound <= _optimum_ms(programme) * (1 + 1e-9)
    assert bound >= small.constant_ms + small.sequence_ms(lengths).sum() / 4 * (1 - 1e-9)


@pytest.mark.parametrize("use", ["all", "at_most"])
def test_counts_that_take_too_much_are_none(use: Any, small: CostModel) -> None:
    """Rows that a solver forgives a little of are looked at once more."""
    programme = _programme([60, 50, 40], small, use)
    whole = int(np.flatnonzero(programme.degrees == 4)[0])
    counts = np.zeros_like(programme.times_ms, dtype=np.int64)
    counts[:, whole] = 1
    assert programme.holds(counts)
    beside = counts.copy()
    beside[0, whole], beside[0, 0] = 0, 1
    assert programme.degrees[0] == 1  # five ranks in all
    assert not programme.holds(beside)
    assert not programme.holds(counts * 2)
    assert not programme.holds(counts - beside)
    alone = np.eye(len(programme.sizes), len(programme.degrees), dtype=np.int64)
    assert programme.degrees[:3].tolist() == [1, 1, 1]
    assert programme.holds(alone) == (use == "at_most")
    full = replace(programme, caps=programme.caps - 350)
    assert full.caps[whole] < 150
    assert not full.holds(counts)


def test_the_bound_of_a_micro_batch_waits_for_its_longest_sequence(small: CostModel) -> None:
    lengths = np.array([180, 1, 1])
    soonest = min(small.group_time_ms([180], degree).total_ms for degree in (2, 4))
    assert micro_batch_bound_ms(lengths, 64, (1, 2, 4), small) == pytest.approx(soonest)


Floats = npt.NDArray[np.float64]


def _least(shares: Floats, cost: Floats, numbers: Numbers) -> float:
    """The same programme, written out."""
    durations, classes, kinds, parts = shares.shape
    members = list(zip(*np.nonzero(np.isfinite(shares[..., 0])), strict=True))
    devices = durations
    first = devices + durations * kinds
    columns = first + len(members)
    equal, below = (
        lil_array((classes, columns)),
        lil_array((durations * (classes + kinds * parts + 1) + len(numbers.limit), columns)),
    )
    for index, (k, c, d) in enumerate(members):
        column = first + index
        equal[c, column] = 1
        below[k * classes + c, column] = 1
        for j in range(parts):
            row = durations * classes + (k * kinds + d) * parts + j
            below[row, column] = shares[k, c, d, j]
    for k in range(durations):
        for c in range(classes):
            below[k * classes + c, k] = -1
        last = durations * (classes + kinds * parts) + k
        below[last, k] = -1
        for d in range(kinds):
            below[last, devices + k * kinds + d] = 1
            for j in range(parts):
                row = durations * classes + (k * kinds + d) * parts + j
                below[row, devices + k * kinds + d] = -1
    limits = np.zeros(below.shape[0])
    for row, (counted, limit, sign) in enumerate(zip(*numbers, strict=True)):
        last = below.shape[0] - len(numbers.limit) + row
        limits[last] = sign * limit
        for k in np.flatnonzero(counted):
            below[last, k] = sign
    objective = np.concatenate((cost, np.zeros(columns - durations)))
    result = linprog(objective, below.tocsr(), limits, equal.tocsr(), np.ones(classes))
    assert result.success
    assert result.fun is not None
    return float(result.fun)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("at_least", [True, False])
@pytest.mark.parametrize("is_cut", [False, True])
def test_least_is_a_general_solvers(seed: int, at_least: bool, is_cut: bool) -> None:
    random = np.random.default_rng(seed)
    classes, durations, kinds = (int(random.integers(2, most)) for most in (12, 8, 4))
    cost = np.sort(random.uniform(0.5, 2.0, durations))
    # Longer durations fit more classes, in a smaller share of their device time.
    shares = random.uniform(0.05, 0.6, (1, classes, kinds, 4)) / cost[:, None, None, None]
    longer = random.uniform(0, 2.5, (1, classes, kinds)) > cost[:, None, None]
    longer[-1] = False
    shares[longer] = np.inf
    number = float(np.ceil(shares[-1, ..., 1].min(axis=1).sum()) + (0 if at_least else 4))
    numbers = Numbers(
        np.ones((1, durations)), np.array([number]), np.array([-1.0 if at_least else 1.0])
    )
    if is_cut:
        # At least two micro-batches of the longest duration, and not too many of
        # the second or longer.
        longer = np.arange(durations) >= np.array([0, durations - 1, 1])[:, None]
        limits = np.array([number, 2.0, 2.0 + number])
        numbers = Numbers(longer.astype(np.float64), limits, np.append(numbers.sign, (-1.0, 1.0)))
    prices, counts, duals, losses, least = class_prices(shares, cost, numbers, 60, 3e-4)
    assert least == pytest.approx(_least(shares, cost, numbers), rel=1e-3)
    assert (counts >= 0).all()
    assert (numbers.sign * (numbers.counted @ counts - numbers.limit) <= 2e-3 * number).all()
    assert (duals <= 1e-9).all()
    assert losses @ counts <= 1e-3 * least
    # Where the numbers of micro-batches cost most, prices are 0 within the gap.
    assert (prices >= (-1e-5 if is_cut else -1e-6)).all()
