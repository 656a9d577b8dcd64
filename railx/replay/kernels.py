"""The compiled engine of the replay: the same decisions, event by event.

It is what :mod:`railx.replay.engine` does with the controller's state machine
(:mod:`railx.fabric.core`), for fault-free runs in which every operation asks and is
released. Tests hold the two equal on random programs: grants, switch commands, times.

An event costs as much as what it changes, whatever the number of ranks. Queued
operations stand in one queue for each port, and one is served where it is the first on
all its ports. What cannot go on watches the one port that stops it, and is looked at
again when something changes there: an operation in the order of the queue, then a
hinted configuration in the order in which they became ready.

All is in one file: of what a compiled function calls, the compiler's cache on disk does
not see a change in another file. Steps are numbered over all ranks; -1 is none
everywhere. A *slot* is a rank with one of its configurations. A *node* is a channel's
place in the queue of a port: a channel has one queued operation at most.
"""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["State", "account", "run"]

Array = npt.NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

BEGIN, ISSUE, WAIT, END = range(4)
#: Kinds of events.
_TAKE, _GO_ON, _ARRIVE, _ENDED, _SWITCHED, _IMPATIENT, _AHEAD = range(7)
#: Places in the counters.
(
    EVENTS,
    _PUSHED,
    _HEAP,
    _AT_BEGIN,
    _UNFINISHED,
    _QUEUED,
    _READY,
    LOGGED,
    _GRANTED,
    _OPERATIONS,
    _HINTED,
    _NOW,
    COMMANDS,
    COUNTERS,
) = range(14)
#: Columns of the log: time, decision, and operation or rail with the first circuit of
#: the command.
LOG_GRANT, LOG_SWITCH, LOG_CIRCUIT = range(3)
#: Columns of results.
R_BEGIN, R_END, R_STALL, R_WAIT, R_REQUESTS, R_RECONFIGURATIONS, R_MISPREDICTIONS = range(7)


def called(function: Function) -> Function:
    """Compile on first use, for compiled callers; the result stays on disk.

    Nothing here allocates, so arrays go without reference counts.
    """
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Function", njit(cache=True, error_model="numpy", _nrt=False, **wrappers)(function))


def compiled(function: Function) -> Function:
    """Compile on first use and keep the result on disk."""
    return cast("Function", njit(cache=True, error_model="numpy")(function))


def _record(**fields: type) -> np.dtype[Any]:
    return np.dtype(list(fields.items()), align=True)


_I, _L, _B = np.int32, np.int64, np.int8
EVENT = _record(time_ns=_L, order=_L, kind=_I, a=_I, b=_I)
#: What will be looked at: its order, and which it is.
PAIR = _record(key=_L, value=_I)
#: Steps. First what the program says: ``target`` is the issue that a wait waits for,
#: ``before`` and ``after`` are the neighbours of an issue in its lane, ``row`` is the
#: row of results. Then what came of it; ``other`` is the message that a collective
#: waits behind.
STEP = _record(
    gap_ns=_L,
    lasts_ns=_L,
    pickup_ns=_L,
    resume_ns=_L,
    started_ns=_L,
    ended_ns=_L,
    computing_ns=_L,
    asked_ns=_L,
    rank=_I,
    iteration=_I,
    operation=_I,
    target=_I,
    before=_I,
    after=_I,
    slot=_I,
    row=_I,
    next_arrived=_I,
    other=_I,
    does=_B,
    alone=_B,
    sends=_B,
    ended=_B,
    asked=_B,
    mispredicted=_B,
)
#: Ranks: their steps, and where they stand. Every operation that needs circuits before
#: step ``unasked`` has asked; ``passed`` is the last collective that has ended.
RANK = _record(
    first=_I,
    stop=_I,
    position=_I,
    waits_for=_I,
    unasked=_I,
    under_way=_I,
    passed=_I,
    hint=_I,
    hint_slot=_I,
    at_begin=_B,
    hint_served=_B,
)
#: Slots: for how many reasons the rank expects the configuration, and how long its
#: collectives wait behind messages.
SLOT = _record(patience_ns=_L, expecting=_I)
OPERATION = _record(
    stall_since_ns=_L,
    channel=_I,
    arrived=_I,
    first_arrived=_I,
    last_arrived=_I,
    released=_I,
    commands=_I,
)
#: Channels: their first node; the operation in the queue and its place there.
CHANNEL = _record(order=_L, configuration=_I, node=_I, queued=_I)
#: Configurations: places of their members, circuits (by rail) and ports among the
#: items. ``wanted``: it asks; ``expected``: by how many ranks; ``unserved``: hints;
#: ``ahead``: commands made for hints.
CONFIGURATION = _record(
    ready=_L,
    members=_I,
    members_stop=_I,
    circuits=_I,
    circuits_stop=_I,
    ports=_I,
    ports_stop=_I,
    expected=_I,
    unserved=_I,
    ahead=_I,
    wanted=_B,
    ring=_B,
)
#: Circuits: places of their ports (``ends``) and of the configurations that need them
#: (``users``) among the items; ``following`` is the next one of the same command.
CIRCUIT = _record(
    rail=_I,
    ends=_I,
    ends_stop=_I,
    users=_I,
    users_stop=_I,
    leases=_I,
    following=_I,
    lit=_B,
)
#: Ports: the circuit that is up and the one that comes up, and the first watcher.
PORT = _record(active=_I, moving=_I, watched=_I)
#: Watchers (channels, then configurations): the port that stops it, its neighbours
#: there, and whether it will be looked at in this event.
WATCHER = _record(watches=_I, before=_I, following=_I, looked_at=_B)


