"""A Dragonfly: groups of switches, joined by global links (Kim 2008).

All switches of a group are joined, and all groups are. ``planes`` identical networks
stand side by side and each chip has one port in every plane, so that injection
bandwidth can be made equal to that of other families.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.dragonfly.settings import DragonflySettings
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.topology import Topology, check_size, chip_nodes, join_links

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "global_pairs",
    "halves",
    "node_hop_counts",
    "ports_per_chip",
]

IntArray = NDArray[np.int64]


def check(settings: DragonflySettings) -> None:
    """Refuse more links than fit in memory."""
    links = settings.a - 1 + settings.h + 2 * settings.p
    check_size("groups", settings.planes * settings.groups * settings.a * links)


def build(settings: DragonflySettings) -> Topology:
    """Build the network.

    Chip c hangs on switch c // p of every plane. Switches follow the chips plane by
    plane, group by group.
    """
    chip, links = np.arange(settings.chips), []
    inside = np.triu_indices(settings.a, 1)
    pairs = global_pairs(settings)
    for plane in range(settings.planes):
        first = settings.chips + plane * settings.switches
        group = first + np.arange(settings.switches).reshape(settings.groups, settings.a)
        rate = settings.port_gbps
        links += [
            duplex_links(
                chip,
                first + chip // settings.p,
                "leaf",
                gbps=rate,
                latency_ns=settings.leaf_latency_ns,
            ),
            duplex_links(
                group[:, inside[0]],
                group[:, inside[1]],
                "local",
                gbps=rate,
                latency_ns=settings.local_latency_ns,
            ),
            duplex_links(
                first + pairs[:, 0],
                first + pairs[:, 1],
                "global",
                gbps=rate,
                latency_ns=settings.global_latency_ns,
            ),
        ]
    return Topology(
        settings=settings,
        chips=settings.chips,
        nodes=settings.chips,
        switches=settings.planes * settings.switches,
        chip_node=chip_nodes(settings.chips, 1),
        links=join_links(links),
        circuits=None,
    )


def global_pairs(settings: DragonflySettings) -> IntArray:
    """The global links of one plane as pairs of its switches.

    Shape (links_per_pair * groups * (groups - 1) / 2, 2). Port k of a group leads to
    the group k mod (groups - 1) + 1 further on, so every rotation of the groups is a
    symmetry. The ports of a group are dealt to its switches in runs of at most h.
    """
    others, copies = settings.groups - 1, settings.links_per_pair
    group, copy, offset = np.meshgrid(
        np.arange(settings.groups), np.arange(copies), np.arange(1, settings.groups), indexing="ij"
    )
    far = (group + offset) % settings.groups
    port, back = copy * others + offset - 1, copy * others + settings.groups - offset - 1
    near_switch = group * settings.a + port * settings.a // (copies * others)
    far_switch = far * settings.a + back * settings.a // (copies * others)
    once = group < far
    pairs: IntArray = np.stack([near_switch[once], far_switch[once]], axis=1).astype(np.int64)
    return pairs


def halves(settings: DragonflySettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the groups are cut in the middle."""
    group = np.arange(settings.groups) >= settings.groups // 2
    switch = np.repeat(group, settings.a)
    return np.concatenate([np.repeat(switch, settings.p), np.tile(switch, settings.planes)]).astype(
        np.int8
    )


def bisection_ports(settings: DragonflySettings) -> int:
    """Ports in one direction across that cut.

    They are the links of every pair of groups across, in all planes.
    """
    half = settings.groups // 2
    return settings.planes * settings.links_per_pair * half * (settings.groups - half)


def ports_per_chip(settings: DragonflySettings) -> int:
    """Ports of a chip: one in each plane."""
    return settings.planes


def node_hop_counts(settings: DragonflySettings) -> IntArray:
    """How many ordered pairs of chips are h links apart (index h).

    Searched from the switches of one group of one plane: all groups and planes are
    alike. A shortest path may also cross two global links in a row, which no routing of
    this family takes.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    inside = np.argwhere(~np.eye(settings.a, dtype=np.bool_))
    local = (np.arange(settings.groups)[:, None, None] * settings.a + inside).reshape(-1, 2)
    edges = np.concatenate([local, global_pairs(settings), global_pairs(settings)[:, ::-1]])
    graph = csr_array(
        (np.ones(len(edges)), (edges[:, 0], edges[:, 1])),
        shape=(settings.switches, settings.switches),
    )
    hops = dijkstra(graph, directed=True, unweighted=True, indices=np.arange(settings.a)).astype(
        np.int64
    )
    by_switch = np.concatenate(
        [[0, 0], np.bincount(hops.ravel()) * settings.p**2 * settings.groups]
    )
    by_switch[0], by_switch[2] = (
        settings.chips,
        by_switch[2] - settings.chips,
    )  # a chip to itself takes no link
    return by_switch
