"""A run of the packet simulator in parts of the network, on a thread each.

The result is that of one thread. :func:`railx.network.packets.engine.advance_part` says
how the parts keep step.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.network.packets.layout import more_slots
from railx.progress import counting
from railx.settings import SettingsError

#: Arrays that all parts see; of all others each has a copy.
_SHARED = ("boxes", "progress")
#: A cache line, or the two that are loaded together.
_LINE_BYTES = 128


def check_divisible(net: Any, threads: int) -> None:
    """SettingsError where packets of two parts may meet within a cycle: in a stream of
    random numbers, or on a link shorter than a cycle.
    """
    from railx.network.packets import engine

    for met, reason in (
        ((np.diff(net.set_start) > 1).any(), "a routing that draws among ways"),
        (net.kinds[:, engine.LATENCY].min() < 1, "links shorter than a cycle"),
    ):
        if met:
            raise SettingsError("threads", f"got {threads}; allowed with {reason}: 1")


def load_compiled(net: Any, state: Any) -> None:
    """Compile the core for parts, or load what is compiled."""
    from railx.network.packets import engine

    alone = np.zeros(engine.PROGRESS_STEP, dtype=np.int64)
    engine.advance_part(net, state._replace(progress=alone), 0)


def run_parts_until(net: Any, state: Any, cycle: int, step: int) -> Any:
    """Advance an empty network to ``cycle``, with reports every ``step`` cycles.

    Returns its state, whose packets are those of part 0.
    """
    from railx.network.packets import engine

    state = state._replace(**{name: _aligned_copy(getattr(state, name)) for name in _SHARED})
    states = _divide(state)

    def advance(part: Any) -> None:
        engine.advance_part(net, part, min(now + step, cycle))

    with counting("cycles", cycle) as count, ThreadPoolExecutor(len(states)) as threads:
        while (now := int(states[0].counters[engine.NOW])) < cycle:
            count.done_units, count.done = now, float(now)
            states = _with_room(states)
            state.boxes[..., 0, engine.MESSAGE] = 0
            list(threads.map(advance, states))
    return _merge(net, states)


def _divide(state: Any) -> list[Any]:
    """The state of each part."""
    return [
        state._replace(
            part=part,
            **{
                name: _aligned_copy(value)
                for name, value in state._asdict().items()
                if name != "part" and name not in _SHARED
            },
        )
        for part in range(state.boxes.shape[1])
    ]


def _aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that shares no cache line with other data, which other threads write."""
    memory = np.empty(array.nbytes + 2 * _LINE_BYTES, dtype=np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def _with_room(states: list[Any]) -> list[Any]:
    """The states with room for as many packets again as there are.

    A part does not see the oldest packet of all, so it is found here.
    """
    from railx.network.packets import engine

    created = int(states[0].counters[engine.CREATED])
    oldest = created
    for state in states:
        first, slots = int(state.counters[engine.OLDEST]), len(state.packets)
        alive = np.flatnonzero(state.packets[:, engine.BORN] >= 0)
        oldest = min(oldest, first + int(((alive - first) % slots).min(initial=created - first)))
    for state in states:
        state.counters[engine.OLDEST] = oldest
    while 2 * (created - (oldest & ~63)) > len(states[0].packets):
        states = [more_slots(state) for state in states]
    return states


def _merge(net: Any, states: Sequence[Any]) -> Any:
    """The state of the network, without the packets of all parts but the first."""
    from railx.network.packets import engine

    def total(name: str) -> Any:
        return np.sum([getattr(state, name) for state in states], axis=0)

    counters = total("counters")
    same = [engine.NOW, engine.CREATED, engine.W_CREATED]  # each part counts all packets
    counters[same] = states[0].counters[same]
    records = states[0].records.copy()
    carried = slice(engine.CARRIED, None, 1 << int(net.parameters[engine.RECORD_BITS]))
    records[carried] = np.sum([state.records[carried] for state in states], axis=0)
    return states[0]._replace(
        counters=counters, records=records, histogram=total("histogram"), batches=total("batches")
    )
