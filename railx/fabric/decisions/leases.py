"""Receives from any source, leases of operations under way, and lasting leases."""

from __future__ import annotations

from railx.fabric.actions import Action, FoundAction, RecallAction
from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions import queueing
from railx.fabric.decisions.refusals import refuse
from railx.fabric.decisions.state import (
    LISTENERS,
    Hold,
    Listener,
    State,
    TrackedOperation,
    by_name,
    note_last,
    ports_in_order,
)
from railx.fabric.holdings import OperationKey


def mark_heard(core: State, rank: int, request: int) -> None:
    """A listening rank's question has its answer."""
    heard = core.heard.setdefault(rank, {})
    heard[request] = None
    if len(heard) > LISTENERS:
        del heard[next(iter(heard))]


def drop_listener(core: State, rank: int, request: int) -> None:
    listener = core.listeners.pop((rank, request), None)
    if listener is None:
        return
    for channel in listener.channels:
        del core.listening[channel][rank, request]
        if not core.listening[channel]:
            del core.listening[channel]
    for member in involved(rank, listener):
        del core.listeners_of[member][rank, request]
        if not core.listeners_of[member]:
            del core.listeners_of[member]
    for configuration in listener.configurations:
        core.listened[configuration] -= 1
        if not core.listened[configuration]:
            del core.listened[configuration]


def answer_listeners(core: State) -> list[Action]:
    """Answer listening ranks with the first sender that waits on their channels.

    Without one, with an operation that failed before its receiver asked for it.
    """
    stirred = [key for key in core.stirred if key in core.listeners]
    core.stirred.clear()
    actions: list[Action] = []
    for rank, request in sorted(stirred, key=lambda key: core.listeners[key].serial):
        listener = core.listeners[rank, request]
        standing = [
            (operation.serial, operation.key, source)
            for channel in listener.channels
            for operation in core.by_channel.get(channel, {}).values()
            if (source := sender_before(core, operation, rank, listener)) is not None
        ]
        if standing:
            _, (channel, number), source = min(standing)
            # A later one may be known first, where the earlier began under a lease.
            number = min(key[1] for _, key, _ in standing if key[0] == channel)
            drop_listener(core, rank, request)
            mark_heard(core, rank, request)
            actions.append(FoundAction(rank, request, source, (channel, number)))
        elif (failed := failed_before(core, rank, listener)) is not None:
            tombstone = core.tombstones[failed]
            queueing.mark_notified(core, failed, rank)
            note_last(core, rank, *failed)
            drop_listener(core, rank, request)
            mark_heard(core, rank, request)
            actions.append(refuse(core, rank, request, tombstone.message, tombstone.reason))
    return actions


def failed_before(core: State, rank: int, listener: Listener) -> OperationKey | None:
    """An operation that ``rank`` listens for, which failed before it came to it."""
    for key, tombstone in core.tombstones.items():
        channel, number = key
        _, first = listener.channels.get(channel, (None, number + 1))
        if number >= first and rank in tombstone.untold:
            return key
    return None


def sender_before(
    core: State, operation: TrackedOperation, rank: int, listener: Listener
) -> int | None:
    """The sender that stands before an operation which ``rank`` listens for.

    None where it is none of those, where ``rank`` has asked for it already, and
    while an earlier one of the channel may have begun under a held lease.
    """
    channel, number = operation.key
    source, first = listener.channels.get(channel, (None, 0))
    meant = source in operation.asked and rank not in operation.asked and number >= first
    return source if meant and operation.configuration not in core.holds else None


def involved(rank: int, listener: Listener) -> set[int]:
    return {rank, *(source for source, _ in listener.channels.values())}


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
    if configuration in core.listened or others_wait(core, operation):
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
