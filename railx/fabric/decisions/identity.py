"""Ranks arrive, leave or die, and come back as another process; so does the controller.

After a restart of the controller ranks present what they have begun. It grants and
switches nothing before all have, or are given up. Then it goes on as if all leases had
been recalled.
"""

from __future__ import annotations

from collections import Counter

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions.granting import Granting
from railx.fabric.decisions.state import ORDERLY, Hold, name_of
from railx.fabric.holdings import Presentation

__all__ = ["Identity", "Restart"]


class Restart(Granting):
    """Restores the state of an earlier controller from its ranks."""

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks that have not presented what they have begun."""
        if not self.recovering:
            return frozenset()
        return frozenset(range(self.ranks)) - self._presented.keys() - self._gone.keys()

    def present(self, rank: int, presentation: Presentation, now_ns: int) -> list[Action]:
        """``rank`` presents its operations to a restarted controller.

        Then it asks its open questions again. From now on it asks before every
        operation and releases those in ``presentation.open``. A second time changes
        nothing.
        """
        if not self.recovering or rank not in self.awaited:
            return []
        self._presented[rank] = presentation
        for channel, (_, number) in presentation.begun.items():
            self._note_last(rank, channel, number)
        self._count(rank, "held", presentation.operations)
        return [] if self.awaited else self._recover(now_ns)

    def end_recovery(self, now_ns: int) -> list[Action]:
        """Ranks that have not presented by now count as dead."""
        for rank in sorted(self.awaited):
            self._gone[rank] = "did not come back after the controller was restarted"
            self._former[rank] = self._present.pop(rank, None)
            self.failures["ranks"] += 1
        return self._recover(now_ns) if self.recovering else []

    def _recover(self, now_ns: int) -> list[Action]:
        """All remaining ranks have presented: go on as if all leases were recalled."""
        self.recovering = False
        # A new process has begun none of the operations of the former one.
        lost = {
            rank: "is another process since the controller was restarted"
            for rank in self._present
            if rank not in self._returning
        }
        channels: dict[str, dict[int, Configuration]] = {}
        for rank, presentation in self._presented.items():
            for channel, (configuration, _) in presentation.begun.items():
                if rank in configuration.members and configuration.members[-1] < self.ranks:
                    channels.setdefault(channel, {})[rank] = configuration
        actions: list[Action] = []
        for channel in sorted(channels):
            needs = channels[channel]
            configuration = needs[min(needs)]
            members = set(configuration.members)
            presented = {
                rank: item
                for rank, item in self._presented.items()
                if rank in members
                and rank not in lost
                and needs.get(rank, configuration) == configuration
            }
            if not presented:
                continue
            dark = [item for item in self.layout.circuits(configuration) if item not in self.lit]
            hold = Hold(0, self.layout.circuits(configuration), set())
            hold.lost = {rank: reason for rank, reason in lost.items() if rank in members}
            if dark:
                hold.lost_port = f"the circuit {dark[0].right} - {dark[0].left} is dark"
            actions += self._take_over_channel(
                configuration,
                channel,
                {
                    rank: {channel: item.begun[channel][1]} if channel in item.begun else {}
                    for rank, item in presented.items()
                },
                {
                    rank: frozenset(
                        key for key in item.open if (rank, key) not in self._ended_early
                    )
                    for rank, item in presented.items()
                },
                hold,
                Counter(),
                now_ns,
                max((item.over.get(channel, -1) for item in presented.values()), default=-1),
            )
        self._presented.clear()
        self._ended_early.clear()
        self._returning.clear()
        self._stirred.update(self._listeners)
        return [*actions, *self._advance(now_ns)]


class Identity(Restart):
    """Separates the processes of a rank."""

    def register(
        self, rank: int, incarnation: int | None = None, *, returning: bool = False
    ) -> str | None:
        """A rank arrives or comes back; returns why it may not (one line), or None.

        ``incarnation`` tells two processes of a rank apart. ``returning``: it was
        registered with a controller before this one.
        """
        if not 0 <= rank < self.ranks:
            return f"rank {rank} registered; allowed: 0 to {self.ranks - 1}"
        if rank in self._present:
            return f"rank {rank} is already registered"
        if incarnation is not None and self._former.get(rank) == incarnation:
            return f"rank {rank} {self._gone.get(rank, 'has left')}; allowed: a new process"
        if returning and not self.recovering:
            return f"rank {rank} came back too late: the controller does not wait for it any more"
        if not self._present and not self.recovering:
            # The first rank of the next program: losses of the last one are over.
            self._gone.clear()
            self._tombstones.clear()
        self._present[rank] = incarnation
        if returning:
            self._returning.add(rank)
        self._gone.pop(rank, None)
        self._take_back_hint(rank)
        self._last.pop(rank, None)
        self._heard.pop(rank, None)
        self._given_up.pop(rank, None)
        for key in [key for key, item in self._tombstones.items() if rank in item.untold]:
            self._mark_notified(key, rank)
        return None

    def leave(self, rank: int, reason: str, now_ns: int) -> list[Action]:
        """``rank`` is gone: ranks that wait for it get an error, and its leases end.

        ``reason`` completes "rank 3 ...".
        """
        self._gone[rank] = reason
        if rank in self._present:
            self._former[rank] = self._present.pop(rank)
        self.failures["ranks"] += reason != ORDERLY
        self._returning.discard(rank)
        self._presented.pop(rank, None)
        self._take_back_hint(rank)
        actions: list[Action] = []
        for listening, request in list(self._listeners_of.get(rank, ())):
            self._drop_listener(listening, request)
            if listening != rank:
                self._hear(listening, request)
                message = self._unheard(listening, rank)
                actions.append(self._refuse(listening, request, message, "lost"))
        for operation in list(self._by_member.get(rank, {}).values()):
            message = f"rank {rank} {reason} during {name_of(operation)}"
            if operation.granted:
                # Those who leave because of the first loss are not its reason.
                actions += self._tell(operation, message, "lost", but=rank)
                operation.released.add(rank)
                self._end_when_released(operation)
            else:
                actions += self._fail(operation, message, "lost")
        for configuration in list(self._holds_of.get(rank, ())):
            hold = self.holds[configuration]
            hold.holders.discard(rank)
            hold.reports.pop(rank, None)
            hold.lost.setdefault(rank, reason)
            self._touch(ports_of(hold.circuits))
            actions += self._recall(configuration, f"rank {rank} {reason}")
            actions += self._settle(configuration, now_ns)
        if self.recovering and not self.awaited:
            return [*actions, *self._recover(now_ns)]
        return [*actions, *self._advance(now_ns)]
