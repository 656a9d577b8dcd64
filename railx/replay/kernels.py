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

__all__ = ["Job", "Outcome", "account", "run"]

Array = npt.NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

BEGIN, ISSUE, WAIT, END = range(4)
#: Kinds of events.
_TAKE, _GO_ON, _ARRIVE, _ENDED, _SWITCHED, _IMPATIENT, _AHEAD = range(7)
#: Places in the counters.
(
    _EVENTS,
    _PUSHED,
    _HEAP,
    _AT_BEGIN,
    _UNFINISHED,
    _QUEUED,
    _READY,
    _LOGGED,
    _GRANTED,
    _OPERATIONS,
    _HINTED,
    _NOW,
    _COMMANDS,
    _COUNTERS,
) = range(14)
#: Columns of the log: time, decision, and operation or rail with the first circuit of
#: the command.
LOG_GRANT, LOG_SWITCH, LOG_CIRCUIT = range(3)
#: Columns of results.
R_BEGIN, R_END, R_STALL, R_WAIT, R_REQUESTS, R_RECONFIGURATIONS, R_MISPREDICTIONS = range(7)


def compiled(function: Function) -> Function:
    """Compile on first use and keep the result on disk."""
    return cast(Function, njit(cache=True, error_model="numpy")(function))


class Job(NamedTuple):
    """Programs and circuits as tables; see :mod:`railx.replay.run`."""

    first: Array  # rank -> its first step, and one more
    rank: Array
    does: Array
    iteration: Array
    gap_ns: Array
    lasts_ns: Array
    pickup_ns: Array
    resume_ns: Array
    alone: Array
    sends: Array  # whether an issue sends a message
    operation: Array  # step -> operation
    target: Array  # wait -> the issue that it waits for
    before: Array  # issue -> the one before it in its lane
    after: Array
    slot: Array
    row: Array  # step -> row of results
    rows: int
    slots: int
    channel: Array  # operation -> channel
    node: Array  # channel -> its first node
    wanted: Array  # configuration -> whether it asks
    ring: Array
    configuration: Array  # channel -> configuration
    members: Array  # configuration -> its first member, and one more
    member: Array
    circuits: Array  # configuration -> its first circuit, by rail, and one more
    circuit: Array
    ports: Array  # configuration -> its first port, and one more
    port: Array
    ends: Array  # circuit -> its first port, and one more
    end: Array
    users: Array  # circuit -> the first configuration that needs it, and one more
    user: Array
    rail: Array  # circuit -> its rail
    port_count: int


class Outcome(NamedTuple):
    """What came of a run."""

    results: Array
    started_ns: Array
    ended_ns: Array
    computing_ns: Array
    log: Array
    counters: Array
    position: Array


class _State(NamedTuple):
    n: Array
    log: Array
    results: Array
    started_ns: Array
    ended_ns: Array
    computing_ns: Array
    # Ranks.
    position: Array
    at_begin: Array
    waits_for: Array
    unasked: Array
    under_way: Array
    passed: Array
    waiting: Array  # the first step that has asked and is not granted
    unsent: Array
    unsent_last: Array
    behind: Array
    behind_last: Array
    hint: Array  # configuration
    hint_slot: Array
    hint_served: Array
    # Steps.
    ended: Array
    asked: Array
    asked_ns: Array
    mispredicted: Array
    next_arrived: Array
    next_waiting: Array
    last_waiting: Array
    next_unsent: Array
    last_unsent: Array
    next_behind: Array
    last_behind: Array
    other: Array
    # Slots.
    expecting: Array
    patience_ns: Array
    # Operations.
    arrived: Array
    first_arrived: Array
    last_arrived: Array
    released: Array
    commands: Array
    stall_since_ns: Array
    granted: Array  # those of the present event, in order
    # Channels.
    queued: Array  # the operation in the queue
    order: Array
    # Configurations.
    expected: Array
    unserved: Array
    ready: Array
    ahead: Array
    # Circuits.
    lit: Array
    leases: Array
    next_circuit: Array
    starting: Array  # what a switch is asked to bring up
    # Ports.
    active: Array
    moving: Array
    head: Array
    tail: Array
    watched: Array  # the first watcher of a port
    # Nodes.
    next_node: Array
    last_node: Array
    # Watchers: channels, then configurations.
    next_watcher: Array
    last_watcher: Array
    watches: Array
    looked_at: Array  # whether it will be looked at in this event
    operations: Array  # heap of (order, channel) to be looked at
    hinted: Array  # heap of (order, configuration)


