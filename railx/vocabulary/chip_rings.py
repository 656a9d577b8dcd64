"""Rings through the lines of grids of single chips.

A line of a torus is n rings in each direction. A line of L chips that are all joined
has L - 1 rings in each direction which take every pair of neighbours twice, so that
each has half of the links of a pair. Together they fill all ports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.hamiltonian import undirected_rings
from railx.vocabulary.line_rings import LineRings, RingLink, line_rings

__all__ = ["joined_rings", "torus_rings"]

IntArray = NDArray[np.int64]


def torus_rings(chip: IntArray, n: int) -> tuple[LineRings, ...]:
    """The rings of every dimension of a torus, all lines of each.

    ``chip``: the number of the chip at each place, ``n``: links between neighbours.
    """
    return tuple(_torus(lines, n) for lines in _lines(chip))


def joined_rings(chip: IntArray, lanes: int) -> tuple[LineRings, ...]:
    """The same where all chips of a line are joined, each pair by ``lanes`` links."""
    return tuple(_joined(lines, lanes) for lines in _lines(chip))


def _lines(chip: IntArray) -> list[IntArray]:
    """The chips of the lines along each axis of a grid of chips, int[lines, length]."""
    return [
        np.moveaxis(chip, axis, -1).reshape(-1, length) for axis, length in enumerate(chip.shape)
    ]


def _torus(lines: IntArray, n: int) -> LineRings:
    length = lines.shape[1]
    order = list(range(length))
    # Round a ring of two both ways lead to the same neighbour: the way down takes the
    # second n channels.
    second = n * (length == 2)
    both = [
        (way, lane + second * (way is not order))
        for lane in range(n)
        for way in (order, order[::-1])
    ]
    return _round(lines, both, 1.0)


def _joined(lines: IntArray, lanes: int) -> LineRings:
    length = lines.shape[1]
    orders = undirected_rings(length).tolist() if length > 2 else [[0, 1]]
    return _round(lines, [(way, 0) for order in orders for way in (order, order[::-1])], lanes / 2)


def _round(lines: IntArray, rings: Sequence[tuple[list[int], int]], ports: float) -> LineRings:
    """Rings by the order of their places and their channel."""
    length = lines.shape[1]
    entries: list[RingLink] = [
        (ring * length + k, order[k], order[(k + 1) % length], -1, channel)
        for ring, (order, channel) in enumerate(rings)
        for k in range(length)
    ]
    return line_rings(length, len(rings), lines, entries, ports)
