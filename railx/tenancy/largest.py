"""The largest job on a grid with failed nodes, exactly.

It is a product of lines or a contiguous block. A product of rows and columns avoids the
failed nodes if every failed (row, column) pair has its row or its column removed: the
removed lines are a vertex cover of a bipartite graph. With a rows and c columns removed
the job has (R - a)(C - c) nodes, so the search needs the smallest c for every a. A
matching gives a minimum vertex cover, but not its division between rows and columns.

Both methods are exact: branching over connected components (fast where the graph is
sparse, as with tens of failures on thousands of nodes) and an integer programme for
every a, pruned by the size of a maximum matching (Kőnig's theorem). Source: RailX,
faults (the model is derived; the paper's numbers are not available).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress, zip_longest
from typing import Literal

import numpy as np
from numba import njit
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from railx.errors import UserError
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.union import roots

Edge = tuple[int, int]
#: The least number of columns with their row and column sets (bit masks), by the number
#: of rows removed.
_Cover = tuple[int, int, int]
#: Components with more failed nodes than this go to the integer programme.
_MOST_EDGES = 44


@dataclass(frozen=True)
class Largest:
    """A largest job: the rows and columns that it excludes, and its number of nodes."""

    rows_out: tuple[int, ...]
    columns_out: tuple[int, ...]
    nodes: int


def formula_share(failed: int, side: int) -> float:
    """Share of the nodes in the largest product when no failed nodes share a line.

    Of side x side nodes it is (1 - f / (2 side))^2. With R = 2 side this is 1 - 2 f / R
    + f^2 / R^2. It is exact for even f, and for odd f the real-valued optimum over the
    division of removed lines into rows and columns.
    """
    if not 0 <= failed <= side:
        raise UserError(
            f"failed: got {failed}; allowed: 0 to {side}, no more can lie in distinct lines"
        )
    return (1 - failed / (2 * side)) ** 2


def largest_product(
    healthy: BoolArray, method: Literal["auto", "branch", "milp"] = "auto"
) -> Largest:
    """The largest set of rows times set of columns without a failed node.

    ``healthy`` is bool[rows, columns]. Exact with either method; ``auto`` branches
    unless a connected component of the failed pairs is large.
    """
    edges = [(int(row), int(column)) for row, column in np.argwhere(~healthy)]
    parts = _components(edges)
    if method == "milp" or (method == "auto" and max(map(len, parts), default=0) > _MOST_EDGES):
        return _by_programme(healthy, edges)
    covers = _together(parts, {})
    rows, columns = healthy.shape
    best = max(
        range(len(covers)),
        key=lambda a: (rows - min(a, rows)) * (columns - min(covers[a][0], columns)),
    )
    return _without(healthy, *map(_bits, covers[best][1:]))


def matching_size(healthy: BoolArray) -> int:
    """The size of a maximum matching: lines that any cover of the failures removes."""
    return int((maximum_bipartite_matching(csr_array((~healthy).astype(np.int8))) >= 0).sum())


def _without(healthy: BoolArray, rows_out: Sequence[int], columns_out: Sequence[int]) -> Largest:
    nodes = (healthy.shape[0] - len(rows_out)) * (healthy.shape[1] - len(columns_out))
    return Largest(tuple(rows_out), tuple(columns_out), nodes)


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def _components(edges: Iterable[Edge]) -> list[list[Edge]]:
    """The failed pairs in groups that share no line with each other."""
    edges = list(edges)
    lines = [((0, row), (1, column)) for row, column in edges]
    above = roots(chain.from_iterable(lines), lines)
    groups: dict[tuple[int, int], list[Edge]] = {}
    for edge in edges:
        groups.setdefault(above[0, edge[0]], []).append(edge)
    return list(groups.values())


def _branch(edges: frozenset[Edge], solved: dict[frozenset[Edge], list[_Cover]]) -> list[_Cover]:
    """Least columns by rows of a component: its busiest line goes, or all across it."""
    if edges in solved:
        return solved[edges]
    degree: dict[tuple[int, int], int] = {}
    for row, column in edges:
        degree[0, row] = degree.get((0, row), 0) + 1
        degree[1, column] = degree.get((1, column), 0) + 1
    side, line = max(sorted(degree), key=lambda at: degree[at])
    crossing = {edge[1 - side] for edge in edges if edge[side] == line}

    def removed(side: int, lines: set[int]) -> list[_Cover | None]:
        """The covers that have these lines."""
        parts = _components(edge for edge in sorted(edges) if edge[side] not in lines)
        covers, mask = _together(parts, solved), sum(1 << line for line in lines)
        if side == 1:
            return [(c + len(lines), rows, columns | mask) for c, rows, columns in covers]
        return [*[None] * len(lines), *[(c, rows | mask, columns) for c, rows, columns in covers]]

    solved[edges] = _lower(removed(side, {line}), removed(1 - side, crossing))
    return solved[edges]


def _together(
    parts: Iterable[Iterable[Edge]], solved: dict[frozenset[Edge], list[_Cover]]
) -> list[_Cover]:
    """Least columns by number of rows for several components."""
    covers: list[_Cover] = [(0, 0, 0)]
    for part in parts:
        covers = _combine(covers, _branch(frozenset(part), solved))
    return covers


def _lower(first: list[_Cover | None], second: list[_Cover | None]) -> list[_Cover]:
    """The better cover for every number of rows; columns never rise with rows."""
    result: list[_Cover] = []
    for options in zip_longest(first, second):
        covers_of_row = [cover for cover in (*options, *result[-1:]) if cover is not None]
        result.append(min(covers_of_row, key=lambda cover: cover[0]))
    while len(result) > 1 and result[-1][0] == result[-2][0]:
        result.pop()
    return result


def _combine(first: list[_Cover], second: list[_Cover]) -> list[_Cover]:
    """Covers of two parts that share no line: the best division of each row total."""
    result: list[_Cover | None] = [None] * (len(first) + len(second) - 1)
    for a, (c, rows, columns) in enumerate(first):
        for b, (d, more_rows, more_columns) in enumerate(second):
            old = result[a + b]
            if old is None or c + d < old[0]:
                result[a + b] = (c + d, rows | more_rows, columns | more_columns)
    return _lower(result, [])


def _by_programme(healthy: BoolArray, edges: list[Edge]) -> Largest:
    """Least columns by number of rows by an integer programme, within Kőnig's bound."""
    rows, columns = (sorted({edge[axis] for edge in edges}) for axis in (0, 1))
    at_row, at_column = ({line: i for i, line in enumerate(lines)} for lines in (rows, columns))
    height, width = healthy.shape
    lower_bound = matching_size(healthy)
    variables = len(rows) + len(columns)
    cover = np.zeros((len(edges) + 1, variables))
    for i, (row, column) in enumerate(edges):
        cover[i, at_row[row]] = cover[i, len(rows) + at_column[column]] = 1
    cover[-1, : len(rows)] = 1
    cost = np.concatenate([np.zeros(len(rows)), np.ones(len(columns))])
    best = _without(healthy, rows, ())
    for a in range(len(rows)):
        if (height - a) * (width - max(0, lower_bound - a)) <= best.nodes:
            continue
        lower = np.concatenate([np.ones(len(edges)), [0.0]])
        upper = np.concatenate([np.full(len(edges), np.inf), [float(a)]])
        solution = milp(
            cost,
            constraints=LinearConstraint(csr_array(cover), lower, upper),
            integrality=np.ones(variables, dtype=np.int64),
            bounds=Bounds(0, 1),
        )
        if solution.x is None:
            raise ValueError(
                "largest product: the integer programme ended without a solution"
                f" ({solution.message})"
            )
        out = np.round(solution.x).astype(np.bool_)
        removed = _without(
            healthy, tuple(compress(rows, out)), tuple(compress(columns, out[len(rows) :]))
        )
        best = max(best, removed, key=lambda largest: largest.nodes)
    return best