@compiled
def _push(heap: Array, s: _State, time_ns: int, kind: int, a: int, b: int) -> None:
    """Add an event; of those of one moment the first added is the first."""
    n = s.n
    place = n[_HEAP]
    n[_HEAP] += 1
    order = n[_PUSHED]
    n[_PUSHED] += 1
    while place > 0:
        above = (place - 1) >> 1
        if heap[above, 0] <= time_ns:
            break
        heap[place] = heap[above]
        place = above
    heap[place, 0] = time_ns
    heap[place, 1] = order
    heap[place, 2] = kind
    heap[place, 3] = a
    heap[place, 4] = b


@compiled
def _pop(heap: Array, s: _State, found: Array) -> None:
    n = s.n
    found[:] = heap[0]
    n[_HEAP] -= 1
    size = n[_HEAP]
    time_ns, order = heap[size, 0], heap[size, 1]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            heap[other, 0] < heap[below, 0]
            or (heap[other, 0] == heap[below, 0] and heap[other, 1] < heap[below, 1])
        ):
            below = other
        if time_ns < heap[below, 0] or (time_ns == heap[below, 0] and order < heap[below, 1]):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = heap[size]


@compiled
def _put(small: Array, n: Array, which: int, key: int, value: int) -> None:
    """Add to a heap of pairs, whose size is a counter."""
    place = n[which]
    n[which] += 1
    while place > 0:
        above = (place - 1) >> 1
        if small[above, 0] <= key:
            break
        small[place] = small[above]
        place = above
    small[place, 0], small[place, 1] = key, value


@compiled
def _take_least(small: Array, n: Array, which: int) -> int:
    value = small[0, 1]
    n[which] -= 1
    size = n[which]
    key = small[size, 0]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and small[below + 1, 0] < small[below, 0]:
            below += 1
        if key <= small[below, 0]:
            break
        small[place] = small[below]
        place = below
    small[place] = small[size]
    return value


# Lists of steps of a rank, linked both ways.


@compiled
def _unlink(head: Array, tail: Array, following: Array, last: Array, rank: int, step: int) -> None:
    before, after = last[step], following[step]
    if before >= 0:
        following[before] = after
    else:
        head[rank] = after
    if after >= 0:
        last[after] = before
    else:
        tail[rank] = before


@compiled
def _append(head: Array, tail: Array, following: Array, last: Array, rank: int, step: int) -> None:
    last[step], following[step] = tail[rank], -1
    if tail[rank] >= 0:
        following[tail[rank]] = step
    else:
        head[rank] = step
    tail[rank] = step


# What waits for a port.


@compiled
def _watch(s: _State, watcher: int, port: int) -> None:
    s.watches[watcher] = port
    s.last_watcher[watcher], s.next_watcher[watcher] = -1, s.watched[port]
    if s.watched[port] >= 0:
        s.last_watcher[s.watched[port]] = watcher
    s.watched[port] = watcher


@compiled
def _unwatch(s: _State, watcher: int) -> None:
    port = s.watches[watcher]
    if port < 0:
        return
    before, after = s.last_watcher[watcher], s.next_watcher[watcher]
    if before >= 0:
        s.next_watcher[before] = after
    else:
        s.watched[port] = after
    if after >= 0:
        s.last_watcher[after] = before
    s.watches[watcher] = -1


@compiled
def _look_at(j: Job, s: _State, watcher: int) -> None:
    """An operation or a configuration is looked at again in this event."""
    _unwatch(s, watcher)
    if s.looked_at[watcher]:
        return
    channels = len(j.configuration)
    if watcher < channels:
        if s.queued[watcher] >= 0:
            s.looked_at[watcher] = True
            _put(s.operations, s.n, _OPERATIONS, s.order[watcher], watcher)
    elif s.ready[watcher - channels] >= 0:
        s.looked_at[watcher] = True
        _put(s.hinted, s.n, _HINTED, s.ready[watcher - channels], watcher - channels)


@compiled
def _touch(j: Job, s: _State, port: int) -> None:
    """Something has changed at a port."""
    while s.watched[port] >= 0:
        _look_at(j, s, s.watched[port])


