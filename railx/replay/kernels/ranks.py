"""The ranks: programs, graphs, operations, messages; the loop over the events."""

from __future__ import annotations

from typing import Any

import numpy as np

from railx.replay.kernels import circuits, state
from railx.replay.kernels.compiling import called, compiled, lent
from railx.replay.kernels.controller import advance, hear, hear_report
from railx.replay.kernels.state import Array, EngineState

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"


# The program of a rank.


@called
def go_on(s: EngineState, heap: Array, rank: int) -> None:
    """Plan the next step of a program that waits for nothing."""
    step = s.ranks[rank].position
    if step == s.ranks[rank].stop:
        return
    if s.steps[step].does == state.BEGIN:
        s.ranks[rank].at_begin = True
        s.n[state.AT_BEGIN] += 1
        begin_together(s, heap)
    else:
        s.steps[step].computing_ns = s.n[state.NOW]
        circuits.push(heap, s, s.steps[step].gap_ns, state.TAKE, rank, 0)


@called
def begin_together(s: EngineState, heap: Array) -> None:
    """Begin the iteration once all ranks that still have one are there."""
    if s.n[state.AT_BEGIN] < s.n[state.UNFINISHED]:
        return
    for rank in range(len(s.ranks)):
        if s.ranks[rank].at_begin:
            s.ranks[rank].at_begin = False
            circuits.push(heap, s, s.steps[s.ranks[rank].position].gap_ns, state.TAKE, rank, 0)
    s.n[state.AT_BEGIN] = 0


@called
def resume(s: EngineState, heap: Array, rank: int) -> None:
    """What a program waits for has ended."""
    s.ranks[rank].waits_for = -1
    resume_ns = s.steps[s.ranks[rank].position].resume_ns
    advance_program(s, rank)
    circuits.push(heap, s, resume_ns, state.GO_ON, rank, 0)


@called
def advance_program(s: EngineState, rank: int) -> None:
    """A step is done."""
    s.ranks[rank].position += 1
    if s.ranks[rank].position == s.ranks[rank].stop:
        s.n[state.UNFINISHED] -= 1


@called
def needs_circuits(s: EngineState, step: int) -> bool:
    """Whether the operation of a step asks."""
    if not s.n[state.OPTICAL]:
        return False
    return s.configurations[circuits.configuration_of(s, s.steps[step].operation)].asks != 0


@called
def take(s: EngineState, heap: Array, rank: int) -> None:
    """The next step of a program happens now."""
    step, now_ns = s.ranks[rank].position, s.n[state.NOW]
    does = s.steps[step].does
    if does == state.WAIT:
        target = s.steps[step].target
        s.ranks[rank].waits_for = target if target >= 0 else -2
        if target >= 0 and s.steps[target].ended:
            resume(s, heap, rank)
        return
    advance_program(s, rank)
    if does == state.ISSUE:
        issue(s, heap, step)
    else:
        note_time(s, step)
        if does == state.END:
            s.results[s.steps[step].row, state.R_END] = now_ns
    go_on(s, heap, rank)
    if s.ranks[rank].position == s.ranks[rank].stop:
        begin_together(s, heap)


@called
def issue(s: EngineState, heap: Array, step: int) -> None:
    """An operation is handed to its lane."""
    if s.n[state.GRAPH]:
        s.nodes[step].issued = True
    if s.steps[step].sends and needs_circuits(s, step):
        circuits.append(s.unsent, s.step_links, s.steps[step].rank, step)
    before = s.steps[step].before
    if before < 0 or s.steps[before].ended:
        begin(s, heap, step)


@called
def begin(s: EngineState, heap: Array, step: int) -> None:
    """Nothing is in the way of a step but its stream."""
    stream = s.nodes[step].stream if s.n[state.GRAPH] else -1
    if stream >= 0:
        circuits.rise(s.ready, s.streams[stream].first, s.streams[stream].ready, step, step)
        s.streams[stream].ready += 1
        go_on_stream(s, heap, stream)
    else:
        circuits.push(heap, s, s.steps[step].pickup_ns, state.ARRIVE, step, 0)


