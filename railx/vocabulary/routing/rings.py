"""Dimension order on tori, deadlock-free with two virtual channels per ring."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.routing.groups import groups_by_coordinates
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

#: States of a packet: undecided (at its source and after each ring), then before and
#: after the wrap link, up and down.
_UNDECIDED, _UP, _DOWN = 0, 1, 3
_STATES = 5


def route_rings(
    topology: Topology,
    routing: str,
    shape: Sequence[int],
    destinations: Int32Array | None = None,
    position: IntArray | None = None,
    split_ties: bool = False,
) -> RoutingTable:
    """One ring after the other, the shorter path.

    ``shape``: chips along each dimension, the first runs fastest. ``position``
    (int[chips]): the index of each chip in that order; default: its number.

    At equal distance ``min`` goes up (``split_ties``: does as ``balanced``) and
    ``balanced`` splits the packets evenly. A packet is on virtual channel 1 until it
    takes the wrap link of its ring and on 0 after it, and likewise in the next ring
    (Dally and Seitz 1987). Under ``balanced`` a packet without a wrap link on its path
    draws one of the two channels when it enters the ring: on channel 0 nothing waits
    for the wrap link, so this closes no cycle either.

    ``min_inside`` is that of the RailX simulator: at equal distance no wrap link is
    taken, and packets without one on their path are on channel 0.
    """
    position = np.arange(topology.chips) if position is None else position
    to = position if destinations is None else position[destinations]
    strides = [math.prod(shape[:axis]) for axis in range(len(shape))]
    coordinate, goal = (
        [at // stride % length for stride, length in zip(strides, shape, strict=True)]
        for at in (position, to)
    )
    groups = groups_by_coordinates(len(position), coordinate[:-1], goal[:-1], goal, shape)
    builder = TableBuilder(
        topology, routing, destinations, groups, states=_STATES, virtual_channels=2
    )
    for level, (stride, length) in enumerate(zip(strides, shape, strict=True)):
        columns = groups.on_level(level)
        builder.entry[:, :, columns] = ring_sets(
            builder, position, stride, length, split_ties=split_ties
        )
        # No packet goes on in a finished ring.
        builder.entry[:, np.arange(len(position)), groups.first[level] + coordinate[level]] = -1
    return builder.build()


def ring_sets(
    builder: TableBuilder, position: IntArray, stride: int, length: int, *, split_ties: bool = False
) -> Int32Array:
    """The sets of a dimension of rings, by state, chip and target: int32[5, chips,
    length].

    ``position`` (int[chips]): the index of each chip, a permutation; neighbours in a
    ring are ``stride`` apart. A packet at the end of its ring returns to state 0.
    """
    coordinate = position // stride % length
    at = np.argsort(position)  # the chip at each index
    chip, goal = np.arange(len(coordinate)), np.arange(length)[None, :]
    sets = np.full((_STATES, len(coordinate), length), -1, dtype=np.int32)
    entering = []
    for direction, first in ((1, _UP), (-1, _DOWN)):
        after = (coordinate + direction) % length
        near = at[position + (after - coordinate) * stride]
        wraps = after != coordinate + direction
        low, high = (builder.pools_between(chip, near, vc) for vc in (0, 1))
        ends = after[:, None] == goal
        before_wrap = np.where(ends, _UNDECIDED, np.where(wraps, first + 1, first)[:, None])
        sets[first] = builder.single(np.where(wraps, low, high)[:, None], before_wrap)
        sets[first + 1] = builder.single(low[:, None], np.where(ends, _UNDECIDED, first + 1))
        entering.append(sets[first].copy())
        # takes no wrap link in this direction
        stays = direction * (goal - coordinate[:, None]) > 0
        if builder.routing == "balanced":
            entering[-1][stays] = builder.merge(sets[first][stays], sets[first + 1][stays])
        elif builder.routing == "min_inside":
            entering[-1][stays] = sets[first + 1][stays]
    ahead = (goal - coordinate[:, None]) % length
    up, tie = 2 * ahead <= length, 2 * ahead == length
    if builder.routing == "min_inside":
        up = np.where(tie, goal > coordinate[:, None], up)
    sets[_UNDECIDED] = np.where(up, *entering)
    if (split_ties or builder.routing == "balanced") and tie.any():
        sets[_UNDECIDED][tie] = builder.merge(*(direction[tie] for direction in entering))
    return sets
