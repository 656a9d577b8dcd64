"""The controller's server: connections on one side, core and switch on the other.

Everything runs on one event loop. Whatever a peer sends that it may not is refused with
a reason, counted and logged, and touches nobody else. A mistake in here ends the server
and is told, so that no rank waits for what never comes. Its parts are in
:mod:`railx.fabric.serving`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from railx.fabric.connections import Connection
from railx.fabric.protocol import encode
from railx.fabric.requests import (
    Abandon,
    Acquire,
    Leave,
    Listen,
    Observe,
    Ping,
    Pong,
    Prepare,
    Present,
    Recalled,
    Register,
    Release,
    Request,
    Shutdown,
    Stats,
    Unlisten,
)
from railx.fabric.serving.light import Light
from railx.fabric.serving.observers import Observers
from railx.fabric.serving.ranks import Ranks
from railx.fabric.serving.state import STRANGERS
from railx.fabric.settings import FabricSettings

__all__ = ["STRANGERS", "Server"]


class Server(Ranks, Observers, Light):
    """What connections, switch and clock bring to the core, and what it answers."""

    def __init__(
        self,
        settings: FabricSettings,
        ranks: int,
        token: str,
        log: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(settings, ranks, token, log)
        self._handlers: dict[type[Any], Callable[[Connection, Any], None]] = {
            Acquire: self._acquire,
            Release: self._release,
            Recalled: self._recalled,
            Prepare: self._prepare,
            Listen: self._listen,
            Unlisten: self._unlisten,
            Abandon: self._abandon,
            Stats: self._stats,
        }
        self._watch()

    def close(self) -> None:
        """Stop the switch and close every connection."""
        self._beat.cancel()
        if self._recovery is not None:
            self._recovery.cancel()
        self._switch.close()
        for connection in list(self._connections):
            self._forget(connection)
            connection.close()
        if self._journal is not None:
            self._journal.close()

    def received(self, connection: Connection, request: Request) -> None:
        """Called by a connection."""
        handler = self._handlers.get(type(request))
        if handler is not None and connection.rank is not None:
            handler(connection, request)
        else:
            self._received_seldom(connection, request)

    def _received_seldom(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Register):
            self._register(connection, request)
        elif isinstance(request, Observe):
            self._observe(connection, request)
        elif not connection.is_admitted:
            name = type(request).__name__.upper()
            self._refuse(connection, "not_registered", f"{name} before REGISTER")
        elif isinstance(request, Ping):
            connection.send(encode("PONG"))
        elif isinstance(request, Pong):
            pass
        elif isinstance(request, Leave):
            self._lost(connection, "has left")
            connection.close()
        elif isinstance(request, Shutdown):
            self.stopped.set()
        elif isinstance(request, Present):
            self._present(connection, request)
        elif connection.observes:
            self._observed(connection, request)
        else:
            name = type(request).__name__.upper()
            self._refuse(
                connection, "not_observing", f"{name} of a rank", getattr(request, "request", None)
            )