class State(NamedTuple):
    """Programs, circuits, and where everything stands."""

    n: Array
    event: Array  # none; says what events are made of
    log: Array
    results: Array
    steps: Array
    ranks: Array
    slots: Array
    operations: Array
    channels: Array
    configurations: Array
    circuits: Array
    ports: Array
    watchers: Array
    items: Array
    # Lists (first and last) with the links of what is in them (next, before).
    waiting: Array  # by rank: steps that have asked and are not granted
    waiting_links: Array
    unsent: Array  # by rank: messages that were sent and not granted
    behind: Array  # by rank: collectives that wait behind one
    step_links: Array  # of both
    queue: Array  # by port: nodes
    node_links: Array
    granted: Array  # operations of the present event, in order
    starting: Array  # circuits that a switch is asked to bring up
    looked_at: Array  # heap of (order, channel)
    hinted: Array  # heap of (order, configuration)


@called
def _push(heap: Array, s: State, time_ns: int, kind: int, a: int, b: int) -> None:
    """Add an event; of those of one moment the first added is the first."""
    n = s.n
    place = n[_HEAP]
    n[_HEAP] += 1
    order = n[_PUSHED]
    n[_PUSHED] += 1
    while place > 0:
        above = (place - 1) >> 1
        if heap[above].time_ns <= time_ns:
            break
        heap[place] = heap[above]
        place = above
    event = heap[place]
    event.time_ns, event.order, event.kind, event.a, event.b = time_ns, order, kind, a, b


@called
def _pop(heap: Array, s: State) -> None:
    """Drop the first event."""
    n = s.n
    n[_HEAP] -= 1
    size = n[_HEAP]
    time_ns, order = heap[size].time_ns, heap[size].order
    place = 0
    while True:
        below = 2 * place + 1
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
        heap[place] = heap[below]
        place = below
    heap[place] = heap[size]


@called
def _put(small: Array, n: Array, which: int, key: int, value: int) -> None:
    """Add to a heap of pairs, whose size is a counter."""
    place = n[which]
    n[which] += 1
    while place > 0:
        above = (place - 1) >> 1
        if small[above].key <= key:
            break
        small[place] = small[above]
        place = above
    small[place].key, small[place].value = key, value


@called
def _take_least(small: Array, n: Array, which: int) -> int:
    value = small[0].value
    n[which] -= 1
    size = n[which]
    key = small[size].key
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and small[below + 1].key < small[below].key:
            below += 1
        if key <= small[below].key:
            break
        small[place] = small[below]
        place = below
    small[place] = small[size]
    return value


# Lists, linked both ways.


@called
def _append(lists: Array, links: Array, which: int, item: int) -> None:
    last = lists[which, 1]
    links[item, 0], links[item, 1] = -1, last
    if last >= 0:
        links[last, 0] = item
    else:
        lists[which, 0] = item
    lists[which, 1] = item


