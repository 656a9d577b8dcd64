"""Rings of a line, link by link.

One description for the rings of every family, and how to find their links. A line is a
row of nodes, of boards or of chips. A collective over d dimensions runs the rings of
all lines of all d dimensions at once. What a family has to say is who follows whom on
its rings, and over which channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.topology import Topology

__all__ = ["ChannelIndex", "ChipOrderRing", "LineRings", "RingLink", "line_rings"]

IntArray = NDArray[np.int64]
#: Of one message over one link: message, source place, destination place, rail (-1:
#: any), channel.
RingLink: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class LineRings:
    """Directed rings through ``participants`` of a line, all at once, link by link.

    Lines are all alike. In a step each participant of each ring passes one message on.
    Entry k says that message ``message[k]`` (ring * participants + place of the sender
    in its ring) goes from place ``src[k]`` to place ``dst[k]`` of the line. It goes
    over channel number ``channel[k]`` of those between the two on rail ``rail[k]`` (-1:
    on any rail), counted over the lanes of all link rows in the order of their rails.

    ``vertices`` (int[lines, places]): the vertex at each place of each line. ``ports``:
    the rate of each ring, as a multiple of that of an external port, with all rings at
    work.
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

    ``rings``: rings at once. ``chain_latency_ns``: latency along the slowest chain of
    messages, one less than there are chips.
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
    """The rings of these entries, in the order of their messages.

    The links of a message stay in the order given.
    """
    columns = np.array(entries, dtype=np.int64).T
    message, src, dst, rail, channel = columns[:, np.argsort(columns[0], kind="stable")]
    return LineRings(participants, rings, vertices, message, src, dst, rail, channel, ports)


class ChannelIndex:
    """Finds the link row of a channel.

    By its two vertices, its rail and its place among the channels between them.
    """

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
