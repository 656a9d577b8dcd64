"""Routing on rail networks: inside the server first, then along a rail.

For rail-optimised and rail-only networks.

A chip reaches another of its server through the scale-up switch, a chip of its own rank
over its rail switch. For a chip of another rank it hands the packet to the chip of that
rank in its own server, which sends it over its rail: two links between servers where
the spine would take four. Between pods a packet leaves by its own rail switch and the
spine takes it to that of the destination.

Every packet takes links in the order scale-up, rail switch, spine, rail switch, chip,
so nothing can wait in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.routing.spread import VIRTUAL_CHANNELS, even_sets, fallback_sets
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "RailNetwork", "route_rails"]

ROUTINGS = ("min", "adaptive")

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class RailNetwork:
    """Servers whose ranks meet at rail switches, in ``planes`` alike.

    ``rail_switches`` and ``spines``: switches of a plane. ``spine_delay_ns``: time of
    flight that the spine adds to the path to another rank of the pod; None without a
    spine.
    """

    chips_per_server: int
    servers: int
    servers_per_pod: int
    planes: int
    rail_switches: int
    spines: int
    spine_delay_ns: float | None


def route_rails(
    topology: Topology,
    network: RailNetwork,
    routing: str,
    destinations: NDArray[np.int32] | None = None,
) -> RoutingTable:
    """Inside the server first, then along a rail.

    ``min`` draws planes and spine switches evenly; ``adaptive`` takes those with the
    shortest queues. Where a spine can take a packet to another rank of the pod,
    ``adaptive`` compares that path with the one through the server. Exact loads are the
    same for both: before queues form it goes through the server.
    """
    builder = TableBuilder(
        topology,
        routing,
        states=1,
        virtual_channels=VIRTUAL_CHANNELS,
        selection="adaptive" if routing == "adaptive" else "weighted",
        destinations=destinations,
    )
    g, chips = network.chips_per_server, topology.chips
    rails, spines = network.rail_switches, network.spines
    to, chip = builder.destinations.astype(np.int64), np.arange(chips)
    pod_chips = network.servers_per_pod * g
    first = chips + network.servers + np.arange(network.planes) * (rails + spines)
    rail_switch = first + (chip // pod_chips * g + chip % g)[:, None]  # [chip, plane]
    _fill_chips(builder, g, pod_chips, rail_switch, network.spine_delay_ns)
    _fill_servers(builder, g, pod_chips, network.servers)
    # Rail switches: up to the spine, which knows the rail switch of the destination,
    # and down from there.
    own = to // pod_chips * g + to % g
    columns = np.arange(len(to))
    for plane in first.tolist():
        if spines:
            leaf, spine = plane + np.arange(rails), plane + rails + np.arange(spines)
            _fill_spine(builder, leaf, spine, own)
        builder.entry[0][plane + own, columns] = even_sets(builder, plane + own, to[:, None])
    builder.entry[0][to, columns] = -1
    return builder.build()


def _fill_chips(
    builder: TableBuilder,
    g: int,
    pod_chips: int,
    rail_switch: IntArray,
    spine_delay_ns: float | None,
) -> None:
    """The first hop at every chip.

    To the scale-up switch for its own server and for other ranks of its pod, else to a
    rail switch. ``spine_delay_ns``: time of flight that the spine adds to the path to
    another rank of the pod; None without a spine.
    """
    chip, to = np.arange(builder.topology.chips), builder.destinations.astype(np.int64)
    scale_up = (builder.topology.chips + chip // g)[:, None]
    same_server = chip[:, None] // g == to // g
    other_rank = (chip[:, None] // pod_chips == to // pod_chips) & (chip[:, None] % g != to % g)
    inside = even_sets(builder, chip, scale_up)[:, None]
    outside = even_sets(builder, chip, rail_switch)[:, None]
    detour = inside
    if builder.selection == "adaptive" and spine_delay_ns is not None:
        detour = fallback_sets(builder, chip, scale_up, rail_switch, spine_delay_ns)[:, None]
    builder.entry[0][chip] = np.where(same_server, inside, np.where(other_rank, detour, outside))


def _fill_servers(builder: TableBuilder, g: int, pod_chips: int, servers: int) -> None:
    """At every scale-up switch: to the chip of the destination's rank.

    For destinations of the pod.
    """
    server, to = np.arange(servers), builder.destinations.astype(np.int64)
    switch = builder.topology.chips + server
    ranks = even_sets(builder, np.repeat(switch, g), np.arange(servers * g)[:, None]).reshape(
        servers, g
    )
    in_pod = server[:, None] * g // pod_chips == to // pod_chips
    builder.entry[0][switch] = np.where(in_pod, ranks[:, to % g], -1)


def _fill_spine(builder: TableBuilder, leaf: IntArray, spine: IntArray, own: IntArray) -> None:
    """One plane: from rail switches up and from the spine down.

    The spine leads to the rail switch ``own`` (int[D]) of the destination.
    """
    builder.entry[0][leaf] = even_sets(builder, leaf, np.tile(spine, (len(leaf), 1)))[:, None]
    down = even_sets(
        builder, np.repeat(spine, len(leaf)), np.tile(leaf, len(spine))[:, None]
    ).reshape(len(spine), len(leaf))
    builder.entry[0][spine] = down[:, own]
