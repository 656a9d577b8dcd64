"""The requests of ranks and observers as checked values.

Every message from the network becomes a :class:`Request` or a
:class:`~railx.fabric.protocol.ProtocolError` with a reason, so that no other module
sees a value of a wrong type or size. A rank is an int and no bool, no number is a
float, names are short and printable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from railx.fabric.circuits import Configuration, Port
from railx.fabric.holdings import OperationKey, Presentation, Report
from railx.fabric.protocol import Message, ProtocolError, parse

__all__ = ["Request", "read_request"]

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
_DECODER = json.JSONDecoder(parse_float=_no_float, parse_constant=_no_float)


def read_request(body: bytes, ranks: int = MAXIMUM_RANKS) -> Request:
    """A message's checked value to a controller of so many ``ranks``.

    Raises :class:`ProtocolError` where it has none.
    """
    message = parse(body, _DECODER)
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
    return (
        _name(message["channel"], "channel"),
        _integer(message["sequence"], "sequence"),
    )


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


def _incarnation(value: Any) -> int | None:
    return None if value is None else _integer(value, "controller")


def _begun(message: Message) -> dict[str, int]:
    begun = _entries(message["begun"], "begun", dict)
    return {_name(name, "begun"): _integer(last, "begun") for name, last in begun.items()}


def _presentation(message: Message, ranks: int) -> Presentation:
    configurations = [
        _configuration({"kind": kind, "members": members}, ranks)
        for kind, members in (
            _pair(item, "configurations")
            for item in _entries(message["configurations"], "configurations", list)
        )
    ]
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
    return Presentation(
        begun=begun,
        open=_open(message),
        operations=_integer(message["operations"], "operations"),
        over=over,
    )


_NONE: frozenset[OperationKey] = frozenset()


def _open(message: Message) -> frozenset[OperationKey]:
    entries = _entries(message["open"], "open", list)
    if not entries:
        return _NONE
    opened = (_pair(item, "open") for item in entries)
    return frozenset((_name(name, "open"), _integer(number, "open")) for name, number in opened)


def _report(message: Message) -> Report:
    return Report(
        hold=_integer(message["hold"], "hold"),
        begun=_begun(message),
        open=_open(message),
        operations=_integer(message["operations"], "operations"),
    )


def _channels(message: Message) -> dict[str, tuple[int, int]]:
    channels = _entries(message["channels"], "channels", dict)
    return {
        _name(name, "channels"): (
            _integer(source, "channels", MAXIMUM_RANKS),
            _integer(number, "channels"),
        )
        for name, (source, number) in (
            (name, _pair(value, "channels")) for name, value in channels.items()
        )
    }


def _ports(message: Message) -> frozenset[Port]:
    ports = [_pair(item, "ports") for item in _entries(message["ports"], "ports", list)]
    for _, side in ports:
        if type(side) is not str or side not in ("left", "right"):
            raise _wrong("side of a port", side, "left, right")
    return frozenset(Port(_integer(gpu, "ports", MAXIMUM_RANKS), side) for gpu, side in ports)


#: How each field is read: its name says what it is.
_FIELDS: dict[str, Callable[[Message, int], Any]] = {
    "rank": lambda message, ranks: _integer(message["rank"], "rank", MAXIMUM_RANKS),
    "gpus_per_server": lambda message, ranks: _integer(
        message["gpus_per_server"], "gpus_per_server"
    ),
    "token": lambda message, ranks: _token(message),
    "incarnation": lambda message, ranks: _integer(message["incarnation"], "incarnation"),
    "controller": lambda message, ranks: _incarnation(message.get("controller")),
    "request": lambda message, ranks: _integer(message["request"], "request"),
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
