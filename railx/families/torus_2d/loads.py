"""Exact loads of uniform traffic on family ``torus_2d``, at any size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.torus_2d.settings import Torus2DSettings, grid_of
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.uniform_loads import half_way_round_ns, torus_lane_loads
from railx.vocabulary.topology import Topology

__all__ = ["longest_path_ns", "uniform_loads"]


def uniform_loads(topology: Topology, routing: LineRouting) -> NDArray[np.float64]:
    """Load of one lane of each link row; all routings load the links alike."""
    settings = topology.settings
    assert isinstance(settings, Torus2DSettings)
    return torus_lane_loads(topology, settings.x_scale, settings.y_scale, settings.n)


def longest_path_ns(settings: Torus2DSettings) -> float:
    """Bound of the latency of any path: half way round a row and a column."""
    return half_way_round_ns(grid_of(settings))
