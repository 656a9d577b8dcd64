"""The best orders of a small pipeline by trying all: what a planner is measured by.

Depth first over active schedules (Giffler and Thompson), cut where a stage has more
left to do than the best makespan allows, and where the same passes have run before at
times that were all no later.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["exact_makespan_ms"]


def exact_makespan_ms(
    runs: Sequence[int],
    stages: int,
    forward_ms: Sequence[float],
    backward_ms: Sequence[float],
    room: Sequence[int],
    known_ms: float,
) -> float:
    """The least makespan of all orders that hold at most ``room[stage]`` chunks.

    ``known_ms`` is one that some order reaches.
    """
    n, best = len(forward_ms), known_ms
    first = [sum(runs[:i]) for i, count in enumerate(runs) for _ in range(count)]
    last = [sum(runs[: i + 1]) - 1 for i, count in enumerate(runs) for _ in range(count)]
    ends: list[list[list[float | None]]] = [[[None] * n for _ in range(stages)] for _ in "FB"]
    clock, live = [0.0] * stages, [0] * stages
    rest = [sum(forward_ms) + sum(backward_ms)] * stages
    seen: dict[object, list[tuple[float, ...]]] = {}

    def ready(kind: int, stage: int, chunk: int) -> float | None:
        """When a pass could begin, None where it cannot yet."""
        forward, backward = ends
        if kind == 0:
            if live[stage] >= room[stage] or (
                chunk > first[chunk] and forward[stage][chunk - 1] is None
            ):
                return None
            return forward[stage - 1][chunk] if stage else 0.0
        if forward[stage][chunk] is None or (
            chunk < last[chunk] and backward[stage][chunk + 1] is None
        ):
            return None
        return backward[stage + 1][chunk] if stage + 1 < stages else 0.0

    def deeper(left: int) -> None:
        nonlocal best
        if not left:
            best = min(best, max(clock))
            return
        if any(clock[s] + rest[s] >= best - 1e-9 for s in range(stages) if rest[s] > 1e-9):
            return
        flat = [end for kind in ends for stage in kind for end in stage]
        key = tuple(end is not None for end in flat)
        front = (*clock, *(end or 0.0 for end in flat))
        same = seen.setdefault(key, [])
        if any(all(a <= b for a, b in zip(other, front, strict=True)) for other in same):
            return
        same.append(front)
        open_ = []
        for kind, takes in enumerate((forward_ms, backward_ms)):
            for stage in range(stages):
                for chunk in range(n):
                    at = ready(kind, stage, chunk) if ends[kind][stage][chunk] is None else None
                    if at is not None:
                        begin = max(at, clock[stage])
                        open_.append((begin, stage, chunk, kind, takes[chunk]))
        if not open_:
            return
        _, where = min((begin + takes, stage) for begin, stage, _, _, takes in open_)
        soonest = min(begin + takes for begin, stage, _, _, takes in open_ if stage == where)
        for begin, stage, chunk, kind, takes in sorted(open_):
            if stage != where or begin >= soonest:
                continue
            before = clock[stage]
            clock[stage] = ends[kind][stage][chunk] = begin + takes
            rest[stage] -= takes
            live[stage] += 1 - 2 * kind
            deeper(left - 1)
            live[stage] -= 1 - 2 * kind
            rest[stage] += takes
            clock[stage], ends[kind][stage][chunk] = before, None

    deeper(2 * n * stages)
    return best
