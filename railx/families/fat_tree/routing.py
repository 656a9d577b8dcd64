"""Up*/down* on a fat tree: up to the lowest switch above the destination, then down.

There is one path down. The plane is chosen at the source, after which the vertex
implies it. Links up come before links down, so nothing can wait in a circle on any
number of virtual channels. A packet takes one of three at every hop (the RailX
simulator's fat tree takes any).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.fat_tree.settings import FatTreeSettings
from railx.vocabulary.routing.spread import VIRTUAL_CHANNELS, even_sets
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "adaptive")

IntArray = NDArray[np.int64]


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """Up*/down* by the name of a routing.

    ``min`` draws plane and ports up evenly, ``adaptive`` takes those with the shortest
    queues. Exact loads are the same for both: an adaptive router has no reason to
    prefer a port before queues form.
    """
    settings = topology.settings
    assert isinstance(settings, FatTreeSettings)
    builder = TableBuilder(
        topology,
        routing,
        states=1,
        virtual_channels=VIRTUAL_CHANNELS,
        selection="adaptive" if routing == "adaptive" else "weighted",
        destinations=destinations,
    )
    to, chip = builder.destinations.astype(np.int64), np.arange(settings.chips)
    first = settings.chips + np.arange(settings.planes) * settings.plane_switches
    builder.entry[0][chip] = even_sets(
        builder, chip, first + (chip // settings.leaf_down)[:, None]
    )[:, None]
    for plane in first.tolist():
        _fill_plane(builder, settings, plane, to)
    builder.entry[0][to, np.arange(len(to))] = -1
    return builder.build()


def _fill_plane(builder: TableBuilder, settings: FatTreeSettings, first: int, to: IntArray) -> None:
    """The switches of one plane, whose first leaf is vertex ``first``.

    Up from everywhere, then down where there is a path down.
    """
    entry, up, pods = (
        builder.entry[0],
        settings.leaf_up,
        settings.pods if settings.tiers == 3 else 1,
    )
    leaf = (first + np.arange(settings.leaves)).reshape(pods, -1)
    upper = (first + settings.leaves + np.arange(settings.upper_switches)).reshape(pods, up)
    own_leaf, own_pod = to // settings.leaf_down, to // (settings.chips // pods)
    entry[leaf.ravel()] = even_sets(builder, leaf.ravel(), np.repeat(upper, leaf.shape[1], axis=0))[
        :, None
    ]
    if settings.tiers == 3:
        core = (
            first + settings.leaves + settings.upper_switches + np.arange(settings.core_switches)
        ).reshape(up, -1)
        entry[upper.ravel()] = even_sets(builder, upper.ravel(), np.tile(core, (pods, 1)))[:, None]
        entry[core.ravel()] = _down(
            builder, core.ravel(), np.repeat(upper.T, core.shape[1], axis=0)
        )[:, own_pod]
    for pod in np.unique(own_pod).tolist():
        here = np.flatnonzero(own_pod == pod)
        below = _down(builder, upper[pod], np.tile(leaf[pod], (up, 1)))
        entry[upper[pod][:, None], here] = below[:, own_leaf[here] % leaf.shape[1]]
    entry[first + own_leaf, np.arange(len(to))] = even_sets(builder, first + own_leaf, to[:, None])


def _down(builder: TableBuilder, vertex: IntArray, below: IntArray) -> NDArray[np.int32]:
    """The set of each single link from a vertex to one of ``below``.

    ``below``: int[vertices, links].
    """
    return even_sets(builder, np.repeat(vertex, below.shape[1]), below.reshape(-1, 1)).reshape(
        below.shape
    )
