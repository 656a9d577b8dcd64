"""Leases that last: kept at a grant, recalled, and settled once all gave them back."""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from railx.replay.kernels.circuits import lease, touch_all
from railx.replay.kernels.compiling import called
from railx.replay.kernels.requests import (
    configuration_of,
    end_when_released,
    enqueue,
    members_of,
    stand,
    stands_no_more,
    track,
)
from railx.replay.kernels.state import (
    FIRST_ACTION,
    HOLDS,
    LAST_ACTION,
    LEASES_LAST,
    OVERFLOWED,
    RECALL,
    EngineState,
)

__all__ = ["hear_report", "keep", "recall", "recall_in_the_way", "tell"]


@called
def tell(s: EngineState) -> int:
    """The place of an action more among those that ranks have not been told yet."""
    n = s.n
    slot = n[LAST_ACTION] % len(s.actions)
    if n[LAST_ACTION] - n[FIRST_ACTION] == len(s.actions):
        # Carried out again with more room.
        n[OVERFLOWED] = 1
    else:
        n[LAST_ACTION] += 1
    return slot


@called
def keep(s: EngineState, operation: int) -> int:
    """Begin a lease that lasts with a grant; its number, -1 where there may be none.

    Not where others wait for its ports already.
    """
    configuration = configuration_of(s, operation)
    if not s.n[LEASES_LAST] or s.configurations[configuration].hold >= 0:
        return -1
    needs = s.configurations[configuration]
    for index in range(needs.ports, needs.ports_stop):
        node = s.queue[s.items[index], 0]
        while node >= 0:
            if s.channels[s.node_channels[node]].configuration != configuration:
                return -1
            node = s.node_links[node, 0]
    number = s.n[HOLDS]
    s.n[HOLDS] += 1
    s.configurations[configuration].hold = number
    s.configurations[configuration].holders = members_of(s, configuration)
    s.configurations[configuration].recalled = False
    needs = s.configurations[configuration]
    for index in range(needs.slots, needs.slots_stop):
        s.slots[s.items[index]].holder = True
    lease(s, configuration, 1)
    return number


@called
def recall(s: EngineState, configuration: int) -> None:
    """Ask those who still hold a lease to give it back, once."""
    if s.configurations[configuration].hold < 0 or s.configurations[configuration].recalled:
        return
    s.configurations[configuration].recalled = True
    needs = s.configurations[configuration]
    for index in range(needs.slots, needs.slots_stop):
        slot = s.items[index]
        if s.slots[slot].holder:
            action = s.actions[tell(s)]
            action.kind, action.subject = RECALL, slot
            action.hold = s.configurations[configuration].hold


@called
def is_through(s: EngineState, configuration: int, expected: int) -> bool:
    """Whether a holder of a lease has asked for what is expected, and waits for it."""
    needs = s.configurations[configuration]
    for index in range(needs.slots, needs.slots_stop):
        if s.slots[s.items[index]].holder:
            rank = s.slots[s.items[index]].rank
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
    for index in range(needs.wires, needs.wires_stop):
        circuit = s.items[index]
        if s.circuits[circuit].lit or s.ports[s.items[s.circuits[circuit].ends]].moving == circuit:
            continue
        for at in range(s.circuits[circuit].ends, s.circuits[circuit].ends_stop):
            here = s.ports[s.items[at]].active
            if here < 0:
                continue
            for its in range(s.circuits[here].users, s.circuits[here].users_stop):
                leased = s.items[its]
                if s.configurations[leased].hold < 0 or s.configurations[leased].recalled:
                    continue
                if (
                    not ahead
                    or s.configurations[leased].holders < members_of(s, leased)
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
        touch_all(s, configuration)
    if s.configurations[configuration].holders == 0:
        settle(s, configuration)
    return True


@called
def settle(s: EngineState, configuration: int) -> None:
    """All have given a lease back: what they had begun is the controller's now."""
    number = s.configurations[configuration].hold
    s.configurations[configuration].hold = -1
    lease(s, configuration, -1)
    needs = s.configurations[configuration]
    for index in range(needs.channels, needs.channels_stop):
        take_over_channel(s, configuration, s.items[index], number)
    touch_all(s, configuration)


@called
def take_over_channel(s: EngineState, configuration: int, channel: int, number: int) -> None:
    """What members have begun on a channel, each of them up to its last operation."""
    used, lowest, highest = False, -1, -1
    for index in range(members_of(s, configuration)):
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
    for index in range(members_of(s, configuration)):
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
    members = members_of(s, configuration)
    begun, some_open = 0, False
    for index in range(members):
        lane = s.channels[channel].lanes + index
        if s.lanes[lane].last >= which:
            step = s.step_of[s.operations[operation].steps + index]
            some_open = some_open or is_open(s, lane, step, which, number)
            begun += not (tracked and s.steps[step].stands)
    if begun == members and not some_open:
        return
    track(s, operation)
    for index in range(members):
        lane = s.channels[channel].lanes + index
        if s.lanes[lane].last >= which:
            step = s.step_of[s.operations[operation].steps + index]
            if not s.steps[step].stands:
                goes_on = is_open(s, lane, step, which, number)
                stand(s, step, True)
                if not goes_on:
                    s.steps[step].released = True
                    s.operations[operation].released += 1
    if begun < members:
        enqueue(s, operation)
        return
    stands_no_more(s, operation)
    s.operations[operation].granted = True
    lease(s, configuration, 1)
    end_when_released(s, operation)
