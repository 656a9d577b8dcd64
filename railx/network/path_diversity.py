"""Diversity of the paths between nodes: shortest and link-disjoint ones.

Both use the graph of nodes (and electrical switches); links inside nodes do not count.
"""

from __future__ import annotations

import math

import numpy as np

from railx.families import LineGraph, family_of
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import Topology

#: Largest graph for counting shortest paths from every vertex, and for computing flows
#: from one vertex to all others.
_MOST_COUNTED_VERTICES = 2500
_MOST_FLOW_VERTICES = 300
#: Above this a count of shortest paths is no longer exact in a float.
_MOST_EXACT = 2.0**53


def minimal_path_counts(
    topology: Topology, lines: list[LineGraph] | None
) -> tuple[int, float] | None:
    """Fewest and mean number of shortest node paths over ordered pairs of distinct
    nodes.

    Parallel links count as one. ``lines``: (length, directed edges) of a row and a
    column where the graph is their product. A pair then has C(h1 + h2, h1) shortest
    paths for each choice of one in its row and one in its column (h1 and h2 hops),
    exact at any size. Families with symmetric nodes are counted from one source of each
    kind. None above 2,500 vertices elsewhere, or where a count exceeds 2^53.
    """
    if lines is not None:
        (hops_x, paths_x), (hops_y, paths_y) = (
            _count(length, edges, np.arange(length)) for length, edges in lines
        )
        kinds: dict[tuple[int, int], tuple[float, float]] = {}
        sums = [_by_hops(hops, paths) for hops, paths in ((hops_x, paths_x), (hops_y, paths_y))]
        for h1, (sum1, min1) in sums[0].items():
            for h2, (sum2, min2) in sums[1].items():
                if h1 + h2:
                    orders = math.comb(h1 + h2, h1)
                    kinds[h1, h2] = (orders * sum1 * sum2, orders * min1 * min2)
        pairs = hops_x.size * hops_y.size - len(hops_x) * len(hops_y)
        return int(min(minimum for _, minimum in kinds.values())), sum(
            total for total, _ in kinds.values()
        ) / pairs
    vertices, edges, _ = _node_graph(topology)
    sources = _sources(topology)
    if (
        vertices > _MOST_COUNTED_VERTICES
        or vertices * len(sources) > _MOST_COUNTED_VERTICES**2 // 4
    ):
        return None
    hops, paths = _count(vertices, edges, sources)
    counts = paths[:, : topology.nodes][hops[:, : topology.nodes] > 0]
    return (
        None
        if not len(counts) or counts.max() > _MOST_EXACT
        else (int(counts.min()), float(counts.mean()))
    )


def disjoint_paths_min(topology: Topology, lines: list[LineGraph] | None) -> int | None:
    """The fewest link-disjoint paths between any two nodes, every lane counted.

    This is the edge connectivity of the graph of nodes. A minimum cut separates node 0
    from some other node, so the least maximum flow from node 0 is exact (``scipy``'s
    ``maximum_flow``). ``lines``: where the graph is the product of a row and a column,
    its connectivity is the least of the two smallest degrees together and of each
    factor's connectivity times the other's nodes (Xu and Yang 2006). It holds with
    parallel links as long as no pair has more of them than the connectivity of the
    other factor, else the graph is searched. None above 300 vertices where a search is
    needed.
    """
    if lines is not None:
        connectivity = _product_connectivity(lines)
        if connectivity is not None:
            return connectivity
    vertices, edges, lanes = _node_graph(topology)
    if vertices > _MOST_FLOW_VERTICES or topology.nodes < 2:
        return None
    return _connectivity(vertices, edges, lanes, topology.nodes)


def _product_connectivity(lines: list[LineGraph]) -> int | None:
    degrees, connectivity, most_parallel = [], [], []
    for length, edges in lines:
        pairs, lanes = np.unique(edges, axis=0, return_counts=True)
        degrees.append(int(np.bincount(pairs[:, 0], weights=lanes, minlength=length).min()))
        connectivity.append(_connectivity(length, pairs, lanes, length))
        most_parallel.append(int(lanes.max()))
    if most_parallel[0] > connectivity[1] or most_parallel[1] > connectivity[0]:
        return None
    return min(sum(degrees), connectivity[0] * lines[1][0], connectivity[1] * lines[0][0])


def _connectivity(vertices: int, edges: IntArray, lanes: IntArray, nodes: int) -> int:
    """The least maximum flow from vertex 0 to the vertices 1 to nodes - 1."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    graph = csr_array(
        (lanes.astype(np.int32), (edges[:, 0], edges[:, 1])), shape=(vertices, vertices)
    )
    return min(int(maximum_flow(graph, 0, sink).flow_value) for sink in range(1, nodes))


def _node_graph(topology: Topology) -> tuple[int, IntArray, IntArray]:
    """Vertices (nodes, then switches), pairs joined by a link between nodes, their
    lanes.
    """
    links = topology.links
    vertex = np.concatenate(
        [topology.chip_node, topology.nodes + np.arange(topology.switches)]
    ).astype(np.int64)
    a, b = vertex[links.src], vertex[links.dst]
    vertices = topology.nodes + topology.switches
    outside = a != b
    pairs, which = np.unique(a[outside] * vertices + b[outside], return_inverse=True)
    lanes = np.bincount(which, weights=links.lanes[outside]).astype(np.int64)
    return vertices, np.stack(np.divmod(pairs, vertices), axis=1), lanes


def _sources(topology: Topology) -> IntArray:
    """Nodes that represent all by symmetry, each kind equally often; else all nodes."""
    symmetric = family_of(topology).symmetric_sources
    return np.arange(topology.nodes) if symmetric is None else symmetric(topology.settings)


def _count(vertices: int, edges: IntArray, sources: IntArray) -> tuple[IntArray, FloatArray]:
    """Hops (-1: unreachable) and number of shortest paths from each source to each
    vertex.
    """
    from scipy.sparse import csr_array

    pairs = np.unique(edges, axis=0)
    back = csr_array((np.ones(len(pairs)), (pairs[:, 1], pairs[:, 0])), shape=(vertices, vertices))
    hops = np.full((vertices, len(sources)), -1)
    paths = np.zeros((vertices, len(sources)))
    start = (sources, np.arange(len(sources)))
    hops[start], paths[start] = 0, 1.0
    frontier, level = paths.copy(), 0
    while frontier.any():
        level += 1
        reached = np.asarray(back @ frontier)
        reached[hops >= 0] = 0.0
        hops[reached > 0] = level
        paths += reached
        frontier = reached
    return hops.T, paths.T


def _by_hops(hops: IntArray, paths: FloatArray) -> dict[int, tuple[float, float]]:
    """Shortest paths by distance: of all ordered pairs together, and of the poorest
    pair.
    """
    return {
        h: (float(paths[hops == h].sum()), float(paths[hops == h].min()))
        for h in range(int(hops.max()) + 1)
    }
