"""A HyperX: routers on a grid of any dimension, all-to-all along every line.

Sources: Ahn 2009; flattened butterfly: Kim 2007. The routers are the chips themselves
(``chips_per_switch`` 0) or switches with chips below them.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from railx.families.hyperx.settings import HyperXSettings
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.topology import Links, Topology, check_size, chip_nodes, join_links

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "halves",
    "node_hop_counts",
    "ports_per_chip",
]

IntArray = NDArray[np.int64]


def check(settings: HyperXSettings) -> None:
    """Refuse more links than fit in memory."""
    between = settings.routers * (sum(settings.shape) - len(settings.shape))
    links = between + 2 * settings.routers * settings.chips_per_switch
    check_size("shape", links * settings.planes)


def build(settings: HyperXSettings) -> Topology:
    """Build the network.

    Chip c hangs on router c // chips_per_switch of every plane. Switches follow the
    chips plane by plane.
    """
    chip, links = np.arange(settings.chips), []
    for plane in range(settings.planes):
        first = 0 if settings.switchless else settings.chips + plane * settings.routers
        links += _all_to_alls(settings, first)
        if not settings.switchless:
            switch = first + chip // settings.chips_per_switch
            links.append(
                duplex_links(
                    chip,
                    switch,
                    "leaf",
                    gbps=settings.port_gbps,
                    latency_ns=settings.leaf_latency_ns,
                )
            )
    return Topology(
        settings=settings,
        chips=settings.chips,
        nodes=settings.chips,
        switches=0 if settings.switchless else settings.planes * settings.routers,
        chip_node=chip_nodes(settings.chips, 1),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: HyperXSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the longest dimension is cut in the middle."""
    longest = settings.shape.index(max(settings.shape))
    place = np.arange(settings.routers) // prod(settings.shape[:longest]) % settings.shape[longest]
    router = (place >= settings.shape[longest] // 2).astype(np.int8)
    if settings.switchless:
        return router
    return np.concatenate(
        [np.repeat(router, settings.chips_per_switch), np.tile(router, settings.planes)]
    )


def bisection_ports(settings: HyperXSettings) -> int:
    """Ports in one direction across that cut.

    ``lanes`` for each pair across, in each line of the longest dimension and plane.
    """
    longest = max(settings.shape)
    pairs = (longest // 2) * (longest - longest // 2)
    return settings.planes * settings.lanes * pairs * settings.routers // longest


def ports_per_chip(settings: HyperXSettings) -> int:
    """Ports of a chip.

    Lanes to every other router of its lines, or one in each plane where switches route.
    """
    if settings.switchless:
        return settings.lanes * (sum(settings.shape) - len(settings.shape))
    return settings.planes


def node_hop_counts(settings: HyperXSettings) -> IntArray:
    """How many ordered pairs of chips are h links apart (index h).

    One link for each dimension that differs, two more with switches.
    """
    counts = np.ones(1, dtype=np.int64)
    for length in settings.shape:
        counts = np.convolve(counts, [length, length * (length - 1)])
    if settings.switchless:
        return counts
    by_switch = np.concatenate([[0, 0], counts * settings.chips_per_switch**2])
    by_switch[0], by_switch[2] = (
        settings.chips,
        by_switch[2] - settings.chips,
    )  # a chip to itself takes no link
    return by_switch


def _all_to_alls(settings: HyperXSettings, first: int) -> list[Links]:
    """The links of one plane, one table for each dimension.

    ``first`` is the vertex of its router 0.
    """
    router = first + np.arange(settings.routers).reshape(settings.shape[::-1])
    tables = []
    for dimension, length in enumerate(settings.shape):
        line = np.moveaxis(router, len(settings.shape) - 1 - dimension, -1)
        low, high = np.triu_indices(length, 1)
        tables.append(
            duplex_links(
                line[..., low],
                line[..., high],
                "hyperx",
                gbps=settings.port_gbps,
                latency_ns=settings.latency_ns,
                lanes=settings.lanes,
                rail=dimension,
            )
        )
    return tables