@called
def _unlink(lists: Array, links: Array, which: int, item: int) -> None:
    after, before = links[item, 0], links[item, 1]
    if before >= 0:
        links[before, 0] = after
    else:
        lists[which, 0] = after
    if after >= 0:
        links[after, 1] = before
    else:
        lists[which, 1] = before


# What waits for a port.


@called
def _watch(s: State, watcher: int, port: int) -> None:
    s.watchers[watcher].watches = port
    s.watchers[watcher].before, s.watchers[watcher].following = -1, s.ports[port].watched
    if s.ports[port].watched >= 0:
        s.watchers[s.ports[port].watched].before = watcher
    s.ports[port].watched = watcher


@called
def _unwatch(s: State, watcher: int) -> None:
    port = s.watchers[watcher].watches
    if port < 0:
        return
    before, after = s.watchers[watcher].before, s.watchers[watcher].following
    if before >= 0:
        s.watchers[before].following = after
    else:
        s.ports[port].watched = after
    if after >= 0:
        s.watchers[after].before = before
    s.watchers[watcher].watches = -1


@called
def _look_at(s: State, watcher: int) -> None:
    """An operation or a configuration is looked at again in this event."""
    _unwatch(s, watcher)
    if s.watchers[watcher].looked_at:
        return
    channels = len(s.channels)
    if watcher < channels:
        if s.channels[watcher].queued >= 0:
            s.watchers[watcher].looked_at = True
            _put(s.looked_at, s.n, _OPERATIONS, s.channels[watcher].order, watcher)
    elif s.configurations[watcher - channels].ready >= 0:
        s.watchers[watcher].looked_at = True
        _put(s.hinted, s.n, _HINTED, s.configurations[watcher - channels].ready, watcher - channels)


@called
def _touch(s: State, port: int) -> None:
    """Something has changed at a port."""
    while s.ports[port].watched >= 0:
        _look_at(s, s.ports[port].watched)


@called
def _find_starting(s: State, configuration: int) -> int:
    """Note the circuits that are neither up nor coming up; -1 where all are up."""
    count, missing = 0, False
    for place in range(
        s.configurations[configuration].circuits, s.configurations[configuration].circuits_stop
    ):
        circuit = s.items[place]
        if not s.circuits[circuit].lit:
            missing = True
            if s.ports[s.items[s.circuits[circuit].ends]].moving != circuit:
                s.starting[count] = circuit
                count += 1
    return count if missing else -1


@called
def _in_the_way(s: State, count: int, behind_queue: bool) -> int:
    """A port that keeps the noted circuits from coming up, -1 where none does."""
    for place in range(count):
        circuit = s.starting[place]
        for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
            port = s.items[at]
            if s.ports[port].moving >= 0 or (
                s.ports[port].active >= 0 and s.circuits[s.ports[port].active].leases > 0
            ):
                return port
            if behind_queue and s.queue[port, 0] >= 0:
                return port
    return -1


@called
def _log(s: State, decision: int, what: int) -> None:
    place = s.n[LOGGED]
    s.n[LOGGED] += 1
    if place < len(s.log):
        s.log[place, 0], s.log[place, 1], s.log[place, 2] = s.n[_NOW], decision, what


@called
def _switch(s: State, heap: Array, count: int, latency_ns: int) -> int:
    """One command for each rail of the noted circuits; returns how many."""
    commands, place = 0, 0
    while place < count:
        rail = s.circuits[s.starting[place]].rail
        stop = place
        while stop < count and s.circuits[s.starting[stop]].rail == rail:
            stop += 1
        for at in range(place, stop):
            circuit = s.starting[at]
            for mine in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
                old = s.ports[s.items[mine]].active
                if old < 0:
                    continue
                s.circuits[old].lit = False
                for its in range(s.circuits[old].ends, s.circuits[old].ends_stop):
                    s.ports[s.items[its]].active = -1
                for its in range(s.circuits[old].users, s.circuits[old].users_stop):
                    s.configurations[s.items[its]].ahead = 0
        _log(s, LOG_SWITCH, rail)
        for at in range(place, stop):
            circuit = s.starting[at]
            _log(s, LOG_CIRCUIT, circuit)
            s.circuits[circuit].following = s.starting[at + 1] if at + 1 < stop else -1
            for mine in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
                s.ports[s.items[mine]].moving = circuit
        _push(heap, s, s.n[_NOW] + latency_ns, _SWITCHED, s.starting[place], 0)
        commands += 1
        place = stop
    s.n[COMMANDS] += commands
    return commands


