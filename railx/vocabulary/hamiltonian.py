"""Hamiltonian decompositions of complete graphs, the all-to-all rings of RailX.

A line of N nodes has r = N - 1 rails, and every rail is a ring. If the rings are the
cycles of a decomposition of the complete directed graph K*_N, exactly one rail joins
every ordered pair of nodes: the same wiring serves ring collectives and all-to-all
(RailX, theorem 3.1 and appendix A.1).

* odd N: Walecki's zig-zag paths, closed through a hub.
* even N >= 8: a decomposition for N - 1 with the new vertex N - 1 inserted into one arc
  of each cycle. The cut arcs form a Hamiltonian path of the N - 1 old vertices, and
  closing that path through the new vertex gives the last cycle. N = 4k (RailX) and N =
  4k + 2 (this project) differ only in the choice of the arcs; decompositions exist for
  every even N >= 8 (Tillson 1980).
* N = 4 and N = 6 have none (Bermond and Faber 1976); the undirected rings of
  :func:`undirected_rings` exist for every N.
"""

from __future__ import annotations

import numpy as np

from railx.errors import UserError
from railx.vocabulary.arrays import IntArray


def hamiltonian_cycles(n: int) -> IntArray:
    """Directed Hamiltonian cycles that use every arc of a complete graph exactly once.

    The graph is directed and has ``n`` vertices. Returns an array of shape (n - 1, n):
    row i lists the vertices 0..n-1 in the order of cycle i, which returns from the last
    column to the first. Raises ValueError for n < 3 and for n = 4 and n = 6, which have
    no directed decomposition. Source: RailX, appendix A.1 (odd n and n = 4k); this
    module for n = 4k + 2.
    """
    if n < 3:
        raise UserError(f"n: got {n}; allowed: at least 3, a Hamiltonian cycle needs 3 vertices")
    if n in (4, 6):
        raise UserError(
            f"n: got {n}; K*_{n} has no decomposition into directed Hamiltonian cycles (Bermond and"
            " Faber 1976); allowed: 3, 5 or at least 7, or the undirected rings,"
            f" undirected_rings({n}), which exist for every n"
        )
    if n % 2:
        return _odd_cycles(n)
    base = _odd_cycles(n - 1)
    return _insert_vertex(base, _cuts_of_4k(base) if n % 4 == 0 else _cuts_of_4k_plus_2(base))


def undirected_rings(n: int) -> IntArray:
    """Undirected Hamiltonian rings that join every unordered pair exactly twice.

    Shape (n - 1, n) for ``n`` >= 3 vertices. Full-duplex links need no direction, so
    these rings wire a line as an all-to-all with two links per pair even for n = 4 and
    n = 6. Odd n: the directed cycles, where rings s and s + (n-1)/2 are the same ring.
    Even n: the zig-zag over n - 1 vertices (odd, so all rotations of the path differ),
    closed through a hub.
    """
    if n < 3:
        raise UserError(f"n: got {n}; allowed: at least 3, a ring needs 3 vertices")
    return _odd_cycles(n) if n % 2 else _rotations(_zig_zag(n - 1))


def check_decomposition(cycles: IntArray) -> None:
    """Check that ``cycles`` (n - 1, n) are Hamiltonian and use every arc exactly once.

    Raises ValueError with the fault.
    """
    counts = _arc_counts(cycles)
    wrong = np.argwhere(counts != 1 - np.eye(len(counts), dtype=np.int64))
    if len(wrong):
        a, b = (int(v) for v in wrong[0])
        raise ValueError(
            f"cycles: {len(wrong)} arcs are not used exactly once, the first is {a} -> {b}, used"
            f" {int(counts[a, b])} times"
        )


def _arc_counts(cycles: IntArray) -> IntArray:
    """The uses of each arc (row: tail, column: head), after a check of the cycles."""
    cycles = np.asarray(cycles)
    if cycles.ndim != 2 or cycles.shape[0] != cycles.shape[1] - 1:
        raise ValueError(f"cycles: got the shape {cycles.shape}; allowed: (n - 1, n)")
    n = cycles.shape[1]
    spans = (np.sort(cycles, axis=1) == np.arange(n)).all(axis=1)
    if not spans.all():
        raise ValueError(
            f"cycles: cycle {int(np.argmin(spans))} does not visit each of the {n} vertices exactly"
            " once"
        )
    arcs = cycles * n + np.roll(cycles, -1, axis=1)
    return np.bincount(arcs.ravel(), minlength=n * n).reshape(n, n)


