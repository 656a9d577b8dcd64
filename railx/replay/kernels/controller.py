"""The controller: what it makes of a message, grants, switches, leases that last."""

from __future__ import annotations

from railx.replay.kernels import circuits, state
from railx.replay.kernels.compiling import called
from railx.replay.kernels.state import Array, EngineState

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"


@called
def tell(s: EngineState) -> int:
    """The place of an action more among those that ranks have not been told yet."""
    n = s.n
    slot = n[state.LAST_ACTION] % len(s.actions)
    if n[state.LAST_ACTION] - n[state.FIRST_ACTION] == len(s.actions):
        # Carried out again with more room.
        n[state.OVERFLOWED] = 1
    else:
        n[state.LAST_ACTION] += 1
    return slot


@called
def keep(s: EngineState, operation: int) -> int:
    """Begin a lease that lasts with a grant; its number, -1 where there may be none.

    Not where others wait for its ports already.
    """
    configuration = circuits.configuration_of(s, operation)
    if not s.n[state.LEASES_LAST] or s.configurations[configuration].hold >= 0:
        return -1
    needs = s.configurations[configuration]
    for port in s.items[needs.ports : needs.ports_stop]:
        node = s.queue[port, 0]
        while node >= 0:
            if s.channels[s.node_channels[node]].configuration != configuration:
                return -1
            node = s.node_links[node, 0]
    number = s.n[state.HOLDS]
    s.n[state.HOLDS] += 1
    s.configurations[configuration].hold = number
    s.configurations[configuration].holders = circuits.members_of(s, configuration)
    s.configurations[configuration].recalled = False
    for slot in s.items[needs.slots : needs.slots_stop]:
        s.slots[slot].holder = True
    circuits.lease(s, configuration, 1)
    return number


@called
def recall(s: EngineState, configuration: int) -> None:
    """Ask those who still hold a lease to give it back, once."""
    if s.configurations[configuration].hold < 0 or s.configurations[configuration].recalled:
        return
    s.configurations[configuration].recalled = True
    needs = s.configurations[configuration]
    for slot in s.items[needs.slots : needs.slots_stop]:
        if s.slots[slot].holder:
            action = s.actions[tell(s)]
            action.kind, action.subject = state.RECALL, slot
            action.hold = s.configurations[configuration].hold


@called
def is_through(s: EngineState, configuration: int, expected: int) -> bool:
    """Whether a holder of a lease has asked for what is expected, and waits for it."""
    needs = s.configurations[configuration]
    for holder in s.items[needs.slots : needs.slots_stop]:
        if s.slots[holder].holder:
            rank = s.slots[holder].rank
            for slot in range(s.ranks[rank].slots, s.ranks[rank].slots_stop):
                if s.slots[slot].configuration == expected and s.slots[slot].standing > 0:
                    return True
    return False


@called
def recall_in_the_way(s: EngineState, configuration: int, ahead: bool) -> None:
    """Recall the leases that keep the circuits of a configuration from coming up.

    ``ahead``: nobody waits for it yet. Then only those with which a member is through.
    """
    needs = s.configurations[configuration]
    for circuit in s.items[needs.wires : needs.wires_stop]:
        if s.circuits[circuit].lit or s.ports[s.items[s.circuits[circuit].ends]].moving == circuit:
            continue
        for port in s.items[s.circuits[circuit].ends : s.circuits[circuit].ends_stop]:
            here = s.ports[port].active
            if here < 0:
                continue
            for leased in s.items[s.circuits[here].users : s.circuits[here].users_stop]:
                if s.configurations[leased].hold < 0 or s.configurations[leased].recalled:
                    continue
                if (
                    not ahead
                    or s.configurations[leased].holders < circuits.members_of(s, leased)
                    or is_through(s, leased, configuration)
                ):
                    recall(s, leased)


@called
def hear_report(s: EngineState, slot: int, number: int) -> bool:
    """A rank has given back a lease; False where that is no news."""
    configuration = s.slots[slot].configuration
    if s.configurations[configuration].hold != number or not s.slots[slot].holder:
        return False
    s.slots[slot].holder = False
    s.configurations[configuration].holders -= 1
    if not s.configurations[configuration].recalled:
        # Hints may be waiting for the others to give it back too.
        needs = s.configurations[configuration]
        circuits.touch_all(s, needs.ports, needs.ports_stop)
    if s.configurations[configuration].holders == 0:
        settle(s, configuration)
    return True


@called
def settle(s: EngineState, configuration: int) -> None:
    """All have given a lease back: what they had begun is the controller's now."""
    number = s.configurations[configuration].hold
    s.configurations[configuration].hold = -1
    circuits.lease(s, configuration, -1)
    needs = s.configurations[configuration]
    for channel in s.items[needs.channels : needs.channels_stop]:
        take_over_channel(s, configuration, channel, number)
    circuits.touch_all(s, needs.ports, needs.ports_stop)


