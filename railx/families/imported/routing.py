"""Routing on a network from a file: any shortest path."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "adaptive")


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """All paths with the fewest links, hop k on virtual channel k.

    Nothing so waits in a circle, whatever the graph, but there are as many virtual
    channels as the longest of these paths has links. ``min`` draws the next vertex by
    the bandwidth to it; ``adaptive`` takes the one with the shortest queue. States:
    hops taken.
    """
    to = np.arange(topology.chips) if destinations is None else destinations
    distance = _distances(topology, to)
    # Chips that are no destination may be further away: all are sources.
    longest = int(distance[: topology.chips].max())
    builder = TableBuilder(
        topology,
        routing,
        states=longest,
        virtual_channels=longest,
        selection="adaptive" if routing == "adaptive" else "weighted",
        destinations=destinations,
    )
    for vertex, (near, gbps) in enumerate(_neighbours(topology)):
        closer = distance[near] == distance[vertex] - 1
        patterns, pattern_of = np.unique(closer, axis=1, return_inverse=True)
        pattern_of = pattern_of.ravel()
        first = 0 if vertex < topology.chips else 1
        for hop in range(first, longest):
            stands = (distance[vertex] > 0) & (distance[vertex] + hop <= longest)
            if not stands.any():
                break
            pools = builder.pools_between(np.full(len(near), vertex), near, hop)
            sets = np.full(patterns.shape[1], -1, dtype=np.int32)
            for number in np.unique(pattern_of[stands]):
                leads = patterns[:, number]
                choices = [(int(pool), min(hop + 1, longest - 1)) for pool in pools[leads]]
                sets[number] = builder.choice_set(choices, gbps[leads] / gbps[leads].sum())
            builder.entry[hop][vertex] = np.where(stands, sets[pattern_of], -1)
    return builder.build()


def _distances(topology: Topology, to: NDArray[np.integer]) -> NDArray[np.int64]:
    """Links from each vertex to each destination: int[vertices, destinations]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    links = topology.links
    joined = csr_array(
        (np.ones(len(links)), (links.src, links.dst)), shape=(topology.vertices,) * 2
    )
    # Links lead both ways, so the way there is as long as the way back.
    found = dijkstra(joined, unweighted=True, indices=to)
    return np.atleast_2d(found).T.astype(np.int64)


def _neighbours(topology: Topology) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """The neighbours of each vertex and the bandwidth to each, parallel links added."""
    links = topology.links
    key = links.src.astype(np.int64) * topology.vertices + links.dst
    pairs, where = np.unique(key, return_inverse=True)
    gbps = np.bincount(where, links.capacity_gbps)
    start = np.searchsorted(pairs // topology.vertices, np.arange(topology.vertices + 1))
    near = pairs % topology.vertices
    return [
        (near[begin:end].astype(np.int64), gbps[begin:end].astype(np.float64))
        for begin, end in zip(start[:-1].tolist(), start[1:].tolist(), strict=True)
    ]
