"""The messages between ranks and controller.

They are JSON objects, each behind its length in four bytes (big-endian).

From a rank to the controller:

* ``REGISTER``: rank, gpus_per_server, token, incarnation (a random number of the
  process), controller (the incarnation of the controller before this one, or null).
  REGISTERED answers it with ranks, reconfiguration_latency_ms, timeout_s,
  heartbeat_timeout_s, reconnect_s (how long to look for a controller that was lost),
  incarnation (the controller's) and recovering.
* ``PRESENT``: configurations (kind and members), begun (channel, number of the last
  operation begun on it, index of its configuration, number up to which all is over or
  -1), open (channel and number of those under way), operations (how many began without
  a question). The first message to a controller that recovers: the operations that this
  rank has begun under the earlier one. Its open questions follow.
* ``ACQUIRE``: request, channel, sequence, kind, members. This rank asks for the
  circuits of the operation (channel, sequence).
* ``LISTEN``: request, channels (by channel the rank that sends and the number of the
  next operation). Which of them waits for this rank, which receives from any source?
  FOUND or ERROR answers it; the rank repeats it while nobody waits, then sends ACQUIRE.
* ``RELEASE``: channel, sequence. This rank's part of the operation has ended, on the
  device too.
* ``RECALLED``: kind, members, hold, begun (the last operation begun by channel), open
  (channel and sequence of those that have not ended), operations (how many began
  without a question). This rank gives back the lease ``hold``, after a RECALL or on its
  own, and releases each open operation when it ends.
* ``PREPARE``: kind, members. The circuits of this rank's next operation: a hint without
  an answer.
* ``ABANDON``: channel, sequence. This rank gave up; every member gets an ERROR that
  names the missing members.
* ``STATS``: request. The answer carries the controller's counters, as STATUS does the
  state.
* ``PING``, ``PONG``: a heartbeat, from either side, and its answer.
* ``LEAVE``: an orderly end. A connection that closes without it is a dead rank.
* ``SHUTDOWN``: the controller ends.

``OBSERVE`` (token) makes an observer of a connection instead of a rank; OBSERVING
answers it. It may send SHUTDOWN and LEAVE, and with ``request``:

* ``STATUS``: the answer's ``status`` is the state, ``METRICS``: its ``text`` the
  counters. Entries beyond the size of a message are counted in ``left_out``.
* ``FAIL_PORTS``: ports (GPU and side), reason. ``RESTORE_PORTS``: ports.
  ``FAIL_COMMANDS``: count, reason. An emulated switch breaks on order; DONE or ERROR
  answers.

From the controller to a rank:

* ``GRANT``: request, channel, sequence, kind, members, generation, wait_ns, stall_ns,
  reconfigured, mispredicted, hold. The operation may start. All times are durations:
  the clocks of two hosts are never compared. Where ``hold`` is a number, the rank keeps
  the lease: it begins and ends further operations on these circuits without a message,
  until it is recalled. ``request`` is null where the operation began in this way and
  the lease was recalled before all members had begun it.
* ``RECALL``: kind, members, hold, reason (null, or the loss of a member). RECALLED
  answers it at once; a rank without this lease sends no answer.
* ``RETURNED``: rank. Another process is this rank now: operations begun with the
  earlier one are over.
* ``FOUND``: request, source, channel, sequence. Rank ``source`` waits for an operation
  with this rank; all three are null while nobody waits.
* ``ERROR``: request (null: an operation already granted, or none), reason (a word),
  message (one line).

``request`` numbers the questions of a rank, so that answers cannot be confused. Every
message carries the protocol's version. No message is larger than ``MAXIMUM_BYTES``, and
a decoder never drops bytes that follow a message. :mod:`railx.fabric.requests` checks
the messages of ranks.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from railx.errors import UserError

__all__ = [
    *("MAXIMUM_BYTES", "TOKEN", "UNIX", "VERSION", "FrameDecoder", "MessageDecoder"),
    *("ProtocolError", "address_of", "connect", "encode", "frame", "parse"),
]

VERSION = 5
MAXIMUM_BYTES = 1 << 20
#: The environment variable with the secret that ranks and controller share.
TOKEN = "RAILX_TOKEN"
#: How the address of a Unix socket begins; its path follows.
UNIX = "unix:"
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class ProtocolError(ValueError):
    """Bytes that are no message of this protocol.

    ``reason`` is a word to count by, ``request`` the question's number where it is
    known.
    """

    def __init__(
        self, message: str, reason: str = "not_understood", request: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.request = request


def frame(body: bytes) -> bytes:
    """A message behind its length.

    Raises :class:`ProtocolError` where it would be too large.
    """
    if len(body) > MAXIMUM_BYTES:
        raise ProtocolError(
            f"a message of {len(body)} bytes; allowed: at most {MAXIMUM_BYTES}", "too_large"
        )
    return _LENGTH.pack(len(body)) + body


def encode(message_type: str, /, **fields: Any) -> bytes:
    """One framed message; raises :class:`ProtocolError` where it would be too large."""
    return frame(
        json.dumps(
            {"version": VERSION, "type": message_type, **fields},
            separators=(",", ":"),
            allow_nan=False,
        ).encode()
    )


class FrameDecoder:
    """Splits a stream of bytes, in chunks of any size, into the bodies of messages.

    ``limit`` may change between two calls. ``too_large`` is the length of the message
    that exceeded it: the rest of the stream is unreadable.
    """

    def __init__(self, limit: int = MAXIMUM_BYTES) -> None:
        self.limit = limit
        self.too_large: int | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by ``data``."""
        if not self._buffer and self.too_large is None and len(data) > _LENGTH.size:
            # Usually a chunk is exactly one message.
            (length,) = _LENGTH.unpack_from(data)
            if length == len(data) - _LENGTH.size and length <= self.limit:
                return [data[_LENGTH.size :]]
        self._buffer += data
        available, begin, bodies = len(self._buffer), 0, []
        while self.too_large is None and available - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, begin)
            if length > self.limit:
                self.too_large = length
                break
            end = begin + _LENGTH.size + length
            if end > available:
                break
            bodies.append(bytes(self._buffer[begin + _LENGTH.size : end]))
            begin = end
        if self.too_large is not None:
            self._buffer.clear()
        elif begin:
            del self._buffer[:begin]
        return bodies

    def problem(self) -> ProtocolError:
        """The error for a message that is too large."""
        message = f"a message of {self.too_large} bytes; allowed: at most {self.limit}"
        return ProtocolError(message, "too_large")


