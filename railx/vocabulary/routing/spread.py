"""Sets of choices among several links, planes and virtual channels."""

from __future__ import annotations

import numpy as np

from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.routing.table import TableBuilder

#: Trees need one virtual channel; three share the buffers as in the RailX simulator's
#: inputs.
VIRTUAL_CHANNELS = 3


def even_sets(builder: TableBuilder, src: IntArray, dst: IntArray) -> Int32Array:
    """Sets (int32[n]) of the links from src[i] to dst[i, :], all channels equally."""
    return np.array(
        [builder.choice_set(choices) for choices in _choices(builder, src, dst)], dtype=np.int32
    )


def fallback_sets(
    builder: TableBuilder, src: IntArray, first: IntArray, second: IntArray, delay_ns: float
) -> Int32Array:
    """Sets (int32[n]) of an adaptive router with second choices.

    The second choices dst second[i, :] cost ``delay_ns`` more than first[i, :]. The
    weights, for exact loads, give all to the first.
    """
    sets = np.empty(len(src), dtype=np.int32)
    for i, (preferred, fallback) in enumerate(
        zip(_choices(builder, src, first), _choices(builder, src, second), strict=True)
    ):
        weights = [1 / len(preferred)] * len(preferred) + [0.0] * len(fallback)
        sets[i] = builder.choice_set(
            preferred + fallback,
            weights,
            delays_ns=[0.0] * len(preferred) + [delay_ns] * len(fallback),
        )
    return sets


def _choices(builder: TableBuilder, src: IntArray, dst: IntArray) -> list[list[tuple[int, int]]]:
    """The (pool, state 0) of every link from src[i] to dst[i, :] and channel."""
    pools = [builder.pools_between(src[:, None], dst, vc) for vc in range(builder.virtual_channels)]
    return [[(pool, 0) for pool in row] for row in np.concatenate(pools, axis=1).tolist()]


def fill_leaves(builder: TableBuilder, target: IntArray, switches: int) -> None:
    """Fill the first hop of every chip (state 0) and the last hop to it (every state).

    ``target`` (int[destinations]): the index of each destination's switch in a plane of
    ``switches`` switches; planes follow the chips one by one. A packet enters by any
    plane's link with room, on a virtual channel drawn evenly, and leaves on channel 0:
    nothing waits in a chip, so neither can be part of a cycle.
    """
    topology, links = builder.topology, builder.topology.links
    columns = np.arange(len(builder.destinations))
    up = np.flatnonzero(links.src < topology.chips)
    of_chip = up[np.argsort(links.src[up], kind="stable")].reshape(topology.chips, -1).tolist()
    enter = [
        builder.choice_set([(builder.pool(rows, vc), 0) for vc in range(builder.virtual_channels)])
        for rows in of_chip
    ]
    builder.entry[0][: topology.chips] = np.array(enter)[:, None]
    builder.entry[0][builder.destinations, columns] = -1
    for first in range(topology.chips, topology.vertices, switches):
        down = builder.single(builder.pools_between(first + target, builder.destinations, 0), 0)
        builder.entry[:, first + target, columns] = down


def first_links(builder: TableBuilder, src: IntArray, dst: IntArray) -> list[int]:
    """The first link row of each pair of joined vertices."""
    links, vertices = builder.topology.links, builder.topology.vertices
    keys, rows = np.unique(links.src.astype(np.int64) * vertices + links.dst, return_index=True)
    first: list[int] = rows[np.searchsorted(keys, src.astype(np.int64) * vertices + dst)].tolist()
    return first
