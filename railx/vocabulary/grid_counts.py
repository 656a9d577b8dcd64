"""What the bills of all RailX settings share: the same hardware.

The optical switches may be set to anything. Nodes of m x m chips with n ports per side
stand on a grid; each of the r = m n rails of a line of nodes has its own optical
switch. A node has 4 r optical ports, each a transceiver and a port of an optical
switch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from railx.vocabulary.counts import Ports
from railx.vocabulary.grid import Grid, NodeSettings

__all__ = [
    "grid_hop_count",
    "grid_ports",
    "hyperx_all_to_all_ports",
    "hyperx_bisection_ports",
    "hyperx_external_hops",
    "in_node_lanes_per_chip",
    "longest_line",
    "optical_switches",
    "ring_bisection_ports",
    "whole_lines",
]

#: Size of a logical dimension of a line, and copies of its all-to-all.
Dimension = tuple[int, int]


def in_node_lanes_per_chip(node: NodeSettings) -> float:
    """Width of the links inside a node, in external ports per chip.

    2 m (m-1) neighbour pairs, n links each, so many external ports wide.
    """
    return 2 * (node.m - 1) * node.n * node.internal_width / node.m


def optical_switches(grid: Grid) -> int:
    """Number of optical switches: one per rail in each row and column of the grid.

    R r where it is full (RailX, physical organisation).
    """
    return (grid.columns + grid.rows) * grid.rails


def longest_line(ocs_radix: int | None, *lines: int) -> int:
    """Most nodes of a line: two ports of the switch each.

    Without a radix the longest of the ``lines`` that there are.
    """
    return max(lines) if ocs_radix is None else ocs_radix // 2


def whole_lines(rails: int, longest: int) -> list[int]:
    """Lines whose all-to-all uses every rail.

    Sizes whose number less one divides the rails.
    """
    return [size for size in range(2, min(rails + 1, longest) + 1) if rails % (size - 1) == 0]


def grid_ports(grid: Grid, *, all_to_all: float | None, bisection: float | None) -> Ports:
    """A grid of nodes with these bandwidths in ports per chip."""
    optical = 4 * grid.rails * grid.nodes
    return Ports(
        chips=grid.chips,
        port_gbps=grid.port_gbps,
        cables={"optical": optical},
        injection=4 * grid.n,
        all_to_all=all_to_all,
        bisection=bisection,
        ocs_ports=optical,
    )


def hyperx_external_hops(grid: Grid, sizes: Sequence[int]) -> float:
    """Mean optical hops of a packet over all-to-alls of these sizes.

    Under uniform traffic. In a square HyperX 2 (N - N/(r+1)) / (N-1) with N chips
    (RailX, bandwidth formulas).
    """
    return _other_chip(grid) * sum((size - 1) / size for size in sizes)


def hyperx_all_to_all_ports(grid: Grid, dimensions: Sequence[Dimension]) -> float:
    """Upper bound of uniform all-to-all in ports per chip.

    4 n / (m h) with h external hops in a square HyperX.
    """
    other = _other_chip(grid)
    return min(
        2 * copies * (size - 1) / grid.m**2 / ((size - 1) / size * other)
        for size, copies in dimensions
    )


def hyperx_bisection_ports(grid: Grid, dimensions: Sequence[Dimension]) -> float:
    """Ports per chip of one half across the middle of a dimension.

    Two links per copy between any two of its nodes.
    """
    return min(
        4 * copies * (size // 2) * (size - size // 2) / size / grid.m**2
        for size, copies in dimensions
    )


def ring_bisection_ports(grid: Grid, ends: int) -> float:
    """Ports per chip of one half across the middle of the longest dimension of rings.

    The cut has ``ends`` times r rails per line.
    """
    return 2 * ends * grid.rails / max(grid.columns, grid.rows) / grid.m**2


def grid_hop_count(grid: Grid, twist: int) -> float:
    """Mean hops of chips over links in and between nodes of a torus of chips.

    Counted from one chip (a torus looks alike from every chip). ``twist``: chips by
    which a wrap of the columns is shifted along the rows, 0 for the plain torus.
    """
    x = np.arange(grid.m * grid.columns)[:, None]
    y = np.arange(grid.m * grid.rows)[None, :]
    width, height = x.shape[0], y.shape[1]
    distance = np.full((width, height), width + height)
    for up in (-2, -1, 0, 1, 2):
        along = (x + up * twist) % width
        distance = np.minimum(distance, np.minimum(along, width - along) + np.abs(y + up * height))
    return float(distance.sum() / (width * height - 1))


def _other_chip(grid: Grid) -> float:
    """N / (N - 1): a destination is never the source itself."""
    return grid.chips / (grid.chips - 1)
