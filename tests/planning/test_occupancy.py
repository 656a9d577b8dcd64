"""Memory of stages over time and their bubbles: by hand, and against the window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.pipeline_cost import PassTime, PipelineCost, PipelineShape
from railx.planning.format.parts import Chunk, Pipeline, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.predictions import (
    chunk_bytes,
    cost_of,
    fits,
    memory_over_time,
    peak_bytes,
    stage_times,
    virtual_cost,
)
from railx.planning.format.schedule import (
    ScheduledOp,
    peak_live_chunks,
    pipeline_ms,
    simulate_pipeline,
)
from railx.planning.format.simulation import SCHEDULES, ScheduleName
from railx.planning.format.tables import memory_rows
from tests.planning.pipelines import pipeline_of
from tests.plans import pipeline_plan

#: Two stages of three layers; a layer keeps 4 bytes of a token, its input is 1, keys
#: and values are 1.
COST = PipelineCost(
    shape=PipelineShape(2, 1),
    forward=PassTime(0.0, 0.1),
    backward=PassTime(0.0, 0.2),
    all_to_all=PassTime(0.0, 0.0),
    layer_counts=(3, 3),
    capacities=(300.0, 300.0),
    layer_bytes=4.0,
    input_bytes=1.0,
    key_value_bytes=1.0,
    logits_bytes=2.0,
)


def _chunk(sequence: int, start: int, stop: int, length: int, *counts: int) -> Chunk:
    time = COST.chunk_time_ms([(start, stop - start)])
    recompute = COST.layer_forward_ms(time.forward_ms) if counts else 0.0
    return Chunk(
        (Slice(sequence, start, stop, length),),
        time.forward_ms,
        time.backward_ms,
        checkpoint_layers=counts,
        predicted_layer_forward_ms=recompute,
    )


CHUNKS = (_chunk(0, 0, 10, 20), _chunk(0, 10, 20, 20), _chunk(1, 0, 10, 10, 2, 0))


def test_bytes_of_chunks_by_hand() -> None:
    split = 10 * (3 * 4 + 3 * 1)  # layers and the gradients of their keys and values
    table = chunk_bytes(Pipeline(2, 0, CHUNKS), COST)
    # Two of three layers keep their input alone; the last stage keeps scores.
    assert table == [[split, split, 10 * (4 + 2 * 1)], [split + 20, split + 20, 10 * (12 + 2)]]


def test_memory_over_time_by_hand() -> None:
    """F takes 1 ms, B 2, and one recomputed layer a third of F."""
    first, last = memory_over_time(Pipeline(2, 0, CHUNKS), COST)
    moments = [tuple(vars(held).values())[1:] for held in last]
    assert moments == [
        (1, 1, 10, 170),
        (2, 2, 20, 340),
        (5, 2, 20, 310),  # backward of chunk 1 is done, chunk 2 comes in
        (8, 1, 10, 140),
        (10, 0, 0, 0),
    ]
    assert [held.live_chunks for held in first] == [1, 2, 3, 2, 1, 0]
    assert peak_bytes(Pipeline(2, 0, CHUNKS), COST) == [360, 340]


def test_room_is_kept_on_every_stage() -> None:
    pipeline = Pipeline(2, 0, CHUNKS)
    assert not fits(pipeline, COST)
    assert fits(pipeline, replace(COST, capacities=(360.0, 340.0)))
    assert not fits(pipeline, replace(COST, capacities=(360.0, 339.0)))


def test_without_a_cost_chunks_are_counted_as_the_window_says() -> None:
    for name in SCHEDULES:
        parts = 2 if name == "interleaved" else 1
        pipeline = Pipeline(
            2,
            0,
            tuple(replace(one, predicted_weight_ms=0.5, checkpoint_layers=()) for one in CHUNKS),
            schedule=name,
            virtual_stages=parts,
        )
        for stage, own in enumerate(memory_over_time(pipeline)):
            assert max(held.live_chunks for held in own) <= peak_live_chunks(pipeline, stage)
            assert (own[-1].live_chunks, own[-1].live_tokens) == (0, 0)
            assert all(held.activation_bytes is None for held in own)
    paper = Pipeline(2, 0, CHUNKS)
    peaks = [max(held.live_chunks for held in own) for own in memory_over_time(paper)]
    assert peaks == [peak_live_chunks(paper, stage) for stage in range(2)] == [3, 2]


def test_busy_and_idle_make_up_the_pipeline() -> None:
    pipeline = Pipeline(2, 0, CHUNKS)
    whole = pipeline_ms(pipeline)
    first, last = stage_times(simulate_pipeline(pipeline, 7.0), 7.0)
    assert first.busy_ms == pytest.approx(3 * 3 + 2 / 3)
    assert last.busy_ms == pytest.approx(9)
    for time in (first, last):
        assert time.busy_ms + time.idle_ms == pytest.approx(whole)
        assert time.bubble_share == pytest.approx(time.idle_ms / whole)


def test_a_pipeline_starts_after_those_of_its_replica() -> None:
    pipelines = (Pipeline(2, 0, CHUNKS), Pipeline(2, 1, CHUNKS[:2]), Pipeline(2, 0, CHUNKS[:2]))
    first_ms = pipeline_ms(pipelines[0])
    assert [start for start, _ in PipelineBatch(0, pipelines).spans_ms] == [0.0, 0.0, first_ms]


def test_a_virtual_stage_costs_its_share_of_the_layers() -> None:
    own = virtual_cost(replace(COST, layer_counts=(4, 4)), 2)
    assert own.layer_counts == (2, 2, 2, 2)
    assert own.shape.stages == 4
    assert own.chunk_time_ms([(0, 10)]).forward_ms == pytest.approx(0.5)
    assert [own.capacity_bytes(stage) for stage in range(4)] == [300.0] * 4
    whole = COST.activation_bytes(10, False, 0) + COST.activation_bytes(10, False, 1)
    parts = virtual_cost(COST, 3)
    assert sum(parts.activation_bytes(10, False, stage) for stage in range(6)) == whole
    with pytest.raises(ValueError, match="8 pipeline stages for 6 layers"):
        virtual_cost(COST, 4)


def test_a_plan_by_hand_has_no_cost() -> None:
    assert cost_of(pipeline_plan(2, [Pipeline(2, 0, CHUNKS)])) is None


@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_rows_of_several_pipelines_are_what_their_passes_make_and_drop(
    drawn: list[tuple[list[int], int]], stages: int, random: Any
) -> None:
    """Pipelines of a replica one after another, replicas side by side.

    At every moment a stage holds what its passes so far have made and not dropped.
    """
    cost = replace(
        COST, shape=PipelineShape(stages, 1), layer_counts=(3,) * stages,
        capacities=tuple(1000.0 + stage for stage in range(stages)),
    )  # fmt: skip
    pipelines = []
    for counts, replica in drawn:
        counts = sorted(counts, reverse=True)
        tokens = [random.randint(1, 50) for _ in range(sum(counts))]
        chunks = [
            replace(
                chunk,
                predicted_forward_ms=random.uniform(0.5, 3),
                predicted_backward_ms=random.uniform(0.5, 3),
                checkpoint_layers=tuple(random.randint(0, 3) for _ in range(stages)),
                predicted_layer_forward_ms=0.25,
            )
            for chunk in pipeline_of(counts, stages, tokens).chunks
        ]
        pipelines.append(Pipeline(stages, replica, tuple(chunks)))
    plan = pipeline_plan(6, pipelines)
    rows = memory_rows(plan, "drawn", cost)
    clock: dict[int, float] = {}
    for index, pipeline in enumerate(pipelines):
        start_ms = clock.get(pipeline.replica, 0.0)
        clock[pipeline.replica] = start_ms + pipeline_ms(pipeline)
        ops = simulate_pipeline(pipeline, start_ms)
        for stage in range(stages):
            own = [row for row in rows if (row["pipeline"], row["stage"]) == (index, stage)]
            assert {row["replica"] for row in own} == {pipeline.replica}
            assert {row["capacity_bytes"] for row in own} == {1000.0 + stage}
            times = [row["time_ms"] for row in own]
            assert times == sorted(times)
            assert start_ms <= times[0] <= times[-1] <= clock[pipeline.replica] + 1e-9
            assert (own[-1]["live_chunks"], own[-1]["live_tokens"]) == (0, 0)
            assert own[-1]["activation_bytes"] == pytest.approx(0, abs=1e-6)
            for row in own:
                live = _live_at(row["time_ms"], [op for op in ops if op.stage == stage])
                held = [pipeline.chunks[chunk] for chunk in live]
                assert row["live_chunks"] == len(held)
                assert row["live_tokens"] == sum(chunk.tokens for chunk in held)
                assert row["activation_bytes"] == pytest.approx(
                    sum(
                        float(
                            cost.activation_bytes(
                                chunk.tokens,
                                chunk.kind == "split",
                                stage,
                                chunk.checkpoint_layers[stage],
                            )
                        )
                        for chunk in held
                    ),
                    abs=1e-6,
                )


@pytest.mark.parametrize("name", SCHEDULES)
def test_chunks_are_held_as_long_as_the_order_says(name: ScheduleName) -> None:
    """Until the weights' part where that is put off."""
    parts = 2 if name == "interleaved" else 1
    pipeline = replace(pipeline_of([2, *[1] * 6], 3, [10] * 8), schedule=name, virtual_stages=parts)
    chunks = tuple(replace(chunk, predicted_weight_ms=1.0) for chunk in pipeline.chunks)
    pipeline = replace(pipeline, chunks=chunks)
    for stage, own in enumerate(memory_over_time(pipeline)):
        assert max(held.live_chunks for held in own) == peak_live_chunks(pipeline, stage)


