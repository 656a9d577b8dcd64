"""A plain 2D mesh: single chips with n parallel links to each of up to 4 neighbours.

The ports at the rim stay open.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.mesh_2d.settings import Mesh2DSettings
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


def check(settings: Mesh2DSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("x_scale", 4 * settings.x_scale * settings.y_scale)


def build(settings: Mesh2DSettings) -> Topology:
    """Build the mesh; the n parallel links of a side are one row with n lanes."""
    chip = np.arange(settings.x_scale * settings.y_scale).reshape(
        settings.y_scale, settings.x_scale
    )
    sides = (("torus_x", chip[:, :-1], chip[:, 1:]), ("torus_y", chip[:-1], chip[1:]))
    return Topology(
        settings=settings,
        chips=chip.size,
        nodes=chip.size,
        switches=0,
        chip_node=chip_nodes(chip.size, 1),
        links=join_links(
            [
                duplex_links(
                    near,
                    far,
                    kind,
                    gbps=settings.port_gbps,
                    latency_ns=settings.latency_ns,
                    lanes=settings.n,
                )
                for kind, near, far in sides
            ]
        ),
        circuits=None,
    )


def halves(settings: Mesh2DSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each chip when the longer dimension is cut in the middle."""
    y, x = np.indices((settings.y_scale, settings.x_scale))
    position, length = (
        (x, settings.x_scale) if settings.x_scale >= settings.y_scale else (y, settings.y_scale)
    )
    return (position >= length // 2).astype(np.int8).ravel()


def bisection_ports(settings: Mesh2DSettings) -> int:
    """Ports in one direction across that cut.

    n links in each line of the other dimension.
    """
    return settings.n * min(settings.x_scale, settings.y_scale)


def ports_per_chip(settings: Mesh2DSettings) -> int:
    """Ports of a chip: n on each of its 4 sides; those at the rim have no link."""
    return 4 * settings.n


def node_hop_counts(settings: Mesh2DSettings) -> IntArray:
    """How many ordered pairs of chips are h links apart (index h).

    The distances along x and along y add up.
    """
    line_x, line_y = (
        np.bincount(np.abs(np.subtract.outer(line, line)).ravel())
        for line in map(np.arange, _shape(settings))
    )
    return np.convolve(line_x, line_y)


def _shape(settings: Mesh2DSettings) -> tuple[int, int]:
    return settings.x_scale, settings.y_scale
