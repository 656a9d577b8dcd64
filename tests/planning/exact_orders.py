"""The best orders of a small pipeline by trying all: what a planner is measured by.

Depth first over orders in which the passes begin, cut where a stage cannot end its rest
in time: passes have earliest begins by what has run, and latest ends by what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

__all__ = ["exact_makespan_ms"]


def exact_makespan_ms(
    runs: Sequence[int],
    stages: int,
    forward_ms: Sequence[float],
    backward_ms: Sequence[float],
    room: Sequence[float],
    known_ms: float,
    sizes: Sequence[Sequence[float]] | None = None,
) -> float:
    """The least makespan of all orders that hold at most ``room[stage]`` chunks.

    With ``sizes`` [stage][chunk], ``room`` is in bytes as they are. ``known_ms`` is a
    makespan that some order reaches.
    """
    chunks = len(forward_ms)
    weights = np.ones((stages, chunks)) if sizes is None else np.array(sizes, dtype=np.float64)
    first = np.repeat(np.cumsum([0, *runs[:-1]]), runs)
    last = np.repeat(np.cumsum(runs) - 1, runs)
    takes = np.array([forward_ms, backward_ms], dtype=np.float64)
    ends = np.cumsum(runs).tolist()
    kinds = [
        [(*takes[:, chunk], *weights[:, chunk]) for chunk in range(end - count, end)]
        for end, count in zip(ends, runs, strict=True)
    ]
    twin = np.full(chunks, -1)
    for run, kind in enumerate(kinds):
        if kind in kinds[:run]:
            before = max(other for other in range(run) if kinds[other] == kind)
            twin[ends[run] - runs[run]] = ends[before] - runs[before]
    most = np.array(room, dtype=np.float64) * (1 + 1e-9)
    return float(_search(takes, first, last, twin, weights, most, known_ms))


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _begins(takes: Any, first: Any, last: Any, ends: Any, clock: Any, begins: Any) -> None:
    """The earliest begin of every pass [kind, stage, chunk] that has not run."""
    stages, chunks = ends.shape[1], ends.shape[2]
    for stage in range(stages):
        for chunk in range(chunks):
            if ends[0, stage, chunk] < 0:
                begin = clock[stage]
                if stage:
                    begin = max(begin, _end(takes, ends, begins, 0, stage - 1, chunk))
                if chunk > first[chunk]:
                    begin = max(begin, _end(takes, ends, begins, 0, stage, chunk - 1))
                begins[0, stage, chunk] = begin
    for stage in range(stages - 1, -1, -1):
        for chunk in range(chunks - 1, -1, -1):
            if ends[1, stage, chunk] < 0:
                begin = max(clock[stage], _end(takes, ends, begins, 0, stage, chunk))
                if stage < stages - 1:
                    begin = max(begin, _end(takes, ends, begins, 1, stage + 1, chunk))
                if chunk < last[chunk]:
                    begin = max(begin, _end(takes, ends, begins, 1, stage, chunk + 1))
                begins[1, stage, chunk] = begin


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _end(takes: Any, ends: Any, begins: Any, kind: int, stage: int, chunk: int) -> float:
    end: float = ends[kind, stage, chunk]
    return end if end >= 0 else begins[kind, stage, chunk] + takes[kind, chunk]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _after(takes: Any, first: Any, last: Any, stages: int) -> Any:
    """What must follow a pass [kind, stage, chunk], in ms."""
    chunks = takes.shape[1]
    after = np.zeros((2, stages, chunks))
    for stage in range(stages):
        for chunk in range(chunks):
            if stage:
                after[1, stage, chunk] = takes[1, chunk] + after[1, stage - 1, chunk]
            if chunk > first[chunk]:
                more = takes[1, chunk - 1] + after[1, stage, chunk - 1]
                after[1, stage, chunk] = max(after[1, stage, chunk], more)
    for stage in range(stages - 1, -1, -1):
        for chunk in range(chunks - 1, -1, -1):
            most = takes[1, chunk] + after[1, stage, chunk]
            if stage < stages - 1:
                most = max(most, takes[0, chunk] + after[0, stage + 1, chunk])
            if chunk < last[chunk]:
                most = max(most, takes[0, chunk + 1] + after[0, stage, chunk + 1])
            after[0, stage, chunk] = most
    return after


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _in_time(takes: Any, ends: Any, begins: Any, after: Any, best: float) -> bool:
    """Whether every stage may run its rest in less than ``best``."""
    stages, chunks = ends.shape[1], ends.shape[2]
    for stage in range(stages):
        for kind_0 in range(2):
            for chunk_0 in range(chunks):
                if ends[kind_0, stage, chunk_0] >= 0:
                    continue
                # The passes that begin no earlier than this one, and those that are
                # followed by no less.
                begin, tail = begins[kind_0, stage, chunk_0], after[kind_0, stage, chunk_0]
                late_ms, least_after, long_ms, least_begin = 0.0, np.inf, 0.0, np.inf
                for kind in range(2):
                    for chunk in range(chunks):
                        if ends[kind, stage, chunk] >= 0:
                            continue
                        if begins[kind, stage, chunk] >= begin:
                            late_ms += takes[kind, chunk]
                            least_after = min(least_after, after[kind, stage, chunk])
                        if after[kind, stage, chunk] >= tail:
                            long_ms += takes[kind, chunk]
                            least_begin = min(least_begin, begins[kind, stage, chunk])
                most = max(begin + late_ms + least_after, least_begin + long_ms + tail)
                if most >= best - 1e-9:
                    return False
    return True


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _available(first: Any, last: Any, ends: Any, kind: int, stage: int, chunk: int) -> bool:
    """Whether what a pass needs has run."""
    if ends[kind, stage, chunk] >= 0:
        return False
    if kind == 0:
        if stage and ends[0, stage - 1, chunk] < 0:
            return False
        return not (chunk > first[chunk] and ends[0, stage, chunk - 1] < 0)
    if ends[0, stage, chunk] < 0:
        return False
    if stage < ends.shape[1] - 1 and ends[1, stage + 1, chunk] < 0:
        return False
    return not (chunk < last[chunk] and ends[1, stage, chunk + 1] < 0)


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _leaves_room(
    takes: Any, first: Any, last: Any, ends: Any, begins: Any, kind: int, stage: int, chunk: int,
    ample: bool,
) -> bool:  # fmt: skip
    """Whether a pass that costs no memory would end before this one begins.

    An order that runs it first is as good.
    """
    begin = begins[kind, stage, chunk]
    for other in range(ends.shape[2]):
        for side in range(0 if ample else 1, 2):
            soon = begins[side, stage, other] + takes[side, other] <= begin
            if soon and _available(first, last, ends, side, stage, other):
                return True
    return False


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _search(
    takes: Any, first: Any, last: Any, twin: Any, sizes: Any, room: Any, best: float
) -> float:
    stages, chunks = sizes.shape
    ample = True
    for stage in range(stages):
        ample = ample and sizes[stage].sum() <= room[stage]
    passes = 2 * stages * chunks
    after = _after(takes, first, last, stages)
    ends, begins = np.full((2, stages, chunks), -1.0), np.zeros((2, stages, chunks))
    clock, live = np.zeros(stages), np.zeros(stages)
    # By depth: the next pass to try, the pass that ran, the clock before, and the begin
    # of the pass before.
    following = np.zeros(passes + 1, np.int64)
    chosen = np.zeros(passes + 1, np.int64)
    before, since = np.zeros(passes + 1), np.zeros(passes + 1)
    depth = 0
    _begins(takes, first, last, ends, clock, begins)
    alive = _in_time(takes, ends, begins, after, best)
    while depth >= 0:
        step = -1
        if depth == passes:
            best = min(best, clock.max())
        elif alive:
            for number in range(following[depth], passes):
                kind, rest = number // (stages * chunks), number % (stages * chunks)
                stage, chunk = rest // chunks, rest % chunks
                if ends[kind, stage, chunk] >= 0 or begins[kind, stage, chunk] < since[depth]:
                    continue
                if _leaves_room(takes, first, last, ends, begins, kind, stage, chunk, ample):
                    continue
                # Equal runs begin in their order.
                if kind == 0 and stage == 0 and twin[chunk] >= 0 and ends[0, 0, twin[chunk]] < 0:
                    continue
                # Of passes that begin together, in the order of their numbers.
                together = depth > 0 and begins[kind, stage, chunk] == since[depth]
                if together and number < chosen[depth - 1]:
                    continue
                if not _available(first, last, ends, kind, stage, chunk):
                    continue
                if kind == 0 and live[stage] + sizes[stage, chunk] > room[stage]:
                    continue
                step = number
                break
        if step < 0:
            following[depth] = 0
            depth -= 1
            if depth < 0:
                break
            kind, rest = chosen[depth] // (stages * chunks), chosen[depth] % (stages * chunks)
            stage, chunk = rest // chunks, rest % chunks
            clock[stage], ends[kind, stage, chunk] = before[depth], -1.0
            live[stage] -= (1 - 2 * kind) * sizes[stage, chunk]
            _begins(takes, first, last, ends, clock, begins)
            alive = _in_time(takes, ends, begins, after, best)
            continue
        following[depth], chosen[depth], before[depth] = step + 1, step, clock[stage]
        since[depth + 1] = begins[kind, stage, chunk]
        clock[stage] = ends[kind, stage, chunk] = begins[kind, stage, chunk] + takes[kind, chunk]
        live[stage] += (1 - 2 * kind) * sizes[stage, chunk]
        depth += 1
        # A stage that waited may not begin before this pass any more.
        _begins(takes, first, last, ends, clock, begins)
        alive = _in_time(takes, ends, begins, after, best)
    return best
