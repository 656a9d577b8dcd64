"""A plain 2D torus: single chips with n parallel links to each of 4 neighbours.

There are no switches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.torus_2d.settings import Torus2DSettings
from railx.vocabulary.line_graphs import LineGraph, ring_line_graphs
from railx.vocabulary.topology import Links, Topology, check_size, chip_nodes, join_links, kind_code

__all__ = ["bisection_ports", "build", "check", "halves", "line_graphs", "ports_per_chip"]


def check(settings: Torus2DSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("x_scale", 4 * settings.x_scale * settings.y_scale)


def build(settings: Torus2DSettings) -> Topology:
    """Build the torus; the n parallel links of a side are one row with n lanes."""
    chip = np.arange(settings.x_scale * settings.y_scale).reshape(
        settings.y_scale, settings.x_scale
    )
    links = [
        _ring_links(settings, chip, np.roll(chip, -1, axis=axis), kind)
        for kind, axis in (("torus_x", 1), ("torus_y", 0))
    ]
    return Topology(
        settings=settings,
        chips=chip.size,
        nodes=chip.size,
        switches=0,
        chip_node=chip_nodes(chip.size, 1),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: Torus2DSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each chip when the longer dimension is cut in the middle."""
    y, x = np.indices((settings.y_scale, settings.x_scale))
    position, length = (
        (x, settings.x_scale) if settings.x_scale >= settings.y_scale else (y, settings.y_scale)
    )
    return (position >= length // 2).astype(np.int8).ravel()


def bisection_ports(settings: Torus2DSettings) -> int:
    """Ports in one direction across that cut.

    Both boundaries of the cut rings, n links in each line of the other dimension.
    """
    return 2 * settings.n * min(settings.x_scale, settings.y_scale)


def ports_per_chip(settings: Torus2DSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n


def line_graphs(topology: Topology) -> list[LineGraph]:
    """A row and a column of chips: rings."""
    settings = topology.settings
    assert isinstance(settings, Torus2DSettings)
    return ring_line_graphs(settings.x_scale, settings.y_scale)


def _ring_links(
    settings: Torus2DSettings, chip: NDArray[np.int64], neighbour: NDArray[np.int64], kind: str
) -> Links:
    rows = 2 * chip.size
    return Links(
        src=np.stack([chip.ravel(), neighbour.ravel()], axis=1).ravel().astype(np.int32),
        dst=np.stack([neighbour.ravel(), chip.ravel()], axis=1).ravel().astype(np.int32),
        kind=np.full(rows, kind_code(kind), dtype=np.int8),
        gbps=np.full(rows, settings.port_gbps),
        latency_ns=np.full(rows, settings.latency_ns),
        rail=np.full(rows, -1, dtype=np.int32),
        lanes=np.full(rows, settings.n, dtype=np.int32),
    )
