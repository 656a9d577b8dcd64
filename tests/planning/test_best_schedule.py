"""Other schedules for the same chunks, the fastest that fits, and the search for
orders: an exact search on small cases, room, and never worse.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from railx.performance.pipeline_cost import PassTime, PipelineCost, PipelineShape
from railx.planning.format.parts import Chunk, Pipeline, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.predictions import fits, peak_bytes, virtual_cost, weight_ms
from railx.planning.format.schedule import TRAINABLE_SCHEDULES, pipeline_ms, runnable
from railx.planning.format.simulation import Shape, run_orders
from railx.planning.pipeline.best_schedule import (
    CANDIDATE_SCHEDULES,
    SCHEDULE_NAMES,
    best_batch,
    best_schedule,
    with_schedule,
)
from railx.planning.pipeline.refinement import search_orders
from tests.planning.exact_orders import exact_makespan_ms
from tests.planning.pipelines import makespan_ms

COST = PipelineCost(
    shape=PipelineShape(2, 1),
    forward=PassTime(0.001, 0.1, 0.2),
    backward=PassTime(0.002, 0.2, 0.4),
    all_to_all=PassTime(0.0, 0.01),
    layer_counts=(4, 4),
    capacities=(1e9, 1e9),
    layer_bytes=4.0,
    input_bytes=1.0,
    key_value_bytes=1.0,
)


def _pipeline(counts: list[list[int]], recomputed: int = 0) -> Pipeline:
    """Sequences cut into slices of so many tokens."""
    chunks = []
    for sequence, cuts in enumerate(counts):
        start = 0
        for tokens in cuts:
            time = COST.chunk_time_ms([(start, tokens)])
            chunks.append(
                Chunk(
                    (Slice(sequence, start, start + tokens, sum(cuts)),),
                    time.forward_ms,
                    time.backward_ms,
                    time.all_to_all_ms,
                    (recomputed, recomputed) if recomputed else (),
                    COST.layer_forward_ms(time.forward_ms) if recomputed else 0.0,
                )
            )
            start += tokens
    return Pipeline(2, 0, tuple(chunks))


UNEVEN = _pipeline([[20, 12], [30], [14], [22], [10]])


def test_weights_take_half_of_what_is_linear() -> None:
    assert weight_ms(COST, 10) == 1.0
    made = with_schedule(UNEVEN, "zero_bubble", COST)
    assert made is not None
    assert [chunk.predicted_weight_ms for chunk in made.chunks] == [
        pytest.approx(0.1 * chunk.tokens) for chunk in UNEVEN.chunks
    ]


def test_the_fastest_is_taken_and_all_are_told() -> None:
    choice = best_schedule(UNEVEN, COST, SCHEDULE_NAMES)
    times = {}
    for name in SCHEDULE_NAMES:
        made = with_schedule(UNEVEN, name, COST)
        assert made is not None
        times[name] = pipeline_ms(made)
    assert choice.times_ms == times
    assert times[choice.name] == min(times.values()) == pipeline_ms(choice.pipeline)
    # Of equals the paper's is taken.
    single = best_schedule(_pipeline([[10]]), COST, ("1f1b", "searched", "gpipe"))
    assert (single.name, set(single.times_ms)) == ("1f1b", {"1f1b", "searched", "gpipe"})


def test_what_memory_does_not_hold_is_not_taken() -> None:
    equal = _pipeline([[10]] * 6)
    window = max(peak_bytes(equal, COST))
    tight = replace(COST, capacities=(window, window))
    choice = best_schedule(equal, tight, SCHEDULE_NAMES)
    assert choice.name == "zero_bubble"
    assert fits(choice.pipeline, tight)
    # All six chunks at once, with no more than their inputs kept, are too much.
    narrow = replace(tight, input_bytes=2.0)
    assert best_schedule(equal, narrow, ("1f1b", "gpipe")).times_ms["gpipe"] is None
    nothing = best_schedule(equal, replace(COST, capacities=(1.0, 1.0)))
    assert nothing.pipeline == equal
    assert set(nothing.times_ms.values()) == {None}


def test_a_schedule_that_holds_more_recomputes_what_it_must() -> None:
    """Six equal chunks of 160 bytes a stage; room for two of them, as 1F1B holds.

    GPipe holds six, of which c layers keep 10 bytes in place of 40: 6 (160 - 30 c) is
    at most 320 from c = 4 on, all layers.
    """
    equal = _pipeline([[10]] * 6)
    assert peak_bytes(equal, COST) == [320, 160]
    made = with_schedule(equal, "gpipe", replace(COST, capacities=(320.0, 320.0)))
    assert made is not None
    assert {chunk.checkpoint_layers for chunk in made.chunks} == {(4, 4)}
    assert peak_bytes(made, COST) == [240, 240]
    roomy = with_schedule(equal, "gpipe", replace(COST, capacities=(600.0, 600.0)))
    assert roomy is not None
    assert {chunk.checkpoint_layers for chunk in roomy.chunks} == {(2, 2)}
    backward = equal.chunks[0].predicted_backward_ms
    layer = equal.chunks[0].predicted_forward_ms / 4
    free = with_schedule(equal, "gpipe", COST)
    assert free is not None
    assert pipeline_ms(roomy) - pipeline_ms(free) == pytest.approx(7 * 2 * layer)
    assert (free.chunks[0].predicted_backward_ms, free.chunks[0].checkpoint_layers) == (
        backward,
        (),
    )


def test_a_batch_says_what_it_takes_and_what_the_papers_order_takes() -> None:
    batch = PipelineBatch(0, (UNEVEN, _pipeline([[9]])), {"slices_of_the_longest": [2]})
    made = best_batch(batch, COST, TRAINABLE_SCHEDULES)
    assert made.solver["slices_of_the_longest"] == [2]
    assert made.solver["one_f_one_b_ms"] == batch.predicted_ms
    assert made.solver["schedules"] == ["searched", "1f1b"]
    assert made.predicted_ms < batch.predicted_ms
    assert all(map(runnable, made.pipelines))
    assert made.pipelines[1] == batch.pipelines[1]
    assert "zero_bubble" in best_batch(batch, COST).solver["schedules"]


def test_weights_of_virtual_stages_are_a_share_of_those_that_were_delayed() -> None:
    """As reading a plan works them out again."""
    delayed = with_schedule(UNEVEN, "zero_bubble", COST)
    assert delayed is not None
    made = with_schedule(delayed, "interleaved", COST)
    assert made is not None
    part = virtual_cost(COST, 2)
    for chunk in made.chunks:
        assert chunk.predicted_weight_ms == pytest.approx(weight_ms(part, chunk.tokens))


def test_virtual_stages_have_their_share_of_layers_and_times() -> None:
    made = with_schedule(_pipeline([[20, 12], [30]], recomputed=3), "interleaved", COST)
    assert made is not None
    assert (made.schedule, made.virtual_stages) == ("interleaved", 2)
    for own, chunk in zip(made.chunks, UNEVEN.chunks, strict=False):
        assert own.predicted_forward_ms == pytest.approx(chunk.predicted_forward_ms / 2)
        assert own.checkpoint_layers == (2, 2, 1, 1)  # three of four layers in halves of two
    assert with_schedule(UNEVEN, "interleaved", COST, virtual_stages=5) is None
    hand = with_schedule(_pipeline([[20]], recomputed=3), "interleaved")
    assert hand is not None
    assert hand.chunks[0].checkpoint_layers == (2, 2, 1, 1)


@pytest.mark.parametrize("priced", [True, False])
def test_there_and_back_again(priced: bool) -> None:
    cost = COST if priced else None
    before = _pipeline([[20, 12], [30]], recomputed=3)
    for name in SCHEDULE_NAMES:
        there = with_schedule(before, name, cost)
        assert there is not None
        back = with_schedule(there, "1f1b", cost)
        assert back is not None
        assert pipeline_ms(back) == pytest.approx(pipeline_ms(before))
        assert [one.checkpoint_layers for one in back.chunks] == [(3, 3)] * 3


@given(
    counts=st.lists(st.lists(st.integers(5, 60), min_size=1, max_size=3), min_size=1, max_size=6),
    room=st.floats(0.8, 3.0),
)
def test_never_slower_than_the_papers_order_where_that_fits(
    counts: list[list[int]], room: float
) -> None:
    pipeline = _pipeline(counts)
    bytes_ = room * max(peak_bytes(pipeline, COST))
    cost = replace(COST, capacities=(bytes_, bytes_))
    choice = best_schedule(pipeline, cost, CANDIDATE_SCHEDULES)
    assert (choice.times_ms["1f1b"] is not None) == fits(pipeline, cost)
    if fits(pipeline, cost):
        assert pipeline_ms(choice.pipeline) <= pipeline_ms(pipeline)
    if any(choice.times_ms.values()):
        assert fits(choice.pipeline, cost)


def test_times_that_are_not_the_cost_s_stay_the_plan_s() -> None:
    """A planner's own: here all chunks take the same, whatever the cost says."""
    own = replace(
        UNEVEN,
        chunks=tuple(
            replace(chunk, predicted_forward_ms=8.0, predicted_backward_ms=16.0)
            for chunk in UNEVEN.chunks
        ),
    )
    parted = with_schedule(own, "interleaved", COST)
    assert parted is not None
    for chunk in parted.chunks:
        assert (chunk.predicted_forward_ms, chunk.predicted_backward_ms) == (4.0, 8.0)
    # Of five and four layers a virtual stage has three at most.
    uneven = replace(COST, layer_counts=(5, 4))
    thirds = with_schedule(own, "interleaved", uneven)
    assert thirds is not None
    for chunk in thirds.chunks:
        assert chunk.predicted_forward_ms == pytest.approx(8 * 3 / 5)
    back = with_schedule(thirds, "1f1b", uneven)
    assert back is not None
    for chunk in back.chunks:
        assert chunk.predicted_backward_ms == pytest.approx(16.0)
    tight = replace(COST, capacities=(1000.0, 1000.0))
    held = with_schedule(own, "gpipe", tight)
    assert held is not None
    assert all(map(any, (chunk.checkpoint_layers for chunk in held.chunks)))
    assert {chunk.predicted_layer_forward_ms for chunk in held.chunks} == {2.0}
    told = replace(
        own, chunks=tuple(replace(one, predicted_layer_forward_ms=1.5) for one in own.chunks)
    )
    held = with_schedule(told, "gpipe", tight)
    assert held is not None
    assert {chunk.predicted_layer_forward_ms for chunk in held.chunks} == {1.5}
    put_off = with_schedule(
        replace(own, chunks=tuple(replace(one, predicted_backward_ms=1.0) for one in own.chunks)),
        "zero_bubble",
        COST,
    )
    assert put_off is not None
    assert max(one.predicted_weight_ms for one in put_off.chunks) == 1.0
    choice = best_schedule(own, COST, SCHEDULE_NAMES)
    assert choice.times_ms["interleaved"] == pytest.approx(pipeline_ms(parted))
    batch = PipelineBatch(0, (own,))
    assert best_batch(batch, COST, SCHEDULE_NAMES).solver["schedule_ms"][0][
        "interleaved"
    ] == pytest.approx(pipeline_ms(parted))