class MessageDecoder:
    """Turns a stream of bytes, cut anywhere, back into messages."""

    def __init__(self) -> None:
        self._frames = FrameDecoder()

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by ``data``.

        Raises :class:`ProtocolError` (after it the stream cannot be used any more).
        """
        messages = [parse(body) for body in self._frames.feed(data)]
        if self._frames.too_large is not None:
            raise self._frames.problem()
        return messages


def _no_number(text: str) -> Any:
    raise ProtocolError(f"a message with the number {text[:40]}", "not_finite")


# The controller's durations are whole nanoseconds, but latencies have fractions.
_DECODER = json.JSONDecoder(parse_constant=_no_number)
#: A text that breaks off behind more open brackets than these is refused for its depth.
_MAXIMUM_DEPTH = 1000


def _too_deep() -> ProtocolError:
    return ProtocolError("a message that is nested too deep", "too_deep")


def _open_brackets(error: json.JSONDecodeError) -> int:
    """How many brackets are open where a text stops being JSON."""
    return sum(
        sign * error.doc.count(bracket, 0, error.pos)
        for bracket, sign in (("[", 1), ("{", 1), ("]", -1), ("}", -1))
    )


def parse(body: bytes, decoder: json.JSONDecoder = _DECODER) -> Message:
    """The message of a body; raises :class:`ProtocolError` where it is none."""
    try:
        text = body.decode()
        message, end = decoder.raw_decode(text)
    except ProtocolError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        # Python 3.13 reads deeper than 3.11: there the end of the text comes first.
        if isinstance(error, json.JSONDecodeError) and _open_brackets(error) > _MAXIMUM_DEPTH:
            raise _too_deep() from None
        raise ProtocolError(f"a message that is not JSON ({error})"[:200], "not_json") from None
    if end != len(text):
        raise ProtocolError("a message that is not JSON (more follows it)", "not_json")
    if type(message) is not dict or type(message.get("type")) is not str:
        raise ProtocolError("a message without a type", "no_type")
    version = message.get("version")
    if version != VERSION or type(version) is not int:
        shown = repr(version)[:40] if isinstance(version, str | int) else type(version).__name__
        raise ProtocolError(f"protocol version {shown}; allowed: {VERSION}", "version")
    return message


def address_of(host: str, port: int) -> str:
    """The address of a controller that listens on ``host``, maybe a socket file."""
    return host if host.startswith(UNIX) else f"{host}:{port}"


def connect(address: str, timeout_s: float) -> socket.socket:
    """A connection to "host:port" or "unix:/path".

    Raises ValueError for an address that is neither and OSError where nobody answers
    within ``timeout_s``.
    """
    if address.startswith(UNIX):
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(timeout_s)
            local.connect(address.removeprefix(UNIX))
        except OSError:
            local.close()
            raise
        local.settimeout(None)
        return local
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"address of the controller: got {address!r}; allowed: host:port or unix:/path"
        )
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
