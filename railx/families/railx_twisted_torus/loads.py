"""Exact loads of uniform traffic on family ``railx_twisted_torus``, at any size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_twisted_torus.graph import wrap_shift
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.uniform_loads import along_lane_loads
from railx.vocabulary.topology import Topology

__all__ = ["uniform_loads"]


def uniform_loads(topology: Topology, routing: LineRouting) -> NDArray[np.float64]:
    """Shortest paths x first, equally short ones in equal shares.

    A shift of all chips is a symmetry, so one source stands for all. All routings load
    the links alike. A path to (x, y) crosses the wrap of the columns -1, 0 or 1 times,
    each time half a row further, and goes one way round in x.
    """
    settings = topology.settings
    assert isinstance(settings, RailXTwistedTorusSettings)
    rows, columns = settings.m * settings.y_scale, settings.m * settings.x_scale
    y, x = np.indices((rows, columns))
    crossings = np.array([-1, 0, 1])[:, None, None]
    ahead = (x + crossings * settings.m * wrap_shift(settings)) % columns
    x_steps = np.stack(
        [ahead, np.where(ahead > 0, columns - ahead, 4 * columns)]
    )  # up, down; both the same at 0
    y_steps = np.broadcast_to(np.abs(y + crossings * rows), x_steps.shape)
    length = x_steps + y_steps
    share = (length == length.min(axis=(0, 1))).astype(np.float64)
    share /= share.sum(axis=(0, 1))
    # Steps of one chip's traffic over the two directions and n lanes of its links.
    per_lane = [
        float((share * steps).sum()) / (topology.chips - 1) / (2 * settings.n)
        for steps in (x_steps, y_steps)
    ]
    return along_lane_loads(topology, *per_lane)