@compiled
def _find_starting(j: Job, s: _State, configuration: int) -> int:
    """Note the circuits that are neither up nor coming up; -1 where all are up."""
    count, missing = 0, False
    for place in range(j.circuits[configuration], j.circuits[configuration + 1]):
        circuit = j.circuit[place]
        if not s.lit[circuit]:
            missing = True
            if s.moving[j.end[j.ends[circuit]]] != circuit:
                s.starting[count] = circuit
                count += 1
    return count if missing else -1


@compiled
def _in_the_way(j: Job, s: _State, count: int, behind_queue: bool) -> int:
    """A port that keeps the noted circuits from coming up, -1 where none does."""
    for place in range(count):
        circuit = s.starting[place]
        for at in range(j.ends[circuit], j.ends[circuit + 1]):
            port = j.end[at]
            if s.moving[port] >= 0 or (s.active[port] >= 0 and s.leases[s.active[port]] > 0):
                return port
            if behind_queue and s.head[port] >= 0:
                return port
    return -1


@compiled
def _log(s: _State, decision: int, what: int) -> None:
    place = s.n[_LOGGED]
    s.n[_LOGGED] += 1
    if place < len(s.log):
        s.log[place, 0], s.log[place, 1], s.log[place, 2] = s.n[_NOW], decision, what


@compiled
def _switch(j: Job, s: _State, heap: Array, count: int, latency_ns: int) -> int:
    """One command for each rail of the noted circuits; returns how many."""
    commands, place = 0, 0
    while place < count:
        rail = j.rail[s.starting[place]]
        stop = place
        while stop < count and j.rail[s.starting[stop]] == rail:
            stop += 1
        for at in range(place, stop):
            circuit = s.starting[at]
            for mine in range(j.ends[circuit], j.ends[circuit + 1]):
                old = s.active[j.end[mine]]
                if old < 0:
                    continue
                s.lit[old] = False
                for its in range(j.ends[old], j.ends[old + 1]):
                    s.active[j.end[its]] = -1
                for its in range(j.users[old], j.users[old + 1]):
                    s.ahead[j.user[its]] = 0
        _log(s, LOG_SWITCH, rail)
        for at in range(place, stop):
            circuit = s.starting[at]
            _log(s, LOG_CIRCUIT, circuit)
            s.next_circuit[circuit] = s.starting[at + 1] if at + 1 < stop else -1
            for mine in range(j.ends[circuit], j.ends[circuit + 1]):
                s.moving[j.end[mine]] = circuit
        _push(heap, s, s.n[_NOW] + latency_ns, _SWITCHED, s.starting[place], 0)
        commands += 1
        place = stop
    s.n[_COMMANDS] += commands
    return commands


# Who expects which configuration.


@compiled
def _check_ready(j: Job, s: _State, configuration: int) -> None:
    """Whether all members expect it and a hint of it was not served yet."""
    members = j.members[configuration + 1] - j.members[configuration]
    is_ready = s.expected[configuration] == members and s.unserved[configuration] > 0
    if is_ready and s.ready[configuration] < 0:
        s.ready[configuration] = s.n[_READY]
        s.n[_READY] += 1
        _look_at(j, s, len(j.configuration) + configuration)
    elif not is_ready:
        s.ready[configuration] = -1


@compiled
def _expect(s: _State, slot: int, configuration: int) -> None:
    s.expecting[slot] += 1
    if s.expecting[slot] == 1:
        s.expected[configuration] += 1


@compiled
def _expect_no_more(s: _State, slot: int, configuration: int) -> None:
    s.expecting[slot] -= 1
    if s.expecting[slot] == 0:
        s.expected[configuration] -= 1


@compiled
def _drop_hint(s: _State, rank: int) -> int:
    """A rank's hint is over; returns what it was, -1 where there was none."""
    configuration = s.hint[rank]
    if configuration >= 0:
        _expect_no_more(s, s.hint_slot[rank], configuration)
        if not s.hint_served[rank]:
            s.unserved[configuration] -= 1
        s.hint[rank] = -1
    return configuration


# The controller.


