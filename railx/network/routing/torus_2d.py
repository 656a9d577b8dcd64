"""Dimension order on a plain 2D torus: x, then y, two virtual channels a ring so that no ring of waiting packets can close."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.table import RoutingTable, TableBuilder
from railx.topology import Topology, Torus2DSettings, settings_of

__all__ = ["ROUTINGS", "ring_steps", "route"]

ROUTINGS = ("min", "balanced")


def route(topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None) -> RoutingTable:
    """``min`` goes up at equal distance both ways round, ``balanced`` splits those packets evenly.

    A packet is on virtual channel 1 until it takes the wrap link of its ring and on 0 from there on, and so again in y (Dally and
    Seitz 1987). States: 0 undecided (also between the dimensions); 1, 2 going up and 3, 4 going down, before and after the wrap.
    """
    settings = settings_of(topology)
    assert isinstance(settings, Torus2DSettings)
    builder = TableBuilder(topology, routing, states=5, virtual_channels=2, destinations=destinations)
    chip = np.arange(topology.chips)[:, None]
    to = builder.destinations[None, :].astype(np.int64)
    columns, rows = settings.x_scale, settings.y_scale
    x, y, to_x, to_y = chip % columns, chip // columns, to % columns, to // columns
    along_x = x != to_x
    for direction, first in ((1, 1), (-1, 3)):
        next_x = y * columns + (x + direction) % columns
        next_y = (y + direction) % rows * columns + x
        for place, length, target, near, active in (
            (x, columns, to_x, next_x, along_x),
            (y, rows, to_y, next_y, ~along_x & (y != to_y)),
        ):
            wraps = (place + direction) % length != place + direction
            ends = (place + direction) % length == target
            for state, before in ((first, True), (first + 1, False)):
                vc = np.where(wraps | (not before), 0, 1)
                after = np.where(ends, 0, np.where(wraps | (not before), first + 1, first))
                for channel in (0, 1):
                    here = active & (vc == channel)
                    sets = builder.single(np.where(here, builder.pools_between(chip, near, channel), -1), after)
                    builder.entry[state][here] = sets[here]
    for place, length, target, active in ((x, columns, to_x, along_x), (y, rows, to_y, ~along_x & (y != to_y))):
        up, tie = ring_steps(place, target, length)
        for own, here in ((1, active & up & ~tie), (3, active & ~up & ~tie)):
            builder.entry[0][here] = builder.entry[own][here]
        tied = active & tie
        if routing == "min":
            builder.entry[0][tied] = builder.entry[1][tied]
        else:
            builder.entry[0][tied] = builder.merge(builder.entry[1][tied], builder.entry[3][tied])
    # A packet that stands undecided at its source has decided when it moves; sets of states 1 to 4 already say so.
    return builder.build()


def ring_steps(place: NDArray[np.int64], target: NDArray[np.int64], length: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the shorter way round a ring goes up, and whether both ways are equally long."""
    ahead = (target - place) % length
    return 2 * ahead <= length, 2 * ahead == length
