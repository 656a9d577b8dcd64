"""A controller whose switches write down what they do: ``controller.py LOG ...``.

The log has one JSON line for each change of light, with the time of this host's
monotonic clock, which all its processes share.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any

from railx.fabric import controller
from railx.fabric.circuits import Circuit, Port
from railx.fabric.decisions.state import SwitchAction
from railx.fabric.serving import base
from railx.fabric.switches import SwitchCallbacks


class Log:
    """Lines that are there as soon as they are written, whatever kills the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, circuits: Any, **more: Any) -> None:
        line = {"at_ns": time.monotonic_ns(), "what": what, "circuits": list(circuits), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def logged(log: Log) -> Any:
    """``make_switch`` of a switch that writes to ``log``."""
    make_switch = base.make_switch

    def make(settings: Any, *, callbacks: SwitchCallbacks, **more: Any) -> Any:
        commands: dict[int, SwitchAction] = {}

        def done(command: int) -> None:
            log.write("lit", commands.pop(command).connect)
            callbacks.done(command)

        def failed(command: int, reason: str) -> None:
            log.write("failed", commands.pop(command).connect)
            callbacks.failed(command, reason)

        def lost(ports: frozenset[Port], reason: str) -> None:
            log.write("lost", (), ports=sorted(ports))
            callbacks.ports_lost(ports, reason)

        def back(ports: frozenset[Port]) -> None:
            log.write("back", (), ports=sorted(ports))
            callbacks.ports_back(ports)

        switch = make_switch(settings, callbacks=SwitchCallbacks(done, failed, lost, back), **more)
        log.write("start", sorted(switch.read()))
        apply = switch.apply

        def note(action: SwitchAction) -> None:
            commands[action.command] = dataclasses.replace(action)
            dropped: tuple[Circuit, ...] = action.disconnect
            log.write("drop", dropped, connect=list(action.connect))
            apply(action)

        switch.apply = note  # type: ignore[method-assign]
        return switch

    return make


if __name__ == "__main__":
    base.make_switch = logged(Log(sys.argv[1]))
    sys.exit(controller.main(sys.argv[2:]))
