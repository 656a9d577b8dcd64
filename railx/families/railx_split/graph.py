"""RailX with split dimensions: the rails of a line are cut in parts.

Each part is the all-to-all of one logical dimension. The nodes of a row are arranged as
a grid of ``sizes_x`` (first size fastest), and part k of its rails, ``split_x[k]`` of
them, joins all nodes that differ in coordinate k alone. Rails r1 + r2 = r reach (r1 +
1)(r2 + 1) nodes in a line instead of r + 1, and each part costs one more inter-node
hop. A 3D or 4D HyperX has diameter 3 or 4, which explains the "2 to 4" of RailX's
abstract (derived from the abstract; its authors' own mapping is not known).

A part whose rails are a multiple of its size - 1 wires as many copies of its
all-to-all, so that all rails of a large node are used: 63 rails over 8 x 8 nodes are 5
copies (35 rails) and 4 copies (28 rails).

Layout: nodes, chips and rails as in :mod:`railx.vocabulary.grid`; parts as in
:mod:`railx.vocabulary.line_parts`. Routers read ``parts_of(settings)[dimension]``
(coordinates and rails of each part), ``part_wiring(part, settings.rings)`` (the rails
that join two places of a sub-line) and ``rail_ports(topology)`` (the link row behind a
rail of a node).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_split.settings import (
    RailXSplitSettings,
    grid_of,
    parts_of_line,
)
from railx.settings import SettingsError
from railx.vocabulary.grid import grid_halves
from railx.vocabulary.line_parts import (
    LinePart,
    build_parts,
    cut_dimension,
    line_parts,
)
from railx.vocabulary.topology import Topology, check_size

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "grid_of",
    "halves",
    "parts_of",
    "ports_per_chip",
]


def parts_of(settings: RailXSplitSettings) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
    """The parts of a row and of a column, each one logical dimension."""
    return line_parts(parts_of_line(settings.sizes_x, settings.rails_x)), line_parts(
        parts_of_line(settings.sizes_y, settings.rails_y)
    )


def check(settings: RailXSplitSettings) -> None:
    """Refuse rails that no part wires, and more links than fit in memory."""
    for key, rails in (("split_x", settings.rails_x), ("split_y", settings.rails_y)):
        if sum(rails) != settings.rails:
            raise SettingsError(
                key,
                f"is null, which leaves {settings.rails - sum(rails)} of {settings.rails} rails in"
                " no part; allowed: rails for each part that make m * n together",
            )
    check_size("sizes_x", grid_of(settings).link_rows)


def build(settings: RailXSplitSettings) -> Topology:
    """Build the topology.

    Two nodes that differ in one logical coordinate have 2 full-duplex links per copy of
    that part.
    """
    return build_parts(settings, grid_of(settings), parts_of(settings), settings.rings)


def halves(settings: RailXSplitSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when a dimension is cut in the middle.

    It is the one with equal halves and then with fewer ports.
    """
    grid = grid_of(settings)
    return grid_halves(grid, cut_dimension(grid, parts_of(settings))[0])


def bisection_ports(settings: RailXSplitSettings) -> int:
    """Ports in one direction across that cut.

    2 c (s/2)^2 L/s per line where only the last part (even s, c copies) is cut.
    """
    return cut_dimension(grid_of(settings), parts_of(settings))[1]


def ports_per_chip(settings: RailXSplitSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n