@compiled
def _advance(j: Job, s: _State, heap: Array, latency_ns: int) -> None:
    """Grant and switch what the event has made possible."""
    n, channels = s.n, len(j.configuration)
    while n[_OPERATIONS] > 0:
        channel = _take_least(s.operations, n, _OPERATIONS)
        s.looked_at[channel] = False
        _serve(j, s, heap, channel, latency_ns)
    while n[_HINTED] > 0:
        configuration = _take_least(s.hinted, n, _HINTED)
        s.looked_at[channels + configuration] = False
        if s.ready[configuration] < 0:
            continue
        count = max(_find_starting(j, s, configuration), 0)
        port = _in_the_way(j, s, count, True)
        if port >= 0:
            _watch(s, channels + configuration, port)
            continue
        for place in range(j.members[configuration], j.members[configuration + 1]):
            rank = j.member[place]
            if s.hint[rank] == configuration:
                s.hint_served[rank] = True
        s.unserved[configuration] = 0
        s.ready[configuration] = -1
        s.ahead[configuration] += _switch(j, s, heap, count, latency_ns)
    for place in range(n[_GRANTED]):
        _begin(j, s, heap, s.granted[place])
    n[_GRANTED] = 0


@compiled
def _serve(j: Job, s: _State, heap: Array, channel: int, latency_ns: int) -> None:
    configuration, operation = j.configuration[channel], s.queued[channel]
    first = j.ports[configuration]
    for place in range(first, j.ports[configuration + 1]):
        if s.head[j.port[place]] != j.node[channel] + place - first:
            _watch(s, channel, j.port[place])
            return
    count = _find_starting(j, s, configuration)
    if count < 0:
        _grant(j, s, channel)
        return
    port = _in_the_way(j, s, count, False)
    if port >= 0:
        _watch(s, channel, port)
        return
    if s.stall_since_ns[operation] < 0:
        s.stall_since_ns[operation] = s.n[_NOW]
    s.commands[operation] += _switch(j, s, heap, count, latency_ns)
    for place in range(j.circuits[configuration], j.circuits[configuration + 1]):
        circuit = j.circuit[place]
        if not s.lit[circuit]:
            _watch(s, channel, j.end[j.ends[circuit]])
            return


@compiled
def _grant(j: Job, s: _State, channel: int) -> None:
    now_ns, configuration, operation = s.n[_NOW], j.configuration[channel], s.queued[channel]
    s.commands[operation] += s.ahead[configuration]
    s.ahead[configuration] = 0
    s.queued[channel] = -1
    _log(s, LOG_GRANT, operation)
    for place in range(j.circuits[configuration], j.circuits[configuration + 1]):
        s.leases[j.circuit[place]] += 1
    stall_ns = 0
    if s.stall_since_ns[operation] >= 0:
        stall_ns = now_ns - s.stall_since_ns[operation]
    step = s.first_arrived[operation]
    while step >= 0:
        row = s.results[j.row[step]]
        if row[R_BEGIN] < 0:
            row[R_BEGIN] = row[R_END] = now_ns
        row[R_REQUESTS] += 1
        row[R_RECONFIGURATIONS] += s.commands[operation] > 0
        row[R_STALL] += stall_ns
        row[R_WAIT] += now_ns - s.asked_ns[step] - stall_ns
        row[R_MISPREDICTIONS] += s.mispredicted[step]
        _expect_no_more(s, j.slot[step], configuration)
        step = s.next_arrived[step]
    _check_ready(j, s, configuration)
    s.granted[s.n[_GRANTED]] = operation
    s.n[_GRANTED] += 1
    first = j.ports[configuration]
    for place in range(first, j.ports[configuration + 1]):
        port, node = j.port[place], j.node[channel] + place - first
        _unlink(s.head, s.tail, s.next_node, s.last_node, port, node)
    for place in range(first, j.ports[configuration + 1]):
        _touch(j, s, j.port[place])


@compiled
def _ask(j: Job, s: _State, heap: Array, step: int, latency_ns: int) -> None:
    """A rank stands before an operation that needs circuits."""
    rank, operation, slot = j.rank[step], j.operation[step], j.slot[step]
    channel = j.channel[operation]
    configuration = j.configuration[channel]
    _note_arrival(s, operation, step)
    s.asked[step] = True
    s.last_waiting[step], s.next_waiting[step] = -1, s.waiting[rank]
    if s.waiting[rank] >= 0:
        s.last_waiting[s.waiting[rank]] = step
    s.waiting[rank] = step
    s.asked_ns[step] = s.n[_NOW]
    hinted = _drop_hint(s, rank)
    s.mispredicted[step] = hinted >= 0 and hinted != configuration
    _expect(s, slot, configuration)
    if hinted >= 0 and hinted != configuration:
        _check_ready(j, s, hinted)
    _check_ready(j, s, configuration)
    if s.arrived[operation] == j.members[configuration + 1] - j.members[configuration]:
        s.queued[channel] = operation
        s.order[channel] = s.n[_QUEUED]
        s.n[_QUEUED] += 1
        first = j.ports[configuration]
        for place in range(first, j.ports[configuration + 1]):
            port, node = j.port[place], j.node[channel] + place - first
            _append(s.head, s.tail, s.next_node, s.last_node, port, node)
        _look_at(j, s, channel)
    _advance(j, s, heap, latency_ns)


