"""The controller: what it makes of a message, and what it grants and switches then."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from railx.replay.kernels.circuits import (
    come_up,
    find_starting,
    in_the_way,
    lease,
    note,
    queue_in_the_way,
    switch,
    watch,
)
from railx.replay.kernels.compiling import called
from railx.replay.kernels.containers import put, take_first
from railx.replay.kernels.leases import hear_report, keep, recall, recall_in_the_way, tell
from railx.replay.kernels.requests import (
    configuration_of,
    drop_hint,
    end_when_released,
    enqueue,
    expect,
    forget,
    number_of,
    stand,
    stands_no_more,
    track,
)
from railx.replay.kernels.state import (
    GRANT,
    HINT,
    HINTED,
    LOG_GRANT,
    MESSAGE_NS,
    NOW,
    OPERATIONS,
    QUESTION,
    RELEASE,
    REPORT,
    Array,
    EngineState,
)

__all__ = ["advance", "hear"]


@called
def hear(s: EngineState, heap: Array, kind: int, a: int, b: int) -> None:
    """A message has arrived, or (any other kind) a switch has carried out a command."""
    if kind == QUESTION:
        if hear_question(s, a):
            advance(s, heap)
    elif kind == REPORT:
        if hear_report(s, a, b):
            advance(s, heap)
    else:
        if kind == RELEASE:
            hear_release(s, a)
        elif kind == HINT:
            hear_hint(s, a)
        else:
            come_up(s, a)
        advance(s, heap)


@called
def take_hint(s: EngineState, rank: int, configuration: int) -> bool:
    """A rank asks: its hint is over. Whether that was of something else."""
    hinted = drop_hint(s, rank)
    return hinted >= 0 and hinted != configuration


@called
def hear_question(s: EngineState, step: int) -> bool:
    """A rank stands before an operation; False where nobody else is concerned."""
    rank, operation, slot = s.steps[step].rank, s.steps[step].operation, s.steps[step].slot
    configuration, lane = configuration_of(s, operation), s.steps[step].lane
    s.lanes[lane].last = number_of(s, operation)
    mispredicted = take_hint(s, rank, configuration)
    if s.slots[slot].holder and not s.configurations[configuration].recalled:
        # The question has crossed the grant of the lease that the rank holds.
        hold = s.configurations[configuration].hold
        tell_grant(s, step, hold, 0, 0, 0, mispredicted, False)
        s.lanes[lane].granted, s.lanes[lane].granted_in = number_of(s, operation), hold
        return False
    track(s, operation)
    s.steps[step].mispredicted = mispredicted
    stand(s, step, False)
    enqueue(s, operation)
    # Those who still hold the lease may have begun it without asking.
    recall(s, configuration)
    return True


@called
def hear_release(s: EngineState, step: int) -> None:
    """A rank has ended its part, maybe of a lease that not all have given back."""
    operation = s.steps[step].operation
    s.steps[step].released = True
    if s.steps[step].stands:
        s.operations[operation].released += 1
        if s.operations[operation].granted:
            end_when_released(s, operation)


@called
def hear_hint(s: EngineState, slot: int) -> None:
    """The rank of a slot says that its configuration comes next."""
    rank, configuration = s.slots[slot].rank, s.slots[slot].configuration
    drop_hint(s, rank)
    s.ranks[rank].hint, s.ranks[rank].hint_served = slot, False
    s.configurations[configuration].unserved += 1
    expect(s, slot, 1)


@called
def advance(s: EngineState, heap: Array) -> None:
    """Grant and switch what the event has made possible."""
    n, channels = s.n, len(s.channels)
    while n[OPERATIONS] > 0:
        order = s.looked_at[0].key
        channel = take_first(s.looked_at, n, OPERATIONS)
        if s.channels[channel].queued >= 0 and s.channels[channel].order != order:
            put(s.looked_at, n, OPERATIONS, s.channels[channel].order, channel)
            continue
        s.watchers[channel].looked_at = False
        if s.channels[channel].queued >= 0:
            serve(s, heap, channel)
    while n[HINTED] > 0:
        turn = s.hinted[0].key
        configuration = take_first(s.hinted, n, HINTED)
        ready = s.configurations[configuration].turn
        if ready >= 0 and ready != turn:
            # It was not ready in between, and has its turn later.
            put(s.hinted, n, HINTED, ready, configuration)
            continue
        s.watchers[channels + configuration].looked_at = False
        if ready >= 0:
            serve_hint(s, heap, configuration)


@called
def serve(s: EngineState, heap: Array, channel: int) -> None:
    """Grant a queued operation, switch for it, or find out what it waits for."""
    configuration, operation = s.channels[channel].configuration, s.channels[channel].queued
    first = s.configurations[configuration].ports
    for index in range(first, s.configurations[configuration].ports_stop):
        if s.queue[s.items[index], 0] != s.channels[channel].node + index - first:
            watch(s, channel, s.items[index])
            return
    count = find_starting(s, configuration)
    if count < 0:
        grant(s, channel)
        return
    port = in_the_way(s, count)
    if port >= 0:
        recall_in_the_way(s, configuration, False)
        watch(s, channel, port)
        return
    if s.operations[operation].stall_since_ns < 0:
        s.operations[operation].stall_since_ns = s.n[NOW]
    s.operations[operation].commands += switch(s, heap, count)
    needs = s.configurations[configuration]
    for index in range(needs.circuits, needs.circuits_stop):
        circuit = s.items[index]
        if not s.circuits[circuit].lit:
            watch(s, channel, s.items[s.circuits[circuit].ends])
            return


@called
def serve_hint(s: EngineState, heap: Array, configuration: int) -> None:
    """Switch for a hint that all members share, where nobody waits for the ports."""
    watcher = len(s.channels) + configuration
    count = max(find_starting(s, configuration), 0)
    port = queue_in_the_way(s, count)
    if port >= 0:
        watch(s, watcher, port)
        return
    port = in_the_way(s, count)
    if port >= 0:
        recall_in_the_way(s, configuration, True)
        watch(s, watcher, port)
        return
    needs = s.configurations[configuration]
    for index in range(needs.members, needs.members_stop):
        rank = s.items[index]
        hint = s.ranks[rank].hint
        if hint >= 0 and s.slots[hint].configuration == configuration:
            s.ranks[rank].hint_served = True
    s.configurations[configuration].unserved = 0
    s.configurations[configuration].turn = -1
    s.configurations[configuration].ahead += switch(s, heap, count)


@called
def grant(s: EngineState, channel: int) -> None:
    """All circuits of the operation that is queued are up: it may begin."""
    configuration, operation = s.channels[channel].configuration, s.channels[channel].queued
    s.operations[operation].commands += s.configurations[configuration].ahead
    s.configurations[configuration].ahead = 0
    stands_no_more(s, operation)
    s.operations[operation].granted = True
    hold = keep(s, operation)
    if hold < 0:
        lease(s, configuration, 1)
        grant_all(s, operation, -1)
        end_when_released(s, operation)
        return
    forget(s, operation)
    grant_all(s, operation, hold)
    # Who asked for another operation on these circuits holds them now, and its peers
    # will not ask any more.
    other = s.tracked[configuration, 0]
    while other >= 0:
        following = s.operation_links[other, 0]
        if (
            not s.operations[other].granted
            and s.channels[s.operations[other].channel].queued != other
        ):
            forget(s, other)
            grant_all(s, other, hold)
        other = following


@called
def grant_all(s: EngineState, operation: int, hold: int) -> None:
    """Tell all who asked; who has ended its part has to know what it holds."""
    stall_ns = 0
    if s.operations[operation].stall_since_ns >= 0:
        stall_ns = s.n[NOW] - s.operations[operation].stall_since_ns
    if s.n[MESSAGE_NS] == 0:
        note(s, LOG_GRANT, operation)
    step = s.operations[operation].first_asked
    while step >= 0:
        if hold >= 0 or not s.steps[step].released:
            tell_grant(
                s,
                step,
                hold,
                stall_ns,
                s.n[NOW] - s.steps[step].asked_ns - stall_ns,
                s.operations[operation].commands,
                s.steps[step].mispredicted != 0 and s.steps[step].late == 0,
                s.steps[step].late != 0,
            )
        if hold >= 0 and not s.steps[step].released:
            lane = s.steps[step].lane
            s.lanes[lane].granted, s.lanes[lane].granted_in = number_of(s, operation), hold
        step = s.steps[step].next_asked


@called
def tell_grant(
    s: EngineState,
    step: int,
    hold: int,
    stall_ns: int,
    wait_ns: int,
    commands: int,
    mispredicted: bool,
    late: bool,
) -> None:
    """A rank will hear that its operation has its circuits."""
    action = s.actions[tell(s)]
    action.kind, action.subject, action.hold = GRANT, step, hold
    action.stall_ns, action.wait_ns = stall_ns, wait_ns
    action.reconfigured, action.mispredicted, action.late = commands > 0, mispredicted, late
