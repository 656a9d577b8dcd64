"""Exchanges and kicks keep a plan valid; exchanges end where none gains."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.exchanges import (
    _add,
    _empty,
    _kick,
    _Scratch,
    folded,
    refilled,
    shortened,
)
from railx.planning.sequence.search import Problem, SearchResult
from railx.planning.sequence.small import optimum
from tests.planning.optima import costs


def _times(problem: Problem, plan: SearchResult) -> np.ndarray:
    """Time of each group [m, g]; infinite beyond its memory, 0 where it is empty."""
    rows, count = np.arange(len(problem.tokens)), len(plan.kind)
    loads, tokens, members = np.zeros((3, *plan.kind.shape))
    at = (plan.micro_batch, plan.group)
    np.add.at(loads, at, problem.share_ms[rows, plan.kind[at]])
    np.add.at(tokens, at, problem.tokens)
    np.add.at(members, at, 1)
    assert count > plan.micro_batch.max()
    loads = np.where(members > 0, loads + problem.latency[plan.kind], 0.0)
    return np.where(tokens > problem.cap * problem.degree[plan.kind], np.inf, loads)


def _total_ms(problem: Problem, plan: SearchResult) -> float:
    times = _times(problem, plan).max(axis=1)
    return float(times.sum() + (times > 0).sum() * problem.constant_ms)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Problem, SearchResult]:
    """A problem and a plan of it, every sequence in a group with room."""
    lengths = np.sort(draw(st.lists(st.integers(1, 200), min_size=2, max_size=9)))[::-1]
    cost = draw(costs())
    micro_batches, slots = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, degrees = len(lengths), cost.any_degrees

    def places(most: int, count: int) -> np.ndarray:
        return np.array(
            draw(st.lists(st.integers(0, most - 1), min_size=count, max_size=count)), dtype=np.int64
        )

    kind = places(len(degrees), micro_batches * slots).reshape(micro_batches, slots)
    at = places(micro_batches, n), places(slots, n)
    # The fullest group fills its memory at most.
    tokens = np.zeros(kind.shape)
    np.add.at(tokens, at, lengths)
    needed = math.ceil((tokens / np.array(degrees)[kind]).max())
    cost = replace(cost, tokens_per_device=max(cost.tokens_per_device, needed))
    problem = Problem.of(lengths, slots * degrees[-1], degrees, cost)
    start = SearchResult(0.0, *at, kind, np.zeros(micro_batches), 0)
    return problem, start._replace(time_ms=_total_ms(problem, start))


@settings(deadline=None, max_examples=150)
@given(plans())
def test_a_plan_stays_valid_and_gets_no_slower(drawn: tuple[Problem, SearchResult]) -> None:
    problem, start = drawn
    after = shortened(problem, start)
    assert after.time_ms <= start.time_ms
    assert _total_ms(problem, after) == pytest.approx(after.time_ms, rel=1e-9)
    if after is not start:
        # No micro-batch is empty, and limits are its times.
        assert set(after.micro_batch.tolist()) == set(range(len(after.limits)))
        times = _times(problem, after).max(axis=1)[: len(after.limits)]
        assert after.limits == pytest.approx(times, rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(plans(), st.integers(0, 100))
def test_kicks_keep_a_plan_valid_and_make_none_slower(
    drawn: tuple[Problem, SearchResult], seed: int
) -> None:
    problem, start = drawn
    after = shortened(problem, start, 40, seed)
    assert after.time_ms <= shortened(problem, start).time_ms * (1 + 1e-12)
    assert _total_ms(problem, after) == pytest.approx(after.time_ms, rel=1e-9)
    for row, times in zip(after.kind, _times(problem, after), strict=True):
        assert problem.degree[row[times > 0]].sum() <= problem.devices


@settings(deadline=None, max_examples=100)
@given(plans(), st.integers(0, 100))
def test_a_folded_plan_is_valid(drawn: tuple[Problem, SearchResult], seed: int) -> None:
    problem, start = drawn
    count = len(set(start.micro_batch.tolist()))
    after = folded(problem, start, seed)
    if after.time_ms < math.inf:
        # As many where a sequence of the smallest fits no other group.
        assert len(after.limits) <= count
        assert len(after.limits) < max(count, 2) or not _fits_anywhere(problem, start)
        assert _total_ms(problem, after) == pytest.approx(after.time_ms, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(plans(), st.integers(0, 100))
def test_a_plan_with_a_micro_batch_filled_anew_is_valid(
    drawn: tuple[Problem, SearchResult], seed: int
) -> None:
    problem, start = drawn
    after = refilled(problem, start, seed)
    if after.time_ms < math.inf:
        assert _total_ms(problem, after) == pytest.approx(after.time_ms, rel=1e-9)
        for row, times in zip(after.kind, _times(problem, after), strict=True):
            assert problem.degree[row[times > 0]].sum() <= problem.devices


def _fits_anywhere(problem: Problem, plan: SearchResult) -> bool:
    """Whether every group of the plan may hold every sequence."""
    kinds = plan.kind[plan.micro_batch, plan.group]
    return bool(np.isfinite(problem.share_ms[:, kinds]).all())


@settings(deadline=None, max_examples=150)
@given(plans())
def test_no_exchange_of_the_slowest_group_gains(drawn: tuple[Problem, SearchResult]) -> None:
    problem, start = drawn
    after = shortened(problem, start)
    times = _times(problem, after)
    slack = 1e-6 * after.time_ms
    for m, row in enumerate(times):
        slowest = int(row.argmax())
        for other, g in product(range(len(times)), range(times.shape[1])):
            if times[other, g] == 0 or (other, g) == (m, slowest):
                continue
            for moved, back in product(_parcels(after, m, slowest)[1:], _parcels(after, other, g)):
                members = (after.micro_batch == m) & (after.group == slowest)
                if len(moved) == members.sum() and not back:
                    continue  # what an empty group saves is not counted
                changed = after._replace(
                    micro_batch=after.micro_batch.copy(), group=after.group.copy()
                )
                changed.micro_batch[moved], changed.group[moved] = other, g
                changed.micro_batch[back], changed.group[back] = m, slowest
                tried = _times(problem, changed)
                if other == m:
                    later = max(tried[m, slowest], tried[m, g])
                    assert later >= row[slowest] - slack
                else:
                    both = tried[[m, other]].max(axis=1).sum()
                    assert both >= times[[m, other]].max(axis=1).sum() - slack


def _parcels(plan: SearchResult, m: int, g: int) -> list[list[int]]:
    """Nothing, each sequence and each two of a group."""
    members = np.flatnonzero((plan.micro_batch == m) & (plan.group == g)).tolist()
    return [[], *([one] for one in members), *(list(two) for two in combinations(members, 2))]


def test_pairs_leave_where_no_single_exchange_gains() -> None:
    # Loads 22 and 18: only {8, 6} for {9, 3} makes them even.
    problem = _alike([9, 8, 8, 6, 6, 3])
    group = np.array([1, 0, 0, 0, 1, 1])
    start = _alone(problem, group)
    after = shortened(problem, start)
    assert after.time_ms == pytest.approx(20.0)


def test_a_micro_batch_waits_for_its_second_group() -> None:
    # 28 ticks on two devices: no plan takes less than 14.
    start = SearchResult(
        23.0,
        np.array([1, 0, 0, 0, 1]),
        np.array([0, 1, 1, 0, 1]),
        np.zeros((2, 2), np.int64),
        np.zeros(2),
        0,
    )
    problem = _alike([10, 9, 4, 4, 1])
    assert _total_ms(problem, start) == start.time_ms
    assert shortened(problem, start).time_ms == pytest.approx(14.0)


def test_memory_is_kept() -> None:
    # Loads 6 and 4 become 5 and 5; where both groups are full, nothing fits elsewhere.
    problem = _alike([4, 3, 2, 1])._replace(cap=6.0)
    start = _alone(problem, np.array([0, 1, 0, 1]))
    assert shortened(problem, start).time_ms == pytest.approx(5.0)
    tight = problem._replace(cap=6.0, tokens=np.array([4.0, 3.0, 2.0, 3.0]))
    assert shortened(tight, start) is start


def test_large_groups_give_single_sequences_only() -> None:
    """Groups of hundreds of sequences are balanced within a tick of even."""
    random = np.random.default_rng(1)
    problem = _alike(sorted(random.integers(1, 100, 600).tolist(), reverse=True))
    group = np.zeros(600, np.int64)
    group[:50] = 1
    after = shortened(problem, _alone(problem, group))
    assert after.time_ms == pytest.approx(problem.tokens.sum() / 2, abs=1)


def _alike(tokens: list[int]) -> Problem:
    """Two devices, groups of one device each, a tick for a token, no constant."""
    array = np.array(tokens, dtype=np.float64)
    share = array[:, None].copy()
    return Problem(
        array, share, np.zeros(1), share, array, np.ones(1, np.int64), float(array.sum()), 2, 0.0
    )


def _alone(problem: Problem, group: np.ndarray) -> SearchResult:
    """A single micro-batch of two groups."""
    loads = np.bincount(group, problem.tokens)
    n = len(problem.tokens)
    return SearchResult(
        float(loads.max()), np.zeros(n, np.int64), group, np.zeros((1, 2), np.int64), loads[:1], 0
    )


@pytest.mark.parametrize("kind", [0, 2])
def test_kicks_divide_and_join_groups(kind: int) -> None:
    """From single devices or from one wide group to the best mix of degrees."""
    cost = CostModel(1e-3, 0.1, 1000.0, {1: 0.0, 2: 0.05, 4: 0.1}, 400, 1 / 3, 1.0)
    lengths = np.array([300, 150, 60, 50, 40, 30, 20, 10])
    problem = Problem.of(lengths, 4, (1, 2, 4), cost)
    group = np.arange(8) % 4 if kind == 0 else np.zeros(8, np.int64)
    start = SearchResult(
        math.inf, np.zeros(8, np.int64), group, np.full((1, 4), kind), np.zeros(1), 0
    )
    best_ms = optimum(problem).time_ms
    assert shortened(problem, start).time_ms > 1.01 * best_ms
    assert shortened(problem, start, 200, 1).time_ms == pytest.approx(best_ms)


@njit(error_model="numpy")
def _kicked(problem, micro_batch, group, kind, seed):
    """Micro-batch, group and degrees after one kick, without exchanges."""
    n, count, slots = len(problem.tokens), len(kind), kind.shape[1]
    plan = _empty(n, count, slots, problem.share_ms.copy())
    plan.kind[:] = kind
    for i in range(n - 1, -1, -1):
        _add(problem, plan, i, micro_batch[i], group[i])
    scratch = _Scratch(
        np.zeros((1, 5)),
        np.zeros((1, 5)),
        np.zeros(2, np.int64),
        np.ones(count, np.int64),
        np.zeros((count, count), np.int64),
    )
    _kick(problem, plan, scratch, np.array([np.uint64(1 + seed * 2654435761)]), 1.0)
    return plan.micro_batch, plan.group, plan.kind


@pytest.mark.parametrize(
    ("micro_batch", "group", "kind", "after"),
    [
        # A group of degree 4 is divided, the other one stays.
        ([0] * 8, [0] * 4 + [1] * 4, [[2] * 8], {(0, 1, 0, 3), (0, 1, 1, 2), (0, 2, 4, 5, 6, 7)}),
        # Two groups of degree 2 are joined.
        (
            [0] * 8,
            [0] * 4 + [1, 1, 2, 2],
            [[2, 1, 1, 0, 0, 0, 0, 0]],
            {(0, 2, 0, 1, 2, 3), (0, 2, 4, 5, 6, 7)},
        ),
        # Groups of two micro-batches swap all sequences.
        ([0] * 4 + [1] * 4, [0] * 8, [[2] * 8] * 2, {(1, 2, 0, 1, 2, 3), (0, 2, 4, 5, 6, 7)}),
    ],
)
def test_one_kick_divides_joins_or_swaps_groups(
    micro_batch: list[int], group: list[int], kind: list[list[int]], after: set[tuple[int, ...]]
) -> None:
    """Dividing a micro-batch anew ends otherwise: it spreads the long sequences."""
    cost = CostModel(1e-3, 0.1, 1000.0, {1: 0.0, 2: 0.05, 4: 0.1}, 4000, 1 / 3, 1.0)
    lengths = np.array([300, 290, 280, 270, 50, 40, 30, 20])
    problem, start = Problem.of(lengths, 8, (1, 2, 4), cost), map(np.array, (micro_batch, group))
    places = [*start, np.array(kind)]
    ends = []
    for seed in range(1000):
        m, g, kinds = _kicked(problem, *places, seed)
        members = {
            (i, j): np.flatnonzero((m == i) & (g == j)).tolist()
            for i, j in {*zip(m, g, strict=True)}
        }
        ends.append({(int(i), int(kinds[i, j]), *rows) for (i, j), rows in members.items()})
    assert after in ends


def test_kicks_swap_whole_groups() -> None:
    """Memory holds no other exchange: 20 and 6 ticks, 20 and 6 are 20, 20 and 6, 6."""
    tokens = [5, 5, 5, 5, 3, 3, 3, 3, 3, 3]
    share = np.array([[10.0 if length == 5 else 2.0] for length in tokens])
    problem = _alike(tokens)._replace(share_ms=share, alone=share, cap=10.0)
    start = SearchResult(
        40.0,
        np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 1]),
        np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        np.zeros((2, 2), np.int64),
        np.zeros(2),
        0,
    )
    assert shortened(problem, start) is start
    assert shortened(problem, start, 50, 1).time_ms == pytest.approx(26.0)


def test_halves_of_a_group_are_within_memory() -> None:
    """14 ticks in place of 18, but for 6 tokens that no half has room for."""
    cost = CostModel(0.0, 1.0, 0.0, {1: 0.0, 2: 0.4}, 10, 1 / 3, 1.0)
    problem = Problem.of(np.array([7, 7, 6]), 2, (1, 2), cost)
    nothing = np.zeros(3, np.int64)
    start = SearchResult(18.0, nothing, nothing, np.ones((1, 1), np.int64), np.zeros(1), 0)
    assert shortened(problem, start, 50, 1) is start
    roomier = problem._replace(cap=13.0)
    assert shortened(roomier, start, 50, 1).time_ms < 18


def test_joined_groups_are_within_memory() -> None:
    """10 and 9, 9, 9 tokens on one and three devices: together on three they would take
    37 ticks, but 30 tokens fit there. So the longest changes places with another.
    """
    tokens = np.array([10.0, 9.0, 9.0, 9.0])
    share = np.stack((10 * tokens, tokens), axis=1)
    degree = np.array([1, 3])
    problem = Problem(tokens, share, np.zeros(2), share, 3 * tokens, degree, 10.0, 4, 0.0)
    group = np.array([0, 1, 1, 1])
    start = SearchResult(100.0, np.zeros(4, np.int64), group, np.array([[0, 1]]), np.zeros(1), 0)
    assert shortened(problem, start, 50, 1).time_ms == pytest.approx(90.0)
    roomier = problem._replace(cap=13.0)
    assert shortened(roomier, start, 50, 1).time_ms == pytest.approx(37.0)


def test_a_folded_plan_fills_memory() -> None:
    """No two of the six sequences of a micro-batch fit the third group as they are."""
    problem = _alike([7, 6, 5, 4, 3, 2])._replace(cap=9.0, devices=3, constant_ms=1.0)
    start = SearchResult(
        math.inf,
        np.array([0, 0, 0, 1, 1, 1]),
        np.array([0, 1, 2, 0, 1, 2]),
        np.zeros((2, 3), np.int64),
        np.zeros(2),
        0,
    )
    assert folded(problem, start, 1).time_ms == pytest.approx(9.0 + 1.0)
    assert folded(problem._replace(cap=8.0), start, 1).time_ms == math.inf


def test_a_plan_beyond_memory_is_repaired_though_it_is_faster() -> None:
    """13 ticks in memory; 12 beyond it, by a token."""
    problem = _alike([7, 6, 6, 5])
    share = np.array([[6.0], [6.0], [7.0], [5.0]])
    problem = problem._replace(share_ms=share, alone=share, cap=12.0)
    start = SearchResult(
        math.inf, np.zeros(4, np.int64), np.array([0, 0, 1, 1]), np.zeros((1, 2), np.int64),
        np.zeros(1), 0,
    )  # fmt: skip
    assert shortened(problem, start).time_ms == pytest.approx(13.0)
    assert shortened(problem, start, 50, 1).time_ms == pytest.approx(13.0)


def test_groups_that_are_not_the_slowest_are_repaired() -> None:
    """The slowest is full of one sequence, and no exchange with it helps the second."""
    problem = _alike([12, 7, 6, 6, 5])
    share = np.array([[100.0], [1.0], [1.0], [1.0], [1.0]])
    problem = problem._replace(share_ms=share, alone=share, cap=12.0, devices=3)
    group, nothing = np.array([0, 1, 1, 2, 2]), np.zeros(5, np.int64)
    start = SearchResult(math.inf, nothing, group, np.zeros((1, 3), np.int64), np.zeros(1), 0)
    assert shortened(problem, start).time_ms == pytest.approx(100.0)


def test_kicks_divide_a_micro_batch_anew() -> None:
    """Two of four full groups fit no group of one device, all four fit one of three."""
    tokens = np.array([9.0, 9.0, 9.0, 3.0])
    share = np.stack((10 * tokens, tokens), axis=1)
    degree = np.array([1, 3])
    problem = Problem(tokens, share, np.zeros(2), share, 3 * tokens, degree, 10.0, 4, 0.0)
    start = SearchResult(
        90.0, np.zeros(4, np.int64), np.arange(4), np.zeros((1, 4), np.int64), np.zeros(1), 0
    )
    assert shortened(problem, start) is start
    assert shortened(problem, start, 50, 1).time_ms == pytest.approx(30.0)
