"""The controller process: a TCP server around the state machine of the core.

The state machine is :mod:`railx.fabric.core`. ``python -m railx.fabric.controller
--help`` explains itself. It prints ``{"host": ..., "port": ...}`` on one line when it
is ready. Where ``RAILX_TOKEN`` is set, ranks have to know it. It ends on a SHUTDOWN
message, on SIGTERM or SIGINT, or (with ``--until-stdin-closes``) with the process that
started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hmac
import ipaddress
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.core import (
    Action,
    ControllerCore,
    FoundAction,
    GrantAction,
    OperationKey,
    RecallAction,
    RefuseAction,
)
from railx.fabric.holdings import Report
from railx.fabric.protocol import Message, MessageDecoder, ProtocolError, encode
from railx.fabric.settings import FabricSettings
from railx.fabric.switches import SwitchCallbacks, make_switch
from railx.settings import SettingsError, load

__all__ = ["TOKEN", "Server", "check_token", "main", "reachable_host", "serve"]

#: The environment variable with the secret that ranks and controller share.
TOKEN = "RAILX_TOKEN"


class Server:
    """Connections on one side, core and switch on the other, on one event loop."""

    def __init__(self, settings: FabricSettings, ranks: int, token: str | None = None) -> None:
        self.settings = settings
        self._token = token
        self.core = ControllerCore(Layout(settings.gpus_per_server), ranks)
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, _Connection] = {}
        self._switch = make_switch(
            settings.switch,
            layout=self.core.layout,
            ranks=ranks,
            latency_ns=round(settings.reconfiguration_latency_ms * 1e6),
            callbacks=SwitchCallbacks(
                self._switched, lambda *_: None, lambda *_: None, lambda *_: None
            ),
        )

    def close(self) -> None:
        """Stop the switch and close every connection."""
        self._switch.close()
        for connection in list(self._connections.values()):
            connection.close()

    def register(
        self, connection: _Connection, rank: int, gpus_per_server: int, token: str | None
    ) -> None:
        """Bind a connection to a rank.

        Refused are a rank without the token, a wrong rank, a rank that is already here
        and another layout.
        """
        if self._token is not None and not hmac.compare_digest(
            self._token.encode(), (token or "").encode()
        ):
            # Who does not know it learns nothing else, and is not listened to any more.
            what = "no token" if token is None else "another token"
            connection.refuse(
                None, f"rank {rank} registered with {what}; allowed: {TOKEN} of the controller"
            )
            connection.close()
            return
        problem = (
            self.core.register(rank)
            if rank not in self._connections
            else f"rank {rank} is already registered"
        )
        if gpus_per_server != self.settings.gpus_per_server:
            problem = (
                f"rank {rank} has gpus_per_server {gpus_per_server}; allowed:"
                f" {self.settings.gpus_per_server}, as the controller"
            )
        if problem is not None:
            connection.refuse(None, problem)
            return
        self._connections[rank] = connection
        connection.rank = rank
        latency_ms = self.settings.reconfiguration_latency_ms
        connection.send(
            "REGISTERED",
            ranks=self.core.ranks,
            reconfiguration_latency_ms=latency_ms,
            timeout_s=self.settings.timeout_s,
        )

    def handle(self, rank: int, message: Message) -> None:
        """One message of a registered rank.

        Raises ProtocolError where it makes no sense.
        """
        kind, now_ns = message["type"], time.monotonic_ns()
        if kind == "ACQUIRE":
            self._act(
                self.core.ask(
                    rank,
                    int(message["request"]),
                    _key(message),
                    _configuration(message),
                    now_ns,
                    can_hold=True,
                )
            )
        elif kind == "LISTEN":
            self._act(self.core.listen(rank, int(message["request"]), _channels(message), now_ns))
        elif kind == "UNLISTEN":
            self.core.unlisten(rank, int(message["request"]))
        elif kind == "RELEASE":
            self._act(self.core.release(rank, _key(message), now_ns))
        elif kind == "RECALLED":
            self._act(self.core.recalled(rank, _configuration(message), _report(message), now_ns))
        elif kind == "PREPARE":
            self._act(self.core.hint(rank, _configuration(message), now_ns))
        elif kind == "ABANDON":
            self._act(self.core.abandon(rank, _key(message), now_ns))
        elif kind == "STATS":
            self._connections[rank].send(
                "STATS", request=int(message["request"]), statistics=self.core.statistics()
            )
        elif kind == "LEAVE":
            self.lost(rank, "has left")
        elif kind == "SHUTDOWN":
            self.stopped.set()
        else:
            raise ProtocolError(f"a message of type {kind}")

    def lost(self, rank: int, reason: str) -> None:
        """The connection of a rank ended: its peers get an error where they wait for
        it.
        """
        self._connections.pop(rank).rank = None
        self._act(self.core.leave(rank, reason, time.monotonic_ns()))

    def _switched(self, command: int) -> None:
        # Called on the switch's thread. The loop may have ended meanwhile, then nobody
        # waits for light any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(
                lambda: self._act(self.core.switched(command, time.monotonic_ns()))
            )

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, GrantAction):
                self._connections[action.rank].grant(action)
            elif isinstance(action, RefuseAction):
                self._connections[action.rank].refuse(action.request, action.message)
            elif isinstance(action, RecallAction):
                self._connections[action.rank].recall(action)
            elif isinstance(action, FoundAction):
                self._connections[action.rank].found(action)
            else:
                self._switch.apply(action)


class _Connection(asyncio.Protocol):
    """One rank's connection: bytes to messages and back."""

    def __init__(self, server: Server) -> None:
        self.rank: int | None = None
        self._server = server
        self._decoder = MessageDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._handle(message)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            detail = f"the field {error} is missing" if isinstance(error, KeyError) else error
            self.refuse(None, f"not understood: {detail}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.rank is not None:
            self._server.lost(self.rank, "lost its connection to the controller")

    def send(self, message_type: str, /, **fields: object) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message_type, **fields))

    def grant(self, action: GrantAction) -> None:
        self.send(
            "GRANT",
            request=action.request,
            channel=action.key[0],
            sequence=action.key[1],
            kind=action.configuration.kind,
            members=action.configuration.members,
            generation=action.generation,
            wait_ns=action.wait_ns,
            stall_ns=action.stall_ns,
            reconfigured=action.reconfigured,
            mispredicted=action.mispredicted,
            hold=action.hold,
        )

    def recall(self, action: RecallAction) -> None:
        self.send(
            "RECALL",
            kind=action.configuration.kind,
            members=action.configuration.members,
            hold=action.hold,
            reason=action.reason,
        )

    def found(self, action: FoundAction) -> None:
        self.send(
            "FOUND",
            request=action.request,
            source=action.source,
            channel=action.key[0],
            sequence=action.key[1],
        )

    def refuse(self, request: int | None, message: str) -> None:
        self.send("ERROR", request=request, message=message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _handle(self, message: Message) -> None:
        if self.rank is not None:
            self._server.handle(self.rank, message)
        elif message["type"] == "REGISTER":
            token = message.get("token")
            self._server.register(
                self,
                int(message["rank"]),
                int(message["gpus_per_server"]),
                None if token is None else str(token),
            )
        else:
            raise ProtocolError(f"{message['type']} before REGISTER")


def _key(message: Message) -> OperationKey:
    return str(message["channel"]), int(message["sequence"])


def _configuration(message: Message) -> Configuration:
    return Configuration(message["kind"], tuple(int(member) for member in message["members"]))


def _channels(message: Message) -> dict[str, tuple[int, int]]:
    return {
        str(channel): (int(source), int(number))
        for channel, (source, number) in message["channels"].items()
    }


def _report(message: Message) -> Report:
    return Report(
        hold=int(message["hold"]),
        begun={str(channel): int(number) for channel, number in message["begun"].items()},
        open=frozenset((str(channel), int(number)) for channel, number in message["open"]),
        operations=int(message["operations"]),
    )


def reachable_host(host: str) -> str:
    """The address under which other hosts reach a controller that listens on ``host``.

    Where it listens on every address, that is the one of the route out of this host, or
    the host's name where there is none.
    """
    if not _is(host, "is_unspecified"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent, this only asks the routing table. The address belongs
            # to documentation, so that no route but the default one leads to it.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _is(host: str, what: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), what))
    except ValueError:
        return what == "is_loopback" and host == "localhost"


def check_token(settings: FabricSettings, token: str | None) -> None:
    """Whoever reaches the controller may register, so it hides behind loopback or a
    token.

    Raises SettingsError naming fabric.host.
    """
    if token is None and not _is(settings.host, "is_loopback"):
        raise SettingsError(
            "fabric.host",
            f"got {settings.host!r} without a token; allowed: 127.0.0.1, or a secret in {TOKEN}",
        )


async def serve(
    settings: FabricSettings,
    ranks: int,
    *,
    token: str | None = None,
    until_stdin_closes: bool = False,
    ready: Callable[[str, int], None] | None = None,
) -> dict[str, object]:
    """Serve until told to stop; returns the statistics.

    ``ready`` is called with host and port once ranks may connect (the default prints
    them as JSON). Raises SettingsError naming fabric.port or fabric.host where the
    address cannot be had, or where it is open to other hosts without a token.
    """
    check_token(settings, token)
    server = Server(settings, ranks, token)
    loop = asyncio.get_running_loop()
    try:
        listener = await _listen(loop, server)
        loop.set_exception_handler(lambda _, context: _break_down(server, context))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stopped.set)
        if until_stdin_closes:
            loop.add_reader(sys.stdin.fileno(), _watch_stdin, loop, server.stopped)
        host, port = listener.sockets[0].getsockname()[:2]
        (ready or _print_address)(reachable_host(host), port)
        await server.stopped.wait()
        listener.close()
        return server.core.statistics()
    finally:
        server.close()


def _print_address(host: str, port: int) -> None:
    print(json.dumps({"host": host, "port": port}), flush=True)


def _break_down(server: Server, context: dict[str, Any]) -> None:
    """A mistake in here must not leave ranks waiting.

    Say what it was and end, which ends every client's wait.
    """
    error = context.get("exception")
    print(
        f"controller: {context['message']}",
        *([repr(error)] if error else []),
        file=sys.stderr,
        flush=True,
    )
    server.stopped.set()


async def _listen(loop: asyncio.AbstractEventLoop, server: Server) -> asyncio.Server:
    host, port = server.settings.host, server.settings.port
    try:
        return await loop.create_server(
            lambda: _Connection(server), host, port, family=socket.AF_INET
        )
    except (socket.gaierror, UnicodeError):
        raise SettingsError(
            "fabric.host", f"got {host!r}; allowed: the name or IPv4 address of this machine"
        ) from None
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES) and port != 0:
            message = (
                f"port {port} of {host} cannot be had ({os.strerror(error.errno)}); allowed: a free"
                " port, or 0 for any free one"
            )
            raise SettingsError("fabric.port", message) from None
        raise SettingsError(
            "fabric.host", f"cannot listen on {host!r} ({error.strerror}); allowed: an address here"
        ) from None


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
    try:
        settings: FabricSettings = load(FabricSettings, json.loads(options.settings), "fabric")
        if options.ranks < 1:
            raise SettingsError("ranks", f"got {options.ranks}; allowed: at least 1")
        asyncio.run(
            serve(
                settings,
                options.ranks,
                token=os.environ.get(TOKEN) or None,
                until_stdin_closes=options.until_stdin_closes,
            )
        )
    except (SettingsError, json.JSONDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
