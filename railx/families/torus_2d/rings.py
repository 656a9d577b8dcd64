"""Rings through the lines of family ``torus_2d``."""

from __future__ import annotations

from typing import ClassVar

from railx.families.torus_2d.settings import Torus2DSettings, grid_of
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.topology import Topology

__all__ = ["ChipGridRings", "grid_rings"]


class ChipGridRings(GridRings):
    """The nodes are the chips themselves."""

    single_chips: ClassVar[bool] = True


def grid_rings(topology: Topology) -> GridRings:
    """The rings of the parallel links."""
    settings = topology.settings
    assert isinstance(settings, Torus2DSettings)
    return ChipGridRings(topology, grid_of(settings))
