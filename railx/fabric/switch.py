"""Drivers of the optical switches.

A driver carries out the core's commands and reports when the light is there. The one
driver here emulates the switch: every command takes the configured latency. Commands on
disjoint ports (of one rail or of different rails) run at the same time, commands on a
common port one after another.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from railx.fabric.circuits import Circuit, Port
from railx.fabric.core import SwitchAction

__all__ = ["EmulatedSwitch", "SwitchFault"]


class SwitchFault(RuntimeError):
    """A command that no optical switch could carry out."""


class EmulatedSwitch:
    """Circuits in memory and a timer thread.

    ``done(command)`` is called on that thread ``latency_ns`` after a command began.
    Every command is checked against the circuits it holds, so that a mistake of the
    controller is seen and never passes as light.
    """

    def __init__(
        self,
        latency_ns: int,
        done: Callable[[int], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._latency_ns = latency_ns
        self._done = done
        self._clock = clock
        self._circuits: dict[Port, Circuit] = {}
        self._free_at_ns: dict[Port, int] = {}
        self._due: list[tuple[int, int]] = []
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name="emulated optical switch", daemon=True
        )
        self._thread.start()

    def apply(self, action: SwitchAction) -> None:
        """Begin a command.

        Raises :class:`SwitchFault` where it drops a circuit that is not there or takes
        a port in use.
        """
        ports = [port for circuit in action.connect for port in circuit.ports]
        with self._condition:
            self._rewire(action, ports)
            begin_ns = max([self._clock(), *(self._free_at_ns.get(port, 0) for port in ports)])
            due_ns = begin_ns + self._latency_ns
            self._free_at_ns.update(dict.fromkeys(ports, due_ns))
            heapq.heappush(self._due, (due_ns, action.command))
            self._condition.notify()

    def close(self) -> None:
        """Stop the timer; commands under way are never reported."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _rewire(self, action: SwitchAction, ports: list[Port]) -> None:
        for circuit in action.disconnect:
            for port in circuit.ports:
                if self._circuits.pop(port, None) != circuit:
                    raise SwitchFault(
                        f"rail {action.rail}: {circuit} cannot be dropped, it is not there"
                    )
        taken = [port for port in ports if port in self._circuits]
        if taken or len(set(ports)) != len(ports):
            raise SwitchFault(f"rail {action.rail}: a port would get two peers ({taken or ports})")
        self._circuits.update(
            {port: circuit for circuit in action.connect for port in circuit.ports}
        )

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._closed and not (self._due and self._due[0][0] <= self._clock()):
                    self._condition.wait(
                        (self._due[0][0] - self._clock()) / 1e9 if self._due else None
                    )
                if self._closed:
                    return
                _, command = heapq.heappop(self._due)
            self._done(command)
