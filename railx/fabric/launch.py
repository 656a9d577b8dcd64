"""Starting the controller beside a training run and ending it with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from railx.fabric.settings import FabricSettings
from railx.settings import SettingsError, to_dict

__all__ = ["Controller", "launch_controller"]

#: How long a controller has for each of: ending with its input, on SIGTERM, on SIGKILL.
_STOP_S = 5.0


@dataclass(frozen=True)
class Controller:
    """A running controller.

    ``address`` is "host:port", or None where the fabric is electrical and needs none.
    """

    address: str | None
    process: subprocess.Popen[str] | None = None

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes that it runs as; none where it is not needed."""
        return () if self.process is None else (self.process.pid,)


@contextlib.contextmanager
def launch_controller(settings: FabricSettings, ranks: int) -> Iterator[Controller]:
    """Run a controller process for the length of a ``with`` block.

    Port 0 takes any free port. Raises :class:`railx.settings.SettingsError` naming
    fabric.port (or fabric.host) where the address cannot be had, and RuntimeError where
    the process does not come up within ``settings.timeout_s``. The controller also ends
    when this process dies, because it watches the pipe to it.
    """
    if settings.mode == "electrical":
        yield Controller(None)
        return
    process = _start(settings, ranks)
    try:
        yield Controller(_address(process, settings.timeout_s), process)
    finally:
        _stop(process)


def _start(settings: FabricSettings, ranks: int) -> subprocess.Popen[str]:
    source = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "railx.fabric.controller", "--until-stdin-closes"),
            *("--ranks", str(ranks), "--settings", json.dumps(to_dict(settings))),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )


def _address(process: subprocess.Popen[str], timeout_s: float) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else ""
    if line:
        listening = json.loads(line)
        return f"{listening['host']}:{listening['port']}"
    if not ready:
        raise RuntimeError(f"the controller did not come up within {timeout_s:g} s")
    lines = process.stderr.read().strip().splitlines() or ["no reason given"]
    key, _, message = lines[-1].partition(": ")
    if process.wait() == 2 and key.startswith("fabric."):
        raise SettingsError(key, message)
    raise RuntimeError(f"the controller did not start: {lines[-1]}")


def _stop(process: subprocess.Popen[str]) -> None:
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
    if process.stderr is not None:
        # What a broken controller had to say must not be lost with it.
        sys.stderr.write(process.stderr.read())
        process.stderr.close()
