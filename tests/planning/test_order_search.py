"""The search for orders: an exact search on small cases, room, and never worse."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from railx.planning.format.simulation import Shape, run_orders
from railx.planning.pipeline.refinement import search_orders
from tests.planning.exact_orders import exact_makespan_ms
from tests.planning.pipelines import makespan_ms

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
