"""DynaPipe: cuts of a sorted batch by brute force, replicas, recomputation."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from railx.planning.format.schedule import pipeline_ms
from railx.planning.pipeline.dyna_pipe import consecutive_cuts, plan_dyna_pipe_batch
from railx.planning.pipeline.fixed_chunks import spread
from tests.planning.golden_outputs import golden
from tests.planning.pipeline_rules import batch_of, cost_of, replayed_peak_bytes


def _time_ms(works: list[float], ends: Any, constant: float, weight: float, share: float) -> float:
    times = [sum(works[start:stop]) + constant for start, stop in pairwise([0, *ends])]
    return weight * max(times) + share * sum(times)


@pytest.mark.parametrize("case", golden("dyna_pipe"))
def test_cuts_are_as_good_as_those_of_the_public_code(case: dict[str, Any]) -> None:
    works = [float(work) for work in case["works_ms"]]
    weight, share = case["stages"] - 1, 1 / case["replicas"]
    ends = consecutive_cuts(
        np.array(works), np.array(case["lengths"]), case["constant_ms"], case["most_tokens"],
        weight, share,
    )  # fmt: skip
    assert sum(map(len, case["micro_batches"])) == ends[-1]
    time_ms = _time_ms(works, ends, case["constant_ms"], weight, share)
    assert time_ms == pytest.approx(case["objective_ms"], rel=1e-6)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=8),
    st.sampled_from([0.0, 3.0, 25.0]),
    st.integers(20, 120),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.sampled_from([0.5, 1.0]),
)
def test_cuts_are_the_best_of_all(
    pairs: list[tuple[int, int]], constant: float, most: int, weight: float, share: float
) -> None:
    works, tokens = [float(work) for work, _ in pairs], [count for _, count in pairs]
    ends = consecutive_cuts(np.array(works), np.array(tokens), constant, most, weight, share)
    count = len(works)
    best = min(
        _time_ms(works, (*inner, count), constant, weight, share)
        for size in range(count)
        for inner in combinations(range(1, count), size)
        if all(
            stop - start == 1 or sum(tokens[start:stop]) <= most
            for start, stop in pairwise([0, *inner, count])
        )
    )
    assert ends[-1] == count
    assert all(
        stop - start == 1 or sum(tokens[start:stop]) <= most for start, stop in pairwise([0, *ends])
    )
    assert _time_ms(works, ends, constant, weight, share) == pytest.approx(best)


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=2, max_size=7),
    stages=st.integers(1, 3),
    replicas=st.integers(1, 2),
    layers=st.sampled_from([0, 1, 3, 4]),
    constant=st.sampled_from([0.0, 4.0, 30.0]),
)
@example(lengths=[7, 14, 25, 31, 42, 51], stages=3, replicas=1, layers=4, constant=4.0)
@example(lengths=[20, 27, 34, 46, 48, 54, 60], stages=2, replicas=2, layers=1, constant=4.0)
@example(lengths=[1, 1], stages=1, replicas=1, layers=0, constant=4.0)
def test_micro_batches_are_the_best_of_all_cuts(
    lengths: list[int], stages: int, replicas: int, layers: int, constant: float
) -> None:
    """(d - 1) max t + Σ t / r, with t of a stage that recomputes most."""
    cost = cost_of(stages=stages, replicas=replicas, constant_ms=constant)
    made = plan_dyna_pipe_batch(0, batch_of(lengths), layers, cost)
    assert made is not None
    again = 1 + max(spread(layers, cost)) / 4

    def time_ms(groups: list[list[int]]) -> float:
        passes = [cost.chunk_time_ms([(0, length) for length in group]) for group in groups]
        times = [again * one.forward_ms + one.backward_ms for one in passes]
        return (stages - 1) * max(times) + sum(times) / replicas

    ascending, count = sorted(lengths), len(lengths)
    best = min(
        time_ms([ascending[start:stop] for start, stop in pairwise([0, *inner, count])])
        for size in range(replicas - 1, count)
        for inner in combinations(range(1, count), size)
    )
    chunks = [chunk for pipeline in made.pipelines for chunk in pipeline.chunks]
    found = time_ms([[part.length for part in chunk.slices] for chunk in chunks])
    if len(chunks) > replicas:
        assert found == pytest.approx(best)
    for pipeline in made.pipelines:
        backwards = replace(pipeline, chunks=pipeline.chunks[::-1])
        assert pipeline_ms(pipeline) <= pipeline_ms(backwards) * (1 + 1e-12)


@pytest.mark.parametrize(("gather_ms", "micro_batches"), [(0.0, 2), (4.0, 4)])
def test_recomputing_does_not_gather_again(gather_ms: float, micro_batches: int) -> None:
    """A sequence takes 27.8 ms, all layers recomputed, and a micro-batch 12 or 16 more.

    For the longest and all, four take 27.8 ms and five constants, two take twice 27.8
    ms and three constants.
    """
    cost = replace(cost_of(constant_ms=4.0), gather_ms=gather_ms)
    made = plan_dyna_pipe_batch(0, batch_of([43] * 4), 8, cost)
    assert made is not None
    assert len(made.pipelines[0].chunks) == micro_batches


def test_a_stage_leaves_room_for_as_many_as_it_holds() -> None:
    """Stage 1 of two holds one micro-batch at a time: 4,000 bytes are 100 tokens. Stage
    0 holds two.
    """
    for capacities in ((1e9, 4000.0), (8000.0, 1e9)):
        cost = replace(cost_of(constant_ms=100.0), capacities=capacities)
        made = plan_dyna_pipe_batch(0, batch_of([50] * 4), 0, cost)
        assert made is not None
        assert [chunk.tokens for chunk in made.pipelines[0].chunks] == [100, 100]


def test_the_better_of_both_orders_of_length_runs() -> None:
    random, taken = np.random.default_rng(2), set()
    for _ in range(20):
        lengths = random.integers(10, 900, size=6).tolist()
        made = plan_dyna_pipe_batch(0, batch_of(lengths), 0, cost_of(3, constant_ms=1.0))
        assert made is not None
        (pipeline,) = made.pipelines
        turned = replace(pipeline, chunks=pipeline.chunks[::-1])
        assert pipeline_ms(pipeline) <= pipeline_ms(turned)
        if pipeline_ms(pipeline) < pipeline_ms(turned):
            taken.add(pipeline.chunks[0].tokens > pipeline.chunks[-1].tokens)
    assert taken == {False, True}


def test_neighbours_in_length_share_a_micro_batch() -> None:
    made = plan_dyna_pipe_batch(0, batch_of([90, 10, 80, 20, 30, 70]), None, cost_of())
    assert made is not None
    lengths = [part.length for chunk in made.pipelines[0].chunks for part in chunk.slices]
    groups = [[part.length for part in chunk.slices] for chunk in made.pipelines[0].chunks]
    assert sorted(lengths) == [10, 20, 30, 70, 80, 90]
    spans = sorted((min(group), max(group)) for group in groups)
    assert all(first[1] < second[0] for first, second in pairwise(spans))


def test_recomputation_is_chosen_with_the_batch() -> None:
    """Room for one sequence of 100 tokens of four layers at 10 bytes, twice."""
    cost = cost_of(capacity_bytes=8000.0)
    roomy = plan_dyna_pipe_batch(0, batch_of([100] * 6), None, cost)
    assert roomy is not None
    assert roomy.solver["checkpointed_layers"] == 0
    tight = plan_dyna_pipe_batch(0, batch_of([150] * 6), None, cost)
    assert tight is not None
    # 150 tokens twice: (40 - 9 c) 300 <= 8000 from 1.5 layers of a stage, 3 in all.
    assert tight.solver["checkpointed_layers"] == 3
    for stage in range(2):
        assert replayed_peak_bytes(tight.pipelines[0], cost, stage) <= 8000.0
    assert plan_dyna_pipe_batch(0, batch_of([2001]), None, cost) is None


def test_replicas_share_micro_batches() -> None:
    cost, drawn = cost_of(replicas=2), batch_of([50] * 12)
    made = plan_dyna_pipe_batch(0, drawn, None, cost)
    assert made is not None
    times = [pipeline_ms(pipeline) for pipeline in made.pipelines]
    assert len(times) == 2
    assert times[0] == pytest.approx(times[1])
    least = plan_dyna_pipe_batch(0, batch_of([50, 60]), None, cost)
    assert least is not None
    assert [len(pipeline.chunks) for pipeline in least.pipelines] == [1, 1]
