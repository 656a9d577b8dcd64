"""1F1B over chunks and its event simulation: order rules, closed forms of makespan and
window, an independent longest path, and every order.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.schedule import (
    Op,
    operations,
    peak_live_chunks,
    pipeline_ms,
    shape_of,
    simulate_pipeline,
)
from railx.planning.format.simulation import SCHEDULES, ScheduleName, Shape, orders_of, run_orders
from tests.planning.pipelines import durations_of, makespan_ms


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
    assert shape_of(pipeline).backward == [1, 0, 2]
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
    shape = shape_of(Pipeline(1, 0, chunks))
    assert (shape.backward, shape.longest) == ([1, 0, 3, 2, 4], 2)


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
        assert [op.chunk for op in order if op.kind == "backward"] == shape_of(pipeline).backward
        assert peak_live_chunks(pipeline, stage) == min(stages - (stage + 1) + max(counts), chunks)
        for chunk in range(chunks):
            assert end["forward", stage, chunk] <= start["backward", stage, chunk]
            if stage:
                assert end["forward", stage - 1, chunk] <= start["forward", stage, chunk]
                assert end["backward", stage, chunk] <= start["backward", stage - 1, chunk]
    bound = chunks * sum(times) + (stages - 1) * sum(times)
    assert pipeline_ms(pipeline) == pytest.approx(bound)


RUNS = st.lists(st.integers(1, 4), min_size=1, max_size=7)
TIME = st.floats(0.1, 5.0)


def _longest_path_ms(
    orders: list[list[int]], durations: list[list[float]], sends: list[float], parts: int
) -> float:
    """The makespan once more: ends raised until nothing changes."""
    n, stages = len(sends), len(orders)
    every = parts * n
    ends = {(stage, one): 0.0 for stage, order in enumerate(orders) for one in order}
    changed = True
    while changed:
        changed = False
        for stage, order in enumerate(orders):
            for place, one in enumerate(order):
                kind, rest = divmod(one, every)
                part, chunk = divmod(rest, n)
                begin = ends[stage, order[place - 1]] if place else 0.0
                model = part * stages + stage + (1 if kind == 1 else -1)
                if kind < 2 and 0 <= model < parts * stages:
                    other = (model % stages, kind * every + model // stages * n + chunk)
                    apart = sends[chunk] if stages > 1 else 0.0
                    begin = max(begin, ends[other] + apart)
                end = begin + durations[stage][one]
                if end > ends[stage, one]:
                    ends[stage, one], changed = end, True
    return max(ends.values())


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@given(runs=RUNS, stages=st.integers(1, 5), forward=TIME, backward=TIME)
def test_equal_chunks_take_the_closed_form(
    name: ScheduleName, runs: list[int], stages: int, forward: float, backward: float
) -> None:
    n = sum(runs)
    found = makespan_ms(name, Shape(stages, runs), [forward] * n, [[backward] * n] * stages)
    assert found == pytest.approx((n + stages - 1) * (forward + backward))


@given(
    runs=RUNS,
    stages=st.integers(1, 5),
    forward=TIME,
    backward=TIME,
    share=st.floats(0, 1),
)
def test_zero_bubble_fills_the_bubble_with_weights(
    runs: list[int], stages: int, forward: float, backward: float, share: float
) -> None:
    weight = share * min(forward, backward)
    runs = [*runs, *[1] * stages]  # at least as many chunks as stages
    n = sum(runs)
    found = makespan_ms(
        "zero_bubble",
        Shape(stages, runs),
        [forward] * n,
        [[backward + weight] * n] * stages,
        [weight] * n,
    )
    whole = forward + backward + weight
    assert found == pytest.approx(n * whole + (stages - 1) * (whole - 2 * weight))


@given(
    groups=st.integers(1, 4),
    stages=st.integers(1, 4),
    parts=st.integers(2, 3),
    forward=TIME,
    backward=TIME,
)
def test_interleaving_divides_the_bubble_by_the_parts(
    groups: int, stages: int, parts: int, forward: float, backward: float
) -> None:
    n = groups * stages
    found = makespan_ms(
        "interleaved",
        Shape(stages, [1] * n, parts),
        [forward] * n,
        [[backward] * n] * (stages * parts),
    )
    assert found == pytest.approx((n * parts + stages - 1) * (forward + backward))


@given(data=st.data(), runs=RUNS, stages=st.integers(1, 4), name=st.sampled_from(SCHEDULES))
def test_every_named_order_runs_everything_once_and_in_order(
    data: st.DataObject, runs: list[int], stages: int, name: ScheduleName
) -> None:
    parts = data.draw(st.integers(2, 3)) if name == "interleaved" else 1
    shape, n = Shape(stages, runs, parts), sum(runs)
    times = [data.draw(st.lists(st.floats(0.1, 3.0), min_size=n, max_size=n)) for _ in range(3)]
    sends = data.draw(st.lists(st.floats(0.0, 1.0), min_size=n, max_size=n))
    backward = [[one + weight for one, weight in zip(times[1], times[2], strict=True)]]
    later = times[2] if name == "zero_bubble" else None
    takes = durations_of(shape, times[0], backward * stages * parts, later)
    orders = orders_of(name, shape)
    done = run_orders(orders, takes, sends, parts)
    assert done.complete
    assert done.makespan_ms == pytest.approx(_longest_path_ms(orders, takes, sends, parts))
    last_of_run = {end - 1 for end in accumulate(runs)}
    for order in orders:
        assert len(order) == len(set(order)) == (3 if name == "zero_bubble" else 2) * parts * n
        place = {one: position for position, one in enumerate(order)}
        for part in range(parts):
            for chunk in range(n):
                forward, back = part * n + chunk, (parts + part) * n + chunk
                assert place[forward] < place[back]
                if name == "zero_bubble":
                    assert place[back] < place[2 * n + chunk]
                if chunk not in last_of_run:
                    assert place[forward] < place[forward + 1]
                    assert place[back] > place[back + 1]


def test_zero_bubble_holds_no_more_than_the_first_stage_of_1f1b() -> None:
    shape = Shape(4, [3, 2, *[1] * 6])
    for order in orders_of("zero_bubble", shape):
        live = peak = 0
        for one in order:
            live += 1 if one < shape.chunks else -1 if one >= 2 * shape.chunks else 0
            peak = max(peak, live)
        assert peak == 4 - 1 + 3  # d_p - p + N_split of stage p = 1


def test_a_message_delays_what_waits_for_it_and_keeps_nobody_busy() -> None:
    """Two stages, two chunks of F = B = 1 and a message of 0.5: by hand."""
    shape = Shape(2, [1, 1])
    orders = orders_of("1f1b", shape)
    done = run_orders(orders, [[1.0] * 6] * 2, [0.5, 0.5])
    assert [done.begins[1][one] for one in (0, 2, 1, 3)] == [1.5, 2.5, 3.5, 4.5]
    assert [done.begins[0][one] for one in (0, 1, 2, 3)] == [0.0, 1.0, 4.0, 6.0]
    assert done.makespan_ms == 7.0
    alone = run_orders(orders_of("1f1b", Shape(1, [1, 1])), [[1.0] * 6], [0.5, 0.5])
    assert alone.makespan_ms == 4.0


def test_orders_that_wait_for_each_other_stop_where_they_wait() -> None:
    # Stage 0 wants the gradient of chunk 0 before it sends chunk 1, stage 1 chunk 1
    # before it gives that gradient.
    done = run_orders([[0, 2, 1, 3], [0, 1, 2, 3]], [[1.0] * 6] * 2, [0.0, 0.0])
    assert not done.complete
    assert (done.ends[0][0], done.ends[1][0], done.ends[0][2], done.ends[1][1]) == (1, 2, -1, -1)


def test_recomputing_on_the_diagonals_costs_their_sum() -> None:
    """InfiniPipe eqs. 15 to 17: stages recompute the same at the same step."""
    stages, n = 4, 10
    counts = [0.5 * (step % 3) for step in range(n + stages - 1)]
    shape = Shape(stages, [3, *[1] * 7])
    place = {chunk: position for position, chunk in enumerate(shape.backward)}
    backward = [
        [2.0 + counts[place[chunk] + stages - 1 - stage] for chunk in range(n)]
        for stage in range(stages)
    ]
    found = makespan_ms("1f1b", shape, [1.0] * n, backward)
    assert found == pytest.approx((n + stages - 1) * 3.0 + sum(counts))
