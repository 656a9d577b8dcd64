"""Graph metrics (hops of nodes and chips, bisection) and checks of the optical
circuits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.families import LineGraph, family_of
from railx.network.path_diversity import disjoint_paths_min, minimal_path_counts
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.topology import INTERNAL, Topology

#: Largest graph (vertices) for breadth-first search from every vertex.
_MOST_SEARCHED_VERTICES = 2000


def topology_metrics(topology: Topology) -> dict[str, Any]:
    """Size, hops and bisection of a topology as a flat mapping.

    Values that do not apply or are too large to search are None.

    * ``links``: full-duplex channels, every lane counted.
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
    vertex = np.concatenate(
        [topology.chip_node, topology.nodes + np.arange(topology.switches)]
    ).astype(np.int64)
    edges = np.stack([vertex[topology.links.src], vertex[topology.links.dst]], axis=1)
    hops = _hops_from_all(
        topology.nodes + topology.switches, edges[edges[:, 0] != edges[:, 1]], topology.nodes
    )
    return np.bincount(hops[:, : topology.nodes].ravel()) * per_node**2


def chip_hop_counts(topology: Topology) -> IntArray | None:
    """Ordered pairs of chips that are h links apart (index h); None above 2,000
    vertices.
    """
    if topology.vertices > _MOST_SEARCHED_VERTICES:
        return None
    edges = np.stack([topology.links.src, topology.links.dst], axis=1).astype(np.int64)
    hops = _hops_from_all(topology.vertices, edges, topology.chips)
    return np.bincount(hops[:, : topology.chips].ravel())


def check_optical_circuits(topology: Topology) -> None:
    """Check the optical circuits; ValueError names the first fault.

    Each port exists (``ocs_radix``) and is used at most once. A family may also check
    the resulting links.
    """
    circuits = topology.circuits
    if circuits is None:
        raise UserError(
            f"{topology.family}: a topology without optical switches has no circuits to check"
        )
    settings = topology.settings
    ports = np.concatenate([circuits.port_a, circuits.port_b]).astype(np.int64)
    span = int(ports.max()) + 1
    radix = getattr(settings, "ocs_radix", None)
    if ports.min() < 0 or (radix is not None and span > radix):
        raise UserError(
            f"circuits: port {max(span - 1, -int(ports.min()))} does not exist; allowed: 0 to"
            f" {(radix or span) - 1}"
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
    """A row and a column of nodes where all rows and all columns are alike,
    else None.
    """
    line_graphs = family_of(topology).line_graphs
    return None if line_graphs is None else line_graphs(topology.settings, topology)


def _hops_from_all(vertices: int, edges: IntArray, sources: int) -> IntArray:
    """Hops (int[sources, vertices]) from the first ``sources`` vertices; all are
    connected.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

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
    distinct: Mapping[int, int] = {h: int(count) for h, count in enumerate(counts)}
    chips_squared = sum(distinct.values())
    chips = round(chips_squared**0.5)
    total = sum(h * count for h, count in distinct.items())
    return max(h for h, count in distinct.items() if count), total / (chips_squared - chips)
