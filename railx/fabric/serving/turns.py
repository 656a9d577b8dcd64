"""What is decided in one turn of the loop: who is told what, refused or cut off."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Sequence

from railx.fabric.actions import Action, FoundAction, GrantAction, RecallAction, SwitchAction
from railx.fabric.connections import Connection
from railx.fabric.protocol import encode
from railx.fabric.serving.state import ServerState
from railx.fabric.serving.words import (
    LONGEST,
    found_frame,
    grant_frame,
    recall_frame,
    refuse_frame,
)

__all__ = ["Turns"]

#: A rank that was refused so many messages is no client of ours.
_REFUSALS = 100
#: So many refusals of one kind are logged one by one, then each power of ten.
_LOGGED = 5


class Turns(ServerState):
    """Carries out what the core answers, at the end of the turn."""

    def has_news(self, connection: Connection) -> None:
        """Called by a connection."""
        self._news.append(connection)
        self._flush_soon()

    def broke(self, error: Exception) -> None:
        """A mistake in here must not leave ranks waiting: say what it was and end."""
        if self.failure is None:
            self.failure = error
            for line in traceback.format_exception(error):
                self._log(line.rstrip("\n"))
        self.stopped.set()

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, GrantAction):
                self._say(action.rank, grant_frame(action))
            elif isinstance(action, RecallAction):
                frame = recall_frame(action.configuration, action.hold, action.reason)
                self._say(action.rank, frame)
            elif isinstance(action, SwitchAction):
                # At the end of the turn: the driver's thread would else take turns with
                # this one for every command.
                self._commands.append(action)
                self._flush_soon()
            elif isinstance(action, FoundAction):
                self._say(action.rank, found_frame(action))
            else:
                self._say(action.rank, refuse_frame(action))

    def _say(self, rank: int, data: bytes) -> None:
        connection = self._ranks.get(rank)
        # Of several that die in one event the later ones are told in vain.
        if connection is not None:
            connection.send(data)

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """The end of a turn: what was decided in it goes out."""
        # Who is cut off has peers that are told, in this turn too.
        for connection in self._news:
            if not connection.flush():
                self._count("does_not_read", f"rank {connection.rank} reads nothing")
                self._lost(connection, "does not read what the controller sends")
                connection.abort()
        self._news.clear()
        for command in self._commands:
            self._switch.apply(command)
        self._commands.clear()
        self._flushes = False

    def _lost(self, connection: Connection, reason: str) -> None:
        """A connection is nobody's any more; the peers of its rank are told."""
        rank = connection.rank
        self._forget(connection)
        if rank is not None:
            self._act(self.core.leave(rank, reason, time.monotonic_ns()))

    def _forget(self, connection: Connection) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.rank is not None:
            del self._ranks[connection.rank]
            connection.rank = None
        self._observers.pop(connection, None)
        connection.observes = False

    def _refuse(
        self,
        connection: Connection,
        reason: str,
        message: str,
        request: int | None = None,
        *,
        fatal: bool = False,
    ) -> None:
        """Say no. A stranger is not listened to any more; a rank has more patience."""
        who = "a stranger" if connection.rank is None else f"rank {connection.rank}"
        self._count(reason, f"{who}: {message}")
        connection.refused += 1
        connection.send(encode("ERROR", request=request, reason=reason, message=message))
        if fatal or not connection.is_admitted or connection.refused >= _REFUSALS:
            self._lost(connection, "sent what is no message of a rank")
            connection.close()

    def _count(self, reason: str, line: str) -> None:
        self.refusals[reason] += 1
        count = self.refusals[reason]
        if count <= _LOGGED or math.log10(count).is_integer():
            self._log(f"refused ({reason}, {count} so far): {line}"[:LONGEST])
