"""Exact loads of uniform traffic on family ``railx_hyperx``, at any size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_hyperx.routing import phases_of
from railx.families.railx_hyperx.settings import RailXHyperXSettings
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.uniform_loads import phase_lane_loads
from railx.vocabulary.topology import Topology

__all__ = ["longest_path_ns", "uniform_loads"]


def uniform_loads(topology: Topology, routing: LineRouting) -> NDArray[np.float64]:
    """Load of one lane of each link row, one node coordinate after the other."""
    return phase_lane_loads(topology, phases_of(topology), routing)


def longest_path_ns(settings: RailXHyperXSettings) -> float:
    """Bound of the latency of any path: two rails and three longest walks."""
    inside = settings.m - 1
    return 2 * settings.external_latency_ns + 6 * inside * settings.internal_latency_ns
