"""Dimension order on RailX set to a torus of nodes: its chips form one large torus, whose links run inside the nodes or along
rails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.table import RoutingTable, TableBuilder
from railx.settings import load
from railx.topology import RailXTorusSettings, Topology

__all__ = ["ROUTINGS", "chip_grid", "route"]

ROUTINGS = ("min", "balanced")

IntArray = NDArray[np.int64]

#: States of a packet: undecided (at its source and wherever a ring is done), then before and after the wrap link, up and down.
_UNDECIDED, _UP, _DOWN = 0, 1, 3
_STATES = 5


def route(topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None) -> RoutingTable:
    """X first, the shorter way round; both routings send half of the packets each way round where the ways are equally long.

    A packet is on virtual channel 1 until it takes the wrap link of its ring and on 0 from there on, and so again in y (RailX
    simulator, ``XY``). The n parallel lanes inside a node and the n rails of a chip's side are one pool of channels.
    """
    settings: RailXTorusSettings = load(RailXTorusSettings, topology.settings, "topology")
    builder = TableBuilder(topology, routing, states=_STATES, virtual_channels=2, destinations=destinations)
    grid = chip_grid(settings.m, settings.x_scale, settings.y_scale)
    place = np.empty((2, topology.chips), dtype=np.int64)
    place[1, grid.ravel()], place[0, grid.ravel()] = np.divmod(np.arange(grid.size), grid.shape[1])
    earlier = np.zeros((topology.chips, len(builder.destinations)), dtype=np.bool_)  # a ring before this one is still to be done
    for dimension, axis in ((0, 1), (1, 0)):
        near = np.empty((2, topology.chips), dtype=np.int64)
        for side, step in enumerate((-1, 1)):
            near[side, grid.ravel()] = np.roll(grid, -step, axis=axis).ravel()
        target = place[dimension, builder.destinations]
        differs = place[dimension][:, None] != target
        here = differs & ~earlier
        sets = _ring_sets(builder, place[dimension], near, grid.shape[axis])
        for state in range(_STATES):
            builder.entry[state][here] = sets[state][:, target][here]
        earlier |= differs
    return builder.build()


def chip_grid(m: int, columns: int, rows: int) -> IntArray:
    """The chip at each place of the whole plane of chips, int[m * rows, m * columns], for ``columns`` by ``rows`` nodes of m x
    m.
    """
    y, x = np.indices((m * rows, m * columns))
    chip: IntArray = (y // m * columns + x // m) * m * m + y % m * m + x % m
    return chip


def _ring_sets(builder: TableBuilder, place: IntArray, near: IntArray, length: int) -> NDArray[np.int32]:
    """The sets of one ring by state, chip and target place (int32[states, chips, length]); ``near``: the next chip down and up."""
    chip, goal = np.arange(len(place)), np.arange(length)[None, :]
    sets = np.full((_STATES, len(place), length), -1, dtype=np.int32)
    for side, step, first in ((1, 1, _UP), (0, -1, _DOWN)):
        after = (place + step) % length
        wraps = after != place + step
        low, high = (builder.pools_between(chip, near[side], vc) for vc in (0, 1))
        ends = after[:, None] == goal
        before_wrap = np.where(ends, _UNDECIDED, np.where(wraps, first + 1, first)[:, None])
        sets[first] = builder.single(np.where(wraps, low, high)[:, None], before_wrap)
        sets[first + 1] = builder.single(low[:, None], np.where(ends, _UNDECIDED, first + 1))
    ahead = (goal - place[:, None]) % length
    sets[_UNDECIDED] = np.where(2 * ahead <= length, sets[_UP], sets[_DOWN])
    tie = 2 * ahead == length
    sets[_UNDECIDED][tie] = builder.merge(sets[_UP][tie], sets[_DOWN][tie])
    return sets
