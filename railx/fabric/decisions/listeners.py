"""Receives from any source: listening ranks, and the senders that they wait for."""

from __future__ import annotations

from railx.fabric.actions import Action, FoundAction
from railx.fabric.decisions.operations import mark_notified
from railx.fabric.decisions.refusals import refuse
from railx.fabric.decisions.state import (
    LISTENERS,
    ControllerState,
    Listener,
    TrackedOperation,
)
from railx.fabric.holdings import OperationKey

__all__ = [
    "drop_listener",
    "find_senders",
    "hear",
    "involved",
]


def hear(state: ControllerState, rank: int, request: int) -> None:
    """A listening rank's question has its answer."""
    heard = state.heard.setdefault(rank, {})
    heard[request] = None
    if len(heard) > LISTENERS:
        del heard[next(iter(heard))]


def drop_listener(state: ControllerState, rank: int, request: int) -> None:
    listener = state.listeners.pop((rank, request), None)
    if listener is None:
        return
    for channel in listener.channels:
        del state.listening[channel][rank, request]
        if not state.listening[channel]:
            del state.listening[channel]
    for member in involved(rank, listener):
        del state.listeners_of[member][rank, request]
        if not state.listeners_of[member]:
            del state.listeners_of[member]
    for configuration in listener.configurations:
        state.listened[configuration] -= 1
        if not state.listened[configuration]:
            del state.listened[configuration]


def find_senders(state: ControllerState) -> list[Action]:
    """Answer listening ranks with the first sender that waits on their channels.

    Without one, with an operation that failed before its receiver asked for it.
    """
    stirred = [key for key in state.stirred if key in state.listeners]
    state.stirred.clear()
    actions: list[Action] = []
    for rank, request in sorted(stirred, key=lambda key: state.listeners[key].serial):
        listener = state.listeners[rank, request]
        standing = [
            (operation.serial, operation.key, source)
            for channel in listener.channels
            for operation in state.by_channel.get(channel, {}).values()
            if (source := _sender_before(state, operation, rank, listener)) is not None
        ]
        if standing:
            _, (channel, number), source = min(standing)
            # A later one may be known first, where the earlier began under a lease.
            number = min(key[1] for _, key, _ in standing if key[0] == channel)
            drop_listener(state, rank, request)
            hear(state, rank, request)
            actions.append(FoundAction(rank, request, source, (channel, number)))
        elif (failed := _failed_before(state, rank, listener)) is not None:
            tombstone = state.tombstones[failed]
            mark_notified(state, failed, rank)
            state.note_last_number(rank, *failed)
            drop_listener(state, rank, request)
            hear(state, rank, request)
            actions.append(refuse(state, rank, request, tombstone.message, tombstone.reason))
    return actions


def _failed_before(state: ControllerState, rank: int, listener: Listener) -> OperationKey | None:
    """An operation that ``rank`` listens for, which failed before it came to it."""
    for key, tombstone in state.tombstones.items():
        channel, number = key
        _, first = listener.channels.get(channel, (None, number + 1))
        if number >= first and rank in tombstone.untold:
            return key
    return None


def _sender_before(
    state: ControllerState, operation: TrackedOperation, rank: int, listener: Listener
) -> int | None:
    """The sender that stands before an operation which ``rank`` listens for.

    None where it is none of those, where ``rank`` has asked for it already, and
    while an earlier one of the channel may have begun under a held lease.
    """
    channel, number = operation.key
    source, first = listener.channels.get(channel, (None, 0))
    meant = source in operation.asked and rank not in operation.asked and number >= first
    return source if meant and operation.configuration not in state.holds else None


def involved(rank: int, listener: Listener) -> set[int]:
    return {rank, *(source for source, _ in listener.channels.values())}
