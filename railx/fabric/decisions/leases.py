"""Leases of operations under way, and lasting leases."""

from __future__ import annotations

from railx.fabric.actions import Action, RecallAction
from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions.operations import forget_operation, touch_ports
from railx.fabric.decisions.state import (
    ControllerState,
    Hold,
    TrackedOperation,
    by_name,
    ports_in_order,
)

__all__ = [
    "begin_hold",
    "end_when_released",
    "lease_circuits",
    "recall",
    "recall_from",
]


def lease_circuits(state: ControllerState, operation: TrackedOperation) -> None:
    for circuit in operation.circuits:
        if circuit in state.lit:
            state.leases.setdefault(circuit, set()).add(operation.key)


def end_when_released(state: ControllerState, operation: TrackedOperation) -> None:
    if len(operation.released) < len(operation.asked):
        return
    forget_operation(state, operation)
    for circuit in operation.circuits:
        keys = state.leases.get(circuit)
        if keys is not None:
            keys.discard(operation.key)
            if not keys:
                del state.leases[circuit]
    touch_ports(state, operation.ports)


def begin_hold(state: ControllerState, operation: TrackedOperation) -> Hold | None:
    """Begin a held lease with the grant of ``operation``.

    None where others wait for its ports already, or where members cannot hold one.
    """
    configuration = operation.configuration
    if not operation.circuits or configuration in state.holds:
        return None
    if configuration in state.listened or _others_wait(state, operation):
        return None
    for asked in operation.asked.values():
        if not asked.can_hold:
            return None
    for other in state.by_channel.get(operation.key[0], {}).values():
        if other.configuration != configuration:
            # Members that disagree about the channel have to ask to be told.
            return None
    hold = Hold(state.next_hold, operation.circuits, set(configuration.members))
    state.next_hold += 1
    state.holds[configuration] = hold
    for member in configuration.members:
        state.holds_of.setdefault(member, {})[configuration] = None
    for circuit in hold.circuits:
        state.holds_by_circuit.setdefault(circuit, set()).add(configuration)
    return hold


def _others_wait(state: ControllerState, operation: TrackedOperation) -> bool:
    """Whether operations of another configuration wait for its ports."""
    waiting, configuration = state.waiting, operation.configuration
    for port in operation.ports:
        if port in waiting:
            for other in waiting[port].values():
                if other.configuration != configuration:
                    return True
    return False


def recall(
    state: ControllerState, configuration: Configuration, reason: str | None = None
) -> list[Action]:
    """Ask the holders of a lease to give it back, once."""
    hold = state.holds.get(configuration)
    if hold is None or hold.recalled:
        return []
    hold.recalled = True
    hold.loss_announced = reason is not None
    state.counters["recalls"] += len(hold.holders)
    return [RecallAction(rank, configuration, hold.number, reason) for rank in sorted(hold.holders)]


def recall_from(
    state: ControllerState, circuits: list[Circuit], expected: Configuration | None = None
) -> list[Action]:
    """Recall the held leases that keep ``circuits`` from coming up.

    ``expected``: only to be ahead of what needs this, so that only those leases are
    recalled with which a member is through: it has given its part back, or has
    asked for an operation of ``expected``.
    """
    through = set() if expected is None else _standing_before(state, expected)
    in_the_way: dict[Configuration, None] = {}
    active, every = state.active, state.holds_by_circuit
    for port in ports_in_order(tuple(circuits)):
        here = active.get(port)
        configurations = () if here is None else every.get(here, ())
        for configuration in (
            sorted(configurations, key=by_name) if len(configurations) > 1 else configurations
        ):
            hold = state.holds[configuration]
            if hold.recalled:
                continue
            few = len(hold.holders) < len(configuration.members)
            if expected is None or few or not through.isdisjoint(hold.holders):
                in_the_way[configuration] = None
    return [action for configuration in in_the_way for action in recall(state, configuration)]


def _standing_before(state: ControllerState, configuration: Configuration) -> set[int]:
    """Ranks that have asked for an operation with this configuration, and wait."""
    return {
        rank
        for operation in state.by_configuration.get(configuration, {}).values()
        if not operation.granted
        for rank, asked in operation.asked.items()
        if asked.request is not None
    }
