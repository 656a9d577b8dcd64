"""The messages between ranks and controller.

They are JSON objects, each behind its length in four bytes (big-endian).

From a rank to the controller:

* ``REGISTER``: rank, gpus_per_server, token (null: none). REGISTERED answers it with
  ranks, reconfiguration_latency_ms and timeout_s.
* ``ACQUIRE``: request, channel, sequence, kind, members. This rank stands before the
  operation (channel, sequence).
* ``LISTEN``: request, channels (by channel the rank that sends and the number of the
  next operation). This rank stands before a receive from any source. FOUND or ERROR
  answers it, and FOUND asks for nothing: an ACQUIRE follows. ``UNLISTEN``: request. It
  waits no longer.
* ``RELEASE``: channel, sequence. This rank's part of the operation has ended, on the
  device too.
* ``RECALLED``: kind, members, hold, begun (the last operation begun by channel), open
  (channel and sequence of those that have not ended), operations (how many began
  without asking). This rank gives back the lease ``hold``, asked to or not, and
  releases what is open when it ends.
* ``PREPARE``: kind, members. What the next operation of this rank will need: a hint
  without an answer.
* ``ABANDON``: channel, sequence. This rank gave up; every member gets an ERROR that
  names who was missing.
* ``STATS``: request. The answer carries the controller's counters.
* ``LEAVE``: an orderly end. A connection that closes without it is a dead rank.
* ``SHUTDOWN``: the controller ends.

From the controller to a rank:

* ``GRANT``: request, channel, sequence, kind, members, generation, wait_ns, stall_ns,
  reconfigured, mispredicted, hold. The operation may start. All times are durations:
  the clocks of two hosts are never compared. Where ``hold`` is a number, the rank keeps
  the lease: it begins and ends further operations on these circuits without a message,
  until it is recalled. ``request`` is null where the operation began in this way and
  the lease was recalled before all members had begun it.
* ``RECALL``: kind, members, hold, reason (null, or what befell a member). RECALLED
  answers it at once; a rank that does not hold this lease any more says nothing.
* ``FOUND``: request, source, channel, sequence. This rank stands before an operation
  that was listened for.
* ``ERROR``: request (null: an operation already granted, or none), message (one line).

``request`` numbers a rank's own questions, so that an answer can never be taken for
another question's. Every message carries the protocol's version. Nothing is larger than
``MAXIMUM_BYTES``, and a decoder never drops bytes that follow a message.
"""

from __future__ import annotations

import json
import struct
from typing import Any

__all__ = ["MAXIMUM_BYTES", "VERSION", "MessageDecoder", "ProtocolError", "encode"]

VERSION = 3
MAXIMUM_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class ProtocolError(ValueError):
    """Bytes that are no message of this protocol."""


def encode(message_type: str, /, **fields: Any) -> bytes:
    """One framed message; raises :class:`ProtocolError` where it would be too large."""
    body = json.dumps(
        {"version": VERSION, "type": message_type, **fields}, separators=(",", ":"), allow_nan=False
    ).encode()
    if len(body) > MAXIMUM_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes; allowed: at most {MAXIMUM_BYTES}")
    return _LENGTH.pack(len(body)) + body


class MessageDecoder:
    """Turns a stream of bytes, cut anywhere, back into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by ``data``.

        Raises :class:`ProtocolError` (after it the stream cannot be used any more).
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAXIMUM_BYTES:
                raise ProtocolError(
                    f"a message of {length} bytes; allowed: at most {MAXIMUM_BYTES}"
                )
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_parse(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"a message that is not JSON ({error})") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("a message without a type")
    if message.get("version") != VERSION:
        raise ProtocolError(f"protocol version {message.get('version')!r}; allowed: {VERSION}")
    return message
