"""Rings through the lines of family ``hammingmesh``.

The nodes are boards, and a switch is in the place of each rail: through it any boards
of a line make a ring each way, out of the plus side of one into the minus side of the
next and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from railx.families.hammingmesh.graph import column_switches, row_switches
from railx.families.hammingmesh.settings import HammingMeshSettings, grid_of
from railx.vocabulary.grid_rings import Arc, GridRings, Link, closed_rings
from railx.vocabulary.topology import Topology

__all__ = ["BoardRings", "grid_rings"]


class BoardRings(GridRings):
    """A ring per rail through any boards of a line, each hop over the line's switch."""

    joined: ClassVar[bool] = True

    def arcs(self, positions: Sequence[int], dimension: int) -> tuple[list[list[Arc]], bool]:
        """The directed rings through positions of a line, always closed."""
        return closed_rings([positions] * self.grid.rails), True

    def arc_links(self, dimension: int, arc: Arc) -> list[Link]:
        """Up to the switch of the rail and down from it."""
        src, dst = self.arc_chips(dimension, arc)
        switch = self.length(dimension) * self.grid.m**2 + arc.rail
        # Both sides of a board of one chip are ports of that chip, the minus side
        # first.
        single = self.grid.m == 1
        return [
            (src, switch, -1, int(single and arc.plus)),
            (switch, dst, -1, int(single and not arc.plus)),
        ]

    def vertices(self, dimension: int, lines: Sequence[int]) -> NDArray[np.int64]:
        """The chips of all positions, then the switches of the line by rail."""
        settings = self.topology.settings
        assert isinstance(settings, HammingMeshSettings)
        chips = super().vertices(dimension, lines)
        switches = (row_switches if dimension == 0 else column_switches)(settings)[list(lines)]
        return np.concatenate([chips, switches.reshape(len(chips), -1)], axis=1)


def grid_rings(topology: Topology) -> GridRings:
    """The rings over the switches of the lines."""
    settings = topology.settings
    assert isinstance(settings, HammingMeshSettings)
    return BoardRings(topology, grid_of(settings))
