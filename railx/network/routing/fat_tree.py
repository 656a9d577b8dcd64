"""Up*/down* on a fat tree: up to the lowest switch that has the destination below it, then down the only way.

The plane is chosen at the source, after which the vertex implies it. Links up come before links down, so nothing can wait in a
circle on any number of virtual channels; a packet draws one of three at every hop (the RailX simulator's fat tree takes any).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.spread import VIRTUAL_CHANNELS, even_sets, first_with_room_sets
from railx.network.routing.table import RoutingTable, TableBuilder
from railx.topology import FatTreeSettings, Topology, settings_of

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "adaptive")

IntArray = NDArray[np.int64]


def route(topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None) -> RoutingTable:
    """``min`` draws plane and ports up evenly; ``adaptive`` takes any with room, the destination says which it tries first.

    Both load the links alike under any traffic as long as all have room.
    """
    settings = settings_of(topology)
    assert isinstance(settings, FatTreeSettings)
    builder = TableBuilder(topology, routing, states=1, virtual_channels=VIRTUAL_CHANNELS, destinations=destinations)
    to = builder.destinations.astype(np.int64)
    chip = np.arange(settings.chips)
    first = settings.chips + np.arange(settings.planes) * settings.plane_switches
    leaves = first + (chip // settings.leaf_down)[:, None]
    _fill_up(builder, chip, leaves, to)
    for plane in first.tolist():
        _fill_plane(builder, settings, plane, to)
    builder.entry[0][to, np.arange(len(to))] = -1
    return builder.build()


def _fill_plane(builder: TableBuilder, settings: FatTreeSettings, first: int, to: IntArray) -> None:
    """The switches of one plane, whose first leaf is vertex ``first``."""
    down, up, pods = settings.leaf_down, settings.leaf_up, settings.pods if settings.tiers == 3 else 1
    leaf = first + np.arange(settings.leaves)
    upper = first + settings.leaves + np.arange(settings.upper_switches)
    of_pod = upper.reshape(pods, up)
    turn = to // settings.planes  # apart from what chooses the plane
    _fill_up(builder, leaf, np.repeat(of_pod, settings.leaves // pods, axis=0), turn)
    own_leaf, own_pod = first + to // down, to // (settings.chips // pods)
    columns = np.arange(len(to))
    if settings.tiers == 3:
        core = upper[-1] + 1 + np.arange(settings.core_switches).reshape(up, -1)
        _fill_up(builder, upper, np.tile(core, (pods, 1)), turn // up)
        _fill_down(builder, core.ravel(), np.repeat(of_pod.T, core.shape[1], axis=0), own_pod)
    per_pod = leaf.reshape(pods, -1)
    for pod in np.unique(own_pod).tolist():
        here = np.flatnonzero(own_pod == pod)
        below = even_sets(builder, np.repeat(of_pod[pod], per_pod.shape[1]), np.tile(per_pod[pod], up)[:, None]).reshape(up, -1)
        builder.entry[0][of_pod[pod][:, None], here] = below[:, own_leaf[here] - per_pod[pod][0]]
    builder.entry[0][own_leaf, columns] = even_sets(builder, own_leaf, to[:, None])


def _fill_up(builder: TableBuilder, vertex: IntArray, above: IntArray, turn: IntArray) -> None:
    """Towards every destination: up by any of ``above`` (int[vertices, ports]); ``turn`` (int[D]): the port to try first."""
    if builder.routing == "min":
        builder.entry[0][vertex] = even_sets(builder, vertex, above)[:, None]
        return
    ports = above.shape[1]
    sets = first_with_room_sets(builder, vertex, above, np.arange(ports), above[:, :0])
    builder.entry[0][vertex] = sets[:, turn % ports]


def _fill_down(builder: TableBuilder, vertex: IntArray, below: IntArray, goal: IntArray) -> None:
    """Towards every destination: down to the one of ``below`` (int[vertices, ways]) that ``goal`` (int[D]) says."""
    sets = even_sets(builder, np.repeat(vertex, below.shape[1]), below.reshape(-1, 1)).reshape(below.shape)
    builder.entry[0][vertex] = sets[:, goal]
