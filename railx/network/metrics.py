"""Graph metrics (hops of nodes and chips, bisection, diversity of paths) and checks of
the optical circuits.

Shortest and link-disjoint paths are those of the graph of nodes (and electrical
switches); links inside nodes do not count.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra, maximum_flow

from railx.errors import UserError
from railx.families import LineGraph, family_of
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import INTERNAL, Topology

#: Largest graph (vertices) for breadth-first search from every vertex.
_MOST_SEARCHED_VERTICES = 2000
#: Largest graph for counting shortest paths from every vertex, and for computing flows
#: from one vertex to all others.
_MOST_COUNTED_VERTICES = 2500
_MOST_FLOW_VERTICES = 300
#: Above this a count of shortest paths is no longer exact in a float.
_MOST_EXACT = 2.0**53


def topology_metrics(topology: Topology) -> dict[str, Any]:
    """Size, hops and bisection of a topology as a flat mapping.

    Values that do not apply or are too large to search are None.

    * ``links``: full-duplex channels, every lane counted.
    * ``circuits``, ``optical_switches`` and ``optical_ports``: those of the topology's
      table, which has one plane of MixNet, whose planes are alike; the bill counts all.
    * Hops are means and maxima over ordered pairs of distinct chips, as of uniform
      traffic. ``node_hops`` counts the links that leave a node on a path with the
      fewest of them (in a fat tree every link), ``chip_hops`` all links of a shortest
      path.
    * ``bisection_gbps``: rate in one direction across the family's natural cut, counted
      in the graph. ``bisection_closed_form_gbps`` is the formula for the same cut,
      ``bisection_gb_s_per_chip`` divides it by the chips of the smaller half, and
      ``bisection_equal_halves`` says whether the halves are equal.
    * ``minimal_paths_min`` and ``minimal_paths_mean``: shortest paths of nodes (and
      switches) between two distinct nodes, parallel links counted as one.
    * ``disjoint_paths_min``: link-disjoint paths between the two nodes with the fewest,
      every lane counted.
    """
    settings, family = topology.settings, family_of(topology)
    links = topology.links
    diameter_node_hops, mean_node_hops = _summary(node_hop_counts(topology))
    diameter_chip_hops, mean_chip_hops = _summary(chip_hop_counts(topology))
    lines = _line_graphs(topology)
    minimal_paths_min, minimal_paths_mean = minimal_path_counts(topology, lines) or (None, None)
    circuits = topology.circuits
    return {
        "family": topology.family,
        "chips": topology.chips,
        "nodes": topology.nodes,
        "switches": topology.switches,
        "links": int(links.lanes.sum()) // 2,
        "external_links": int(links.lanes[links.kind != INTERNAL].sum()) // 2,
        "circuits": None if circuits is None else len(circuits),
        "optical_switches": None if circuits is None else int(circuits.ocs.max()) + 1,
        "optical_ports": None if circuits is None else 2 * len(circuits),
        "ports_per_chip": family.ports_per_chip(settings),
        "injection_gb_s_per_chip": family.ports_per_chip(settings) * settings.port_gbps / 8,
        "diameter_node_hops": diameter_node_hops,
        "mean_node_hops": mean_node_hops,
        "diameter_chip_hops": diameter_chip_hops,
        "mean_chip_hops": mean_chip_hops,
        "minimal_paths_min": minimal_paths_min,
        "minimal_paths_mean": minimal_paths_mean,
        "disjoint_paths_min": disjoint_paths_min(topology, lines),
        **bisection(topology),
    }


def bisection(topology: Topology) -> dict[str, Any]:
    """The natural cut of a family, None where it has none."""
    family, settings, links = family_of(topology), topology.settings, topology.links
    if family.halves is None or family.bisection_ports is None:
        keys = ("gbps", "closed_form_gbps", "gb_s_per_chip", "equal_halves")
        return {f"bisection_{key}": None for key in keys}
    half = family.halves(settings)
    crossing = (half[links.src] == 0) & (half[links.dst] == 1)
    cut_gbps = float(links.capacity_gbps[crossing].sum())
    chips_in_half = np.bincount(half[: topology.chips], minlength=2)
    return {
        "bisection_gbps": cut_gbps,
        "bisection_closed_form_gbps": family.bisection_ports(settings) * settings.port_gbps,
        "bisection_gb_s_per_chip": cut_gbps / 8 / int(chips_in_half.min()),
        "bisection_equal_halves": bool(chips_in_half[0] == chips_in_half[1]),
    }


def node_hop_counts(topology: Topology) -> IntArray | None:
    """Ordered pairs of chips that are h inter-node hops apart (index h), or None.

    A chip and itself count at 0. Where the lines of a family are all alike, the node
    graph is the product of a row and a column and the hops add up: exact at any size.
    Families may supply their counts. Other graphs of up to 2,000 vertices are searched
    breadth first.
    """
    closed_form = family_of(topology).node_hop_counts
    if closed_form is not None:
        counts: IntArray = closed_form(topology.settings)
        return counts
    per_node = topology.chips // topology.nodes
    lines = _line_graphs(topology)
    if lines is not None:
        row, column = (_hops_from_all(length, edges, length) for length, edges in lines)
        return np.convolve(np.bincount(row.ravel()), np.bincount(column.ravel())) * per_node**2
    if topology.nodes + topology.switches > _MOST_SEARCHED_VERTICES:
        return None
    vertices, edges, _ = _node_graph(topology)
    hops = _hops_from_all(vertices, edges, topology.nodes)
    return np.bincount(hops[:, : topology.nodes].ravel()) * per_node**2


def chip_hop_counts(topology: Topology) -> IntArray | None:
    """Ordered pairs of chips h links apart (index h); None above 2,000 vertices."""
    if topology.vertices > _MOST_SEARCHED_VERTICES:
        return None
    edges = np.stack([topology.links.src, topology.links.dst], axis=1).astype(np.int64)
    hops = _hops_from_all(topology.vertices, edges, topology.chips)
    return np.bincount(hops[:, : topology.chips].ravel())


def check_optical_circuits(topology: Topology) -> None:
    """Check the optical circuits; ValueError names the first fault.

    Each port exists (``ocs_radix``), is used once at most; families may check more.
    """
    circuits = topology.circuits
    if circuits is None:
        raise UserError(
            f"{topology.family}: a topology without optical switches has no circuits to check"
        )
    settings = topology.settings
    ports = np.concatenate([circuits.port_a, circuits.port_b]).astype(np.int64)
    lowest, span = int(ports.min()), int(ports.max()) + 1
    most = getattr(settings, "ocs_radix", None) or span
    if lowest < 0 or span > most:
        raise UserError(
            f"circuits: port {lowest if lowest < 0 else span - 1} does not exist; allowed: 0 to"
            f" {most - 1}"
        )
    used = np.bincount(np.concatenate([circuits.ocs, circuits.ocs]).astype(np.int64) * span + ports)
    if used.max() > 1:
        ocs, port = divmod(int(used.argmax()), span)
        raise UserError(
            f"circuits: port {port} of optical switch {ocs} is used {int(used.max())} times;"
            " allowed: at most once"
        )
    check = family_of(topology).check_circuits
    if check is not None:
        check(settings, circuits)


def _line_graphs(topology: Topology) -> list[LineGraph] | None:
    """A row and a column of nodes, where all rows and all columns are alike."""
    line_graphs = family_of(topology).line_graphs
    return None if line_graphs is None else line_graphs(topology.settings, topology)


def _hops_from_all(vertices: int, edges: IntArray, sources: int) -> IntArray:
    """Hops (int[sources, vertices]) from the first ``sources`` vertices, all joined."""
    graph = csr_array(
        (np.ones(len(edges), dtype=np.float64), (edges[:, 0], edges[:, 1])),
        shape=(vertices, vertices),
    )
    hops = dijkstra(graph, directed=True, unweighted=True, indices=np.arange(sources))
    if not np.isfinite(hops).all():
        raise UserError("topology: the graph is not connected, some chips cannot reach each other")
    return hops.astype(np.int64)


def _summary(counts: IntArray | None) -> tuple[int | None, float | None]:
    """Diameter and mean over ordered pairs of distinct chips."""
    if counts is None:
        return None, None
    pairs, total = int(counts.sum()), int(np.arange(len(counts)) @ counts)
    return int(np.flatnonzero(counts)[-1]), total / (pairs - round(pairs**0.5))


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
        totals, fewest = [], []
        for h1, (sum1, min1) in _by_hops(hops_x, paths_x).items():
            for h2, (sum2, min2) in _by_hops(hops_y, paths_y).items():
                if h1 + h2:
                    orders = math.comb(h1 + h2, h1)
                    totals.append(orders * sum1 * sum2)
                    fewest.append(orders * min1 * min2)
        pairs = hops_x.size * hops_y.size - len(hops_x) * len(hops_y)
        return int(min(fewest)), sum(totals) / pairs
    vertices, edges, _ = _node_graph(topology)
    # Nodes that represent all by symmetry, each kind equally often; else all nodes.
    symmetric = family_of(topology).symmetric_sources
    sources = np.arange(topology.nodes) if symmetric is None else symmetric(topology.settings)
    if (
        vertices > _MOST_COUNTED_VERTICES
        or vertices * len(sources) > _MOST_COUNTED_VERTICES**2 // 4
    ):
        return None
    hops, paths = _count(vertices, edges, sources)
    counts = paths[:, : topology.nodes][hops[:, : topology.nodes] > 0]
    if not len(counts) or counts.max() > _MOST_EXACT:
        return None
    return int(counts.min()), float(counts.mean())


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
    graph = csr_array(
        (lanes.astype(np.int32), (edges[:, 0], edges[:, 1])), shape=(vertices, vertices)
    )
    return min(int(maximum_flow(graph, 0, sink).flow_value) for sink in range(1, nodes))


def _node_graph(topology: Topology) -> tuple[int, IntArray, IntArray]:
    """Vertices (nodes, then switches), pairs joined outside nodes, their lanes."""
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


def _count(vertices: int, edges: IntArray, sources: IntArray) -> tuple[IntArray, FloatArray]:
    """Hops (-1: none) and number of shortest paths from sources to all vertices."""
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
    """Shortest paths by distance: of all pairs together, and of the poorest pair."""
    return {
        h: (float(paths[hops == h].sum()), float(paths[hops == h].min()))
        for h in range(int(hops.max()) + 1)
    }
