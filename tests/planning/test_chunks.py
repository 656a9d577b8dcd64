"""InfiniPipe's sequence processor: slices of equal time, packing with two limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.pipeline.chunks import (
    Chunked,
    Chunking,
    cut_and_pack,
    even_mesh,
    mesh,
)
from railx.planning.pipeline.kernels import pack
from tests.planning.pipelines import cost_of

COST = cost_of(2, quadratic_ms=1e-3)


def _packed(
    lengths: list[int],
    cuts: list[int],
    most_tokens: int,
    chunking: Chunking = "balanced",
    beside_tails: bool = True,
    cost: PipelineCost = COST,
) -> Chunked:
    made = cut_and_pack(
        np.arange(100, 100 + len(lengths)),
        np.array(lengths),
        cuts,
        most_tokens,
        cost,
        chunking,
        beside_tails,
    )
    assert made is not None
    return made


def _contents(chunked: Chunked) -> list[list[tuple[int, int, int]]]:
    return [
        sorted((part.sequence, part.start, part.stop) for part in chunked.slices(chunk))
        for chunk in range(chunked.chunks)
    ]


@given(st.integers(2_000, 400_000), st.integers(1, 12))
def test_slices_of_a_mesh_take_equal_time(length: int, slices: int) -> None:
    cost = cost_of(4, degree=8, quadratic_ms=5e-6)
    bounds = [0, *mesh(length, slices, cost, 1), length]
    times = [cost.chunk_time_ms([(a, b - a)]).total_ms for a, b in pairwise(bounds)]
    assert len(times) == slices
    assert max(times) == pytest.approx(sum(times) / slices, rel=0.02)
    widths = [stop - start for start, stop in pairwise(bounds)]
    # Later slices have more context and fewer tokens.
    assert all(first >= second - 2 for first, second in pairwise(widths))


def test_meshes_are_aligned_and_leave_out_coinciding_cuts() -> None:
    assert all(cut % 1024 == 0 for cut in mesh(100_000, 7, COST, 1024))
    assert mesh(1000, 4, COST, 1024) == []
    assert mesh(5000, 1, COST, 64) == []


def test_cuts_go_to_the_nearest_multiple() -> None:
    """Where work is linear a half is 50 and a third is 33 of 100."""
    linear = cost_of(2, quadratic_ms=0.0)
    assert mesh(100, 2, linear, 32) == [64]
    assert mesh(100, 2, linear, 40) == [40]
    assert mesh(100, 3, linear, 20) == [40, 60]


def test_sequences_of_one_length_go_by_their_rows() -> None:
    """Whatever order a batch lists them in, it has the same chunks."""
    rows = np.arange(100, 140)
    lengths = np.where(rows % 5 == 0, 90, 40)
    made = []
    for order in (rows - 100, rows[::-1] - 100, np.random.default_rng(1).permutation(40)):
        one = cut_and_pack(rows[order], lengths[order], [50], 60, COST)
        assert one is not None
        made.append([one.slices(chunk) for chunk in range(one.chunks)])
    assert made[0] == made[1] == made[2]


def test_the_published_packing_takes_the_least_time_per_token() -> None:
    """Two tails of ten tokens, the second without context before it."""
    short, tails = np.array([1]), np.array([10, 10])
    for chunking, taken in ((0, 0), (1, 1)):
        place, bins = pack(
            short, np.array([1.0]), tails, np.array([5.0, 2.0]), 0.0, 9.0, 20, chunking
        )
        assert (place.tolist(), bins) == ([taken], 2)


def test_even_meshes_are_aligned() -> None:
    assert even_mesh(1000, 4, 1) == [250, 500, 750]
    assert even_mesh(1000, 3, 100) == [400, 800]
    assert even_mesh(1000, 1, 64) == []


def test_chunks_by_hand() -> None:
    """Cut at 60: slices of 4.8, 5.2 and 3.75 ms beside the constant. The second tail
    has time for one of 1.2 ms, nothing else has time for the last one of 0.86 ms.
    """
    found = _packed([100, 90, 20, 15, 60], [60], 100)
    assert _contents(found) == [
        [(100, 0, 60)],
        [(100, 60, 100)],
        [(101, 0, 60)],
        [(101, 60, 90), (102, 0, 20)],
        [(104, 0, 60)],
        [(103, 0, 15)],
    ]
    assert found.count.tolist() == [2, 2, 2, 2, 1, 1]
    assert found.split.tolist() == [True, True, True, False, False, False]
    assert (found.total_ms - 1.5) == pytest.approx([4.8, 5.2, 4.8, 4.95, 4.8, 0.8625])


def test_tails_may_stay_alone() -> None:
    found = _packed([100, 20, 15], [60], 100, beside_tails=False)
    assert _contents(found) == [[(100, 0, 60)], [(100, 60, 100)], [(101, 0, 20), (102, 0, 15)]]
    assert found.split.tolist() == [True, True, False]


def test_a_slice_over_the_capacity_is_refused() -> None:
    assert cut_and_pack(np.arange(1), np.array([100]), [60], 59, COST) is None
    assert cut_and_pack(np.arange(1), np.array([100]), [60], 60, COST) is not None


def test_a_new_chunk_opens_where_the_paper_raises_the_target() -> None:
    """Three equal sequences of a slice's time: no two of them fit its time."""
    ours = _packed([100, 100, 100], [], 1000)
    paper = _packed([100, 100, 100], [], 1000, "published")
    assert _contents(ours) == [[(100, 0, 100)], [(101, 0, 100)], [(102, 0, 100)]]
    assert _contents(paper) == [[(100, 0, 100), (101, 0, 100), (102, 0, 100)]]
    assert ours.longest_over_mean == pytest.approx(1.0)


