"""Compiled loops of pipeline planners; importing this module loads Numba.

Chunks are in forward order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from railx.planning.compiled import compiled, inner
from railx.planning.packing import Floats, Integers
from railx.planning.pipeline.checkpoint_problem import SLACK, CheckpointProblem


@compiled
def pack(
    short: Integers,
    short_ms: Floats,
    tail_tokens: Integers,
    tail_ms: Floats,
    constant_ms: float,
    most_ms: float,
    most_tokens: int,
    chunking: int,
) -> tuple[Integers, int]:
    """The bin of each short sequence [n], and how many bins there are.

    Best-fit-decreasing with two limits, tokens hard and time soft. Bins begin with the
    tails, ``short`` descends. ``chunking``: 0 balanced, 1 published, 2 even.
    """
    bin_of = np.empty(len(short), np.int64)
    tokens = np.empty(len(tail_tokens) + len(short), np.int64)
    times = np.empty(len(tokens))
    bins = len(tail_tokens)
    tokens[:bins] = tail_tokens
    times[:bins] = tail_ms
    for index in range(len(short)):
        added, added_ms = short[index], short_ms[index]
        if chunking == 1:
            # The target rises to what the least loaded bin with room needs.
            lightest_ms = np.inf
            for candidate in range(bins):
                if tokens[candidate] + added <= most_tokens:
                    lightest_ms = min(lightest_ms, times[candidate])
            if lightest_ms < np.inf:
                most_ms = max(most_ms, lightest_ms + added_ms)
        best, best_score = -1, -np.inf
        for candidate in range(bins):
            if tokens[candidate] + added > most_tokens:
                continue
            if times[candidate] + added_ms > most_ms * (1 + SLACK):
                continue
            if chunking == 0:
                score = times[candidate]
            elif chunking == 1:
                score = -times[candidate] / tokens[candidate]
            else:
                score = float(tokens[candidate])
            if score > best_score:
                best, best_score = candidate, score
        if best < 0:
            best = bins
            bins += 1
            tokens[best] = 0
            times[best] = constant_ms
        bin_of[index] = best
        tokens[best] += added
        times[best] += added_ms
    return bin_of, bins


#: Recomputed layers: as many as memory requires, all, or none.
ADAPTIVE, FULL, NONE = 0, 1, 2
#: The first rule of :func:`sweep`, and no trades; a bare 0 has a type of its own.
_SIMPLE: Any = np.int64(0)


class Divisible(NamedTuple):
    """Chunks [n] that are divided into pipelines on stages [d].

    ``problem`` is that of all of them in one pipeline. Times of a chunk are in ms,
    ``layer_ms`` that of recomputing a layer. ``counts``: how many chunks the sequence
    of each has.
    """

    problem: CheckpointProblem
    layer_counts: Integers
    forward: Floats
    backward: Floats
    layer_ms: Floats
    sends: Floats
    counts: Integers


@compiled
def divide(
    chunks: Divisible, edges: Integers, mode: int, simulated: bool
) -> tuple[Integers, Integers, int, float]:
    """Bounds of pipelines, their recomputed layers [d, n], Σ C and time in ms.

    ``edges`` [u + 1] are first chunks of units and the end. By eq. 14 a pipeline takes
    (stages - 1) times the mean chunk time beyond its chunks, and the mean time of a
    layer for every count (eq. 17); with ``simulated`` its simulated time. No pipelines
    where a unit does not fit.

    A pipeline with more units in front is taken to recompute no less, so that one whose
    price is above another's with as little is not looked at.
    """
    stages, units = len(chunks.layer_counts), len(edges) - 1
    price = np.full(units + 1, np.inf)
    price[0] = 0.0
    came = np.zeros(units + 1, np.int64)
    total = chunks.forward + chunks.backward
    layers = np.zeros((stages, len(total)), np.int64)
    for end in range(1, units + 1):
        layer_sum = 0
        for start in range(end - 1, -1, -1):
            first, last = edges[start], edges[end]
            fill_ms = (stages - 1) * total[first:last].mean()
            mean_layer_ms = chunks.layer_ms[first:last].mean()
            if not simulated and price[start] + fill_ms + mean_layer_ms * layer_sum >= price[end]:
                continue
            recomputed, layer_sum = _recomputed_layers(chunks, first, last, mode)
            if layer_sum < 0:
                break  # more units in front only hold more at once
            more_ms = fill_ms + mean_layer_ms * layer_sum
            if simulated:
                more_ms = _makespan_ms(chunks, first, last, recomputed) - total[first:last].sum()
            if price[start] + more_ms < price[end]:
                price[end] = price[start] + more_ms
                came[end] = start
        if price[end] == np.inf:
            return np.zeros(0, np.int64), layers, 0, np.inf
    starts = np.zeros(units + 1, np.int64)
    groups, unit = 0, units
    while unit:
        starts[groups] = edges[unit]
        groups += 1
        unit = came[unit]
    bounds = starts[: groups + 1][::-1].copy()
    diagonals = 0
    for group in range(groups):
        first, last = bounds[group], bounds[group + 1]
        recomputed, layer_sum = _recomputed_layers(chunks, first, last, mode)
        layers[:, first:last] = recomputed
        diagonals += layer_sum
    return bounds, layers, diagonals, pipelines_ms(chunks, bounds, layers)


@inner
def _recomputed_layers(every: Divisible, first: int, last: int, mode: int) -> tuple[Integers, int]:
    """Layers [d, n] that a pipeline of chunks [first, last) recomputes, and Σ C.

    -1: it does not fit.
    """
    stored, saved = every.problem.stored[:, first:last].copy(), every.problem.saved[first:last]
    capacity, layer_counts = every.problem.capacity, every.layer_counts
    order = every.problem.backward[first:last] - first
    stages, chunks = stored.shape
    smallest, largest = layer_counts.min(), layer_counts.max()
    longest_split = every.counts[first:last].max()
    problem = CheckpointProblem(stored, saved, capacity, smallest, order, longest_split)
    layers = np.zeros((stages, chunks), np.int64)
    diagonals = chunks + stages - 1
    if mode == ADAPTIVE:
        counts = np.zeros(diagonals, np.int64)
        if sweep(problem, _SIMPLE, _SIMPLE, counts):
            for position in range(chunks):
                for stage in range(stages):
                    layers[stage, order[position]] = counts[position + stages - 1 - stage]
            return layers, counts.sum()
        if smallest == largest:
            return layers, -1
    if mode != NONE:
        for stage in range(stages):
            layers[stage] = layer_counts[stage]
    live = live_bytes_of(problem, stored - saved * layers)
    for stage in range(stages):
        if live[stage].max() > capacity[stage] * (1 + SLACK):
            return layers, -1
    return layers, 0 if mode == NONE else largest * diagonals


@compiled
def live_bytes_of(problem: CheckpointProblem, retained: Floats) -> Floats:
    """Bytes [d, n] of stages at each step where chunks keep ``retained`` [d, n].

    Minus infinity after the last step at which a chunk begins.
    """
    stages, chunks = retained.shape
    live = np.full((stages, chunks), -np.inf)
    for stage in range(stages):
        warm = min(stages - 1 - stage + problem.longest_split - 1, chunks)
        live_bytes = retained[stage, :warm].sum()
        for step in range(max(chunks - warm, 1)):
            if warm + step < chunks:
                live_bytes += retained[stage, warm + step]
            live[stage, step] = live_bytes
            live_bytes -= retained[stage, problem.backward[step]]
    return live


@compiled
def pipelines_ms(every: Divisible, bounds: Integers, layers: Integers) -> float:
    """The simulated time of pipelines [``bounds``), one after another."""
    time_ms = 0.0
    for group in range(len(bounds) - 1):
        first, last = bounds[group], bounds[group + 1]
        time_ms += _makespan_ms(every, first, last, layers[:, first:last].copy())
    return time_ms


@inner
def _makespan_ms(every: Divisible, first: int, last: int, layers: Integers) -> float:
    """The simulated time of chunks [first, last) in 1F1B order.

    Equal to that of ``railx.planning.format.simulation``. ``layers`` [d, n] are theirs.
    """
    forward, sends = every.forward[first:last], every.sends[first:last]
    back = every.backward[first:last] + layers * every.layer_ms[first:last]
    backward = every.problem.backward[first:last] - first
    longest_split = every.counts[first:last].max()
    stages, chunks = back.shape
    ends = np.full((stages, 2, chunks), -1.0)
    clocks = np.zeros(stages)
    positions = np.zeros(stages, np.int64)
    left = 2 * chunks * stages
    while left:
        for stage in range(stages):
            warm = min(stages - stage + longest_split - 2, chunks)
            while positions[stage] < 2 * chunks:
                position = positions[stage]
                steady = position - warm
                if steady < 0:
                    kind, chunk = 0, position
                elif steady < 2 * (chunks - warm):
                    kind = steady % 2
                    chunk = backward[steady // 2] if kind else warm + steady // 2
                else:
                    kind, chunk = 1, backward[position - chunks]
                begins = clocks[stage]
                other = stage - 1 if kind == 0 else stage + 1
                if 0 <= other < stages:
                    ready = ends[other, kind, chunk]
                    if ready < 0:
                        break
                    begins = max(begins, ready + sends[chunk])
                takes = back[stage, chunk] if kind else forward[chunk]
                ends[stage, kind, chunk] = clocks[stage] = begins + takes
                positions[stage] += 1
                left -= 1
    return float(clocks.max())


#: How near to a whole number of layers a need is one.
_NEAR = 1e-6


@compiled
def sweep(problem: CheckpointProblem, rule: int, trades: int, counts: Integers) -> bool:
    """Raise ``counts`` until every row is met, then lower them; False: none suffice.

    ``rule`` chooses the diagonal that recomputes where memory is short: 0 the longest
    live, 1 the most saving per layer, 2 the most saving of the missing bytes anywhere.
    ``trades`` are rounds of adding layers where that makes more of others superfluous.
    """
    stored, saved, capacity, layers, backward, longest_split = problem
    #: Memory [d, n] left on a stage at a step, infinite where a step has no row.
    room = capacity.reshape(-1, 1) - live_bytes_of(problem, stored)
    stages, chunks = room.shape
    diagonals = chunks + stages - 1
    for diagonal in range(diagonals):
        first = counts[diagonal]
        if first:
            counts[diagonal] = 0
            _add(problem, room, diagonal, first, counts)
    for moment in range(diagonals):
        for stage in range(stages - 1, -1, -1):
            after = stages - 1 - stage
            step = moment - after
            if step < 0 or step >= chunks:
                continue
            warm = min(after + longest_split - 1, chunks)
            while room[stage, step] < -SLACK * capacity[stage]:
                best, best_score = -1, -1.0
                # Later places are of chunks whose forward pass is yet to come.
                for position in range(step, min(warm + step + longest_split, chunks)):
                    chunk = backward[position]
                    if chunk > warm + step or counts[position + after] >= layers:
                        continue
                    if saved[chunk] <= 0:
                        continue
                    if rule == 0:
                        score = float(position)
                    elif rule == 1:
                        score = saved[chunk]
                    else:
                        score = _worth(problem, room, position + after)
                    if score > best_score:
                        best, best_score = position, score
                if best < 0:
                    return False
                needed = np.ceil(-room[stage, step] / saved[backward[best]] - _NEAR)
                more = min(layers - counts[best + after], max(int(needed), 1))
                if rule == 2:
                    more = 1
                _add(problem, room, best + after, more, counts)
    for diagonal in range(diagonals):
        if counts[diagonal]:
            _lower(problem, room, diagonal, counts)
    for _ in range(trades):
        if not _trade(problem, room, counts):
            break
    return True


@inner
def _live(problem: CheckpointProblem, diagonal: int, stage: int) -> tuple[int, int, int]:
    """The chunk of a diagonal on a stage, and the steps [first, end) where it is live.

    No steps for a diagonal outside the stage.
    """
    stages, chunks = problem.stored.shape
    after = stages - 1 - stage
    position = diagonal - after
    if position < 0 or position >= chunks:
        return 0, 0, 0
    chunk = problem.backward[position]
    warm = min(after + problem.longest_split - 1, chunks)
    return chunk, max(chunk - warm, 0), min(position + 1, max(chunks - warm, 1))


@inner
def _add(
    problem: CheckpointProblem, room: Floats, diagonal: int, more: int, counts: Integers
) -> None:
    """Recompute ``more`` layers on a diagonal (fewer where negative)."""
    counts[diagonal] += more
    for stage in range(len(room)):
        chunk, first, end = _live(problem, diagonal, stage)
        for step in range(first, end):
            room[stage, step] += more * problem.saved[chunk]


@inner
def _worth(problem: CheckpointProblem, room: Floats, diagonal: int) -> float:
    """Share of the missing bytes that a layer on a diagonal saves."""
    worth = 0.0
    for stage in range(len(room)):
        chunk, first, end = _live(problem, diagonal, stage)
        for step in range(first, end):
            if room[stage, step] < 0:
                worth += min(problem.saved[chunk], -room[stage, step])
    return worth


@inner
def _lower(problem: CheckpointProblem, room: Floats, diagonal: int, counts: Integers) -> int:
    """Remove the layers of a diagonal that no row requires; return their number."""
    spare: int = counts[diagonal]
    for stage in range(len(room)):
        chunk, first, end = _live(problem, diagonal, stage)
        if first < end and problem.saved[chunk] <= 0:
            continue
        for step in range(first, end):
            free = room[stage, step] + SLACK * problem.capacity[stage]
            spare = min(spare, int(free / problem.saved[chunk]))
            if spare <= 0:
                return 0
    if spare:
        _add(problem, room, diagonal, -spare, counts)
    return spare


@inner
def _trade(problem: CheckpointProblem, room: Floats, counts: Integers) -> bool:
    """Add layers where that makes more superfluous elsewhere; whether any did.

    No diagonal has superfluous layers at the start. Diagonals further apart than a
    chunk's life share no row and stay unchanged.
    """
    improved = False
    before = counts.copy()
    reach = 2 * (problem.longest_split + room.shape[0])
    for diagonal in range(len(counts)):
        near = range(max(diagonal - reach, 0), min(diagonal + reach + 1, len(counts)))
        for more in (1, 2):
            if counts[diagonal] + more > problem.layers:
                continue
            before[:] = counts
            _add(problem, room, diagonal, more, counts)
            taken = 0
            for other in near:
                if other != diagonal and counts[other]:
                    taken += _lower(problem, room, other, counts)
            if taken > more:
                improved = True
                _lower(problem, room, diagonal, counts)
                break
            for other in near:
                back = before[other] - counts[other]
                if back:
                    _add(problem, room, other, back, counts)
    return improved
