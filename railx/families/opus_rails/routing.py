"""Routing on photonic rails set to rings: inside the server, then round a ring.

The ring is that of the destination's rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.opus_rails.settings import OpusRailsSettings
from railx.vocabulary.routing.rings import ring_sets
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "balanced")


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """The shorter path round the ring.

    At equal distance ``min`` goes up and ``balanced`` splits the packets evenly. States
    and the two virtual channels of a ring are as in
    :func:`railx.vocabulary.routing.rings.route_rings`. Links to and from scale-up
    switches, on channel 0, come before all links of rings, so they close no circle.
    """
    settings = topology.settings
    assert isinstance(settings, OpusRailsSettings)
    builder = TableBuilder(
        topology, routing, states=5, virtual_channels=2, destinations=destinations
    )
    g, to = settings.chips_per_server, builder.destinations.astype(np.int64)
    chip, server = np.arange(settings.chips), np.arange(settings.servers)
    switch = settings.chips + server
    same_rank, elsewhere = chip[:, None] % g == to % g, chip[:, None] // g != to // g
    inside = builder.single(builder.pools_between(chip, switch[chip // g], 0), 0)
    builder.entry[0][chip] = np.where(same_rank, -1, inside[:, None])
    builder.entry[0][switch] = builder.single(
        builder.pools_between(switch[:, None], server[:, None] * g + to % g, 0), 0
    )
    rings = ring_sets(builder, chip, g, settings.servers)
    here = same_rank & elsewhere
    for state in range(5):
        builder.entry[state][chip] = np.where(
            here, rings[state][:, to // g], builder.entry[state][chip]
        )
    return builder.build()
