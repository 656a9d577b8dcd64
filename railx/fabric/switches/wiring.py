"""The circuits of a driver's switches, against which every command is checked.

So a mistake of the controller is seen and never passes as light.
"""

from __future__ import annotations

from collections.abc import Iterable

from railx.fabric.circuits import Circuit, Port
from railx.fabric.core import SwitchAction
from railx.fabric.switches.interface import SwitchFault

__all__ = ["Wiring"]


class Wiring:
    """``by_port``: the circuits that are up or coming up; not thread-safe."""

    def __init__(self, circuits: Iterable[Circuit] = ()) -> None:
        self.by_port: dict[Port, Circuit] = {
            port: circuit for circuit in circuits for port in circuit.ports
        }
        # Circuits that a loss made dark; a later command may still name them.
        self._darkened: set[Circuit] = set()

    def take(self, action: SwitchAction) -> None:
        """Take the ports of a command; SwitchFault for an impossible one."""
        for circuit in action.disconnect:
            if circuit in self._darkened:
                self._darkened.remove(circuit)
                continue
            if any(self.by_port.get(port) != circuit for port in circuit.ports):
                raise SwitchFault(
                    f"rail {action.rail}: {circuit} cannot be dropped, it is not there"
                )
            self.drop([circuit])
        ports = [port for circuit in action.connect for port in circuit.ports]
        taken = [port for port in ports if port in self.by_port]
        if taken or len(set(ports)) != len(ports):
            raise SwitchFault(f"rail {action.rail}: a port would get two peers ({taken or ports})")
        self._darkened -= set(action.connect)
        self.by_port |= {port: circuit for circuit in action.connect for port in circuit.ports}

    def drop(self, circuits: Iterable[Circuit]) -> None:
        """These circuits are down; those that are down already stay so."""
        for circuit in circuits:
            for port in circuit.ports:
                if self.by_port.get(port) == circuit:
                    del self.by_port[port]

    def darken(self, circuit: Circuit) -> None:
        """A circuit lost a port."""
        self._darkened.add(circuit)
        self.drop([circuit])
