"""A job in a process of its own, watched by a small one that says how it was killed.

A process that gets SIGKILL, by hand or for want of memory, says nothing itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

#: Seconds in which a program that was interrupted may end by itself.
_ENDS_S = 3.0
#: Seconds in which a job that got SIGTERM may clear up, with a program that it runs.
_UNWINDS_S = 10

_PR_SET_PDEATHSIG = 1


def watched(name: str, log: str | Path) -> None:
    """Go on in a child; this process stays behind, waits, and ends as the child does.

    Where a signal ended the child, one line goes to ``log`` and to standard error. A
    child does not outlive its watcher. To be called before any thread is started.
    """
    watcher = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(watcher)
        # Until there is a log Ctrl-C ends the job without a word.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return

    terminated: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        """The first SIGTERM; what it does not end, as within a solver, is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL if terminated else signal.SIGTERM)
        terminated.append(number)
        signal.alarm(_UNWINDS_S)

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, forward)
    # Ctrl-C reaches the child itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        _say(name, Path(log), signal.SIGTERM if terminated else signal.Signals(os.WTERMSIG(status)))
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def run_program(command: Sequence[str], name: str, **variables: str) -> None:
    """Run a program to its end, its words where messages go.

    ``variables`` are set in its environment where nobody else sets them. Interrupted
    or terminated, it has a moment to say what it keeps, and to clear up. Raises
    UserError where it ends with an error; its own message stands above.
    """
    from railx.errors import UserError

    # Progress goes where messages go: standard output belongs to the summary.
    process = subprocess.Popen(command, stdout=sys.stderr, env=variables | os.environ)
    try:
        code = process.wait()
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit):
            # Ctrl-C reached it, SIGTERM did not.
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code:
        raise UserError(f"{name} ended with exit code {code}; its own message is above")


def run_module(module: str, name: str, settings: Any, out: Path, **variables: str) -> None:
    """Run ``python -m module`` on settings until it has written ``out``."""
    from railx.io import write_json
    from railx.settings import to_dict

    config = out.with_name("config.json")
    write_json(config, to_dict(settings))
    command = [sys.executable, "-m", module, "--config", str(config), "--out", str(out)]
    run_program(command, name, **variables)


def _end_with(parent: int) -> None:
    """Let the kernel end this process when its parent is gone."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _say(name: str, log: Path, number: signal.Signals) -> None:
    if number in (signal.SIGINT, signal.SIGTERM):
        line = f"{name}: ended by {number.name}; the next run makes it anew"
    else:
        why = ", as for want of memory" if number == signal.SIGKILL else ""
        line = f"error: {name}: was killed ({number.name}{why}); the next run makes it anew"
    print(line, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
