"""Exact loads of uniform traffic on family ``railx_split``, at any size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_split.routing import phases_of
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.uniform_loads import phase_lane_loads
from railx.vocabulary.topology import Topology

__all__ = ["uniform_loads"]


def uniform_loads(topology: Topology, routing: LineRouting) -> NDArray[np.float64]:
    """Load of one lane of each link row, one node coordinate after the other."""
    return phase_lane_loads(topology, phases_of(topology), routing)
