"""The loop over the events of a replay."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

import numpy as np

from railx.replay.kernels.compiling import compiled, lent
from railx.replay.kernels.containers import pop
from railx.replay.kernels.ranks import (
    arrive,
    be_heard,
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
    ENDED,
    EVENTS,
    GO_ON,
    HEAP,
    IMPATIENT,
    NOW,
    OVERFLOWED,
    TAKE,
    UNFINISHED,
    Array,
    EngineState,
)

__all__ = ["run"]


@compiled
def run(state: EngineState, active: Array) -> None:
    """Carry out the programs; ``active`` are the circuits that are lit at the start.

    The log takes as many entries as it has room for; a counter says how many there
    were. Where the room for actions was too small, another counter says so, and
    nothing of the rest is of use.
    """
    s = lent(state)
    n, ranks = s.n, len(s.ranks)
    for circuit in active:
        s.circuits[circuit].lit = True
        for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
            s.ports[s.items[at]].active = circuit
    # An event adds no more than one for each lane, rank and circuit, and as many again
    # where collectives wait behind messages or members have something to tell.
    most = len(s.lanes) + len(s.slots) + ranks + len(s.circuits) + len(s.channels)
    most = 2 * most + 16
    heap = np.zeros(4 * most, s.event.dtype)
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
        elif kind in (IMPATIENT, AHEAD):
            stop_waiting(s, heap, a, b, kind == IMPATIENT)
        elif kind == ACTIONS_ARRIVE:
            take_actions(s, heap, a)
        else:
            be_heard(s, heap, kind, a, b)
