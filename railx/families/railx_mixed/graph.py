"""RailX with mixed rails: some rails as rings, others as all-to-alls over sub-lines.

Each dimension is a list of parts. This is the general form of the settings that keep
all lines alike: an optical switch is any matching of its ports, so each rail can be set
on its own (RailX, abstract: reconfigurable; the description by parts is this module's
own). Examples for a line of L nodes:

* one ``ring`` part of size L is the torus;
* one ``all_to_all`` part of size L is the HyperX;
* all-to-alls of sizes s1 (stride 1) and s2 (stride s1) are the split of
  :mod:`railx.families.railx_split.graph`;
* a ring over the line beside an all-to-all over sub-lines of neighbours serves ring
  collectives of a whole row and expert parallelism within groups at once.

Layout: nodes, chips and rails as in :mod:`railx.vocabulary.grid`; parts as in
:mod:`railx.vocabulary.line_parts`. Routers read ``parts_of(settings)[dimension]``
(coordinates and rails of each part), ``part_wiring(part, settings.rings)`` (the rails
that join two places of an all-to-all sub-line) and ``rail_ports(topology)`` (the link
row behind a rail of a node).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_mixed.settings import RailXMixedSettings, grid_of
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


def parts_of(settings: RailXMixedSettings) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
    """The parts of a row and of a column with the rails that each takes."""
    return line_parts(settings.parts_x), line_parts(settings.parts_y)


def check(settings: RailXMixedSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("x_scale", grid_of(settings).link_rows)


def build(settings: RailXMixedSettings) -> Topology:
    """Build the topology; every rail of a line closes the rings of its part.

    On all sub-lines.
    """
    return build_parts(settings, grid_of(settings), parts_of(settings), settings.rings)


def halves(settings: RailXMixedSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when a dimension is cut in the middle.

    It is the one with equal halves and then with fewer ports.
    """
    grid = grid_of(settings)
    return grid_halves(grid, cut_dimension(grid, parts_of(settings))[0])


def bisection_ports(settings: RailXMixedSettings) -> int:
    """Ports in one direction across that cut, part by part.

    See :func:`railx.vocabulary.line_parts.crossing_ports`.
    """
    return cut_dimension(grid_of(settings), parts_of(settings))[1]


def ports_per_chip(settings: RailXMixedSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n
