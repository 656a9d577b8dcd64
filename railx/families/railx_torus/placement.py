"""Placement of jobs on family ``railx_torus``."""

from __future__ import annotations

from railx.families.railx_torus.settings import RailXTorusSettings
from railx.vocabulary.placement import Placement, Sizes, place_nodes
from railx.vocabulary.topology import Topology

__all__ = ["place"]


def place(topology: Topology, sizes: Sizes) -> Placement:
    """Nodes of a row and of a column as the grid has them.

    Raises SettingsError("layout") where there is no room.
    """
    settings = topology.settings
    assert isinstance(settings, RailXTorusSettings)
    return place_nodes(topology, sizes, (settings.x_scale, settings.y_scale))