# Who expects which configuration.


@called
def _check_ready(s: State, configuration: int) -> None:
    """Whether all members expect it and a hint of it was not served yet."""
    members = s.configurations[configuration].members_stop - s.configurations[configuration].members
    is_ready = (
        s.configurations[configuration].expected == members
        and s.configurations[configuration].unserved > 0
    )
    if is_ready and s.configurations[configuration].ready < 0:
        s.configurations[configuration].ready = s.n[_READY]
        s.n[_READY] += 1
        _look_at(s, len(s.channels) + configuration)
    elif not is_ready:
        s.configurations[configuration].ready = -1


@called
def _expect(s: State, slot: int, configuration: int) -> None:
    s.slots[slot].expecting += 1
    if s.slots[slot].expecting == 1:
        s.configurations[configuration].expected += 1


@called
def _expect_no_more(s: State, slot: int, configuration: int) -> None:
    s.slots[slot].expecting -= 1
    if s.slots[slot].expecting == 0:
        s.configurations[configuration].expected -= 1


@called
def _drop_hint(s: State, rank: int) -> int:
    """A rank's hint is over; returns what it was, -1 where there was none."""
    configuration = s.ranks[rank].hint
    if configuration >= 0:
        _expect_no_more(s, s.ranks[rank].hint_slot, configuration)
        if not s.ranks[rank].hint_served:
            s.configurations[configuration].unserved -= 1
        s.ranks[rank].hint = -1
    return configuration


# The controller.


@called
def _advance(s: State, heap: Array, latency_ns: int) -> None:
    """Grant and switch what the event has made possible."""
    n, channels = s.n, len(s.channels)
    while n[_OPERATIONS] > 0:
        channel = _take_least(s.looked_at, n, _OPERATIONS)
        s.watchers[channel].looked_at = False
        _serve(s, heap, channel, latency_ns)
    while n[_HINTED] > 0:
        configuration = _take_least(s.hinted, n, _HINTED)
        s.watchers[channels + configuration].looked_at = False
        if s.configurations[configuration].ready < 0:
            continue
        count = max(_find_starting(s, configuration), 0)
        port = _in_the_way(s, count, True)
        if port >= 0:
            _watch(s, channels + configuration, port)
            continue
        for place in range(
            s.configurations[configuration].members, s.configurations[configuration].members_stop
        ):
            rank = s.items[place]
            if s.ranks[rank].hint == configuration:
                s.ranks[rank].hint_served = True
        s.configurations[configuration].unserved = 0
        s.configurations[configuration].ready = -1
        s.configurations[configuration].ahead += _switch(s, heap, count, latency_ns)
    for place in range(n[_GRANTED]):
        _begin(s, heap, s.granted[place])
    n[_GRANTED] = 0


@called
def _serve(s: State, heap: Array, channel: int, latency_ns: int) -> None:
    configuration, operation = s.channels[channel].configuration, s.channels[channel].queued
    first = s.configurations[configuration].ports
    for place in range(first, s.configurations[configuration].ports_stop):
        if s.queue[s.items[place], 0] != s.channels[channel].node + place - first:
            _watch(s, channel, s.items[place])
            return
    count = _find_starting(s, configuration)
    if count < 0:
        _grant(s, channel)
        return
    port = _in_the_way(s, count, False)
    if port >= 0:
        _watch(s, channel, port)
        return
    if s.operations[operation].stall_since_ns < 0:
        s.operations[operation].stall_since_ns = s.n[_NOW]
    s.operations[operation].commands += _switch(s, heap, count, latency_ns)
    for place in range(
        s.configurations[configuration].circuits, s.configurations[configuration].circuits_stop
    ):
        circuit = s.items[place]
        if not s.circuits[circuit].lit:
            _watch(s, channel, s.items[s.circuits[circuit].ends])
            return


