"""RailX set to a 2D HyperX: every row and column of nodes is an all-to-all.

The all-to-all is made of rail rings (RailX, theorem 3.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_hyperx.settings import RailXHyperXSettings, grid_of
from railx.vocabulary.grid import build_grid, grid_halves
from railx.vocabulary.hamiltonian import hamiltonian_cycles, undirected_rings
from railx.vocabulary.topology import Topology, check_size

__all__ = ["bisection_ports", "build", "check", "grid_of", "halves", "ports_per_chip"]


def check(settings: RailXHyperXSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("n", grid_of(settings).link_rows)


def build(settings: RailXHyperXSettings) -> Topology:
    """Build the topology.

    Every ordered pair of nodes of a line gets one rail, every unordered pair two
    full-duplex links.
    """
    grid = grid_of(settings)
    rings = (
        hamiltonian_cycles(grid.columns)
        if settings.rings == "directed"
        else undirected_rings(grid.columns)
    )
    return build_grid(settings, grid, rings, rings)


def halves(settings: RailXHyperXSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the rows are cut in the middle.

    r + 1 must be even for equal halves.
    """
    return grid_halves(grid_of(settings))


def bisection_ports(settings: RailXHyperXSettings) -> int:
    """Ports in one direction across that cut.

    2 links for each pair across, in each of r + 1 rows.
    """
    side = settings.m * settings.n + 1
    return 2 * (side // 2) * (side - side // 2) * side


def ports_per_chip(settings: RailXHyperXSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n
