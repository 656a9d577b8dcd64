"""Stage-aware chunk-level checkpointing: how many layers each backward recomputes.

InfiniPipe section III-C, eqs. 15-20, on arrays. A backward that recomputes c layers
delays the other stages by as much, so that they may recompute c layers at no further
cost in the backwards that run at the same step of the schedule. Those lie on a
diagonal: position b of the backward order on a stage that s stages follow has the count
of diagonal b + s. With n chunks and d stages there are n + d - 1 counts C in place of
n d, and the time of recomputing is the time of one layer times their sum. The integer
programme is

    min Σ C,  0 <= C <= layers of a stage,  and on every stage at every step
    Σ over live chunks (kept - saved · C on its diagonal) <= capacity

with the chunks live whose forward has run and whose backward has not (eqs. 6-7). Rows
after the last forward are left out: what is live then was live before.

:func:`fast` is the default. It sweeps the steps and gives each deficit to the diagonals
that stay live longest, then takes away what later counts made superfluous, then trades
counts for fewer. Where that does not meet the bound of the relaxation, it is not proven
best: :func:`solved` then rounds the relaxation too and, for small cases, asks the
solver. :func:`exact` is the programme as the paper states it.

Deviations: the paper prints no coefficients (the body of its algorithm 2); ``kept`` and
``saved`` follow from its eqs. 5 and 10. Stages of unequal layers have counts up to the
layers of the smallest. Where those do not suffice, all layers of all stages are
recomputed. The paper solves with SCIP to a gap of 2 %; here it is HiGHS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["CheckpointProblem", "exact", "fast", "lp_bound", "rows"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Bytes that rounding of sums may take; far below any tensor.
_SLACK = 1e-9
#: The gap to which the solver of the paper works.
_GAP = 0.02


@dataclass(frozen=True)
class CheckpointProblem:
    """Chunks [n] in forward order on stages [d], all memory in bytes per rank.

    ``kept`` [d, n] is what a chunk keeps on a stage without recomputing, ``saved`` [n]
    what each recomputed layer of it saves, ``capacity`` [d] what a stage has for
    activations, ``layers`` the most that a diagonal may count. ``backward`` [n] are
    chunks in backward order, ``longest_split`` N_split.
    """

    kept: Floats
    saved: Floats
    capacity: Floats
    layers: int
    backward: Integers
    longest_split: int

    @property
    def stages(self) -> int:
        return len(self.capacity)

    @property
    def chunks(self) -> int:
        return len(self.saved)

    @property
    def diagonals(self) -> int:
        return self.chunks + self.stages - 1

    @property
    def position(self) -> Integers:
        """Each chunk's place [n] in the backward order (f2b of the paper)."""
        place = np.empty_like(self.backward)
        place[self.backward] = np.arange(len(self.backward))
        return place

    def counts(self, diagonals: Integers) -> Integers:
        """Layers [d, n] that each stage recomputes of each chunk (eq. 16)."""
        after = np.arange(self.stages)[::-1]
        return diagonals[self.position[None, :] + after[:, None]]


def rows(problem: CheckpointProblem) -> tuple[Floats, Floats]:
    """The programme's rows: coefficients [r, n + d - 1] and what they must reach [r].

    Rows that hold without recomputing are left out.
    """
    chunks, position = problem.chunks, problem.position
    matrix, needed = [], []
    for stage in range(problem.stages):
        after = problem.stages - 1 - stage
        warm = min(after + problem.longest_split - 1, chunks)
        for step in range(max(chunks - warm, 1)):
            live = np.flatnonzero(
                (np.arange(chunks) <= warm + step) & (position >= step)
            )
            missing = problem.kept[stage, live].sum() - problem.capacity[stage]
            if missing > _SLACK * problem.capacity[stage]:
                row = np.zeros(problem.diagonals)
                row[position[live] + after] = problem.saved[live]
                matrix.append(row)
                needed.append(missing)
    return np.array(matrix).reshape(-1, problem.diagonals), np.array(needed)


