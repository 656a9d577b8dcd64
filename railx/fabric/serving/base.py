"""The controller's connections, and what its server does in each turn of the loop.

The core's answers and the switch commands of one turn go out together at its end, all
frames of a connection in one write. Events of the switch's driver come from its own
thread. A new connection is a stranger's; it becomes a rank's or an observer's. Every
buffer is bounded: the server drops a peer that does not read, and one that sends
nothing. A peer that sends several questions with large answers gets one answer in a
turn, so that other peers come in between.

Connections are a protocol of asyncio: a message through ``asyncio.start_server`` took 2
to 3.5 times the processor time (27 against 8 us alone, 6.6 against 3.1 us in batches of
8), and its accept loop waits 1 s where descriptors run out and evicts no idle peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import math
import secrets
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from railx.fabric.circuits import Configuration, Layout, Port
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import Action, GrantAction, RecallAction, SwitchAction
from railx.fabric.journal import Journal, JournalError, journaled
from railx.fabric.protocol import (
    MAXIMUM_BYTES,
    TOKEN,
    VERSION,
    FrameDecoder,
    ProtocolError,
    Request,
    encode,
    frame,
    read_request,
)
from railx.fabric.settings import EmulatedSwitchSettings, FabricSettings, SwitchSettings
from railx.fabric.switches import Switch, SwitchCallbacks, port_name
from railx.fabric.switches.emulated import EmulatedSwitch
from railx.settings import SettingsError

#: The largest message of a stranger; registered peers may send larger ones.
_STRANGERS_BYTES = 4096
#: Bytes that may wait for a peer that does not read.
MAXIMUM_UNREAD_BYTES = 4 * MAXIMUM_BYTES
#: Bytes of one read.
_READ_BYTES = 1 << 16
#: Seconds in which a closed connection sends its last frames.
_LINGER_S = 2.0
#: Pause of accepting after descriptors ran out, and connections accepted in one turn.
_STARVED_S = 0.1
_AT_ONCE = 16
_STARVED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Connection(asyncio.BufferedProtocol):
    """One peer.

    All connections of a process share one read buffer for the length of a call: a new
    buffer for every message costs more than the message.
    """

    _into = memoryview(bytearray(_READ_BYTES))

    def __init__(self, owner: ServerBase) -> None:
        self.rank: int | None = None
        self.observes = False
        #: Unanswered heartbeats.
        self.missed = 0
        #: Refused messages.
        self.refused = 0
        self.closing = False
        self._owner = owner
        self._ranks = owner.ranks
        #: Unread messages of this turn, and those left for the next.
        self._unheard: Iterator[bytes] = iter(())
        self._later: list[bytes] = []
        self._decoder = FrameDecoder(_STRANGERS_BYTES)
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []

    @property
    def is_admitted(self) -> bool:
        """Whether the peer has registered, or observes."""
        return self.rank is not None or self.observes

    def welcome(self) -> None:
        """Accept messages of every size from now on."""
        self._decoder.limit = MAXIMUM_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("socket")
        if not isinstance(peer.getsockname(), str):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop."""
        return self._into

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop."""
        self.missed = 0
        self._hear(self._decoder.feed(bytes(self._into[:nbytes])))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the end of this turn."""
        return sum(map(len, self._frames))

    def rest(self) -> None:
        """Leave the peer's further messages to the next turn."""
        # The loop over the messages of this turn ends.
        self._later = list(self._unheard)
        if self._later and self._transport is not None and not self.closing:
            # No later message overtakes them, and at most one read is buffered.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        bodies, self._later = self._later, []
        # The server did not read: the silence is not the peer's.
        self.missed = 0
        self._hear(bodies)
        if not self._later and not self.closing and self._transport is not None:
            self._transport.resume_reading()

    def _hear(self, bodies: list[bytes]) -> None:
        try:
            self._unheard = iter(bodies)
            for body in self._unheard:
                if self.closing:
                    return
                try:
                    request = read_request(body, self._ranks)
                except ProtocolError as error:
                    self._owner.misunderstood(self, error)
                else:
                    self._owner.received(self, request)
            if self._decoder.too_large is not None and not self._later and not self.closing:
                self._owner.misunderstood(self, self._decoder.problem())
        except Exception as error:
            self._owner.broke(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.closing = True
        self._frames.clear()
        try:
            self._owner.disconnected(self, "lost its connection to the controller")
        except Exception as error:
            self._owner.broke(error)

    def send(self, frame: bytes) -> None:
        """Send a frame at the end of this turn."""
        if self.closing:
            return
        self._frames.append(frame)
        if len(self._frames) == 1:
            self._owner.has_news(self)

    def flush(self) -> bool:
        """Send the waiting frames; returns whether the peer reads fast enough."""
        if not self._frames or self._transport is None:
            return True
        self._transport.write(self._frames[0] if len(self._frames) == 1 else b"".join(self._frames))
        self._frames.clear()
        return self._transport.get_write_buffer_size() <= MAXIMUM_UNREAD_BYTES

    def close(self) -> None:
        """Send the waiting frames and end; a peer that does not read gets no time."""
        if self.closing or self._transport is None:
            return
        self.flush()
        self.closing = True
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)
        self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self.closing = True
        self._frames.clear()
        if self._transport is not None:
            self._transport.abort()


