"""Operations under a held lease, once all members have given it back.

Operations that all have begun are under way; those that some have begun count as asked
for by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions.leases import Leases
from railx.fabric.decisions.refusals import disagreement
from railx.fabric.decisions.state import (
    OPEN_OPERATIONS,
    Asked,
    Hold,
    TrackedOperation,
    discard,
    name_of,
    passed,
)
from railx.fabric.holdings import OperationKey, Report

__all__ = ["HandedBack"]


class HandedBack(Leases):
    """Tracks operations that began without a question."""

    def _settle(self, configuration: Configuration, now_ns: int) -> list[Action]:
        """End a held lease once all members gave it back.

        Operations that all have begun go on as granted ones, those that some have begun
        as questions of these.
        """
        hold = self.holds[configuration]
        if hold.holders:
            return []
        del self.holds[configuration]
        for member in configuration.members:
            discard(self._holds_of, member, configuration)
        for circuit in hold.circuits:
            if circuit in self.holds_by_circuit:
                self.holds_by_circuit[circuit].discard(configuration)
                if not self.holds_by_circuit[circuit]:
                    del self.holds_by_circuit[circuit]
        if self._listening:
            for operation in self._by_configuration.get(configuration, {}).values():
                self._stirred.update(self._listening.get(operation.key[0], ()))
        reports = {rank: complete(item, rank, hold) for rank, item in hold.reports.items()}
        ran = {rank: report.operations for rank, report in reports.items()}
        begun = {rank: report.begun for rank, report in reports.items()}
        still_open = {rank: report.open for rank, report in reports.items()}
        channels = {channel for numbers in begun.values() for channel in numbers}
        actions: list[Action] = []
        for channel in sorted(channels):
            actions += self._take_over_channel(
                configuration, channel, begun, still_open, hold, ran, now_ns
            )
        for rank, operations in ran.items():
            if operations > 0:
                self._count(rank, "held", operations)
        self._touch(ports_of(hold.circuits))
        return actions

    def _take_over_channel(
        self,
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
            recorded = self._last_of(rank, channel) if over is None else -1
            last[rank] = max(last_begun.get(channel, -1), recorded)
            self._note_last(rank, channel, last[rank])
        lowest, highest = max(min(last.values()), -1 if over is None else over), max(last.values())
        if lowest == highest and channel not in self._by_channel and not any(still_open.values()):
            # Usually all have begun the same operations and have ended them.
            return []
        numbers = {
            # No correct rank is further ahead of its peers.
            *range(max(lowest, highest - OPEN_OPERATIONS) + 1, highest + 1),
            *(number for keys in still_open.values() for name, number in keys if name == channel),
            # Questions of members that did not hold it any more.
            *self._by_channel.get(channel, ()),
        }
        actions: list[Action] = []
        for number in sorted(numbers):
            key = channel, number
            opened = {rank for rank, keys in still_open.items() if key in keys}
            operation = self._operations.get(key)
            if operation is not None and operation.configuration != configuration:
                if over is not None and number <= over:
                    continue
                exact = over is not None or operation.configuration in self.holds
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
                actions += self._contradict(operation, configuration, here, opened & here)
                if operation.granted or not operation.asked.keys().isdisjoint(
                    configuration.members
                ):
                    continue
            actions += self._take_over(
                hold,
                configuration,
                key,
                {rank for rank in begun if number <= last[rank]},
                opened,
                ran,
                now_ns,
            )
        return actions

    def _contradict(
        self,
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
        message = disagreement(key, min(asked), its, min(begun), configuration)
        goes_on = not operation.granted and asked.isdisjoint(members)
        actions: list[Action] = []
        if not operation.granted:
            actions = self._fail(operation, message, "disagree")
            others = set(its.members)
            others = others - members if goes_on else others | members
            self._bury(key, message, "disagree", others - asked - begun - self._gone.keys())
        if not goes_on:
            actions += [
                self._refuse(rank, None, message, "disagree") for rank in sorted(still_open)
            ]
        return actions

    def _take_over(
        self,
        hold: Hold,
        configuration: Configuration,
        key: OperationKey,
        begun: set[int],
        still_open: set[int],
        ran: dict[int, int],
        now_ns: int,
    ) -> list[Action]:
        """Track an operation that members began under a lease that has ended."""
        operation = self._operations.get(key)
        if operation is not None and (
            operation.granted or operation.configuration != configuration
        ):
            return []
        actions: list[Action] = []
        tombstone = self._tombstones.get(key)
        if tombstone is not None and not tombstone.untold.isdisjoint(configuration.members):
            for rank in sorted(begun & tombstone.untold):
                self._mark_notified(key, rank)
                if rank in still_open:
                    actions.append(self._refuse(rank, None, tombstone.message, tombstone.reason))
            return actions
        # A rank that died is taken to have begun: its peers may be exchanging with it.
        lost = {
            **hold.lost,
            **{rank: self._gone[rank] for rank in configuration.members if rank in self._gone},
        }
        if operation is not None and not lost.keys().isdisjoint(operation.asked):
            # It came back, and asks for an operation of its former process.
            message = f"{name_of(operation)} is under way since before rank %d came back"
            for rank in sorted(lost.keys() & operation.asked.keys()):
                request = operation.asked.pop(rank).request
                self._expect(configuration, rank, -1)
                actions.append(self._refuse(rank, request, message % rank, "ended"))
            if not operation.asked:
                self._forget(operation)
                operation = None
        begun = (begun - (operation.asked.keys() if operation else set())) | lost.keys()
        under_way = begun >= set(configuration.members)
        if under_way and not still_open:
            return actions
        accounted = begun | (operation.asked.keys() if operation else set())
        for rank in configuration.members:
            if rank not in accounted and self._last_of(rank, key[0]) >= key[1]:
                # Its question was refused, by this controller or the one before.
                message = passed(rank, configuration, key)
                if operation is not None:
                    actions += self._fail(operation, message, "ended")
                return [
                    *actions,
                    *(self._refuse(peer, None, message, "ended") for peer in sorted(still_open)),
                ]
        operation = self._operation(key, configuration)
        for rank in sorted(begun):
            self._stand(operation, rank, Asked(None, now_ns, False, True))
            if rank not in still_open:
                operation.released.add(rank)
            elif not under_way:
                ran[rank] -= 1
                self._count(rank, "requests")
        who = min(lost, default=None)
        message = "" if who is None else f"rank {who} {lost[who]} during {name_of(operation)}"
        if not under_way:
            if message:
                return [*actions, *self._fail(operation, message, "lost")]
            if not self.lost_ports.keys().isdisjoint(operation.ports):
                return [*actions, *self._fail(operation, self._without_port(operation), "port")]
            self._enqueue(operation)
            return actions
        self._stands_no_more(operation)
        operation.granted = True
        if not message and hold.lost_port is not None:
            message = f"{hold.lost_port} during {name_of(operation)}"
        if message and not hold.loss_announced:
            actions += self._tell(operation, message, "lost" if lost else "port")
        operation.loss_announced = bool(message)
        self._lease(operation)
        self._end_when_released(operation)
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
