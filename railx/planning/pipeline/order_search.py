"""A better order of a pipeline's passes than the named one, where chunks are unequal.

InfiniPipe's order is as fast as can be where all chunks take equally long. Where they
do not, another sequence may begin or end better, and a stage may do better to take the
pass that the next one waits for. The search starts from 1F1B over some orders of the
sequences and moves passes along the longest path: only a pass at the edge of a stage's
part of that path can shorten it (as in job-shop scheduling). It keeps the order of
slices and never holds more than it may; what it finds runs like any explicit order.

The method is ours; no paper on pipelines of chunks has it. Effort is counted in
simulations, so that plans are the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from railx.planning.format.simulation import FORWARD, Shape, Times, orders_of, run_orders

__all__ = ["SearchedOrders", "search_orders"]

#: Passes from the edge of a part of the longest path that are moved to the edge.
_REACH = 4
#: Runs of chunks of which every order is tried.
_ALL_ORDERS = 4
#: Starts that are improved.
_STARTS = 6
_LESS = 1 - 1e-9


@dataclass(frozen=True)
class SearchedOrders:
    """The best orders that were found, their time and the simulations it took."""

    orders: list[list[int]]
    makespan_ms: float
    simulations: int


@dataclass
class _Problem:
    """What stays the same while orders change."""

    shape: Shape
    durations: Sequence[Sequence[float]]
    sends: Sequence[float]
    holds: Sequence[Sequence[float]]
    room: Sequence[float]
    budget: int
    simulations: int = 0

    def __post_init__(self) -> None:
        ends = list(itertools.accumulate(self.shape.runs))
        self.runs = [range(end - n, end) for end, n in zip(ends, self.shape.runs, strict=True)]
        self.run_of = [run for run in self.runs for _ in run]

    def times(self, orders: Sequence[Sequence[int]]) -> Times:
        self.simulations += 1
        return run_orders(orders, self.durations, self.sends)

    def allows(self, stage: int, order: Sequence[int]) -> bool:
        """Slices and passes in order, and never more held than there is room for."""
        chunks, done, live_bytes = self.shape.chunks, set[int](), 0.0
        most = self.room[stage] * (1 + 1e-9)
        for number in order:
            kind, chunk = divmod(number, chunks)
            run = self.run_of[chunk]
            if kind == FORWARD:
                live_bytes += self.holds[stage][chunk]
                if live_bytes > most or (chunk > run.start and number - 1 not in done):
                    return False
            else:
                live_bytes -= self.holds[stage][chunk]
                if chunk not in done or (chunk + 1 < run.stop and number + 1 not in done):
                    return False
            done.add(number)
        return True


def search_orders(
    shape: Shape,
    durations: Sequence[Sequence[float]],
    sends: Sequence[float],
    holds: Sequence[Sequence[float]] | None = None,
    room: Sequence[float] | None = None,
    budget: int = 400,
) -> SearchedOrders | None:
    """The best orders that ``budget`` simulations find; at least as good as 1F1B.

    ``durations`` and ``sends`` are those of ``run_orders``, ``holds[stage][chunk]`` is
    what a live chunk takes of the ``room[stage]``; without them a stage holds as many
    chunks as in 1F1B. None where no start fits.
    """
    if holds is None or room is None:
        holds = [[1.0] * shape.chunks] * shape.stages
        room = [min(shape.warm_up(stage) + 1.0, shape.chunks) for stage in range(shape.stages)]
    problem = _Problem(shape, durations, sends, holds, room, budget)
    starts = []
    for number, runs in enumerate(_run_orders(problem)):
        orders = _reordered(shape, runs)
        if all(problem.allows(stage, order) for stage, order in enumerate(orders)):
            starts.append((problem.times(orders).makespan_ms, number, orders))
        if problem.simulations >= budget // 2:
            break
    if not starts:
        return None
    starts.sort()
    best_ms, _, best = starts[0]
    for start_ms, _, orders in starts[:_STARTS]:
        improved_ms, improved = _improved(problem, start_ms, orders)
        if improved_ms < best_ms * _LESS:
            best_ms, best = improved_ms, improved
    return SearchedOrders(best, best_ms, problem.simulations)


def _improved(
    problem: _Problem, makespan_ms: float, orders: list[list[int]]
) -> tuple[float, list[list[int]]]:
    """Moves along the longest path for as long as one of them helps."""
    times = problem.times(orders)
    moved = True
    while moved:
        moved = False
        for stage, before, after in _moves(problem, orders, times):
            if problem.simulations >= problem.budget:
                return makespan_ms, orders
            order = list(orders[stage])
            order.insert(after, order.pop(before))
            if not problem.allows(stage, order):
                continue
            trial = [*orders[:stage], order, *orders[stage + 1 :]]
            tried = problem.times(trial)
            if tried.complete and tried.makespan_ms < makespan_ms * _LESS:
                makespan_ms, orders, times, moved = tried.makespan_ms, trial, tried, True
                break
    return makespan_ms, orders


def _moves(
    problem: _Problem, orders: Sequence[Sequence[int]], times: Times
) -> Iterator[tuple[int, int, int]]:
    """(stage, position, new position) of passes at the edges of the longest path."""
    for stage, first, last in _blocks(problem, orders, times):
        inner = range(first + 1, min(first + _REACH, last) + 1)
        yield from ((stage, position, first) for position in inner)
        yield from ((stage, first, position) for position in inner)
        inner = range(max(last - _REACH, first), last)
        yield from ((stage, position, last) for position in inner)
        yield from ((stage, last, position) for position in inner)


def _blocks(
    problem: _Problem, orders: Sequence[Sequence[int]], times: Times
) -> list[tuple[int, int, int]]:
    """Parts of the longest path that one stage runs without a break.

    As (stage, first position, last position), from the end of the pipeline back.
    """
    chunks, stages = problem.shape.chunks, problem.shape.stages
    places = [{number: position for position, number in enumerate(order)} for order in orders]
    makespan = times.makespan_ms
    stage = next(s for s, order in enumerate(orders) if times.ends[s][order[-1]] == makespan)
    position = last = len(orders[stage]) - 1
    blocks: list[tuple[int, int, int]] = []
    while True:
        number = orders[stage][position]
        begins = times.begins[stage][number]
        before = times.ends[stage][orders[stage][position - 1]] if position else 0.0
        if position and before == begins:
            position -= 1
            continue
        blocks.append((stage, position, last))
        source = stage - 1 if number < chunks else stage + 1
        if begins == 0.0 or not 0 <= source < stages:
            return [block for block in blocks if block[1] < block[2]]
        stage, position = source, places[source][number]
        last = position


def _run_orders(problem: _Problem) -> Iterator[list[range]]:
    """Orders of the sequences: that of the plan first."""
    runs = problem.runs
    yield runs
    if len(runs) <= _ALL_ORDERS:
        yield from map(list, itertools.islice(itertools.permutations(runs), 1, None))
        return
    takes, chunks = problem.durations[0], problem.shape.chunks
    by_forward = sorted(runs, key=lambda run: takes[run.start])
    by_backward = sorted(runs, key=lambda run: takes[chunks + run.start])
    # What begins fills the pipeline with its first chunk, what ends drains it with its
    # first one too.
    for last in by_backward[:_REACH]:
        rest = [run for run in runs if run is not last]
        yield [*rest, last]
        for first in by_forward[:_REACH]:
            if first is not last:
                yield [first, *(run for run in rest if run is not first), last]
    yield by_backward[::-1]
    yield by_backward


def _reordered(shape: Shape, runs: Sequence[range]) -> list[list[int]]:
    """1F1B over the sequences in another order."""
    chunks = [chunk for run in runs for chunk in run]
    n = shape.chunks
    numbers = chunks + [n + chunk for chunk in chunks]
    orders = orders_of("1f1b", Shape(shape.stages, [len(run) for run in runs]))
    return [[numbers[number] for number in order] for order in orders]
