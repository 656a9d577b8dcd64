"""Placement of jobs on family ``mesh_2d``."""

from __future__ import annotations

from railx.families.mesh_2d.settings import Mesh2DSettings
from railx.vocabulary.placement import Placement, Sizes, place_blocks
from railx.vocabulary.topology import Topology

__all__ = ["place"]


def place(topology: Topology, sizes: Sizes) -> Placement:
    """Blocks of chips as nodes; SettingsError("layout") where there is no room."""
    settings = topology.settings
    assert isinstance(settings, Mesh2DSettings)
    return place_blocks(topology, sizes, (settings.x_scale, settings.y_scale))
