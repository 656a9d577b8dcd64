"""Leases of operations under way, and lasting leases."""

from __future__ import annotations

from railx.fabric.actions import Action, RecallAction
from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions import queueing
from railx.fabric.decisions.state import (
    Hold,
    State,
    TrackedOperation,
    by_name,
    ports_in_order,
)


def lease(core: State, operation: TrackedOperation) -> None:
    for circuit in operation.circuits:
        if circuit in core.lit:
            core.leases.setdefault(circuit, set()).add(operation.key)


def end_when_released(core: State, operation: TrackedOperation) -> None:
    if len(operation.released) < len(operation.asked):
        return
    queueing.forget(core, operation)
    for circuit in operation.circuits:
        keys = core.leases.get(circuit)
        if keys is not None:
            keys.discard(operation.key)
            if not keys:
                del core.leases[circuit]
    queueing.touch(core, operation.ports)


def begin_lease(core: State, operation: TrackedOperation) -> Hold | None:
    """Begin a held lease with the grant of ``operation``.

    None where others wait for its ports already, or where members cannot hold one.
    """
    configuration = operation.configuration
    if not operation.circuits or configuration in core.holds:
        return None
    if others_wait(core, operation):
        return None
    for asked in operation.asked.values():
        if not asked.can_hold:
            return None
    for other in core.by_channel.get(operation.key[0], {}).values():
        if other.configuration != configuration:
            # Members that disagree about the channel have to ask to be told.
            return None
    hold = Hold(core.next_hold, operation.circuits, set(configuration.members))
    core.next_hold += 1
    core.holds[configuration] = hold
    for member in configuration.members:
        core.holds_of.setdefault(member, {})[configuration] = None
    for circuit in hold.circuits:
        core.holds_by_circuit.setdefault(circuit, set()).add(configuration)
    return hold


def others_wait(core: State, operation: TrackedOperation) -> bool:
    """Whether operations of another configuration wait for its ports."""
    waiting, configuration = core.waiting, operation.configuration
    for port in operation.ports:
        if port in waiting:
            for other in waiting[port].values():
                if other.configuration != configuration:
                    return True
    return False


def recall(core: State, configuration: Configuration, reason: str | None = None) -> list[Action]:
    """Ask the holders of a lease to give it back, once."""
    hold = core.holds.get(configuration)
    if hold is None or hold.recalled:
        return []
    hold.recalled = True
    hold.loss_announced = reason is not None
    core.counters["recalls"] += len(hold.holders)
    return [RecallAction(rank, configuration, hold.number, reason) for rank in sorted(hold.holders)]


def recall_from(
    core: State, circuits: list[Circuit], expected: Configuration | None = None
) -> list[Action]:
    """Recall the held leases that keep ``circuits`` from coming up.

    ``expected``: only to be ahead of what needs this, so that only those leases are
    recalled with which a member is through: it has given its part back, or has
    asked for an operation of ``expected``.
    """
    through = set() if expected is None else standing_before(core, expected)
    in_the_way: dict[Configuration, None] = {}
    active, every = core.active, core.holds_by_circuit
    for port in ports_in_order(tuple(circuits)):
        here = active.get(port)
        configurations = () if here is None else every.get(here, ())
        for configuration in (
            sorted(configurations, key=by_name) if len(configurations) > 1 else configurations
        ):
            hold = core.holds[configuration]
            if hold.recalled:
                continue
            few = len(hold.holders) < len(configuration.members)
            if expected is None or few or not through.isdisjoint(hold.holders):
                in_the_way[configuration] = None
    return [action for configuration in in_the_way for action in recall(core, configuration)]


def standing_before(core: State, configuration: Configuration) -> set[int]:
    """Ranks that have asked for an operation with this configuration, and wait."""
    return {
        rank
        for operation in core.by_configuration.get(configuration, {}).values()
        if not operation.granted
        for rank, asked in operation.asked.items()
        if asked.request is not None
    }
