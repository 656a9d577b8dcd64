"""The controller's server: connections on one side, core and switch on the other.

Everything runs on one event loop. Whatever a peer sends that it may not is refused with
a reason, counted and logged, and touches nobody else. A mistake in here ends the server
and is told, so that no rank waits for what never comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import math
import secrets
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, NamedTuple

from railx.fabric.circuits import Configuration, Layout, Port
from railx.fabric.connections import Connection
from railx.fabric.core import (
    Action,
    ControllerCore,
    FoundAction,
    GrantAction,
    RecallAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.journal import Journal, JournalError, journaled
from railx.fabric.metrics import metrics_text
from railx.fabric.protocol import TOKEN, VERSION, ProtocolError, encode, frame
from railx.fabric.requests import (
    Abandon,
    Acquire,
    FailCommands,
    FailPorts,
    Leave,
    Listen,
    Metrics,
    Observe,
    Ping,
    Pong,
    Prepare,
    Present,
    Recalled,
    Register,
    Release,
    Request,
    RestorePorts,
    Shutdown,
    Stats,
    Status,
    Unlisten,
)
from railx.fabric.settings import FabricSettings
from railx.fabric.switches import (
    EmulatedSwitchSettings,
    FaultySwitch,
    SwitchCallbacks,
    SwitchSettings,
    make_switch,
    port_name,
)
from railx.settings import SettingsError

__all__ = ["STRANGERS", "Server"]

#: Connections that have not said who they are; the oldest makes place for a new one.
STRANGERS = 64
#: How long one has for that.
_STRANGER_S = 10.0
_OBSERVERS = 16
_COMING = 4
#: A rank that was refused so many messages is no client of ours.
_REFUSALS = 100
#: Bytes that make the rest of a stream worthless.
_FATAL = {"not_json", "too_large", "too_deep", "no_type", "version", "not_finite"}
#: Characters of a line, in the log and to ranks.
_LONGEST = 1000
#: So many refusals of one kind are logged one by one, then each power of ten.
_LOGGED = 5


class Server:
    """What connections, switch and clock bring to the core, and what it answers."""

    def __init__(
        self,
        settings: FabricSettings,
        ranks: int,
        token: str,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.incarnation = secrets.randbits(63)
        self.stopped = asyncio.Event()
        #: What broke in here, if anything did.
        self.failure: Exception | None = None
        self.refusals: Counter[str] = Counter()
        #: As many connections are held; ``serve`` lowers it to what the system allows.
        self.most_connections = ranks + STRANGERS + _OBSERVERS
        self._digest = _digest(token)
        self._log = log or _to_standard_error
        self._loop = asyncio.get_running_loop()
        self._began_ns = time.monotonic_ns()
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._ranks: dict[int, Connection] = {}
        #: Ranks that have been registered, whether they still are or not.
        self._seen: set[int] = set()
        self._coming: set[asyncio.Task[Any]] = set()
        self._news: list[Connection] = []
        self._commands: list[SwitchAction] = []
        self._flushes = False
        self._told: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False
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
        layout = Layout(settings.gpus_per_server)
        keeps_light = _keeps_light(settings.switch)
        self._switch = make_switch(
            settings.switch,
            layout=layout,
            ranks=ranks,
            latency_ns=round(settings.reconfiguration_latency_ms * 1e6),
            callbacks=SwitchCallbacks(
                lambda command: self._on_loop(self._switched, command),
                lambda command, reason: self._on_loop(self._switch_failed, command, reason),
                lambda ports, reason: self._on_loop(self._ports_lost, ports, reason),
                lambda ports: self._on_loop(self._ports_back, ports),
            ),
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
        self._recovery: asyncio.TimerHandle | None = None
        if self.core.recovering:
            self._log(f"recovering: {len(lit)} circuits carry light, waiting for {ranks} ranks")
            # Sooner than the patience of those that came back ends.
            self._recovery = self._loop.call_later(settings.timeout_s / 2, self._end_recovery)
        # A rank that answers none of so many questions for a sign of life is dead.
        self._patience = max(3, math.ceil(settings.timeout_s / settings.heartbeat_s))
        self._beat = self._loop.call_later(settings.heartbeat_s, self._heartbeat)

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

    # What the acceptor brings.

    def accept(self, peer: socket.socket) -> bool:
        """A new connection; the oldest that has not said who it is makes place.

        Returns whether there may be more before those that are coming are there.
        """
        held = len(self._connections) + len(self._coming)
        if held >= self.most_connections and not self._evict("too_many_connections"):
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
        """The process has no descriptor left for a connection that waits.

        Returns whether another one made place.
        """
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
        """Close the connection that has been a stranger longest, if there is one."""
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._refuse(oldest, reason, "too many connections have not said who they are")
        return oldest is not None

    # What connections tell.

    def connected(self, connection: Connection) -> None:
        """Called by a connection."""
        self._connections.add(connection)
        self._strangers[connection] = self._loop.call_later(
            min(_STRANGER_S, self.settings.timeout_s), self._too_late, connection
        )
        if len(self._strangers) > STRANGERS:
            self._evict("too_many_connections")

    def received(self, connection: Connection, request: Request) -> None:
        """Called by a connection."""
        handler = self._handlers.get(type(request))
        if handler is not None and connection.rank is not None:
            handler(connection, request)
        else:
            self._received_seldom(connection, request)

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

    def broke_elsewhere(self, error: BaseException | None) -> None:
        """A mistake on a thread of the switch's driver."""
        self._on_loop(self.broke, RuntimeError(f"a driver's thread broke: {error!r}"))

    # The requests.

    def _received_seldom(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Register):
            self._register(connection, request)
        elif isinstance(request, Observe):
            self._observe(connection, request)
        elif not connection.is_known:
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

    def _register(self, connection: Connection, request: Register) -> None:
        rank = request.rank
        if connection.is_known:
            self._refuse(connection, "registered_twice", "a second REGISTER")
        elif self._is_stranger(connection, request.token, f"rank {rank} registered"):
            pass
        elif request.gpus_per_server != self.settings.gpus_per_server:
            message = (
                f"rank {rank} has gpus_per_server {request.gpus_per_server}; allowed:"
                f" {self.settings.gpus_per_server}, as the controller"
            )
            self._refuse(connection, "layout", message)
        elif request.controller == self.incarnation:
            why = self.core.gone(rank) if rank < self.core.ranks else None
            message = f"rank {rank} {why or 'is already registered'}; allowed: a new process"
            self._refuse(connection, "declared_dead", message)
        else:
            returning = request.controller is not None
            again = rank in self._seen
            problem = self.core.register(rank, request.incarnation, returning=returning)
            if problem is not None:
                self._refuse(connection, "rank_taken" if rank in self._ranks else "rank", problem)
                return
            self._become_known(connection)
            self._seen.add(rank)
            if again:
                # What its last life was part of needs it no more.
                returned = encode("RETURNED", rank=rank)
                for other in self._ranks.values():
                    other.send(returned)
            self._ranks[rank] = connection
            connection.rank = rank
            settings = self.settings
            connection.send(
                encode(
                    "REGISTERED",
                    ranks=self.core.ranks,
                    reconfiguration_latency_ms=settings.reconfiguration_latency_ms,
                    timeout_s=settings.timeout_s,
                    heartbeat_timeout_s=self._patience * settings.heartbeat_s,
                    reconnect_s=self._reconnect_s,
                    incarnation=self.incarnation,
                    recovering=self.core.recovering,
                )
            )

    def _present(self, connection: Connection, request: Present) -> None:
        if connection.rank is None:
            self._refuse(connection, "not_a_rank", "PRESENT of an observer")
        elif not self.core.recovering:
            self._refuse(connection, "not_recovering", "PRESENT, but nothing is recovered")
        else:
            now_ns = time.monotonic_ns()
            self._act(self.core.present(connection.rank, request.presentation, now_ns))

    def _observe(self, connection: Connection, request: Observe) -> None:
        if connection.is_known:
            self._refuse(connection, "registered_twice", "OBSERVE of a connection in use")
        elif self._is_stranger(connection, request.token, "an observer came"):
            pass
        elif sum(item.observes for item in self._connections) >= _OBSERVERS:
            message = f"{_OBSERVERS} observers are here; allowed: no more"
            self._refuse(connection, "too_many_observers", message)
        else:
            self._become_known(connection)
            connection.observes = True
            connection.send(encode("OBSERVING"))

    def _is_stranger(self, connection: Connection, token: str | None, who: str) -> bool:
        """Refuse who does not know the token; it learns nothing else."""
        # Digests have one length, so that comparing takes as long for every token.
        if hmac.compare_digest(self._digest, _digest(token or "")):
            return False
        what = "no token" if token is None else "another token"
        self._refuse(connection, "token", f"{who} with {what}; allowed: {TOKEN} of the controller")
        return True

    def _become_known(self, connection: Connection) -> None:
        self._strangers.pop(connection).cancel()
        connection.welcome()

    def _acquire(self, connection: Connection, request: Acquire) -> None:
        assert connection.rank is not None
        self._act(
            self.core.ask(
                connection.rank,
                request.request,
                request.key,
                request.configuration,
                time.monotonic_ns(),
                can_hold=True,
            )
        )

    def _release(self, connection: Connection, request: Release) -> None:
        assert connection.rank is not None
        self._act(self.core.release(connection.rank, request.key, time.monotonic_ns()))

    def _recalled(self, connection: Connection, request: Recalled) -> None:
        assert connection.rank is not None
        self._act(
            self.core.recalled(
                connection.rank, request.configuration, request.report, time.monotonic_ns()
            )
        )

    def _prepare(self, connection: Connection, request: Prepare) -> None:
        assert connection.rank is not None
        self._act(self.core.hint(connection.rank, request.configuration, time.monotonic_ns()))

    def _listen(self, connection: Connection, request: Listen) -> None:
        assert connection.rank is not None
        self._act(
            self.core.listen(
                connection.rank, request.request, request.channels, time.monotonic_ns()
            )
        )

    def _unlisten(self, connection: Connection, request: Unlisten) -> None:
        assert connection.rank is not None
        self.core.unlisten(connection.rank, request.request)

    def _abandon(self, connection: Connection, request: Abandon) -> None:
        assert connection.rank is not None
        self._act(self.core.abandon(connection.rank, request.key, time.monotonic_ns()))

    def _stats(self, connection: Connection, request: Stats) -> None:
        self._reply(connection, "STATS", request.request, statistics=self.statistics())

    def _observed(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Status):
            self._reply(connection, "STATUS", request.request, status=self.status())
        elif isinstance(request, Metrics):
            self._reply(connection, "METRICS", request.request, text=metrics_text(self.status()))
        elif isinstance(request, FailPorts | RestorePorts | FailCommands):
            try:
                self._break(request)
            except ValueError as error:
                self._refuse(connection, "order", str(error), request.request)
            else:
                connection.send(encode("DONE", request=request.request))
        else:
            name, number = type(request).__name__.upper(), getattr(request, "request", None)
            self._refuse(connection, "not_a_rank", f"{name} of an observer", number)

    def _break(self, order: FailPorts | RestorePorts | FailCommands) -> None:
        """Have an emulated switch fail; ValueError where it cannot."""
        if not isinstance(self._switch, FaultySwitch):
            driver = self.settings.switch.driver
            raise ValueError(f"the {driver} driver does not fail on order")
        if isinstance(order, FailPorts):
            self._switch.fail_ports(order.ports, order.reason)
        elif isinstance(order, RestorePorts):
            self._switch.restore_ports(order.ports)
        else:
            self._switch.fail_commands(order.commands, order.reason)

    def statistics(self) -> dict[str, object]:
        """The core's counters, with the refusals of both."""
        return {**self.core.statistics(), "refusals": self._all_refusals()}

    def _all_refusals(self) -> dict[str, int]:
        return dict(sorted((self.refusals + Counter(self.core.refusals)).items()))

    def status(self) -> dict[str, object]:
        """What an observer sees."""
        return {
            **self.core.snapshot(),
            "statistics": self.core.statistics(),
            "refusals": self._all_refusals(),
            "controller": {
                "incarnation": self.incarnation,
                "up_s": (time.monotonic_ns() - self._began_ns) / 1e9,
                "connections": len(self._connections),
                "driver": self.settings.switch.driver,
                "ranks": self.core.ranks,
                "gpus_per_server": self.settings.gpus_per_server,
                "latency_ms": self.settings.reconfiguration_latency_ms,
            },
            "last_heard_s": {
                str(rank): connection.missed * self.settings.heartbeat_s
                for rank, connection in sorted(self._ranks.items())
            },
            "journal": self._journal and self._journal.state(),
        }

    # The end of a peer.

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
        if fatal or not connection.is_known or connection.refused >= _REFUSALS:
            self._lost(connection, "sent what is no message of a rank")
            connection.close()

    def _count(self, reason: str, line: str) -> None:
        self.refusals[reason] += 1
        count = self.refusals[reason]
        if count <= _LOGGED or math.log10(count).is_integer():
            self._log(f"refused ({reason}, {count} so far): {line}"[:_LONGEST])

    def _too_late(self, connection: Connection) -> None:
        self._refuse(connection, "silent_stranger", "nobody registered on this connection")

    def _heartbeat(self) -> None:
        self._beat = self._loop.call_later(self.settings.heartbeat_s, self._heartbeat)
        ping = encode("PING")
        for rank, connection in list(self._ranks.items()):
            if self._ranks.get(rank) is not connection:
                continue
            if connection.missed >= self._patience:
                silent_s = connection.missed * self.settings.heartbeat_s
                self._count("silent", f"rank {rank} has been silent for {silent_s:g} s")
                self._lost(connection, f"has been silent for {silent_s:g} s")
                connection.abort()
                continue
            connection.missed += 1
            connection.send(ping)

    # What the core answers.

    def _on_loop(self, tell: Callable[..., None], *arguments: Any) -> None:
        # Called on the switch's thread. What it tells before the loop comes to it takes
        # one turn. The loop may have ended, then nobody waits for light any more.
        self._told.append((tell, arguments))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._awake = False
        while self._told:
            tell, arguments = self._told.popleft()
            tell(*arguments)

    def _switched(self, command: int) -> None:
        self._act(self.core.switched(command, time.monotonic_ns()))

    def _switch_failed(self, command: int, reason: str) -> None:
        self._log(f"the switch failed command {command}: {reason}"[:_LONGEST])
        self._act(self.core.switch_failed(command, reason[:_LONGEST], time.monotonic_ns()))

    def _ports_lost(self, ports: frozenset[Port], reason: str) -> None:
        names = ", ".join(map(port_name, sorted(ports)))
        self._log(f"ports lost ({reason}): {names}"[:_LONGEST])
        self._act(self.core.ports_lost(ports, reason[:_LONGEST], time.monotonic_ns()))

    def _ports_back(self, ports: frozenset[Port]) -> None:
        self._log(f"ports back: {', '.join(map(port_name, sorted(ports)))}"[:_LONGEST])
        self._act(self.core.ports_back(ports, time.monotonic_ns()))

    def _end_recovery(self) -> None:
        if not self.core.recovering:
            return
        late = sorted(self.core.awaited)
        self._log(f"ranks {', '.join(map(str, late))} did not come back"[:_LONGEST])
        self._act(self.core.end_recovery(time.monotonic_ns()))
        for rank in late:
            connection = self._ranks.get(rank)
            if connection is not None:
                self._forget(connection)
                connection.close()

    def _reply(self, connection: Connection, kind: str, request: int, **fields: object) -> None:
        """Answer a question for people; they get no more than a message can hold."""
        try:
            answer = encode(kind, request=request, **fields)
        except ProtocolError as error:
            self._refuse(connection, error.reason, str(error), request)
        else:
            connection.send(answer)

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, GrantAction):
                self._say(action.rank, _grant_frame(action))
            elif isinstance(action, RecallAction):
                self._say(
                    action.rank, _recall_frame(action.configuration, action.hold, action.reason)
                )
            elif isinstance(action, RefuseAction):
                self._say(
                    action.rank,
                    encode(
                        "ERROR",
                        request=action.request,
                        reason=action.reason,
                        message=action.message[:_LONGEST],
                    ),
                )
            elif isinstance(action, FoundAction):
                self._say(
                    action.rank,
                    encode(
                        "FOUND",
                        request=action.request,
                        source=action.source,
                        channel=action.key[0],
                        sequence=action.key[1],
                    ),
                )
            else:
                # At the end of the turn: the driver's thread would else take turns with
                # this one for every command.
                self._commands.append(action)
                self._flush_soon()

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


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _to_standard_error(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"controller: {line}", file=sys.stderr, flush=True)


