"""The server's state, and what it does in each turn of the loop.

The core's answers and the switch commands of one turn go out together at its end.
Events of the switch's driver come from its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from railx.fabric.actions import Action, GrantAction, RecallAction, SwitchAction
from railx.fabric.circuits import Layout, Port
from railx.fabric.core import ControllerCore
from railx.fabric.journal import Journal, JournalError, journaled
from railx.fabric.protocol import encode
from railx.fabric.serving.connections import Connection
from railx.fabric.serving.frames import (
    MAXIMUM_LINE,
    grant_frame,
    recall_frame,
    refuse_frame,
)
from railx.fabric.settings import FabricSettings
from railx.fabric.switches import (
    EmulatedSwitchSettings,
    SwitchCallbacks,
    SwitchSettings,
    make_switch,
    port_name,
)
from railx.settings import SettingsError

__all__ = ["OBSERVERS", "STRANGERS", "ServerBase", "digest"]

#: Connections that have not registered; a new one evicts the oldest.
STRANGERS = 64
#: Observers; a new one evicts the one whose last question is oldest.
OBSERVERS = 16
#: Refused messages after which the server drops a rank.
_MAXIMUM_REFUSALS = 100
#: Refusals of one kind that are logged one by one; after them each power of ten is.
_LOGGED_REFUSALS = 5


class ServerBase:
    """State, answers, refusals and the events of the switch."""

    def __init__(
        self,
        settings: FabricSettings,
        ranks: int,
        token: str,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.incarnation = secrets.randbits(63)
        self.stopped = asyncio.Event()
        #: The first error of the server's own.
        self.failure: Exception | None = None
        self.refusals: Counter[str] = Counter()
        #: Limit of connections; ``serve`` lowers it to what the system allows.
        self.most_connections = ranks + STRANGERS + OBSERVERS
        self._digest = digest(token)
        self._log = log or _to_standard_error
        self._loop = asyncio.get_running_loop()
        self._began_ns = time.monotonic_ns()
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._ranks: dict[int, Connection] = {}
        #: Observers; first the one with the oldest question.
        self._observers: dict[Connection, None] = {}
        #: Ranks that have been registered, whether they still are or not.
        self._seen: set[int] = set()
        self._coming: set[asyncio.Task[Any]] = set()
        self._news: list[Connection] = []
        self._commands: list[SwitchAction] = []
        self._flushes = False
        self._driver_events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False
        layout = Layout(settings.gpus_per_server)
        keeps_light = _keeps_light(settings.switch)
        self._switch = make_switch(
            settings.switch,
            layout=layout,
            ranks=ranks,
            latency_ns=round(settings.reconfiguration_latency_ms * 1e6),
            callbacks=self._callbacks(),
        )
        lit = self._switch.read()
        self.core = ControllerCore(layout, ranks, active=lit, recovering=keeps_light.before)
        #: Seconds in which ranks look for a lost controller, where light survives it.
        self._reconnect_s = settings.timeout_s if keeps_light.after else 0.0
        self._journal: Journal | None = None
        if settings.journal is not None:
            try:
                self._journal = Journal(settings.journal.path, settings.journal.limit_mib << 20)
            except JournalError as error:
                self._switch.close()
                raise SettingsError("journal.path", str(error)) from None
            self.core = journaled(self.core, self._journal)

    def has_news(self, connection: Connection) -> None:
        """Called by a connection."""
        self._news.append(connection)
        self._flush_soon()

    def broke(self, error: Exception) -> None:
        """An error of the server's own: log it and end, so that no rank waits."""
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
                # At the end of the turn: otherwise the driver's thread and this one
                # alternate at every command.
                self._commands.append(action)
                self._flush_soon()
            else:
                self._say(action.rank, refuse_frame(action))

    def _say(self, rank: int, data: bytes) -> None:
        connection = self._ranks.get(rank)
        # A rank that dies in the same event has no connection any more.
        if connection is not None:
            connection.send(data)

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """The end of a turn: send its frames and switch commands."""
        # A dropped rank's peers get their errors in this turn too.
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
        """Take a connection from its rank; the core tells the rank's peers."""
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
        """Refuse a message; close a stranger's connection, and a rank's after many."""
        who = "a stranger" if connection.rank is None else f"rank {connection.rank}"
        self._count(reason, f"{who}: {message}")
        connection.refused += 1
        connection.send(encode("ERROR", request=request, reason=reason, message=message))
        if fatal or not connection.is_admitted or connection.refused >= _MAXIMUM_REFUSALS:
            self._lost(connection, "sent what is no message of a rank")
            connection.close()

    def _count(self, reason: str, line: str) -> None:
        self.refusals[reason] += 1
        count = self.refusals[reason]
        if count <= _LOGGED_REFUSALS or math.log10(count).is_integer():
            self._log(f"refused ({reason}, {count} so far): {line}"[:MAXIMUM_LINE])

    def _callbacks(self) -> SwitchCallbacks:
        return SwitchCallbacks(
            lambda command: self._on_loop(self._switched, command),
            lambda command, reason: self._on_loop(self._switch_failed, command, reason),
            lambda ports, reason: self._on_loop(self._ports_lost, ports, reason),
            lambda ports: self._on_loop(self._ports_back, ports),
        )

    def broke_elsewhere(self, error: BaseException | None) -> None:
        """An error on a thread of the switch's driver."""
        self._on_loop(self.broke, RuntimeError(f"a driver's thread broke: {error!r}"))

    def _on_loop(self, tell: Callable[..., None], *arguments: Any) -> None:
        # Called on the switch's thread. All events before the loop wakes take one turn.
        # The loop may have ended; then no rank waits for light.
        self._driver_events.append((tell, arguments))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._awake = False
        while self._driver_events:
            tell, arguments = self._driver_events.popleft()
            tell(*arguments)

    def _switched(self, command: int) -> None:
        self._act(self.core.switched(command, time.monotonic_ns()))

    def _switch_failed(self, command: int, reason: str) -> None:
        self._log(f"the switch failed command {command}: {reason}"[:MAXIMUM_LINE])
        self._act(self.core.switch_failed(command, reason[:MAXIMUM_LINE], time.monotonic_ns()))

    def _ports_lost(self, ports: frozenset[Port], reason: str) -> None:
        names = ", ".join(map(port_name, sorted(ports)))
        self._log(f"ports lost ({reason}): {names}"[:MAXIMUM_LINE])
        self._act(self.core.ports_lost(ports, reason[:MAXIMUM_LINE], time.monotonic_ns()))

    def _ports_back(self, ports: frozenset[Port]) -> None:
        self._log(f"ports back: {', '.join(map(port_name, sorted(ports)))}"[:MAXIMUM_LINE])
        self._act(self.core.ports_back(ports, time.monotonic_ns()))


class _Keeping(NamedTuple):
    """Whether an earlier controller may have left light, and whether this one will."""

    before: bool
    after: bool


def _keeps_light(settings: SwitchSettings) -> _Keeping:
    if isinstance(settings, EmulatedSwitchSettings):
        file = settings.state_file
        return _Keeping(file is not None and Path(file).exists(), file is not None)
    # A real switch keeps its light when the controller ends.
    return _Keeping(True, True)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _to_standard_error(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"controller: {line}", file=sys.stderr, flush=True)
