"""Ranks arrive, leave or die, and come back as another process; so does the controller.

After a restart of the controller ranks present what they have begun. It grants and
switches nothing before all have, or are given up. Then it goes on as if all leases had
been recalled.
"""

from __future__ import annotations

from collections import Counter

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions.granting import advance
from railx.fabric.decisions.handed_back import settle, take_over_channel
from railx.fabric.decisions.leases import end_when_released, recall
from railx.fabric.decisions.listeners import drop_listener, hear
from railx.fabric.decisions.operations import (
    fail_operation,
    mark_notified,
    take_back_hint,
    touch_ports,
)
from railx.fabric.decisions.refusals import announce_loss, refuse, unheard
from railx.fabric.decisions.state import ORDERLY, ControllerState, Hold, name_of
from railx.fabric.holdings import Presentation

__all__ = ["awaited", "end_recovery", "leave", "present", "register"]


# A restarted controller.


def awaited(state: ControllerState) -> frozenset[int]:
    """The ranks that have not presented what they have begun."""
    if not state.recovering:
        return frozenset()
    return frozenset(range(state.ranks)) - state.presented.keys() - state.departed.keys()


def present(
    state: ControllerState, rank: int, presentation: Presentation, now_ns: int
) -> list[Action]:
    """``rank`` presents its operations to a restarted controller.

    Then it asks its open questions again. From now on it asks before every
    operation and releases those in ``presentation.open``. A second time changes
    nothing.
    """
    if not state.recovering or rank not in awaited(state):
        return []
    state.presented[rank] = presentation
    for channel, (_, number) in presentation.begun.items():
        state.note_last_number(rank, channel, number)
    state.count(rank, "held", presentation.operations)
    return [] if awaited(state) else _recover(state, now_ns)


def end_recovery(state: ControllerState, now_ns: int) -> list[Action]:
    """Ranks that have not presented by now count as dead."""
    for rank in sorted(awaited(state)):
        state.departed[rank] = "did not come back after the controller was restarted"
        state.former_incarnations[rank] = state.incarnations.pop(rank, None)
        state.failures["ranks"] += 1
    return _recover(state, now_ns) if state.recovering else []


def _recover(state: ControllerState, now_ns: int) -> list[Action]:
    """All remaining ranks have presented: go on as if all leases were recalled."""
    state.recovering = False
    # A new process has begun none of the operations of the former one.
    lost = {
        rank: "is another process since the controller was restarted"
        for rank in state.incarnations
        if rank not in state.returning
    }
    channels: dict[str, dict[int, Configuration]] = {}
    for rank, presentation in state.presented.items():
        for channel, (configuration, _) in presentation.begun.items():
            if rank in configuration.members and configuration.members[-1] < state.ranks:
                channels.setdefault(channel, {})[rank] = configuration
    actions: list[Action] = []
    for channel in sorted(channels):
        needs = channels[channel]
        configuration = needs[min(needs)]
        members = set(configuration.members)
        presented = {
            rank: item
            for rank, item in state.presented.items()
            if rank in members
            and rank not in lost
            and needs.get(rank, configuration) == configuration
        }
        if not presented:
            continue
        dark = [item for item in state.layout.circuits(configuration) if item not in state.lit]
        hold = Hold(0, state.layout.circuits(configuration), set())
        hold.lost = {rank: reason for rank, reason in lost.items() if rank in members}
        if dark:
            hold.lost_port = f"the circuit {dark[0].right} - {dark[0].left} is dark"
        actions += take_over_channel(
            state,
            configuration,
            channel,
            {
                rank: {channel: item.begun[channel][1]} if channel in item.begun else {}
                for rank, item in presented.items()
            },
            {
                rank: frozenset(key for key in item.open if (rank, key) not in state.ended_early)
                for rank, item in presented.items()
            },
            hold,
            Counter(),
            now_ns,
            max((item.over.get(channel, -1) for item in presented.values()), default=-1),
        )
    state.presented.clear()
    state.ended_early.clear()
    state.returning.clear()
    state.stirred.update(state.listeners)
    return [*actions, *advance(state, now_ns)]


# Ranks that arrive and leave.


def register(
    state: ControllerState, rank: int, incarnation: int | None = None, *, returning: bool = False
) -> str | None:
    """A rank arrives or comes back; returns why it may not (one line), or None.

    ``incarnation`` tells two processes of a rank apart. ``returning``: it was
    registered with a controller before this one.
    """
    if not 0 <= rank < state.ranks:
        return f"rank {rank} registered; allowed: 0 to {state.ranks - 1}"
    if rank in state.incarnations:
        return f"rank {rank} is already registered"
    if incarnation is not None and state.former_incarnations.get(rank) == incarnation:
        return f"rank {rank} {state.departed.get(rank, 'has left')}; allowed: a new process"
    if returning and not state.recovering:
        return f"rank {rank} came back too late: the controller does not wait for it any more"
    if not state.incarnations and not state.recovering:
        # The first rank of the next program: losses of the last one are over.
        state.departed.clear()
        state.tombstones.clear()
    state.incarnations[rank] = incarnation
    if returning:
        state.returning.add(rank)
    state.departed.pop(rank, None)
    take_back_hint(state, rank)
    state.last_numbers.pop(rank, None)
    state.heard.pop(rank, None)
    state.given_up.pop(rank, None)
    for key in [key for key, item in state.tombstones.items() if rank in item.untold]:
        mark_notified(state, key, rank)
    return None


def leave(state: ControllerState, rank: int, reason: str, now_ns: int) -> list[Action]:
    """``rank`` is gone: ranks that wait for it get an error, and its leases end.

    ``reason`` completes "rank 3 ...".
    """
    state.departed[rank] = reason
    if rank in state.incarnations:
        state.former_incarnations[rank] = state.incarnations.pop(rank)
    state.failures["ranks"] += reason != ORDERLY
    state.returning.discard(rank)
    state.presented.pop(rank, None)
    take_back_hint(state, rank)
    actions: list[Action] = []
    for listening, request in list(state.listeners_of.get(rank, ())):
        drop_listener(state, listening, request)
        if listening != rank:
            hear(state, listening, request)
            message = unheard(state, listening, rank)
            actions.append(refuse(state, listening, request, message, "lost"))
    for operation in list(state.by_member.get(rank, {}).values()):
        message = f"rank {rank} {reason} during {name_of(operation)}"
        if operation.granted:
            # Those who leave because of the first loss are not its reason.
            actions += announce_loss(state, operation, message, "lost", but=rank)
            operation.released.add(rank)
            end_when_released(state, operation)
        else:
            actions += fail_operation(state, operation, message, "lost")
    for configuration in list(state.holds_of.get(rank, ())):
        hold = state.holds[configuration]
        hold.holders.discard(rank)
        hold.reports.pop(rank, None)
        hold.lost.setdefault(rank, reason)
        touch_ports(state, ports_of(hold.circuits))
        actions += recall(state, configuration, f"rank {rank} {reason}")
        actions += settle(state, configuration, now_ns)
    if state.recovering and not awaited(state):
        return [*actions, *_recover(state, now_ns)]
    return [*actions, *advance(state, now_ns)]