@compiled
def _release(j: Job, s: _State, heap: Array, step: int, latency_ns: int) -> None:
    operation = j.operation[step]
    configuration = j.configuration[j.channel[operation]]
    s.released[operation] += 1
    if s.released[operation] == j.members[configuration + 1] - j.members[configuration]:
        for place in range(j.circuits[configuration], j.circuits[configuration + 1]):
            circuit = j.circuit[place]
            s.leases[circuit] -= 1
            if s.leases[circuit] == 0:
                for at in range(j.ends[circuit], j.ends[circuit + 1]):
                    _touch(j, s, j.end[at])
        _advance(j, s, heap, latency_ns)


@compiled
def _hint(j: Job, s: _State, heap: Array, step: int, latency_ns: int) -> None:
    """The rank of ``step`` says that it comes next."""
    rank = j.rank[step]
    configuration = j.configuration[j.channel[j.operation[step]]]
    old = _drop_hint(s, rank)
    s.hint[rank], s.hint_slot[rank], s.hint_served[rank] = configuration, j.slot[step], False
    s.unserved[configuration] += 1
    _expect(s, j.slot[step], configuration)
    if old >= 0:
        _check_ready(j, s, old)
    _check_ready(j, s, configuration)
    _advance(j, s, heap, latency_ns)


@compiled
def _come_up(j: Job, s: _State, heap: Array, circuit: int, latency_ns: int) -> None:
    """A switch has carried out the command that begins with ``circuit``."""
    following = circuit
    while following >= 0:
        s.lit[following] = True
        for at in range(j.ends[following], j.ends[following + 1]):
            s.moving[j.end[at]] = -1
            s.active[j.end[at]] = following
        following = s.next_circuit[following]
    following = circuit
    while following >= 0:
        for at in range(j.ends[following], j.ends[following + 1]):
            _touch(j, s, j.end[at])
        following = s.next_circuit[following]
    _advance(j, s, heap, latency_ns)


# Ranks.


@compiled
def _note_arrival(s: _State, operation: int, step: int) -> None:
    s.next_arrived[step] = -1
    if s.arrived[operation] == 0:
        s.first_arrived[operation] = step
    else:
        s.next_arrived[s.last_arrived[operation]] = step
    s.last_arrived[operation] = step
    s.arrived[operation] += 1


@compiled
def _start(j: Job, s: _State, heap: Array, step: int) -> None:
    s.started_ns[step] = s.n[_NOW]
    s.ended_ns[step] = s.n[_NOW] + j.lasts_ns[step]
    _push(heap, s, s.ended_ns[step], _ENDED, step, 0)


@compiled
def _begin(j: Job, s: _State, heap: Array, operation: int) -> None:
    """An operation was granted."""
    step = s.first_arrived[operation]
    while step >= 0:
        rank = j.rank[step]
        before, after = s.last_waiting[step], s.next_waiting[step]
        if before >= 0:
            s.next_waiting[before] = after
        else:
            s.waiting[rank] = after
        if after >= 0:
            s.last_waiting[after] = before
        s.under_way[rank] += 1
        if j.sends[step]:
            _unlink(s.unsent, s.unsent_last, s.next_unsent, s.last_unsent, rank, step)
            behind = s.behind[rank]
            while behind >= 0:
                if s.other[behind] == step:
                    _push(heap, s, s.n[_NOW], _AHEAD, behind, step)
                behind = s.next_behind[behind]
        step = s.next_arrived[step]
    step = s.first_arrived[operation]
    while step >= 0:
        _start(j, s, heap, step)
        step = s.next_arrived[step]


@compiled
def _conflict(j: Job, one: int, other: int) -> bool:
    """Whether two configurations cannot be up together."""
    for a in range(j.circuits[one], j.circuits[one + 1]):
        for b in range(j.circuits[other], j.circuits[other + 1]):
            if j.circuit[a] == j.circuit[b]:
                continue
            for x in range(j.ends[j.circuit[a]], j.ends[j.circuit[a] + 1]):
                for y in range(j.ends[j.circuit[b]], j.ends[j.circuit[b] + 1]):
                    if j.end[x] == j.end[y]:
                        return True
    return False