@called
def take_over_channel(s: EngineState, configuration: int, channel: int, number: int) -> None:
    """What members have begun on a channel, each of them up to its last operation."""
    used, lowest, highest = False, -1, -1
    for index in range(circuits.members_of(s, configuration)):
        lane = s.channels[channel].lanes + index
        last = s.lanes[lane].last
        if s.lanes[lane].begun_in == number:
            used, last = True, max(last, s.lanes[lane].begun)
        if s.lanes[lane].granted_in == number:
            used, last = True, max(last, s.lanes[lane].granted)
        lowest = last if index == 0 else min(lowest, last)
        highest = max(highest, last)
    if not used:
        return
    for index in range(circuits.members_of(s, configuration)):
        lane = s.channels[channel].lanes + index
        if s.lanes[lane].begun_in == number:
            s.lanes[lane].last = max(s.lanes[lane].last, s.lanes[lane].begun)
        if s.lanes[lane].granted_in == number:
            s.lanes[lane].last = max(s.lanes[lane].last, s.lanes[lane].granted)
    # Nobody is more than one operation ahead of its peers.
    for which in range(max(lowest, 0), highest + 1):
        take_over(s, configuration, channel, which, number)


@called
def is_open(s: EngineState, lane: int, step: int, which: int, number: int) -> bool:
    """Whether a member has not ended what it began on a lease.

    What was granted on it and is not in the report was still on its way.
    """
    if s.steps[step].released:
        return False
    if s.steps[step].open_in == number:
        return True
    crossed = s.lanes[lane].granted_in == number and s.lanes[lane].granted == which
    return crossed and not (s.lanes[lane].begun_in == number and s.lanes[lane].begun >= which)


@called
def take_over(s: EngineState, configuration: int, channel: int, which: int, number: int) -> None:
    """Make an operation of what members began on a lease that has ended.

    What all have begun is under way; what some have begun counts as asked for by them.
    """
    operation = s.channels[channel].operations + which
    tracked = s.operations[operation].tracked
    if tracked and s.operations[operation].granted:
        return
    members = circuits.members_of(s, configuration)
    begun, some_open = 0, False
    for index in range(members):
        lane = s.channels[channel].lanes + index
        if s.lanes[lane].last >= which:
            step = s.step_of[s.operations[operation].steps + index]
            some_open = some_open or is_open(s, lane, step, which, number)
            begun += not (tracked and s.steps[step].stands)
    if begun == members and not some_open:
        return
    circuits.track(s, operation)
    for index in range(members):
        lane = s.channels[channel].lanes + index
        if s.lanes[lane].last >= which:
            step = s.step_of[s.operations[operation].steps + index]
            if not s.steps[step].stands:
                goes_on = is_open(s, lane, step, which, number)
                circuits.stand(s, step, True)
                if not goes_on:
                    s.steps[step].released = True
                    s.operations[operation].released += 1
    if begun < members:
        circuits.enqueue(s, operation)
        return
    circuits.stands_no_more(s, operation)
    s.operations[operation].granted = True
    circuits.lease(s, configuration, 1)
    circuits.end_when_released(s, operation)


@called
def hear(s: EngineState, heap: Array, kind: int, a: int, b: int) -> None:
    """A message has arrived, or (any other kind) a switch has carried out a command."""
    if kind == state.QUESTION:
        if hear_question(s, a):
            advance(s, heap)
    elif kind == state.REPORT:
        if hear_report(s, a, b):
            advance(s, heap)
    else:
        if kind == state.RELEASE:
            # A rank has ended its part, maybe of a lease that not all have given back.
            operation = s.steps[a].operation
            s.steps[a].released = True
            if s.steps[a].stands:
                s.operations[operation].released += 1
                if s.operations[operation].granted:
                    circuits.end_when_released(s, operation)
        elif kind == state.HINT:
            # The rank of a slot says that its configuration comes next.
            rank = s.slots[a].rank
            circuits.drop_hint(s, rank)
            s.ranks[rank].hint, s.ranks[rank].hint_served = a, False
            s.configurations[s.slots[a].configuration].unserved += 1
            circuits.expect(s, a, 1)
        else:
            circuits.come_up(s, a)
        advance(s, heap)


@called
def hear_question(s: EngineState, step: int) -> bool:
    """A rank stands before an operation; False where nobody else is concerned."""
    rank, operation, slot = s.steps[step].rank, s.steps[step].operation, s.steps[step].slot
    configuration, lane = circuits.configuration_of(s, operation), s.steps[step].lane
    s.lanes[lane].last = circuits.number_of(s, operation)
    hinted = circuits.drop_hint(s, rank)
    mispredicted = hinted >= 0 and hinted != configuration
    if s.slots[slot].holder and not s.configurations[configuration].recalled:
        # The question has crossed the grant of the lease that the rank holds.
        hold = s.configurations[configuration].hold
        tell_grant(s, step, hold, 0, 0, 0, mispredicted, False)
        s.lanes[lane].granted, s.lanes[lane].granted_in = circuits.number_of(s, operation), hold
        return False
    circuits.track(s, operation)
    s.steps[step].mispredicted = mispredicted
    circuits.stand(s, step, False)
    circuits.enqueue(s, operation)
    # Those who still hold the lease may have begun it without asking.
    recall(s, configuration)
    return True