@called
def go_on_stream(s: EngineState, heap: Array, stream: int) -> None:
    """Begin the first of the steps that wait for an idle stream."""
    if s.streams[stream].busy or s.streams[stream].ready == 0:
        return
    s.streams[stream].ready -= 1
    step = circuits.sink(s.ready, s.streams[stream].first, s.streams[stream].ready)
    s.streams[stream].busy = True
    if s.steps[step].does == state.ISSUE:
        circuits.push(heap, s, s.steps[step].pickup_ns, state.ARRIVE, step, 0)
    else:
        s.steps[step].started_ns = s.n[state.NOW]
        s.steps[step].ended_ns = s.n[state.NOW] + s.steps[step].gap_ns
        circuits.push(heap, s, s.steps[step].gap_ns, state.COMPUTED, step, 0)


# A graph.


@called
def begin_graph(s: EngineState, heap: Array) -> None:
    """Begin the steps that depend on none; ranks announce what they ask for first."""
    for step in range(len(s.steps)):
        if s.nodes[step].pending == 0:
            take_node(s, heap, step)
    if s.n[state.PROVISIONED]:
        for rank in range(len(s.ranks)):
            following = find_following(s, rank)
            if following >= 0:
                announce(s, heap, s.steps[following].slot)


@called
def take_node(s: EngineState, heap: Array, step: int) -> None:
    """All that a step depends on has ended."""
    if s.steps[step].does == state.ISSUE:
        issue(s, heap, step)
    else:
        begin(s, heap, step)


@called
def end_node(s: EngineState, heap: Array, step: int) -> None:
    """What depends on a step, and what waits for its stream."""
    for successor in s.successors[s.nodes[step].successors : s.nodes[step].successors_stop]:
        s.nodes[successor].pending -= 1
        if s.nodes[successor].pending == 0:
            take_node(s, heap, successor)
    stream = s.nodes[step].stream
    if stream >= 0:
        s.streams[stream].busy = False
        go_on_stream(s, heap, stream)


@called
def note_time(s: EngineState, step: int) -> None:
    """The first that is known of an iteration of a rank."""
    row = s.results[s.steps[step].row]
    if row[state.R_BEGIN] < 0:
        row[state.R_BEGIN] = row[state.R_END] = s.n[state.NOW]


# An operation on a rank.


@called
def arrive(s: EngineState, heap: Array, step: int) -> None:
    """An operation is the first of its lane."""
    if needs_circuits(s, step):
        if not stays_behind(s, heap, step):
            ask(s, heap, step)
        return
    operation = s.steps[step].operation
    note_arrival(s, operation, step)
    everybody = s.operations[operation].arrived == circuits.members_of(
        s, circuits.configuration_of(s, operation)
    )
    if s.steps[step].alone:
        start(s, heap, step)
    if everybody:
        step = s.operations[operation].first_arrived
        while step >= 0:
            if not s.steps[step].alone:
                start(s, heap, step)
            step = s.steps[step].next_arrived


@called
def note_arrival(s: EngineState, operation: int, step: int) -> None:
    """One member more stands before an operation."""
    s.steps[step].next_arrived = -1
    if s.operations[operation].arrived == 0:
        s.operations[operation].first_arrived = step
    else:
        s.steps[s.operations[operation].last_arrived].next_arrived = step
    s.operations[operation].last_arrived = step
    s.operations[operation].arrived += 1


@called
def stays_behind(s: EngineState, heap: Array, step: int) -> bool:
    """Whether a collective waits for a message that has to go first."""
    rank, slot = s.steps[step].rank, s.steps[step].slot
    configuration = circuits.configuration_of(s, s.steps[step].operation)
    if not s.configurations[configuration].ring or s.slots[slot].patience_ns <= 0:
        return False
    other = s.unsent[rank, 0]
    while other >= 0:
        its = circuits.configuration_of(s, s.steps[other].operation)
        if other < step and circuits.conflict(s, its, configuration):
            s.steps[step].other = other
            circuits.append(s.behind, s.step_links, rank, step)
            circuits.push(heap, s, s.slots[slot].patience_ns, state.IMPATIENT, step, other)
            return True
        other = s.step_links[other, 0]
    return False


@called
def stop_waiting(s: EngineState, heap: Array, step: int, other: int, impatient: bool) -> None:
    """A collective asks: the message before it was granted, or patience is over."""
    if s.steps[step].other != other:
        return
    rank, slot = s.steps[step].rank, s.steps[step].slot
    s.steps[step].other = -1
    circuits.unlink(s.behind, s.step_links, rank, step)
    if not impatient:
        s.slots[slot].patience_ns = s.n[state.PATIENCE_NS]
        if stays_behind(s, heap, step):
            return
    else:
        limit_ns = s.slots[slot].patience_ns
        s.slots[slot].patience_ns = limit_ns // 2 if limit_ns > s.n[state.IMPATIENT_NS] else 0
    ask(s, heap, step)


