"""RailX with mixed rails: some rails as rings, others as all-to-alls over sub-lines.

Each dimension is a list of parts, the general form of the settings that keep all lines
alike: an optical switch is any matching of its ports, so each rail can be set
independently (RailX, abstract: reconfigurable; the description by parts is this
project's). Examples for a line of L nodes:

* one ``ring`` part of size L is the torus;
* one ``all_to_all`` part of size L is the HyperX;
* all-to-alls of sizes s1 (stride 1) and s2 (stride s1) are the split of
  :mod:`railx.families.railx_split`;
* a ring over the line beside an all-to-all over sub-lines of neighbours serves ring
  collectives of a full row and expert parallelism within groups at once.

Layout: nodes, chips and rails as in :mod:`railx.vocabulary.grid`; parts as in
:mod:`railx.vocabulary.line_parts`.

Routing takes the fewest rails along the row, then along the column, then a walk to the
chip. A line may mix rings and all-to-alls, so a search over its positions finds the
paths. Every rail raises the virtual channel: rings need no datelines, but a path needs
one channel more than it has rails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.families.family import check_radix
from railx.families.node_grids import circuit_line_graphs, node_grid_family
from railx.families.railx_lines import (
    PartedSettings,
    bisection_ports,
    build,
    check_circuits,
    halves,
)
from railx.settings import AtLeast, NotEmpty
from railx.vocabulary.arrays import FloatArray, IntArray, true_indices
from railx.vocabulary.grid import port_chip, rail_ports
from railx.vocabulary.line_parts import LinePart, PartSettings, check_line, check_rings, line_parts
from railx.vocabulary.routing.line_phases import link_shares, mesh_distance
from railx.vocabulary.routing.node_walks import exits, fill_final, split_sets, walk_pools
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["FAMILY", "RailXMixedSettings"]


@dataclass(frozen=True)
class RailXMixedSettings(PartedSettings):
    """RailX with lines of mixed parts: some rails as rings, others as all-to-alls."""

    family: Literal["railx_mixed"]

    x_scale: Annotated[int, AtLeast(2)] = 6
    """Nodes of a row."""
    y_scale: Annotated[int, AtLeast(2)] = 5
    """Nodes of a column."""
    parts_x: Annotated[tuple[PartSettings, ...], NotEmpty()] = (
        PartSettings("ring", rails=2, size=6, stride=1),
        PartSettings("all_to_all", rails=2, size=3, stride=1),
    )
    """Parts that share out the m * n rails of a row: a ring or an all-to-all over
    sub-lines of ``size`` nodes, ``stride`` apart."""
    parts_y: Annotated[tuple[PartSettings, ...], NotEmpty()] = (
        PartSettings("all_to_all", rails=4, size=5, stride=1),
    )
    """Parts that share out the m * n rails of a column."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.x_scale, self.y_scale

    @property
    def parts(self) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
        return line_parts(self.parts_x), line_parts(self.parts_y)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, parts, length in (
            ("parts_x", self.parts_x, self.x_scale),
            ("parts_y", self.parts_y, self.y_scale),
        ):
            check_line(key, parts, length, self.rails)
            check_rings(key, parts, self.rings)
        check_radix(self.ocs_radix, max(self.shape))


# Routing