@called
def _grant(s: State, channel: int) -> None:
    now_ns, configuration, operation = (
        s.n[_NOW],
        s.channels[channel].configuration,
        s.channels[channel].queued,
    )
    s.operations[operation].commands += s.configurations[configuration].ahead
    s.configurations[configuration].ahead = 0
    s.channels[channel].queued = -1
    _log(s, LOG_GRANT, operation)
    for place in range(
        s.configurations[configuration].circuits, s.configurations[configuration].circuits_stop
    ):
        s.circuits[s.items[place]].leases += 1
    stall_ns = 0
    if s.operations[operation].stall_since_ns >= 0:
        stall_ns = now_ns - s.operations[operation].stall_since_ns
    step = s.operations[operation].first_arrived
    while step >= 0:
        row = s.results[s.steps[step].row]
        if row[R_BEGIN] < 0:
            row[R_BEGIN] = row[R_END] = now_ns
        row[R_REQUESTS] += 1
        row[R_RECONFIGURATIONS] += s.operations[operation].commands > 0
        row[R_STALL] += stall_ns
        row[R_WAIT] += now_ns - s.steps[step].asked_ns - stall_ns
        row[R_MISPREDICTIONS] += s.steps[step].mispredicted
        _expect_no_more(s, s.steps[step].slot, configuration)
        step = s.steps[step].next_arrived
    _check_ready(s, configuration)
    s.granted[s.n[_GRANTED]] = operation
    s.n[_GRANTED] += 1
    first = s.configurations[configuration].ports
    for place in range(first, s.configurations[configuration].ports_stop):
        port, node = s.items[place], s.channels[channel].node + place - first
        _unlink(s.queue, s.node_links, port, node)
    for place in range(first, s.configurations[configuration].ports_stop):
        _touch(s, s.items[place])


@called
def _ask(s: State, step: int) -> None:
    """A rank stands before an operation that needs circuits."""
    rank, operation, slot = s.steps[step].rank, s.steps[step].operation, s.steps[step].slot
    channel = s.operations[operation].channel
    configuration = s.channels[channel].configuration
    _note_arrival(s, operation, step)
    s.steps[step].asked = True
    _append(s.waiting, s.waiting_links, rank, step)
    s.steps[step].asked_ns = s.n[_NOW]
    hinted = _drop_hint(s, rank)
    s.steps[step].mispredicted = hinted >= 0 and hinted != configuration
    _expect(s, slot, configuration)
    if hinted >= 0 and hinted != configuration:
        _check_ready(s, hinted)
    _check_ready(s, configuration)
    if (
        s.operations[operation].arrived
        == s.configurations[configuration].members_stop - s.configurations[configuration].members
    ):
        s.channels[channel].queued = operation
        s.channels[channel].order = s.n[_QUEUED]
        s.n[_QUEUED] += 1
        first = s.configurations[configuration].ports
        for place in range(first, s.configurations[configuration].ports_stop):
            port, node = s.items[place], s.channels[channel].node + place - first
            _append(s.queue, s.node_links, port, node)
        _look_at(s, channel)


@called
def _release(s: State, step: int) -> None:
    operation = s.steps[step].operation
    configuration = s.channels[s.operations[operation].channel].configuration
    s.operations[operation].released += 1
    if (
        s.operations[operation].released
        == s.configurations[configuration].members_stop - s.configurations[configuration].members
    ):
        for place in range(
            s.configurations[configuration].circuits, s.configurations[configuration].circuits_stop
        ):
            circuit = s.items[place]
            s.circuits[circuit].leases -= 1
            if s.circuits[circuit].leases == 0:
                for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
                    _touch(s, s.items[at])


@called
def _hint(s: State, step: int) -> None:
    """The rank of ``step`` says that it comes next."""
    rank = s.steps[step].rank
    configuration = s.channels[s.operations[s.steps[step].operation].channel].configuration
    old = _drop_hint(s, rank)
    s.ranks[rank].hint, s.ranks[rank].hint_slot, s.ranks[rank].hint_served = (
        configuration,
        s.steps[step].slot,
        False,
    )
    s.configurations[configuration].unserved += 1
    _expect(s, s.steps[step].slot, configuration)
    if old >= 0:
        _check_ready(s, old)
    _check_ready(s, configuration)


@called
def _come_up(s: State, circuit: int) -> None:
    """A switch has carried out the command that begins with ``circuit``."""
    following = circuit
    while following >= 0:
        s.circuits[following].lit = True
        for at in range(s.circuits[following].ends, s.circuits[following].ends_stop):
            s.ports[s.items[at]].moving = -1
            s.ports[s.items[at]].active = following
        following = s.circuits[following].following
    following = circuit
    while following >= 0:
        for at in range(s.circuits[following].ends, s.circuits[following].ends_stop):
            _touch(s, s.items[at])
        following = s.circuits[following].following