def lp_bound(problem: CheckpointProblem) -> float:
    """Σ C of the relaxation, infinite where no counts suffice."""
    relaxed = _relaxed(problem)
    return float("inf") if relaxed is None else float(relaxed.sum())


def exact(problem: CheckpointProblem, gap: float = 0.0) -> Integers | None:
    """Counts of the diagonals [n + d - 1] with the least sum; None where none suffice.

    The paper's programme, by HiGHS, to a relative ``gap``.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix, needed = rows(problem)
    if not len(needed):
        return np.zeros(problem.diagonals, dtype=np.int64)
    scale = problem.saved.max()
    found = milp(
        np.ones(problem.diagonals),
        integrality=np.ones(problem.diagonals),
        bounds=Bounds(0, problem.layers),
        constraints=LinearConstraint(matrix / scale, needed / scale, np.inf),
        options={"mip_rel_gap": gap},
    )
    return None if found.x is None else np.round(found.x).astype(np.int64)


def fast(problem: CheckpointProblem, rule: int = 0, trades: int = 3, start: Any = None) -> Integers | None:
    """Counts of the diagonals [n + d - 1] with a small sum; None where none suffice."""
    counts = np.zeros(problem.diagonals, dtype=np.int64) if start is None else start.copy()
    fits = _sweep(
        problem.kept,
        problem.saved,
        problem.capacity,
        problem.layers,
        problem.backward,
        problem.longest_split,
        rule,
        trades,
        counts,
    )
    return counts if fits else None


def _relaxed(problem: CheckpointProblem) -> Floats | None:
    from scipy.optimize import linprog

    matrix, needed = rows(problem)
    if not len(needed):
        return np.zeros(problem.diagonals)
    scale = problem.saved.max()
    found: Any = linprog(
        np.ones(problem.diagonals),
        A_ub=-matrix / scale,
        b_ub=-needed / scale,
        bounds=(0, problem.layers),
        method="highs",
    )
    return None if found.x is None else np.asarray(found.x)


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _sweep(
    kept: Floats,
    saved: Floats,
    capacity: Floats,
    layers: int,
    backward: Integers,
    longest_split: int,
    rule: int,
    trades: int,
    counts: Integers,
) -> bool:
    """Fill ``counts`` so that every row holds; False where none do."""
    stages, chunks = kept.shape
    position = np.empty(chunks, np.int64)
    for place in range(chunks):
        position[backward[place]] = place
    room = np.full((stages, chunks), np.inf)
    last = np.zeros(stages, np.int64)
    for stage in range(stages):
        after = stages - 1 - stage
        warm = min(after + longest_split - 1, chunks)
        held = kept[stage, :warm].sum()
        last[stage] = max(chunks - warm, 1)
        for step in range(last[stage]):
            if warm + step < chunks:
                held += kept[stage, warm + step]
            room[stage, step] = capacity[stage] - held
            held -= kept[stage, backward[step]]
    diagonals = chunks + stages - 1
    for diagonal in range(diagonals):
        first = counts[diagonal]
        if first:
            counts[diagonal] = 0
            _add(diagonal, first, counts, saved, room, last, backward, longest_split)
    for moment in range(diagonals):
        for stage in range(stages - 1, -1, -1):
            after = stages - 1 - stage
            step = moment - after
            if step < 0 or step >= last[stage]:
                continue
            warm = min(after + longest_split - 1, chunks)
            while room[stage, step] < -_SLACK * capacity[stage]:
                best, best_score = -1, -1.0
                for place in range(step, chunks):
                    chunk = backward[place]
                    if chunk > warm + step or counts[place + after] >= layers:
                        continue
                    if saved[chunk] <= 0:
                        continue
                    score = 0.0
                    if rule == 0:
                        score = float(place + 1)
                    elif rule == 1:
                        score = saved[chunk]
                    elif rule == 2:
                        score = _worth(
                            place + after, saved, room, last, backward, position, longest_split
                        )
                    if score > best_score:
                        best, best_score = place, score
                if best < 0:
                    return False
                needed = np.ceil((-room[stage, step] / saved[backward[best]]) - 1e-9)
                more = min(layers - counts[best + after], max(int(needed), 1))
                if rule == 2:
                    more = 1
                _add(best + after, more, counts, saved, room, last, backward, longest_split)
    _take_away(counts, saved, capacity, room, last, backward, longest_split)
    for _ in range(trades):
        if not _trade(counts, saved, capacity, room, last, backward, longest_split, layers):
            break
    return True


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _add(
    diagonal: int,
    more: int,
    counts: Integers,
    saved: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> None:
    """Recompute ``more`` layers on a diagonal (fewer where negative)."""
    stages, chunks = room.shape
    counts[diagonal] += more
    for stage in range(stages):
        after = stages - 1 - stage
        place = diagonal - after
        if place < 0 or place >= chunks:
            continue
        chunk = backward[place]
        warm = min(after + longest_split - 1, chunks)
        for step in range(max(chunk - warm, 0), min(place + 1, last[stage])):
            room[stage, step] += more * saved[chunk]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _worth(
    diagonal: int,
    saved: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    position: Integers,
    longest_split: int,
) -> float:
    """How much of what is missing a layer on a diagonal gives."""
    stages, chunks = room.shape
    worth = 0.0
    for stage in range(stages):
        after = stages - 1 - stage
        place = diagonal - after
        if place < 0 or place >= chunks:
            continue
        chunk = backward[place]
        warm = min(after + longest_split - 1, chunks)
        for step in range(max(chunk - warm, 0), min(place + 1, last[stage])):
            if room[stage, step] < 0:
                worth += min(saved[chunk], -room[stage, step])
    return worth


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _spare(
    diagonal: int,
    saved: Floats,
    capacity: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> int:
    """Layers of a diagonal that no row needs."""
    stages, chunks = room.shape
    spare = 1 << 30
    for stage in range(stages):
        after = stages - 1 - stage
        place = diagonal - after
        if place < 0 or place >= chunks:
            continue
        chunk = backward[place]
        if saved[chunk] <= 0:
            continue
        warm = min(after + longest_split - 1, chunks)
        for step in range(max(chunk - warm, 0), min(place + 1, last[stage])):
            free = room[stage, step] + _SLACK * capacity[stage]
            spare = min(spare, int(free / saved[chunk]))
            if spare <= 0:
                return 0
    return spare


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _take_away(
    counts: Integers,
    saved: Floats,
    capacity: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> int:
    """Take away what no row needs; how many layers."""
    taken = 0
    for diagonal in range(len(counts)):
        if counts[diagonal]:
            less = min(
                counts[diagonal],
                _spare(diagonal, saved, capacity, room, last, backward, longest_split),
            )
            if less > 0:
                _add(diagonal, -less, counts, saved, room, last, backward, longest_split)
                taken += less
    return taken


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _trade(
    counts: Integers,
    saved: Floats,
    capacity: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
    layers: int,
) -> bool:
    """Add layers where that makes more superfluous elsewhere; whether any did."""
    improved = False
    before = counts.copy()
    for diagonal in range(len(counts)):
        for more in (1, 2):
            if counts[diagonal] + more > layers:
                continue
            before[:] = counts
            _add(diagonal, more, counts, saved, room, last, backward, longest_split)
            taken = 0
            for other in range(len(counts)):
                if other != diagonal and counts[other]:
                    less = min(
                        counts[other],
                        _spare(other, saved, capacity, room, last, backward, longest_split),
                    )
                    if less > 0:
                        _add(other, -less, counts, saved, room, last, backward, longest_split)
                        taken += less
            if taken > more:
                improved = True
                break
            for other in range(len(counts)):
                if counts[other] != before[other]:
                    _add(
                        other,
                        before[other] - counts[other],
                        counts,
                        saved,
                        room,
                        last,
                        backward,
                        longest_split,
                    )
    return improved
