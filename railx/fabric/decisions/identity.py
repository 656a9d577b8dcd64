"""Ranks arrive, leave or die, and come back as another process; so does the controller.

After a restart of the controller ranks present what they have begun. It grants and
switches nothing before all have, or are given up. Then it goes on as if all leases had
been recalled.
"""

from __future__ import annotations

from collections import Counter

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions import granting, handed_back, leases, queueing, refusals
from railx.fabric.decisions.state import ORDERLY, Hold, State, add_count, name_of, note_last
from railx.fabric.holdings import Presentation


def present(core: State, rank: int, presentation: Presentation, now_ns: int) -> list[Action]:
    """``rank`` presents its operations to a restarted controller.

    Then it asks its open questions again. From now on it asks before every
    operation and releases those in ``presentation.open``. A second time changes
    nothing.
    """
    if not core.recovering or rank not in core.awaited:
        return []
    core.presented[rank] = presentation
    for channel, (_, number) in presentation.begun.items():
        note_last(core, rank, channel, number)
    add_count(core, rank, "held", presentation.operations)
    return [] if core.awaited else recover(core, now_ns)


def end_recovery(core: State, now_ns: int) -> list[Action]:
    """Ranks that have not presented by now count as dead."""
    for rank in sorted(core.awaited):
        core.gone[rank] = "did not come back after the controller was restarted"
        core.former[rank] = core.registered.pop(rank, None)
        core.failures["ranks"] += 1
    return recover(core, now_ns) if core.recovering else []


def recover(core: State, now_ns: int) -> list[Action]:
    """All remaining ranks have presented: go on as if all leases were recalled."""
    core.recovering = False
    # A new process has begun none of the operations of the former one.
    lost = {
        rank: "is another process since the controller was restarted"
        for rank in core.registered
        if rank not in core.returning
    }
    channels: dict[str, dict[int, Configuration]] = {}
    for rank, presentation in core.presented.items():
        for channel, (configuration, _) in presentation.begun.items():
            if rank in configuration.members and configuration.members[-1] < core.ranks:
                channels.setdefault(channel, {})[rank] = configuration
    actions: list[Action] = []
    for channel in sorted(channels):
        needs = channels[channel]
        configuration = needs[min(needs)]
        members = set(configuration.members)
        presented = {
            rank: item
            for rank, item in core.presented.items()
            if rank in members
            and rank not in lost
            and needs.get(rank, configuration) == configuration
        }
        if not presented:
            continue
        dark = [item for item in core.layout.circuits(configuration) if item not in core.lit]
        hold = Hold(0, core.layout.circuits(configuration), set())
        hold.lost = {rank: reason for rank, reason in lost.items() if rank in members}
        if dark:
            hold.lost_port = f"the circuit {dark[0].right} - {dark[0].left} is dark"
        actions += handed_back.take_over_channel(
            core,
            configuration,
            channel,
            {
                rank: {channel: item.begun[channel][1]} if channel in item.begun else {}
                for rank, item in presented.items()
            },
            {
                rank: frozenset(key for key in item.open if (rank, key) not in core.ended_early)
                for rank, item in presented.items()
            },
            hold,
            Counter(),
            now_ns,
            max((item.over.get(channel, -1) for item in presented.values()), default=-1),
        )
    core.presented.clear()
    core.ended_early.clear()
    core.returning.clear()
    return [*actions, *granting.advance(core, now_ns)]


def register(
    core: State, rank: int, incarnation: int | None = None, *, returning: bool = False
) -> str | None:
    """A rank arrives or comes back; returns why it may not (one line), or None.

    ``incarnation`` tells two processes of a rank apart. ``returning``: it was
    registered with a controller before this one.
    """
    if not 0 <= rank < core.ranks:
        return f"rank {rank} registered; allowed: 0 to {core.ranks - 1}"
    if rank in core.registered:
        return f"rank {rank} is already registered"
    if incarnation is not None and core.former.get(rank) == incarnation:
        return f"rank {rank} {core.gone.get(rank, 'has left')}; allowed: a new process"
    if returning and not core.recovering:
        return f"rank {rank} came back too late: the controller does not wait for it any more"
    if not core.registered and not core.recovering:
        # The first rank of the next program: losses of the last one are over.
        core.gone.clear()
        core.tombstones.clear()
    core.registered[rank] = incarnation
    if returning:
        core.returning.add(rank)
    core.gone.pop(rank, None)
    queueing.take_back_hint(core, rank)
    core.last.pop(rank, None)
    core.given_up.pop(rank, None)
    for key in [key for key, item in core.tombstones.items() if rank in item.untold]:
        queueing.mark_notified(core, key, rank)
    return None


def leave(core: State, rank: int, reason: str, now_ns: int) -> list[Action]:
    """``rank`` is gone: ranks that wait for it get an error, and its leases end.

    ``reason`` completes "rank 3 ...".
    """
    core.gone[rank] = reason
    if rank in core.registered:
        core.former[rank] = core.registered.pop(rank)
    core.failures["ranks"] += reason != ORDERLY
    core.returning.discard(rank)
    core.presented.pop(rank, None)
    queueing.take_back_hint(core, rank)
    actions: list[Action] = []
    for operation in list(core.by_member.get(rank, {}).values()):
        message = f"rank {rank} {reason} during {name_of(operation)}"
        if operation.granted:
            # Those who leave because of the first loss are not its reason.
            actions += refusals.announce_loss(core, operation, message, "lost", but=rank)
            operation.released.add(rank)
            leases.end_when_released(core, operation)
        else:
            actions += queueing.fail(core, operation, message, "lost")
    for configuration in list(core.holds_of.get(rank, ())):
        hold = core.holds[configuration]
        hold.holders.discard(rank)
        hold.reports.pop(rank, None)
        hold.lost.setdefault(rank, reason)
        queueing.touch(core, ports_of(hold.circuits))
        actions += leases.recall(core, configuration, f"rank {rank} {reason}")
        actions += handed_back.settle(core, configuration, now_ns)
    if core.recovering and not core.awaited:
        return [*actions, *recover(core, now_ns)]
    return [*actions, *granting.advance(core, now_ns)]