def largest_block(healthy: BoolArray) -> int:
    """Nodes of a torus's largest rectangle (wrapped or not) without a failed one."""
    return int(_largest_block(np.ascontiguousarray(healthy)))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _largest_block(healthy: BoolArray) -> int:
    """Exact search for the largest block.

    For every bottom row and left column, rectangles grow to the right under the lowest
    of the columns' heights.
    """
    rows, columns = healthy.shape
    height = np.zeros(columns, dtype=np.int64)
    best = 0
    for i in range(2 * rows):  # the second turn sees blocks that wrap around
        for j in range(columns):
            height[j] = min(height[j] + 1, rows) if healthy[i % rows, j] else 0
        if i < rows - 1:
            continue
        for left in range(columns):
            lowest = rows
            for width in range(1, columns + 1):
                lowest = min(lowest, height[(left + width - 1) % columns])
                if lowest * columns <= best:
                    break
                best = max(best, lowest * width)
    return best


def largest_box(healthy: BoolArray) -> int:
    """Units of the largest box without a failed one; sides wrap round."""
    sides = healthy.shape
    # Sums up to each corner over two periods, so that boxes may wrap round.
    count = np.pad((~healthy).astype(np.int64), [(0, side) for side in sides], mode="wrap")
    for axis in range(count.ndim):
        count = count.cumsum(axis=axis)
    count = np.pad(count, [(1, 0)] * count.ndim)
    boxes = [tuple(length + 1 for length in box) for box in np.ndindex(*sides)]
    for box in sorted(boxes, key=lambda box: -math.prod(box)):
        failures = np.zeros(sides, dtype=np.int64)
        for corner in np.ndindex(*(2,) * len(sides)):
            at = tuple(
                slice(length, length + side) if up else slice(0, side)
                for up, length, side in zip(corner, box, sides, strict=True)
            )
            failures += (-1) ** (len(sides) - sum(corner)) * count[at]
        if failures.min() == 0:
            return math.prod(box)
    return 0
