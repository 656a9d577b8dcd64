"""What the controller knows of operations and hints, and the queue."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from railx.replay.kernels.circuits import lease, look_at, touch, touch_all
from railx.replay.kernels.compiling import called
from railx.replay.kernels.containers import append, unlink
from railx.replay.kernels.state import NOW, QUEUED, READY, EngineState

__all__ = [
    "configuration_of",
    "drop_hint",
    "end_when_released",
    "enqueue",
    "expect",
    "forget",
    "members_of",
    "number_of",
    "stand",
    "stands_no_more",
    "track",
]


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
            s.configurations[configuration].turn = s.n[READY]
            s.n[READY] += 1
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
    s.steps[step].asked_ns = s.n[NOW]
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
    s.channels[channel].order = s.n[QUEUED]
    s.n[QUEUED] += 1
    first = s.configurations[configuration].ports
    for index in range(first, s.configurations[configuration].ports_stop):
        append(s.queue, s.node_links, s.items[index], s.channels[channel].node + index - first)
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
    first = s.configurations[configuration].ports
    for index in range(first, s.configurations[configuration].ports_stop):
        unlink(s.queue, s.node_links, s.items[index], s.channels[channel].node + index - first)
    touch_all(s, configuration)


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
    for index in range(needs.circuits, needs.circuits_stop):
        circuit = s.items[index]
        if s.circuits[circuit].leases == 0:
            for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
                touch(s, s.items[at])