# Ranks.


@called
def _note_arrival(s: State, operation: int, step: int) -> None:
    s.steps[step].next_arrived = -1
    if s.operations[operation].arrived == 0:
        s.operations[operation].first_arrived = step
    else:
        s.steps[s.operations[operation].last_arrived].next_arrived = step
    s.operations[operation].last_arrived = step
    s.operations[operation].arrived += 1


@called
def _start(s: State, heap: Array, step: int) -> None:
    s.steps[step].started_ns = s.n[_NOW]
    s.steps[step].ended_ns = s.n[_NOW] + s.steps[step].lasts_ns
    _push(heap, s, s.steps[step].ended_ns, _ENDED, step, 0)


@called
def _begin(s: State, heap: Array, operation: int) -> None:
    """An operation was granted."""
    step = s.operations[operation].first_arrived
    while step >= 0:
        rank = s.steps[step].rank
        _unlink(s.waiting, s.waiting_links, rank, step)
        s.ranks[rank].under_way += 1
        if s.steps[step].sends:
            _unlink(s.unsent, s.step_links, rank, step)
            behind = s.behind[rank, 0]
            while behind >= 0:
                if s.steps[behind].other == step:
                    _push(heap, s, s.n[_NOW], _AHEAD, behind, step)
                behind = s.step_links[behind, 0]
        step = s.steps[step].next_arrived
    step = s.operations[operation].first_arrived
    while step >= 0:
        _start(s, heap, step)
        step = s.steps[step].next_arrived


@called
def _conflict(s: State, one: int, other: int) -> bool:
    """Whether two configurations cannot be up together."""
    for a in range(s.configurations[one].circuits, s.configurations[one].circuits_stop):
        for b in range(s.configurations[other].circuits, s.configurations[other].circuits_stop):
            if s.items[a] == s.items[b]:
                continue
            for x in range(s.circuits[s.items[a]].ends, s.circuits[s.items[a]].ends_stop):
                for y in range(s.circuits[s.items[b]].ends, s.circuits[s.items[b]].ends_stop):
                    if s.items[x] == s.items[y]:
                        return True
    return False


@called
def _needs_circuits(s: State, step: int) -> bool:
    channel = s.operations[s.steps[step].operation].channel
    return s.configurations[s.channels[channel].configuration].wanted != 0


@called
def _stays_behind(s: State, heap: Array, step: int) -> bool:
    """Whether a collective waits for a message that has to go first."""
    rank, slot = s.steps[step].rank, s.steps[step].slot
    configuration = s.channels[s.operations[s.steps[step].operation].channel].configuration
    if not s.configurations[configuration].ring or s.slots[slot].patience_ns <= 0:
        return False
    other = s.unsent[rank, 0]
    while other >= 0:
        its = s.channels[s.operations[s.steps[other].operation].channel].configuration
        if other < step and _conflict(s, its, configuration):
            s.steps[step].other = other
            _append(s.behind, s.step_links, rank, step)
            _push(heap, s, s.n[_NOW] + s.slots[slot].patience_ns, _IMPATIENT, step, other)
            return True
        other = s.step_links[other, 0]
    return False


@called
def _arrive(s: State, heap: Array, step: int) -> None:
    """A member stands before an operation that needs no circuits."""
    operation = s.steps[step].operation
    configuration = s.channels[s.operations[operation].channel].configuration
    _note_arrival(s, operation, step)
    everybody = (
        s.operations[operation].arrived
        == s.configurations[configuration].members_stop - s.configurations[configuration].members
    )
    if s.steps[step].alone:
        _start(s, heap, step)
    if everybody:
        step = s.operations[operation].first_arrived
        while step >= 0:
            if not s.steps[step].alone:
                _start(s, heap, step)
            step = s.steps[step].next_arrived


@called
def _end(s: State, step: int, asked: bool) -> None:
    """A member's part of an operation is over."""
    rank = s.steps[step].rank
    s.steps[step].ended = True
    if asked:
        configuration = s.channels[s.operations[s.steps[step].operation].channel].configuration
        s.ranks[rank].under_way -= 1
        if s.configurations[configuration].ring:
            s.ranks[rank].passed = max(s.ranks[rank].passed, step)
        _release(s, step)


