"""Layers that are recomputed: the paper's programme, and the fast method beside it."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.planning.format.parts import Pipeline
from railx.planning.format.schedule import pipeline_ms
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem
from railx.planning.pipeline.checkpoints import (
    exact,
    fast,
    fits,
    lp_bound,
    peak_bytes,
    quick,
    rows,
)
from tests.planning.pipelines import held_bytes, pipeline_of, problem_of

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda counts: sorted(counts, reverse=True)
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[CheckpointProblem, Pipeline]:
    """Small programmes with the pipeline that they are about."""
    counts, stages = draw(COUNTS), draw(st.integers(1, 4))
    size = sum(counts)
    tokens = draw(st.lists(st.integers(20, 100), min_size=size, max_size=size))
    share = draw(st.floats(-0.05, 1.05))
    layers = draw(st.integers(1, 6))
    return problem_of(counts, stages, tokens, share, layers), pipeline_of(counts, stages, tokens)


def _holds(problem: CheckpointProblem, pipeline: Pipeline, layers: np.ndarray) -> bool:
    """Whether the pipeline's own order stays within memory on every stage."""
    left = problem.stored - problem.saved * layers
    return all(
        max(held_bytes(pipeline, stage, left[stage].tolist())) <= capacity * (1 + 1e-8)
        for stage, capacity in enumerate(problem.capacity.tolist())
    )


def test_quick_counts_are_nearly_always_the_least() -> None:
    """Forty programmes against the solver: 39 are the least, 34 without trades."""
    least, sums = 0, np.zeros(2)
    for seed in range(40):
        rng = random.Random(seed)
        counts = sorted((rng.randint(1, 4) for _ in range(rng.randint(3, 5))), reverse=True)
        tokens = [rng.randint(20, 100) for _ in range(sum(counts))]
        stages, share, layers = rng.randint(2, 4), rng.uniform(0.1, 0.9), rng.randint(3, 6)
        problem = problem_of(counts, stages, tokens, share, layers)
        solved, soon = exact(problem), quick(problem)
        assert solved is not None
        assert soon is not None
        least += int(soon.sum() == solved.counts.sum())
        sums += soon.sum(), solved.counts.sum()
    assert least >= 38
    assert sums[0] <= 1.005 * sums[1]


@settings(max_examples=60, deadline=None)
@given(problems())
def test_small_cases_are_solved_exactly_and_hold(
    case: tuple[CheckpointProblem, Pipeline],
) -> None:
    problem, pipeline = case
    solved, found, soon = exact(problem), fast(problem), quick(problem)
    best = None if solved is None else solved.counts
    everything = np.full_like(problem.stored, problem.layers)
    if best is None:
        assert found is None
        assert soon is None
        assert not _holds(problem, pipeline, everything)
        return
    assert found is not None
    assert soon is not None
    assert best.sum() == found.sum() <= soon.sum()
    assert math.ceil(lp_bound(problem) - 1e-6) <= best.sum()
    for counts in (best, found, soon):
        assert counts.min() >= 0
        assert counts.max() <= problem.layers
        layers = problem.counts(counts)
        assert _holds(problem, pipeline, layers)
        assert fits(problem, layers)
        # No count is larger than a row needs.
        for diagonal in np.flatnonzero(counts).tolist():
            less = counts.copy()
            less[diagonal] -= 1
            assert not fits(problem, problem.counts(less))


@pytest.mark.parametrize(
    ("counts", "stages", "tokens", "share", "layers", "least"),
    [
        ([5, 5, 2, 1], 3, [30, 90, 30, 40, 40, 50, 50, 40, 60, 80, 80, 90, 30], 0.3, 6, 35),
        ([5, 5, 2, 2], 3, [90, 60, 90, 60, 30, 50, 50, 60, 40, 60, 70, 60, 40, 60], 0.14, 7, 58),
        (
            [5, 5, 4, 2, 1, 1],
            2,
            [70, 30, 80, 80, 70, 50, 80, 50, 90, 30, 90, 30, 90, 80, 70, 50, 60, 80],
            0.64,
            2,
            8,
        ),
    ],
)
def test_rounding_alone_does_not_find_the_best(
    counts: list[int], stages: int, tokens: list[int], share: float, layers: int, least: int
) -> None:
    """Found by a search for cases where the solver is needed."""
    problem = problem_of(counts, stages, tokens, share, layers)
    solved, found = exact(problem), fast(problem)
    assert solved is not None
    assert found is not None
    assert solved.counts.sum() == found.sum() == solved.bound == least
    assert solved.gap == 0.0


