"""The controller's connections: bytes to checked requests, and frames back.

A connection belongs to nobody at first, then to a rank or to an observer. What is sent
in one turn of the loop goes out in one write. Nothing here grows without a bound: a
peer that does not read is cut off, and so is one that says nothing at all. Whoever
sends several questions with large answers at once gets one answer in a turn, so that
the others come in between.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

from railx.fabric.protocol import MAXIMUM_BYTES, FrameDecoder, ProtocolError
from railx.fabric.requests import Request, read_request

__all__ = ["MAXIMUM_UNREAD_BYTES", "Acceptor", "Connection", "Owner"]

#: What a stranger may say at once; who has registered may say more.
_STRANGERS_BYTES = 4096
#: So much may wait for a peer that does not read.
MAXIMUM_UNREAD_BYTES = 4 * MAXIMUM_BYTES
#: What is read at once.
_READ_BYTES = 1 << 16
#: How long a closed connection has for its last words.
_LINGER_S = 2.0
#: How long nothing is accepted after descriptors ran out, and how many at once else.
_STARVED_S = 0.1
_AT_ONCE = 16
_STARVED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Owner(Protocol):
    """What connections tell the server; it says how many ranks its job has."""

    ranks: int

    def connected(self, connection: Connection) -> None:
        """It is there, and nobody's."""

    def received(self, connection: Connection, request: Request) -> None:
        """Its peer said something."""

    def misunderstood(self, connection: Connection, error: ProtocolError) -> None:
        """Its peer said something that is no request."""

    def disconnected(self, connection: Connection, reason: str) -> None:
        """It is gone; ``reason`` completes "rank 3 ..."."""

    def has_news(self, connection: Connection) -> None:
        """Its first frame of this turn waits for ``flush``."""

    def broke(self, error: Exception) -> None:
        """A mistake in here."""


class Connection(asyncio.BufferedProtocol):
    """One peer.

    All connections of a process read into one buffer, each for the length of a call: a
    buffer made for every message costs more than the message.
    """

    _into = memoryview(bytearray(_READ_BYTES))

    def __init__(self, owner: Owner) -> None:
        self.rank: int | None = None
        self.observes = False
        #: Signs of life asked for since the last one came.
        self.missed = 0
        #: How often it was refused something.
        self.refused = 0
        self.closing = False
        self._owner = owner
        self._ranks = owner.ranks
        #: Messages of this turn that nobody has looked at, and those left for the next.
        self._unheard: Iterator[bytes] = iter(())
        self._later: list[bytes] = []
        self._decoder = FrameDecoder(_STRANGERS_BYTES)
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []

    @property
    def is_admitted(self) -> bool:
        """Whether it has registered, or observes."""
        return self.rank is not None or self.observes

    def welcome(self) -> None:
        """From now on it may send messages of every size."""
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
        """What waits for the end of this turn."""
        return sum(map(len, self._frames))

    def rest(self) -> None:
        """What its peer said behind the present message waits for the next turn."""
        # The loop that goes through the messages finds none any more.
        self._later = list(self._unheard)
        if self._later and self._transport is not None and not self.closing:
            # Nothing overtakes them, and no more than one read has to be kept.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        bodies, self._later = self._later, []
        # It was not listened to: its silence is not its own.
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
        """Have a frame sent at the end of this turn."""
        if self.closing:
            return
        self._frames.append(frame)
        if len(self._frames) == 1:
            self._owner.has_news(self)

    def flush(self) -> bool:
        """Send what waits; returns whether the peer reads what it is sent."""
        if not self._frames or self._transport is None:
            return True
        self._transport.write(self._frames[0] if len(self._frames) == 1 else b"".join(self._frames))
        self._frames.clear()
        return self._transport.get_write_buffer_size() <= MAXIMUM_UNREAD_BYTES

    def close(self) -> None:
        """Send what waits and end; a peer that does not read is not waited for."""
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
    """Takes connections from a listening socket.

    ``accepted`` returns whether more may come in the same turn of the loop.
    Where the process has no descriptor left, it says so to ``starved``, which returns
    whether it gave one back; else nothing is tried for a while.
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
