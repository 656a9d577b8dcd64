"""Receives from any source, leases of operations under way, and lasting leases."""

from __future__ import annotations

from railx.fabric.actions import Action, FoundAction, RecallAction
from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions.operations import Operations
from railx.fabric.decisions.state import (
    LISTENERS,
    Hold,
    Listener,
    TrackedOperation,
    by_name,
    ports_in_order,
)
from railx.fabric.holdings import OperationKey

__all__ = ["Leases", "Listeners", "involved"]


class Listeners(Operations):
    """Listening ranks and the senders that they wait for."""

    def _hear(self, rank: int, request: int) -> None:
        """A listening rank's question has its answer."""
        heard = self._heard.setdefault(rank, {})
        heard[request] = None
        if len(heard) > LISTENERS:
            del heard[next(iter(heard))]

    def _drop_listener(self, rank: int, request: int) -> None:
        listener = self._listeners.pop((rank, request), None)
        if listener is None:
            return
        for channel in listener.channels:
            del self._listening[channel][rank, request]
            if not self._listening[channel]:
                del self._listening[channel]
        for member in involved(rank, listener):
            del self._listeners_of[member][rank, request]
            if not self._listeners_of[member]:
                del self._listeners_of[member]
        for configuration in listener.configurations:
            self._listened[configuration] -= 1
            if not self._listened[configuration]:
                del self._listened[configuration]

    def _find(self) -> list[Action]:
        """Answer listening ranks with the first sender that waits on their channels.

        Without one, with an operation that failed before its receiver asked for it.
        """
        stirred = [key for key in self._stirred if key in self._listeners]
        self._stirred.clear()
        actions: list[Action] = []
        for rank, request in sorted(stirred, key=lambda key: self._listeners[key].serial):
            listener = self._listeners[rank, request]
            standing = [
                (operation.serial, operation.key, source)
                for channel in listener.channels
                for operation in self._by_channel.get(channel, {}).values()
                if (source := self._stands_before(operation, rank, listener)) is not None
            ]
            if standing:
                _, (channel, number), source = min(standing)
                # A later one may be known first, where the earlier began under a lease.
                number = min(key[1] for _, key, _ in standing if key[0] == channel)
                self._drop_listener(rank, request)
                self._hear(rank, request)
                actions.append(FoundAction(rank, request, source, (channel, number)))
            elif (failed := self._failed(rank, listener)) is not None:
                tombstone = self._tombstones[failed]
                self._mark_notified(failed, rank)
                self._note_last(rank, *failed)
                self._drop_listener(rank, request)
                self._hear(rank, request)
                actions.append(self._refuse(rank, request, tombstone.message, tombstone.reason))
        return actions

    def _failed(self, rank: int, listener: Listener) -> OperationKey | None:
        """An operation that ``rank`` listens for, which failed before it came to it."""
        for key, tombstone in self._tombstones.items():
            channel, number = key
            _, first = listener.channels.get(channel, (None, number + 1))
            if number >= first and rank in tombstone.untold:
                return key
        return None

    def _stands_before(
        self, operation: TrackedOperation, rank: int, listener: Listener
    ) -> int | None:
        """The sender that stands before an operation which ``rank`` listens for.

        None where it is none of those, where ``rank`` has asked for it already, and
        while an earlier one of the channel may have begun under a held lease.
        """
        channel, number = operation.key
        source, first = listener.channels.get(channel, (None, 0))
        meant = source in operation.asked and rank not in operation.asked and number >= first
        return source if meant and operation.configuration not in self.holds else None


def involved(rank: int, listener: Listener) -> set[int]:
    return {rank, *(source for source, _ in listener.channels.values())}


class Leases(Listeners):
    """Leases circuits and recalls held leases."""

    def _lease(self, operation: TrackedOperation) -> None:
        for circuit in operation.circuits:
            if circuit in self.lit:
                self.leases.setdefault(circuit, set()).add(operation.key)

    def _end_when_released(self, operation: TrackedOperation) -> None:
        if len(operation.released) < len(operation.asked):
            return
        self._forget(operation)
        for circuit in operation.circuits:
            keys = self.leases.get(circuit)
            if keys is not None:
                keys.discard(operation.key)
                if not keys:
                    del self.leases[circuit]
        self._touch(operation.ports)

    def _hold(self, operation: TrackedOperation) -> Hold | None:
        """Begin a held lease with the grant of ``operation``.

        None where others wait for its ports already, or where members cannot hold one.
        """
        configuration = operation.configuration
        if not operation.circuits or configuration in self.holds:
            return None
        if configuration in self._listened or self._others_wait(operation):
            return None
        for asked in operation.asked.values():
            if not asked.can_hold:
                return None
        for other in self._by_channel.get(operation.key[0], {}).values():
            if other.configuration != configuration:
                # Members that disagree about the channel have to ask to be told.
                return None
        hold = Hold(self._next_hold, operation.circuits, set(configuration.members))
        self._next_hold += 1
        self.holds[configuration] = hold
        for member in configuration.members:
            self._holds_of.setdefault(member, {})[configuration] = None
        for circuit in hold.circuits:
            self.holds_by_circuit.setdefault(circuit, set()).add(configuration)
        return hold

    def _others_wait(self, operation: TrackedOperation) -> bool:
        """Whether operations of another configuration wait for its ports."""
        waiting, configuration = self._waiting, operation.configuration
        for port in operation.ports:
            if port in waiting:
                for other in waiting[port].values():
                    if other.configuration != configuration:
                        return True
        return False

    def _recall(self, configuration: Configuration, reason: str | None = None) -> list[Action]:
        """Ask the holders of a lease to give it back, once."""
        hold = self.holds.get(configuration)
        if hold is None or hold.recalled:
            return []
        hold.recalled = True
        hold.loss_announced = reason is not None
        self.counters["recalls"] += len(hold.holders)
        return [
            RecallAction(rank, configuration, hold.number, reason) for rank in sorted(hold.holders)
        ]

    def _recall_from(
        self, circuits: list[Circuit], expected: Configuration | None = None
    ) -> list[Action]:
        """Recall the held leases that keep ``circuits`` from coming up.

        ``expected``: only to be ahead of what needs this, so that only those leases are
        recalled with which a member is through: it has given its part back, or has
        asked for an operation of ``expected``.
        """
        through = set() if expected is None else self._standing_before(expected)
        in_the_way: dict[Configuration, None] = {}
        active, every = self.active, self.holds_by_circuit
        for port in ports_in_order(tuple(circuits)):
            here = active.get(port)
            configurations = () if here is None else every.get(here, ())
            for configuration in (
                sorted(configurations, key=by_name) if len(configurations) > 1 else configurations
            ):
                hold = self.holds[configuration]
                if hold.recalled:
                    continue
                few = len(hold.holders) < len(configuration.members)
                if expected is None or few or not through.isdisjoint(hold.holders):
                    in_the_way[configuration] = None
        return [action for configuration in in_the_way for action in self._recall(configuration)]

    def _standing_before(self, configuration: Configuration) -> set[int]:
        """Ranks that have asked for an operation with this configuration, and wait."""
        return {
            rank
            for operation in self._by_configuration.get(configuration, {}).values()
            if not operation.granted
            for rank, asked in operation.asked.items()
            if asked.request is not None
        }
