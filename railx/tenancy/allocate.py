"""Finding free nodes for a job: any rows times any columns, or a contiguous block.

RailX and HammingMesh take products, a torus takes a block. RailX joins the chosen
positions of a line by circuits of its optical switches, HammingMesh by the electrical
switches of the line. Circuits belong to the job, and are limited to an all-to-all of r
+ 1 nodes. On a torus the links are fixed, and a job takes a rectangle of neighbours,
which may wrap around. Every system may turn a job by 90 degrees.

Finding a free product of a given size is a hard problem in general (a biclique). The
searches are heuristics: their results are always free, but they may miss a product. The
search for a block is exact.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from railx.families.family import PlaceRule
from railx.tenancy.settings import FitPolicy
from railx.vocabulary.arrays import BoolArray, IntArray

Lines = tuple[IntArray, IntArray]


def find_nodes(
    free: BoolArray,
    rows: int,
    columns: int,
    rule: PlaceRule,
    policy: FitPolicy,
    *,
    turn: bool = True,
) -> Lines | None:
    """Rows and columns of ``free`` (bool[side, side]) for a job, or None.

    All their crossings are free. ``turn``: also allow columns x rows.

    Under the rule ``blocks`` they are neighbours on a torus, in the order of the block,
    which may wrap around. first_fit: the first position by row and column. best_fit:
    the one with the fewest free nodes around it.

    Else they are any, ascending. first_fit: rows are taken in order while enough common
    columns stay free, from every first row. best_fit: from every first row, the set
    grows by the row with the most columns in common and, in another try, by the fullest
    row that still fits. The result leaves the fewest free nodes in the lines it
    touches. Sources: HammingMesh's product rule suggests the greedy allocation; the
    score is this project's.
    """
    search = _block if rule == "blocks" else _product
    best: Lines | None = None
    best_score = 0
    for a, b in dict.fromkeys(((rows, columns), (columns, rows) if turn else (rows, columns))):
        if a > free.shape[0] or b > free.shape[1]:
            continue
        fits, job_rows, job_columns, score = search(free, a, b, policy == "best_fit")
        if fits and (best is None or score < best_score):
            best, best_score = (job_rows, job_columns), score
            if policy == "first_fit":
                break
    return best


@njit(cache=True)  # type: ignore[untyped-decorator]
def _common(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """Columns that two masks share, counted in parallel within each word."""
    total = np.int64(0)
    for w in range(len(a)):
        word = a[w] & b[w]
        word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
        word = (word & np.uint64(0x3333333333333333)) + (
            (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
        )
        word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
        total += np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return int(total)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _core(free: BoolArray, rows: int, columns: int) -> NDArray[np.uint64]:
    """The free columns of each row as bits, uint64[rows, words].

    Lines outside every rows x columns product are removed, repeatedly: a row needs
    ``columns`` free nodes and a column ``rows`` of them.
    """
    height, width = free.shape
    usable = free.copy()
    changed = True
    while changed:
        changed = False
        for i in range(height):
            if 0 < np.count_nonzero(usable[i, :]) < columns:
                usable[i, :] = False
                changed = True
        for j in range(width):
            if 0 < np.count_nonzero(usable[:, j]) < rows:
                usable[:, j] = False
                changed = True
    masks = np.zeros((height, (width + 63) // 64), dtype=np.uint64)
    for i in range(height):
        for j in range(width):
            if usable[i, j]:
                masks[i, j >> 6] |= np.uint64(1) << np.uint64(j & 63)
    return masks


@njit(cache=True)  # type: ignore[untyped-decorator]
def _product(
    free: BoolArray, rows: int, columns: int, best_fit: bool
) -> tuple[bool, IntArray, IntArray, int]:
    height = len(free)
    best_rows, best_columns = np.zeros(rows, dtype=np.int64), np.zeros(columns, dtype=np.int64)
    chosen_rows, chosen_columns = np.zeros(rows, dtype=np.int64), np.zeros(columns, dtype=np.int64)
    fits, best_score = False, 0
    in_row, in_column = free.sum(axis=1), free.sum(axis=0)
    masks = _core(free, rows, columns)
    width_of = np.zeros(height, dtype=np.int64)  # columns of each row that are left in the core
    fit = 0
    for i in range(height):
        width_of[i] = _common(masks[i], masks[i])
        fit += width_of[i] >= columns
    if fit < rows:
        return fits, best_rows, best_columns, best_score
    taken = np.zeros(height, dtype=np.bool_)
    for first in range(height):
        if width_of[first] < columns:
            continue
        for growth in range(0 if best_fit else 2, 2 if best_fit else 3):
            shared = masks[first].copy()
            taken[:] = False
            taken[first] = True
            if _grow(masks, in_row, shared, taken, rows, columns, growth, first) < rows:
                continue
            k = 0
            score = -2 * rows * columns
            for row in range(height):
                if taken[row]:
                    chosen_rows[k] = row
                    score += in_row[row]
                    k += 1
            _choose(shared, in_column, chosen_columns, best_fit)
            for k in range(columns):
                score += in_column[chosen_columns[k]]
            if not fits or score < best_score:
                fits, best_score = True, score
                best_rows[:] = chosen_rows
                best_columns[:] = chosen_columns
            if not best_fit:
                return fits, best_rows, best_columns, best_score
    return fits, best_rows, best_columns, best_score


@njit(cache=True)  # type: ignore[untyped-decorator]
def _choose(
    shared: NDArray[np.uint64], in_column: IntArray, chosen: IntArray, fullest: bool
) -> None:
    """Fill ``chosen`` with the fullest or first columns of ``shared``, ascending."""
    width, needed = len(in_column), len(chosen)
    # Columns up to this many free nodes, and how many with just as many.
    limit, at_limit = int(np.max(in_column)), needed
    if fullest:
        count_of = np.zeros(limit + 1, dtype=np.int64)
        for j in range(width):
            if (shared[j >> 6] >> np.uint64(j & 63)) & np.uint64(1):
                count_of[in_column[j]] += 1
        limit = 0
        while count_of[limit] < at_limit:
            at_limit -= count_of[limit]
            limit += 1
    k = 0
    for j in range(width):
        there = (shared[j >> 6] >> np.uint64(j & 63)) & np.uint64(1)
        if k < needed and there and in_column[j] <= limit:
            if fullest and in_column[j] == limit:
                if at_limit == 0:
                    continue
                at_limit -= 1
            chosen[k] = j
            k += 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def _grow(
    masks: NDArray[np.uint64],
    in_row: IntArray,
    shared: NDArray[np.uint64],
    taken: BoolArray,
    rows: int,
    columns: int,
    growth: int,
    first: int,
) -> int:
    """Add rows to ``taken`` until there are enough or none fits; return their number.

    ``taken`` and ``shared`` change in place. ``growth``: 0 the row with the most
    columns in common, ties to the fullest; 1 the fullest row, ties to the most in
    common; 2 the next row in order after ``first``.
    """
    count, large = 1, len(in_row) + masks.shape[1] * 64 + 1
    while count < rows:
        chosen, best_key = -1, 0
        for row in range(first + 1 if growth == 2 else 0, len(in_row)):
            if taken[row]:
                continue
            common = _common(shared, masks[row])
            if common < columns:
                continue
            if growth == 2:
                chosen = row
                first = row
                break
            key = in_row[row] - common * large if growth == 0 else in_row[row] * large - common
            if chosen < 0 or key < best_key:
                chosen, best_key = row, key
        if chosen < 0:
            break
        for w in range(masks.shape[1]):
            shared[w] &= masks[chosen, w]
        taken[chosen] = True
        count += 1
    return count


@njit(cache=True)  # type: ignore[untyped-decorator]
def _block(
    free: BoolArray, rows: int, columns: int, best_fit: bool
) -> tuple[bool, IntArray, IntArray, int]:
    height, width = free.shape
    # Free nodes above and left of each corner, on the torus unrolled twice with one
    # line more on each side.
    total = np.zeros((2 * height + 3, 2 * width + 3), dtype=np.int64)
    for i in range(2 * height + 2):
        for j in range(2 * width + 2):
            cell = 1 if free[(i - 1) % height, (j - 1) % width] else 0
            total[i + 1, j + 1] = cell + total[i, j + 1] + total[i + 1, j] - total[i, j]
    fits, best_score, at_row, at_column = False, 0, 0, 0
    for i in range(height if rows < height else 1):
        for j in range(width if columns < width else 1):
            bottom, right = i + 1 + rows, j + 1 + columns
            inside = total[bottom, right] - total[i + 1, right]
            inside += total[i + 1, j + 1] - total[bottom, j + 1]
            if inside < rows * columns:
                continue
            around = total[bottom + 1, right + 1] - total[i, right + 1] - inside
            around += total[i, j] - total[bottom + 1, j]
            if not fits or around < best_score:
                fits, best_score, at_row, at_column = True, around, i, j
            if not best_fit:
                break
        if fits and not best_fit:
            break
    at_rows = (at_row + np.arange(rows)) % height
    at_columns = (at_column + np.arange(columns)) % width
    return fits, at_rows, at_columns, best_score
