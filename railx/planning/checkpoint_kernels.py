"""The sweep over the steps of a schedule that counts recomputed layers, compiled.

See ``railx.planning.checkpoints``. Chunks are in forward order, ``backward`` holds them
in backward order. ``room`` [d, n] is what a stage has left at a step, infinite where a
step has no row, ``last`` [d] how many steps have one, ``give`` [d] what rounding may
take.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["sweep"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: How near to a whole number of layers a need is one.
_NEAR = 1e-6


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def sweep(
    kept: Floats,
    saved: Floats,
    capacity: Floats,
    layers: int,
    backward: Integers,
    longest_split: int,
    rule: int,
    slack: float,
    trades: int,
    counts: Integers,
) -> bool:
    """Raise ``counts`` until every row holds, then lower them; False where none do.

    ``rule`` says which diagonal takes what is missing: 0 the one that stays live
    longest, 1 the one that saves most a layer, 2 the one that gives most of what is
    missing anywhere. ``trades`` are rounds of adding layers where that makes more of
    others superfluous.
    """
    stages, chunks = kept.shape
    give = slack * capacity
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
            while room[stage, step] < -give[stage]:
                best, best_score = -1, -1.0
                # Later places are of chunks whose forward pass is yet to come.
                for place in range(step, min(warm + step + longest_split, chunks)):
                    chunk = backward[place]
                    if chunk > warm + step or counts[place + after] >= layers:
                        continue
                    if saved[chunk] <= 0:
                        continue
                    if rule == 0:
                        score = float(place)
                    elif rule == 1:
                        score = saved[chunk]
                    else:
                        score = _worth(place + after, saved, room, last, backward, longest_split)
                    if score > best_score:
                        best, best_score = place, score
                if best < 0:
                    return False
                needed = np.ceil(-room[stage, step] / saved[backward[best]] - _NEAR)
                more = min(layers - counts[best + after], max(int(needed), 1))
                if rule == 2:
                    more = 1
                _add(best + after, more, counts, saved, room, last, backward, longest_split)
    for diagonal in range(diagonals):
        if counts[diagonal]:
            _lower(diagonal, counts, saved, give, room, last, backward, longest_split)
    for _ in range(trades):
        if not _trade(counts, saved, give, room, last, backward, longest_split, layers):
            break
    return True


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _live(
    diagonal: int,
    stage: int,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> tuple[int, int, int]:
    """The chunk of a diagonal on a stage, and the steps [first, end) where it is live.

    No steps where a diagonal passes the stage by.
    """
    stages, chunks = room.shape
    after = stages - 1 - stage
    place = diagonal - after
    if place < 0 or place >= chunks:
        return 0, 0, 0
    chunk = backward[place]
    warm = min(after + longest_split - 1, chunks)
    return chunk, max(chunk - warm, 0), min(place + 1, last[stage])


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
    counts[diagonal] += more
    for stage in range(len(room)):
        chunk, first, end = _live(diagonal, stage, room, last, backward, longest_split)
        for step in range(first, end):
            room[stage, step] += more * saved[chunk]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _worth(
    diagonal: int,
    saved: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> float:
    """How much of what is missing a layer on a diagonal gives."""
    worth = 0.0
    for stage in range(len(room)):
        chunk, first, end = _live(diagonal, stage, room, last, backward, longest_split)
        for step in range(first, end):
            if room[stage, step] < 0:
                worth += min(saved[chunk], -room[stage, step])
    return worth


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _spare(
    diagonal: int,
    saved: Floats,
    give: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> int:
    """Layers of a diagonal that no row needs."""
    spare = 1 << 30
    for stage in range(len(room)):
        chunk, first, end = _live(diagonal, stage, room, last, backward, longest_split)
        if first < end and saved[chunk] <= 0:
            continue
        for step in range(first, end):
            free = room[stage, step] + give[stage]
            spare = min(spare, int(free / saved[chunk]))
            if spare <= 0:
                return 0
    return spare


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _lower(
    diagonal: int,
    counts: Integers,
    saved: Floats,
    give: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
) -> int:
    """Take away what no row needs of a diagonal; how many layers."""
    spare = _spare(diagonal, saved, give, room, last, backward, longest_split)
    less: int = max(min(counts[diagonal], spare), 0)
    if less:
        _add(diagonal, -less, counts, saved, room, last, backward, longest_split)
    return less


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _trade(
    counts: Integers,
    saved: Floats,
    give: Floats,
    room: Floats,
    last: Integers,
    backward: Integers,
    longest_split: int,
    layers: int,
) -> bool:
    """Add layers where that makes more superfluous elsewhere; whether any did.

    No diagonal has superfluous ones when this begins. Those further off than a chunk is
    live have no row in common, so that they are left as they are.
    """
    improved = False
    before = counts.copy()
    reach = 2 * (longest_split + room.shape[0])
    for diagonal in range(len(counts)):
        near = range(max(diagonal - reach, 0), min(diagonal + reach + 1, len(counts)))
        for more in (1, 2):
            if counts[diagonal] + more > layers:
                continue
            before[:] = counts
            _add(diagonal, more, counts, saved, room, last, backward, longest_split)
            taken = 0
            for other in near:
                if other != diagonal and counts[other]:
                    taken += _lower(other, counts, saved, give, room, last, backward, longest_split)
            if taken > more:
                improved = True
                _lower(diagonal, counts, saved, give, room, last, backward, longest_split)
                break
            for other in near:
                back = before[other] - counts[other]
                if back:
                    _add(other, back, counts, saved, room, last, backward, longest_split)
    return improved
