"""What switches report, one method an event."""

from __future__ import annotations

from collections.abc import Iterable

from railx.fabric.actions import Action
from railx.fabric.circuits import Port, ports_of
from railx.fabric.decisions.granting import Granting
from railx.fabric.decisions.state import name_of, ports_in_order

__all__ = ["SwitchEvents"]


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

        Who waits for them gets an error; the next question tries again.
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
