"""Rings through the lines of family ``railx_hyperx``.

Every rail of a line is one ring through all its nodes. Any c positions of a line keep
two links per pair, which make 2 (c - 1) directed rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from railx.families.railx_hyperx.settings import RailXHyperXSettings, grid_of
from railx.vocabulary.grid import line_wiring
from railx.vocabulary.grid_rings import Arc, GridRings
from railx.vocabulary.hamiltonian import undirected_rings
from railx.vocabulary.topology import Topology

__all__ = ["AllToAllLineRings", "grid_rings"]


class AllToAllLineRings(GridRings):
    """Any part of a line has rings of its own over the links among its nodes."""

    joined: ClassVar[bool] = True
    whole_lines: ClassVar[bool] = True

    def arcs(self, positions: Sequence[int], dimension: int) -> tuple[list[list[Arc]], bool]:
        """The directed rings through positions of a line, always closed."""
        if len(positions) < self.length(dimension):
            return _part_rings(self.topology, positions, dimension), True
        return super().arcs(positions, dimension)


def grid_rings(topology: Topology) -> GridRings:
    """The rings of the rails, or of the links among a part of a line."""
    settings = topology.settings
    assert isinstance(settings, RailXHyperXSettings)
    return AllToAllLineRings(topology, grid_of(settings))


def _part_rings(topology: Topology, positions: Sequence[int], dimension: int) -> list[list[Arc]]:
    """Both directions of the undirected rings over some positions of a line.

    The line is an all-to-all; each of a pair's two links is used once.
    """
    wiring = line_wiring(topology, dimension)

    def arc(a: int, b: int, link: int) -> Arc:
        low, high = min(a, b), max(a, b)
        return Arc(
            a, b, int(wiring.rail[low, high, link]), bool(wiring.plus[low, high, link]) == (a < b)
        )

    if len(positions) == 2:
        a, b = positions
        return [[arc(a, b, link), arc(b, a, link)] for link in (0, 1)]
    used: dict[tuple[int, int], int] = {}
    rings = []
    for order in undirected_rings(len(positions)).tolist():
        nodes = [positions[place] for place in order]
        up = []
        for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            pair = (min(a, b), max(a, b))
            up.append(arc(a, b, used.get(pair, 0)))
            used[pair] = used.get(pair, 0) + 1
        rings += [up, [one.back for one in reversed(up)]]
    return rings
