"""Circuits that come up and go down: commands for the switches, ports that move."""

from __future__ import annotations

from collections.abc import Iterable

from railx.fabric.actions import Action, SwitchAction
from railx.fabric.circuits import Circuit, Configuration, Port
from railx.fabric.decisions.handed_back import HandedBack
from railx.fabric.decisions.state import by_name, by_rail, discard, name_of, ports_in_order

__all__ = ["Switching"]


class Switching(HandedBack):
    """Moves circuits that nobody leases."""

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
        """A circuit lost a port: its leases end, and those on it are told."""
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