@pytest.mark.parametrize("name", ["interleaved", "gpipe", "searched", "zero_bubble"])
def test_the_papers_time_is_told_whatever_the_batch_runs(name: str) -> None:
    other = with_schedule(UNEVEN, name, COST)  # type: ignore[arg-type]
    assert other is not None
    assert pipeline_ms(other) != pipeline_ms(UNEVEN)
    told = best_batch(PipelineBatch(0, (other,)), COST).solver["one_f_one_b_ms"]
    assert told == pytest.approx(pipeline_ms(UNEVEN))


def test_what_is_recomputed_already_stays_so() -> None:
    """Memory takes one layer of each chunk more in GPipe's order, and leaves three."""
    planned = _pipeline([[20], [20], [20]], recomputed=0)
    first, *rest = planned.chunks
    layer = COST.layer_forward_ms(first.predicted_forward_ms)
    first = replace(first, checkpoint_layers=(3, 3), predicted_layer_forward_ms=layer)
    made = with_schedule(
        replace(planned, chunks=(first, *rest)), "gpipe", replace(COST, capacities=(700.0, 700.0))
    )
    assert made is not None
    assert [one.checkpoint_layers for one in made.chunks] == [(3, 3), (1, 1), (1, 1)]


SMALL = ([2, 1], [1, 1, 1], [3, 1], [2, 2], [2, 1, 1], [1, 1, 1, 1])


