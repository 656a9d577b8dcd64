"""Routing on a HyperX: one hop for each dimension that differs, or two.

With two hops the first is to a random router of the line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.hyperx.settings import HyperXSettings
from railx.vocabulary.routing.planes import fill_leaves
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "balanced", "adaptive", "valiant")

#: Of ``min``, which needs one: as many as the other networks of the comparison have
#: (RailX simulator).
_MIN_CHANNELS = 3

IntArray = NDArray[np.int64]
SetArray = NDArray[np.int32]


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """Where switches route, a chip enters by any of its planes and stays in it.

    * ``min``: dimension after dimension, each hop on one of three virtual channels,
      drawn evenly.
    * ``balanced``: the dimensions in random order, each next hop one virtual channel
      up; minimal. Uniform traffic loads links as ``min`` does.
    * ``adaptive``: the same, but each router takes the dimension with the shortest
      queue.
    * ``valiant``: dimension after dimension, in each by way of a router of the line
      drawn evenly (Valiant 1982, line by line). The first hop is on channel 0, the
      second on channel 1. It levels any traffic at up to twice the load of ``min``
      under uniform.

    States: hops taken (``balanced``, ``adaptive``); whether the first of two hops is
    done (``valiant``).
    """
    settings = topology.settings
    assert isinstance(settings, HyperXSettings)
    dimensions = len(settings.shape)
    any_order = routing in ("balanced", "adaptive")
    builder = TableBuilder(
        topology,
        routing,
        states=dimensions + (not settings.switchless)
        if any_order
        else 2
        if routing == "valiant"
        else 1,
        virtual_channels=dimensions if any_order else 2 if routing == "valiant" else _MIN_CHANNELS,
        selection="adaptive" if routing == "adaptive" else "weighted",
        destinations=destinations,
    )
    target = builder.destinations.astype(np.int64) // max(1, settings.chips_per_switch)
    for plane in range(settings.planes):
        first = 0 if settings.switchless else settings.chips + plane * settings.routers
        if any_order:
            _fill_any_order(builder, settings, first, target)
        else:
            _fill_ordered(builder, settings, first, target)
    if not settings.switchless:
        fill_leaves(builder, target, settings.routers)
    return builder.build()


def _fill_ordered(
    builder: TableBuilder, settings: HyperXSettings, first: int, target: IntArray
) -> None:
    """Dimension after dimension in one plane, whose router 0 is vertex ``first``."""
    router = np.arange(settings.routers)
    vertices = slice(first, first + settings.routers)
    earlier = np.zeros((settings.routers, len(target)), dtype=np.bool_)
    stride = 1
    for length in settings.shape:
        place, goal = router // stride % length, target // stride % length
        differs = place[:, None] != goal
        here = differs & ~earlier
        for state, sets in enumerate(_line_sets(builder, first, place, stride, length)):
            builder.entry[state][vertices][here] = sets[:, goal][here]
        earlier |= differs
        stride *= length


def _line_sets(
    builder: TableBuilder, first: int, place: IntArray, stride: int, length: int
) -> list[SetArray]:
    """For each state, the sets of one dimension by router and target place.

    -1 where they are equal.
    """
    if builder.routing == "min":
        pools = [
            _line_pools(builder, first, place, stride, length, vc) for vc in range(_MIN_CHANNELS)
        ]
        return [_set_of_each(builder, np.stack(pools, axis=-1), 0)]
    detour, direct = (_line_pools(builder, first, place, stride, length, vc) for vc in (0, 1))
    undecided = np.full(direct.shape, -1, dtype=np.int32)
    for router, own in enumerate(place.tolist()):
        for goal in range(length):
            if goal != own:
                detours = [
                    (int(detour[router, via]), 0 if via == goal else 1)
                    for via in range(length)
                    if via != own
                ]
                undecided[router, goal] = builder.choice_set(
                    [*detours, (int(direct[router, goal]), 0)]
                )
    return [undecided, builder.single(direct, 0)]


def _fill_any_order(
    builder: TableBuilder, settings: HyperXSettings, first: int, target: IntArray
) -> None:
    """Any dimension that still differs may be next.

    Hop k of a packet is on virtual channel k.
    """
    router, goal = np.arange(settings.routers), np.arange(settings.routers)
    for hop in range(len(settings.shape)):
        pools, stride = [], 1
        for length in settings.shape:
            line = _line_pools(builder, first, router // stride % length, stride, length, hop)
            pools.append(line[:, goal // stride % length])
            stride *= length
        choices = np.stack(pools, axis=-1)
        choices[
            (choices >= 0).sum(axis=-1) > len(settings.shape) - hop
        ] = -1  # so far apart nobody is after so many hops
        sets = _set_of_each(builder, choices, min(hop + 1, len(builder.entry) - 1))
        builder.entry[hop][first : first + settings.routers] = sets[:, target]


def _set_of_each(builder: TableBuilder, pools: IntArray, state: int) -> SetArray:
    """Sets of all pools of the last axis that are not -1; -1 where there are none."""
    distinct, where = np.unique(pools.reshape(-1, pools.shape[-1]), axis=0, return_inverse=True)
    ids = np.full(len(distinct), -1, dtype=np.int32)
    for i, row in enumerate(distinct.tolist()):
        choices = [(pool, state) for pool in row if pool >= 0]
        if choices:
            ids[i] = builder.choice_set(choices)
    return ids[where.ravel()].reshape(pools.shape[:-1])


def _line_pools(
    builder: TableBuilder, first: int, place: IntArray, stride: int, length: int, vc: int
) -> IntArray:
    """The pool from each router to each place of its line.

    int[routers, length], -1 to itself.
    """
    vertex = first + np.arange(len(place))
    near = vertex[:, None] + (np.arange(length) - place[:, None]) * stride
    return builder.pools_between(vertex[:, None], near, vc)
