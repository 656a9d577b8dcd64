"""The largest usable job is exact: against all subsets of lines, against the integer
programme, against the closed form. Degraded lines by counting: what one failure takes,
what rewiring keeps.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from railx.tenancy.degraded import degraded_rows, line_bandwidth, rewired_rings
from railx.tenancy.largest import formula_share, largest_block, largest_product, matching_size

Mask = NDArray[np.bool_]


def by_all_subsets(healthy: Mask) -> int:
    """For every set of rows, the columns that are healthy in all of them."""
    best = 0
    for size in range(1, healthy.shape[0] + 1):
        for rows in combinations(range(healthy.shape[0]), size):
            best = max(best, size * int(healthy[list(rows)].all(axis=0).sum()))
    return best


def by_all_blocks(healthy: Mask) -> int:
    """Every rectangle of a torus, by rolling it to the corner."""
    best = 0
    for i in range(healthy.shape[0]):
        for j in range(healthy.shape[1]):
            rolled = np.roll(healthy, (-i, -j), axis=(0, 1))
            for a in range(1, healthy.shape[0] + 1):
                for b in range(1, healthy.shape[1] + 1):
                    if rolled[:a, :b].all():
                        best = max(best, a * b)
    return best


masks = hnp.arrays(
    np.bool_,
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    elements=st.sampled_from([True, True, True, False]),
)


@given(masks)
@settings(max_examples=150, deadline=None)
def test_product_is_the_best_of_all_subsets(healthy: Mask) -> None:
    found = largest_product(healthy)
    assert found.nodes == by_all_subsets(healthy)
    left = np.delete(np.delete(healthy, found.rows_out, axis=0), found.columns_out, axis=1)
    assert left.all()
    assert left.size == found.nodes


@given(masks)
@settings(max_examples=25, deadline=None)
def test_integer_programme_agrees_with_branching(healthy: Mask) -> None:
    assert largest_product(healthy, "milp").nodes == largest_product(healthy, "branch").nodes


@given(masks)
@settings(max_examples=60, deadline=None)
def test_block_is_the_best_of_all_rectangles(healthy: Mask) -> None:
    assert largest_block(healthy) == by_all_blocks(healthy)
    assert largest_block(healthy) <= largest_product(healthy).nodes


@pytest.mark.parametrize("failed", [8, 24, 32])
def test_programme_agrees_at_full_scale(failed: int) -> None:
    healthy = np.ones(64 * 64, dtype=np.bool_)
    healthy[np.random.default_rng(failed).choice(64 * 64, failed, replace=False)] = False
    healthy = healthy.reshape(64, 64)
    found = largest_product(healthy, "branch")
    assert largest_product(healthy, "milp").nodes == found.nodes
    # A cover leaves out at least as many lines as a matching has; the best product may
    # leave out more.
    assert len(found.rows_out) + len(found.columns_out) >= matching_size(healthy)


def test_dense_failures_go_to_the_programme() -> None:
    healthy = np.random.default_rng(3).random((12, 12)) < 0.5
    assert largest_product(healthy).nodes == by_all_subsets(healthy)


@pytest.mark.parametrize(("failed", "share"), [(1, 0.984), (8, 0.879), (16, 0.766), (32, 0.563)])
def test_formula_and_optimum_at_128_ports(failed: int, share: float) -> None:
    assert formula_share(failed, 64) == pytest.approx(share, abs=5.001e-4)
    healthy = np.ones((64, 64), dtype=np.bool_)
    healthy[np.arange(failed), np.arange(failed)] = False
    assert largest_product(healthy).nodes / 4096 == pytest.approx(
        formula_share(failed, 64), abs=(failed % 2) / 4 / 4096
    )


@given(st.integers(1, 12), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_distinct_lines_are_split_evenly(side: int, failed: int) -> None:
    failed = min(failed, side)
    healthy = np.ones((side, side), dtype=np.bool_)
    healthy[np.arange(failed), np.arange(failed)] = False
    assert largest_product(healthy).nodes == (side - failed // 2) * (side - (failed + 1) // 2)


def test_formula_says_how_many_failures_it_allows() -> None:
    with pytest.raises(ValueError, match="failed: got 9; allowed: 0 to 8"):
        formula_share(9, 8)


@given(st.integers(3, 40))
@settings(max_examples=38, deadline=None)
def test_one_failed_switch_takes_one_link_of_every_pair_of_its_ring(length: int) -> None:
    rails = length - 1
    left = line_bandwidth(length, rails, "hyperx", "switch", [(0, rails // 2)], "keep")
    assert left["ring_share"] == (rails - 1) / rails
    assert left["pairs_reduced"] == length  # r + 1 pairs
    assert left["pairs_lost"] == 0
    assert left["worst_pair_share"] == 0.5
    assert left["mean_pair_share"] == pytest.approx((rails - 1) / rails)
    assert left["worst_node_share"] == pytest.approx((rails - 1) / rails)
    ring = line_bandwidth(length, rails, "ring", "switch", [(0, 0)], "keep")
    assert ring["ring_share"] == ring["worst_pair_share"] == (rails - 1) / rails


@given(st.integers(4, 30), st.data())
@settings(max_examples=40, deadline=None)
def test_one_failed_rail_of_a_node_takes_its_two_links(length: int, data: st.DataObject) -> None:
    failed = [(data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, length - 2)))]
    kept = line_bandwidth(length, length - 1, "hyperx", "rail", failed, "keep")
    assert (kept["pairs_reduced"], kept["pairs_lost"]) == (2, 0)
    assert kept["ring_share"] == (length - 2) / (length - 1)
    links = length * (length - 1)
    assert kept["mean_pair_share"] == pytest.approx((links - 2) / links)
    passed = line_bandwidth(length, length - 1, "hyperx", "rail", failed, "rewire")
    assert passed["mean_pair_share"] == pytest.approx(
        (links - 1) / links
    )  # its neighbours are joined past it
    shrunk = line_bandwidth(length, length - 1, "hyperx", "rail", failed, "shrink")
    assert shrunk["nodes_used"] == length - 1
    assert shrunk["worst_pair_share"] >= 1


@given(st.integers(3, 90), st.data())
@settings(max_examples=80, deadline=None)
def test_rewired_rings_join_as_many_pairs_as_they_can(length: int, data: st.DataObject) -> None:
    rails = data.draw(st.integers(1, length - 1))
    joined = np.zeros((length, length), dtype=np.bool_)
    for ring in rewired_rings(length, rails):
        assert sorted(ring.tolist()) == list(range(length))
        joined[ring, np.roll(ring, -1)] = True
    pairs = int((joined | joined.T).sum()) // 2
    assert pairs == min(rails * length, length * (length - 1) // 2)


@pytest.mark.parametrize("length", [5, 6, 7, 8])
def test_no_wiring_joins_all_pairs_with_fewer_rails(length: int) -> None:
    """ceil(N / 2) rails are needed: a ring gives a node 2 of its N - 1 neighbours."""
    needed = (length + 1) // 2 if length % 2 == 0 else (length - 1) // 2
    assert 2 * (needed - 1) < length - 1
    failures = length - 1 - needed
    if failures:
        left = line_bandwidth(
            length,
            length - 1,
            "hyperx",
            "switch",
            [(0, rail) for rail in range(failures)],
            "rewire",
        )
        assert left["pairs_lost"] == 0


def test_rewiring_never_loses_more_pairs_than_keeping() -> None:
    for failed in combinations(range(8), 4):
        pairs = [(0, rail) for rail in failed]
        kept = line_bandwidth(9, 8, "hyperx", "switch", pairs, "keep")
        assert (
            line_bandwidth(9, 8, "hyperx", "switch", pairs, "rewire")["pairs_lost"]
            == 0
            <= kept["pairs_lost"]
        )
        assert kept["mean_pair_share"] == 0.5
    # In the odd decomposition rails s and s + 4 are one ring: losing both loses its 9
    # pairs.
    assert line_bandwidth(9, 8, "hyperx", "switch", [(0, 1), (0, 5)], "keep")["pairs_lost"] == 9


def test_at_full_scale_31_failed_switches_of_a_line_leave_every_pair_a_link() -> None:
    left = line_bandwidth(64, 63, "hyperx", "switch", [(0, rail) for rail in range(31)], "rewire")
    assert (left["pairs_lost"], left["worst_pair_share"]) == (0, 0.5)
    assert (
        line_bandwidth(64, 63, "hyperx", "switch", [(0, rail) for rail in range(32)], "rewire")[
            "pairs_lost"
        ]
        == 32
    )
    shrunk = line_bandwidth(64, 63, "hyperx", "switch", [(0, rail) for rail in range(31)], "shrink")
    assert (shrunk["nodes_used"], shrunk["worst_pair_share"], shrunk["mean_pair_share"]) == (
        33,
        1.0,
        1.0,
    )


def test_rows_are_tidy_and_repeatable() -> None:
    rows = degraded_rows(9, 8, (1, 3), 2, np.random.default_rng(4))
    assert rows == degraded_rows(9, 8, (1, 3), 2, np.random.default_rng(4))
    assert {(row["setting"], row["fault"]) for row in rows} == {
        (s, f) for s in ("hyperx", "ring") for f in ("switch", "rail")
    }
    for row in rows:
        assert row["pairs"] == row["pairs_whole"] + row["pairs_reduced"] + row["pairs_lost"]
        assert 0 <= row["worst_pair_share"] <= row["mean_pair_share"]


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="shrink for 2 nodes"):
        line_bandwidth(5, 4, "hyperx", "switch", [(0, 0), (0, 1), (0, 2)], "shrink")
    with pytest.raises(ValueError, match="all 2 rails have failed"):
        line_bandwidth(3, 2, "ring", "switch", [(0, 0), (0, 1)], "keep")
