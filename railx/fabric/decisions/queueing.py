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
    Expected,
    Hint,
    State,
    Tombstone,
    TrackedOperation,
    add_count,
    discard,
    last_of,
    passed,
    turn,
    wired,
)
from railx.fabric.holdings import OperationKey


def take_hint(core: State, rank: int, configuration: Configuration) -> bool:
    hint = take_back_hint(core, rank)
    mispredicted = hint is not None and hint.configuration != configuration
    if mispredicted:
        add_count(core, rank, "mispredictions")
    return mispredicted


def take_back_hint(core: State, rank: int) -> Hint | None:
    hint = core.hints.pop(rank, None)
    if hint is not None:
        expected = core.expected[hint.configuration]
        expected.hints.remove(rank)
        expected.unserved -= not hint.served
        expect(core, hint.configuration, rank, -1)
    return hint


def expect(core: State, configuration: Configuration, rank: int, change: int) -> None:
    """A rank expects a configuration for one reason more, or less."""
    expected = core.expected.get(configuration)
    if expected is None:
        expected = core.expected[configuration] = Expected()
    ranks = expected.ranks
    count = ranks.get(rank, 0) + change
    if count:
        ranks[rank] = count
    else:
        del ranks[rank]
        if not ranks:
            del core.expected[configuration]
    if not expected.unserved and expected.ready is None:
        return
    ready = expected.unserved > 0 and len(ranks) == len(configuration.members)
    if ready and expected.ready is None:
        expected.ready = turn(core)
        for port in ports_of(core.layout.circuits(configuration)):
            core.ready.setdefault(port, {})[configuration] = None
    elif not ready:
        not_ready(core, configuration, expected)
    if ready:
        core.touched_hints[configuration] = None


def not_ready(core: State, configuration: Configuration, expected: Expected) -> None:
    if expected.ready is not None:
        expected.ready = None
        for port in ports_of(core.layout.circuits(configuration)):
            discard(core.ready, port, configuration)


def tracked(core: State, key: OperationKey, configuration: Configuration) -> TrackedOperation:
    """The operation of this key, made where there is none."""
    operation = core.operations.get(key)
    if operation is None:
        circuits, ports = wired(core.layout, configuration)
        operation = TrackedOperation(key, configuration, circuits, ports, turn(core))
        core.operations[key] = operation
        core.by_channel.setdefault(key[0], {})[key[1]] = operation
        core.by_configuration.setdefault(configuration, {})[key] = operation
        for member in configuration.members:
            core.by_member.setdefault(member, {})[key] = operation
    return operation


def forget(core: State, operation: TrackedOperation) -> None:
    """Take an operation out of everything but the leases."""
    key, configuration = operation.key, operation.configuration
    if not operation.granted:
        stands_no_more(core, operation)
    del core.operations[key]
    discard(core.by_channel, key[0], key[1])
    discard(core.by_configuration, configuration, key)
    for member in configuration.members:
        discard(core.by_member, member, key)


def stand(core: State, operation: TrackedOperation, rank: int, asked: Asked) -> None:
    """A member waits for an operation that is not granted."""
    operation.asked[rank] = asked
    expect(core, operation.configuration, rank, 1)


def stands_no_more(core: State, operation: TrackedOperation) -> None:
    """An operation is granted or has failed: it leaves the queue."""
    for rank in operation.asked:
        expect(core, operation.configuration, rank, -1)
    if operation.order is None:
        return
    del core.queue[operation.order]
    for port in operation.ports:
        waiting = core.waiting[port]
        del waiting[operation.order]
        if not waiting:
            del core.waiting[port]
    operation.order = None
    touch(core, operation.ports)


def enqueue(core: State, operation: TrackedOperation) -> None:
    """Queue an operation once all members have asked."""
    if operation.order is not None or len(operation.asked) < len(operation.configuration.members):
        return
    operation.order = turn(core)
    core.queue[operation.order] = operation
    for port in operation.ports:
        core.waiting.setdefault(port, {})[operation.order] = operation
    heapq.heappush(core.touched, operation.order)


def first_at(core: State, ports: Iterable[Port]) -> list[TrackedOperation]:
    """The first operation of the queue at each of these ports, in order."""
    first = {next(iter(core.waiting[port])) for port in ports if port in core.waiting}
    return [core.queue[order] for order in sorted(first)]


def touch(core: State, ports: Iterable[Port]) -> None:
    """Something changed at these ports: visit their first operations again."""
    everyone, ready = core.waiting, core.ready
    orders = set()
    for port in ports:
        waiting = everyone.get(port)
        if waiting:
            orders.add(next(iter(waiting)))
        if ready and port in ready:
            core.touched_hints.update(ready[port])
    for order in orders:
        heapq.heappush(core.touched, order)


def has_too_many(core: State, rank: int) -> bool:
    mine = core.by_member.get(rank, {})
    return (
        len(mine) >= OPEN_OPERATIONS
        and sum(
            rank in operation.asked and rank not in operation.released
            for operation in mine.values()
        )
        >= OPEN_OPERATIONS
    )


def fail(core: State, operation: TrackedOperation, message: str, reason: str) -> list[Action]:
    """End an operation that was not granted in an error for all that asked for it.

    Members that ask later get the error then. The caller advances.
    """
    forget(core, operation)
    members = set(operation.configuration.members)
    untold = members - operation.asked.keys() - core.gone.keys()
    if untold:
        bury(core, operation.key, message, reason, untold)
    return [
        refuse(core, rank, asked.request, message, reason)
        for rank, asked in sorted(operation.asked.items())
        if rank not in core.gone and (asked.request is not None or rank not in operation.released)
    ]


def bury(core: State, key: OperationKey, message: str, reason: str, untold: set[int]) -> None:
    """Keep a failed operation's error for the members that ask later."""
    if not untold:
        core.tombstones.pop(key, None)
        return
    core.tombstones[key] = Tombstone(message, reason, untold)
    if len(core.tombstones) > TOMBSTONES:
        del core.tombstones[next(iter(core.tombstones))]


def go_past(core: State, rank: int, key: OperationKey) -> list[Action]:
    """Fail the earlier operations of a channel that ``rank`` has not asked for.

    It comes to ``key``, and a question for one before that would be refused. They
    are left where a controller before this one has refused them to the rank.
    """
    channel, number = key
    last = last_of(core, rank, channel)
    if number <= last + 1:
        return []
    actions: list[Action] = []
    row = core.by_channel.get(channel)
    if row is None:
        return []
    for operation in [row[earlier] for earlier in sorted(row) if last < earlier < number]:
        configuration = operation.configuration
        if operation.granted or rank in operation.asked or rank not in configuration.members:
            continue
        # Operations begun under a lease count when the lease ends.
        if configuration not in core.holds:
            message = passed(rank, configuration, operation.key)
            actions += fail(core, operation, message, "ended")
            mark_notified(core, operation.key, rank)
    return actions


def mark_notified(core: State, key: OperationKey, rank: int) -> None:
    """A member has got the error of a failed operation."""
    tombstone = core.tombstones.get(key)
    if tombstone is not None:
        tombstone.untold.discard(rank)
        if not tombstone.untold:
            del core.tombstones[key]