def route(
    settings: RailXMixedSettings,
    topology: Topology,
    routing: str,
    destinations: Destinations = None,
) -> RoutingTable:
    """Row first, then column.

    A packet with h rails to go in a line of diameter D walks on the line's channel D -
    h. ``min`` takes the nearest of the rails that lead one hop closer, ``balanced`` all
    of them evenly (for sources that are spread evenly over a node). States: 0
    undecided; ``balanced`` has one more for each rail that a packet may have chosen.
    """
    ports = rail_ports(topology)
    lines = [_MixedLine(settings, ports.neighbour, dimension, routing) for dimension in (0, 1)]
    channels = 1 + sum(line.diameter for line in lines)
    drawn = routing == "balanced"
    states = 1 + max(line.ports.shape[2] for line in lines) if drawn else 1
    builder = TableBuilder(
        topology, routing, destinations, states=states, virtual_channels=channels
    )
    node, local = np.divmod(np.arange(topology.chips), settings.m**2)
    to_node = builder.destinations.astype(np.int64) // settings.m**2
    done, channel = np.ones((len(node), len(to_node)), dtype=np.bool_), 0
    for line in lines:
        position, target = line.position(node), line.position(to_node)
        rows = line.link_rows(ports.link)[node]
        shares = line.shares[position, local]
        for hops in range(line.diameter, 0, -1):
            rail = np.where((line.hops[position] == hops)[..., None], rows, -1)
            walk = walk_pools(builder, settings.m, "xy", channel, by_rail=drawn)
            paths = [
                exits(builder, walk, rail[..., q], channel + 1, q + 1 if drawn else 0)
                for q in range(rail.shape[2])
            ]
            here = done & (line.hops[position[:, None], target] == hops)
            builder.entry[0][here] = split_sets(builder, paths, shares)[:, target][here]
            for q, path in enumerate(paths if drawn else []):
                builder.entry[1 + q][here] = path.sets(builder)[:, target][here]
            channel += 1
        done &= position[:, None] == target
    fill_final(builder, walk_pools(builder, settings.m, "xy", channel))
    return builder.build()


class _MixedLine:
    """The positions of a row or column; all lines of a dimension are alike.

    * ``hops`` (int[L, L]): rails between positions.
    * ``ports`` (int[L, L, q]): the ports (2 rail + side) of a position that lead one
      hop closer to another, -1 for none.
    * ``shares`` (float[L, c, L, q]): the part of each chip's traffic on each of them.
    """

    def __init__(
        self, settings: RailXMixedSettings, neighbour: IntArray, dimension: int, routing: str
    ) -> None:
        from scipy.sparse.csgraph import shortest_path

        self.dimension = dimension
        self.stride = settings.x_scale if dimension else 1
        self.length = settings.y_scale if dimension else settings.x_scale
        near = self.position(neighbour[dimension, np.arange(self.length) * self.stride]).reshape(
            self.length, -1
        )  # [position, port]
        joined = np.zeros((self.length, self.length))
        np.put_along_axis(joined, near, 1, axis=1)
        self.hops: IntArray = shortest_path(joined, unweighted=True).astype(np.int64)
        self.diameter = int(self.hops.max())
        closer = self.hops[near] == self.hops[:, None, :] - 1  # [position, port, target]
        self.ports = true_indices(closer.transpose(0, 2, 1))
        self.shares = self._shares(settings, routing)

    def position(self, node: IntArray) -> IntArray:
        return node // self.stride % self.length

    def link_rows(self, links: IntArray) -> IntArray:
        """Link rows behind ``ports`` by node: int[nodes, L, q], -1 for none."""
        node = np.arange(links.shape[1])
        port = self.ports[self.position(node)]
        rail, side = np.divmod(np.maximum(port, 0), 2)
        return np.where(port < 0, -1, links[self.dimension, node[:, None, None], rail, side])

    def _shares(self, settings: RailXMixedSettings, routing: str) -> FloatArray:
        m, chips = settings.m, settings.m**2
        rail, side = np.divmod(np.maximum(self.ports, 0), 2)
        leave = port_chip(rail, side == 1, m, settings.n, self.dimension)
        distance = mesh_distance(m)[:, leave]  # [c, a, b, q]
        shares = np.zeros((self.length, chips, *self.ports.shape[1:]))
        for a, b in np.ndindex(self.length, self.length):
            used = np.flatnonzero(self.ports[a, b] >= 0)
            if len(used):
                steps = distance[:, a, b, used][None, :, None]
                shares[a][:, b, used] = link_shares(np.ones((1, 1, chips)), steps, routing)[
                    0, 0, :, 0
                ]
        return shares


FAMILY = node_grid_family(
    "railx_mixed",
    RailXMixedSettings,
    build=build,
    halves=halves,
    bisection_ports=bisection_ports,
    route=route,
    line_graphs=circuit_line_graphs,
    check_circuits=check_circuits,
)
