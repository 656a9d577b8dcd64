"""Who the ranks are: they arrive, leave or die, and come back as another process."""

from __future__ import annotations

from railx.fabric.actions import Action
from railx.fabric.circuits import ports_of
from railx.fabric.decisions.restart import Restart
from railx.fabric.decisions.state import ORDERLY, name_of

__all__ = ["Identity"]


class Identity(Restart):
    """Keeps the lives of ranks apart."""

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
            # The first rank of the next program: nobody of the last one is missed.
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
        """``rank`` is gone: whoever waits for it gets an error, and its leases end.

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