@lru_cache(maxsize=1024)
def _needs(configuration: Configuration) -> str:
    """Kind and members within a message: the same for all members."""
    members = ",".join(map(str, configuration.members))
    return f'"kind":"{configuration.kind}","members":[{members}]'


def _grant_frame(action: GrantAction) -> bytes:
    """GRANT, put together by hand: it is what a controller sends most."""
    request = "null" if action.request is None else action.request
    hold = "null" if action.hold is None else action.hold
    return frame(
        (
            f'{{"version":{VERSION},"type":"GRANT","request":{request},'
            f'"channel":{encode_basestring_ascii(action.key[0])},"sequence":{action.key[1]},'
            f'{_needs(action.configuration)},"generation":{action.generation},'
            f'"wait_ns":{action.wait_ns},"stall_ns":{action.stall_ns},'
            f'"reconfigured":{action.reconfigured},'
            f'"mispredicted":{"true" if action.mispredicted else "false"},"hold":{hold}}}'
        ).encode()
    )


@lru_cache(maxsize=256)
def _recall_frame(configuration: Configuration, hold: int, reason: str | None) -> bytes:
    """RECALL: the same for all who hold the lease."""
    told = "null" if reason is None else encode_basestring_ascii(reason[:_LONGEST])
    return frame(
        (
            f'{{"version":{VERSION},"type":"RECALL",{_needs(configuration)},'
            f'"hold":{hold},"reason":{told}}}'
        ).encode()
    )