def test_a_limited_search_says_what_it_leaves_open() -> None:
    """The first node finds the best counts of these 17 chunks and does not prove it."""
    tokens = [29, 93, 90, 48, 92, 30, 54, 66, 57, 92, 88, 34, 78, 55, 33, 25, 57]
    problem = problem_of([5, 3, 2, *[1] * 7], 4, tokens, 0.21, 7)
    limited, again, solved = (
        exact(problem, most_nodes=1), exact(problem, most_nodes=1), exact(problem)
    )  # fmt: skip
    assert limited is not None
    assert again is not None
    assert solved is not None
    assert limited.counts.tolist() == again.counts.tolist()
    assert limited.bound < solved.bound == solved.counts.sum() <= limited.counts.sum()
    assert limited.gap == limited.counts.sum() / limited.bound - 1 > solved.gap == 0
    found = quick(problem)
    assert found is not None
    assert limited.counts.sum() <= found.sum()
    assert fits(problem, problem.counts(limited.counts))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_no_uniform_count_is_below_the_programme(
    case: tuple[CheckpointProblem, Pipeline],
) -> None:
    problem, pipeline = case
    found = fast(problem)
    for layers in range(problem.layers + 1):
        if _holds(problem, pipeline, np.full_like(problem.stored, layers)):
            assert found is not None
            assert found.sum() <= layers * problem.diagonals
            break
    else:
        assert found is None


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize(("counts", "stages"), [([2, 1], 2), ([3, 1], 2), ([2, 2], 2), ([2, 1], 3)])
def test_every_choice_of_counts_tried(counts: list[int], stages: int, share: float) -> None:
    """Brute force over all diagonals, with the order's own memory."""
    tokens = [70, 45, 90, 35][: sum(counts)]
    problem, pipeline = (
        problem_of(counts, stages, tokens, share),
        pipeline_of(counts, stages, tokens),
    )
    least = min(
        sum(choice)
        for choice in itertools.product(range(problem.layers + 1), repeat=problem.diagonals)
        if _holds(problem, pipeline, problem.counts(np.array(choice)))
    )
    solved, found = exact(problem), fast(problem)
    assert solved is not None
    assert found is not None
    assert solved.counts.sum() == found.sum() == solved.bound == least
    assert solved.gap == 0.0


@settings(max_examples=40, deadline=None)
@given(problems())
def test_peaks_are_those_of_the_order(case: tuple[CheckpointProblem, Pipeline]) -> None:
    problem, pipeline = case
    layers = np.arange(problem.stored.size).reshape(problem.stored.shape) % (problem.layers + 1)
    left = problem.stored - problem.saved * layers
    # Without recomputing the last forward of the warm-up is the most; with it, steps of
    # the end can hold no more than they held before.
    expected = [max(held_bytes(pipeline, s, left[s].tolist())) for s in range(problem.stages)]
    assert peak_bytes(problem, layers) == pytest.approx(expected)


def test_diagonals_reach_every_stage_at_one_step() -> None:
    """Place b of the backward order on the stage before the last is diagonal b + 1."""
    problem = problem_of([2, 1], 3, [50, 50, 50], 0.5)
    layers = problem.counts(np.arange(problem.diagonals))
    assert problem.backward.tolist() == [1, 0, 2]
    assert layers.tolist() == [[3, 2, 4], [2, 1, 3], [1, 0, 2]]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_recomputing_takes_the_sum_of_the_diagonals(stages: int) -> None:
    """Eqs. 15-17: equal chunks, counts on the diagonals, and the makespan grows by
    their sum; the same amounts on one stage alone cost no less than theirs.
    """
    counts = [3, 2, *[1] * 6]
    pipeline = pipeline_of(counts, stages, [50] * sum(counts))
    problem = problem_of(counts, stages, [50] * sum(counts), 0.5)
    diagonals = np.random.default_rng(stages).integers(0, 3, problem.diagonals)
    layers = problem.counts(diagonals)
    chunks = tuple(
        replace(
            chunk,
            checkpoint_layers=tuple(layers[:, index].tolist()),
            predicted_layer_forward_ms=0.25,
        )
        for index, chunk in enumerate(pipeline.chunks)
    )
    longer = pipeline_ms(replace(pipeline, chunks=chunks)) - pipeline_ms(pipeline)
    assert longer == pytest.approx(0.25 * diagonals.sum())


def test_enough_memory_recomputes_nothing() -> None:
    problem = problem_of([3, 1, 1], 2, [60] * 5, 1.0)
    assert len(rows(problem)[1]) == 0
    assert lp_bound(problem) == 0
    solved = exact(problem)
    assert solved is not None
    assert solved.gap == solved.bound == 0
    for found in (solved.counts, fast(problem), quick(problem)):
        assert found is not None
        assert not found.any()


def test_too_little_memory_has_no_counts() -> None:
    problem = problem_of([3, 1, 1], 2, [60] * 5, -0.01)
    assert exact(problem) is None
    assert fast(problem) is quick(problem) is None
    assert lp_bound(problem) == math.inf


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_large_cases_are_near_the_bound(share: float) -> None:
    """Some sixty chunks: within 2 % of the relaxation, or two layers where few are
    recomputed (the programme's own optimum is not nearer).
    """
    random = np.random.default_rng(3)
    counts = sorted(random.integers(1, 6, 20).tolist(), reverse=True)
    tokens = random.integers(60, 100, sum(counts)).tolist()
    problem = problem_of(counts, 4, tokens, share, layers=10)
    found, bound = fast(problem), lp_bound(problem)
    assert found is not None
    assert fits(problem, problem.counts(found))
    assert found.sum() <= 1.02 * bound + 2
