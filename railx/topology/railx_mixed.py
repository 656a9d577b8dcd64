"""RailX with mixed rails: each dimension is a list of parts, some rails as rings,
others as all-to-alls over sub-lines.

The general form of the settings that keep all lines alike: an optical switch is any
matching of its ports, so each rail can be set on its own (RailX, abstract:
reconfigurable; the description by parts is this module's own). Examples for a line of L
nodes: one ``ring`` part of size L is the torus; one ``all_to_all`` part of size L the
HyperX; all-to-alls of sizes s1 (stride 1) and s2 (stride s1) the split of
:mod:`railx.topology.railx_split`; a ring over the line beside an all-to-all over
sub-lines of neighbours serves ring collectives of a whole row and expert parallelism
within groups at once.

Layout: nodes, chips and rails as in :mod:`railx.topology.railx_grid`; parts as in
:mod:`railx.topology.railx_parts`. Routers read ``parts_of(settings)[dimension]``
(coordinates and rails of each part), ``part_wiring(part, settings.rings)`` (the rails
that join two places of an all-to-all sub-line) and ``rail_ports(topology)`` (the link
row behind a rail of a node).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, to_dict
from railx.topology.model import Topology, check_size
from railx.topology.railx_grid import Grid, grid_halves
from railx.topology.railx_parts import (
    LinePart,
    PartSettings,
    build_parts,
    check_line,
    check_radix,
    check_rings,
    cut_dimension,
    line_parts,
)

__all__ = [
    "RailXMixedSettings",
    "bisection_ports",
    "build",
    "grid_of",
    "halves",
    "parts_of",
    "ports_per_chip",
]


@dataclass(frozen=True)
class RailXMixedSettings:
    """``x_scale`` by ``y_scale`` nodes of m x m chips; ``parts_x`` and ``parts_y``
    share out the m * n rails of a line.

    ``rings``: the decomposition of the all-to-all parts. ``ocs_radix``: ports of an
    optical switch; null takes what the longer line needs. ``internal_width``: rate of
    an internal lane over that of an external port.
    """

    family: Literal["railx_mixed"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    parts_x: Annotated[tuple[PartSettings, ...], NotEmpty()]
    parts_y: Annotated[tuple[PartSettings, ...], NotEmpty()]
    rings: Literal["directed", "undirected"]
    ocs_radix: Annotated[int, AtLeast(2)] | None
    port_gbps: Annotated[float, Positive()]
    internal_width: Annotated[float, Positive()]
    internal_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        for key, parts, length in (
            ("parts_x", self.parts_x, self.x_scale),
            ("parts_y", self.parts_y, self.y_scale),
        ):
            check_line(key, parts, length, self.m * self.n)
            check_rings(key, parts, self.rings)
        check_radix(self.ocs_radix, self.x_scale, self.y_scale)
        check_size("x_scale", grid_of(self).link_rows)


def grid_of(settings: RailXMixedSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)


def parts_of(settings: RailXMixedSettings) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
    """The parts of a row and of a column with the rails that each takes."""
    return line_parts(settings.parts_x), line_parts(settings.parts_y)


def build(settings: RailXMixedSettings) -> Topology:
    """Build the topology; every rail of a line closes the rings of its part on all
    sub-lines.
    """
    return build_parts(
        settings.family, to_dict(settings), grid_of(settings), parts_of(settings), settings.rings
    )


def halves(settings: RailXMixedSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when a dimension is cut in the middle: the one with
    equal halves and then with fewer ports.
    """
    grid = grid_of(settings)
    return grid_halves(grid, cut_dimension(grid, parts_of(settings))[0])


def bisection_ports(settings: RailXMixedSettings) -> int:
    """Ports in one direction across that cut, part by part
    (:func:`railx.topology.railx_parts.crossing_ports`).
    """
    return cut_dimension(grid_of(settings), parts_of(settings))[1]


def ports_per_chip(settings: RailXMixedSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n
