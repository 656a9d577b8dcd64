"""Rings through the lines of family ``railx_torus``."""

from __future__ import annotations

from railx.families.railx_torus.settings import RailXTorusSettings, grid_of
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.topology import Topology

__all__ = ["grid_rings"]


def grid_rings(topology: Topology) -> GridRings:
    """The rings of the rails."""
    settings = topology.settings
    assert isinstance(settings, RailXTorusSettings)
    return GridRings(topology, grid_of(settings))