@compiled
def _ask_in_turn(j: Job, s: _State, heap: Array, step: int, latency_ns: int) -> None:
    """Ask for circuits, behind messages that have to go first."""
    rank, slot = j.rank[step], j.slot[step]
    configuration = j.configuration[j.channel[j.operation[step]]]
    if j.ring[configuration] and s.patience_ns[slot] > 0:
        other = s.unsent[rank]
        while other >= 0:
            its = j.configuration[j.channel[j.operation[other]]]
            if other < step and _conflict(j, its, configuration):
                s.other[step] = other
                _append(s.behind, s.behind_last, s.next_behind, s.last_behind, rank, step)
                _push(heap, s, s.n[_NOW] + s.patience_ns[slot], _IMPATIENT, step, other)
                return
            other = s.next_unsent[other]
    _ask(j, s, heap, step, latency_ns)


@compiled
def _arrive(j: Job, s: _State, heap: Array, step: int, optical: bool, latency_ns: int) -> None:
    operation = j.operation[step]
    configuration = j.configuration[j.channel[operation]]
    if optical and j.wanted[configuration]:
        _ask_in_turn(j, s, heap, step, latency_ns)
        return
    _note_arrival(s, operation, step)
    if j.alone[step]:
        _start(j, s, heap, step)
    if s.arrived[operation] == j.members[configuration + 1] - j.members[configuration]:
        step = s.first_arrived[operation]
        while step >= 0:
            if not j.alone[step]:
                _start(j, s, heap, step)
            step = s.next_arrived[step]


@compiled
def _end(
    j: Job,
    s: _State,
    heap: Array,
    step: int,
    optical: bool,
    provisioned: bool,
    latency_ns: int,
) -> None:
    """A member's part of an operation is over."""
    now_ns, rank = s.n[_NOW], j.rank[step]
    configuration = j.configuration[j.channel[j.operation[step]]]
    asks = optical and j.wanted[configuration]
    s.ended[step] = True
    if asks:
        s.under_way[rank] -= 1
        if j.ring[configuration]:
            s.passed[rank] = max(s.passed[rank], step)
        _release(j, s, heap, step, latency_ns)
    after = j.after[step]
    if 0 <= after < s.position[rank]:
        _push(heap, s, now_ns + j.pickup_ns[after], _ARRIVE, after, 0)
    if asks and provisioned:
        following = _following(j, s, rank)
        if (
            following >= 0
            and j.configuration[j.channel[j.operation[following]]] != configuration
        ):
            _hint(j, s, heap, following, latency_ns)
    if s.waits_for[rank] == step:
        _resume(j, s, heap, rank)


@compiled
def _following(j: Job, s: _State, rank: int) -> int:
    """The step to announce when an operation has ended; -1 for none."""
    if s.under_way[rank] > 0:
        return -1
    waiting = s.waiting[rank]
    while waiting >= 0:
        if waiting > s.passed[rank]:
            return -1
        waiting = s.next_waiting[waiting]
    step, stop = s.unasked[rank], j.first[rank + 1]
    while step < stop:
        if (
            j.does[step] == ISSUE
            and not s.asked[step]
            and j.wanted[j.configuration[j.channel[j.operation[step]]]]
        ):
            break
        step += 1
    s.unasked[rank] = step
    if step < stop:
        position = s.position[rank]
        if step < position or j.iteration[step] == j.iteration[position - 1]:
            return step
    return -1


@compiled
def _go_on(j: Job, s: _State, heap: Array, rank: int) -> None:
    """Plan the next step of a program that waits for nothing."""
    step = s.position[rank]
    if step == j.first[rank + 1]:
        return
    if j.does[step] == BEGIN:
        s.at_begin[rank] = True
        s.n[_AT_BEGIN] += 1
        _begin_together(j, s, heap)
    else:
        s.computing_ns[step] = s.n[_NOW]
        _push(heap, s, s.n[_NOW] + j.gap_ns[step], _TAKE, rank, 0)


