"""Channel loads of even splits over all shortest paths: a check for small
topologies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railx.errors import UserError
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import Topology

__all__ = ["shortest_path_lane_loads"]


_MOST_VERTICES = 2000


def shortest_path_lane_loads(topology: Topology) -> FloatArray:
    """Load of one lane of each link row when pairs split over all shortest paths.

    Each pair of chips splits evenly; paths are shortest in links. Flits/cycle per
    flit/chip/cycle of uniform traffic; parallel lanes count as different paths. The
    accumulation is that of Brandes (2001) for edge betweenness. ValueError above 2,000
    vertices.
    """
    if topology.vertices > _MOST_VERTICES:
        raise UserError(
            f"topology: {topology.vertices} vertices are too many to enumerate paths; allowed: at"
            f" most {_MOST_VERTICES}"
        )
    from scipy.sparse import csr_array

    links, size = topology.links, topology.vertices
    lanes = csr_array((links.lanes.astype(np.float64), (links.src, links.dst)), shape=(size, size))
    per_lane = np.zeros(len(links))
    for first in range(0, topology.chips, 64):
        sources = np.arange(first, min(first + 64, topology.chips))
        per_lane += _loads_from(topology, lanes, sources)
    return per_lane / (topology.chips - 1)


def _loads_from(topology: Topology, lanes: Any, sources: IntArray) -> FloatArray:
    """Flow on one lane of each row from the sources, each sending 1 to every other
    chip.
    """
    levels = _path_counts(topology, lanes, sources)
    paths = sum(levels)
    demand = np.zeros((len(sources), topology.vertices))
    demand[:, : topology.chips] = 1
    flow = np.zeros_like(demand)  # traffic that passes through or ends at a vertex
    loads = np.zeros(len(topology.links))
    src, dst = topology.links.src, topology.links.dst
    reached = np.full(demand.shape, -1)
    for hops, level in enumerate(levels):
        reached[level > 0] = hops
    for hops in range(len(levels) - 1, 0, -1):
        at = reached == hops
        per_path = np.where(at, (flow + demand) / np.where(at, paths, 1), 0)
        flow = flow + levels[hops - 1] * (lanes @ per_path.T).T
        loads += (levels[hops - 1][:, src] * per_path[:, dst]).sum(axis=0)
    return loads


def _path_counts(topology: Topology, lanes: Any, sources: IntArray) -> list[FloatArray]:
    """Shortest paths (float[sources, vertices]) to the vertices at 0, 1, 2, ...
    hops.
    """
    level = np.zeros((len(sources), topology.vertices))
    level[np.arange(len(sources)), sources] = 1
    seen = level > 0
    levels = [level]
    while True:
        level = np.where(seen, 0, (lanes.T @ levels[-1].T).T)
        if not level.any():
            return levels
        seen |= level > 0
        levels.append(level)
