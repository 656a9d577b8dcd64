"""Rings through the lines of a grid of nodes: senders, receivers and channels.

:class:`GridRings` is a torus of nodes; families that join their lines in another way
subclass it. Every rail of a line is a ring through all its nodes, so r rails make 2 r
directed rings at once (RailX, abstract). A job may use only c neighbouring positions of
a line. These form a chain, on which a ring goes there and back: one ring instead of
two.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from railx.vocabulary.arrays import IntArray
from railx.vocabulary.grid import Grid, line_circuits
from railx.vocabulary.line_rings import LineRings, RingLink, line_rings
from railx.vocabulary.routing.line_phases import mesh_steps
from railx.vocabulary.topology import Topology

#: Source place, destination place, rail and channel of a link (:class:`LineRings`).
Link: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class Arc:
    """A hop from position ``a`` of a line out of its plus or minus side to ``b``."""

    a: int
    b: int
    rail: int
    plus: bool

    @property
    def back(self) -> Arc:
        """The hop from b to a."""
        return Arc(self.b, self.a, self.rail, not self.plus)


@dataclass(frozen=True, eq=False)
class GridRings:
    """Rings through the nodes of the lines of ``grid``, and through their chips.

    Dimension 0 is a row, 1 a column. ``joined``: links join any two nodes of a line,
    not only neighbours along the ring. ``full_lines_only``: rings of chips need all
    nodes of a line. ``single_chips``: every node is a single chip.
    """

    topology: Topology
    grid: Grid
    joined: ClassVar[bool] = False
    full_lines_only: ClassVar[bool] = False
    single_chips: ClassVar[bool] = False

    def arcs(self, positions: Sequence[int], dimension: int) -> tuple[list[list[Arc]], bool]:
        """The directed rings through positions of a line, and whether they are closed.

        Open rings go there and back along a chain.
        """
        if len(positions) == self.length(dimension):
            return closed_rings(self.rail_orders(dimension)), True
        rings = []
        for rail in range(self.grid.rails):
            up = [Arc(a, b, rail, True) for a, b in itertools.pairwise(positions)]
            rings.append(up + [arc.back for arc in reversed(up)])
        return rings, False

    def arc_links(self, dimension: int, arc: Arc) -> list[Link]:
        """The links of an arc, between places of its line."""
        src, dst = self.arc_chips(dimension, arc)
        # In a ring of two single chips both directions lead to the same neighbour.
        second = int(self.grid.m == 1 and self.length(dimension) == 2 and not arc.plus)
        if self.topology.circuits is None:
            return [(src, dst, -1, arc.rail + self.grid.n * second)]
        return [(src, dst, arc.rail, second)]

    def vertices(self, dimension: int, lines: Sequence[int]) -> IntArray:
        """The chips of all positions of the lines: int[lines, places]."""
        grid = self.grid
        node = np.arange(grid.nodes).reshape(grid.rows, grid.columns)
        node = (node if dimension == 0 else node.T)[list(lines)]
        chips: IntArray = node[:, :, None] * grid.m**2 + np.arange(grid.m**2)
        return chips.reshape(len(node), -1)

    def node_rings(
        self, positions: Sequence[int], dimension: int, lines: Sequence[int]
    ) -> LineRings:
        """Rings of the nodes at ``positions`` of each of ``lines``.

        A node receives a message at an edge chip and sends it on from another.
        """
        m = self.grid.m
        arcs, closed = self.arcs(positions, dimension)
        places, steps = _places(len(positions), closed), mesh_steps(m, "xy").tolist()
        entries: list[RingLink] = []
        for ring, hops in enumerate(arcs):
            for k, arc in enumerate(hops):
                message = ring * len(positions) + places[k]
                at, before = arc.a * m**2, hops[k - 1]
                enters = self.edge_chip(dimension, before.rail, not before.plus)
                walk = _walk(steps, enters, self.edge_chip(dimension, arc.rail, arc.plus))
                entries += [(message, at + c, at + d, -1, 0) for c, d in walk]
                entries += [(message, *link) for link in self.arc_links(dimension, arc)]
        return line_rings(len(positions), len(arcs), self.vertices(dimension, lines), entries)

    def chip_rings(
        self, positions: Sequence[int], dimension: int, lines: Sequence[int]
    ) -> LineRings | None:
        """Rings of all chips of a chip row (column) of the nodes.

        There are 2 n closed rings, or n on a chain. The first chip row of a line
        represents all m. None where the links of a part of a line do not spread evenly
        over the chip rows.
        """
        grid = self.grid
        if self.full_lines_only and len(positions) < self.length(dimension):
            return None
        arcs, closed = self.arcs(positions, dimension)
        participants = grid.m * len(positions)
        places = _places(participants, closed)
        entries: list[RingLink] = []
        lane_rings = [hops for hops in arcs if hops[0].rail < grid.n]
        for ring, hops in enumerate(lane_rings):
            entries += [
                (ring * participants + places[k], *link)
                for k, hop in enumerate(self._chip_hops(hops, dimension, closed))
                for link in hop
            ]
        return line_rings(participants, len(lane_rings), self.vertices(dimension, lines), entries)

    def mesh_rings(self, dimension: int) -> LineRings | None:
        """A ring there and back along the first chip row (column) of the first node.

        It takes all lanes of its links. None where a node is a single chip.
        """
        grid = self.grid
        if grid.m == 1:
            return None
        step = 1 if dimension == 0 else grid.m
        up = [(step * k, step * (k + 1), -1, 0) for k in range(grid.m - 1)]
        links = up + [(d, c, rail, channel) for c, d, rail, channel in reversed(up)]
        places = _places(grid.m, False)
        entries = [(places[k], *link) for k, link in enumerate(links)]
        vertices = np.arange(grid.m**2)[None, :]
        return line_rings(grid.m, 1, vertices, entries, grid.n * grid.internal_width)

    def length(self, dimension: int) -> int:
        """Nodes of a line."""
        return self.grid.columns if dimension == 0 else self.grid.rows

    def edge_chip(self, dimension: int, rail: int, plus: bool) -> int:
        """The place in its node of the chip behind a rail on the plus or minus side."""
        m = self.grid.m
        edge, beside = (m - 1 if plus else 0), rail // self.grid.n
        return beside * m + edge if dimension == 0 else edge * m + beside

    def arc_chips(self, dimension: int, arc: Arc) -> tuple[int, int]:
        """The places of the two chips that an arc joins."""
        chips = self.grid.m**2
        src = arc.a * chips + self.edge_chip(dimension, arc.rail, arc.plus)
        return src, arc.b * chips + self.edge_chip(dimension, arc.rail, not arc.plus)

    def rail_orders(self, dimension: int) -> list[list[int]]:
        """The positions along the ring of each rail, in line order without circuits."""
        length, rails = self.length(dimension), self.grid.rails
        if self.topology.circuits is None:
            return [list(range(length))] * rails
        follows = np.empty((rails, length), dtype=np.int64)
        a, b, rail = line_circuits(self.topology.circuits, dimension).T
        follows[rail, a] = b
        orders = np.zeros((rails, length), dtype=np.int64)
        for k in range(1, length):
            orders[:, k] = follows[np.arange(rails), orders[:, k - 1]]
        return orders.tolist()

    def _chip_hops(self, hops: list[Arc], dimension: int, closed: bool) -> list[list[Link]]:
        """The links from each chip of a ring to the next."""
        m = self.grid.m
        step = 1 if dimension == 0 else m
        links: list[list[Link]] = []
        for arc in hops:
            row = [arc.a * m**2 + step * k for k in range(m)]
            row = row if arc.plus else row[::-1]
            links += [[(c, d, -1, 0)] for c, d in itertools.pairwise(row)]
            links.append(self.arc_links(dimension, arc))
        if closed:
            return links
        # On a chain: up to its far end, through the last node's chips, and back over
        # the same links.
        up = links[: len(links) // 2]
        last = hops[len(hops) // 2].a * m**2
        up += [[(last + step * k, last + step * (k + 1), -1, 0)] for k in range(m - 1)]
        return up + [[(d, c, rail, channel)] for ((c, d, rail, channel),) in reversed(up)]


def closed_rings(orders: Sequence[Sequence[int]]) -> list[list[Arc]]:
    """Both directions of each rail's ring; ``orders``: the positions along it."""
    rings = []
    for rail, order in enumerate(orders):
        following = [*order[1:], *order[:1]]
        up = [Arc(a, b, rail, True) for a, b in zip(order, following, strict=True)]
        rings += [up, [arc.back for arc in reversed(up)]]
    return rings


def _places(participants: int, closed: bool) -> list[int]:
    """The ring place of the participant that sends over link k of the ring.

    On a chain every second participant takes part on the way up and the others on the
    way back, so that no message crosses more than two links.
    """
    if closed:
        return list(range(participants))
    top = participants - 1
    sends = [k % 2 == 0 or k == top if k <= top else (2 * top - k) % 2 == 1 for k in range(2 * top)]
    return [int(end) - 1 for end in np.cumsum(sends)]


def _walk(steps: list[list[int]], c: int, d: int) -> list[tuple[int, int]]:
    """The hops from local chip c to d; ``steps``: the next chip, from each to each."""
    hops = []
    while c != d:
        hops.append((c, steps[c][d]))
        c = steps[c][d]
    return hops
