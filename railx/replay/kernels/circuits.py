"""Heaps and lists in arrays; ports and circuits; operations, hints and the queue."""

from __future__ import annotations

from railx.replay.kernels import state
from railx.replay.kernels.compiling import called
from railx.replay.kernels.state import Array, EngineState

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"


@called
def push(heap: Array, s: EngineState, after_ns: int, kind: int, a: int, b: int) -> None:
    """Add an event; of those of one moment the first added is the first."""
    n = s.n
    time_ns = n[state.NOW] + after_ns
    position = n[state.HEAP]
    n[state.HEAP] += 1
    order = n[state.PUSHED]
    n[state.PUSHED] += 1
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
    n[state.HEAP] -= 1
    size = n[state.HEAP]
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


@called
def watch(s: EngineState, watcher: int, port: int) -> None:
    """A channel or a configuration waits for a change at a port."""
    s.watchers[watcher].watches = port
    s.watchers[watcher].before, s.watchers[watcher].following = -1, s.ports[port].watched
    if s.ports[port].watched >= 0:
        s.watchers[s.ports[port].watched].before = watcher
    s.ports[port].watched = watcher


@called
def unwatch(s: EngineState, watcher: int) -> None:
    """It waits for none any more."""
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
def look_at(s: EngineState, watcher: int) -> None:
    """An operation or a configuration is looked at again in this event."""
    unwatch(s, watcher)
    if s.watchers[watcher].looked_at:
        return
    channels = len(s.channels)
    if watcher < channels:
        if s.channels[watcher].queued >= 0:
            s.watchers[watcher].looked_at = True
            put(s.looked_at, s.n, state.OPERATIONS, s.channels[watcher].order, watcher)
    elif s.configurations[watcher - channels].turn >= 0:
        s.watchers[watcher].looked_at = True
        put(
            s.hinted,
            s.n,
            state.HINTED,
            s.configurations[watcher - channels].turn,
            watcher - channels,
        )


@called
def touch(s: EngineState, port: int) -> None:
    """Something has changed at a port.

    Where leases last, a hint does not only wait for its ports: it may recall a lease
    as soon as one of its holders is through with it. So all hints here are looked at.
    """
    while s.ports[port].watched >= 0:
        look_at(s, s.ports[port].watched)
    if s.n[state.LEASES_LAST]:
        for user in s.items[s.ports[port].users : s.ports[port].users_stop]:
            if s.configurations[user].turn >= 0:
                look_at(s, len(s.channels) + user)


@called
def touch_all(s: EngineState, first: int, stop: int) -> None:
    """Something has changed at these ports, which are items."""
    for port in s.items[first:stop]:
        touch(s, port)


@called
def find_starting(s: EngineState, configuration: int) -> int:
    """Note the circuits that are neither up nor coming up; -1 where all are up."""
    count, missing = 0, False
    needs = s.configurations[configuration]
    for circuit in s.items[needs.circuits : needs.circuits_stop]:
        if not s.circuits[circuit].lit:
            missing = True
            if s.ports[s.items[s.circuits[circuit].ends]].moving != circuit:
                s.starting[count] = circuit
                count += 1
    return count if missing else -1


@called
def in_the_way(s: EngineState, count: int) -> int:
    """A port that keeps the noted circuits from coming up, -1 where none does."""
    for circuit in s.starting[:count]:
        for port in s.items[s.circuits[circuit].ends : s.circuits[circuit].ends_stop]:
            if s.ports[port].moving >= 0 or (
                s.ports[port].active >= 0 and s.circuits[s.ports[port].active].leases > 0
            ):
                return port
    return -1


@called
def queue_in_the_way(s: EngineState, count: int) -> int:
    """A port of the noted circuits for which an operation waits, -1 for none."""
    for circuit in s.starting[:count]:
        for port in s.items[s.circuits[circuit].ends : s.circuits[circuit].ends_stop]:
            if s.queue[port, 0] >= 0:
                return port
    return -1


@called
def lease(s: EngineState, configuration: int, change: int) -> None:
    """The circuits of a configuration are in use once more, or once less."""
    needs = s.configurations[configuration]
    for circuit in s.items[needs.circuits : needs.circuits_stop]:
        s.circuits[circuit].leases += change


