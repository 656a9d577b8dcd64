"""Operations under a held lease, once all members have given it back.

Operations that all have begun are under way; those that some have begun count as asked
for by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions import queueing
from railx.fabric.decisions.queueing import refuse
from railx.fabric.decisions.state import (
    OPEN_OPERATIONS,
    Action,
    Asked,
    Hold,
    State,
    TrackedOperation,
    add_count,
    discard,
    last_of,
    name_of,
    note_last,
    passed,
)
from railx.fabric.holdings import OperationKey, Report


def settle(core: State, configuration: Configuration, now_ns: int) -> list[Action]:
    """End a held lease once all members gave it back.

    Operations that all have begun go on as granted ones, those that some have begun
    as questions of these.
    """
    hold = core.holds[configuration]
    if hold.holders:
        return []
    del core.holds[configuration]
    for member in configuration.members:
        discard(core.holds_of, member, configuration)
    for circuit in hold.circuits:
        if circuit in core.holds_by_circuit:
            core.holds_by_circuit[circuit].discard(configuration)
            if not core.holds_by_circuit[circuit]:
                del core.holds_by_circuit[circuit]
    reports = {rank: complete(item, rank, hold) for rank, item in hold.reports.items()}
    ran = {rank: report.operations for rank, report in reports.items()}
    begun = {rank: report.begun for rank, report in reports.items()}
    still_open = {rank: report.open for rank, report in reports.items()}
    channels = {channel for numbers in begun.values() for channel in numbers}
    actions: list[Action] = []
    for channel in sorted(channels):
        actions += take_over_channel(
            core, configuration, channel, begun, still_open, hold, ran, now_ns
        )
    for rank, operations in ran.items():
        if operations > 0:
            add_count(core, rank, "held", operations)
    queueing.touch(core, ports_of(hold.circuits))
    return actions


def take_over_channel(
    core: State,
    configuration: Configuration,
    channel: str,
    begun: Mapping[int, Mapping[str, int]],
    still_open: Mapping[int, frozenset[OperationKey]],
    hold: Hold,
    ran: dict[int, int],
    now_ns: int,
    over: int | None = None,
) -> list[Action]:
    """Track the operations that members have begun on a channel without asking.

    ``over``: after a restart, the operations up to this number belong to a former
    process of a member. Members have not begun what they asked for since.
    """
    last = {}
    for rank, last_begun in begun.items():
        recorded = last_of(core, rank, channel) if over is None else -1
        last[rank] = max(last_begun.get(channel, -1), recorded)
        note_last(core, rank, channel, last[rank])
    lowest, highest = max(min(last.values()), -1 if over is None else over), max(last.values())
    if lowest == highest and channel not in core.by_channel and not any(still_open.values()):
        # Usually all have begun the same operations and have ended them.
        return []
    numbers = {
        # No correct rank is further ahead of its peers.
        *range(max(lowest, highest - OPEN_OPERATIONS) + 1, highest + 1),
        *(number for keys in still_open.values() for name, number in keys if name == channel),
        # Questions of members that did not hold it any more.
        *core.by_channel.get(channel, ()),
    }
    actions: list[Action] = []
    for number in sorted(numbers):
        key = channel, number
        opened = {rank for rank, keys in still_open.items() if key in keys}
        operation = core.operations.get(key)
        if operation is not None and operation.configuration != configuration:
            if over is not None and number <= over:
                continue
            exact = over is not None or operation.configuration in core.holds
            here = opened | {
                rank
                for rank, last_begun in begun.items()
                if last_begun.get(channel, -1) >= number
                # Not the last one: it may have been begun under another lease.
                and not (exact and last_begun[channel] > number)
            }
            here -= operation.asked.keys()
            if not here:
                continue
            actions += contradict(core, operation, configuration, here, opened & here)
            if operation.granted or not operation.asked.keys().isdisjoint(configuration.members):
                continue
        actions += take_over(
            core,
            hold,
            configuration,
            key,
            {rank for rank in begun if number <= last[rank]},
            opened,
            ran,
            now_ns,
        )
    return actions


def contradict(
    core: State,
    operation: TrackedOperation,
    configuration: Configuration,
    begun: set[int],
    still_open: set[int],
) -> list[Action]:
    """Members began an operation under a lease; others asked for it otherwise.

    The question fails, unless it was granted. The begun operation fails too where
    one of its members asked; otherwise those that asked harm only themselves.
    """
    key, asked, members = operation.key, set(operation.asked), set(configuration.members)
    its = operation.configuration
    message = queueing.disagreement(key, min(asked), its, min(begun), configuration)
    goes_on = not operation.granted and asked.isdisjoint(members)
    actions: list[Action] = []
    if not operation.granted:
        actions = queueing.fail(core, operation, message, "disagree")
        others = set(its.members)
        others = others - members if goes_on else others | members
        queueing.bury(core, key, message, "disagree", others - asked - begun - core.gone.keys())
    if not goes_on:
        actions += [refuse(core, rank, None, message, "disagree") for rank in sorted(still_open)]
    return actions


def take_over(
    core: State,
    hold: Hold,
    configuration: Configuration,
    key: OperationKey,
    begun: set[int],
    still_open: set[int],
    ran: dict[int, int],
    now_ns: int,
) -> list[Action]:
    """Track an operation that members began under a lease that has ended."""
    operation = core.operations.get(key)
    if operation is not None and (operation.granted or operation.configuration != configuration):
        return []
    actions: list[Action] = []
    tombstone = core.tombstones.get(key)
    if tombstone is not None and not tombstone.untold.isdisjoint(configuration.members):
        for rank in sorted(begun & tombstone.untold):
            queueing.mark_notified(core, key, rank)
            if rank in still_open:
                actions.append(refuse(core, rank, None, tombstone.message, tombstone.reason))
        return actions
    # A rank that died is taken to have begun: its peers may be exchanging with it.
    lost = {
        **hold.lost,
        **{rank: core.gone[rank] for rank in configuration.members if rank in core.gone},
    }
    if operation is not None and not lost.keys().isdisjoint(operation.asked):
        # It came back, and asks for an operation of its former process.
        message = f"{name_of(operation)} is under way since before rank %d came back"
        for rank in sorted(lost.keys() & operation.asked.keys()):
            request = operation.asked.pop(rank).request
            queueing.expect(core, configuration, rank, -1)
            actions.append(refuse(core, rank, request, message % rank, "ended"))
        if not operation.asked:
            queueing.forget(core, operation)
            operation = None
    begun = (begun - (operation.asked.keys() if operation else set())) | lost.keys()
    under_way = begun >= set(configuration.members)
    if under_way and not still_open:
        return actions
    accounted = begun | (operation.asked.keys() if operation else set())
    for rank in configuration.members:
        if rank not in accounted and last_of(core, rank, key[0]) >= key[1]:
            # Its question was refused, by this controller or the one before.
            message = passed(rank, configuration, key)
            if operation is not None:
                actions += queueing.fail(core, operation, message, "ended")
            return [
                *actions,
                *(refuse(core, peer, None, message, "ended") for peer in sorted(still_open)),
            ]
    operation = queueing.tracked(core, key, configuration)
    for rank in sorted(begun):
        queueing.stand(core, operation, rank, Asked(None, now_ns, False, True))
        if rank not in still_open:
            operation.released.add(rank)
        elif not under_way:
            ran[rank] -= 1
            add_count(core, rank, "requests")
    who = min(lost, default=None)
    message = "" if who is None else f"rank {who} {lost[who]} during {name_of(operation)}"
    if not under_way:
        if message:
            return [*actions, *queueing.fail(core, operation, message, "lost")]
        if not core.lost_ports.keys().isdisjoint(operation.ports):
            return [
                *actions,
                *queueing.fail(
                    core, operation, queueing.without_port_text(core, operation), "port"
                ),
            ]
        queueing.enqueue(core, operation)
        return actions
    queueing.stands_no_more(core, operation)
    operation.granted = True
    if not message and hold.lost_port is not None:
        message = f"{hold.lost_port} during {name_of(operation)}"
    if message and not hold.loss_announced:
        actions += queueing.announce_loss(core, operation, message, "lost" if lost else "port")
    operation.loss_announced = bool(message)
    queueing.lease(core, operation)
    queueing.end_when_released(core, operation)
    return actions


def complete(report: Report, rank: int, hold: Hold) -> Report:
    """A member's report, completed by grants and releases that crossed it.

    A granted operation that it does not name begins when the grant arrives, and the
    member sends its end.
    """
    begun = report.begun
    late = {key for key in hold.granted.get(rank, ()) if begun.get(key[0], -1) < key[1]}
    if not late and not hold.released:
        return report
    released = {key for member, key in hold.released if member == rank}
    return replace(
        report,
        begun={**report.begun, **dict(sorted(late))},
        open=(report.open | late) - released,
    )
