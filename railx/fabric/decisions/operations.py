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
from railx.fabric.decisions.refusals import Refusals
from railx.fabric.decisions.state import (
    OPEN_OPERATIONS,
    TOMBSTONES,
    Asked,
    Expected,
    Hint,
    Tombstone,
    TrackedOperation,
    discard,
    passed,
    wired,
)
from railx.fabric.holdings import OperationKey

__all__ = ["Hints", "Operations"]


class Hints(Refusals):
    """The configurations that ranks expect."""

    def _take_hint(self, rank: int, configuration: Configuration) -> bool:
        hint = self._take_back_hint(rank)
        mispredicted = hint is not None and hint.configuration != configuration
        if mispredicted:
            self._count(rank, "mispredictions")
        return mispredicted

    def _take_back_hint(self, rank: int) -> Hint | None:
        hint = self._hints.pop(rank, None)
        if hint is not None:
            expected = self._expected[hint.configuration]
            expected.hints.remove(rank)
            expected.unserved -= not hint.served
            self._expect(hint.configuration, rank, -1)
        return hint

    def _expect(self, configuration: Configuration, rank: int, change: int) -> None:
        """A rank expects a configuration for one reason more, or less."""
        expected = self._expected.get(configuration)
        if expected is None:
            expected = self._expected[configuration] = Expected()
        ranks = expected.ranks
        count = ranks.get(rank, 0) + change
        if count:
            ranks[rank] = count
        else:
            del ranks[rank]
            if not ranks:
                del self._expected[configuration]
        if not expected.unserved and expected.ready is None:
            return
        ready = expected.unserved > 0 and len(ranks) == len(configuration.members)
        if ready and expected.ready is None:
            expected.ready = self._turn()
            for port in ports_of(self.layout.circuits(configuration)):
                self._ready.setdefault(port, {})[configuration] = None
        elif not ready:
            self._not_ready(configuration, expected)
        if ready:
            self._touched_hints[configuration] = None

    def _not_ready(self, configuration: Configuration, expected: Expected) -> None:
        if expected.ready is not None:
            expected.ready = None
            for port in ports_of(self.layout.circuits(configuration)):
                discard(self._ready, port, configuration)


class Operations(Hints):
    """Makes, queues and ends operations."""

    def _operation(self, key: OperationKey, configuration: Configuration) -> TrackedOperation:
        """The operation of this key, made where there is none."""
        operation = self._operations.get(key)
        if operation is None:
            circuits, ports = wired(self.layout, configuration)
            operation = TrackedOperation(key, configuration, circuits, ports, self._turn())
            self._operations[key] = operation
            self._by_channel.setdefault(key[0], {})[key[1]] = operation
            self._by_configuration.setdefault(configuration, {})[key] = operation
            for member in configuration.members:
                self._by_member.setdefault(member, {})[key] = operation
        return operation

    def _forget(self, operation: TrackedOperation) -> None:
        """Take an operation out of everything but the leases."""
        key, configuration = operation.key, operation.configuration
        if not operation.granted:
            self._stands_no_more(operation)
        del self._operations[key]
        discard(self._by_channel, key[0], key[1])
        discard(self._by_configuration, configuration, key)
        for member in configuration.members:
            discard(self._by_member, member, key)

    def _stand(self, operation: TrackedOperation, rank: int, asked: Asked) -> None:
        """A member waits for an operation that is not granted."""
        operation.asked[rank] = asked
        self._expect(operation.configuration, rank, 1)
        if self._listening:
            self._stirred.update(self._listening.get(operation.key[0], ()))

    def _stands_no_more(self, operation: TrackedOperation) -> None:
        """An operation is granted or has failed: it leaves the queue."""
        for rank in operation.asked:
            self._expect(operation.configuration, rank, -1)
        if operation.order is None:
            return
        del self._queue[operation.order]
        for port in operation.ports:
            waiting = self._waiting[port]
            del waiting[operation.order]
            if not waiting:
                del self._waiting[port]
        operation.order = None
        self._touch(operation.ports)

    def _enqueue(self, operation: TrackedOperation) -> None:
        """Queue an operation once all members have asked."""
        if operation.order is not None or len(operation.asked) < len(
            operation.configuration.members
        ):
            return
        operation.order = self._turn()
        self._queue[operation.order] = operation
        for port in operation.ports:
            self._waiting.setdefault(port, {})[operation.order] = operation
        heapq.heappush(self._touched, operation.order)

    def _first_at(self, ports: Iterable[Port]) -> list[TrackedOperation]:
        """The first operation of the queue at each of these ports, in order."""
        first = {next(iter(self._waiting[port])) for port in ports if port in self._waiting}
        return [self._queue[order] for order in sorted(first)]

    def _touch(self, ports: Iterable[Port]) -> None:
        """Something changed at these ports: visit their first operations again."""
        everyone, ready = self._waiting, self._ready
        orders = set()
        for port in ports:
            waiting = everyone.get(port)
            if waiting:
                orders.add(next(iter(waiting)))
            if ready and port in ready:
                self._touched_hints.update(ready[port])
        for order in orders:
            heapq.heappush(self._touched, order)

    def _has_too_many(self, rank: int) -> bool:
        mine = self._by_member.get(rank, {})
        return (
            len(mine) >= OPEN_OPERATIONS
            and sum(
                rank in operation.asked and rank not in operation.released
                for operation in mine.values()
            )
            >= OPEN_OPERATIONS
        )

    def _fail(self, operation: TrackedOperation, message: str, reason: str) -> list[Action]:
        """End an operation that was not granted in an error for all that asked for it.

        Members that ask later get the error then. The caller advances.
        """
        self._forget(operation)
        members = set(operation.configuration.members)
        untold = members - operation.asked.keys() - self._gone.keys()
        if untold:
            self._bury(operation.key, message, reason, untold)
        return [
            self._refuse(rank, asked.request, message, reason)
            for rank, asked in sorted(operation.asked.items())
            if rank not in self._gone
            and (asked.request is not None or rank not in operation.released)
        ]

    def _bury(self, key: OperationKey, message: str, reason: str, untold: set[int]) -> None:
        """Keep a failed operation's error for the members that ask later."""
        if not untold:
            self._tombstones.pop(key, None)
            return
        self._tombstones[key] = Tombstone(message, reason, untold)
        if self._listening:
            self._stirred.update(self._listening.get(key[0], ()))
        if len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _pass(self, rank: int, key: OperationKey) -> list[Action]:
        """Fail the earlier operations of a channel that ``rank`` has not asked for.

        It comes to ``key``, and a question for one before that would be refused. They
        are left where a controller before this one has refused them to the rank.
        """
        channel, number = key
        last = self._last_of(rank, channel)
        if number <= last + 1:
            return []
        actions: list[Action] = []
        row = self._by_channel.get(channel)
        if row is None:
            return []
        for operation in [row[earlier] for earlier in sorted(row) if last < earlier < number]:
            configuration = operation.configuration
            if operation.granted or rank in operation.asked or rank not in configuration.members:
                continue
            # Operations begun under a lease count when the lease ends.
            if configuration not in self.holds:
                message = passed(rank, configuration, operation.key)
                actions += self._fail(operation, message, "ended")
                self._mark_notified(operation.key, rank)
        return actions

    def _mark_notified(self, key: OperationKey, rank: int) -> None:
        """A member has got the error of a failed operation."""
        tombstone = self._tombstones.get(key)
        if tombstone is not None:
            tombstone.untold.discard(rank)
            if not tombstone.untold:
                del self._tombstones[key]
