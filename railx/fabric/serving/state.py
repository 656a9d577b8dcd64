"""What the server remembers: its core, its switch, its journal and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from railx.fabric.actions import SwitchAction
from railx.fabric.circuits import Layout
from railx.fabric.connections import Connection
from railx.fabric.core import ControllerCore
from railx.fabric.journal import Journal, JournalError, journaled
from railx.fabric.settings import FabricSettings
from railx.fabric.switches import (
    EmulatedSwitchSettings,
    SwitchCallbacks,
    SwitchSettings,
    make_switch,
)
from railx.settings import SettingsError

__all__ = ["OBSERVERS", "STRANGERS", "ServerState", "digest"]

#: Connections that have not said who they are; the oldest makes place for a new one.
STRANGERS = 64
#: Connections that look on; who has asked nothing for longest makes place.
OBSERVERS = 16


class ServerState:
    """Everything that the server remembers."""

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
        #: What broke in here, if anything did.
        self.failure: Exception | None = None
        self.refusals: Counter[str] = Counter()
        #: As many connections are held; ``serve`` lowers it to what the system allows.
        self.most_connections = ranks + STRANGERS + OBSERVERS
        self._digest = digest(token)
        self._log = log or _to_standard_error
        self._loop = asyncio.get_running_loop()
        self._began_ns = time.monotonic_ns()
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._ranks: dict[int, Connection] = {}
        #: Those that look on; first the one whose last question is longest ago.
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
        #: How long ranks look for a lost controller: another one may know the light.
        self._reconnect_s = settings.timeout_s if keeps_light.after else 0.0
        self._journal: Journal | None = None
        if settings.journal is not None:
            try:
                self._journal = Journal(settings.journal.path, settings.journal.limit_mib << 20)
            except JournalError as error:
                self._switch.close()
                raise SettingsError("journal.path", str(error)) from None
            self.core = journaled(self.core, self._journal)

    def _callbacks(self) -> SwitchCallbacks:
        """What the switch tells, on its own thread."""
        raise NotImplementedError


class _Keeping(NamedTuple):
    """Whether a controller before this one may have left light, and this one will."""

    before: bool
    after: bool


def _keeps_light(settings: SwitchSettings) -> _Keeping:
    if isinstance(settings, EmulatedSwitchSettings):
        file = settings.state_file
        return _Keeping(file is not None and Path(file).exists(), file is not None)
    # A switch of its own keeps its light whatever happens to the controller.
    return _Keeping(True, True)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _to_standard_error(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"controller: {line}", file=sys.stderr, flush=True)
