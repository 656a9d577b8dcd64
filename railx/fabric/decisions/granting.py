"""What goes on after every event: switch for who is first, grant what has its light.

Queued operations go in their order, hints only where nobody waits for the ports.
"""

from __future__ import annotations

import heapq

from railx.fabric.actions import Action, GrantAction
from railx.fabric.circuits import Circuit, Configuration, ports_of
from railx.fabric.decisions.state import OPEN_OPERATIONS, Asked, Hold, TrackedOperation, by_rail
from railx.fabric.decisions.switching import Switching
from railx.fabric.holdings import OperationKey

__all__ = ["Granting"]


class Granting(Switching):
    """Grants and switches whatever can be."""

    def _advance(self, now_ns: int) -> list[Action]:
        """Grant and switch whatever can be: queued operations in order, then hints."""
        if self.recovering:
            return []
        actions = self._find() if self._stirred else []
        touched = self._touched
        while touched:
            order = heapq.heappop(touched)
            while touched and touched[0] == order:
                heapq.heappop(touched)
            operation = self._queue.get(order)
            if operation is not None and self._is_first(operation):
                actions += self._serve(operation, now_ns)
        return actions + self._speculate() if self._touched_hints else actions

    def _is_first(self, operation: TrackedOperation) -> bool:
        """Whether nobody who came before waits for a port of the operation."""
        order, waiting = operation.order, self._waiting
        for port in operation.ports:  # noqa: SIM110 (asked most often of all)
            if next(iter(waiting[port])) != order:
                return False
        return True

    def _serve(self, operation: TrackedOperation, now_ns: int) -> list[Action]:
        lit = self.lit
        if lit.issuperset(operation.circuits):
            return self._grant(operation, now_ns)
        to_start = [circuit for circuit in operation.circuits if circuit not in lit]
        if self.moving:
            to_start = [circuit for circuit in to_start if not self._is_coming_up(circuit)]
        if to_start and not self._can_move(to_start):
            return self._recall_from(to_start)
        if operation.stall_since_ns is None:
            operation.stall_since_ns = now_ns
        switches = self._switch(to_start)
        operation.commands += len(switches)
        return list(switches)

    def _grant(self, operation: TrackedOperation, now_ns: int) -> list[Action]:
        configuration = operation.configuration
        operation.commands += self._take_ahead(configuration)
        self._stands_no_more(operation)
        operation.granted = True
        hold = self._hold(operation)
        if hold is None:
            self._lease(operation)
            actions = self._grant_all(operation, None, now_ns)
            self._end_when_released(operation)
            return actions
        self._forget(operation)
        actions = self._grant_all(operation, hold, now_ns)
        # Who asked for another operation on these circuits holds them now, and its
        # peers will not ask any more.
        for other in list(self._by_configuration.get(configuration, {}).values()):
            if not other.granted and other.order is None:
                self._forget(other)
                actions += self._grant_all(other, hold, now_ns)
        return actions

    def _grant_all(
        self, operation: TrackedOperation, hold: Hold | None, now_ns: int
    ) -> list[Action]:
        """Tell all who asked.

        Who has ended its part already waits for nothing, but has to know what it holds.
        """
        actions: list[Action] = []
        number = None if hold is None else hold.number
        generation = self._generation(operation.circuits)
        if hold is not None:
            hold.channels.add(operation.key[0])
        for rank in sorted(operation.asked):
            ended = rank in operation.released
            if ended and hold is None:
                continue
            action = self._grant_action(operation, rank, now_ns, number, generation)
            actions.append(action)
            if not ended:
                if hold is not None:
                    hold.granted.setdefault(rank, set()).add(operation.key)
                for counters in (self.counters, self._counters_of(rank)):
                    counters["grants"] += 1
                    counters["wait_ns"] += action.wait_ns
                    if action.stall_ns:
                        counters["stall_ns"] += action.stall_ns
        return actions

    def _grant_action(
        self,
        operation: TrackedOperation,
        rank: int,
        now_ns: int,
        hold: int | None = None,
        generation: int | None = None,
    ) -> GrantAction:
        asked = operation.asked[rank]
        stall_ns = now_ns - operation.stall_since_ns if operation.stall_since_ns is not None else 0
        if generation is None:
            generation = self._generation(operation.circuits)
        return GrantAction(
            rank,
            asked.request,
            operation.key,
            generation,
            now_ns,
            now_ns - asked.asked_ns - stall_ns,
            stall_ns,
            operation.commands,
            asked.mispredicted,
            operation.configuration,
            hold,
        )

    def _generation(self, circuits: tuple[Circuit, ...]) -> int:
        """The number of the last change on the rails of these circuits."""
        last = 0
        for rail, _ in by_rail(self.layout, circuits):
            number = self.generation[rail]
            if number > last:
                last = number
        return last

    def _grant_to_holder(
        self,
        rank: int,
        request: int,
        key: OperationKey,
        configuration: Configuration,
        hold: Hold,
        now_ns: int,
    ) -> list[Action]:
        """Answer a rank whose question crossed the grant of the lease that it holds."""
        fresh = self._last_of(rank, key[0]) < key[1]
        operation = TrackedOperation(key, configuration, hold.circuits, frozenset())
        asked = Asked(request, now_ns, fresh and self._take_hint(rank, configuration), True)
        operation.asked[rank] = asked
        if fresh:
            if len(hold.granted.get(rank, ())) >= OPEN_OPERATIONS:
                message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
                return [self._refuse(rank, request, f"{message}; allowed: no more", "limit")]
            self._note_last(rank, *key)
            self._count(rank, "requests")
            self._count(rank, "grants")
            hold.granted.setdefault(rank, set()).add(key)
            hold.channels.add(key[0])
        return [self._grant_action(operation, rank, now_ns, hold.number)]

    def _speculate(self) -> list[Action]:
        """Switch for hinted configurations that all members expect, where nobody waits
        for the ports.
        """
        turns = {
            expected.ready: configuration
            for configuration in self._touched_hints
            if (expected := self._expected.get(configuration)) is not None
            and expected.ready is not None
        }
        self._touched_hints.clear()
        actions: list[Action] = []
        for turn in sorted(turns):
            configuration = turns[turn]
            circuits = self.layout.circuits(configuration)
            if not self.lost_ports.keys().isdisjoint(ports_of(circuits)):
                continue
            missing = [circuit for circuit in circuits if circuit not in self.lit]
            to_start = [circuit for circuit in missing if not self._is_coming_up(circuit)]
            if to_start and not self._waiting.keys().isdisjoint(ports_of(tuple(to_start))):
                continue
            if to_start and not self._can_move(to_start):
                actions += self._recall_from(to_start, configuration)
                continue
            expected = self._expected[configuration]
            for rank in expected.hints:
                self._hints[rank].served = True
            expected.unserved = 0
            self._not_ready(configuration, expected)
            switches = self._switch(to_start)
            if switches:
                self.counters["speculative"] += len(switches)
                self._ahead[configuration] += len(switches)
                for circuit in circuits:
                    self._ahead_on.setdefault(circuit, {})[configuration] = None
            actions += switches
        return actions