class Acceptor:
    """Accepts connections from a listening socket.

    ``accepted`` returns whether to accept more in the same turn of the loop. Where the
    process has no descriptor left, ``starved`` returns whether it freed one; otherwise
    accepting pauses.
    """

    def __init__(
        self,
        listening: socket.socket,
        accepted: Callable[[socket.socket], bool],
        starved: Callable[[OSError], bool],
    ) -> None:
        self._socket = listening
        self._accepted = accepted
        self._starved = starved
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take no more; the socket stays open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                peer, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _STARVED:
                    raise
                self._loop.remove_reader(self._socket.fileno())
                pause_s = 0.0 if self._starved(error) else _STARVED_S
                self._pause = self._loop.call_later(pause_s, self._listen)
                return
            if not self._accepted(peer):
                return


#: Characters of a line in the log and in messages to ranks.
MAXIMUM_LINE = 1000


def grant_frame(action: GrantAction) -> bytes:
    """GRANT, formatted directly: a controller sends no other message as often."""
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
def recall_frame(configuration: Configuration, hold: int, reason: str | None) -> bytes:
    """RECALL: the same for all holders of the lease."""
    reason_json = "null" if reason is None else encode_basestring_ascii(reason[:MAXIMUM_LINE])
    what = f'"version":{VERSION},"type":"RECALL",{_needs(configuration)}'
    return frame(f'{{{what},"hold":{hold},"reason":{reason_json}}}'.encode())


@lru_cache(maxsize=1024)
def _needs(configuration: Configuration) -> str:
    """Kind and members within a message: the same for all members."""
    members = ",".join(map(str, configuration.members))
    return f'"kind":"{configuration.kind}","members":[{members}]'


#: Connections that have not registered; a new one evicts the oldest.
STRANGERS = 64
#: Observers; a new one evicts the one whose last question is oldest.
OBSERVERS = 16
#: Refused messages after which the server drops a rank.
_MAXIMUM_REFUSALS = 100
#: Refusals of one kind that are logged one by one; after them each power of ten is.
_LOGGED_REFUSALS = 5
#: Seconds in which a connection has to register.
_STRANGER_S = 10.0
#: Connections that are accepted and not yet connected.
_COMING = 4
#: Errors after which the rest of a stream cannot be read.
_FATAL = {"not_json", "too_large", "too_deep", "no_type", "version", "not_finite"}


class ServerBase:
    """State, answers, refusals, events of the switch; admission of token holders."""

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
        light_before, light_after = _keeps_light(settings.switch)
        latency_ns, callbacks = round(settings.reconfiguration_latency_ms * 1e6), self._callbacks()
        self._switch = make_switch(
            settings.switch, layout=layout, ranks=ranks, latency_ns=latency_ns, callbacks=callbacks
        )
        lit = self._switch.read()
        self.core = ControllerCore(layout, ranks, active=lit, recovering=light_before)
        #: Seconds in which ranks look for a lost controller, where light survives it.
        self._reconnect_s = settings.timeout_s if light_after else 0.0
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
                said = {"reason": action.reason, "message": action.message[:MAXIMUM_LINE]}
                self._say(action.rank, encode("ERROR", request=action.request, **said))

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
        heard = self._switched, self._switch_failed, self._ports_lost, self._ports_back
        return SwitchCallbacks(*(partial(self._on_loop, tell) for tell in heard))

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
        why = "silent_stranger", "nobody registered on this connection"
        limit_s = min(_STRANGER_S, self.settings.timeout_s)
        self._strangers[connection] = self._loop.call_later(limit_s, self._refuse, connection, *why)
        if len(self._strangers) > STRANGERS:
            self._evict("too_many_connections")

    def misunderstood(self, connection: Connection, error: ProtocolError) -> None:
        """Called by a connection."""
        fatal, message = error.reason in _FATAL, f"not understood: {error}"
        self._refuse(connection, error.reason, message, error.request, fatal=fatal)

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


def make_switch(
    settings: SwitchSettings,
    *,
    layout: Layout,
    ranks: int,
    latency_ns: int,
    callbacks: SwitchCallbacks,
) -> Switch:
    """The switches of all rails; ``latency_ns`` is the run's, for an emulated one.

    Callbacks may come before this returns. Raises
    :class:`railx.settings.SettingsError` below "switch" where the driver cannot be had.
    """
    if isinstance(settings, EmulatedSwitchSettings):
        return EmulatedSwitch(latency_ns, callbacks, layout=layout, ranks=ranks, settings=settings)
    from railx.fabric.switches.netconf import NetconfSwitch

    return NetconfSwitch(settings, layout, ranks, callbacks)


def _keeps_light(settings: SwitchSettings) -> tuple[bool, bool]:
    """Whether an earlier controller may have left light, and whether this one will."""
    if isinstance(settings, EmulatedSwitchSettings):
        file = settings.state_file
        return file is not None and Path(file).exists(), file is not None
    # A real switch keeps its light when the controller ends.
    return True, True


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _to_standard_error(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"controller: {line}", file=sys.stderr, flush=True)
