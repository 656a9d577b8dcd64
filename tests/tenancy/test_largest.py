"""The largest usable job is exact: against all subsets of lines, against the integer
programme, against the closed form.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

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