@called
def ask(s: EngineState, heap: Array, step: int) -> None:
    """Begin on circuits that this rank holds, or ask for them."""
    operation, slot = s.steps[step].operation, s.steps[step].slot
    note_arrival(s, operation, step)
    s.steps[step].asked = True
    if s.n[state.LEASES_LAST] and s.slots[slot].hold >= 0:
        begin_on_lease(s, step, s.slots[slot].hold)
        s.lanes[s.steps[step].lane].open = step
        may_begin(s, heap, step)
        start_if_ready(s, heap, operation)
        return
    s.steps[step].waits = True
    circuits.append(s.waiting, s.waiting_links, s.steps[step].rank, step)
    decide(s, heap, state.QUESTION, step, 0)


@called
def begin_on_lease(s: EngineState, step: int, hold: int) -> None:
    """The report of a lease will name this operation as begun."""
    lane, which = s.steps[step].lane, circuits.number_of(s, s.steps[step].operation)
    if s.lanes[lane].begun_in != hold or s.lanes[lane].begun < which:
        s.lanes[lane].begun, s.lanes[lane].begun_in = which, hold


@called
def may_begin(s: EngineState, heap: Array, step: int) -> None:
    """A rank's circuits for an operation are there."""
    operation, rank = s.steps[step].operation, s.steps[step].rank
    if not s.steps[step].ready:
        s.steps[step].ready = True
        s.operations[operation].ready += 1
    if s.steps[step].begun:
        return
    s.steps[step].begun = True
    if s.steps[step].waits:
        s.steps[step].waits = False
        circuits.unlink(s.waiting, s.waiting_links, rank, step)
    s.ranks[rank].under_way += 1
    if s.steps[step].sends:
        circuits.unlink(s.unsent, s.step_links, rank, step)
        behind = s.behind[rank, 0]
        while behind >= 0:
            if s.steps[behind].other == step:
                circuits.push(heap, s, 0, state.AHEAD, behind, step)
            behind = s.step_links[behind, 0]


@called
def start_if_ready(s: EngineState, heap: Array, operation: int) -> None:
    """Data moves once the circuits of all members are there."""
    if s.operations[operation].ready < circuits.members_of(
        s, circuits.configuration_of(s, operation)
    ):
        return
    s.operations[operation].ready = 0
    step = s.operations[operation].first_arrived
    while step >= 0:
        start(s, heap, step)
        step = s.steps[step].next_arrived


@called
def start(s: EngineState, heap: Array, step: int) -> None:
    """A member's part of an operation begins."""
    lasts_ns = s.steps[step].lasts_ns
    if s.n[state.GRAPH] and s.nodes[step].receives:
        # What a message carried before its receiver came is there.
        sender = s.operations[s.steps[step].operation].first_arrived
        if sender != step and s.steps[sender].started_ns >= 0:
            lasts_ns = max(0, s.steps[sender].started_ns + lasts_ns - s.n[state.NOW])
    s.steps[step].started_ns = s.n[state.NOW]
    s.steps[step].ended_ns = s.n[state.NOW] + lasts_ns
    circuits.push(heap, s, lasts_ns, state.ENDED, step, 0)


@called
def end(s: EngineState, heap: Array, step: int) -> None:
    """A member's part of an operation is over: what follows from it, in order."""
    rank, after, asks = s.steps[step].rank, s.steps[step].after, needs_circuits(s, step)
    configuration = circuits.configuration_of(s, s.steps[step].operation)
    s.steps[step].ended = True
    if asks:
        s.ranks[rank].under_way -= 1
        if s.configurations[configuration].ring:
            s.ranks[rank].passed = max(s.ranks[rank].passed, step)
        if s.lanes[s.steps[step].lane].open == step:
            s.lanes[s.steps[step].lane].open = -1
        if s.steps[step].to_tell:
            s.steps[step].to_tell = False
            decide(s, heap, state.RELEASE, step, 0)
    if 0 <= after < s.ranks[rank].position or (
        s.n[state.GRAPH] and after >= 0 and s.nodes[after].issued
    ):
        begin(s, heap, after)
    if asks and s.n[state.PROVISIONED]:
        following = find_following(s, rank)
        if (
            following >= 0
            and circuits.configuration_of(s, s.steps[following].operation) != configuration
        ):
            announce(s, heap, s.steps[following].slot)
    if s.n[state.GRAPH]:
        end_node(s, heap, step)
    elif s.ranks[rank].waits_for == step:
        resume(s, heap, rank)


