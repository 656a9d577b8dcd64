"""Groups of destinations, which keep a routing table far smaller than all pairs.

On a grid of nodes a vertex distinguishes the column of a destination, in that column
the row, in that node the chip; in a tree the pod, in that pod the leaf, there the port.
So a table needs a column for each of these, not for each chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from railx.vocabulary.arrays import Int32Array, IntArray


@dataclass(frozen=True, eq=False)
class DestinationGroups:
    """The column of a table for a destination, as each vertex sees it.

    Vertices and destinations have coordinates on a few levels. A vertex sees a
    destination on the first level where their coordinates differ, or on the last one.

    * ``coordinates`` (int32[vertices, levels - 1]): coordinates of the vertices; the
      last level needs none.
    * ``goal`` (int32[destinations, levels - 1]): coordinates of the destinations.
    * ``column`` (int32[destinations, levels]): the column of a destination on a level.
    * ``first`` (levels + 1): the first column of each level, then the number of
      columns.
    """

    coordinates: Int32Array
    goal: Int32Array
    column: Int32Array
    first: tuple[int, ...]

    @property
    def columns(self) -> int:
        return self.first[-1]

    def on_level(self, level: int) -> slice:
        """The columns of a level."""
        return slice(self.first[level], self.first[level + 1])

    def seen(self, begin: int, end: int) -> Int32Array:
        """The column of each vertex and destination: int32[vertices, end - begin]."""
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
    and the last, 0 to below its size in ``sizes``): the index of each destination in
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
