"""InfiniPipe's sequence processor and pipelines: equal time, memory, order."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.planning.chunks import PipelineShape, build_chunks, mesh
from railx.planning.pipeline import peak_tokens, plan_pipeline_batch, share_among_replicas
from railx.planning.plan import SCHEMA, PipelineBatch, Plan, PlanError, validate_plan
from railx.planning.schedule import pipeline_ms
from railx.workload import CostModel, SampledBatch
from tests.builders import checked, drawn_batch
from tests.plans import made_for_itself

SHAPE = PipelineShape(stages=4, degree=8)


def _batch_ms(batch: PipelineBatch) -> float:
    """Pipelines of one replica one after another; the slowest replica counts."""
    replicas: dict[int, float] = {}
    for pipeline in batch.pipelines:
        replicas[pipeline.replica] = replicas.get(pipeline.replica, 0.0) + pipeline_ms(pipeline)
    return max(replicas.values())


def _check(
    batch: PipelineBatch, drawn: SampledBatch, devices: int, stages: int, cost: CostModel
) -> None:
    validate_plan(made_for_itself(Plan(SCHEMA, "pipeline", "pipeline", devices, {}, (batch,))))
    held: dict[int, int] = {}
    for pipeline in batch.pipelines:
        assert pipeline.stages == stages
        assert peak_tokens(pipeline, cost) <= cost.tokens_per_device * stages
        counts = [
            sum(part.sequence == chunk.cut_sequence for c in pipeline.chunks for part in c.slices)
            for chunk in pipeline.chunks
        ]
        assert counts == sorted(counts, reverse=True)
        for chunk in pipeline.chunks:
            for part in chunk.slices:
                held[part.sequence] = held.get(part.sequence, 0) + part.tokens
    assert held == dict(zip(drawn.sequences.tolist(), drawn.lengths.tolist(), strict=True))


@given(st.integers(2_000, 400_000), st.integers(1, 12))
def test_slices_of_a_mesh_take_equal_time(length: int, slices: int) -> None:
    cost = CostModel(5e-6, 0.18, 0.0, {1: 0.0, 8: 0.0026}, 6449, 1 / 3, 1.1)
    bounds = [0, *mesh(length, slices, SHAPE, cost, 1), length]
    times = [
        cost.chunk_time_ms([(start, stop - start)], 4, 8).total_ms
        for start, stop in pairwise(bounds)
    ]
    assert len(times) == slices
    assert max(times) == pytest.approx(sum(times) / slices, rel=0.02)
    widths = [stop - start for start, stop in pairwise(bounds)]
    assert all(
        first >= second - 2 for first, second in pairwise(widths)
    )  # later slices have more context, fewer tokens


def test_meshes_are_aligned_and_leave_out_coinciding_cuts(large: CostModel) -> None:
    assert all(cut % 1024 == 0 for cut in mesh(100_000, 7, SHAPE, large, 1024))
    assert mesh(1000, 4, SHAPE, large, 1024) == []
    assert mesh(5000, 1, SHAPE, large, 64) == []


def test_chunks_by_hand(small: CostModel) -> None:
    """Cut at 60: two sequences have tails; shorts fill up beside the tails first."""
    lengths = np.array([100, 90, 20, 15, 60])
    groups = build_chunks(np.arange(5), lengths, [60], 100, PipelineShape(2, 1), small)
    assert groups is not None
    found = [
        [
            sorted((part.sequence, part.start, part.stop) for part in chunk.slices)
            for chunk in group.chunks
        ]
        for group in groups
    ]
    assert [len(group) for group in found] == [2, 2, 1]
    assert found[0][0] == [(0, 0, 60)]
    assert found[1][0] == [(1, 0, 60)]
    assert found[2] == [[(4, 0, 60)]]
    assert {part[0] for group in found[:2] for part in group[1]} == {0, 1, 2, 3}
    assert [chunk.kind for group in groups[:2] for chunk in group.chunks].count("split") >= 2


def test_a_slice_over_the_capacity_is_refused(small: CostModel) -> None:
    assert build_chunks(np.arange(1), np.array([100]), [60], 59, PipelineShape(2, 1), small) is None


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=2, max_size=30),
    stages=st.integers(1, 4),
    replicas=st.integers(1, 2),
    tokens=st.sampled_from([400, 1000]),
)
def test_plans_keep_every_rule(
    lengths: list[int],
    stages: int,
    replicas: int,
    tokens: int,
    tight: Callable[[int], CostModel],
) -> None:
    cost, drawn = tight(tokens), drawn_batch(lengths)
    planner = checked("planner", "pipeline", stages=stages, replicas=replicas, alignment_tokens=8)
    planned = plan_pipeline_batch(0, drawn, planner, 8, cost)
    _check(planned, drawn, stages * replicas, stages, cost)
    assert {pipeline.replica for pipeline in planned.pipelines} == set(range(replicas))


def test_short_memory_divides_a_batch_into_several_pipelines(
    tight: Callable[[int], CostModel],
) -> None:
    drawn, planner = (
        drawn_batch([800, *[100] * 12]),
        checked("planner", "pipeline_2x1", alignment_tokens=8, most_slices=8),
    )
    roomy = plan_pipeline_batch(0, drawn, planner, 2, tight(2000))
    narrow = plan_pipeline_batch(0, drawn, planner, 2, tight(500))
    assert len(roomy.pipelines) == 1
    assert len(narrow.pipelines) == 2
    _check(narrow, drawn, 2, 2, tight(500))
    assert _batch_ms(narrow) >= _batch_ms(roomy)


def test_long_sequences_that_do_not_fit_together_run_one_by_one(
    tight: Callable[[int], CostModel],
) -> None:
    drawn, planner = (
        drawn_batch([800, 800, 790, 50, 50]),
        checked("planner", "pipeline_2x1", alignment_tokens=8),
    )
    planned = plan_pipeline_batch(0, drawn, planner, 2, tight(490))
    assert len(planned.pipelines) >= 3
    _check(planned, drawn, 2, 2, tight(490))


def test_splitting_a_long_sequence_pays(
    tight: Callable[[int], CostModel],
) -> None:
    drawn = drawn_batch([900, 40, 30, 20])
    whole = plan_pipeline_batch(
        0, drawn, checked("planner", "pipeline_2x1", most_slices=1), 2, tight(4000)
    )
    split = plan_pipeline_batch(0, drawn, checked("planner", "pipeline_2x1"), 2, tight(4000))
    assert split.solver["slices_of_the_longest"][0] > 1
    assert _batch_ms(split) < _batch_ms(whole)


def test_replicas_share_the_work(large: CostModel) -> None:
    lengths = np.random.default_rng(0).integers(100, 50_000, 200)
    shared = share_among_replicas(lengths, 4, large)
    assert sorted(np.concatenate(shared).tolist()) == list(range(200))
    work = [large.sequence_ms(lengths[positions]).sum() for positions in shared]
    assert max(work) <= 1.02 * min(work)


def test_impossible_pipelines_are_named(
    small: CostModel,
) -> None:
    planner = checked("planner", "pipeline_2x1")
    with pytest.raises(
        PlanError,
        match=(
            r"^sequence 101: 201 tokens; allowed: at most 200, the longest that a pipeline of 2"
            r" stages of 1 ranks holds"
        ),
    ):
        plan_pipeline_batch(0, drawn_batch([5, 201]), planner, 2, small)
    with pytest.raises(
        PlanError,
        match=(
            r"^sequence 100: 190 tokens; allowed: at most 1[67]\d, the longest that a pipeline .*"
            r" in up to 8 slices$"
        ),
    ):
        plan_pipeline_batch(0, drawn_batch([190, 5]), planner, 2, small)
    with pytest.raises(
        PlanError,
        match=(
            r"^planner\.stages: 2 stages x 2 replicas x degree 1 need 4 devices; allowed: at most 2"
        ),
    ):
        plan_pipeline_batch(0, drawn_batch([5, 5]), checked("planner", "pipeline"), 2, small)
    with pytest.raises(
        PlanError, match=r"^planner\.replicas: got 2; allowed: at most 1, the sequences"
    ):
        plan_pipeline_batch(0, drawn_batch([5]), checked("planner", "pipeline"), 4, small)
    with pytest.raises(
        PlanError, match=r"^planner\.sequence_parallel_degree: got 8; allowed: 1, 2, 4"
    ):
        plan_pipeline_batch(
            0,
            drawn_batch([5]),
            checked("planner", "pipeline_2x1", sequence_parallel_degree=8),
            64,
            small,
        )
