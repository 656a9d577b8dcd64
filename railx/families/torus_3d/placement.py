"""Placement of jobs on family ``torus_3d``."""

from __future__ import annotations

from railx.families.torus_3d.settings import Torus3DSettings
from railx.vocabulary.placement import Placement, Sizes, place_blocks
from railx.vocabulary.topology import Topology

__all__ = ["place"]


def place(topology: Topology, sizes: Sizes) -> Placement:
    """Blocks of chips as nodes; SettingsError("layout") where there is no room."""
    settings = topology.settings
    assert isinstance(settings, Torus3DSettings)
    return place_blocks(topology, sizes, settings.shape)
