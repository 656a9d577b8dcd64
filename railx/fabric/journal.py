"""A journal of all events of the controller's core, and its replay.

The core is deterministic: the same events give the same actions. A journal has one line
of JSON for each event with the number of actions and their checksum.
:func:`replay_journal` gives the events to a fresh core and compares the answers, so
that a run can be examined step by step without its ranks.

A line is written in one piece, after the event and before any message about it goes
out. So the journal of a killed controller ends with an event that the core had seen; an
incomplete line at the end is ignored.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.fabric.circuits import Circuit, Configuration, Layout, Port
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import Action
from railx.fabric.holdings import Presentation, Report

_VERSION = 2

#: Number of journals of earlier starts: PATH.1 (the last) and so on.
ROTATED = 5

#: The methods of the core that are events.
EVENTS = (
    *("register", "present", "end_recovery", "leave"),
    *("ask", "release", "abandon", "recall", "recalled", "hint"),
    *("switched", "switch_failed", "ports_lost", "ports_back"),
)

_CLASSES: dict[str, type[Any]] = {
    item.__name__: item for item in (Configuration, Presentation, Report)
}


class JournalError(UserError):
    """A file that is no journal, or cannot be written; one line with the reason."""


class Journal:
    """A file of events that only grows, up to ``limit_bytes``.

    A file of that name from an earlier start moves to PATH.1, the one before that to
    PATH.2, and so on to ``ROTATED``. At the limit, or where the disk is full, the
    journal ends and ``stopped`` says why; the controller goes on.
    """

    def __init__(self, path: str | Path, limit_bytes: int = 1 << 28) -> None:
        """Raises :class:`JournalError` where the file cannot be made."""
        self.path = Path(path)
        self.events = 0
        self.size_bytes = 0
        self.stopped: str | None = None
        self._limit_bytes = limit_bytes
        try:
            if _is_locked(self.path):
                raise JournalError(
                    f"a controller is writing the journal {self.path}; allowed: another path, or"
                    " the end of that controller first"
                )
            self._make_room()
            # Other users of this host may not read it.
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal {self.path} ({error.strerror}); allowed: a path in a"
                " folder that can be written to"
            ) from None

    def write(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        if self.stopped is not None:
            return
        data = _dump(line).encode() + b"\n"
        try:
            if self.size_bytes + len(data) > self._limit_bytes:
                reason = f"it has reached {self._limit_bytes} bytes"
                self._write(_dump({"end": reason}).encode() + b"\n")
                self._stop(reason)
            else:
                self._write(data)
        except OSError as error:
            self._stop(str(error.strerror))

    def state(self) -> dict[str, Any]:
        """Its size and events, for observers and metrics."""
        counts = {"events": self.events, "size_bytes": self.size_bytes}
        return {"path": str(self.path), **counts, "stopped": self.stopped}

    def close(self) -> None:
        """Write no more; may be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.stopped = self.stopped or "it was closed"

    def _write(self, data: bytes) -> None:
        written = os.write(self._file, data)
        self.size_bytes += written
        if written < len(data):
            raise OSError(0, "the disk is full")

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        print(f"journal {self.path} has ended: {reason}", file=sys.stderr, flush=True)

    def _make_room(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            return
        beside = (self.path.with_name(f"{self.path.name}.{n}") for n in range(1, ROTATED + 1))
        for older, newer in reversed(list(pairwise([self.path, *beside]))):
            if older.exists():
                older.replace(newer)


def _is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of a file; no file has none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def journaled(core: ControllerCore, journal: Journal) -> ControllerCore:
    """A new ``core``, whose events are from now on written to ``journal``."""
    journal.write(
        {
            "journal": _VERSION,
            "gpus_per_server": core.layout.gpus_per_server,
            "ranks": core.ranks,
            "active": sorted(core.lit),
            "recovering": core.recovering,
            "wall_s": time.time(),
            "monotonic_ns": time.monotonic_ns(),
        }
    )
    for name in EVENTS:
        setattr(core, name, _recorded(name, getattr(core, name), journal))
    return core


def _recorded(name: str, method: Callable[..., Any], journal: Journal) -> Callable[..., Any]:
    @wraps(method)
    def record(*arguments: Any, **options: Any) -> Any:
        if journal.stopped is not None:
            return method(*arguments, **options)
        # The core consumes an iterator: record its items.
        given = [tuple(item) if isinstance(item, Iterator) else item for item in arguments]
        line: dict[str, Any] = {"n": journal.events, "event": name, "args": given}
        if options:
            line["options"] = options
        journal.events += 1
        try:
            result = method(*given, **options)
            line["answer"] = _in_short(result)
            return result
        except BaseException as error:
            line["raised"] = repr(error)
            raise
        finally:
            journal.write(line)

    return record


def _in_short(result: Any) -> list[int]:
    """The number of actions and their checksum, the same in every process."""
    count = len(result) if isinstance(result, list) else 0
    return [count, zlib.crc32(_dump(result).encode()) if result else 0]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (item.name for item in dataclasses.fields(value))
        return {"@": type(value).__name__, **{name: getattr(value, name) for name in names}}
    if isinstance(value, frozenset | set):
        return {"@": "set", "items": sorted(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"a journal holds no {type(value).__name__}")


_dump = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


@dataclass
class ReplayedJournal:
    """The result of a journal's events in a fresh core.

    * ``lines``: the events as the journal has them; ``actions``: the core's answer to
      each; ``kinds`` counts them.
    * ``different``: numbers of the events whose answer differs from the journal's.
    * ``ended``: why the journal ends, None where the controller stopped writing it or
      was killed.
    * ``torn``: whether half a line at the end was left out.
    """

    core: ControllerCore
    lines: list[dict[str, Any]] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    different: list[int] = field(default_factory=list)
    ended: str | None = None
    torn: bool = False


def replay_journal(path: str | Path) -> ReplayedJournal:
    """Give the events of a journal to a fresh core and compare the answers.

    An event that raised an error has to raise the same one. Raises
    :class:`JournalError` where the file is no journal.
    """
    lines = _lines(Path(path))
    number, header, _ = next(lines, (0, {}, False))
    replayed = ReplayedJournal(_fresh_core(path, header))
    for number, line, torn in lines:
        if torn:
            replayed.torn = True
        elif "end" in line:
            replayed.ended = str(line["end"])
        else:
            _repeat(replayed, line, f"{path}, line {number}")
    return replayed


def _fresh_core(path: str | Path, header: Mapping[str, Any]) -> ControllerCore:
    try:
        if header["journal"] != _VERSION:
            raise UserError(f"version {header['journal']}; allowed: {_VERSION}")
        layout, ranks = Layout(int(header["gpus_per_server"])), int(header["ranks"])
        active = tuple(Circuit(int(right), int(left)) for right, left in header["active"])
        return ControllerCore(layout, ranks, active=active, recovering=bool(header["recovering"]))
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{path}: no journal of a controller ({_why(error)})") from None


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Number and content of each line; the last may be torn."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    yield number, {}, True
                    return
                try:
                    line = json.loads(text)
                    if not isinstance(line, dict):
                        raise ValueError("no object")
                except ValueError as error:
                    what = f"{path}, line {number}: no line of a journal ({error})"
                    raise JournalError(what) from None
                yield number, line, False
    except OSError as error:
        raise JournalError(f"cannot read the journal {path} ({error.strerror})") from None


def _repeat(replayed: ReplayedJournal, line: dict[str, Any], where: str) -> None:
    try:
        number, name = int(line["n"]), line["event"]
        if number != len(replayed.actions):
            raise ValueError(f"event {number}, {len(replayed.actions)} was due")
        if name not in EVENTS:
            raise ValueError(f"event {name!r}")
        arguments = [_restored(item) for item in line["args"]]
        if name in ("ports_lost", "ports_back"):
            arguments[0] = frozenset(Port(*port) for port in arguments[0])
        options = {key: _restored(item) for key, item in line.get("options", {}).items()}
        answer, raised = line.get("answer"), line.get("raised")
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{where}: no event ({_why(error)})") from None
    replayed.lines.append(line)
    replayed.events[name] += 1
    result: Any = None
    broke: str | None = None
    try:
        result = getattr(replayed.core, name)(*arguments, **options)
    except Exception as error:
        broke = repr(error)
    actions = result if isinstance(result, list) else []
    replayed.actions.append(actions)
    replayed.kinds.update(type(action).__name__ for action in actions)
    if broke != raised or (raised is None and _in_short(result) != answer):
        replayed.different.append(number)


def _restored(value: Any) -> Any:
    """The value that was written: what is a list in JSON was a tuple."""
    if isinstance(value, list):
        return tuple(map(_restored, value))
    if not isinstance(value, dict):
        return value
    content = {key: _restored(item) for key, item in value.items()}
    # A channel may have the name "@" too; its value is never a string.
    if not isinstance(content.get("@"), str):
        return content
    kind = content.pop("@")
    if kind == "set":
        return frozenset(content["items"])
    return _CLASSES[kind](**content)
