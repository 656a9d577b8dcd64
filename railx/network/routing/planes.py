"""What networks of switches in identical planes share: the ways from a chip to its switches and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.table import TableBuilder

__all__ = ["fill_leaves", "first_links"]

IntArray = NDArray[np.int64]


def fill_leaves(builder: TableBuilder, target: IntArray, switches: int) -> None:
    """Fill the first hop of every chip (state 0, any plane's link with room) and the last hop to it (from every state).

    ``target`` (int[destinations]): the place of each destination's switch in a plane of so many ``switches``, plane after plane
    behind the chips. Both on virtual channel 0: no packet waits in a chip.
    """
    topology, links = builder.topology, builder.topology.links
    columns = np.arange(len(builder.destinations))
    up = np.flatnonzero(links.src < topology.chips)
    of_chip = up[np.argsort(links.src[up], kind="stable")].reshape(topology.chips, -1).tolist()
    pools = np.array([builder.pool(rows, 0) for rows in of_chip])
    builder.entry[0][: topology.chips] = builder.single(pools, 0)[:, None]
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
