"""The controller's connections: bytes to checked requests, and frames back.

A new connection is a stranger's; it becomes a rank's or an observer's. All frames of
one turn of the loop go out in one write. Every buffer is bounded: the server drops a
peer that does not read, and one that sends nothing. A peer that sends several questions
with large answers gets one answer in a turn, so that other peers come in between.

This is a protocol of asyncio and no pair of streams: a message through
``asyncio.start_server`` took 2 to 3.5 times the processor time (27 against 8 us alone,
6.6 against 3.1 us in batches of 8), and its accept loop waits 1 s where descriptors run
out and cannot evict an idle connection.
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


class Owner(Protocol):
    """The server as connections see it; ``ranks`` is the number of ranks of its job."""

    ranks: int

    def connected(self, connection: Connection) -> None:
        """A stranger has connected."""

    def received(self, connection: Connection, request: Request) -> None:
        """The peer sent a request."""

    def misunderstood(self, connection: Connection, error: ProtocolError) -> None:
        """The peer sent something that is no request."""

    def disconnected(self, connection: Connection, reason: str) -> None:
        """The connection is gone; ``reason`` completes "rank 3 ..."."""

    def has_news(self, connection: Connection) -> None:
        """The first frame of this turn waits for ``flush``."""

    def broke(self, error: Exception) -> None:
        """An error of the server's own."""


class Connection(asyncio.BufferedProtocol):
    """One peer.

    All connections of a process share one read buffer for the length of a call: a new
    buffer for every message costs more than the message.
    """

    _into = memoryview(bytearray(_READ_BYTES))

    def __init__(self, owner: Owner) -> None:
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
