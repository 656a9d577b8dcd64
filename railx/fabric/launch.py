"""Starting the controller beside a training run and ending it with it.

In an emulation the controller shares the ranks' cores; in a cluster it has its own
machine. Where the system lacks priorities, or does not grant them, nothing changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from railx.fabric.protocol import TOKEN, UNIX, address_of
from railx.fabric.settings import FabricSettings, Priority
from railx.settings import SettingsError, to_dict


def go_first() -> None:
    """Run this process, and threads started later, before those of normal priority."""
    # musl has the call without effect, other systems lack it.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def priority_of(process: int = 0) -> Priority:
    """How the system schedules a process; 0: this one."""
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(process) == os.SCHED_RR:
            return "real_time"
    return "normal"


#: Shortest time limit for the start of a controller.
_START_S = 10.0
#: Time limit for each of: ending with its input, on SIGTERM, on SIGKILL.
_STOP_S = 5.0


@dataclass
class Controller:
    """A running controller.

    ``address`` is "host:port" or "unix:/path", or None where the fabric is electrical
    and needs none. ``token`` is the secret that ranks send.
    """

    address: str | None
    process: subprocess.Popen[str] | None = None
    token: str | None = field(default=None, repr=False)
    _again: Callable[[str], subprocess.Popen[str]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of its processes; none where the fabric needs no controller."""
        return () if self.process is None else (self.process.pid,)

    @property
    def priority(self) -> Priority | None:
        """The actual scheduling of the process; None where there is none."""
        return None if self.process is None else priority_of(self.process.pid)

    def restart(self) -> None:
        """Kill the process and start another one at the same address.

        A run goes on where the switch keeps its light (``switch.state_file``): ranks
        come back and present the operations that they have begun.
        """
        if self.process is None or self._again is None or self.address is None:
            raise RuntimeError("there is no controller to start again")
        self.process.kill()
        stop(self.process)
        self.process = self._again(self.address)


@contextlib.contextmanager
def launch_controller(settings: FabricSettings, ranks: int) -> Iterator[Controller]:
    """Run a controller process for the length of a ``with`` block.

    Port 0 takes any free port. Where the environment has no ``RAILX_TOKEN``, one is
    drawn and set there for this process and its children. Raises
    :class:`railx.settings.SettingsError` naming fabric.port (or fabric.host) where the
    address is not available, and RuntimeError where the process does not start within
    ``settings.timeout_s`` (at least 10 seconds). The controller also ends when this
    process dies, because it watches the pipe to it.
    """
    if settings.mode == "electrical":
        yield Controller(None)
        return
    token = os.environ.setdefault(TOKEN, secrets.token_urlsafe(16))
    # A file and no pipe: no process reads it while the controller runs, and a full pipe
    # would block the controller.
    with tempfile.TemporaryFile("w+") as said, reserved_port(settings) as settings:
        limit_s = max(settings.timeout_s, _START_S)

        def again(address: str) -> subprocess.Popen[str]:
            there = settings
            if not address.startswith(UNIX):
                there = replace(settings, port=int(address.rpartition(":")[2]))
            process = _start(there, ranks, said)
            _address(process, limit_s, said)
            return process

        process = _start(settings, ranks, said)
        controller = Controller(None, process, token, again)
        try:
            controller.address = _address(process, limit_s, said)
            yield controller
        finally:
            assert controller.process is not None
            stop(controller.process)
            # Pass on the messages of a controller that broke.
            if controller.process.returncode == 1:
                sys.stderr.write(_text(said))


@contextlib.contextmanager
def reserved_port(settings: FabricSettings) -> Iterator[FabricSettings]:
    """The settings with a port that nobody else takes, also between two controllers.

    This process binds it and does not listen: a controller may bind it too, and ranks
    are refused where none listens.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Only Linux lets two sockets bind it so. The controller explains what fails.
        if sys.platform.startswith("linux") and not settings.host.startswith(UNIX):
            with contextlib.suppress(OSError, UnicodeError):
                reserved.bind((settings.host, settings.port))
                settings = replace(settings, port=reserved.getsockname()[1])
        yield settings


def _start(settings: FabricSettings, ranks: int, said: TextIO) -> subprocess.Popen[str]:
    source = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "railx.fabric.controller", "--until-stdin-closes"),
            *("--ranks", str(ranks), "--settings", json.dumps(to_dict(settings))),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )


def _text(said: TextIO) -> str:
    said.seek(0)
    return said.read()


def _address(process: subprocess.Popen[str], timeout_s: float, said: TextIO) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else ""
    if line:
        listening = json.loads(line)
        return address_of(listening["host"], listening["port"])
    if not ready:
        raise RuntimeError(f"the controller did not come up within {timeout_s:g} s")
    code = process.wait()
    lines = _text(said).strip().splitlines() or ["no reason given"]
    key, _, message = lines[-1].partition(": ")
    if code == 2 and key.startswith("fabric."):
        raise SettingsError(key, message)
    raise RuntimeError(f"the controller did not start: {lines[-1]}")


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process that ends with its input; it is told so where it does not."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
        if signal_number is not None:
            process.send_signal(signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_S)
            break
