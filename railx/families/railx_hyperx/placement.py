"""Placement of jobs on family ``railx_hyperx``."""

from __future__ import annotations

from railx.families.railx_hyperx.settings import RailXHyperXSettings, grid_of
from railx.vocabulary.placement import Placement, Sizes, place_nodes
from railx.vocabulary.topology import Topology

__all__ = ["place"]


def place(topology: Topology, sizes: Sizes) -> Placement:
    """Nodes of a row and of a column as the grid has them.

    Raises SettingsError("layout") where there is no room.
    """
    settings = topology.settings
    assert isinstance(settings, RailXHyperXSettings)
    grid = grid_of(settings)
    return place_nodes(topology, sizes, (grid.columns, grid.rows))