@called
def find_following(s: EngineState, rank: int) -> int:
    """The step to announce when an operation has ended; -1 for none."""
    if s.ranks[rank].under_way > 0:
        return -1
    step, stop = s.ranks[rank].unasked, s.ranks[rank].stop
    while step < stop:
        if (
            s.steps[step].does == state.ISSUE
            and not s.steps[step].asked
            and needs_circuits(s, step)
        ):
            break
        step += 1
    s.ranks[rank].unasked = step
    waiting = s.waiting[rank, 0]
    while waiting >= 0:
        # A graph posts receives at once: of those only earlier ones come first.
        if waiting > s.ranks[rank].passed and (waiting < step or not s.n[state.GRAPH]):
            return -1
        waiting = s.waiting_links[waiting, 0]
    if step < stop and s.n[state.GRAPH]:
        return step
    if step < stop:
        position = s.ranks[rank].position
        if step < position or s.steps[step].iteration == s.steps[position - 1].iteration:
            return step
    return -1


@called
def announce(s: EngineState, heap: Array, slot: int) -> None:
    """Say what comes next; leases in the way of it are given back."""
    if s.slots[slot].hold >= 0:
        return
    count, leased = 0, s.holding[s.slots[slot].rank, 0]
    while leased >= 0:
        if circuits.conflict(s, s.slots[leased].configuration, s.slots[slot].configuration):
            s.conflicting[count] = leased
            count += 1
        leased = s.slot_links[leased, 0]
    for index in range(count):
        number = give_back(s, s.conflicting[index], -1)
        if number >= 0:
            decide(s, heap, state.REPORT, s.conflicting[index], number)
    decide(s, heap, state.HINT, slot, 0)


@called
def give_back(s: EngineState, slot: int, hold: int) -> int:
    """Give back a lease (-1: any), so that what has not begun on it has to wait.

    Returns the number of the lease, -1 where there is nothing to give back.
    """
    number = s.slots[slot].hold
    if number < 0 or (hold >= 0 and hold != number):
        return -1
    s.slots[slot].hold, s.slots[slot].given_back = -1, number
    circuits.unlink(s.holding, s.slot_links, s.slots[slot].rank, slot)
    needs = s.configurations[s.slots[slot].configuration]
    for channel in s.items[needs.channels : needs.channels_stop]:
        lane = s.channels[channel].lanes + s.slots[slot].member
        step = s.lanes[lane].open
        if step < 0:
            continue
        s.lanes[lane].open = -1
        s.steps[step].to_tell, s.steps[step].open_in = True, number
        if s.steps[step].ready and s.steps[step].started_ns < 0:
            s.steps[step].ready = False
            s.operations[s.steps[step].operation].ready -= 1
    return number


# Messages.


@called
def decide(s: EngineState, heap: Array, kind: int, a: int, b: int) -> None:
    """A message goes to the controller, or is there at once."""
    if s.n[state.MESSAGE_NS] > 0:
        circuits.push(heap, s, s.n[state.MESSAGE_NS], kind, a, b)
    else:
        be_heard(s, heap, kind, a, b)


@called
def be_heard(s: EngineState, heap: Array, kind: int, a: int, b: int) -> None:
    """The controller hears, and tells the ranks what it decides."""
    before = s.n[state.LAST_ACTION]
    hear(s, heap, kind, a, b)
    count = s.n[state.LAST_ACTION] - before
    if s.n[state.MESSAGE_NS] == 0:
        take_actions(s, heap, count)
    elif count > 0:
        circuits.push(heap, s, s.n[state.MESSAGE_NS], state.ACTIONS_ARRIVE, count, 0)


