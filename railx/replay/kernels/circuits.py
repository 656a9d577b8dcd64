"""Ports and circuits: who watches them, what is in the way, what a switch is told."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from railx.replay.kernels.compiling import called
from railx.replay.kernels.containers import push, put
from railx.replay.kernels.state import (
    COMMANDS,
    HINTED,
    LATENCY_NS,
    LEASES_LAST,
    LOG_CIRCUIT,
    LOG_SWITCH,
    LOGGED,
    NOW,
    OPERATIONS,
    SWITCHED,
    Array,
    EngineState,
)

__all__ = [
    "come_up",
    "conflict",
    "find_starting",
    "in_the_way",
    "lease",
    "look_at",
    "note",
    "queue_in_the_way",
    "switch",
    "touch",
    "touch_all",
    "watch",
]


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
            put(s.looked_at, s.n, OPERATIONS, s.channels[watcher].order, watcher)
    elif s.configurations[watcher - channels].turn >= 0:
        s.watchers[watcher].looked_at = True
        put(s.hinted, s.n, HINTED, s.configurations[watcher - channels].turn, watcher - channels)


@called
def touch(s: EngineState, port: int) -> None:
    """Something has changed at a port.

    Where leases last, a hint does not only wait for its ports: it may recall a lease
    as soon as one of its holders is through with it. So all hints here are looked at.
    """
    while s.ports[port].watched >= 0:
        look_at(s, s.ports[port].watched)
    if s.n[LEASES_LAST]:
        for index in range(s.ports[port].users, s.ports[port].users_stop):
            if s.configurations[s.items[index]].turn >= 0:
                look_at(s, len(s.channels) + s.items[index])


@called
def touch_all(s: EngineState, configuration: int) -> None:
    """Something has changed at all ports of a configuration."""
    needs = s.configurations[configuration]
    for index in range(needs.ports, needs.ports_stop):
        touch(s, s.items[index])


@called
def find_starting(s: EngineState, configuration: int) -> int:
    """Note the circuits that are neither up nor coming up; -1 where all are up."""
    count, missing = 0, False
    needs = s.configurations[configuration]
    for index in range(needs.circuits, needs.circuits_stop):
        circuit = s.items[index]
        if not s.circuits[circuit].lit:
            missing = True
            if s.ports[s.items[s.circuits[circuit].ends]].moving != circuit:
                s.starting[count] = circuit
                count += 1
    return count if missing else -1


@called
def in_the_way(s: EngineState, count: int) -> int:
    """A port that keeps the noted circuits from coming up, -1 where none does."""
    for index in range(count):
        circuit = s.starting[index]
        for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
            port = s.items[at]
            if s.ports[port].moving >= 0 or (
                s.ports[port].active >= 0 and s.circuits[s.ports[port].active].leases > 0
            ):
                return port
    return -1


@called
def queue_in_the_way(s: EngineState, count: int) -> int:
    """A port of the noted circuits for which an operation waits, -1 for none."""
    for index in range(count):
        circuit = s.starting[index]
        for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
            if s.queue[s.items[at], 0] >= 0:
                return s.items[at]
    return -1


@called
def lease(s: EngineState, configuration: int, change: int) -> None:
    """The circuits of a configuration are in use once more, or once less."""
    needs = s.configurations[configuration]
    for index in range(needs.circuits, needs.circuits_stop):
        s.circuits[s.items[index]].leases += change


@called
def note(s: EngineState, decision: int, what: int) -> None:
    """Add to the log where there is room, and count it in any case."""
    index = s.n[LOGGED]
    s.n[LOGGED] += 1
    if index < len(s.log):
        s.log[index, 0], s.log[index, 1], s.log[index, 2] = s.n[NOW], decision, what


@called
def switch(s: EngineState, heap: Array, count: int) -> int:
    """One command for each rail of the noted circuits; returns how many."""
    commands, index = 0, 0
    while index < count:
        rail = s.circuits[s.starting[index]].rail
        stop = index
        while stop < count and s.circuits[s.starting[stop]].rail == rail:
            stop += 1
        for at in range(index, stop):
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
        note(s, LOG_SWITCH, rail)
        for at in range(index, stop):
            circuit = s.starting[at]
            note(s, LOG_CIRCUIT, circuit)
            s.circuits[circuit].following = s.starting[at + 1] if at + 1 < stop else -1
            for mine in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
                s.ports[s.items[mine]].moving = circuit
        # A hint may have waited for who has now the switch at work for both.
        for at in range(index, stop):
            circuit = s.starting[at]
            for mine in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
                touch(s, s.items[mine])
        push(heap, s, s.n[LATENCY_NS], SWITCHED, s.starting[index], 0)
        commands += 1
        index = stop
    s.n[COMMANDS] += commands
    return commands


@called
def come_up(s: EngineState, circuit: int) -> None:
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
            touch(s, s.items[at])
        following = s.circuits[following].following


@called
def conflict(s: EngineState, first: int, second: int) -> bool:
    """Whether two configurations cannot be up together."""
    for a in range(s.configurations[first].circuits, s.configurations[first].circuits_stop):
        for b in range(s.configurations[second].circuits, s.configurations[second].circuits_stop):
            if s.items[a] == s.items[b]:
                continue
            for x in range(s.circuits[s.items[a]].ends, s.circuits[s.items[a]].ends_stop):
                for y in range(s.circuits[s.items[b]].ends, s.circuits[s.items[b]].ends_stop):
                    if s.items[x] == s.items[y]:
                        return True
    return False
