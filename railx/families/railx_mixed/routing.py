"""Routing on RailX with mixed rails: the fewest rails along the row, then the column.

A walk to the chip comes last. A line may hold rings and all-to-alls side by side, so
that the paths with the fewest rails are found by a search over the positions of one
line. Every rail raises the virtual channel, which needs no datelines on rings but as
many channels as a path has rails, and one more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_mixed.settings import RailXMixedSettings
from railx.vocabulary.grid import rail_ports
from railx.vocabulary.routing.line_phases import even_shares, mesh_distance, nearest_shares
from railx.vocabulary.routing.node_walks import exits, fill_final, split_sets, walk_pools
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "balanced")

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """Row first.

    A packet with h rails to go in a line of diameter D walks on the line's channel D -
    h. ``min`` takes the nearest of the rails that bring it one hop closer, ``balanced``
    all of them alike (for sources that are spread evenly over a node). States: 0
    undecided; ``balanced`` has one more for each rail that a packet may have chosen.
    """
    settings = topology.settings
    assert isinstance(settings, RailXMixedSettings)
    ports = rail_ports(topology)
    lines = [
        _MixedLine(settings, ports.neighbour, dimension, routing == "balanced")
        for dimension in (0, 1)
    ]
    channels = 1 + sum(line.diameter for line in lines)
    states = 1 if routing == "min" else 1 + max(line.ports.shape[2] for line in lines)
    builder = TableBuilder(
        topology, routing, states=states, virtual_channels=channels, destinations=destinations
    )
    node, local = np.divmod(np.arange(topology.chips), settings.m**2)
    to_node = builder.destinations.astype(np.int64) // settings.m**2
    done, channel = np.ones((len(node), len(to_node)), dtype=np.bool_), 0
    for line in lines:
        place, target = line.place(node), line.place(to_node)
        rows = line.link_rows(ports.link)[node]
        shares = line.shares[place, local]
        for hops in range(line.diameter, 0, -1):
            rail = np.where((line.hops[place] == hops)[..., None], rows, -1)
            walk = walk_pools(builder, settings.m, "xy", channel, by_rail=routing == "balanced")
            paths = [
                exits(
                    builder,
                    walk,
                    rail[..., q],
                    vc=channel + 1,
                    heading=0 if states == 1 else 1 + q,
                    after=0,
                )
                for q in range(rail.shape[2])
            ]
            here = done & (line.hops[place[:, None], target] == hops)
            builder.entry[0][here] = split_sets(builder, paths, shares)[:, target][here]
            for q, path in enumerate(paths if states > 1 else []):
                builder.entry[1 + q][here] = path.sets(builder)[:, target][here]
            channel += 1
        done &= place[:, None] == target
    fill_final(builder, walk_pools(builder, settings.m, "xy", channel))
    return builder.build()


class _MixedLine:
    """The positions of a row or column; all lines of a dimension are alike.

    * ``hops`` (int[L, L]): rails between positions.
    * ``ports`` (int[L, L, q]): the ports (2 rail + side) of a position that lead one
      hop closer to another, -1 for none.
    * ``shares`` (float[L, c, L, q]): the part of the traffic of each chip that takes
      each of them.
    """

    def __init__(
        self, settings: RailXMixedSettings, neighbour: IntArray, dimension: int, balanced: bool
    ) -> None:
        from scipy.sparse.csgraph import shortest_path

        self.dimension = dimension
        self.stride = settings.x_scale if dimension else 1
        self.length = settings.y_scale if dimension else settings.x_scale
        near = self.place(neighbour[dimension, np.arange(self.length) * self.stride]).reshape(
            self.length, -1
        )  # [position, port]
        joined = np.zeros((self.length, self.length))
        np.put_along_axis(joined, near, 1, axis=1)
        self.hops: IntArray = shortest_path(joined, unweighted=True).astype(np.int64)
        self.diameter = int(self.hops.max())
        closer = self.hops[near] == self.hops[:, None, :] - 1  # [position, port, target]
        self.ports = np.full((self.length, self.length, int(closer.sum(axis=1).max())), -1)
        for a, b in np.ndindex(self.length, self.length):
            used = np.flatnonzero(closer[a, :, b])
            self.ports[a, b, : len(used)] = used
        self.shares = self._shares(settings, balanced)

    def place(self, node: IntArray) -> IntArray:
        return node // self.stride % self.length

    def link_rows(self, links: IntArray) -> IntArray:
        """The link rows behind ``ports`` at each node.

        int[nodes, L, q], -1 for none.
        """
        node = np.arange(links.shape[1])
        port = self.ports[self.place(node)]
        rail, side = np.divmod(np.maximum(port, 0), 2)
        return np.where(port < 0, -1, links[self.dimension, node[:, None, None], rail, side])

    def _shares(self, settings: RailXMixedSettings, balanced: bool) -> FloatArray:
        m, chips = settings.m, settings.m**2
        rail, side = np.divmod(np.maximum(self.ports, 0), 2)
        beside, edge = rail // settings.n, np.where(side == 1, m - 1, 0)
        leave = beside * m + edge if self.dimension == 0 else edge * m + beside
        distance = mesh_distance(m)[:, leave]  # [c, a, b, q]
        shares = np.zeros((self.length, chips, *self.ports.shape[1:]))
        for a, b in np.ndindex(self.length, self.length):
            used = np.flatnonzero(self.ports[a, b] >= 0)
            if len(used):
                steps = distance[:, a, b, used][None, :, None]
                own = (
                    even_shares(np.ones((1, 1, chips)), steps)[0]
                    if balanced
                    else nearest_shares(steps)
                )
                shares[a][:, b, used] = own[0, :, 0]
        return shares