@called
def _go_on_after(s: State, heap: Array, step: int, announces: bool) -> None:
    """The lane goes on, and the rank says what it will need."""
    rank, after = s.steps[step].rank, s.steps[step].after
    if 0 <= after < s.ranks[rank].position:
        _push(heap, s, s.n[_NOW] + s.steps[after].pickup_ns, _ARRIVE, after, 0)
    if announces:
        configuration = s.channels[s.operations[s.steps[step].operation].channel].configuration
        following = _following(s, rank)
        if (
            following >= 0
            and s.channels[s.operations[s.steps[following].operation].channel].configuration
            != configuration
        ):
            _hint(s, following)


@called
def _following(s: State, rank: int) -> int:
    """The step to announce when an operation has ended; -1 for none."""
    if s.ranks[rank].under_way > 0:
        return -1
    waiting = s.waiting[rank, 0]
    while waiting >= 0:
        if waiting > s.ranks[rank].passed:
            return -1
        waiting = s.waiting_links[waiting, 0]
    step, stop = s.ranks[rank].unasked, s.ranks[rank].stop
    while step < stop:
        if (
            s.steps[step].does == ISSUE
            and not s.steps[step].asked
            and s.configurations[
                s.channels[s.operations[s.steps[step].operation].channel].configuration
            ].wanted
        ):
            break
        step += 1
    s.ranks[rank].unasked = step
    if step < stop:
        position = s.ranks[rank].position
        if step < position or s.steps[step].iteration == s.steps[position - 1].iteration:
            return step
    return -1


@called
def _go_on(s: State, heap: Array, rank: int) -> None:
    """Plan the next step of a program that waits for nothing."""
    step = s.ranks[rank].position
    if step == s.ranks[rank].stop:
        return
    if s.steps[step].does == BEGIN:
        s.ranks[rank].at_begin = True
        s.n[_AT_BEGIN] += 1
        _begin_together(s, heap)
    else:
        s.steps[step].computing_ns = s.n[_NOW]
        _push(heap, s, s.n[_NOW] + s.steps[step].gap_ns, _TAKE, rank, 0)


@called
def _begin_together(s: State, heap: Array) -> None:
    if s.n[_AT_BEGIN] < s.n[_UNFINISHED]:
        return
    for rank in range(len(s.ranks)):
        if s.ranks[rank].at_begin:
            s.ranks[rank].at_begin = False
            _push(heap, s, s.n[_NOW] + s.steps[s.ranks[rank].position].gap_ns, _TAKE, rank, 0)
    s.n[_AT_BEGIN] = 0


@called
def _resume(s: State, heap: Array, rank: int) -> None:
    s.ranks[rank].waits_for = -1
    resume_ns = s.steps[s.ranks[rank].position].resume_ns
    _advance_program(s, rank)
    _push(heap, s, s.n[_NOW] + resume_ns, _GO_ON, rank, 0)


@called
def _advance_program(s: State, rank: int) -> None:
    s.ranks[rank].position += 1
    if s.ranks[rank].position == s.ranks[rank].stop:
        s.n[_UNFINISHED] -= 1


@called
def _take(s: State, heap: Array, rank: int, optical: bool) -> None:
    """The next step of a program happens now."""
    step, now_ns = s.ranks[rank].position, s.n[_NOW]
    does = s.steps[step].does
    if does == WAIT:
        target = s.steps[step].target
        s.ranks[rank].waits_for = target if target >= 0 else -2
        if target >= 0 and s.steps[target].ended:
            _resume(s, heap, rank)
        return
    _advance_program(s, rank)
    if does == ISSUE:
        if (
            optical
            and s.steps[step].sends
            and s.configurations[
                s.channels[s.operations[s.steps[step].operation].channel].configuration
            ].wanted
        ):
            _append(s.unsent, s.step_links, rank, step)
        before = s.steps[step].before
        if before < 0 or s.steps[before].ended:
            _push(heap, s, now_ns + s.steps[step].pickup_ns, _ARRIVE, step, 0)
    else:
        row = s.results[s.steps[step].row]
        if row[R_BEGIN] < 0:
            row[R_BEGIN] = row[R_END] = now_ns
        if does == END:
            row[R_END] = now_ns
    _go_on(s, heap, rank)
    if s.ranks[rank].position == s.ranks[rank].stop:
        _begin_together(s, heap)


