"""Switching and grants after every event, the events of switches, the ends of leases.

Queued operations go in their order, hints only where no operation waits for the ports.
Once all members have given a held lease back, operations that all have begun on it are
under way; those that some have begun count as asked for by these.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import replace

from railx.fabric.circuits import Circuit, Configuration, Port, ports_of
from railx.fabric.decisions import queueing, state
from railx.fabric.decisions.queueing import refuse
from railx.fabric.decisions.state import Action, State
from railx.fabric.holdings import OperationKey, Report


def settle(core: State, configuration: Configuration, now_ns: int) -> list[Action]:
    """End a held lease once all members gave it back."""
    hold = core.holds[configuration]
    if hold.holders:
        return []
    del core.holds[configuration]
    for member in configuration.members:
        state.discard(core.holds_of, member, configuration)
    for circuit in hold.circuits:
        state.discard(core.holds_by_circuit, circuit, configuration)
    reports = {rank: complete(item, rank, hold) for rank, item in hold.reports.items()}
    actions: list[Action] = []
    for channel in sorted({channel for report in reports.values() for channel in report.begun}):
        actions += take_over_channel(core, configuration, channel, reports, hold, now_ns)
    for rank, report in reports.items():
        if report.operations > 0:
            state.add_count(core, rank, "held", report.operations)
    queueing.touch(core, ports_of(hold.circuits))
    return actions


def take_over_channel(
    core: State,
    configuration: Configuration,
    channel: str,
    reports: Mapping[int, Report],
    hold: state.Hold,
    now_ns: int,
    over: int | None = None,
) -> list[Action]:
    """Track the operations that members have begun on a channel without asking.

    Operations that now count as asked for leave the ``operations`` of ``reports``.
    ``over``: after a restart, the operations up to this number belong to a former
    process of a member. Members have not begun what they asked for since.
    """
    last = {}
    for rank, report in reports.items():
        recorded = state.last_of(core, rank, channel) if over is None else -1
        last[rank] = max(report.begun.get(channel, -1), recorded)
        state.note_last(core, rank, channel, last[rank])
    lowest, highest = max(min(last.values()), -1 if over is None else over), max(last.values())
    opened = {key for report in reports.values() for key in report.open}
    if lowest == highest and channel not in core.by_channel and not opened:
        # Usually all have begun the same operations and have ended them.
        return []
    numbers = {
        # No correct rank is further ahead of its peers.
        *range(max(lowest, highest - state.OPEN_OPERATIONS) + 1, highest + 1),
        *(number for name, number in opened if name == channel),
        # Questions of members that did not hold it any more.
        *core.by_channel.get(channel, ()),
    }
    actions: list[Action] = []
    for number in sorted(numbers):
        key = channel, number
        still_open = {rank for rank, report in reports.items() if key in report.open}
        operation = core.operations.get(key)
        if operation is not None and operation.configuration != configuration:
            if over is not None and number <= over:
                continue
            exact = over is not None or operation.configuration in core.holds
            here = still_open | {
                rank
                for rank, report in reports.items()
                if report.begun.get(channel, -1) >= number
                # Not the last one: it may have been begun under another lease.
                and not (exact and report.begun[channel] > number)
            }
            here -= operation.asked.keys()
            if not here:
                continue
            actions += contradict(core, operation, configuration, here, still_open & here)
            if operation.granted or not operation.asked.keys().isdisjoint(configuration.members):
                continue
        begun = {rank for rank in reports if number <= last[rank]}
        actions += take_over(core, hold, configuration, key, begun, still_open, reports, now_ns)
    return actions


def contradict(
    core: State,
    operation: state.TrackedOperation,
    configuration: Configuration,
    begun: set[int],
    still_open: set[int],
) -> list[Action]:
    """Members began an operation under a lease; others asked for it otherwise.

    The question fails, unless it was granted. The begun operation fails too where
    one of its members asked; otherwise those that asked harm only themselves.
    """
    key, asked, members = operation.key, set(operation.asked), set(configuration.members)
    its = operation.configuration
    message = queueing.disagreement(key, min(asked), its, min(begun), configuration)
    goes_on = not operation.granted and asked.isdisjoint(members)
    actions: list[Action] = []
    if not operation.granted:
        actions = queueing.fail(core, operation, message, "disagree")
        others = set(its.members)
        others = others - members if goes_on else others | members
        queueing.bury(core, key, message, "disagree", others - asked - begun - core.gone.keys())
    if not goes_on:
        actions += [refuse(core, rank, None, message, "disagree") for rank in sorted(still_open)]
    return actions


def take_over(
    core: State,
    hold: state.Hold,
    configuration: Configuration,
    key: OperationKey,
    begun: set[int],
    still_open: set[int],
    reports: Mapping[int, Report],
    now_ns: int,
) -> list[Action]:
    """Track an operation that members began under a lease that has ended."""
    operation = core.operations.get(key)
    if operation is not None and (operation.granted or operation.configuration != configuration):
        return []
    actions: list[Action] = []
    tombstone = core.tombstones.get(key)
    if tombstone is not None and not tombstone.untold.isdisjoint(configuration.members):
        for rank in sorted(begun & tombstone.untold):
            queueing.mark_notified(core, key, rank)
            if rank in still_open:
                actions.append(refuse(core, rank, None, tombstone.message, tombstone.reason))
        return actions
    # A rank that died is taken to have begun: its peers may be exchanging with it.
    lost = hold.lost | {
        rank: core.gone[rank] for rank in configuration.members if rank in core.gone
    }
    if operation is not None and not lost.keys().isdisjoint(operation.asked):
        # It came back, and asks for an operation of its former process.
        message = f"{state.name_of(operation)} is under way since before rank %d came back"
        for rank in sorted(lost.keys() & operation.asked.keys()):
            request = operation.asked.pop(rank).request
            queueing.expect(core, configuration, rank, -1)
            actions.append(refuse(core, rank, request, message % rank, "ended"))
        if not operation.asked:
            queueing.forget(core, operation)
            operation = None
    begun = (begun - (operation.asked.keys() if operation else set())) | lost.keys()
    under_way = begun >= set(configuration.members)
    if under_way and not still_open:
        return actions
    accounted = begun | (operation.asked.keys() if operation else set())
    if not accounted:
        # A rank has presented it as under way, but nobody as begun.
        return actions
    for rank in configuration.members:
        if rank not in accounted and state.last_of(core, rank, key[0]) >= key[1]:
            # Its question was refused, by this controller or the one before.
            message = state.passed(rank, configuration, key)
            if operation is not None:
                actions += queueing.fail(core, operation, message, "ended")
            actions += [refuse(core, peer, None, message, "ended") for peer in sorted(still_open)]
            return actions
    operation = queueing.tracked(core, key, configuration)
    for rank in sorted(begun):
        queueing.stand(core, operation, rank, state.Asked(None, now_ns, False, True))
        if rank not in still_open:
            operation.released.add(rank)
        elif not under_way:
            reports[rank].operations -= 1
            state.add_count(core, rank, "requests")
    who = min(lost, default=None)
    message = "" if who is None else f"rank {who} {lost[who]} during {state.name_of(operation)}"
    if not under_way:
        if message:
            return [*actions, *queueing.fail(core, operation, message, "lost")]
        if not core.lost_ports.keys().isdisjoint(operation.ports):
            message = queueing.without_port_text(core, operation)
            return [*actions, *queueing.fail(core, operation, message, "port")]
        queueing.enqueue(core, operation)
        return actions
    queueing.stands_no_more(core, operation)
    operation.granted = True
    if not message and hold.lost_port is not None:
        message = f"{hold.lost_port} during {state.name_of(operation)}"
    if message and not hold.loss_announced:
        actions += queueing.announce_loss(core, operation, message, "lost" if lost else "port")
    operation.loss_announced = bool(message)
    queueing.lease(core, operation)
    queueing.end_when_released(core, operation)
    return actions


def complete(report: Report, rank: int, hold: state.Hold) -> Report:
    """A member's report, completed by grants and releases that crossed it.

    A granted operation that it does not name begins when the grant arrives, and the
    member sends its end.
    """
    begun = report.begun
    late = {key for key in hold.granted.get(rank, ()) if begun.get(key[0], -1) < key[1]}
    if not late and not hold.released:
        return replace(report)
    released = {key for member, key in hold.released if member == rank}
    return replace(
        report, begun={**report.begun, **dict(sorted(late))}, open=(report.open | late) - released
    )


def is_coming_up(core: State, circuit: Circuit) -> bool:
    return core.moving.get(circuit.ports[0]) == circuit


def can_move(core: State, circuits: list[Circuit]) -> bool:
    """Whether no port of ``circuits`` moves and none carries a leased circuit."""
    moving, active, leases, holds = core.moving, core.active, core.leases, core.holds_by_circuit
    for port in state.ports_in_order(tuple(circuits)):
        if port in moving:
            return False
        here = active.get(port)
        if here in leases or here in holds:
            return False
    return True


def move(core: State, circuits: list[Circuit]) -> list[state.SwitchAction]:
    """One command per rail: bring up ``circuits``, drop what is in their way."""
    actions = []
    for rail, connect in state.by_rail(core.layout, tuple(circuits)):
        active, ports = core.active, state.ports_in_order(connect)
        disconnect = tuple(sorted({active[port] for port in ports if port in active}))
        drop(core, disconnect)
        core.moving.update({port: circuit for circuit in connect for port in circuit.ports})
        action = state.SwitchAction(core.next_command, rail, connect, disconnect)
        core.commands[action.command] = action
        core.next_command += 1
        core.counters["reconfigurations"] += 1
        core.counters["circuits_changed"] += len(connect)
        actions.append(action)
    return actions


def drop(core: State, circuits: Iterable[Circuit]) -> None:
    for circuit in circuits:
        core.lit.remove(circuit)
        for port in circuit.ports:
            del core.active[port]
    forget_ahead(core, circuits)


def darken(core: State, circuit: Circuit, port: Port) -> list[Action]:
    """A circuit lost a port: its leases end, and their ranks get an error."""
    message = queueing.lost_port_text(core, port)
    drop(core, [circuit])
    actions: list[Action] = []
    for key in sorted(core.leases.pop(circuit, ())):
        operation = core.operations[key]
        during = f"{message} during {state.name_of(operation)}"
        actions += queueing.announce_loss(core, operation, during, "port")
    for configuration in sorted(core.holds_by_circuit.pop(circuit, ()), key=state.by_name):
        core.holds[configuration].lost_port = message
        actions += queueing.recall(core, configuration, message)
    queueing.touch(core, circuit.ports)
    return actions


def take_ahead(core: State, configuration: Configuration) -> int:
    """How many commands were made ahead for a configuration; they are used now."""
    if not core.ahead:
        return 0
    commands = core.ahead.pop(configuration, 0)
    if commands:
        for circuit in core.layout.circuits(configuration):
            state.discard(core.ahead_on, circuit, configuration)
    return commands


def forget_ahead(core: State, dropped: Iterable[Circuit]) -> None:
    for circuit in dropped:
        for configuration in list(core.ahead_on.get(circuit, ())):
            core.counters["wasted"] += take_ahead(core, configuration)


def advance(core: State, now_ns: int) -> list[Action]:
    """Grant and switch whatever can be: queued operations in order, then hints."""
    if core.recovering:
        return []
    actions: list[Action] = []
    touched = core.touched
    while touched:
        order = heapq.heappop(touched)
        while touched and touched[0] == order:
            heapq.heappop(touched)
        operation = core.queue.get(order)
        if operation is not None and is_first(core, operation):
            actions += serve(core, operation, now_ns)
    return actions + speculate(core) if core.touched_hints else actions


def is_first(core: State, operation: state.TrackedOperation) -> bool:
    """Whether no earlier operation waits for a port of this one."""
    order, waiting = operation.order, core.waiting
    for port in operation.ports:  # noqa: SIM110 (asked most often of all)
        if next(iter(waiting[port])) != order:
            return False
    return True


def serve(core: State, operation: state.TrackedOperation, now_ns: int) -> list[Action]:
    lit = core.lit
    if lit.issuperset(operation.circuits):
        return grant(core, operation, now_ns)
    to_start = [circuit for circuit in operation.circuits if circuit not in lit]
    if core.moving:
        to_start = [circuit for circuit in to_start if not is_coming_up(core, circuit)]
    if to_start and not can_move(core, to_start):
        return queueing.recall_from(core, to_start)
    if operation.stall_since_ns is None:
        operation.stall_since_ns = now_ns
    switches = move(core, to_start)
    operation.commands += len(switches)
    return list(switches)


def grant(core: State, operation: state.TrackedOperation, now_ns: int) -> list[Action]:
    configuration = operation.configuration
    operation.commands += take_ahead(core, configuration)
    queueing.stands_no_more(core, operation)
    operation.granted = True
    hold = queueing.begin_lease(core, operation)
    if hold is None:
        queueing.lease(core, operation)
        actions = grant_all(core, operation, None, now_ns)
        queueing.end_when_released(core, operation)
        return actions
    queueing.forget(core, operation)
    actions = grant_all(core, operation, hold, now_ns)
    # Ranks that asked for another operation on these circuits hold them now, and
    # their peers send no further questions.
    for other in list(core.by_configuration.get(configuration, {}).values()):
        if not other.granted and other.order is None:
            queueing.forget(core, other)
            actions += grant_all(core, other, hold, now_ns)
    return actions


def grant_all(
    core: State, operation: state.TrackedOperation, hold: state.Hold | None, now_ns: int
) -> list[Action]:
    """Grant to all who asked; who has ended its part has to know its lease."""
    actions: list[Action] = []
    number = None if hold is None else hold.number
    generation = generation_of(core, operation.circuits)
    if hold is not None:
        hold.channels.add(operation.key[0])
    for rank in sorted(operation.asked):
        ended = rank in operation.released
        if ended and hold is None:
            continue
        action = grant_action(core, operation, rank, now_ns, number, generation)
        actions.append(action)
        if not ended:
            if hold is not None:
                hold.granted.setdefault(rank, set()).add(operation.key)
            for counters in (core.counters, core.rank_counters[rank]):
                counters["grants"] += 1
                counters["wait_ns"] += action.wait_ns
                if action.stall_ns:
                    counters["stall_ns"] += action.stall_ns
    return actions


def grant_action(
    core: State,
    operation: state.TrackedOperation,
    rank: int,
    now_ns: int,
    hold: int | None = None,
    generation: int | None = None,
) -> state.GrantAction:
    asked = operation.asked[rank]
    stall_ns = now_ns - operation.stall_since_ns if operation.stall_since_ns is not None else 0
    if generation is None:
        generation = generation_of(core, operation.circuits)
    return state.GrantAction(
        rank,
        asked.request,
        operation.key,
        generation,
        now_ns,
        now_ns - asked.asked_ns - stall_ns,
        stall_ns,
        operation.commands,
        asked.mispredicted,
        operation.configuration,
        hold,
    )


def generation_of(core: State, circuits: tuple[Circuit, ...]) -> int:
    """The number of the last change on the rails of these circuits."""
    rails = state.by_rail(core.layout, circuits)
    return max((core.generation[rail] for rail, _ in rails), default=0)


def grant_to_holder(
    core: State, question: state.Question, hold: state.Hold, now_ns: int
) -> list[Action]:
    """Answer a rank whose question crossed the grant of its lease."""
    rank, request, key, configuration = question
    fresh = state.last_of(core, rank, key[0]) < key[1]
    operation = state.TrackedOperation(key, configuration, hold.circuits, frozenset())
    mispredicted = fresh and queueing.take_hint(core, rank, configuration)
    operation.asked[rank] = state.Asked(request, now_ns, mispredicted, True)
    if fresh:
        if len(hold.granted.get(rank, ())) >= state.OPEN_OPERATIONS:
            message = f"rank {rank} has {state.OPEN_OPERATIONS} operations open"
            return [refuse(core, rank, request, f"{message}; allowed: no more", "limit")]
        state.note_last(core, rank, *key)
        state.add_count(core, rank, "requests")
        state.add_count(core, rank, "grants")
        hold.granted.setdefault(rank, set()).add(key)
        hold.channels.add(key[0])
    return [grant_action(core, operation, rank, now_ns, hold.number)]


def speculate(core: State) -> list[Action]:
    """Switch ahead for what all members expect, where no operation waits for ports."""
    turns = {
        expected.ready: configuration
        for configuration in core.touched_hints
        if (expected := core.expected.get(configuration)) is not None and expected.ready is not None
    }
    core.touched_hints.clear()
    actions: list[Action] = []
    for _, configuration in sorted(turns.items()):
        circuits = core.layout.circuits(configuration)
        if not core.lost_ports.keys().isdisjoint(ports_of(circuits)):
            continue
        missing = [circuit for circuit in circuits if circuit not in core.lit]
        to_start = [circuit for circuit in missing if not is_coming_up(core, circuit)]
        if to_start and not core.waiting.keys().isdisjoint(ports_of(tuple(to_start))):
            continue
        if to_start and not can_move(core, to_start):
            actions += queueing.recall_from(core, to_start, configuration)
            continue
        expected = core.expected[configuration]
        for rank in expected.hints:
            core.hints[rank].served = True
        expected.unserved = 0
        queueing.not_ready(core, configuration, expected)
        switches = move(core, to_start)
        if switches:
            core.counters["speculative"] += len(switches)
            core.ahead[configuration] += len(switches)
            for circuit in circuits:
                core.ahead_on.setdefault(circuit, {})[configuration] = None
        actions += switches
    return actions


def switched(core: State, command: int, now_ns: int) -> list[Action]:
    """A command that was under way is done: its circuits carry light."""
    action = core.commands.pop(command, None)
    if action is None:
        return []
    for port in state.ports_in_order(action.connect):
        del core.moving[port]
    for circuit in action.connect:
        if circuit in core.spoiled:
            core.spoiled.remove(circuit)
        else:
            state.light(core, circuit)
    core.changes += 1
    core.generation[action.rail] = core.changes
    queueing.touch(core, ports_of(action.connect))
    return advance(core, now_ns)


def switch_failed(core: State, command: int, reason: str, now_ns: int) -> list[Action]:
    """A switch has failed a command: ranks that wait for its circuits get an error."""
    action = core.commands.pop(command, None)
    if action is None:
        return []
    core.failures["switches"] += 1
    for port in state.ports_in_order(action.connect):
        del core.moving[port]
    core.spoiled.difference_update(action.connect)
    forget_ahead(core, action.connect)
    failed = set(action.connect)
    message = f"the switch of rail {action.rail} failed ({reason})"
    actions: list[Action] = []
    for operation in queueing.first_at(core, ports_of(action.connect)):
        if not failed.isdisjoint(operation.circuits):
            what = f"{message} for {state.name_of(operation)}"
            actions += queueing.fail(core, operation, what, "switch")
    queueing.touch(core, ports_of(action.connect))
    return [*actions, *advance(core, now_ns)]


def ports_lost(core: State, ports: Iterable[Port], reason: str, now_ns: int) -> list[Action]:
    """Ports are lost with their circuits: operations that need them get an error."""
    lost = [port for port in sorted(set(ports)) if port not in core.lost_ports]
    core.lost_ports.update(dict.fromkeys(lost, reason))
    core.failures["ports"] += len(lost)
    actions: list[Action] = []
    for port in lost:
        if port in core.moving:
            core.spoiled.add(core.moving[port])
        if port in core.active:
            actions += darken(core, core.active[port], port)
    for operation in list(core.operations.values()) if lost else ():
        if not operation.granted and not operation.ports.isdisjoint(lost):
            message = queueing.without_port_text(core, operation)
            actions += queueing.fail(core, operation, message, "port")
    return [*actions, *advance(core, now_ns)]


def ports_back(core: State, ports: Iterable[Port], now_ns: int) -> list[Action]:
    """These ports are in order again, dark and free."""
    back = [port for port in sorted(set(ports)) if port in core.lost_ports]
    for port in back:
        del core.lost_ports[port]
    queueing.touch(core, back)
    return advance(core, now_ns)
