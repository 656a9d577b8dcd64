"""Heaps and lists in arrays; nothing here knows what is in them."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from railx.replay.kernels.compiling import called
from railx.replay.kernels.state import HEAP, NOW, PUSHED, Array, EngineState

__all__ = ["append", "pop", "push", "put", "rise", "sink", "take_first", "unlink"]


@called
def push(heap: Array, s: EngineState, after_ns: int, kind: int, a: int, b: int) -> None:
    """Add an event; of those of one moment the first added is the first."""
    n = s.n
    time_ns = n[NOW] + after_ns
    position = n[HEAP]
    n[HEAP] += 1
    order = n[PUSHED]
    n[PUSHED] += 1
    while position > 0:
        above = (position - 1) >> 1
        if heap[above].time_ns <= time_ns:
            break
        heap[position] = heap[above]
        position = above
    event = heap[position]
    event.time_ns, event.order, event.kind, event.a, event.b = time_ns, order, kind, a, b


@called
def pop(heap: Array, s: EngineState) -> None:
    """Drop the first event."""
    n = s.n
    n[HEAP] -= 1
    size = n[HEAP]
    time_ns, order = heap[size].time_ns, heap[size].order
    position = 0
    while True:
        below = 2 * position + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            heap[other].time_ns < heap[below].time_ns
            or (
                heap[other].time_ns == heap[below].time_ns and heap[other].order < heap[below].order
            )
        ):
            below = other
        if time_ns < heap[below].time_ns or (
            time_ns == heap[below].time_ns and order < heap[below].order
        ):
            break
        heap[position] = heap[below]
        position = below
    heap[position] = heap[size]


@called
def put(small: Array, n: Array, which: int, key: int, value: int) -> None:
    """Add to a heap of pairs, whose size is a counter."""
    rise(small, 0, n[which], key, value)
    n[which] += 1


@called
def rise(small: Array, first: int, position: int, key: int, value: int) -> None:
    """Add to a heap of pairs that begins at ``first`` and has ``position`` of them."""
    while position > 0:
        above = (position - 1) >> 1
        if small[first + above].key <= key:
            break
        small[first + position] = small[first + above]
        position = above
    pair = small[first + position]
    pair.key, pair.value = key, value


@called
def take_first(small: Array, n: Array, which: int) -> int:
    """Take the value with the least key out of a heap of pairs."""
    n[which] -= 1
    return sink(small, 0, n[which])


@called
def sink(small: Array, first: int, size: int) -> int:
    """Take the value with the least key out of a heap that keeps ``size`` of them."""
    value = small[first].value
    key = small[first + size].key
    position = 0
    while True:
        below = 2 * position + 1
        if below >= size:
            break
        if below + 1 < size and small[first + below + 1].key < small[first + below].key:
            below += 1
        if key <= small[first + below].key:
            break
        small[first + position] = small[first + below]
        position = below
    small[first + position] = small[first + size]
    return value


@called
def append(lists: Array, links: Array, which: int, item: int) -> None:
    """Add at the end of a list that is linked both ways."""
    last = lists[which, 1]
    links[item, 0], links[item, 1] = -1, last
    if last >= 0:
        links[last, 0] = item
    else:
        lists[which, 0] = item
    lists[which, 1] = item


@called
def unlink(lists: Array, links: Array, which: int, item: int) -> None:
    """Take out of such a list."""
    after, before = links[item, 0], links[item, 1]
    if before >= 0:
        links[before, 0] = after
    else:
        lists[which, 0] = after
    if after >= 0:
        links[after, 1] = before
    else:
        lists[which, 1] = before
