"""Planners of fixed chunks: cuts and packs by hand, memory replayed, best choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.predictions import fits
from railx.planning.format.schedule import pipeline_ms, shape_of
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.chunks import chunk_of, mesh, pipeline_of, recomputing
from railx.planning.pipeline.fixed_chunks import (
    ChunkRule,
    balanced,
    chunk_flow_rule,
    dapple_rule,
    seq1f1b_rule,
    sizes_of,
    slim_pipe_rule,
    spread,
)
from railx.planning.planners import planner_of
from railx.settings import SettingsError
from railx.workload.batches import SampledBatch
from tests.builders import checked, drawn_batch
from tests.planning.pipeline_rules import check_pipelines, cost_of, replayed_peak_bytes, task_of

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=25)
SMALL = {"stages": 2, "sequence_parallel_degree": 1}


#: Slices by run and chunk.
Runs = list[list[tuple[Slice, ...]]]


def _runs(rule: ChunkRule, lengths: list[int]) -> Runs:
    """The chunks of sequences 0, 1, ... by a rule."""
    drawn = SampledBatch(np.arange(len(lengths)), np.array(lengths, dtype=np.int64))
    chunked = rule.chunked(drawn, cost_of())
    edges = [*np.unique(chunked.run_start).tolist(), chunked.chunks]
    return [[chunked.slices(chunk) for chunk in range(*pair)] for pair in pairwise(edges)]


def _fixed(tokens: int) -> ChunkRule:
    return seq1f1b_rule(tokens, "fixed", tokens, 1, cost_of())


def _bounds(runs: Runs) -> list[list[list[tuple[int, int, int]]]]:
    return [[[(p.sequence, p.start, p.stop) for p in chunk] for chunk in run] for run in runs]


def _pipeline(runs: Runs, cost: PipelineCost, layers: tuple[int, ...] = ()) -> Pipeline:
    chunks = [chunk_of(slices, cost) for run in runs for slices in run]
    return pipeline_of([recomputing(chunk, layers) for chunk in chunks], 0, cost.shape)


def _peaks(pipeline: Pipeline, cost: PipelineCost) -> list[float]:
    layers = [chunk.checkpoint_layers or (0,) * pipeline.stages for chunk in pipeline.chunks]
    problem = checkpoints.problem_of_pipeline(pipeline, cost)
    peaks: list[float] = checkpoints.peak_bytes(problem, np.array(layers).T).tolist()
    return peaks


def test_fixed_slices_by_hand() -> None:
    """Tails of 20 and 40 tokens take what fits beside them, fullest first."""
    lengths = [120, 90, 50, 30, 10]
    assert _bounds(_runs(_fixed(50), lengths)) == [
        [[(0, 0, 50)], [(0, 50, 100)], [(0, 100, 120), (3, 0, 30)]],
        [[(1, 0, 50)], [(1, 50, 90), (4, 0, 10)]],
        [[(2, 0, 50)]],
    ]
    alone = _bounds(_runs(chunk_flow_rule(50, 1), lengths))
    assert [run[-1] for run in alone[:2]] == [[(0, 100, 120)], [(1, 50, 90)]]
    assert alone[2:] == [[[(2, 0, 50)]], [[(3, 0, 30), (4, 0, 10)]]]


def test_as_many_slices_of_each_by_hand() -> None:
    even = seq1f1b_rule(25, "even", 100, 1, cost_of())
    assert _bounds(_runs(even, [100, 61, 20, 15])) == [
        [[(0, 0, 25)], [(0, 25, 50)], [(0, 50, 75)], [(0, 75, 100)]],
        [[(1, 0, 15)], [(1, 15, 30)], [(1, 30, 45)], [(1, 45, 61)]],
        [[(2, 0, 20)]],
        [[(3, 0, 15)]],
    ]
    few = seq1f1b_rule(1, "even", 5, 1, cost_of())
    assert _bounds(_runs(few, [3])) == [[[(0, 0, 1)], [(0, 1, 2)], [(0, 2, 3)]]]


def test_sequences_of_most_slices_come_first() -> None:
    """Alignment leaves the longest two slices of equal work, the other three."""
    rule = seq1f1b_rule(40, "equal_work", 120, 40, cost_of())
    counts = [len(run) for run in _runs(rule, [118, 97, 95, 60, 50, 41, 3])]
    assert len(set(counts)) > 1
    assert counts == sorted(counts, reverse=True)


@given(LENGTHS, st.integers(1, 320))
def test_every_rule_keeps_every_token_once(lengths: list[int], tokens: int) -> None:
    for rule in (
        dapple_rule(tokens),
        _fixed(tokens),
        chunk_flow_rule(tokens, 1),
        slim_pipe_rule(tokens),
        seq1f1b_rule(tokens, "even", 4 * tokens, 1, cost_of()),
        seq1f1b_rule(tokens, "equal_work", 4 * tokens, 1, cost_of()),
    ):
        runs = _runs(rule, lengths)
        held = dict.fromkeys(range(len(lengths)), 0)
        for run in runs:
            assert len({p.sequence for chunk in run for p in chunk if not p.is_uncut}) <= 1
            for chunk in run:
                assert sum(part.start > 0 for part in chunk) <= 1
                assert len(chunk) == 1 or sum(part.tokens for part in chunk) <= tokens
                for part in chunk:
                    assert part.start == held[part.sequence]
                    held[part.sequence] = part.stop
        assert list(held.values()) == lengths
    uniform = _runs(slim_pipe_rule(tokens), lengths)
    for runs in (_runs(_fixed(tokens), lengths), uniform):
        assert max(sum(p.tokens for p in chunk) for run in runs for chunk in run) <= tokens
    for run in uniform:
        if len(run) > 1:
            widths = [chunk[0].tokens for chunk in run]
            assert max(widths) - min(widths) <= 1


@given(st.integers(50, 5000), st.integers(1, 9), st.sampled_from([0.0, 1e-3]))
def test_cuts_of_equal_work(length: int, count: int, quadratic: float) -> None:
    cost = replace(
        cost_of(quadratic_ms=quadratic), all_to_all=replace(cost_of().all_to_all, linear_ms=0.0)
    )
    edges = [0, *mesh(length, count, cost, 1), length]
    times = [
        cost.chunk_time_ms([(start, stop - start)]).total_ms for start, stop in pairwise(edges)
    ]
    each = cost.chunk_time_ms([(0, length)]).total_ms / count
    # An edge is half a token off at most, at the rate of the last token.
    off = cost.quadratic_ms * 2 * length + cost.linear_ms
    assert times == pytest.approx([each] * count, abs=1.01 * off)
    assert all(one % 16 == 0 for one in mesh(length, count, cost, 16))


def test_sizes_to_choose_from() -> None:
    assert sizes_of(77, 1000, 4, 32) == [77]
    assert sizes_of(None, 1000, 4, 32)[-4:] == [1024, 512, 352, 256]
    assert max(sizes_of(None, 1000, 4, 32)) == 8000


def test_layers_are_spread_over_stages() -> None:
    assert spread(5, cost_of(stages=3)) == (2, 2, 1)
    assert spread(99, cost_of(stages=3)) == (4, 4, 4)


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(20, 320), st.integers(1, 4), st.integers(0, 16))
def test_memory_is_that_of_the_passes_one_by_one(
    lengths: list[int], tokens: int, stages: int, layers: int
) -> None:
    cost = cost_of(stages=stages)
    pipeline = _pipeline(
        _runs(_fixed(tokens), lengths),
        cost,
        spread(layers, cost),
    )
    peaks = [replayed_peak_bytes(pipeline, cost, stage) for stage in range(stages)]
    assert _peaks(pipeline, cost) == pytest.approx(peaks)
    just, less = (replace(cost, capacities=(max(peaks) * by,) * stages) for by in (1.001, 0.999))
    assert fits(pipeline, just)
    assert not fits(pipeline, less)


def _made(name: str, task: Any, **changes: Any) -> tuple[Any, PipelineCost, Any]:
    planner: Any = checked("planner", name, **(SMALL | changes))
    cost = task.pipelines(planner.shape)
    return planner_of(planner).plan(planner, task), cost, planner


NAMES = ("dapple", "seq1f1b", "seq1f1b_even", "chunk_flow", "slim_pipe", "dyna_pipe")


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_plans_keep_every_rule(name: str, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, 2))
    stages = data.draw(st.integers(1, 2))
    batch = st.lists(st.integers(1, 300), min_size=2, max_size=15)
    task = task_of(*data.draw(st.lists(batch, min_size=1, max_size=2)), tokens=2000)
    made, cost, _ = _made(name, task, replicas=replicas, stages=stages)
    check_pipelines(made, task, cost)
    for pipeline in made[0].pipelines:
        counts = [
            sum(p.sequence == c.cut_sequence for o in pipeline.chunks for p in o.slices)
            for c in pipeline.chunks
        ]
        assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("name", ["dapple", "seq1f1b", "slim_pipe"])
def test_the_fewest_layers_and_the_best_size(name: str) -> None:
    """Memory for less than the batches want: no fewer layers do, no other size is
    faster.
    """
    task = task_of([600, 300, 200, 90, 80], [500, 400, 100, 50], tokens=330)
    made, cost, planner = _made(name, task)
    check_pipelines(made, task, cost)
    account = made[0].solver
    layers = account["checkpointed_layers"]
    assert made[1].solver == account
    total = sum(batch.predicted_ms for batch in made)
    key = "slice_tokens" if name == "slim_pipe" else "chunk_tokens"
    given = {key: account[key]}
    again, _, _ = _made(name, task, **given, checkpointed_layers=layers)
    assert [batch.pipelines for batch in again] == [batch.pipelines for batch in made]
    if layers:
        with pytest.raises(PlanError):
            _made(name, task, **given, checkpointed_layers=layers - 1)
    sizes = sizes_of(None, 600, planner.most_parts, getattr(planner, "alignment_tokens", 1))
    assert account[key] in sizes
    for size in sizes:
        try:
            other, _, _ = _made(name, task, **{key: size})
        except PlanError:
            continue
        assert total <= sum(batch.predicted_ms for batch in other) * (1 + 1e-12)


def test_dapple_cuts_nothing() -> None:
    made, _, _ = _made("dapple", task_of([600, 300, 200, 90, 80]))
    [pipeline] = made[0].pipelines
    assert shape_of(pipeline).longest == 1
    assert {chunk.kind for chunk in pipeline.chunks} == {"batched"}


def test_chunk_flow_keeps_the_last_chunks() -> None:
    """Of six chunks of 100 tokens the last two keep theirs; packs do always."""
    task = task_of([600, 180, 60, 30], tokens=4000)
    made, _, _ = _made("chunk_flow", task, chunk_tokens=100, kept_chunks=2)
    [pipeline] = made[0].pipelines
    recomputed = [chunk.checkpoint_layers for chunk in pipeline.chunks]
    assert recomputed == [(2, 2)] * 4 + [()] * 2 + [()] * 2 + [()]
    assert [chunk.tokens for chunk in pipeline.chunks] == [100] * 6 + [100, 80] + [90]
    more, cost, _ = _made("chunk_flow", task, chunk_tokens=100, kept_chunks=6)
    assert not any(chunk.checkpoint_layers for chunk in more[0].pipelines[0].chunks)
    assert more[0].predicted_ms < made[0].predicted_ms
    peaks = [_peaks(one[0].pipelines[0], cost)[0] for one in (made, more)]
    assert peaks[0] < peaks[1]


def test_chunk_flow_recomputes_no_more_than_memory_asks_for() -> None:
    roomy, _, _ = _made("chunk_flow", task_of([600, 180, 60, 30], tokens=4000), chunk_tokens=100)
    assert roomy[0].solver["kept_chunks"] == 6
    tight, _, _ = _made("chunk_flow", task_of([600, 180, 60, 30], tokens=320), chunk_tokens=100)
    assert tight[0].solver["kept_chunks"] < 6


@pytest.mark.parametrize(("packs", "same"), [(20, True), (0, False)])
def test_chunk_flow_needs_most_memory_for_the_packs_behind_a_long_sequence(
    packs: int, same: bool
) -> None:
    """Whether chunks that run again keep the inputs of layers matters without packs."""
    rule, cost = chunk_flow_rule(100, 1), cost_of()
    without = replace(cost, input_bytes=0.0)
    lengths = np.array([600] + [90] * packs)
    chunked = rule.chunked(drawn_batch(lengths), cost)
    early = np.arange(chunked.chunks) - chunked.run_start < chunked.count - 1
    layers = np.where(early, np.array(cost.layer_counts)[:, None], 0)
    with_inputs, alone = (
        checkpoints.peak_bytes(checkpoints.problem_of(chunked, 0, chunked.chunks, kind), layers)
        for kind in (cost, without)
    )
    assert early.sum() == 5
    assert (with_inputs == alone).all() == same


def test_chunk_flow_packs_nothing_beside_a_tail() -> None:
    made, _, _ = _made("chunk_flow", task_of([180, 15], tokens=4000), chunk_tokens=100)
    assert [chunk.tokens for chunk in made[0].pipelines[0].chunks] == [100, 80, 15]


def test_of_equal_times_the_largest_size_is_taken() -> None:
    """One sequence is one chunk of any size up to eight times its length."""
    made, _, _ = _made("dapple", task_of([90], tokens=4000))
    assert made[0].solver["chunk_tokens"] == 8 * 90


def test_balanced_attention_is_the_same_work() -> None:
    cost = cost_of()
    [run] = _runs(slim_pipe_rule(100), [400])
    chunks = [chunk_of(slices, cost) for slices in run]
    even = balanced(chunks)
    for name in ("predicted_forward_ms", "predicted_backward_ms", "predicted_all_to_all_ms"):
        assert sum(getattr(one, name) for one in even) == pytest.approx(
            sum(getattr(one, name) for one in chunks)
        )
        assert len({getattr(one, name) for one in even}) == 1
    # Equal chunks: the closed form of 1F1B.
    each = even[0].predicted_forward_ms + even[0].predicted_backward_ms
    assert pipeline_ms(pipeline_of(even, 0, cost.shape)) == pytest.approx((4 + 1) * each)


def test_slim_pipe_without_exchange_is_slower() -> None:
    task = task_of([900, 100, 100], tokens=4000)
    plain, _, _ = _made("slim_pipe", task, slice_tokens=100, context_exchange=False)
    even, _, _ = _made("slim_pipe", task, slice_tokens=100)
    assert even[0].predicted_ms < plain[0].predicted_ms

    def work(one: Chunk) -> float:
        return one.predicted_forward_ms + one.predicted_backward_ms

    assert sum(map(work, even[0].pipelines[0].chunks)) == pytest.approx(
        sum(map(work, plain[0].pipelines[0].chunks))
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_fits_nowhere_is_named(name: str) -> None:
    with pytest.raises(PlanError, match=r"^planner\.replicas: got 3; allowed: at most 2, the seq"):
        _made(name, task_of([5, 6], devices=6), replicas=3)
    with pytest.raises(
        SettingsError, match=r"^planner\.checkpointed_layers: got 5; allowed: at most 4, the layers"
    ):
        _made(name, task_of([5, 6]), checkpointed_layers=5)
    assert _made(name, task_of([5, 6]), checkpointed_layers=4)
    with pytest.raises(PlanError, match=r"^sequence 11: 900 tokens; allowed: at most \d+, the lo"):
        _made(name, task_of([100, 900], tokens=10), checkpointed_layers=0)


def test_packs_go_where_they_fill_most() -> None:
    """Tails of 40 and 15 tokens, then 30, 20 and 10 tokens."""
    runs = _bounds(_runs(_fixed(50), [90, 65, 30, 20, 10]))
    assert [[part[0] for part in run[-1]] for run in runs] == [[0, 4], [1, 2], [3]]
