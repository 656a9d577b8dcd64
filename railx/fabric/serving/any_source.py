"""Receives from any source: which of several senders waits for a rank.

The rank repeats the question until one does, so that nothing of it is stored here. A
send that has begun under a lease is not seen: the caller recalls the leases of
:func:`unseen` first, and the holders' reports name it. Without a sender, the answer is
an operation that failed before its receiver asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from railx.fabric.circuits import Configuration
from railx.fabric.decisions.state import State
from railx.fabric.holdings import OperationKey

__all__ = ["FirstSender", "Refusal", "Senders", "first_sender", "unseen"]

#: By channel, the sender and the number of the first operation that may be meant.
Senders = Mapping[str, tuple[int, int]]


class FirstSender(NamedTuple):
    """``source`` waits for ``key``, an operation with the rank that asks."""

    source: int
    key: OperationKey


class Refusal(NamedTuple):
    """Why no sender will come, and a word to count by."""

    message: str
    reason: str


def first_sender(core: State, rank: int, senders: Senders) -> FirstSender | Refusal | None:
    """The sender of the operation that became known first; None while nobody waits."""
    for source, _ in sorted(senders.values()):
        if source == rank or not 0 <= source < core.ranks:
            allowed = f"another rank, 0 to {core.ranks - 1}"
            return Refusal(f"rank {rank} listens for rank {source}; allowed: {allowed}", "listen")
        if source in core.gone:
            why = f"rank {source} {core.gone[source]}"
            return Refusal(f"{why}, but rank {rank} receives from any source", "lost")
    if core.recovering:
        return None
    waiting = [
        (operation.serial, operation.key, source)
        for channel, (source, first) in senders.items()
        for number, operation in core.by_channel.get(channel, {}).items()
        if number >= first and source in operation.asked and rank not in operation.asked
        # An earlier one of the channel may have begun under the lease.
        if operation.configuration not in core.holds
    ]
    if waiting:
        _, (channel, number), source = min(waiting)
        # A later one may be known first, where the earlier began under a lease.
        number = min(key[1] for _, key, _ in waiting if key[0] == channel)
        return FirstSender(source, (channel, number))
    return failed_before(core, rank, senders)


def failed_before(core: State, rank: int, senders: Senders) -> Refusal | None:
    """The error of an operation that failed before ``rank`` came to it."""
    for (channel, number), tombstone in core.tombstones.items():
        if channel in senders and number >= senders[channel][1] and rank in tombstone.untold:
            return Refusal(tombstone.message, tombstone.reason)
    return None


def unseen(core: State, rank: int, senders: Senders) -> list[Configuration]:
    """The pairs whose leases may carry a send to ``rank`` already."""
    pairs = {Configuration("pair", (rank, source)) for source, _ in senders.values()}
    return sorted(
        (pair for pair in pairs & core.holds.keys() if not core.holds[pair].recalled),
        key=lambda pair: pair.name,
    )
