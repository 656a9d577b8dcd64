"""RailX set to a 2D torus of nodes: all rails of a line carry the same ring.

Source: RailX simulator, its 2D torus.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_torus.settings import RailXTorusSettings, grid_of
from railx.vocabulary.grid import build_grid, grid_halves
from railx.vocabulary.topology import Topology, check_size

__all__ = ["bisection_ports", "build", "check", "grid_of", "halves", "ports_per_chip"]


def check(settings: RailXTorusSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("x_scale", grid_of(settings).link_rows)


def build(settings: RailXTorusSettings) -> Topology:
    """Build the topology: rail i of every line closes the ring 0, 1, 2, ..."""
    grid = grid_of(settings)
    ring_x, ring_y = (
        np.tile(np.arange(length), (grid.rails, 1)) for length in (grid.columns, grid.rows)
    )
    return build_grid(settings, grid, ring_x, ring_y)


def halves(settings: RailXTorusSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the longer dimension is cut in the middle."""
    return grid_halves(grid_of(settings))


def bisection_ports(settings: RailXTorusSettings) -> int:
    """Ports in one direction across that cut.

    Both boundaries of the cut rings, r rails in each line of the other dimension.
    """
    return 2 * settings.m * settings.n * min(settings.x_scale, settings.y_scale)


def ports_per_chip(settings: RailXTorusSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n
