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
a decoder never drops bytes that follow a message.

Every message to the controller becomes a :class:`Request` or a :class:`ProtocolError`
with a reason, so that no other module sees a value of a wrong type or size. A rank is
an int and no bool, no number is a float, names are short and printable.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from railx.errors import UserError
from railx.fabric.circuits import Configuration, Port
from railx.fabric.holdings import OperationKey, Presentation, Report

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
    """A message behind its length; :class:`ProtocolError` where it is too large."""
    if len(body) > MAXIMUM_BYTES:
        raise ProtocolError(
            f"a message of {len(body)} bytes; allowed: at most {MAXIMUM_BYTES}", "too_large"
        )
    return _LENGTH.pack(len(body)) + body


def encode(message_type: str, /, **fields: Any) -> bytes:
    """One framed message; raises :class:`ProtocolError` where it would be too large."""
    message = {"version": VERSION, "type": message_type, **fields}
    return frame(json.dumps(message, separators=(",", ":"), allow_nan=False).encode())


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
        """The messages ended by ``data``; ProtocolError where no more can be read."""
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
    if connection.getsockname() == connection.getpeername():
        # Where nobody listens, the system may choose this port for our end, too: TCP
        # joins such a socket to itself, and no controller could listen there any more.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


#: Numbers of requests, operations, leases and incarnations are below this.
MAXIMUM_NUMBER = 1 << 63
#: Ranks of one run, and so members of a group, are below this.
MAXIMUM_RANKS = 1 << 16
MAXIMUM_NAME = 256
MAXIMUM_TOKEN = 1024
#: Entries of one message's lists, e.g. the channels that a lease was used on.
MAXIMUM_ENTRIES = 1 << 14


class Request(SimpleNamespace):
    """A message of checked fields; ``type`` is its name, e.g. ``FAIL_PORTS``."""

    type: str


def _no_float(text: str) -> Any:
    raise ProtocolError(f"the number {text[:40]}; allowed: whole numbers", "not_whole")


_INTEGERS = {int}
_WHOLE = json.JSONDecoder(parse_float=_no_float, parse_constant=_no_float)


def read_request(body: bytes, ranks: int = MAXIMUM_RANKS) -> Request:
    """A message's checked value to a controller of so many ``ranks``.

    Raises :class:`ProtocolError` where it has none.
    """
    message = parse(body, _WHOLE)
    fields = _MESSAGES.get(message["type"])
    if fields is None:
        raise ProtocolError(f"a message of type {message['type'][:40]!r}", "unknown_type")
    try:
        return Request(
            type=message["type"], **{name: _FIELDS[name](message, ranks) for name in fields}
        )
    except KeyError as error:
        raise ProtocolError(f"the field {error} is missing", "missing_field") from None
    except ProtocolError as error:
        # The error names the question, where that has a number at least.
        number = message.get("request")
        if type(number) is int and 0 <= number < MAXIMUM_NUMBER:
            error.request = number
        raise


def _wrong(name: str, value: Any, allowed: str) -> ProtocolError:
    # Only the type of a list is shown: it may be nested deep.
    shown = repr(value) if isinstance(value, str | int | None) else f"a {type(value).__name__}"
    return ProtocolError(f"{name}: got {shown[:60]}; allowed: {allowed}", "wrong_field")


def _integer(value: Any, name: str, below: int = MAXIMUM_NUMBER) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise _wrong(name, value, f"a whole number from 0 to {below - 1}")
    return value


def _number(message: Message, name: str) -> int:
    return _integer(message[name], name)


def _name(value: Any, name: str) -> str:
    if type(value) is not str or not 0 < len(value) <= MAXIMUM_NAME or not value.isprintable():
        raise _wrong(name, value, f"1 to {MAXIMUM_NAME} printable characters")
    return value


def _entries(value: Any, name: str, kind: type[Any]) -> Any:
    """A list or an object of bounded size."""
    if not isinstance(value, kind) or len(value) > MAXIMUM_ENTRIES:
        what = "an object" if kind is dict else "a list"
        raise _wrong(name, value, f"{what} of at most {MAXIMUM_ENTRIES}")
    return value


def _key(message: Message) -> OperationKey:
    return (_name(message["channel"], "channel"), _integer(message["sequence"], "sequence"))


def _configuration(message: Message, ranks: int) -> Configuration:
    kind, members = message["kind"], message["members"]
    if type(kind) is not str:
        raise _wrong("kind", kind, "pair, ring")
    # True equals 1, so that the cache below would return the configuration of 1.
    if type(members) is not list or not _INTEGERS.issuperset(map(type, members)):
        raise _wrong("members", members, "a list of ranks")
    count = len(members)
    if count > ranks:
        # Before the cache stores it.
        said = f"a group of {count} ranks; allowed: at most {ranks}, the ranks of this job"
        raise ProtocolError(said, "configuration")
    configured = _configured if count <= _MANY else _configured_large
    try:
        return configured(kind, tuple(members))
    except ProtocolError:
        raise
    except ValueError as error:
        raise ProtocolError(str(error)[:200], "configuration") from None


