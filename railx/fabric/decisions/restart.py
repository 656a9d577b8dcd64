"""After a restart of the controller: ranks present what they have begun.

Nothing is granted or switched before all have, or have been given up. Then it goes on
as if all leases had been recalled.
"""

from __future__ import annotations

from collections import Counter

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration
from railx.fabric.decisions.granting import Granting
from railx.fabric.decisions.state import Hold
from railx.fabric.holdings import Presentation

__all__ = ["Restart"]


class Restart(Granting):
    """Learns from the ranks what the controller before this one knew."""

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks that have not presented what they have begun."""
        if not self.recovering:
            return frozenset()
        return frozenset(range(self.ranks)) - self._presented.keys() - self._gone.keys()

    def present(self, rank: int, presentation: Presentation, now_ns: int) -> list[Action]:
        """``rank`` tells a restarted controller what it has begun.

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
        """Who has not presented by now is dead."""
        for rank in sorted(self.awaited):
            self._gone[rank] = "did not come back after the controller was restarted"
            self._former[rank] = self._present.pop(rank, None)
            self.failures["ranks"] += 1
        return self._recover(now_ns) if self.recovering else []

    def _recover(self, now_ns: int) -> list[Action]:
        """All who are left have presented: go on as if all leases had been recalled."""
        self.recovering = False
        # Who is new has begun nothing of what its last life was part of.
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
