"""Switching and grants after every event, and the events of switches.

Queued operations go in their order, hints only where no operation waits for the ports.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from railx.fabric.actions import Action, GrantAction, SwitchAction
from railx.fabric.circuits import Circuit, Configuration, Port, ports_of
from railx.fabric.decisions.handed_back import HandedBack
from railx.fabric.decisions.state import (
    OPEN_OPERATIONS,
    Asked,
    Hold,
    TrackedOperation,
    by_name,
    by_rail,
    discard,
    name_of,
    ports_in_order,
)
from railx.fabric.holdings import OperationKey

__all__ = ["Granting", "SwitchEvents", "Switching"]


class Switching(HandedBack):
    """Moves circuits without a lease."""

    def _is_coming_up(self, circuit: Circuit) -> bool:
        return self.moving.get(circuit.ports[0]) == circuit

    def _can_move(self, circuits: list[Circuit]) -> bool:
        """Whether no port of ``circuits`` moves and none carries a leased circuit."""
        moving, active, leases, holds = self.moving, self.active, self.leases, self.holds_by_circuit
        for port in ports_in_order(tuple(circuits)):
            if port in moving:
                return False
            here = active.get(port)
            if here in leases or here in holds:
                return False
        return True

    def _switch(self, circuits: list[Circuit]) -> list[SwitchAction]:
        """One command per rail: bring up ``circuits``, drop what is in their way."""
        actions = []
        for rail, connect in by_rail(self.layout, tuple(circuits)):
            active, ports = self.active, ports_in_order(connect)
            disconnect = tuple(sorted({active[port] for port in ports if port in active}))
            self._drop(disconnect)
            self.moving.update({port: circuit for circuit in connect for port in circuit.ports})
            action = SwitchAction(self._next_command, rail, connect, disconnect)
            self._commands[action.command] = action
            self._next_command += 1
            self.counters["reconfigurations"] += 1
            self.counters["circuits_changed"] += len(connect)
            actions.append(action)
        return actions

    def _drop(self, circuits: Iterable[Circuit]) -> None:
        for circuit in circuits:
            self.lit.remove(circuit)
            for port in circuit.ports:
                del self.active[port]
        self._forget_ahead(circuits)

    def _darken(self, circuit: Circuit, port: Port) -> list[Action]:
        """A circuit lost a port: its leases end, and their ranks get an error."""
        message = self._lost_port(port)
        self._drop([circuit])
        actions: list[Action] = []
        for key in sorted(self.leases.pop(circuit, ())):
            operation = self._operations[key]
            actions += self._tell(operation, f"{message} during {name_of(operation)}", "port")
        for configuration in sorted(self.holds_by_circuit.pop(circuit, ()), key=by_name):
            self.holds[configuration].lost_port = message
            actions += self._recall(configuration, message)
        self._touch(circuit.ports)
        return actions

    def _take_ahead(self, configuration: Configuration) -> int:
        """How many commands were made ahead for a configuration; they are used now."""
        if not self._ahead:
            return 0
        commands = self._ahead.pop(configuration, 0)
        if commands:
            for circuit in self.layout.circuits(configuration):
                discard(self._ahead_on, circuit, configuration)
        return commands

    def _forget_ahead(self, dropped: Iterable[Circuit]) -> None:
        for circuit in dropped:
            for configuration in list(self._ahead_on.get(circuit, ())):
                self.counters["wasted"] += self._take_ahead(configuration)


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
        """Whether no earlier operation waits for a port of this one."""
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
        # Ranks that asked for another operation on these circuits hold them now, and
        # their peers send no further questions.
        for other in list(self._by_configuration.get(configuration, {}).values()):
            if not other.granted and other.order is None:
                self._forget(other)
                actions += self._grant_all(other, hold, now_ns)
        return actions

    def _grant_all(
        self, operation: TrackedOperation, hold: Hold | None, now_ns: int
    ) -> list[Action]:
        """Grant to all members that asked.

        A member that has ended its part waits for nothing, but has to know its lease.
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
        """Answer a rank whose question crossed the grant of its lease."""
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
        """Switch for hinted configurations that all members expect.

        Only where no operation waits for the ports.
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


class SwitchEvents(Granting):
    """Takes the events of switches."""

    def switched(self, command: int, now_ns: int) -> list[Action]:
        """The switch has carried out a command: its circuits carry light.

        A command that is not under way changes nothing.
        """
        action = self._commands.pop(command, None)
        if action is None:
            return []
        for port in ports_in_order(action.connect):
            del self.moving[port]
        for circuit in action.connect:
            if circuit in self._spoiled:
                self._spoiled.remove(circuit)
            else:
                self._light(circuit)
        self._changes += 1
        self.generation[action.rail] = self._changes
        self._touch(ports_of(action.connect))
        return self._advance(now_ns)

    def switch_failed(self, command: int, reason: str, now_ns: int) -> list[Action]:
        """The switch could not carry out a command: none of its circuits is up.

        Ranks that wait for them get an error; the next question tries again.
        """
        action = self._commands.pop(command, None)
        if action is None:
            return []
        self.failures["switches"] += 1
        for circuit in action.connect:
            for port in circuit.ports:
                del self.moving[port]
        self._spoiled.difference_update(action.connect)
        self._forget_ahead(action.connect)
        failed = set(action.connect)
        message = f"the switch of rail {action.rail} failed ({reason})"
        actions: list[Action] = []
        for operation in self._first_at(ports_of(action.connect)):
            if not failed.isdisjoint(operation.circuits):
                actions += self._fail(operation, f"{message} for {name_of(operation)}", "switch")
        self._touch(ports_of(action.connect))
        return [*actions, *self._advance(now_ns)]

    def ports_lost(self, ports: Iterable[Port], reason: str, now_ns: int) -> list[Action]:
        """These ports are out of order: their circuits are dark and dropped.

        Operations that need one of them get an error that names it.
        """
        lost = [port for port in sorted(set(ports)) if port not in self.lost_ports]
        self.lost_ports.update(dict.fromkeys(lost, reason))
        self.failures["ports"] += len(lost)
        actions: list[Action] = []
        for port in lost:
            if port in self.moving:
                self._spoiled.add(self.moving[port])
            if port in self.active:
                actions += self._darken(self.active[port], port)
        if lost:
            broken = set(lost)
            for operation in list(self._operations.values()):
                if not operation.granted and not broken.isdisjoint(operation.ports):
                    actions += self._fail(operation, self._without_port(operation), "port")
        return [*actions, *self._advance(now_ns)]

    def ports_back(self, ports: Iterable[Port], now_ns: int) -> list[Action]:
        """These ports are in order again, dark and free."""
        back = [port for port in sorted(set(ports)) if port in self.lost_ports]
        for port in back:
            del self.lost_ports[port]
        self._touch(back)
        return self._advance(now_ns)
