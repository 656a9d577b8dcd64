"""What the switch's driver tells, brought from its thread to the loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from railx.fabric.circuits import Port
from railx.fabric.serving.turns import Turns
from railx.fabric.serving.words import LONGEST
from railx.fabric.switches import SwitchCallbacks, port_name

__all__ = ["Light"]


class Light(Turns):
    """Takes the events of the switch."""

    def _callbacks(self) -> SwitchCallbacks:
        return SwitchCallbacks(
            lambda command: self._on_loop(self._switched, command),
            lambda command, reason: self._on_loop(self._switch_failed, command, reason),
            lambda ports, reason: self._on_loop(self._ports_lost, ports, reason),
            lambda ports: self._on_loop(self._ports_back, ports),
        )

    def broke_elsewhere(self, error: BaseException | None) -> None:
        """A mistake on a thread of the switch's driver."""
        self._on_loop(self.broke, RuntimeError(f"a driver's thread broke: {error!r}"))

    def _on_loop(self, tell: Callable[..., None], *arguments: Any) -> None:
        # Called on the switch's thread. What it tells before the loop comes to it takes
        # one turn. The loop may have ended, then nobody waits for light any more.
        self._driver_events.append((tell, arguments))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._awake = False
        while self._driver_events:
            tell, arguments = self._driver_events.popleft()
            tell(*arguments)

    def _switched(self, command: int) -> None:
        self._act(self.core.switched(command, time.monotonic_ns()))

    def _switch_failed(self, command: int, reason: str) -> None:
        self._log(f"the switch failed command {command}: {reason}"[:LONGEST])
        self._act(self.core.switch_failed(command, reason[:LONGEST], time.monotonic_ns()))

    def _ports_lost(self, ports: frozenset[Port], reason: str) -> None:
        names = ", ".join(map(port_name, sorted(ports)))
        self._log(f"ports lost ({reason}): {names}"[:LONGEST])
        self._act(self.core.ports_lost(ports, reason[:LONGEST], time.monotonic_ns()))

    def _ports_back(self, ports: frozenset[Port]) -> None:
        self._log(f"ports back: {', '.join(map(port_name, sorted(ports)))}"[:LONGEST])
        self._act(self.core.ports_back(ports, time.monotonic_ns()))
