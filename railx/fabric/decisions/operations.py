"""Hints, operations, their indices, and the queue of those that all members asked for.

A configuration that all its members expect is ready to be switched ahead of its need.
An operation that failed leaves a tombstone for members that come to it later. A change
at a port touches the first operation that waits there, so that no other is visited.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration, Port, ports_of
from railx.fabric.decisions.refusals import refuse
from railx.fabric.decisions.state import (
    OPEN_OPERATIONS,
    TOMBSTONES,
    Asked,
    ControllerState,
    Expected,
    Hint,
    Tombstone,
    TrackedOperation,
    discard,
    passed,
    wired,
)
from railx.fabric.holdings import OperationKey

__all__ = [
    "bury",
    "change_expected",
    "enqueue",
    "fail_operation",
    "first_at",
    "forget_operation",
    "has_too_many",
    "leave_queue",
    "mark_notified",
    "not_ready",
    "pass_over",
    "stand_before",
    "take_back_hint",
    "take_hint",
    "touch_ports",
    "track_operation",
]


# Hints: the configurations that ranks expect.


def take_hint(state: ControllerState, rank: int, configuration: Configuration) -> bool:
    hint = take_back_hint(state, rank)
    mispredicted = hint is not None and hint.configuration != configuration
    if mispredicted:
        state.count(rank, "mispredictions")
    return mispredicted


def take_back_hint(state: ControllerState, rank: int) -> Hint | None:
    hint = state.hints.pop(rank, None)
    if hint is not None:
        expected = state.expected[hint.configuration]
        expected.hints.remove(rank)
        expected.unserved -= not hint.served
        change_expected(state, hint.configuration, rank, -1)
    return hint


def change_expected(
    state: ControllerState, configuration: Configuration, rank: int, change: int
) -> None:
    """A rank expects a configuration for one reason more, or less."""
    expected = state.expected.get(configuration)
    if expected is None:
        expected = state.expected[configuration] = Expected()
    ranks = expected.ranks
    count = ranks.get(rank, 0) + change
    if count:
        ranks[rank] = count
    else:
        del ranks[rank]
        if not ranks:
            del state.expected[configuration]
    if not expected.unserved and expected.ready is None:
        return
    ready = expected.unserved > 0 and len(ranks) == len(configuration.members)
    if ready and expected.ready is None:
        expected.ready = state.next_serial()
        for port in ports_of(state.layout.circuits(configuration)):
            state.ready.setdefault(port, {})[configuration] = None
    elif not ready:
        not_ready(state, configuration, expected)
    if ready:
        state.touched_hints[configuration] = None


def not_ready(state: ControllerState, configuration: Configuration, expected: Expected) -> None:
    if expected.ready is not None:
        expected.ready = None
        for port in ports_of(state.layout.circuits(configuration)):
            discard(state.ready, port, configuration)


# Operations.


def track_operation(
    state: ControllerState, key: OperationKey, configuration: Configuration
) -> TrackedOperation:
    """The operation of this key, made where there is none."""
    operation = state.operations.get(key)
    if operation is None:
        circuits, ports = wired(state.layout, configuration)
        operation = TrackedOperation(key, configuration, circuits, ports, state.next_serial())
        state.operations[key] = operation
        state.by_channel.setdefault(key[0], {})[key[1]] = operation
        state.by_configuration.setdefault(configuration, {})[key] = operation
        for member in configuration.members:
            state.by_member.setdefault(member, {})[key] = operation
    return operation


def forget_operation(state: ControllerState, operation: TrackedOperation) -> None:
    """Take an operation out of everything but the leases."""
    key, configuration = operation.key, operation.configuration
    if not operation.granted:
        leave_queue(state, operation)
    del state.operations[key]
    discard(state.by_channel, key[0], key[1])
    discard(state.by_configuration, configuration, key)
    for member in configuration.members:
        discard(state.by_member, member, key)


def stand_before(
    state: ControllerState, operation: TrackedOperation, rank: int, asked: Asked
) -> None:
    """A member waits for an operation that is not granted."""
    operation.asked[rank] = asked
    change_expected(state, operation.configuration, rank, 1)
    if state.listening:
        state.stirred.update(state.listening.get(operation.key[0], ()))


def leave_queue(state: ControllerState, operation: TrackedOperation) -> None:
    """An operation is granted or has failed: it leaves the queue."""
    for rank in operation.asked:
        change_expected(state, operation.configuration, rank, -1)
    if operation.order is None:
        return
    del state.queue[operation.order]
    for port in operation.ports:
        waiting = state.waiting[port]
        del waiting[operation.order]
        if not waiting:
            del state.waiting[port]
    operation.order = None
    touch_ports(state, operation.ports)


def enqueue(state: ControllerState, operation: TrackedOperation) -> None:
    """Queue an operation once all members have asked."""
    if operation.order is not None or len(operation.asked) < len(operation.configuration.members):
        return
    operation.order = state.next_serial()
    state.queue[operation.order] = operation
    for port in operation.ports:
        state.waiting.setdefault(port, {})[operation.order] = operation
    heapq.heappush(state.touched, operation.order)


def first_at(state: ControllerState, ports: Iterable[Port]) -> list[TrackedOperation]:
    """The first operation of the queue at each of these ports, in order."""
    first = {next(iter(state.waiting[port])) for port in ports if port in state.waiting}
    return [state.queue[order] for order in sorted(first)]


def touch_ports(state: ControllerState, ports: Iterable[Port]) -> None:
    """Something changed at these ports: visit their first operations again."""
    everyone, ready = state.waiting, state.ready
    orders = set()
    for port in ports:
        waiting = everyone.get(port)
        if waiting:
            orders.add(next(iter(waiting)))
        if ready and port in ready:
            state.touched_hints.update(ready[port])
    for order in orders:
        heapq.heappush(state.touched, order)


def has_too_many(state: ControllerState, rank: int) -> bool:
    mine = state.by_member.get(rank, {})
    return (
        len(mine) >= OPEN_OPERATIONS
        and sum(
            rank in operation.asked and rank not in operation.released
            for operation in mine.values()
        )
        >= OPEN_OPERATIONS
    )


def fail_operation(
    state: ControllerState, operation: TrackedOperation, message: str, reason: str
) -> list[Action]:
    """End an operation that was not granted in an error for all that asked for it.

    Members that ask later get the error then. The caller advances.
    """
    forget_operation(state, operation)
    members = set(operation.configuration.members)
    untold = members - operation.asked.keys() - state.departed.keys()
    if untold:
        bury(state, operation.key, message, reason, untold)
    return [
        refuse(state, rank, asked.request, message, reason)
        for rank, asked in sorted(operation.asked.items())
        if rank not in state.departed
        and (asked.request is not None or rank not in operation.released)
    ]


def bury(
    state: ControllerState, key: OperationKey, message: str, reason: str, untold: set[int]
) -> None:
    """Keep a failed operation's error for the members that ask later."""
    if not untold:
        state.tombstones.pop(key, None)
        return
    state.tombstones[key] = Tombstone(message, reason, untold)
    if state.listening:
        state.stirred.update(state.listening.get(key[0], ()))
    if len(state.tombstones) > TOMBSTONES:
        del state.tombstones[next(iter(state.tombstones))]


def pass_over(state: ControllerState, rank: int, key: OperationKey) -> list[Action]:
    """Fail the earlier operations of a channel that ``rank`` has not asked for.

    It comes to ``key``, and a question for one before that would be refused. They
    are left where a controller before this one has refused them to the rank.
    """
    channel, number = key
    last = state.last_number(rank, channel)
    if number <= last + 1:
        return []
    actions: list[Action] = []
    row = state.by_channel.get(channel)
    if row is None:
        return []
    for operation in [row[earlier] for earlier in sorted(row) if last < earlier < number]:
        configuration = operation.configuration
        if operation.granted or rank in operation.asked or rank not in configuration.members:
            continue
        # Operations begun under a lease count when the lease ends.
        if configuration not in state.holds:
            message = passed(rank, configuration, operation.key)
            actions += fail_operation(state, operation, message, "ended")
            mark_notified(state, operation.key, rank)
    return actions


def mark_notified(state: ControllerState, key: OperationKey, rank: int) -> None:
    """A member has got the error of a failed operation."""
    tombstone = state.tombstones.get(key)
    if tombstone is not None:
        tombstone.untold.discard(rank)
        if not tombstone.untold:
            del state.tombstones[key]
