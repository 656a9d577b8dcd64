"""Local processes as the ranks of a launch.

They see the environment variables that torchrun sets and end when the launcher ends.
The launcher reports the error of the rank that failed.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from torch.distributed import TCPStore  # type: ignore[attr-defined]

#: Exit code of a run that failed.
FAILED = 1
#: Exit code of a run that cannot start with these settings.
UNUSABLE = 2
#: Characters of an error that a rank reports, and of its traceback, the end: more than
#: the pipe takes would block the rank, which the launcher reads once it has ended.
_MESSAGE, _TRACE = 1000, 10_000
#: Linux' PF_EXITING.
_EXITING = 0x4


@dataclass(frozen=True)
class Failure:
    """A failed launch: a message of one line, the traceback, the exit code."""

    message: str
    trace: str
    code: int


def launch_ranks(
    run: Callable[..., None],
    ranks: int,
    arguments: tuple[Any, ...],
    *,
    preload: Sequence[str] = (),
    expected_errors: Mapping[type[Exception], int],
) -> Failure | None:
    """Call ``run(*arguments)`` in a process for each rank; wait for all of them.

    ``run`` and ``arguments`` are pickled. ``preload`` names modules to import once for
    all ranks. ``expected_errors`` maps errors that are reported by their message alone
    to exit codes; any other error is reported with its traceback. Returns None where
    all ranks succeeded.
    """
    # This process binds the port of the store before any rank starts, so that no other
    # process can take the port.
    store = TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
    # A fork server imports torch once (the optimizer of torch loads torch._dynamo); it
    # holds no device, so its forks may use CUDA.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", *preload])
    complaints = context.SimpleQueue()
    processes: list[BaseProcess] = [
        context.Process(
            target=_rank,
            args=(run, arguments, rank, ranks, store.port, dict(expected_errors), complaints),
            daemon=True,
        )
        for rank in range(ranks)
    ]
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for process in processes:
            process.start()
        failed = _wait(processes)
        return None if failed is None else _complaint(processes, failed, complaints)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()
        signal.signal(signal.SIGTERM, previous)


def _rank(
    run: Callable[..., None],
    arguments: tuple[Any, ...],
    rank: int,
    ranks: int,
    port: int,
    expected_errors: Mapping[type[Exception], int],
    complaints: Any,
) -> None:
    # Ctrl-C reaches the launcher, which ends all ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    if Path("/sys/class/net/lo").exists():
        # All ranks are on this machine: gloo need not resolve its host name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        run(*arguments)
    except Exception as error:
        code = next(
            (code for kind, code in expected_errors.items() if isinstance(error, kind)), None
        )
        if code is not None:
            complaints.put((str(error)[:_MESSAGE], "", code))
            sys.exit(code)
        message = f"rank {rank}: {type(error).__name__}: {error}"
        complaints.put((message[:_MESSAGE], traceback.format_exc()[-_TRACE:], FAILED))
        sys.exit(FAILED)


def _end_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    multiprocessing.connection.wait([launcher.sentinel])
    os._exit(FAILED)


def _wait(ranks: Sequence[BaseProcess]) -> BaseProcess | None:
    """Wait for all ranks or the first that fails, and return the failed one.

    A killed rank makes the others fail, so of several it is returned.
    """
    running = {process.sentinel: process for process in ranks}
    while running:
        ended = _ended(running)
        if any(process.exitcode for process in ended):
            # The killed rank ended first, but may be reported last.
            ending = {
                sentinel: process
                for sentinel, process in running.items()
                if _is_ending(process.pid or 0)
            }
            while ending:
                ended += _ended(ending)
            return min(
                (process for process in ended if process.exitcode),
                key=lambda process: process.exitcode or 0,
            )
    return None


def _is_ending(process: int) -> bool:
    """Whether a process has begun to end, reported or not (Linux; elsewhere False)."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Path("/proc/self/stat").exists()
    # The flags, behind the name in parentheses; the process closes its sockets later.
    return bool(int(state.rpartition(")")[2].split()[6]) & _EXITING)


def _ended(running: dict[int, BaseProcess]) -> list[BaseProcess]:
    ready = multiprocessing.connection.wait(list(running))
    ended = [running.pop(cast("int", sentinel)) for sentinel in ready]
    for process in ended:
        process.join()
    return ended


def _complaint(ranks: Sequence[BaseProcess], failed: BaseProcess, complaints: Any) -> Failure:
    code, name = failed.exitcode or 0, f"rank {ranks.index(failed)}"
    if code < 0:
        return Failure(f"{name} was killed by {signal.Signals(-code).name}", "", FAILED)
    if complaints.empty():
        return Failure(f"{name} ended without a word (exit code {code})", "", FAILED)
    return Failure(*complaints.get())