def test_tokens_are_a_hard_limit_for_the_paper_too() -> None:
    paper = _packed([100, 100, 100], [], 200, "published")
    assert [len(chunk) for chunk in _contents(paper)] == [2, 1]


def test_even_chunks_are_filled_whatever_time_they_take() -> None:
    found = _packed([100, 50, 50], [50], 50, "even")
    assert _contents(found) == [
        [(100, 0, 50)],
        [(100, 50, 100)],
        [(101, 0, 50)],
        [(102, 0, 50)],
    ]
    together = _packed([100, 30, 20, 10], [50], 60, "even")
    assert _contents(together)[1:] == [
        [(100, 50, 100), (103, 0, 10)],
        [(101, 0, 30), (102, 0, 20)],
    ]


def test_the_fullest_chunk_in_time_takes_a_sequence() -> None:
    """A tail with long context is nearer to the limit than one with short context."""
    found = _packed([190, 150, 8], [70, 130], 100)
    by_sequence = {
        part.sequence: chunk for chunk in range(found.chunks) for part in found.slices(chunk)
    }
    tails = {100: 2, 101: 5}
    assert found.total_ms[tails[100]] > found.total_ms[tails[101]] - 1e-9
    assert by_sequence[102] in tails.values()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=40),
    st.integers(1, 6),
    st.floats(1.0, 3.0),
    st.sampled_from(["balanced", "published", "even"]),
    st.booleans(),
)
def test_chunks_keep_every_rule(
    lengths: list[int], slices: int, more: float, chunking: Chunking, beside_tails: bool
) -> None:
    longest = max(lengths)
    cuts = even_mesh(longest, slices, 4) if chunking == "even" else mesh(longest, slices, COST, 4)
    most = int(more * np.diff([0, *cuts, longest]).max())
    found = _packed(lengths, cuts, most, chunking, beside_tails)
    covered: dict[int, list[tuple[int, int]]] = {}
    for chunk in range(found.chunks):
        parts = found.slices(chunk)
        assert sum(part.tokens for part in parts) == found.tokens[chunk] <= most
        cut = [part for part in parts if not part.is_uncut]
        assert len(cut) <= 1  # no two tails, no slice beside another
        assert found.split[chunk] == (bool(cut) and len(parts) == 1)
        time = COST.chunk_time_ms([(part.start, part.tokens) for part in parts])
        assert found.forward_ms[chunk] == pytest.approx(time.forward_ms)
        assert found.backward_ms[chunk] == pytest.approx(time.backward_ms)
        for part in parts:
            covered.setdefault(part.sequence, []).append((part.start, part.stop))
            assert part.length == lengths[part.sequence - 100]
    for index, length in enumerate(lengths):
        pieces = covered[100 + index]
        assert [pieces[0][0], pieces[-1][1]] == [0, length]
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert found.count.tolist() == sorted(found.count.tolist(), reverse=True)
    if chunking == "balanced":
        edges = [0, *cuts, longest]
        slowest = max(COST.chunk_time_ms([(a, b - a)]).total_ms for a, b in pairwise(edges))
        assert found.total_ms.max() <= slowest * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(60, 120))
def test_packing_is_near_the_least_number_of_chunks(lengths: list[int], most: int) -> None:
    """Whole sequences alone, against every division (best fit is within a third more,
    rounded up).
    """
    lengths = [*lengths, 60]
    found = _packed(lengths, [], most)
    limit = COST.chunk_time_ms([(0, 60)]).total_ms

    def fits(members: list[int]) -> bool:
        time = COST.chunk_time_ms([(0, each) for each in members]).total_ms
        return sum(members) <= most and time <= limit * (1 + 1e-9)

    least = _fewest(sorted(lengths, reverse=True), fits)
    assert least <= found.chunks <= -(-4 * least // 3)


def _fewest(lengths: list[int], fits: Callable[[list[int]], bool]) -> int:
    """The fewest groups that all fit, by trying every place of every length."""
    best = len(lengths)

    def place(index: int, groups: list[list[int]]) -> None:
        nonlocal best
        if len(groups) >= best:
            return
        if index == len(lengths):
            best = len(groups)
            return
        for group in groups:
            group.append(lengths[index])
            if fits(group):
                place(index + 1, groups)
            group.pop()
        place(index + 1, [*groups, [lengths[index]]])

    place(0, [])
    return best
