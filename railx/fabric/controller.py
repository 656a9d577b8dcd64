"""The controller process: it listens, serves, and ends with an exit code.

``python -m railx.fabric.controller --help`` lists the options. It prints ``{"host":
..., "port": ...}`` on one line when it is ready. Ranks need ``RAILX_TOKEN``; where it
is not set, the process draws one and prints it on that line too (``"token"``). It ends
on a SHUTDOWN message, on SIGTERM or SIGINT, or (with ``--until-stdin-closes``) with the
process that started it. Exit codes: 0 after such an end, 1 after an error of the
controller, 2 for invalid settings.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import ipaddress
import json
import os
import resource
import secrets
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from railx.fabric.launch import go_first
from railx.fabric.protocol import TOKEN, UNIX
from railx.fabric.serving.base import Acceptor
from railx.fabric.serving.server import Server
from railx.fabric.settings import FabricSettings
from railx.settings import SettingsError, load

__all__ = ["TOKEN", "ControllerBroken", "main", "reachable_host", "serve"]

_BACKLOG = 1024
#: Descriptors for standard streams, the event loop and files.
_RESERVED_DESCRIPTORS = 32
#: Allocations between two runs of the garbage collector: events leave no cycles.
_GARBAGE = 50_000


def reachable_host(host: str) -> str:
    """The address under which other hosts reach a controller that listens on ``host``.

    Where it listens on every address: the address of the default route, or the host's
    name without one.
    """
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return host
    except ValueError:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent, this only asks the routing table. The address is
            # reserved for documentation, so that only the default route leads to it.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


class ControllerBroken(RuntimeError):
    """The controller ended by an error of its own; one line."""


async def serve(
    settings: FabricSettings,
    ranks: int,
    *,
    token: str,
    until_stdin_closes: bool = False,
    ready: Callable[[str, int], None],
) -> dict[str, object]:
    """Serve until stopped; returns the statistics.

    Peers without ``token`` are refused. ``ready`` is called with host and port once
    ranks may connect; for a Unix socket with "unix:/path" and 0. Raises SettingsError
    naming fabric.port or fabric.host where the address is not available, and
    :class:`ControllerBroken` after an error of the server's own.
    """
    loop = asyncio.get_running_loop()
    if settings.controller_priority == "real_time":
        go_first()
    listening = _listen(settings)
    try:
        host, port = _address(listening, settings)
        server = Server(settings, ranks, token)
    except BaseException as error:
        _close(listening)
        if isinstance(error, SettingsError):
            raise error.under("fabric") from None
        raise
    try:
        server.most_connections = min(
            server.most_connections, _descriptors() - _RESERVED_DESCRIPTORS
        )
        loop.set_exception_handler(lambda _, context: server.broke(_error(context)))
        threading.excepthook = lambda thrown: server.broke_elsewhere(thrown.exc_value)
        acceptor = Acceptor(listening, server.accept, server.starved)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stopped.set)
        if until_stdin_closes:
            loop.add_reader(sys.stdin.fileno(), _watch_stdin, loop, server.stopped)
        ready(host, port)
        await server.stopped.wait()
        acceptor.close()
        if server.failure is not None:
            raise ControllerBroken(f"the controller broke down: {server.failure!r}"[:400])
        return server.statistics()
    finally:
        _close(listening)
        server.close()


def _print_address(host: str, port: int, token: str | None) -> None:
    announced = {"host": host, "port": port} | ({} if token is None else {"token": token})
    print(json.dumps(announced), flush=True)


def _error(context: dict[str, Any]) -> Exception:
    error = context.get("exception")
    return error if isinstance(error, Exception) else RuntimeError(context["message"])


def _descriptors() -> int:
    """The number of files and sockets this process may open, raised to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _listen(settings: FabricSettings) -> socket.socket:
    host, port = settings.host, settings.port
    if host.startswith(UNIX):
        return _listen_locally(host.removeprefix(UNIX))
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port that was in use a moment ago is free, one that is in use is not.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (socket.gaierror, UnicodeError):
        listening.close()
        raise SettingsError(
            "fabric.host", f"got {host!r}; allowed: the name or IPv4 address of this machine"
        ) from None
    except OSError as error:
        listening.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES) and port != 0:
            message = (
                f"port {port} of {host} cannot be had ({os.strerror(error.errno)}); allowed: a free"
                " port, or 0 for any free one"
            )
            raise SettingsError("fabric.port", message) from None
        raise SettingsError(
            "fabric.host", f"cannot listen on {host!r} ({error.strerror}); allowed: an address here"
        ) from None
    return listening


def _listen_locally(path: str) -> socket.socket:
    """A Unix socket that only this user can reach."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_dead(path):
            Path(path).unlink()
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SettingsError(
            "fabric.host",
            f"cannot listen on {UNIX}{path} ({error.strerror or error}); allowed: unix: and a path"
            " of at most 107 bytes where nothing else is",
        ) from None
    return listening


def _is_dead(path: str) -> bool:
    """Whether this is the socket of a controller that has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            if stat.S_ISSOCK(Path(path).stat().st_mode):
                probe.connect(path)
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
    return False


def _close(listening: socket.socket) -> None:
    """Close a listening socket and remove its path, if it has one; may be repeated."""
    if listening.fileno() == -1:
        return
    path = listening.getsockname()
    listening.close()
    if isinstance(path, str):
        with contextlib.suppress(OSError):
            Path(path).unlink()


def _address(listening: socket.socket, settings: FabricSettings) -> tuple[str, int]:
    name = listening.getsockname()
    if isinstance(name, str):
        return settings.host, 0
    host, port = name
    return reachable_host(host), port


def _watch_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stopped.set()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns the exit code (2 and one line on standard error for settings that cannot be
    used).
    """
    parser = argparse.ArgumentParser(
        prog="python -m railx.fabric.controller",
        description=(
            "Controller of an emulated rail of optical circuit switches: grants circuits to the"
            " ranks of a training run."
        ),
        epilog=(
            'example: python -m railx.fabric.controller --ranks 4 --settings \'{"mode":'
            ' "on_demand", "reconfiguration_latency_ms": 10, "gpus_per_server": 1, "host":'
            ' "127.0.0.1", "port": 0, "timeout_s": 60}\''
        ),
    )
    parser.add_argument(
        "--settings",
        required=True,
        metavar="JSON",
        help="fabric settings: conf/fabric/*.yaml with a mode and a latency",
    )
    parser.add_argument(
        "--ranks", required=True, type=int, help="number of ranks (GPUs) of the run"
    )
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="also end when standard input is closed"
    )
    options = parser.parse_args(arguments)
    # At the start: loading it when an observer asks would delay grants by 70 ms.
    with contextlib.suppress(ImportError):
        import railx.fabric.serving.metrics  # noqa: F401
    # Loaded modules stay for good; objects of an event are freed with it.
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    token = os.environ.get(TOKEN)
    generated = None if token else secrets.token_urlsafe(16)
    try:
        settings: FabricSettings = load(FabricSettings, json.loads(options.settings), "fabric")
        if options.ranks < 1:
            raise SettingsError("ranks", f"got {options.ranks}; allowed: at least 1")
        asyncio.run(
            serve(
                settings,
                options.ranks,
                token=token or generated or "",
                until_stdin_closes=options.until_stdin_closes,
                ready=lambda host, port: _print_address(host, port, generated),
            )
        )
    except (ControllerBroken, SettingsError, json.JSONDecodeError) as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, ControllerBroken) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
