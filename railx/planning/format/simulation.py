"""Orders of a pipeline's passes and their times, on bare numbers.

A pass is forward, backward or, where a schedule delays it, the weight part of backward.
A stage may have several parts of the model (``parts`` virtual stages, part v of stage p
being model stage v * stages + p). A pass is one whole number,

    (kind * parts + part) * chunks + chunk        kind 0 forward, 1 backward, 2 weights

so that a planner can simulate hundreds of pipelines in a fraction of a second. It needs
the standard library alone.

A stage runs its passes in its order, each as soon as its input has arrived. A forward
pass needs that of the previous model stage, a backward pass that of the next. The order
of a stage must respect dependencies within the stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

#: Orders that have a name.
#:
#: * ``1f1b``: InfiniPipe's. With one slice a sequence it is DAPPLE's, with fixed slices
#:   Seq1F1B's.
#: * ``gpipe``: all forward passes, then all backward passes from the last to the first.
#: * ``interleaved``: 1F1B over several virtual stages a stage.
#: * ``zero_bubble``: 1F1B whose backward passes leave the weights' part for later
#:   (ZB-H1).
ScheduleName = Literal["1f1b", "gpipe", "interleaved", "zero_bubble"]
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved", "zero_bubble")


class Times(NamedTuple):
    """Begin and end of each pass of each stage, in ms; -1 for a pass that never runs.

    ``complete`` is false for a deadlock of the orders.
    """

    begins: list[list[float]]
    ends: list[list[float]]
    complete: bool

    @property
    def makespan_ms(self) -> float:
        return max(map(max, self.ends))


class Shape:
    """Stages, virtual stages of each, and the slices of every run of chunks.

    ``runs`` are chunk counts in forward order: neighbouring chunks of a cut sequence, 1
    for a chunk of whole sequences.
    """

    __slots__ = ("backward", "chunks", "parts", "runs", "stages")

    def __init__(self, stages: int, runs: Sequence[int], parts: int = 1) -> None:
        self.stages, self.runs, self.parts = stages, tuple(runs), parts
        self.chunks = sum(runs)
        spans = zip(itertools.accumulate(runs), runs, strict=True)
        runs_back = (range(end - 1, end - count - 1, -1) for end, count in spans)
        #: Chunks in backward order: sequences first in, first out, slices right to
        #: left.
        self.backward = list(itertools.chain.from_iterable(runs_back))

    @property
    def longest(self) -> int:
        """N_split: the most chunks of any sequence."""
        return max(self.runs)

    def warm_up(self, stage: int) -> int:
        """1F1B's forward passes before the first pair (InfiniPipe eq. 7 less one).

        At most one more of the stage's chunks are alive at once.
        """
        return min(self.stages - stage + self.longest - 2, self.chunks)


def orders_of(name: ScheduleName, shape: Shape) -> list[list[int]]:
    """The passes of each stage in the order of a named schedule."""
    n = shape.chunks
    if name == "gpipe":
        return [[*range(n), *range(2 * n - 1, n - 1, -1)] for _ in range(shape.stages)]
    if name == "zero_bubble":
        return [_zero_bubble(shape, stage) for stage in range(shape.stages)]
    if name == "interleaved":
        return _all_interleaved(shape)
    backward = [n + chunk for chunk in shape.backward]
    warm_ups = map(shape.warm_up, range(shape.stages))
    return [_alternating(range(n), backward, warm_up) for warm_up in warm_ups]


def run_orders(
    orders: Sequence[Sequence[int]],
    durations: Sequence[Sequence[float]],
    sends: Sequence[float],
    parts: int = 1,
    start_ms: float = 0.0,
) -> Times:
    """The event simulation: begin and end of each pass of each stage.

    ``durations[stage][pass]`` are in ms, ``sends[chunk]`` is the time of a message of a
    chunk between two stages.
    """
    stages, chunks = len(orders), len(sends)
    backward = parts * chunks
    weight = 2 * backward
    begins = [[-1.0] * (3 * backward) for _ in range(stages)]
    ends = [[-1.0] * (3 * backward) for _ in range(stages)]
    clocks = [start_ms] * stages
    positions = [0] * stages
    remaining = sum(map(len, orders))
    free = stages == 1 or not any(sends)
    while remaining:
        before = remaining
        for stage in range(stages):
            order, position, clock = orders[stage], positions[stage], clocks[stage]
            began, ended, takes, last = begins[stage], ends[stage], durations[stage], len(order)
            up, down = ends[stage - 1], ends[(stage + 1) % stages]
            # On the first and the last stage the neighbour has another part, and the
            # first and the last part have no neighbour.
            lead = chunks if stage == 0 else 0
            lag = chunks if stage == stages - 1 else 0
            while position < last:
                number = order[position]
                ready: float | None
                if lead <= number < backward:
                    ready = up[number - lead]
                elif backward <= number < weight - lag:
                    ready = down[number + lag]
                else:
                    ready = None  # no input from another stage
                if ready is not None:
                    if ready < 0.0:
                        break
                    if not free:
                        ready += sends[number % chunks]
                    if ready > clock:
                        clock = ready
                began[number] = clock
                clock += takes[number]
                ended[number] = clock
                position += 1
            remaining -= position - positions[stage]
            positions[stage], clocks[stage] = position, clock
        if remaining == before:
            break
    return Times(begins, ends, not remaining)


def _alternating(forward: Sequence[int], backward: Sequence[int], warm_up: int) -> list[int]:
    """``warm_up`` forward passes, then a forward and a backward pass in turn."""
    pairs = zip(forward[warm_up:], backward, strict=False)
    order = [*forward[:warm_up], *itertools.chain.from_iterable(pairs)]
    return order + list(backward[len(forward) - warm_up :])


def _zero_bubble(shape: Shape, stage: int) -> list[int]:
    """1F1B that delays the weights of as many chunks as there are previous stages.

    No stage then has more live chunks than the first one in 1F1B.
    """
    n, backward = shape.chunks, shape.backward
    warm_up = shape.warm_up(stage)
    order = list(range(warm_up))
    for step in range(n):
        if warm_up + step < n:
            order.append(warm_up + step)
        order.append(n + backward[step])
        if step >= stage:
            order.append(2 * n + backward[step - stage])
    order += [2 * n + chunk for chunk in backward[max(0, n - stage) :]]
    return order


def _interleaved(shape: Shape, stage: int, extra: int) -> list[int]:
    """1F1B over virtual stages: ``stages`` chunks at a time go through all parts."""
    n, stages, parts = shape.chunks, shape.stages, shape.parts
    forward = [
        part * n + chunk
        for first in range(0, n, stages)
        for part in range(parts)
        for chunk in range(first, min(first + stages, n))
    ]
    backward = [
        (parts + part) * n + chunk
        for first in range(0, n, stages)
        for part in range(parts - 1, -1, -1)
        for chunk in shape.backward[first : first + stages]
    ]
    warm_up = min(2 * (stages - stage - 1) + (parts - 1) * stages + extra, parts * n)
    return _alternating(forward, backward, warm_up)


def _all_interleaved(shape: Shape) -> list[list[int]]:
    """Interleaved orders with the fewest extra forward passes that do not deadlock."""
    durations = [[1.0] * (3 * shape.parts * shape.chunks)] * shape.stages
    sends = [0.0] * shape.chunks
    for extra in itertools.count(shape.longest - 1):
        orders = [_interleaved(shape, stage, extra) for stage in range(shape.stages)]
        forward_first = all(_forward_first(order, shape) for order in orders)
        if forward_first and run_orders(orders, durations, sends, shape.parts).complete:
            return orders
    raise AssertionError("all forward passes first always runs")


def _forward_first(order: Sequence[int], shape: Shape) -> bool:
    """Whether every backward pass of a stage comes after its forward pass."""
    every = shape.parts * shape.chunks
    index_of = {number: index for index, number in enumerate(order)}
    return all(index_of[number] < index_of[every + number] for number in range(every))
