"""Switching and grants after every event, and the events of switches.

Queued operations go in their order, hints only where no operation waits for the ports.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from railx.fabric.actions import Action, GrantAction, SwitchAction
from railx.fabric.circuits import Circuit, Configuration, Port, ports_of
from railx.fabric.decisions.leases import (
    begin_hold,
    end_when_released,
    lease_circuits,
    recall,
    recall_from,
)
from railx.fabric.decisions.listeners import find_senders
from railx.fabric.decisions.operations import (
    fail_operation,
    first_at,
    forget_operation,
    leave_queue,
    not_ready,
    take_hint,
    touch_ports,
)
from railx.fabric.decisions.refusals import announce_loss, lost_port_of, refuse, without_port
from railx.fabric.decisions.state import (
    OPEN_OPERATIONS,
    Asked,
    ControllerState,
    Hold,
    TrackedOperation,
    by_name,
    by_rail,
    discard,
    name_of,
    ports_in_order,
)
from railx.fabric.holdings import OperationKey

__all__ = [
    "advance",
    "can_move",
    "darken",
    "forget_ahead",
    "grant_action",
    "grant_to_holder",
    "is_coming_up",
    "ports_back",
    "ports_lost",
    "switch_circuits",
    "switch_failed",
    "switched",
    "take_ahead",
]


# Switching: circuits without a lease move.


def is_coming_up(state: ControllerState, circuit: Circuit) -> bool:
    return state.moving.get(circuit.ports[0]) == circuit


def can_move(state: ControllerState, circuits: list[Circuit]) -> bool:
    """Whether no port of ``circuits`` moves and none carries a leased circuit."""
    moving, active, leases, holds = state.moving, state.active, state.leases, state.holds_by_circuit
    for port in ports_in_order(tuple(circuits)):
        if port in moving:
            return False
        here = active.get(port)
        if here in leases or here in holds:
            return False
    return True


def switch_circuits(state: ControllerState, circuits: list[Circuit]) -> list[SwitchAction]:
    """One command per rail: bring up ``circuits``, drop what is in their way."""
    actions = []
    for rail, connect in by_rail(state.layout, tuple(circuits)):
        active, ports = state.active, ports_in_order(connect)
        disconnect = tuple(sorted({active[port] for port in ports if port in active}))
        _drop(state, disconnect)
        state.moving.update({port: circuit for circuit in connect for port in circuit.ports})
        action = SwitchAction(state.next_command, rail, connect, disconnect)
        state.commands[action.command] = action
        state.next_command += 1
        state.counters["reconfigurations"] += 1
        state.counters["circuits_changed"] += len(connect)
        actions.append(action)
    return actions


def _drop(state: ControllerState, circuits: Iterable[Circuit]) -> None:
    for circuit in circuits:
        state.lit.remove(circuit)
        for port in circuit.ports:
            del state.active[port]
    forget_ahead(state, circuits)


def darken(state: ControllerState, circuit: Circuit, port: Port) -> list[Action]:
    """A circuit lost a port: its leases end, and their ranks get an error."""
    message = lost_port_of(state, port)
    _drop(state, [circuit])
    actions: list[Action] = []
    for key in sorted(state.leases.pop(circuit, ())):
        operation = state.operations[key]
        actions += announce_loss(state, operation, f"{message} during {name_of(operation)}", "port")
    for configuration in sorted(state.holds_by_circuit.pop(circuit, ()), key=by_name):
        state.holds[configuration].lost_port = message
        actions += recall(state, configuration, message)
    touch_ports(state, circuit.ports)
    return actions


def take_ahead(state: ControllerState, configuration: Configuration) -> int:
    """How many commands were made ahead for a configuration; they are used now."""
    if not state.ahead:
        return 0
    commands = state.ahead.pop(configuration, 0)
    if commands:
        for circuit in state.layout.circuits(configuration):
            discard(state.ahead_on, circuit, configuration)
    return commands


def forget_ahead(state: ControllerState, dropped: Iterable[Circuit]) -> None:
    for circuit in dropped:
        for configuration in list(state.ahead_on.get(circuit, ())):
            state.counters["wasted"] += take_ahead(state, configuration)


# Grants.


def advance(state: ControllerState, now_ns: int) -> list[Action]:
    """Grant and switch whatever can be: queued operations in order, then hints."""
    if state.recovering:
        return []
    actions = find_senders(state) if state.stirred else []
    touched = state.touched
    while touched:
        order = heapq.heappop(touched)
        while touched and touched[0] == order:
            heapq.heappop(touched)
        operation = state.queue.get(order)
        if operation is not None and _is_first(state, operation):
            actions += _serve(state, operation, now_ns)
    return actions + _speculate(state) if state.touched_hints else actions


def _is_first(state: ControllerState, operation: TrackedOperation) -> bool:
    """Whether no earlier operation waits for a port of this one."""
    order, waiting = operation.order, state.waiting
    for port in operation.ports:  # noqa: SIM110 (asked most often of all)
        if next(iter(waiting[port])) != order:
            return False
    return True


def _serve(state: ControllerState, operation: TrackedOperation, now_ns: int) -> list[Action]:
    lit = state.lit
    if lit.issuperset(operation.circuits):
        return _grant(state, operation, now_ns)
    to_start = [circuit for circuit in operation.circuits if circuit not in lit]
    if state.moving:
        to_start = [circuit for circuit in to_start if not is_coming_up(state, circuit)]
    if to_start and not can_move(state, to_start):
        return recall_from(state, to_start)
    if operation.stall_since_ns is None:
        operation.stall_since_ns = now_ns
    switches = switch_circuits(state, to_start)
    operation.commands += len(switches)
    return list(switches)


def _grant(state: ControllerState, operation: TrackedOperation, now_ns: int) -> list[Action]:
    configuration = operation.configuration
    operation.commands += take_ahead(state, configuration)
    leave_queue(state, operation)
    operation.granted = True
    hold = begin_hold(state, operation)
    if hold is None:
        lease_circuits(state, operation)
        actions = _grant_all(state, operation, None, now_ns)
        end_when_released(state, operation)
        return actions
    forget_operation(state, operation)
    actions = _grant_all(state, operation, hold, now_ns)
    # Ranks that asked for another operation on these circuits hold them now, and
    # their peers send no further questions.
    for other in list(state.by_configuration.get(configuration, {}).values()):
        if not other.granted and other.order is None:
            forget_operation(state, other)
            actions += _grant_all(state, other, hold, now_ns)
    return actions


def _grant_all(
    state: ControllerState, operation: TrackedOperation, hold: Hold | None, now_ns: int
) -> list[Action]:
    """Grant to all members that asked.

    A member that has ended its part waits for nothing, but has to know its lease.
    """
    actions: list[Action] = []
    number = None if hold is None else hold.number
    generation = _generation(state, operation.circuits)
    if hold is not None:
        hold.channels.add(operation.key[0])
    for rank in sorted(operation.asked):
        ended = rank in operation.released
        if ended and hold is None:
            continue
        action = grant_action(state, operation, rank, now_ns, number, generation)
        actions.append(action)
        if not ended:
            if hold is not None:
                hold.granted.setdefault(rank, set()).add(operation.key)
            for counters in (state.counters, state.counters_of(rank)):
                counters["grants"] += 1
                counters["wait_ns"] += action.wait_ns
                if action.stall_ns:
                    counters["stall_ns"] += action.stall_ns
    return actions


def grant_action(
    state: ControllerState,
    operation: TrackedOperation,
    rank: int,
    now_ns: int,
    hold: int | None = None,
    generation: int | None = None,
) -> GrantAction:
    asked = operation.asked[rank]
    stall_ns = now_ns - operation.stall_since_ns if operation.stall_since_ns is not None else 0
    if generation is None:
        generation = _generation(state, operation.circuits)
    return GrantAction(
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


def _generation(state: ControllerState, circuits: tuple[Circuit, ...]) -> int:
    """The number of the last change on the rails of these circuits."""
    last = 0
    for rail, _ in by_rail(state.layout, circuits):
        number = state.generation[rail]
        if number > last:
            last = number
    return last


def grant_to_holder(
    state: ControllerState,
    rank: int,
    request: int,
    key: OperationKey,
    configuration: Configuration,
    hold: Hold,
    now_ns: int,
) -> list[Action]:
    """Answer a rank whose question crossed the grant of its lease."""
    fresh = state.last_number(rank, key[0]) < key[1]
    operation = TrackedOperation(key, configuration, hold.circuits, frozenset())
    asked = Asked(request, now_ns, fresh and take_hint(state, rank, configuration), True)
    operation.asked[rank] = asked
    if fresh:
        if len(hold.granted.get(rank, ())) >= OPEN_OPERATIONS:
            message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
            return [refuse(state, rank, request, f"{message}; allowed: no more", "limit")]
        state.note_last_number(rank, *key)
        state.count(rank, "requests")
        state.count(rank, "grants")
        hold.granted.setdefault(rank, set()).add(key)
        hold.channels.add(key[0])
    return [grant_action(state, operation, rank, now_ns, hold.number)]


def _speculate(state: ControllerState) -> list[Action]:
    """Switch for hinted configurations that all members expect.

    Only where no operation waits for the ports.
    """
    turns = {
        expected.ready: configuration
        for configuration in state.touched_hints
        if (expected := state.expected.get(configuration)) is not None
        and expected.ready is not None
    }
    state.touched_hints.clear()
    actions: list[Action] = []
    for turn in sorted(turns):
        configuration = turns[turn]
        circuits = state.layout.circuits(configuration)
        if not state.lost_ports.keys().isdisjoint(ports_of(circuits)):
            continue
        missing = [circuit for circuit in circuits if circuit not in state.lit]
        to_start = [circuit for circuit in missing if not is_coming_up(state, circuit)]
        if to_start and not state.waiting.keys().isdisjoint(ports_of(tuple(to_start))):
            continue
        if to_start and not can_move(state, to_start):
            actions += recall_from(state, to_start, configuration)
            continue
        expected = state.expected[configuration]
        for rank in expected.hints:
            state.hints[rank].served = True
        expected.unserved = 0
        not_ready(state, configuration, expected)
        switches = switch_circuits(state, to_start)
        if switches:
            state.counters["speculative"] += len(switches)
            state.ahead[configuration] += len(switches)
            for circuit in circuits:
                state.ahead_on.setdefault(circuit, {})[configuration] = None
        actions += switches
    return actions


# Events of switches.


def switched(state: ControllerState, command: int, now_ns: int) -> list[Action]:
    """The switch has carried out a command: its circuits carry light.

    A command that is not under way changes nothing.
    """
    action = state.commands.pop(command, None)
    if action is None:
        return []
    for port in ports_in_order(action.connect):
        del state.moving[port]
    for circuit in action.connect:
        if circuit in state.spoiled:
            state.spoiled.remove(circuit)
        else:
            state.light(circuit)
    state.changes += 1
    state.generation[action.rail] = state.changes
    touch_ports(state, ports_of(action.connect))
    return advance(state, now_ns)


def switch_failed(state: ControllerState, command: int, reason: str, now_ns: int) -> list[Action]:
    """The switch could not carry out a command: none of its circuits is up.

    Ranks that wait for them get an error; the next question tries again.
    """
    action = state.commands.pop(command, None)
    if action is None:
        return []
    state.failures["switches"] += 1
    for circuit in action.connect:
        for port in circuit.ports:
            del state.moving[port]
    state.spoiled.difference_update(action.connect)
    forget_ahead(state, action.connect)
    failed = set(action.connect)
    message = f"the switch of rail {action.rail} failed ({reason})"
    actions: list[Action] = []
    for operation in first_at(state, ports_of(action.connect)):
        if not failed.isdisjoint(operation.circuits):
            actions += fail_operation(
                state, operation, f"{message} for {name_of(operation)}", "switch"
            )
    touch_ports(state, ports_of(action.connect))
    return [*actions, *advance(state, now_ns)]


def ports_lost(
    state: ControllerState, ports: Iterable[Port], reason: str, now_ns: int
) -> list[Action]:
    """These ports are out of order: their circuits are dark and dropped.

    Operations that need one of them get an error that names it.
    """
    lost = [port for port in sorted(set(ports)) if port not in state.lost_ports]
    state.lost_ports.update(dict.fromkeys(lost, reason))
    state.failures["ports"] += len(lost)
    actions: list[Action] = []
    for port in lost:
        if port in state.moving:
            state.spoiled.add(state.moving[port])
        if port in state.active:
            actions += darken(state, state.active[port], port)
    if lost:
        broken = set(lost)
        for operation in list(state.operations.values()):
            if not operation.granted and not broken.isdisjoint(operation.ports):
                actions += fail_operation(state, operation, without_port(state, operation), "port")
    return [*actions, *advance(state, now_ns)]


def ports_back(state: ControllerState, ports: Iterable[Port], now_ns: int) -> list[Action]:
    """These ports are in order again, dark and free."""
    back = [port for port in sorted(set(ports)) if port in state.lost_ports]
    for port in back:
        del state.lost_ports[port]
    touch_ports(state, back)
    return advance(state, now_ns)
