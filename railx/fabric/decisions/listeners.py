"""Receives from any source: who listens for whom, and which sender came first."""

from __future__ import annotations

from railx.fabric.actions import Action, FoundAction
from railx.fabric.decisions.operations import Operations
from railx.fabric.decisions.state import LISTENERS, Listener, TrackedOperation
from railx.fabric.holdings import OperationKey

__all__ = ["Listeners", "involved"]


class Listeners(Operations):
    """Keeps who listens, and finds whom they wait for."""

    def _hear(self, rank: int, request: int) -> None:
        """A question of who listens has had its answer."""
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
        """Tell who listens of the first sender that stands before its channels.

        Where none does, of an operation that failed before its receiver came to it.
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
