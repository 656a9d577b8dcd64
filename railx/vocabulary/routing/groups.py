"""Groups of destinations: a routing table that grows with them, not with all pairs.

In a regular network a vertex has few things to tell apart. On a grid of nodes it asks
to which column a packet goes, in that column to which row, in that node to which chip.
So it needs one column of a table for each row, column and place, not for each chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DestinationGroups", "groups_by_coordinates"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DestinationGroups:
    """Which column of a table serves a destination, as each vertex sees it.

    Vertices and destinations have coordinates on a few levels. A vertex sees a
    destination on the first level where their coordinates differ, or on the last one.

    * ``coordinates`` (int32[vertices, levels - 1]): coordinates of the vertices. Nobody
      asks for the last one.
    * ``goal`` (int32[destinations, levels - 1]): those of the destinations.
    * ``column`` (int32[destinations, levels]): the column for who sees the destination
      on a level.
    * ``first`` (levels + 1): the first column of each level, then how many there are.
    """

    coordinates: NDArray[np.int32]
    goal: NDArray[np.int32]
    column: NDArray[np.int32]
    first: tuple[int, ...]

    @property
    def columns(self) -> int:
        return self.first[-1]

    def on_level(self, level: int) -> slice:
        """The columns of a level."""
        return slice(self.first[level], self.first[level + 1])

    def seen(self, begin: int, end: int) -> NDArray[np.int32]:
        """The column of each vertex for destinations ``begin`` to below ``end``.

        int32[vertices, end - begin].
        """
        goal, column = self.goal[begin:end], self.column[begin:end]
        seen = np.repeat(column[None, :, -1], len(self.coordinates), axis=0)
        for level in reversed(range(self.coordinates.shape[1])):
            differs = self.coordinates[:, level, None] != goal[:, level]
            np.copyto(seen, column[:, level], where=differs)
        return seen


def groups_by_coordinates(
    vertices: int,
    coordinates: Sequence[IntArray],
    goal: Sequence[IntArray],
    targets: Sequence[IntArray],
    sizes: Sequence[int],
) -> DestinationGroups:
    """Groups from coordinates on every level but the last.

    ``coordinates`` are those of the ``vertices`` (int[vertices] for each level),
    ``goal`` those of the destinations. ``targets`` (int[destinations] for each level
    and the last, 0 to below its size in ``sizes``): the place of each destination among
    the columns of the level.
    """
    first = np.cumsum([0, *sizes])
    column = np.stack(targets, axis=1) + first[:-1]
    return DestinationGroups(
        coordinates=np.reshape(coordinates, (len(coordinates), vertices)).T.astype(np.int32),
        goal=np.reshape(goal, (len(goal), len(column))).T.astype(np.int32),
        column=column.astype(np.int32),
        first=tuple(first.tolist()),
    )