@called
def take_actions(s: EngineState, heap: Array, count: int) -> None:
    """Ranks are told so many actions, in order; where messages take no time, all."""
    n = s.n
    last = n[state.FIRST_ACTION] + count
    while n[state.FIRST_ACTION] < last:
        action = s.actions[n[state.FIRST_ACTION] % len(s.actions)]
        n[state.FIRST_ACTION] += 1
        subject = action.subject
        if action.kind == state.GRANT:
            take_grant(s, action)
            continue
        number = give_back(s, subject, action.hold)
        if number >= 0 and n[state.MESSAGE_NS] > 0:
            circuits.push(heap, s, n[state.MESSAGE_NS], state.REPORT, subject, number)
        elif number >= 0 and hear_report(s, subject, number):
            # What follows from it comes after what was decided before.
            advance(s, heap)
            last = n[state.LAST_ACTION]
    for operation in s.begun[: n[state.BEGUN]]:
        s.operations[operation].just_granted = False
        step = s.operations[operation].first_arrived
        while step >= 0:
            if s.steps[step].just_granted:
                s.steps[step].just_granted = False
                may_begin(s, heap, step)
            step = s.steps[step].next_arrived
        start_if_ready(s, heap, operation)
    n[state.BEGUN] = 0


@called
def take_grant(s: EngineState, action: Any) -> None:
    """A rank hears that an operation has its circuits, and what it holds now."""
    step, hold, late = action.subject, action.hold, action.late
    operation, slot, lane = s.steps[step].operation, s.steps[step].slot, s.steps[step].lane
    if not s.steps[step].accounted:
        s.steps[step].accounted = True
        note_time(s, step)
        row = s.results[s.steps[step].row]
        row[state.R_REQUESTS] += 1
        row[state.R_RECONFIGURATIONS] += action.reconfigured
        row[state.R_STALL] += action.stall_ns
        row[state.R_WAIT] += action.wait_ns
        row[state.R_MISPREDICTIONS] += action.mispredicted
    if not s.operations[operation].just_granted:
        s.operations[operation].just_granted = True
        s.begun[s.n[state.BEGUN]] = operation
        s.n[state.BEGUN] += 1
        if s.n[state.MESSAGE_NS] > 0:
            circuits.note(s, state.LOG_GRANT, operation)
    s.steps[step].just_granted = True
    if hold > s.slots[slot].given_back:
        if s.slots[slot].hold < 0:
            s.slots[slot].hold = hold
            circuits.append(s.holding, s.slot_links, s.steps[step].rank, slot)
        begin_on_lease(s, step, hold)
        if not late or s.steps[step].to_tell:
            s.steps[step].to_tell = False
            s.lanes[lane].open = step
    elif not late:
        s.steps[step].to_tell = True


@compiled
def run(given: EngineState) -> None:
    """Carry out the programs; no circuits are lit at the start.

    The log takes as many entries as it has room for; a counter says how many there
    were. Where the room for actions was too small, another counter says so, and
    nothing of the rest is of use.
    """
    s = lent(given)
    n, ranks = s.n, len(s.ranks)
    # An event adds no more than one for each lane, rank and circuit, and as many again
    # where collectives wait behind messages or members have something to tell.
    most = len(s.lanes) + len(s.slots) + ranks + len(s.circuits) + len(s.channels)
    most += len(s.streams)
    most = 2 * most + 16
    heap = np.zeros(4 * most, s.event.dtype)
    if n[state.GRAPH]:
        heap = np.zeros(4 * most + len(s.steps), s.event.dtype)
        begin_graph(s, heap)
    else:
        for rank in range(ranks):
            n[state.UNFINISHED] += s.ranks[rank].stop > s.ranks[rank].first
        for rank in range(ranks):
            go_on(s, heap, rank)
    while n[state.HEAP] > 0 and not n[state.OVERFLOWED]:
        if n[state.HEAP] + most > len(heap):
            heap = np.concatenate((heap, np.zeros_like(heap)))
        event = heap[0]
        kind, a, b = event.kind, event.a, event.b
        n[state.NOW] = event.time_ns
        circuits.pop(heap, s)
        n[state.EVENTS] += 1
        if kind == state.TAKE:
            take(s, heap, a)
        elif kind == state.GO_ON:
            go_on(s, heap, a)
        elif kind == state.ARRIVE:
            arrive(s, heap, a)
        elif kind == state.ENDED:
            end(s, heap, a)
        elif kind == state.COMPUTED:
            s.steps[a].ended = True
            end_node(s, heap, a)
        elif kind in (state.IMPATIENT, state.AHEAD):
            stop_waiting(s, heap, a, b, kind == state.IMPATIENT)
        elif kind == state.ACTIONS_ARRIVE:
            take_actions(s, heap, a)
        else:
            be_heard(s, heap, kind, a, b)