@compiled
def _begin_together(j: Job, s: _State, heap: Array) -> None:
    if s.n[_AT_BEGIN] < s.n[_UNFINISHED]:
        return
    for rank in range(len(s.position)):
        if s.at_begin[rank]:
            s.at_begin[rank] = False
            _push(heap, s, s.n[_NOW] + j.gap_ns[s.position[rank]], _TAKE, rank, 0)
    s.n[_AT_BEGIN] = 0


@compiled
def _resume(j: Job, s: _State, heap: Array, rank: int) -> None:
    s.waits_for[rank] = -1
    resume_ns = j.resume_ns[s.position[rank]]
    _advance_program(j, s, rank)
    _push(heap, s, s.n[_NOW] + resume_ns, _GO_ON, rank, 0)


@compiled
def _advance_program(j: Job, s: _State, rank: int) -> None:
    s.position[rank] += 1
    if s.position[rank] == j.first[rank + 1]:
        s.n[_UNFINISHED] -= 1


@compiled
def _take(j: Job, s: _State, heap: Array, rank: int, optical: bool) -> None:
    """The next step of a program happens now."""
    step, now_ns = s.position[rank], s.n[_NOW]
    does = j.does[step]
    if does == WAIT:
        target = j.target[step]
        s.waits_for[rank] = target if target >= 0 else -2
        if target >= 0 and s.ended[target]:
            _resume(j, s, heap, rank)
        return
    _advance_program(j, s, rank)
    if does == ISSUE:
        if optical and j.sends[step] and j.wanted[j.configuration[j.channel[j.operation[step]]]]:
            _append(s.unsent, s.unsent_last, s.next_unsent, s.last_unsent, rank, step)
        before = j.before[step]
        if before < 0 or s.ended[before]:
            _push(heap, s, now_ns + j.pickup_ns[step], _ARRIVE, step, 0)
    else:
        row = s.results[j.row[step]]
        if row[R_BEGIN] < 0:
            row[R_BEGIN] = row[R_END] = now_ns
        if does == END:
            row[R_END] = now_ns
    _go_on(j, s, heap, rank)
    if s.position[rank] == j.first[rank + 1]:
        _begin_together(j, s, heap)


