"""Drivers of the optical switches, behind one interface.

A driver carries out the core's commands and reports when the light is there, and what
has failed. ``emulated`` moves circuits in memory, ``netconf`` speaks to real switches.

* Every command is answered by one ``done`` or one ``failed``. Commands on disjoint
  ports run at the same time where the switch can, commands on a common port one after
  another.
* After ``failed`` no circuit of the command carries light, neither those to bring up
  nor those to drop: its ports are dark and free, but for those that are lost.
* The circuit of a lost port is dark at once. ``ports_lost`` comes first, then
  ``failed`` for every command under way that needs one of the ports. A command that
  crosses this report fails; it may name a circuit that the loss has made dark.
* A port that is back is dark and free. No circuit comes back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from railx.errors import UserError
from railx.fabric.circuits import Circuit, Port
from railx.fabric.decisions.state import SwitchAction


class SwitchFault(RuntimeError):
    """A command that no optical switch could carry out: the controller's mistake."""


@dataclass(frozen=True)
class SwitchCallbacks:
    """Callbacks of a driver, on its own thread, in the order of events.

    ``done`` gets the number of a command, ``failed`` that and the reason in one line.
    """

    done: Callable[[int], None]
    failed: Callable[[int, str], None]
    ports_lost: Callable[[frozenset[Port], str], None]
    ports_back: Callable[[frozenset[Port]], None]


class Switch(Protocol):
    """The optical switches of all rails."""

    def apply(self, action: SwitchAction) -> None:
        """Begin a command; never waits for a device.

        Raises :class:`SwitchFault` where it drops a circuit that is not there or takes
        a port in use.
        """

    def read(self) -> frozenset[Circuit]:
        """The circuits that carry light now; may wait for a device."""

    def close(self) -> None:
        """Stop; commands under way are never reported, and light stays as it is."""


def port_name(port: Port) -> str:
    """The name of a port on command lines and in settings, e.g. ``3.right``."""
    return f"{port.gpu}.{port.side}"


def parse_port(name: str) -> Port:
    """The port of this name; raises ValueError, one line."""
    gpu, _, side = name.partition(".")
    if not (gpu.isascii() and gpu.isdecimal()) or side not in ("left", "right"):
        raise UserError(f"got {name!r}; allowed: GPU.left or GPU.right, e.g. 3.right")
    return Port(int(gpu), "left" if side == "left" else "right")


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