def _zig_zag(count: int) -> IntArray:
    """0, 1, -1, 2, -2, ... modulo ``count``."""
    steps = np.arange(count, dtype=np.int64)
    return np.where(steps % 2, (steps + 1) // 2, -(steps // 2)) % count


def _rotations(path: IntArray) -> IntArray:
    """Every rotation of a path over Z_count, closed through a hub, number count."""
    count = len(path)
    rotated = (path[None, :] + np.arange(count)[:, None]) % count
    return np.hstack([rotated, np.full((count, 1), count)])


def _odd_cycles(n: int) -> IntArray:
    return _rotations(_zig_zag(n - 1))


def _insert_vertex(base: IntArray, cuts: IntArray) -> IntArray:
    """A decomposition with a vertex more in cycle s of ``base`` behind ``cuts[s]``."""
    old = base.shape[1]
    position = np.arange(old + 1)[None, :]
    gap = cuts[:, None] + 1
    shifted = np.minimum(position - (position > gap), old - 1)
    cycles = np.where(position == gap, old, np.take_along_axis(base, shifted, axis=1))
    rows = np.arange(len(base))
    successor = np.full(old, -1, dtype=np.int64)
    successor[base[rows, cuts]] = base[rows, (cuts + 1) % old]
    return np.vstack([cycles, [*_path_from_arcs(successor), old]])


def _path_from_arcs(successor: IntArray) -> list[int]:
    """The Hamiltonian path made of the arcs v -> successor[v] (-1 at its end)."""
    follow: list[int] = successor.tolist()
    vertex = (set(range(len(follow))) - set(follow)).pop()
    path = []
    for _ in follow:
        path.append(vertex)
        vertex = follow[vertex]
    return path


def _cuts_of_4k(base: IntArray) -> IntArray:
    """The cut of each cycle for n = 4k, k >= 2 (RailX, appendix A.1).

    The vertex at position 2h - 1, h = k - 1, selects it.
    """
    h = (base.shape[1] + 1) // 4 - 1
    at = base[:, 2 * h - 1]
    cuts = np.full(len(base), 2 * h - 2, dtype=np.int64)
    for vertex, cut in ((h, base.shape[1] - 1), (2 * h + 1, 4 * h), (3 * h + 2, 1), (0, 4 * h - 2)):
        cuts[at == vertex] = cut
    return cuts


def _cuts_of_4k_plus_2(base: IntArray) -> IntArray:
    """The cut of each cycle for n = 4k + 2, k >= 2.

    The cuts are one arc of every cycle, together a Hamiltonian path. Arc a -> b of Z_M
    (M = n - 2) belongs to the cycle that is rotated by the midpoint of a and b, so the
    path must have M distinct midpoints (:func:`_rainbow_path`).
    """
    path = _rainbow_path(len(base))
    position = np.argsort(base, axis=1)  # position[s, v]: the position of vertex v in cycle s
    cycle_of = np.full((base.shape[1], base.shape[1]), -1, dtype=np.int64)
    cycle_of[base, np.roll(base, -1, axis=1)] = np.arange(len(base))[:, None]
    cuts = np.empty(len(base), dtype=np.int64)
    cycle = cycle_of[path[:-1], path[1:]]
    if len(np.unique(cycle)) != len(
        base
    ):  # the construction is checked for n up to 3,000, not proved
        raise UserError(
            f"n: got {base.shape[1] + 1}; our construction for n = 4k + 2 fails here; allowed: a"
            " neighbouring odd n"
        )
    cuts[cycle] = position[cycle, path[:-1]]
    return cuts


def _rainbow_path(count: int) -> IntArray:
    """A Hamiltonian path over Z_count and the hub with one arc of each odd cycle.

    The hub has number count; count = 4k >= 8. A walk over Z_count with steps c, e, c,
    e, ... visits every vertex and takes its arcs from count - 1 different cycles.
    Cutting it after a few positions and joining the pieces and the hub in another order
    frees as many cycles as it needs. The parameters come from exhaustive search on
    small sizes, are linear in count for each residue modulo 12, and are checked for n
    up to 3,000.
    """
    j, residue = divmod(count, 12)
    cuts: tuple[int, ...]
    order: tuple[int, ...]
    if count == 8:
        (c, e), cuts, order = (1, 1), (0, 1, 4), (0, 4, 1, 3, 2)
    elif residue == 4:
        (c, e), cuts, order = (1, 5), (2 * j, 4 * j, 10 * j + 2), (1, 0, 3, 2, 4)
    elif residue == 8:
        (c, e), cuts, order = (4 * j - 3, 4 * j + 9), (4, 12 * j + 2), (0, 2, 1, 3)
    else:
        (c, e), cuts, order = (8 * j - 3, 4 * j + 1), (8 * j - 1, 12 * j - 2), (0, 2, 3, 1)
    steps = np.where(np.arange(count - 1) % 2, e, c)
    walk = np.concatenate([[0], np.cumsum(steps)]) % count
    pieces = [*np.split(walk, [cut + 1 for cut in cuts]), np.array([count])]
    return np.concatenate([pieces[i] for i in order])