@compiled
def run(
    s: State,
    active: Array,
    optical: bool,
    provisioned: bool,
    latency_ns: int,
    impatient_ns: int,
    patience_ns: int,
) -> None:
    """Carry out the programs; ``active`` are the circuits that are lit at the start.

    The log takes as many entries as it has room for; a counter says how many there
    were.
    """
    n, ranks = s.n, len(s.ranks)
    for circuit in active:
        s.circuits[circuit].lit = True
        for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
            s.ports[s.items[at]].active = circuit
    # An event adds no more than one for each lane, rank and circuit, and as many again
    # where collectives wait behind messages.
    most = 2 * (len(s.slots) + ranks + len(s.circuits) + len(s.channels)) + 16
    heap = np.zeros(4 * most, s.event.dtype)
    for rank in range(ranks):
        n[_UNFINISHED] += s.ranks[rank].stop > s.ranks[rank].first
    for rank in range(ranks):
        _go_on(s, heap, rank)
    while n[_HEAP] > 0:
        if n[_HEAP] + most > len(heap):
            heap = np.concatenate((heap, np.zeros_like(heap)))
        event = heap[0]
        time_ns, kind, a, b = event.time_ns, event.kind, event.a, event.b
        _pop(heap, s)
        n[EVENTS] += 1
        n[_NOW] = time_ns
        asks = -1
        if kind == _TAKE:
            _take(s, heap, a, optical)
        elif kind == _GO_ON:
            _go_on(s, heap, a)
        elif kind == _ARRIVE:
            if not optical or not _needs_circuits(s, a):
                _arrive(s, heap, a)
            elif not _stays_behind(s, heap, a):
                asks = a
        elif kind == _ENDED:
            _end(s, a, optical and _needs_circuits(s, a))
        elif kind == _SWITCHED:
            _come_up(s, a)
        elif s.steps[a].other == b:
            rank, slot = s.steps[a].rank, s.steps[a].slot
            s.steps[a].other = -1
            _unlink(s.behind, s.step_links, rank, a)
            limit_ns = s.slots[slot].patience_ns
            if kind == _AHEAD:
                s.slots[slot].patience_ns = patience_ns
            else:
                s.slots[slot].patience_ns = limit_ns // 2 if limit_ns > impatient_ns else 0
            if kind == _IMPATIENT or not _stays_behind(s, heap, a):
                asks = a
        if asks >= 0:
            _ask(s, asks)
        if not optical:
            if kind == _ENDED:
                _go_on_after(s, heap, a, False)
        else:
            # What follows on an end comes after what its release made possible.
            for part in range(2 if kind == _ENDED else 1):
                if part == 1:
                    _go_on_after(s, heap, a, provisioned and _needs_circuits(s, a))
                _advance(s, heap, latency_ns)
        if kind == _ENDED and s.ranks[s.steps[a].rank].waits_for == a:
            _resume(s, heap, s.steps[a].rank)


@compiled
def account(s: State, found: Array) -> None:
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
            for place in order:
                if spanned and starts[place] <= spans[spanned - 1, 1]:
                    spans[spanned - 1, 1] = max(spans[spanned - 1, 1], ends[place])
                else:
                    spans[spanned, 0], spans[spanned, 1] = starts[place], ends[place]
                    spanned += 1
            for place in range(spanned):
                found[row, 1] += spans[place, 1] - spans[place, 0]
            place = 0
            for at in range(step, stop):
                since_ns = s.steps[at].computing_ns
                if since_ns < 0 or s.steps[at].gap_ns == 0:
                    continue
                a = min(max(since_ns, begin_ns), end_ns)
                b = min(max(since_ns + s.steps[at].gap_ns, begin_ns), end_ns)
                found[row, 0] += b - a
                while place < spanned and spans[place, 1] <= a:
                    place += 1
                here = place
                while here < spanned and spans[here, 0] < b:
                    found[row, 2] += max(0, min(b, spans[here, 1]) - max(a, spans[here, 0]))
                    here += 1
            step = stop
