"""Leases of operations under way, and those that stay with their members."""

from __future__ import annotations

from railx.fabric.actions import Action, RecallAction
from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions.listeners import Listeners
from railx.fabric.decisions.state import Hold, TrackedOperation, by_name, ports_in_order

__all__ = ["Leases"]


class Leases(Listeners):
    """Leases circuits and recalls what is held."""

    def _lease(self, operation: TrackedOperation) -> None:
        for circuit in operation.circuits:
            if circuit in self.lit:
                self.leases.setdefault(circuit, set()).add(operation.key)

    def _end_when_released(self, operation: TrackedOperation) -> None:
        if len(operation.released) < len(operation.asked):
            return
        self._forget(operation)
        for circuit in operation.circuits:
            keys = self.leases.get(circuit)
            if keys is not None:
                keys.discard(operation.key)
                if not keys:
                    del self.leases[circuit]
        self._touch(operation.ports)

    def _hold(self, operation: TrackedOperation) -> Hold | None:
        """Begin a held lease with the grant of ``operation``, if there may be one.

        Not where others wait for its ports already.
        """
        configuration = operation.configuration
        if not operation.circuits or configuration in self.holds:
            return None
        if configuration in self._listened or self._others_wait(operation):
            return None
        for asked in operation.asked.values():
            if not asked.can_hold:
                return None
        for other in self._by_channel.get(operation.key[0], {}).values():
            if other.configuration != configuration:
                # Members that disagree about the channel have to ask to be told.
                return None
        hold = Hold(self._next_hold, operation.circuits, set(configuration.members))
        self._next_hold += 1
        self.holds[configuration] = hold
        for member in configuration.members:
            self._holds_of.setdefault(member, {})[configuration] = None
        for circuit in hold.circuits:
            self.holds_by_circuit.setdefault(circuit, set()).add(configuration)
        return hold

    def _others_wait(self, operation: TrackedOperation) -> bool:
        """Whether its ports are wanted for something else."""
        waiting, configuration = self._waiting, operation.configuration
        for port in operation.ports:
            if port in waiting:
                for other in waiting[port].values():
                    if other.configuration != configuration:
                        return True
        return False

    def _recall(self, configuration: Configuration, reason: str | None = None) -> list[Action]:
        """Ask those who still hold a lease to give it back, once."""
        hold = self.holds.get(configuration)
        if hold is None or hold.recalled:
            return []
        hold.recalled = True
        hold.loss_announced = reason is not None
        self.counters["recalls"] += len(hold.holders)
        return [
            RecallAction(rank, configuration, hold.number, reason) for rank in sorted(hold.holders)
        ]

    def _recall_from(
        self, circuits: list[Circuit], expected: Configuration | None = None
    ) -> list[Action]:
        """Recall the held leases that keep ``circuits`` from coming up.

        ``expected``: only to be ahead of what needs this, so that only those leases are
        recalled with which a member is through: it has given its part back, or has
        asked for an operation of ``expected``.
        """
        through = set() if expected is None else self._standing_before(expected)
        in_the_way: dict[Configuration, None] = {}
        active, every = self.active, self.holds_by_circuit
        for port in ports_in_order(tuple(circuits)):
            here = active.get(port)
            configurations = () if here is None else every.get(here, ())
            for configuration in (
                sorted(configurations, key=by_name) if len(configurations) > 1 else configurations
            ):
                hold = self.holds[configuration]
                if hold.recalled:
                    continue
                few = len(hold.holders) < len(configuration.members)
                if expected is None or few or not through.isdisjoint(hold.holders):
                    in_the_way[configuration] = None
        return [action for configuration in in_the_way for action in self._recall(configuration)]

    def _standing_before(self, configuration: Configuration) -> set[int]:
        """Who has asked for an operation that needs this, and waits for it."""
        return {
            rank
            for operation in self._by_configuration.get(configuration, {}).values()
            if not operation.granted
            for rank, asked in operation.asked.items()
            if asked.request is not None
        }