@called
def note(s: EngineState, decision: int, what: int) -> None:
    """Add to the log where there is room, and count it in any case."""
    index = s.n[state.LOGGED]
    s.n[state.LOGGED] += 1
    if index < len(s.log):
        s.log[index, 0], s.log[index, 1], s.log[index, 2] = s.n[state.NOW], decision, what


@called
def switch(s: EngineState, heap: Array, count: int) -> int:
    """One command for each rail of the noted circuits; returns how many."""
    commands, index = 0, 0
    while index < count:
        rail = s.circuits[s.starting[index]].rail
        stop = index
        while stop < count and s.circuits[s.starting[stop]].rail == rail:
            stop += 1
        for circuit in s.starting[index:stop]:
            for port in s.items[s.circuits[circuit].ends : s.circuits[circuit].ends_stop]:
                old = s.ports[port].active
                if old < 0:
                    continue
                s.circuits[old].lit = False
                for its in s.items[s.circuits[old].ends : s.circuits[old].ends_stop]:
                    s.ports[its].active = -1
                for user in s.items[s.circuits[old].users : s.circuits[old].users_stop]:
                    s.configurations[user].ahead = 0
        note(s, state.LOG_SWITCH, rail)
        for at in range(index, stop):
            circuit = s.starting[at]
            note(s, state.LOG_CIRCUIT, circuit)
            s.circuits[circuit].following = s.starting[at + 1] if at + 1 < stop else -1
            for port in s.items[s.circuits[circuit].ends : s.circuits[circuit].ends_stop]:
                s.ports[port].moving = circuit
        # A hint may have waited for who has now the switch at work for both.
        for circuit in s.starting[index:stop]:
            touch_all(s, s.circuits[circuit].ends, s.circuits[circuit].ends_stop)
        push(heap, s, s.n[state.LATENCY_NS], state.SWITCHED, s.starting[index], 0)
        commands += 1
        index = stop
    s.n[state.COMMANDS] += commands
    return commands


@called
def come_up(s: EngineState, circuit: int) -> None:
    """A switch has carried out the command that begins with ``circuit``."""
    following = circuit
    while following >= 0:
        s.circuits[following].lit = True
        for port in s.items[s.circuits[following].ends : s.circuits[following].ends_stop]:
            s.ports[port].moving, s.ports[port].active = -1, following
        following = s.circuits[following].following
    following = circuit
    while following >= 0:
        touch_all(s, s.circuits[following].ends, s.circuits[following].ends_stop)
        following = s.circuits[following].following


@called
def conflict(s: EngineState, first: int, second: int) -> bool:
    """Whether two configurations cannot be up together."""
    one, other = s.configurations[first], s.configurations[second]
    for a in s.items[one.circuits : one.circuits_stop]:
        for b in s.items[other.circuits : other.circuits_stop]:
            if a == b:
                continue
            for x in s.items[s.circuits[a].ends : s.circuits[a].ends_stop]:
                for y in s.items[s.circuits[b].ends : s.circuits[b].ends_stop]:
                    if x == y:
                        return True
    return False


@called
def configuration_of(s: EngineState, operation: int) -> int:
    """What an operation needs."""
    return s.channels[s.operations[operation].channel].configuration


@called
def members_of(s: EngineState, configuration: int) -> int:
    """How many ranks take part."""
    return s.configurations[configuration].members_stop - s.configurations[configuration].members


@called
def number_of(s: EngineState, operation: int) -> int:
    """The operation's number on its channel."""
    return operation - s.channels[s.operations[operation].channel].operations


@called
def expect(s: EngineState, slot: int, change: int) -> None:
    """A rank expects a configuration for one reason more, or less.

    It is ready for a hint once all members expect it and a hint was not served yet.
    """
    configuration = s.slots[slot].configuration
    s.slots[slot].expecting += change
    if change > 0:
        s.configurations[configuration].expected += s.slots[slot].expecting == 1
    else:
        s.configurations[configuration].expected -= s.slots[slot].expecting == 0
    if s.configurations[configuration].unserved > 0 and s.configurations[
        configuration
    ].expected == members_of(s, configuration):
        if s.configurations[configuration].turn < 0:
            s.configurations[configuration].turn = s.n[state.READY]
            s.n[state.READY] += 1
        look_at(s, len(s.channels) + configuration)
    else:
        s.configurations[configuration].turn = -1