def _configured_anew(kind: Any, members: tuple[int, ...]) -> Configuration:
    if max(members, default=0) >= MAXIMUM_RANKS:
        raise _wrong("members", list(members), f"ranks below {MAXIMUM_RANKS}")
    return Configuration(kind, members)


#: Largest group of which a thousand are cached; of larger ones only a few, so that no
#: rank fills the memory with invented groups.
_MANY = 1024
_configured = lru_cache(maxsize=1024)(_configured_anew)
_configured_large = lru_cache(maxsize=16)(_configured_anew)


def _token(message: Message) -> str | None:
    token = message.get("token")
    if token is not None and (type(token) is not str or len(token) > MAXIMUM_TOKEN):
        raise _wrong("token", [], f"null or at most {MAXIMUM_TOKEN} characters")
    return token


def _pair(value: Any, name: str) -> tuple[Any, Any]:
    if type(value) is not list or len(value) != 2:
        raise _wrong(name, value, "a list of two")
    return value[0], value[1]


def _begun(message: Message) -> dict[str, int]:
    begun = _entries(message["begun"], "begun", dict)
    return {_name(name, "begun"): _integer(last, "begun") for name, last in begun.items()}


def _presentation(message: Message, ranks: int) -> Presentation:
    configurations = []
    for item in _entries(message["configurations"], "configurations", list):
        kind, members = _pair(item, "configurations")
        configurations.append(_configuration({"kind": kind, "members": members}, ranks))
    begun, over = {}, {}
    for item in _entries(message["begun"], "begun", list):
        if type(item) is not list or len(item) != 4:
            raise _wrong("begun", item, "lists of channel, number, place of what it needs, over")
        index = _integer(item[2], "begun", max(len(configurations), 1))
        if not configurations:
            raise _wrong("configurations", [], "what begun channels need")
        channel = _name(item[0], "begun")
        begun[channel] = (configurations[index], _integer(item[1], "begun"))
        if item[3] != -1:
            over[channel] = _integer(item[3], "begun")
    operations = _number(message, "operations")
    return Presentation(begun, _open(message), operations, over)


def _open(message: Message) -> frozenset[OperationKey]:
    opened = (_pair(item, "open") for item in _entries(message["open"], "open", list))
    return frozenset((_name(name, "open"), _integer(number, "open")) for name, number in opened)


def _report(message: Message) -> Report:
    hold, operations = (_number(message, name) for name in ("hold", "operations"))
    return Report(hold, _begun(message), _open(message), operations)


def _channels(message: Message) -> dict[str, tuple[int, int]]:
    channels = _entries(message["channels"], "channels", dict)
    read = {}
    for name, value in channels.items():
        source, number = _pair(value, "channels")
        of = _integer(source, "channels", MAXIMUM_RANKS), _integer(number, "channels")
        read[_name(name, "channels")] = of
    return read


def _ports(message: Message) -> frozenset[Port]:
    ports = [_pair(item, "ports") for item in _entries(message["ports"], "ports", list)]
    for _, side in ports:
        if type(side) is not str or side not in ("left", "right"):
            raise _wrong("side of a port", side, "left, right")
    return frozenset(Port(_integer(gpu, "ports", MAXIMUM_RANKS), side) for gpu, side in ports)


#: How each field is read: its name says what it is.
_FIELDS: dict[str, Callable[[Message, int], Any]] = {
    "rank": lambda message, ranks: _integer(message["rank"], "rank", MAXIMUM_RANKS),
    "gpus_per_server": lambda message, ranks: _number(message, "gpus_per_server"),
    "token": lambda message, ranks: _token(message),
    "incarnation": lambda message, ranks: _number(message, "incarnation"),
    "controller": lambda message, ranks: (
        None if message.get("controller") is None else _number(message, "controller")
    ),
    "request": lambda message, ranks: _number(message, "request"),
    "key": lambda message, ranks: _key(message),
    "configuration": _configuration,
    "presentation": _presentation,
    "report": lambda message, ranks: _report(message),
    "channels": lambda message, ranks: _channels(message),
    "ports": lambda message, ranks: _ports(message),
    "reason": lambda message, ranks: _name(message["reason"], "reason"),
    "commands": lambda message, ranks: _integer(message["count"], "count", MAXIMUM_ENTRIES),
}


#: The fields of each message; :mod:`railx.fabric.protocol` says what they are.
_MESSAGES: Mapping[str, tuple[str, ...]] = {
    "REGISTER": ("rank", "gpus_per_server", "token", "incarnation", "controller"),
    "PRESENT": ("presentation",),
    "OBSERVE": ("token",),
    "ACQUIRE": ("request", "key", "configuration"),
    "LISTEN": ("request", "channels"),
    "RELEASE": ("key",),
    "RECALLED": ("configuration", "report"),
    "PREPARE": ("configuration",),
    "ABANDON": ("key",),
    **dict.fromkeys(("STATS", "STATUS", "METRICS"), ("request",)),
    "FAIL_PORTS": ("request", "ports", "reason"),
    "RESTORE_PORTS": ("request", "ports"),
    "FAIL_COMMANDS": ("request", "commands", "reason"),
    **dict.fromkeys(("PING", "PONG", "LEAVE", "SHUTDOWN"), ()),
}