def _times(rng: random.Random, chunks: int, spread: float) -> tuple[list[float], list[float]]:
    forward = [1 + spread * rng.random() for _ in range(chunks)]
    ratio = rng.choice([1.0, 2.0, 2.5])
    return forward, [ratio * one for one in forward]


def _window(shape: Shape) -> list[int]:
    return [min(shape.warm_up(stage) + 1, shape.chunks) for stage in range(shape.stages)]


@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_within_two_percent_of_an_exact_search(spread: float) -> None:
    rng = random.Random(f"orders {spread}")
    slower = 0
    for case in range(18):
        runs, stages = SMALL[case % len(SMALL)], 2 + (case % 3 == 2)
        shape = Shape(stages, runs)
        forward, backward = _times(rng, shape.chunks, spread)
        paper = makespan_ms("1f1b", shape, forward, [backward] * stages)
        best = exact_makespan_ms(runs, stages, forward, backward, _window(shape), paper + 1e-6)
        takes = [[*forward, *backward, *[0.0] * shape.chunks]] * stages
        found = search_orders(shape, takes, [0.0] * shape.chunks)
        assert found is not None
        assert best * (1 - 1e-9) <= found[0] <= 1.02 * best
        slower += paper > 1.02 * best
    # The paper's order alone would not do.
    assert slower > 3


