"""Sets of choices for packets that may take any of several links, on any of several virtual channels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.table import TableBuilder
from railx.topology import Topology

__all__ = ["VIRTUAL_CHANNELS", "even_sets", "first_with_room_sets"]

IntArray = NDArray[np.int64]
SetArray = NDArray[np.int32]

#: Trees need one virtual channel; three share the buffers as in the RailX simulator's inputs, where packets take any of them.
VIRTUAL_CHANNELS = 3


def even_sets(builder: TableBuilder, src: IntArray, dst: IntArray) -> SetArray:
    """Sets (int32[n]) that draw one of the links from vertex src[i] to the vertices dst[i, :] and one virtual channel."""
    pools = [builder.pools_between(src[:, None], dst, vc) for vc in range(builder.virtual_channels)]
    rows = np.concatenate(pools, axis=1).tolist()
    return np.array([builder.choice_set([(pool, 0) for pool in row]) for row in rows], dtype=np.int32)


def first_with_room_sets(builder: TableBuilder, src: IntArray, dst: IntArray, offsets: IntArray, ahead: IntArray) -> SetArray:
    """Sets (int32[n, offsets]) of any link with room from src[i] to ahead[i, :] or dst[i, :], on a virtual channel drawn evenly.

    Links are listed ``ahead`` first, then ``dst`` from place ``offsets`` on, cyclically: packets that prefer different places
    spread over the links while all have room.
    """
    rows = _link_rows(builder.topology, src, dst)
    first = _link_rows(builder.topology, src, ahead)
    sets = np.empty((len(src), len(offsets)), dtype=np.int32)
    for i, j in np.ndindex(*sets.shape):
        listed = [*first[i].tolist(), *np.roll(rows[i], -int(offsets[j])).tolist()]
        sets[i, j] = builder.choice_set([(builder.pool(listed, vc), 0) for vc in range(builder.virtual_channels)])
    return sets


def _link_rows(topology: Topology, src: IntArray, dst: IntArray) -> IntArray:
    """The link row from src[i] to each of dst[i, :] (a pair is joined by one row); ValueError where there is none."""
    links = topology.links
    key = links.src.astype(np.int64) * topology.vertices + links.dst
    order = np.argsort(key)
    wanted = src[:, None] * topology.vertices + dst
    at = order[np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)]
    if (key[at] != wanted).any():
        raise ValueError(f"{topology.family}: a router asks for a link that is not there")
    return at