def test_passes_without_a_time_are_held_too() -> None:
    """A plan by hand may say nothing of times; its order says what is held."""
    pipeline = pipeline_of([3, 1], 2, [10, 20, 30, 40])
    free = tuple(
        replace(chunk, predicted_forward_ms=0.0, predicted_backward_ms=0.0)
        for chunk in pipeline.chunks
    )
    still = replace(pipeline, chunks=free)
    for timed, timeless in zip(memory_over_time(pipeline), memory_over_time(still), strict=True):
        for what in ("live_chunks", "live_tokens"):
            most = max(getattr(held, what) for held in timed)
            assert max(getattr(held, what) for held in timeless) == most > 0
        assert min(held.live_chunks for held in timeless) == 0
    times = stage_times(simulate_pipeline(still))
    assert [(one.busy_ms, one.idle_ms, one.bubble_share) for one in times] == [(0, 0, 0)] * 2


def _live_at(time_ms: float, ops: list[ScheduledOp]) -> list[int]:
    """Chunks whose forward pass has begun and whose backward pass has not ended."""
    begun = {op.chunk for op in ops if op.kind == "forward" and op.start_ms <= time_ms}
    return sorted(
        begun - {op.chunk for op in ops if op.kind == "backward" and op.end_ms <= time_ms}
    )
