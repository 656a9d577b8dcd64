"""A plain 3D torus: single chips with n parallel links to each of 6 neighbours.

There are no switches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.torus_3d.settings import Torus3DSettings
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.topology import Topology, check_size, chip_nodes, join_links

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "halves",
    "node_hop_counts",
    "ports_per_chip",
]

IntArray = NDArray[np.int64]


def check(settings: Torus3DSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("x_scale", 6 * settings.chips)


def build(settings: Torus3DSettings) -> Topology:
    """Build the torus; the n parallel links of a side are one row with n lanes."""
    chip = np.arange(settings.chips).reshape(settings.shape[::-1])
    rings = (("torus_x", 2), ("torus_y", 1), ("torus_z", 0))
    return Topology(
        settings=settings,
        chips=chip.size,
        nodes=chip.size,
        switches=0,
        chip_node=chip_nodes(chip.size, 1),
        links=join_links(
            [
                duplex_links(
                    chip,
                    np.roll(chip, -1, axis=axis),
                    kind,
                    gbps=settings.port_gbps,
                    latency_ns=settings.latency_ns,
                    lanes=settings.n,
                )
                for kind, axis in rings
            ]
        ),
        circuits=None,
    )


def halves(settings: Torus3DSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each chip when the longest dimension is cut in the middle."""
    longest = settings.shape.index(max(settings.shape))
    place = np.indices(settings.shape[::-1])[2 - longest]
    half: NDArray[np.int8] = (place >= max(settings.shape) // 2).astype(np.int8).ravel()
    return half


def bisection_ports(settings: Torus3DSettings) -> int:
    """Ports in one direction across that cut.

    Both boundaries of the cut rings, n links in each line of the longest dimension.
    """
    return 2 * settings.n * settings.chips // max(settings.shape)


def ports_per_chip(settings: Torus3DSettings) -> int:
    """Ports of a chip: n on each of its 6 sides."""
    return 6 * settings.n


def node_hop_counts(settings: Torus3DSettings) -> IntArray:
    """How many ordered pairs of chips are h links apart (index h).

    The paths round the three rings add up.
    """
    counts = np.ones(1, dtype=np.int64)
    for length in settings.shape:
        step = np.arange(length)
        counts = np.convolve(counts, length * np.bincount(np.minimum(step, length - step)))
    return counts
