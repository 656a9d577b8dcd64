"""Hamiltonian decompositions: exact for every size that has one, a clear refusal for
the two that do not.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.vocabulary.arrays import IntArray
from railx.vocabulary.hamiltonian import (
    _arc_counts,
    check_decomposition,
    hamiltonian_cycles,
    undirected_rings,
)

SIZES = [n for n in range(3, 261) if n not in (4, 6)]


def check_undirected(rings: IntArray) -> None:
    """Check that ``rings`` (n - 1, n) are Hamiltonian and join every pair exactly
    twice.

    Raises ValueError with the fault.
    """
    counts = _arc_counts(rings)
    both = counts + counts.T
    wrong = np.argwhere(both != 2 * (1 - np.eye(len(both), dtype=np.int64)))
    if len(wrong):
        a, b = (int(v) for v in wrong[0])
        raise ValueError(f"rings: pair {a}, {b} is joined {int(both[a, b])} times instead of twice")


@pytest.mark.parametrize(
    "sizes", [SIZES[i::8] for i in range(8)], ids=lambda sizes: f"from {sizes[0]} step 8"
)
def test_every_size_up_to_260_decomposes(sizes: list[int]) -> None:
    for n in sizes:
        cycles = hamiltonian_cycles(n)
        assert cycles.shape == (n - 1, n)
        check_decomposition(cycles)


@pytest.mark.parametrize("n", [513, 1024, 1025, 1026, 1030, 1034])
def test_large_sizes_decompose(n: int) -> None:
    cycles = hamiltonian_cycles(n)
    assert cycles.shape == (n - 1, n)
    check_decomposition(cycles)


def test_the_odd_construction_is_walecki_with_the_hub_last() -> None:
    assert hamiltonian_cycles(5).tolist() == [
        [0, 1, 3, 2, 4],
        [1, 2, 0, 3, 4],
        [2, 3, 1, 0, 4],
        [3, 0, 2, 1, 4],
    ]


@pytest.mark.parametrize("n", [9, 21, 33])
def test_odd_cycles_come_in_pairs_of_opposite_sense(n: int) -> None:
    rings = [_canonical(ring) for ring in hamiltonian_cycles(n).tolist()]
    assert rings[: (n - 1) // 2] == rings[(n - 1) // 2 :]
    assert len(set(rings)) == (n - 1) // 2


@pytest.mark.parametrize("n", [8, 10, 12, 14, 64])
def test_even_cycles_are_all_distinct_rings(n: int) -> None:
    assert len({_canonical(ring) for ring in hamiltonian_cycles(n).tolist()}) == n - 1


@pytest.mark.parametrize("n", [4, 6])
def test_the_two_impossible_sizes_name_the_undirected_rings(n: int) -> None:
    with pytest.raises(ValueError, match=rf"n: got {n}.*no decomposition.*undirected_rings\({n}\)"):
        hamiltonian_cycles(n)


@pytest.mark.parametrize("n", [-1, 0, 1, 2])
def test_too_few_vertices(n: int) -> None:
    with pytest.raises(ValueError, match=f"n: got {n}; allowed: at least 3"):
        hamiltonian_cycles(n)
    with pytest.raises(ValueError, match=f"n: got {n}; allowed: at least 3"):
        undirected_rings(n)


def test_undirected_rings_exist_for_every_size() -> None:
    for n in range(3, 131):
        rings = undirected_rings(n)
        assert rings.shape == (n - 1, n)
        check_undirected(rings)


@given(n=st.sampled_from(SIZES[:40]), seed=st.integers(0, 2**32 - 1))
def test_a_decomposition_stays_one_under_renaming_and_rotation(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    cycles = generator.permutation(n)[hamiltonian_cycles(n)]
    check_decomposition(np.roll(cycles, int(generator.integers(n)), axis=1))


@given(n=st.sampled_from([n for n in SIZES[:40] if n > 4]), seed=st.integers(0, 2**32 - 1))
def test_swapping_two_vertices_of_one_cycle_is_noticed(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    cycles = hamiltonian_cycles(n).copy()
    row, (a, b) = int(generator.integers(n - 1)), generator.choice(n, 2, replace=False)
    cycles[row, [a, b]] = cycles[row, [b, a]]
    with pytest.raises(ValueError, match="arcs are not used exactly once"):
        check_decomposition(cycles)


def test_the_checks_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"allowed: \(n - 1, n\)"):
        check_decomposition(np.zeros((3, 3), dtype=np.int64))
    with pytest.raises(ValueError, match="cycle 1 does not visit"):
        check_decomposition(np.array([[0, 1, 2], [0, 0, 1]]))
    with pytest.raises(ValueError, match="pair 0, 1 is joined 3 times"):
        check_undirected(np.array([[0, 1, 2, 3], [0, 1, 3, 2], [1, 0, 2, 3]]))


def _canonical(ring: list[int]) -> tuple[int, ...]:
    """The same for every rotation and both senses of a ring."""
    start = ring.index(0)
    turned = ring[start:] + ring[:start]
    return min(tuple(turned), (0, *reversed(turned[1:])))
