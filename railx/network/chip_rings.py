"""Rings through grids of single chips: 3D tori (plain, or cubes behind optical
switches) and HyperX whose chips are the routers.

A line of a torus is n rings each way. A line of L chips that are all joined has L - 1
rings each way which take every pair of neighbours twice, so that each has half of the
links of a pair; together they fill all ports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from railx.families.hyperx.settings import HyperXSettings
from railx.families.torus_3d.settings import Torus3DSettings
from railx.families.tpu_v4.graph import chip_places
from railx.families.tpu_v4.settings import TpuV4Settings
from railx.vocabulary.hamiltonian import undirected_rings
from railx.vocabulary.line_rings import LineRings, RingLink, line_rings
from railx.vocabulary.topology import Topology

__all__ = ["chip_grid_rings"]

IntArray = NDArray[np.int64]


def chip_grid_rings(topology: Topology) -> tuple[LineRings, ...] | None:
    """The rings of every dimension of a 3D torus, TPU v4 or HyperX without switches,
    all lines of each; None elsewhere.
    """
    settings = topology.settings
    if isinstance(settings, HyperXSettings) and settings.switchless:
        chip = np.arange(settings.chips).reshape(settings.shape[::-1]).transpose()
        return tuple(_joined(lines, settings.lanes) for lines in _lines(chip))
    if isinstance(settings, Torus3DSettings):
        chip = np.arange(settings.chips).reshape(settings.shape[::-1]).transpose()
        return tuple(_torus(lines, settings.n) for lines in _lines(chip))
    if isinstance(settings, TpuV4Settings):
        chip = np.empty(settings.lengths, dtype=np.int64)
        chip[tuple(chip_places(settings))] = np.arange(settings.chips)
        return tuple(_torus(lines, settings.n) for lines in _lines(chip))
    return None


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
