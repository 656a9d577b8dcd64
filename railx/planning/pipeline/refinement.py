"""A search that moves slices, packs, recomputation and order of a pipeline together.

A plan is a list of runs. A run is the chunks of one cut sequence, whole sequences in
the last of them, or one chunk of whole sequences. Stages run the runs in their order. A
stage takes a backward pass where one waits, else the next forward pass that memory
holds; its ``patience`` says how much of a forward pass it waits for a backward pass
that is about to arrive. Memory and time of a plan follow from that (:func:`_simulate`),
so that chunks, recomputed layers and the order of passes are weighed at once.

:func:`refine` starts from a plan and applies random moves under simulated annealing: a
sequence to another run, two sequences swapped, a cut moved, set or dropped, runs joined
or moved, layers recomputed or kept, another patience. Effort is counted in simulated
passes, so that plans are the same everywhere. No paper on pipelines of chunks has it.
:func:`search_orders` moves runs and changes patience alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.compiled import compiled, copy, inner, next_random
from railx.planning.format.parts import Slice
from railx.planning.format.simulation import Shape, orders_of, run_orders
from railx.planning.packing import Floats, Integers
from railx.planning.pipeline.checkpoint_problem import SLACK
from railx.planning.pipeline.checkpoints import token_bytes

#: Share of the time by which the first moves may make a plan of one chunk slower; of
#: several, a move changes as much less.
_WARMTH = 0.03
#: The same where chunks stay.
_ORDER_WARMTH = 0.1
#: Passes that a move costs beside those that it simulates.
_PER_MOVE = 40
#: Simulated passes of a search for an order, for each pass forward of a chunk.
_ORDER_PASSES_PER_CHUNK, _MOST_ORDER_PASSES = 20_000, 1_000_000


class Refined(NamedTuple):
    """A plan: slices by run and chunk, recomputed layers by chunk and stage, and each
    stage's passes (chunk, or chunks + chunk for backward).
    """

    time_ms: float
    runs: list[list[list[Slice]]]
    layers: list[list[int]]
    orders: list[list[int]]


class _Costs(NamedTuple):
    """Coefficients of a stage for compiled code; ``layers`` and ``capacity`` [d]."""

    forward: Floats
    backward: Floats
    send: Floats
    layers: Integers
    capacity: Floats
    #: Bytes of a token by stage: kept, of a split chunk besides, saved by a recomputed
    #: layer, of a split chunk less.
    kept: Floats
    split: Floats
    saved: float
    split_saved: float
    layer_share: float
    gather_ms: float


class _State(NamedTuple):
    """Sequences [n], runs by number [n], their order [n] and the stages' patience [d].

    ``cuts`` [n, K - 1], the first ``cut_count``; ``run`` of each sequence; ``owner`` of
    each run is its cut sequence or -1, ``whole`` [n, 3] the number, tokens and squares
    of its whole sequences; ``layers`` [n, K, d] are recomputed. ``size`` [1]: runs.
    """

    cuts: Integers
    cut_count: Integers
    run: Integers
    owner: Integers
    whole: Floats
    layers: Integers
    order: Integers
    size: Integers
    patience: Floats


def refine(
    runs: Sequence[Sequence[Sequence[Slice]]],
    layers: Sequence[Sequence[int]],
    cost: PipelineCost,
    most_slices: int,
    alignment_tokens: int,
    passes: int,
    seed: int,
    *,
    recompute: bool,
) -> Refined | None:
    """The best plan found in about ``passes`` simulated passes.

    ``runs`` are slices by run and chunk, ``layers`` [chunk][stage] what each recomputes
    (an empty row: nothing). None where a run does not fit memory.
    """
    whole = {part.sequence: part.length for run in runs for chunk in run for part in chunk}
    numbers = sorted(whole, key=lambda sequence: (-whole[sequence], sequence))
    index = {sequence: position for position, sequence in enumerate(numbers)}
    lengths = np.array([whole[sequence] for sequence in numbers], dtype=np.int64)
    most = max(most_slices, *map(len, runs))
    state = _state_of(runs, layers, index, lengths, most, cost.shape.stages)
    costs = _costs_of(cost)
    trial, best = (_State._make(array.copy() for array in state) for _ in range(2))
    time_ms, orders = _search(
        costs, state, trial, best, lengths, alignment_tokens, passes, seed, recompute,
        min(most, most_slices),
    )  # fmt: skip
    if time_ms == math.inf:
        return None
    runs_of_best, layers_of_best = _written(best, numbers, lengths, costs.layers)
    return Refined(float(time_ms), runs_of_best, layers_of_best, orders.tolist())


def _state_of(
    runs: Sequence[Sequence[Sequence[Slice]]],
    layers: Sequence[Sequence[int]],
    index: dict[int, int],
    lengths: Integers,
    most: int,
    stages: int,
) -> _State:
    n = len(lengths)
    state = _State(
        np.zeros((n, max(most - 1, 1)), np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
        np.full(n, -1), np.zeros((n, 3)), np.zeros((n, most, stages), np.int64), np.arange(n),
        np.array([len(runs)]), np.zeros(stages),
    )  # fmt: skip
    of_chunks = iter(layers)
    for number, run in enumerate(runs):
        for position, chunk in enumerate(run):
            if recomputed := next(of_chunks):
                state.layers[number, position] = recomputed
            for part in chunk:
                member = index[part.sequence]
                state.run[member] = number
                if part.is_uncut:
                    state.whole[number] += (1, part.length, part.length**2)
                elif part.start:
                    state.cuts[member, state.cut_count[member]] = part.start
                    state.cut_count[member] += 1
                    state.owner[number] = member
    return state


def _costs_of(cost: PipelineCost) -> _Costs:
    forward, backward, exchange = (
        np.array([time.quadratic_ms, time.linear_ms, time.constant_ms])
        for time in (cost.forward, cost.backward, cost.all_to_all)
    )
    stored, savings = token_bytes(cost)
    kept, both = np.ascontiguousarray(stored.T)
    saved, split_saved = savings.tolist()
    several = float(cost.shape.stages > 1)
    return _Costs(
        forward + exchange / 2,
        backward + exchange / 2,
        several * np.array([cost.send.linear_ms, cost.send.constant_ms]),
        np.array(cost.layer_counts),
        np.array(cost.capacities) * (1 + SLACK),
        kept,
        both - kept,
        saved,
        saved - split_saved,
        cost.recompute_over_forward / max(cost.layer_counts),
        cost.gather_ms,
    )


def _written(
    state: _State, numbers: list[int], lengths: Integers, most_layers: Integers
) -> tuple[list[list[list[Slice]]], list[list[int]]]:
    """Slices by run and chunk, and recomputed layers by chunk and stage, of a state."""
    runs, layers = [], []
    for number in state.order[: state.size[0]].tolist():
        members = np.flatnonzero(state.run == number).tolist()
        chunks: list[list[Slice]] = [[]]
        for member in sorted(members, key=lambda one: -int(state.cut_count[one])):
            length, sequence = int(lengths[member]), numbers[member]
            edges = [0, *state.cuts[member, : state.cut_count[member]].tolist(), length]
            parts = [Slice(sequence, *ends, length) for ends in pairwise(edges)]
            if len(parts) > 1:
                chunks = [[part] for part in parts]
            else:
                chunks[-1] += parts
        runs.append(chunks)
        layers += np.minimum(state.layers[number, : len(chunks)], most_layers).tolist()
    return runs, layers


@inner
def _chunks(costs: Any, state: Any, lengths: Any, table: Any) -> int:
    """Fill ``table`` with the chunks of a plan; their number.

    [3 + 2 d, c]: forward and send time, the chunks of the run up to this one, then
    backward time and bytes by stage.
    """
    stages, chunk = len(costs.layers), 0
    for position in range(state.size[0]):
        number = state.order[position]
        owner = state.owner[number]
        count = 1 if owner < 0 else state.cut_count[owner] + 1
        for nth in range(count):
            tokens, squares, split = 0.0, 0.0, 0.0
            if owner >= 0:
                start = state.cuts[owner, nth - 1] if nth else 0
                stop = state.cuts[owner, nth] if nth < count - 1 else lengths[owner]
                tokens, squares = float(stop - start), float(stop) ** 2 - float(start) ** 2
                split = 1.0
            if nth == count - 1 and state.whole[number, 0] > 0:
                tokens += state.whole[number, 1]
                squares += state.whole[number, 2]
                split = 0.0
            forward = costs.forward[0] * squares + costs.forward[1] * tokens + costs.forward[2]
            backward = costs.backward[0] * squares + costs.backward[1] * tokens + costs.backward[2]
            again = costs.layer_share * (forward - costs.gather_ms)
            table[0, chunk] = forward
            table[1, chunk] = costs.send[0] * tokens + costs.send[1]
            table[2, chunk] = nth if nth < count - 1 else -nth - 1
            for stage in range(stages):
                layers = min(state.layers[number, nth, stage], costs.layers[stage])
                table[3 + stage, chunk] = backward + layers * again
                table[3 + stages + stage, chunk] = tokens * (
                    costs.kept[stage]
                    + split * costs.split[stage]
                    - layers * (costs.saved - split * costs.split_saved)
                )
            chunk += 1
    return chunk


@inner
def _simulate(
    capacity: Any, table: Any, chunks: int, patience: Any, below: float, work: Any, orders: Any
) -> float:
    """The makespan; infinite from ``below`` on or where memory is short.

    ``work`` [d, 2, c] takes the ends of passes, ``orders`` [d, 2 c] their order where
    it has room.
    """
    stages = len(capacity)
    write = orders.shape[1] > 0
    #: Chunks in backward order.
    backward = np.empty(chunks, np.int64)
    filled, start = 0, 0
    for chunk in range(chunks):
        if table[2, chunk] < 0:
            for back in range(chunk, start - 1, -1):
                backward[filled] = back
                filled += 1
            start = chunk + 1
    clock, live = np.zeros(stages), np.zeros(stages)
    ahead, done = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    rest = np.zeros(stages)
    for stage in range(stages):
        for chunk in range(chunks):
            rest[stage] += table[0, chunk] + table[3 + stage, chunk]
    for _ in range(2 * chunks * stages):
        soonest, chosen, kind = np.inf, -1, 0
        for stage in range(stages):
            begin, side = np.inf, 0
            if done[stage] < chunks:
                back = backward[done[stage]]
                ready = np.inf
                # The last chunk of a run first, so that its forward passes have run.
                if back < ahead[stage]:
                    if stage == stages - 1:
                        ready = work[stage, 0, back]
                    elif done[stage + 1] > done[stage]:
                        ready = work[stage + 1, 1, back] + table[1, back]
                begin, side = max(clock[stage], ready), 1
            if ahead[stage] < chunks:
                chunk = ahead[stage]
                if live[stage] + table[3 + stages + stage, chunk] <= capacity[stage]:
                    ready = 0.0
                    if stage:
                        ready = np.inf
                        if ahead[stage - 1] > chunk:
                            ready = work[stage - 1, 0, chunk] + table[1, chunk]
                    ready = max(clock[stage], ready)
                    # A backward pass that is about to come may be worth waiting for.
                    if ready + patience[stage] * table[0, chunk] < begin:
                        begin, side = ready, 0
            if begin < soonest:
                soonest, chosen, kind = begin, stage, side
        if chosen < 0:
            return np.inf
        if kind:
            chunk = backward[done[chosen]]
            takes = table[3 + chosen, chunk]
            done[chosen] += 1
            live[chosen] -= table[3 + stages + chosen, chunk]
        else:
            chunk = ahead[chosen]
            takes = table[0, chunk]
            ahead[chosen] += 1
            live[chosen] += table[3 + stages + chosen, chunk]
        if write:
            orders[chosen, ahead[chosen] + done[chosen] - 1] = kind * chunks + chunk
        clock[chosen] = work[chosen, kind, chunk] = soonest + takes
        rest[chosen] -= takes
        if clock[chosen] + rest[chosen] >= below:
            return np.inf
    return float(clock.max())


@inner
def _copy(source: Any, target: Any, touched: Any) -> None:
    """Copy the sequences and runs that a move touched, and what all share.

    ``touched`` [4] are two sequences and two runs, -1 for none.
    """
    for slot in range(2):
        member, number = touched[slot], touched[2 + slot]
        if member >= 0:
            copy(target.cuts[member], source.cuts[member], source.cuts.shape[1])
            target.cut_count[member] = source.cut_count[member]
            target.run[member] = source.run[member]
        if number >= 0:
            target.owner[number] = source.owner[number]
            copy(target.whole[number], source.whole[number], source.whole.shape[1])
            layers = source.layers[number].ravel()
            copy(target.layers[number].ravel(), layers, len(layers))
    # A move that opens a run and empties another changes the free number behind them.
    most = min(max(source.size[0], target.size[0]) + 2, len(source.order))
    copy(target.order, source.order, most)
    target.size[0] = source.size[0]
    copy(target.patience, source.patience, len(source.patience))


@inner
def _shift(entries: Any, before: int, after: int) -> None:
    """Move an entry to another place, those between by one."""
    moved = entries[before]
    step = 1 if after > before else -1
    for place in range(before, after, step):
        entries[place] = entries[place + step]
    entries[after] = moved


@inner
def _add(state: Any, number: int, length: float, sign: float) -> None:
    """Add a whole sequence to a run, or take it away with ``sign`` -1."""
    state.whole[number, 0] += sign
    state.whole[number, 1] += sign * length
    state.whole[number, 2] += sign * length**2


@inner
def _transfer(state: Any, member: int, target: int, lengths: Any) -> None:
    """Put a whole sequence into another run; an empty run goes."""
    number = state.run[member]
    _add(state, number, float(lengths[member]), -1.0)
    _add(state, target, float(lengths[member]), 1.0)
    state.run[member] = target
    if state.owner[number] < 0 and state.whole[number, 0] < 0.5:
        place = 0
        while state.order[place] != number:
            place += 1
        # The order is a permutation of all numbers: those past the size are free.
        state.size[0] -= 1
        _shift(state.order, place, state.size[0])


@inner
def _open(state: Any, place: int, touched: Any) -> int:
    """A new run at a place of the order."""
    _shift(state.order, state.size[0], place)
    touched[3] = number = state.order[place]
    state.size[0] += 1
    state.owner[number], state.whole[number], state.layers[number] = -1, 0.0, 0
    return int(number)


@inner
def _move(
    state: Any, lengths: Any, layers: Any, alignment: int, most: int, recompute: bool,
    touched: Any, random: Any,
) -> bool:  # fmt: skip
    """A random move; what it touched goes to ``touched``. False where it is none."""
    n, size = len(lengths), state.size[0]
    touched[:] = -1
    dice = next_random(random)
    member = int(n * next_random(random))
    number = state.run[member]
    touched[0], touched[2] = member, number
    if dice < 0.3:
        # To another run, or to one of its own.
        if state.cut_count[member]:
            return False
        if next_random(random) < 0.15 and size < n:
            place = int((size + 1) * next_random(random))
            inherited = state.layers[number, 0].copy()
            target = _open(state, place, touched)
            copy(state.layers[target, 0], inherited, len(inherited))
        else:
            target = state.order[int(size * next_random(random))]
            touched[3] = target
        if target == number:
            return False
        _transfer(state, member, target, lengths)
        return True
    if dice < 0.45:
        other = int(n * next_random(random))
        target = state.run[other]
        if target == number or state.cut_count[member] or state.cut_count[other]:
            return False
        touched[1], touched[3] = other, target
        for moved, source, goal in ((member, number, target), (other, target, number)):
            _add(state, source, float(lengths[moved]), -1.0)
            _add(state, goal, float(lengths[moved]), 1.0)
            state.run[moved] = goal
        return True
    if dice < 0.8:
        # Cuts of long sequences, which matter most.
        longer = 0
        while longer < n and lengths[longer] > alignment:
            longer += 1
        if longer == 0:
            return False
        member = int(longer * next_random(random) ** 1.5)
        touched[0], touched[2] = member, state.run[member]
        return bool(_move_cut(state, member, lengths, alignment, most, touched, random))
    if dice < 0.9 or (dice < 0.97 and not recompute):
        return bool(_move_run(state.order, size, random))
    if dice < 0.97:
        number = state.order[int(size * next_random(random))]
        touched[2] = number
        count = 1 if state.owner[number] < 0 else state.cut_count[state.owner[number]] + 1
        nth, stage = int(count * next_random(random)), int(len(layers) * next_random(random))
        every = next_random(random) < 0.5
        more = 1 if next_random(random) < 0.4 else -1
        if next_random(random) < 0.3:
            more *= int(layers.max())
        changed = False
        for each in range(len(layers)):
            if every or each == stage:
                now = state.layers[number, nth, each]
                state.layers[number, nth, each] = min(max(now + more, 0), layers[each])
                changed = changed or state.layers[number, nth, each] != now
        return changed
    _change_patience(state.patience, random)
    return True


@inner
def _move_run(order: Any, size: int, random: Any) -> bool:
    """Move one of the first ``size`` runs to another place; False where it is none."""
    before, after = int(size * next_random(random)), int(size * next_random(random))
    _shift(order, before, after)
    return before != after


@inner
def _change_patience(patience: Any, random: Any) -> None:
    stage = int(len(patience) * next_random(random))
    # Below 0: forward passes first.
    patience[stage] = 0.0 if next_random(random) < 0.3 else 1.6 * next_random(random) - 0.6


@inner
def _move_cut(
    state: Any, member: int, lengths: Any, alignment: int, most: int, touched: Any, random: Any
) -> bool:
    """Move, set or drop a cut of a sequence."""
    count, number, length = state.cut_count[member], state.run[member], lengths[member]
    stages = state.layers.shape[2]
    dice = next_random(random)
    if dice < 0.25:
        if count + 1 >= most or length <= alignment:
            return False
        steps = (length - 1) // alignment
        cut = alignment * (1 + int(steps * next_random(random)))
        place = 0
        while place < count and state.cuts[member, place] < cut:
            place += 1
        if place < count and state.cuts[member, place] == cut:
            return False
        if count == 0:
            inherited = state.layers[number, 0].copy()
            _add(state, number, float(length), -1.0)
            if state.owner[number] >= 0:
                # A run has one cut sequence.
                number = _open(state, int((state.size[0] + 1) * next_random(random)), touched)
            state.owner[number], state.run[member] = member, number
            copy(state.layers[number, 0], inherited, len(inherited))
            copy(state.layers[number, 1], inherited, len(inherited))
            state.cuts[member, 0], state.cut_count[member] = cut, 1
            return True
        for later in range(count, place - 1, -1):
            copy(state.layers[number, later + 1], state.layers[number, later], stages)
        state.cuts[member, count] = cut
        _shift(state.cuts[member], count, place)
        state.cut_count[member] += 1
        return True
    if count == 0:
        return False
    place = int(count * next_random(random))
    if dice < 0.45:
        last = state.layers[number, count].copy()
        _shift(state.cuts[member], place, count - 1)
        for later in range(place, count - 1):
            copy(state.layers[number, later], state.layers[number, later + 1], stages)
        state.cut_count[member] -= 1
        copy(state.layers[number, count - 1], last, stages)
        if count == 1:
            state.owner[number] = -1
            _add(state, number, float(length), 1.0)
        return True
    low = state.cuts[member, place - 1] if place else 0
    high = state.cuts[member, place + 1] if place < count - 1 else length
    step = alignment * (1 + int((high - low) / alignment * next_random(random) ** 3))
    cut = state.cuts[member, place] + (step if next_random(random) < 0.5 else -step)
    if cut <= low or cut >= high:
        return False
    state.cuts[member, place] = cut
    return True


@inner
def _assign(source: Any, target: Any) -> None:
    copy(target.cuts.ravel(), source.cuts.ravel(), source.cuts.size)
    copy(target.cut_count, source.cut_count, len(source.run))
    copy(target.run, source.run, len(source.run))
    copy(target.owner, source.owner, len(source.owner))
    copy(target.whole.ravel(), source.whole.ravel(), source.whole.size)
    copy(target.layers.ravel(), source.layers.ravel(), source.layers.size)
    copy(target.order, source.order, len(source.order))
    target.size[0] = source.size[0]
    copy(target.patience, source.patience, len(source.patience))


@compiled
def _search(
    costs: Any, state: Any, trial: Any, best: Any, lengths: Any, alignment: int, passes: int,
    seed: int, recompute: bool, most: int,
) -> Any:  # fmt: skip
    """Annealing; time in ms and orders [d, 2 c] of the best plan, which ``best`` gets.

    ``trial`` and ``best`` begin as copies of ``state``.
    """
    n, stages = len(lengths), len(costs.layers)
    widest = n + state.cuts.size
    table, work = np.zeros((3 + 2 * stages, widest)), np.zeros((stages, 2, widest))
    nothing = np.zeros((stages, 0), np.int64)
    random = np.array([np.uint64(88172645463325252) ^ np.uint64(seed * 2654435761 + 1)])
    chunks = _chunks(costs, state, lengths, table)
    at = _simulate(costs.capacity, table, chunks, state.patience, np.inf, work, nothing)
    shortest, spent = at, 0
    touched = np.full(4, -1)
    while spent < passes and at < np.inf:
        spent += _PER_MOVE
        if _move(trial, lengths, costs.layers, alignment, most, recompute, touched, random):
            chunks = _chunks(costs, trial, lengths, table)
            left = 1 - spent / passes
            bar = at - _WARMTH / chunks * at * left**2 * math.log(1 - next_random(random))
            spent += 2 * stages * chunks
            reached = _simulate(costs.capacity, table, chunks, trial.patience, bar, work, nothing)
            if reached < np.inf:
                at = reached
                _copy(trial, state, touched)
                if at < shortest * (1 - 1e-12):
                    shortest = at
                    _assign(state, best)
                continue
        _copy(state, trial, touched)
    chunks = _chunks(costs, best, lengths, table)
    orders = np.zeros((stages, 2 * chunks), np.int64)
    if shortest < np.inf:
        _simulate(costs.capacity, table, chunks, best.patience, np.inf, work, orders)
    return shortest, orders


def search_orders(
    shape: Shape,
    durations: Sequence[Sequence[float]],
    sends: Sequence[float],
    holds: Sequence[Sequence[float]] | None = None,
    room: Sequence[float] | None = None,
) -> tuple[float, list[list[int]]] | None:
    """The time in ms and each stage's passes, of the best order found for given chunks.

    Runs are moved and the stages' patience is changed; 1F1B is taken where it is
    faster and fits. ``durations`` and ``sends`` are those of ``run_orders``,
    ``holds[stage][chunk]`` is the share of a live chunk in ``room[stage]``; without
    them a stage has as many live chunks as in 1F1B. None where a run does not fit.
    """
    stages, chunks = shape.stages, shape.chunks
    if holds is None or room is None:
        holds = [[1.0] * chunks] * stages
        room = [min(shape.warm_up(stage) + 1.0, chunks) for stage in range(stages)]
    indices = [nth if nth < count - 1 else -nth - 1 for count in shape.runs for nth in range(count)]
    times = np.array(durations)
    forward, backward = times[0, :chunks], times[:, chunks : 2 * chunks]
    table = np.vstack([forward, sends, indices, backward, np.array(holds)])
    starts = np.cumsum([0, *shape.runs])
    passes = min(_ORDER_PASSES_PER_CHUNK * stages * chunks, _MOST_ORDER_PASSES)
    limits = np.array(room) * (1 + SLACK)
    time_ms, numbers, places = _search_order(limits, table, starts, passes)
    orders = np.concatenate([numbers, chunks + numbers])[places].tolist()
    plain = orders_of("1f1b", shape)
    plain_ms = run_orders(plain, durations, sends).makespan_ms
    if plain_ms < time_ms * (1 - 1e-12) and _has_room(plain, np.array(holds), limits):
        time_ms, orders = plain_ms, plain
    return None if time_ms == math.inf else (float(time_ms), orders)


def _has_room(orders: Sequence[Sequence[int]], holds: Floats, room: Floats) -> bool:
    """Whether the live chunks of every stage fit in its room at any time."""
    chunks = holds.shape[1]
    for order, sizes, limit in zip(orders, holds, room, strict=True):
        numbers = np.array(order)
        change = np.where(numbers < chunks, 1, -1) * sizes[numbers % chunks]
        if change.cumsum().max() > limit:
            return False
    return True


@compiled
def _search_order(capacity: Any, table: Any, starts: Any, passes: int) -> Any:
    """Annealing; time in ms, chunks [c] in the best order, and the passes [d, 2 c] of
    the stages, whose chunks are places in that order.

    ``starts`` [r + 1] are the first chunks of the runs, and the end.
    """
    stages, runs, chunks = len(capacity), len(starts) - 1, table.shape[1]
    moved, work = np.zeros(table.shape), np.zeros((stages, 2, chunks))
    nothing, orders = np.zeros((stages, 0), np.int64), np.zeros((stages, 2 * chunks), np.int64)
    numbers = np.zeros(chunks, np.int64)
    random = np.array([np.uint64(88172645463325252)])
    order, patience = np.arange(runs), np.zeros(stages)
    trial, changed = order.copy(), patience.copy()
    best, patience_of_best = order.copy(), patience.copy()
    at = _simulate(capacity, table, chunks, patience, np.inf, work, nothing)
    shortest, spent = at, 0
    while spent < passes and at < np.inf:
        spent += _PER_MOVE + 2 * stages * chunks
        copy(trial, order, runs)
        copy(changed, patience, stages)
        if next_random(random) < 0.5:
            _move_run(trial, runs, random)
        else:
            _change_patience(changed, random)
        _reorder(table, starts, trial, moved, numbers)
        left = 1 - spent / passes
        bar = at - _ORDER_WARMTH / chunks * at * left**2 * math.log(1 - next_random(random))
        reached = _simulate(capacity, moved, chunks, changed, bar, work, nothing)
        if reached < np.inf:
            at = reached
            copy(order, trial, runs)
            copy(patience, changed, stages)
            if at < shortest * (1 - 1e-12):
                shortest = at
                copy(best, trial, runs)
                copy(patience_of_best, changed, stages)
    _reorder(table, starts, best, moved, numbers)
    if shortest < np.inf:
        _simulate(capacity, moved, chunks, patience_of_best, np.inf, work, orders)
    return shortest, numbers, orders


@inner
def _reorder(table: Any, starts: Any, order: Any, moved: Any, numbers: Any) -> None:
    """The columns of a table with the runs in another order, and their chunks."""
    filled = 0
    for run in order:
        for chunk in range(starts[run], starts[run + 1]):
            for row in range(len(table)):
                moved[row, filled] = table[row, chunk]
            numbers[filled] = chunk
            filled += 1