@compiled
def run(
    j: Job,
    active: Array,
    optical: bool,
    provisioned: bool,
    latency_ns: int,
    patience_ns: int,
    impatient_ns: int,
    log_size: int,
) -> Outcome:
    """Carry out the programs; ``active`` are the circuits that are lit at the start.

    The log has room for ``log_size`` entries; a counter says how many there were.
    """
    steps, ranks = len(j.rank), len(j.first) - 1
    operations, channels = len(j.channel), len(j.configuration)
    configurations, circuits, ports = len(j.wanted), len(j.rail), j.port_count
    nodes, watchers = j.node[channels], channels + configurations
    n = np.zeros(_COUNTERS, np.int64)
    none = np.int32(-1)
    results = np.zeros((j.rows, 7), np.int64)
    results[:, R_BEGIN] = -1
    s = _State(
        n,
        np.zeros((log_size, 3), np.int64),
        results,
        np.full(steps, -1, np.int64),
        np.full(steps, -1, np.int64),
        np.full(steps, -1, np.int64),
        # Ranks.
        j.first[:ranks].copy(),
        np.zeros(ranks, np.bool_),
        np.full(ranks, none),
        j.first[:ranks].copy(),
        np.zeros(ranks, np.int32),
        np.full(ranks, none),
        np.full(ranks, none),
        np.full(ranks, none),
        np.full(ranks, none),
        np.full(ranks, none),
        np.full(ranks, none),
        np.full(ranks, none),
        np.full(ranks, none),
        np.zeros(ranks, np.bool_),
        # Steps.
        np.zeros(steps, np.bool_),
        np.zeros(steps, np.bool_),
        np.zeros(steps, np.int64),
        np.zeros(steps, np.bool_),
        np.full(steps, none),
        np.full(steps, none),
        np.full(steps, none),
        np.full(steps, none),
        np.full(steps, none),
        np.full(steps, none),
        np.full(steps, none),
        np.full(steps, none),
        # Slots.
        np.zeros(j.slots, np.int32),
        np.full(j.slots, patience_ns),
        # Operations.
        np.zeros(operations, np.int32),
        np.full(operations, none),
        np.full(operations, none),
        np.zeros(operations, np.int32),
        np.zeros(operations, np.int32),
        np.full(operations, np.int64(-1)),
        np.full(channels + 1, none),
        # Channels.
        np.full(channels, none),
        np.zeros(channels, np.int64),
        # Configurations.
        np.zeros(configurations, np.int32),
        np.zeros(configurations, np.int32),
        np.full(configurations, np.int64(-1)),
        np.zeros(configurations, np.int32),
        # Circuits.
        np.zeros(circuits, np.bool_),
        np.zeros(circuits, np.int32),
        np.full(circuits, none),
        np.full(circuits, none),
        # Ports.
        np.full(ports, none),
        np.full(ports, none),
        np.full(ports, none),
        np.full(ports, none),
        np.full(ports, none),
        # Nodes.
        np.full(nodes, none),
        np.full(nodes, none),
        # Watchers.
        np.full(watchers, none),
        np.full(watchers, none),
        np.full(watchers, none),
        np.zeros(watchers, np.bool_),
        np.zeros((channels + 1, 2), np.int64),
        np.zeros((configurations + 1, 2), np.int64),
    )
    for circuit in active:
        s.lit[circuit] = True
        for at in range(j.ends[circuit], j.ends[circuit + 1]):
            s.active[j.end[at]] = circuit
    # An event adds no more than one for each lane, rank and rail, and as many again
    # where collectives wait behind messages.
    most = 2 * (j.slots + ranks + circuits + channels) + 16
    heap = np.zeros((4 * most, 5), np.int64)
    event = np.zeros(5, np.int64)
    for rank in range(ranks):
        n[_UNFINISHED] += j.first[rank + 1] > j.first[rank]
    for rank in range(ranks):
        _go_on(j, s, heap, rank)
    while n[_HEAP] > 0:
        if n[_HEAP] + most > len(heap):
            heap = np.concatenate((heap, np.zeros_like(heap)))
        _pop(heap, s, event)
        n[_EVENTS] += 1
        n[_NOW] = event[0]
        kind, a, b = event[2], event[3], event[4]
        if kind == _TAKE:
            _take(j, s, heap, a, optical)
        elif kind == _GO_ON:
            _go_on(j, s, heap, a)
        elif kind == _ARRIVE:
            _arrive(j, s, heap, a, optical, latency_ns)
        elif kind == _ENDED:
            _end(j, s, heap, a, optical, provisioned, latency_ns)
        elif kind == _SWITCHED:
            _come_up(j, s, heap, a, latency_ns)
        elif s.other[a] == b:
            rank, slot = j.rank[a], j.slot[a]
            s.other[a] = -1
            _unlink(s.behind, s.behind_last, s.next_behind, s.last_behind, rank, a)
            if kind == _IMPATIENT:
                limit_ns = s.patience_ns[slot]
                s.patience_ns[slot] = limit_ns // 2 if limit_ns > impatient_ns else 0
                _ask(j, s, heap, a, latency_ns)
            else:
                s.patience_ns[slot] = patience_ns
                _ask_in_turn(j, s, heap, a, latency_ns)
    return Outcome(
        results, s.started_ns, s.ended_ns, s.computing_ns, s.log, n, s.position
    )


@compiled
def account(j: Job, out: Outcome, found: Array) -> None:
    """For each row of results: time computed, communicated, and both at once.

    Operations of one rank may overlap; its computation does not.
    """
    ranks = len(j.first) - 1
    for rank in range(ranks):
        step = j.first[rank]
        while step < j.first[rank + 1]:
            row, stop = j.row[step], step
            while stop < j.first[rank + 1] and j.row[stop] == row:
                stop += 1
            begin_ns, end_ns = out.results[row, R_BEGIN], out.results[row, R_END]
            count = 0
            for at in range(step, stop):
                count += out.started_ns[at] >= 0
            starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
            for at in range(step, stop):
                if out.started_ns[at] >= 0:
                    starts[count] = min(max(out.started_ns[at], begin_ns), end_ns)
                    ends[count] = min(max(out.ended_ns[at], begin_ns), end_ns)
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
                since_ns = out.computing_ns[at]
                if since_ns < 0 or j.gap_ns[at] == 0:
                    continue
                a = min(max(since_ns, begin_ns), end_ns)
                b = min(max(since_ns + j.gap_ns[at], begin_ns), end_ns)
                found[row, 0] += b - a
                while place < spanned and spans[place, 1] <= a:
                    place += 1
                here = place
                while here < spanned and spans[here, 0] < b:
                    found[row, 2] += max(0, min(b, spans[here, 1]) - max(a, spans[here, 0]))
                    here += 1
            step = stop
