"""Paths between a chip and its switches in networks of identical planes."""

from __future__ import annotations

import numpy as np

from railx.vocabulary.arrays import IntArray
from railx.vocabulary.routing.table import TableBuilder


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
