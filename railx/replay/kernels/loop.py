"""The loop over the events of a replay, and the account of time from its records."""

from __future__ import annotations

import numpy as np

from railx.replay.kernels.compiling import compiled, lent
from railx.replay.kernels.containers import pop
from railx.replay.kernels.ranks import (
    arrive,
    be_heard,
    begin_graph,
    compute,
    end,
    go_on,
    stop_waiting,
    take,
    take_actions,
)
from railx.replay.kernels.state import (
    ACTIONS_ARRIVE,
    AHEAD,
    ARRIVE,
    COMPUTED,
    ENDED,
    EVENTS,
    GO_ON,
    GRAPH,
    HEAP,
    IMPATIENT,
    NOW,
    OVERFLOWED,
    R_BEGIN,
    R_END,
    TAKE,
    UNFINISHED,
    Array,
    EngineState,
)

__all__ = ["account", "run"]


@compiled
def account(s: EngineState, totals: Array) -> None:
    """For each row of results: time computed, communicated, and both at once.

    Operations of one rank may overlap; its computation does not.
    """
    for rank in range(len(s.ranks)):
        step = s.ranks[rank].first
        while step < s.ranks[rank].stop:
            row, stop = s.steps[step].row, step
            while stop < s.ranks[rank].stop and s.steps[stop].row == row:
                stop += 1
            begin_ns, end_ns = s.results[row, R_BEGIN], s.results[row, R_END]
            count = 0
            for at in range(step, stop):
                count += s.steps[at].started_ns >= 0
            starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
            for at in range(step, stop):
                if s.steps[at].started_ns >= 0:
                    starts[count] = min(max(s.steps[at].started_ns, begin_ns), end_ns)
                    ends[count] = min(max(s.steps[at].ended_ns, begin_ns), end_ns)
                    count += 1
            order = np.argsort(starts, kind="mergesort")
            # The same moments without overlaps.
            spans = np.empty((count, 2), np.int64)
            spanned = 0
            for index in order:
                if spanned and starts[index] <= spans[spanned - 1, 1]:
                    spans[spanned - 1, 1] = max(spans[spanned - 1, 1], ends[index])
                else:
                    spans[spanned, 0], spans[spanned, 1] = starts[index], ends[index]
                    spanned += 1
            for index in range(spanned):
                totals[row, 1] += spans[index, 1] - spans[index, 0]
            index = 0
            for at in range(step, stop):
                since_ns = s.steps[at].computing_ns
                if since_ns < 0 or s.steps[at].gap_ns == 0:
                    continue
                a = min(max(since_ns, begin_ns), end_ns)
                b = min(max(since_ns + s.steps[at].gap_ns, begin_ns), end_ns)
                totals[row, 0] += b - a
                while index < spanned and spans[index, 1] <= a:
                    index += 1
                here = index
                while here < spanned and spans[here, 0] < b:
                    totals[row, 2] += max(0, min(b, spans[here, 1]) - max(a, spans[here, 0]))
                    here += 1
            step = stop


# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"


@compiled
def run(state: EngineState) -> None:
    """Carry out the programs; no circuits are lit at the start.

    The log takes as many entries as it has room for; a counter says how many there
    were. Where the room for actions was too small, another counter says so, and
    nothing of the rest is of use.
    """
    s = lent(state)
    n, ranks = s.n, len(s.ranks)
    # An event adds no more than one for each lane, rank and circuit, and as many again
    # where collectives wait behind messages or members have something to tell.
    most = len(s.lanes) + len(s.slots) + ranks + len(s.circuits) + len(s.channels)
    most += len(s.streams)
    most = 2 * most + 16
    heap = np.zeros(4 * most, s.event.dtype)
    if n[GRAPH]:
        heap = np.zeros(4 * most + len(s.steps), s.event.dtype)
        begin_graph(s, heap)
    else:
        for rank in range(ranks):
            n[UNFINISHED] += s.ranks[rank].stop > s.ranks[rank].first
        for rank in range(ranks):
            go_on(s, heap, rank)
    while n[HEAP] > 0 and not n[OVERFLOWED]:
        if n[HEAP] + most > len(heap):
            heap = np.concatenate((heap, np.zeros_like(heap)))
        event = heap[0]
        kind, a, b = event.kind, event.a, event.b
        n[NOW] = event.time_ns
        pop(heap, s)
        n[EVENTS] += 1
        if kind == TAKE:
            take(s, heap, a)
        elif kind == GO_ON:
            go_on(s, heap, a)
        elif kind == ARRIVE:
            arrive(s, heap, a)
        elif kind == ENDED:
            end(s, heap, a)
        elif kind == COMPUTED:
            compute(s, heap, a)
        elif kind in (IMPATIENT, AHEAD):
            stop_waiting(s, heap, a, b, kind == IMPATIENT)
        elif kind == ACTIONS_ARRIVE:
            take_actions(s, heap, a)
        else:
            be_heard(s, heap, kind, a, b)
