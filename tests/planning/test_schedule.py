"""1F1B over chunks: order rules, closed forms of makespan and window."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.schedule import (
    Op,
    backward_order,
    longest_split,
    operations,
    peak_live_chunks,
    pipeline_ms,
    shape_of,
    simulate_pipeline,
)


def _pipeline(
    counts: list[int], stages: int, forward: float = 1.0, backward: float = 2.0, replica: int = 0
) -> Pipeline:
    """Sequences of ``counts`` slices of ten tokens each, chunks of equal time."""
    chunks = [
        Chunk((Slice(sequence, 10 * index, 10 * index + 10, 10 * count),), forward, backward)
        for sequence, count in enumerate(counts)
        for index in range(count)
    ]
    return Pipeline(stages, replica, tuple(chunks))


def test_order_of_a_small_pipeline_by_hand() -> None:
    pipeline = _pipeline([2, 1], 2)
    assert backward_order(pipeline.chunks) == [1, 0, 2]
    first, last = operations(pipeline, 0), operations(pipeline, 1)
    assert [f"{op.kind[0]}{op.chunk}" for op in last] == ["f0", "f1", "b1", "f2", "b0", "b2"]
    assert [f"{op.kind[0]}{op.chunk}" for op in first] == ["f0", "f1", "f2", "b1", "b0", "b2"]
    assert first[0] == Op("forward", 0)


def test_a_hybrid_chunk_belongs_to_its_long_sequence() -> None:
    chunks = (
        Chunk((Slice(0, 0, 10, 15),), 1, 2),
        Chunk((Slice(0, 10, 15, 15), Slice(5, 0, 5, 5)), 1, 2),
        Chunk((Slice(1, 0, 10, 14),), 1, 2),
        Chunk((Slice(1, 10, 14, 14),), 1, 2),
        Chunk((Slice(2, 0, 3, 3),), 1, 2),
    )
    assert backward_order(chunks) == [1, 0, 3, 2, 4]
    assert longest_split(chunks) == 2


@pytest.mark.parametrize("counts", [[4, 3, 2, 1, 1, 1, 1, 1, 1, 1], [4, 4, 4], [1] * 8])
def test_makespan_of_equal_chunks_is_the_closed_form(counts: list[int]) -> None:
    pipeline = _pipeline(counts, 4)
    assert pipeline_ms(pipeline) == sum(counts) * 3.0 + 3 * 3.0  # n (F + B) + (d_p - 1)(F + B)


def test_window_is_equation_7() -> None:
    pipeline = _pipeline([4, 3, 2, *[1] * 7], 4)
    assert [peak_live_chunks(pipeline, stage) for stage in range(4)] == [7, 6, 5, 4]
    assert [shape_of(pipeline).warm_up(stage) for stage in range(4)] == [6, 5, 4, 3]


def test_recomputed_layers_lengthen_the_backward_pass() -> None:
    chunk = Chunk(
        (Slice(0, 0, 5, 5),), 1.0, 2.0, checkpoint_layers=(0, 3), predicted_layer_forward_ms=0.5
    )
    rows = {
        (op.stage, op.kind): op.end_ms - op.start_ms
        for op in simulate_pipeline(Pipeline(2, 0, (chunk,)))
    }
    assert rows == {
        (0, "forward"): 1.0,
        (0, "backward"): 2.0,
        (1, "forward"): 1.0,
        (1, "backward"): 3.5,
    }


def test_a_stage_that_does_not_exist_is_named() -> None:
    with pytest.raises(PlanError, match="stage: got 2; allowed: 0 to 1"):
        operations(_pipeline([1], 2), 2)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.integers(1, 5),
    st.lists(st.floats(0.1, 5.0), min_size=2, max_size=2),
)
def test_every_schedule_runs_everything_in_order(
    counts: list[int], stages: int, times: list[float]
) -> None:
    pipeline = _pipeline(counts, stages, *times)
    rows = simulate_pipeline(pipeline)
    chunks = len(pipeline.chunks)
    assert len(rows) == 2 * chunks * stages
    end = {(op.kind, op.stage, op.chunk): op.end_ms for op in rows}
    start = {(op.kind, op.stage, op.chunk): op.start_ms for op in rows}
    for stage in range(stages):
        mine = [op for op in rows if op.stage == stage]
        assert all(before.end_ms <= after.start_ms for before, after in pairwise(mine))
        order = operations(pipeline, stage)
        assert [op.chunk for op in order if op.kind == "forward"] == list(range(chunks))
        assert [op.chunk for op in order if op.kind == "backward"] == backward_order(
            pipeline.chunks
        )
        assert peak_live_chunks(pipeline, stage) == min(stages - (stage + 1) + max(counts), chunks)
        for chunk in range(chunks):
            assert end["forward", stage, chunk] <= start["backward", stage, chunk]
            if stage:
                assert end["forward", stage - 1, chunk] <= start["forward", stage, chunk]
                assert end["backward", stage, chunk] <= start["backward", stage - 1, chunk]
    bound = chunks * sum(times) + (stages - 1) * sum(times)
    assert pipeline_ms(pipeline) == pytest.approx(bound)
