"""Admission: new connections, tokens, evictions, and bytes that are no message."""

from __future__ import annotations

import asyncio
import hmac
import socket
from typing import Any

from railx.fabric.protocol import TOKEN, ProtocolError
from railx.fabric.requests import Request
from railx.fabric.serving.base import STRANGERS, ServerBase, digest
from railx.fabric.serving.connections import Connection

__all__ = ["Admission"]

#: Seconds in which a connection has to register.
_STRANGER_S = 10.0
#: Connections that are accepted and not yet connected.
_COMING = 4
#: Errors after which the rest of a stream cannot be read.
_FATAL = {"not_json", "too_large", "too_deep", "no_type", "version", "not_finite"}


class Admission(ServerBase):
    """Admits peers with the token, within the limits of connections."""

    def received(self, connection: Connection, request: Request) -> None:
        """Called by a connection."""
        raise NotImplementedError

    def accept(self, peer: socket.socket) -> bool:
        """Accept a connection; at the limit the oldest stranger is evicted.

        Without strangers it is the observer with the oldest question. Returns whether
        to accept more before the accepted ones are connected.
        """
        open_connections = len(self._connections) + len(self._coming)
        if open_connections >= self.most_connections and not self._evict("too_many_connections"):
            self._count("too_many_connections", "a connection was turned away")
            peer.close()
            return True
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: Connection(self), peer)
        )
        self._coming.add(task)
        task.add_done_callback(self._came)
        return len(self._coming) < _COMING

    def starved(self, error: OSError) -> bool:
        """The process has no descriptor left; returns whether one was freed."""
        self._count("no_descriptor", f"a connection has to wait ({error.strerror})")
        return self._evict("no_descriptor")

    def _came(self, task: asyncio.Task[Any]) -> None:
        self._coming.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, OSError):
                self._count("connection", f"a connection came to nothing ({error})")
            else:
                self.broke(Exception(repr(error)))

    def _evict(self, reason: str) -> bool:
        """Close the oldest stranger, or else the observer with the oldest question."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return self._dismiss(reason, "there is no place for another connection")
        self._refuse(oldest, reason, "too many connections have not said who they are")
        return True

    def _dismiss(self, reason: str, why: str) -> bool:
        """Close the observer with the oldest question, if there is one."""
        idle = next(iter(self._observers), None)
        if idle is not None:
            message = f"{why}, and this observer has asked nothing for longest"
            self._refuse(idle, reason, message, fatal=True)
        return idle is not None

    def connected(self, connection: Connection) -> None:
        """Called by a connection."""
        self._connections.add(connection)
        self._strangers[connection] = self._loop.call_later(
            min(_STRANGER_S, self.settings.timeout_s), self._too_late, connection
        )
        if len(self._strangers) > STRANGERS:
            self._evict("too_many_connections")

    def misunderstood(self, connection: Connection, error: ProtocolError) -> None:
        """Called by a connection."""
        fatal = error.reason in _FATAL
        self._refuse(
            connection, error.reason, f"not understood: {error}", error.request, fatal=fatal
        )

    def disconnected(self, connection: Connection, reason: str) -> None:
        """Called by a connection."""
        self._connections.discard(connection)
        self._lost(connection, reason)

    def _is_stranger(self, connection: Connection, token: str | None, who: str) -> bool:
        """Refuse a peer without the token; it learns nothing else."""
        # Digests have one length, so that the comparison takes equally long.
        if hmac.compare_digest(self._digest, digest(token or "")):
            return False
        what = "no token" if token is None else "another token"
        self._refuse(connection, "token", f"{who} with {what}; allowed: {TOKEN} of the controller")
        return True

    def _admit(self, connection: Connection) -> None:
        self._strangers.pop(connection).cancel()
        connection.welcome()

    def _too_late(self, connection: Connection) -> None:
        self._refuse(connection, "silent_stranger", "nobody registered on this connection")