@called
def advance(s: EngineState, heap: Array) -> None:
    """Grant and switch what the event has made possible."""
    n, channels = s.n, len(s.channels)
    while n[state.OPERATIONS] > 0:
        order = s.looked_at[0].key
        channel = circuits.take_first(s.looked_at, n, state.OPERATIONS)
        if s.channels[channel].queued >= 0 and s.channels[channel].order != order:
            circuits.put(s.looked_at, n, state.OPERATIONS, s.channels[channel].order, channel)
            continue
        s.watchers[channel].looked_at = False
        if s.channels[channel].queued >= 0:
            serve(s, heap, channel)
    while n[state.HINTED] > 0:
        turn = s.hinted[0].key
        configuration = circuits.take_first(s.hinted, n, state.HINTED)
        ready = s.configurations[configuration].turn
        if ready >= 0 and ready != turn:
            # It was not ready in between, and has its turn later.
            circuits.put(s.hinted, n, state.HINTED, ready, configuration)
            continue
        s.watchers[channels + configuration].looked_at = False
        if ready >= 0:
            serve_hint(s, heap, configuration)


@called
def serve(s: EngineState, heap: Array, channel: int) -> None:
    """Grant a queued operation, switch for it, or find out what it waits for."""
    configuration, operation = s.channels[channel].configuration, s.channels[channel].queued
    needs, node = s.configurations[configuration], s.channels[channel].node
    for place, port in enumerate(s.items[needs.ports : needs.ports_stop]):
        if s.queue[port, 0] != node + place:
            circuits.watch(s, channel, port)
            return
    count = circuits.find_starting(s, configuration)
    if count < 0:
        grant(s, channel)
        return
    port = circuits.in_the_way(s, count)
    if port >= 0:
        recall_in_the_way(s, configuration, False)
        circuits.watch(s, channel, port)
        return
    if s.operations[operation].stall_since_ns < 0:
        s.operations[operation].stall_since_ns = s.n[state.NOW]
    s.operations[operation].commands += circuits.switch(s, heap, count)
    for circuit in s.items[needs.circuits : needs.circuits_stop]:
        if not s.circuits[circuit].lit:
            circuits.watch(s, channel, s.items[s.circuits[circuit].ends])
            return


@called
def serve_hint(s: EngineState, heap: Array, configuration: int) -> None:
    """Switch for a hint that all members share, where nobody waits for the ports."""
    watcher = len(s.channels) + configuration
    count = max(circuits.find_starting(s, configuration), 0)
    port = circuits.queue_in_the_way(s, count)
    if port >= 0:
        circuits.watch(s, watcher, port)
        return
    port = circuits.in_the_way(s, count)
    if port >= 0:
        recall_in_the_way(s, configuration, True)
        circuits.watch(s, watcher, port)
        return
    needs = s.configurations[configuration]
    for rank in s.items[needs.members : needs.members_stop]:
        hint = s.ranks[rank].hint
        if hint >= 0 and s.slots[hint].configuration == configuration:
            s.ranks[rank].hint_served = True
    s.configurations[configuration].unserved = 0
    s.configurations[configuration].turn = -1
    s.configurations[configuration].ahead += circuits.switch(s, heap, count)


@called
def grant(s: EngineState, channel: int) -> None:
    """All circuits of the operation that is queued are up: it may begin."""
    configuration, operation = s.channels[channel].configuration, s.channels[channel].queued
    s.operations[operation].commands += s.configurations[configuration].ahead
    s.configurations[configuration].ahead = 0
    circuits.stands_no_more(s, operation)
    s.operations[operation].granted = True
    hold = keep(s, operation)
    if hold < 0:
        circuits.lease(s, configuration, 1)
        grant_all(s, operation, -1)
        circuits.end_when_released(s, operation)
        return
    circuits.forget(s, operation)
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
            circuits.forget(s, other)
            grant_all(s, other, hold)
        other = following


@called
def grant_all(s: EngineState, operation: int, hold: int) -> None:
    """Tell all who asked; who has ended its part has to know what it holds."""
    stall_ns = 0
    if s.operations[operation].stall_since_ns >= 0:
        stall_ns = s.n[state.NOW] - s.operations[operation].stall_since_ns
    if s.n[state.MESSAGE_NS] == 0:
        circuits.note(s, state.LOG_GRANT, operation)
    step = s.operations[operation].first_asked
    while step >= 0:
        if hold >= 0 or not s.steps[step].released:
            tell_grant(
                s,
                step,
                hold,
                stall_ns,
                s.n[state.NOW] - s.steps[step].asked_ns - stall_ns,
                s.operations[operation].commands,
                s.steps[step].mispredicted != 0 and s.steps[step].late == 0,
                s.steps[step].late != 0,
            )
        if hold >= 0 and not s.steps[step].released:
            lane = s.steps[step].lane
            s.lanes[lane].granted, s.lanes[lane].granted_in = circuits.number_of(s, operation), hold
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
    action.kind, action.subject, action.hold = state.GRANT, step, hold
    action.stall_ns, action.wait_ns = stall_ns, wait_ns
    action.reconfigured, action.mispredicted, action.late = commands > 0, mispredicted, late
