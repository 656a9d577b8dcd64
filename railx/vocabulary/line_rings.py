"""Rings of a line, link by link, for every family.

A line is a row of nodes, of boards or of chips. A collective over d dimensions runs the
rings of all lines of all d dimensions at once. A family gives the order of the
participants on its rings and the channels between them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.arrays import IntArray
from railx.vocabulary.hamiltonian import undirected_rings
from railx.vocabulary.topology import Topology

#: A message over a link: message, source place, destination place, rail (-1: any),
#: channel.
RingLink: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class LineRings:
    """Directed rings through ``participants`` of a line, all at once, link by link.

    All lines are alike. In a step each participant of each ring sends one message. In
    entry k, message ``message[k]`` (ring * participants + place of the sender in its
    ring) goes from place ``src[k]`` to place ``dst[k]`` of the line over channel
    ``channel[k]`` of those between the two on rail ``rail[k]`` (-1: on any rail),
    counted over the lanes of all link rows in the order of their rails.

    ``vertices`` (int[lines, places]): the vertex at each place of each line. ``ports``:
    the rate of each ring while all rings are busy, in external ports.
    """

    participants: int
    rings: int
    vertices: IntArray
    message: IntArray
    src: IntArray
    dst: IntArray
    rail: IntArray
    channel: IntArray
    ports: float

    @property
    def messages(self) -> int:
        """Messages of a step in one line."""
        return self.participants * self.rings

    def ends(self, line: int) -> tuple[IntArray, IntArray]:
        """Source and destination vertices of all entries in a line."""
        return self.vertices[line, self.src], self.vertices[line, self.dst]


@dataclass(frozen=True)
class ChipOrderRing:
    """Rings over all chips in order, each at the rate of a port.

    ``rings``: rings at once. ``chain_latency_ns``: latency of the slowest chain of
    messages, one message fewer than chips.
    """

    rings: int
    chain_latency_ns: float


def line_rings(
    participants: int,
    rings: int,
    vertices: IntArray,
    entries: Sequence[RingLink],
    ports: float = 1.0,
) -> LineRings:
    """The rings of these entries, stably sorted by message."""
    columns = np.array(entries, dtype=np.int64).T
    message, src, dst, rail, channel = columns[:, np.argsort(columns[0], kind="stable")]
    return LineRings(participants, rings, vertices, message, src, dst, rail, channel, ports)


class ChannelIndex:
    """Finds the link row of a channel by its vertices, rail and index there."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        links = topology.links
        key = self._key(links.src, links.dst, links.rail)
        self._order = np.argsort(key, kind="stable")
        self._sorted = key[self._order]
        self._ends = np.cumsum(links.lanes[self._order].astype(np.int64))

    def rows(self, rings: LineRings, line: int) -> IntArray:
        """The link rows that the messages of a line cross, int[entries]."""
        src, dst = rings.ends(line)
        # Rail -1 sorts before all rails of a pair: the first channel between the two
        # vertices.
        first = np.searchsorted(self._sorted, self._key(src, dst, rings.rail))
        before = np.where(first > 0, self._ends[first - 1], 0)
        rows: IntArray = self._order[
            np.searchsorted(self._ends, before + rings.channel, side="right")
        ]
        return rows

    def _key(self, src: NDArray[Any], dst: NDArray[Any], rail: NDArray[Any]) -> IntArray:
        vertices, rails = self.topology.vertices, int(self.topology.links.rail.max()) + 2
        key: IntArray = (src.astype(np.int64) * vertices + dst) * rails + rail + 1
        return key


# Grids of single chips. A line of a torus is n rings in each direction. A line of L
# fully joined chips has L - 1 rings in each direction, which take every pair of
# neighbours twice, so that each has half of the links of a pair. Together they fill all
# ports.


def torus_rings(chip: IntArray, n: int) -> tuple[LineRings, ...]:
    """The rings of every dimension of a torus, all lines of each.

    ``chip``: the number of the chip at every position, ``n``: links between neighbours.
    """
    return tuple(_torus_line(lines, n) for lines in _lines(chip))


def joined_rings(chip: IntArray, lanes: int) -> tuple[LineRings, ...]:
    """The rings of every dimension where ``lanes`` links join each pair of a line."""
    return tuple(_joined_line(lines, lanes) for lines in _lines(chip))


def _lines(chip: IntArray) -> list[IntArray]:
    """The chips of the lines along each axis of a grid of chips, int[lines, length]."""
    return [
        np.moveaxis(chip, axis, -1).reshape(-1, length) for axis, length in enumerate(chip.shape)
    ]


def _torus_line(lines: IntArray, n: int) -> LineRings:
    length = lines.shape[1]
    order = list(range(length))
    # In a ring of two both directions lead to the same neighbour: the way down takes
    # the second n channels.
    second = n * (length == 2)
    both = [
        (way, lane + second * (way is not order))
        for lane in range(n)
        for way in (order, order[::-1])
    ]
    return _directed_rings(lines, both, 1.0)


def _joined_line(lines: IntArray, lanes: int) -> LineRings:
    length = lines.shape[1]
    orders = undirected_rings(length).tolist() if length > 2 else [[0, 1]]
    return _directed_rings(
        lines, [(way, 0) for order in orders for way in (order, order[::-1])], lanes / 2
    )


def _directed_rings(
    lines: IntArray, rings: Sequence[tuple[list[int], int]], ports: float
) -> LineRings:
    """The rings of these orders of positions, with their channel."""
    length = lines.shape[1]
    entries: list[RingLink] = [
        (ring * length + k, order[k], order[(k + 1) % length], -1, channel)
        for ring, (order, channel) in enumerate(rings)
        for k in range(length)
    ]
    return line_rings(length, len(rings), lines, entries, ports)


def arcs(nodes: int, reach: int, failed: Collection[int]) -> list[list[int]]:
    """The working nodes in runs that circuits join; one run where a ring closes."""
    working = sorted(set(range(nodes)) - set(failed))
    runs: list[list[int]] = []
    for node in working:
        if runs and node - runs[-1][-1] <= reach:
            runs[-1].append(node)
        else:
            runs.append([node])
    if len(runs) > 1 and runs[0][0] + nodes - runs[-1][-1] <= reach:
        runs[0] = runs.pop() + runs[0]
    return runs