@called
def drop_hint(s: EngineState, rank: int) -> int:
    """A rank's hint is over; returns the configuration, -1 where there was none."""
    slot = s.ranks[rank].hint
    if slot < 0:
        return -1
    configuration = s.slots[slot].configuration
    s.ranks[rank].hint = -1
    if not s.ranks[rank].hint_served:
        s.configurations[configuration].unserved -= 1
    expect(s, slot, -1)
    return configuration


@called
def track(s: EngineState, operation: int) -> None:
    """The controller hears of an operation."""
    if s.operations[operation].tracked:
        return
    s.operations[operation].tracked = True
    s.operations[operation].granted = False
    s.operations[operation].asked, s.operations[operation].released = 0, 0
    s.operations[operation].first_asked, s.operations[operation].last_asked = -1, -1
    s.operations[operation].commands = 0
    s.operations[operation].stall_since_ns = -1
    append(s.tracked, s.operation_links, configuration_of(s, operation), operation)


@called
def stand(s: EngineState, step: int, late: bool) -> None:
    """A member stands before an operation; ``late``: it began without a question."""
    operation, slot = s.steps[step].operation, s.steps[step].slot
    s.steps[step].stands, s.steps[step].late, s.steps[step].released = True, late, False
    s.steps[step].asked_ns = s.n[state.NOW]
    s.steps[step].next_asked = -1
    if s.operations[operation].asked == 0:
        s.operations[operation].first_asked = step
    else:
        s.steps[s.operations[operation].last_asked].next_asked = step
    s.operations[operation].last_asked = step
    s.operations[operation].asked += 1
    if not late:
        s.slots[slot].standing += 1
    expect(s, slot, 1)


@called
def enqueue(s: EngineState, operation: int) -> None:
    """All may have asked: then the operation takes its place in the queue."""
    channel, configuration = s.operations[operation].channel, configuration_of(s, operation)
    if s.channels[channel].queued == operation:
        return
    if s.operations[operation].asked < members_of(s, configuration):
        return
    s.channels[channel].queued = operation
    s.channels[channel].order = s.n[state.QUEUED]
    s.n[state.QUEUED] += 1
    needs, node = s.configurations[configuration], s.channels[channel].node
    for place, port in enumerate(s.items[needs.ports : needs.ports_stop]):
        append(s.queue, s.node_links, port, node + place)
    look_at(s, channel)


@called
def stands_no_more(s: EngineState, operation: int) -> None:
    """An operation is granted, or forgotten before: it leaves the queue."""
    step = s.operations[operation].first_asked
    while step >= 0:
        if not s.steps[step].late:
            s.slots[s.steps[step].slot].standing -= 1
        expect(s, s.steps[step].slot, -1)
        step = s.steps[step].next_asked
    channel, configuration = s.operations[operation].channel, configuration_of(s, operation)
    if s.channels[channel].queued != operation:
        return
    s.channels[channel].queued = -1
    needs, node = s.configurations[configuration], s.channels[channel].node
    for place, port in enumerate(s.items[needs.ports : needs.ports_stop]):
        unlink(s.queue, s.node_links, port, node + place)
    touch_all(s, needs.ports, needs.ports_stop)


@called
def forget(s: EngineState, operation: int) -> None:
    """The controller is through with an operation."""
    if not s.operations[operation].granted:
        stands_no_more(s, operation)
    step = s.operations[operation].first_asked
    while step >= 0:
        s.steps[step].stands = False
        step = s.steps[step].next_asked
    s.operations[operation].tracked = False
    unlink(s.tracked, s.operation_links, configuration_of(s, operation), operation)


@called
def end_when_released(s: EngineState, operation: int) -> None:
    """All may have ended their part of a granted operation: its leases end."""
    if s.operations[operation].released < s.operations[operation].asked:
        return
    forget(s, operation)
    configuration = configuration_of(s, operation)
    lease(s, configuration, -1)
    needs = s.configurations[configuration]
    for circuit in s.items[needs.circuits : needs.circuits_stop]:
        if s.circuits[circuit].leases == 0:
            touch_all(s, s.circuits[circuit].ends, s.circuits[circuit].ends_stop)