def test_the_exact_search_finds_the_closed_form_of_equal_chunks() -> None:
    assert exact_makespan_ms([2, 1, 1], 3, [1.0] * 4, [2.0] * 4, [4, 3, 2], 99.0) == (4 + 2) * 3.0


@settings(max_examples=40)
@given(
    runs=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    stages=st.integers(1, 4),
    seed=st.integers(0, 2**20),
)
@example(runs=[4, 4], stages=4, seed=329545)
def test_never_worse_than_1f1b_nor_with_more_held(runs: list[int], stages: int, seed: int) -> None:
    shape, rng = Shape(stages, runs), random.Random(seed)
    forward, backward = _times(rng, shape.chunks, 1.0)
    takes = [[*forward, *backward, *[0.0] * shape.chunks]] * stages
    sends = [rng.choice([0.0, 0.3])] * shape.chunks
    found = search_orders(shape, takes, sends)
    assert found is not None
    paper = makespan_ms("1f1b", shape, forward, [backward] * stages, send_ms=sends)
    time_ms, orders = found
    assert time_ms <= paper + 1e-9
    again = run_orders(orders, takes, sends)
    assert again.complete
    assert again.makespan_ms == pytest.approx(time_ms)
    for order, room in zip(orders, _window(shape), strict=True):
        live = 0
        for one in order:
            live += 1 if one < shape.chunks else -1
            assert live <= room
        assert sorted(order) == list(range(2 * shape.chunks))


def test_room_decides_and_none_says_that_nothing_fits() -> None:
    shape, takes = Shape(2, [1, 1, 1]), [[1.0] * 9] * 2
    holds = [[5.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    for room in (7.0, 5.5, 4.9):
        found = search_orders(shape, takes, [0.0] * 3, holds, [room, 3.0])
        assert (found is None) == (room < 5.0)
    # 1F1B holds chunks 0 and 1 at once, for which there is no room.
    one, two = (search_orders(shape, takes, [0.0] * 3, holds, [room, 3.0]) for room in (5.5, 7.0))
    assert one is not None
    assert two is not None
    assert one[0] > two[0]


def test_slices_go_back_right_to_left_in_every_order_that_is_found() -> None:
    rng, cut = random.Random(7), 0
    for _ in range(25):
        runs = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
        shape = Shape(rng.randint(2, 3), runs)
        forward, backward = ([rng.uniform(0.1, 5) for _ in range(shape.chunks)] for _ in "FB")
        takes = [[*forward, *backward, *[0.0] * shape.chunks]] * shape.stages
        wide = [[1.0] * shape.chunks] * shape.stages, [1.0 * shape.chunks] * shape.stages
        found = search_orders(shape, takes, [0.0] * shape.chunks, *wide)
        assert found is not None
        last = {sum(runs[: number + 1]) - 1 for number in range(len(runs))}
        for order in found[1]:
            place = {one: position for position, one in enumerate(order)}
            for chunk in set(range(shape.chunks)) - last:
                cut += 1
                assert place[chunk] < place[chunk + 1]
                assert place[shape.chunks + chunk] > place[shape.chunks + chunk + 1]
    assert cut > 50
