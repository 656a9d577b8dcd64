"""A rank's side of the protocol.

Questions block and may come from any thread. One thread reads, and nobody goes on
without an answer.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.holdings import Holdings, OperationKey, Report
from railx.fabric.protocol import TOKEN, Message, MessageDecoder, ProtocolError, connect, encode

__all__ = ["Asked", "FabricClient", "FabricError", "Grant"]

#: How long a rank that gave up waits for the controller to say why.
_REASON_TIMEOUT_S = 5.0

#: How long an operation that failed waits for the controller's word on its members.
_NOTICE_TIMEOUT_S = 1.0


class FabricError(RuntimeError):
    """An operation that may not start or go on; one line that says why."""


@dataclass(frozen=True)
class Grant:
    """The controller's answer to one request.

    See :class:`railx.fabric.core.GrantAction`. ``granted_ns`` is when the answer came,
    on this process's CLOCK_MONOTONIC.
    """

    generation: int
    granted_ns: int
    wait_ns: int
    stall_ns: int
    reconfigured: int
    mispredicted: bool


@dataclass
class _Question:
    answered: threading.Event = field(default_factory=threading.Event)
    message: Message = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Asked:
    """An operation whose circuits were asked for."""

    channel: str
    sequence: int
    configuration: Configuration
    number: int
    question: _Question

    @property
    def answered(self) -> bool:
        """Whether the controller has granted or refused it."""
        return self.question.answered.is_set()


class FabricClient:
    """The connection of one rank; every method may be called from any thread.

    Use as a context manager or call ``close``.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        *,
        gpus_per_server: int,
        timeout_s: float = 30.0,
        token: str | None = None,
        granted_late: Callable[[str, int, Grant], None] | None = None,
        given_back: Callable[[Collection[OperationKey]], None] | None = None,
    ) -> None:
        """Connect and register.

        ``address`` is "host:port", ``token`` what the controller wants to hear if it
        has one. ``granted_late`` is told (on the reading thread) of circuits that came
        for an operation which had begun under a lease recalled since: its channel, its
        number and the account of its wait. ``given_back`` is told (there too) which
        operations were under way when a lease was recalled: their end has to be told.
        Raises :class:`FabricError` where connecting fails within ``timeout_s``.
        """
        self.address = address
        self.rank = rank
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}
        self._forgotten: set[int] = set()
        self._holdings = Holdings(Layout(gpus_per_server))
        self._granted_late = granted_late
        self._tell_given_back = given_back
        self._registered = _Question()
        self._broken: str | None = None
        # What befell a member of these groups, or (None) of an operation under way.
        self._notices: dict[tuple[int, ...] | None, str] = {}
        self._noticed = threading.Condition()
        self._closing = False
        self._socket = _connect(address, timeout_s)
        self._reader = threading.Thread(target=self._read, name="fabric client", daemon=True)
        self._reader.start()
        self._send(
            "REGISTER",
            rank=rank,
            gpus_per_server=gpus_per_server,
            token=os.environ.get(TOKEN) if token is None else token,
            incarnation=secrets.randbits(63),
        )
        if not self._registered.answered.wait(timeout_s):
            self._fail(f"the controller at {address} did not answer within {timeout_s:g} s")
        answer = self._registered.message
        if self._broken is not None or answer["type"] == "ERROR":
            # Why it was refused says more than that the connection was closed then.
            message = answer.get("message") or self._broken
            self.close()
            raise FabricError(message)
        self.ranks = int(self._registered.message["ranks"])
        self.timeout_s = float(self._registered.message["timeout_s"])

    def __enter__(self) -> FabricClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reason_of_failure(
        self, members: tuple[int, ...], timeout_s: float = _NOTICE_TIMEOUT_S
    ) -> str | None:
        """What the controller says about an operation of ``members`` that had begun.

        It knows which of them died, where the others only see a connection close, but
        its word may take a moment. None where it says nothing within ``timeout_s``.
        """
        with self._noticed:
            self._noticed.wait_for(
                lambda: (
                    members in self._notices or None in self._notices or self._broken is not None
                ),
                timeout_s,
            )
            return self._notices.get(members, self._notices.get(None))

    def _notice(self, members: tuple[int, ...] | None, text: str) -> None:
        with self._noticed:
            # Who leaves because of the first loss is not its reason.
            self._notices.setdefault(members, text)
            self._noticed.notify_all()

    def acquire(
        self,
        channel: str,
        sequence: int,
        configuration: Configuration,
        *,
        timeout_s: float | None = None,
    ) -> Grant:
        """Wait until operation ``sequence`` of ``channel`` may start.

        Raises :class:`FabricError` where the controller refuses (a member died, the
        members disagree), the connection breaks, or ``timeout_s`` (the controller's own
        time-out by default) passes; the operation then must not start.
        """
        return self.granted(self.ask(channel, sequence, configuration), timeout_s=timeout_s)

    def ask(self, channel: str, sequence: int, configuration: Configuration) -> Asked:
        """Ask for the circuits of an operation, without waiting for the answer.

        What one thread asks for reaches the controller in that order. ``granted`` or
        ``abandon`` has to follow. Raises :class:`FabricError` where the connection is
        broken.
        """
        question, number = self._ask(
            "ACQUIRE",
            channel=channel,
            sequence=sequence,
            kind=configuration.kind,
            members=configuration.members,
        )
        return Asked(channel, sequence, configuration, number, question)

    def granted(self, asked: Asked, *, timeout_s: float | None = None) -> Grant:
        """Wait until an operation may start that was asked for, as ``acquire`` does."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        question = asked.question
        if not question.answered.wait(limit_s):
            self._send("ABANDON", channel=asked.channel, sequence=asked.sequence)
            if not question.answered.wait(_REASON_TIMEOUT_S):
                self._forget(asked.number)
                raise FabricError(
                    f"no answer from the controller at {self.address} within {limit_s:g} s for"
                    f" {asked.configuration.name}"
                )
        answer = self._answer(question)
        if answer["type"] == "ERROR":
            raise FabricError(answer["message"])
        return _grant(answer)

    def abandon(self, asked: Asked) -> None:
        """An operation that was asked for will not be carried out after all."""
        if self._forget(asked.number):
            self._send("ABANDON", channel=asked.channel, sequence=asked.sequence)
            return
        # The answer is here, or just being noted.
        asked.question.answered.wait(_REASON_TIMEOUT_S)
        if asked.question.message.get("type") == "GRANT":
            self.release(asked.channel, asked.sequence)

    def listen(
        self, channels: Mapping[str, tuple[int, int]], *, timeout_s: float | None = None
    ) -> tuple[str, int]:
        """Wait until one of several senders stands before an operation with this rank.

        ``channels``: by channel, the sender and the number of the next operation.
        Returns channel and number of one that was begun, to be asked for then. Raises
        :class:`FabricError` as ``acquire`` does.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        question, number = self._ask("LISTEN", channels=channels)
        if not question.answered.wait(limit_s):
            self._send("UNLISTEN", request=number)
            with self._lock:
                self._questions.pop(number, None)
            raise FabricError(f"no rank has sent within {limit_s:g} s")
        answer = self._answer(question)
        if answer["type"] == "ERROR":
            raise FabricError(answer["message"])
        return str(answer["channel"]), int(answer["sequence"])

    def begin(self, channel: str, sequence: int, configuration: Configuration) -> bool:
        """Begin an operation on circuits that this rank still holds.

        Returns whether it has begun; otherwise ``acquire`` has to ask. Neither sends
        nor waits. The operations of a channel have to begin in their order.
        """
        with self._lock:
            # Without a controller nobody could recall what is held.
            return self._broken is None and self._holdings.begin((channel, sequence), configuration)

    def release(self, channel: str, sequence: int, *, prepare: Configuration | None = None) -> None:
        """This rank's part of a granted operation has ended.

        Nothing is sent where the lease stays. ``prepare``: what the rank's next
        operation will need, if that is known.
        """
        with self._lock:
            data = b""
            if self._holdings.end((channel, sequence)):
                data += encode("RELEASE", channel=channel, sequence=sequence)
            if prepare is not None:
                data += self._prepared(prepare)
            if data:
                self._write(data)

    def prepare(self, configuration: Configuration) -> None:
        """Hint what this rank's next operation will need.

        Leases in the way of it are given back.
        """
        with self._lock:
            data = self._prepared(configuration)
            if data:
                self._write(data)

    def _prepared(self, configuration: Configuration) -> bytes:
        if self._holdings.holds(configuration):
            return b""
        return b"".join(
            self._given_back(held) for held in self._holdings.in_the_way_of(configuration)
        ) + encode("PREPARE", kind=configuration.kind, members=configuration.members)

    def _given_back(self, configuration: Configuration) -> bytes:
        report = self._holdings.recall(configuration)
        return b"" if report is None else _recalled(configuration, report)

    def statistics(self) -> dict[str, Any]:
        """The controller's counters.

        See :meth:`railx.fabric.core.ControllerCore.statistics`.
        """
        question, _ = self._ask("STATS")
        if not question.answered.wait(self.timeout_s):
            raise FabricError(
                f"no answer from the controller at {self.address} within {self.timeout_s:g} s"
            )
        statistics: dict[str, Any] = self._answer(question)["statistics"]
        return statistics

    def shut_down_controller(self) -> None:
        """End the controller, and so every client's connection."""
        self._send("SHUTDOWN")

    def close(self) -> None:
        """Leave in order and close the connection; may be called again."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            # A controller that is gone already needs no farewell.
            with contextlib.suppress(OSError):
                given_back = [self._given_back(held) for held in self._holdings.all()]
                self._socket.sendall(b"".join([*given_back, encode("LEAVE")]))
                self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._socket.close()

    def _ask(self, message_type: str, /, **fields: Any) -> tuple[_Question, int]:
        question, number = _Question(), next(self._numbers)
        with self._lock:
            if self._broken is not None:
                raise FabricError(self._broken)
            self._questions[number] = question
        self._send(message_type, request=number, **fields)
        return question, number

    def _send(self, message_type: str, /, **fields: Any) -> None:
        with self._lock:
            self._write(encode(message_type, **fields))

    def _write(self, data: bytes) -> None:
        """Send; under the lock, so that messages go out in the order of events."""
        if self._closing:
            raise FabricError("the connection to the controller is closed")
        try:
            self._socket.sendall(data)
        except OSError as error:
            broke = f"the connection to the controller at {self.address} broke"
            raise FabricError(self._broken or f"{broke} ({error.strerror})") from None

    def _forget(self, number: int) -> bool:
        """Nobody waits for this answer any more; False where it has come already."""
        with self._lock:
            open_ = self._questions.pop(number, None) is not None
            if open_:
                self._forgotten.add(number)
            return open_

    def _answer(self, question: _Question) -> Message:
        if not question.message:
            raise FabricError(self._broken or "the connection to the controller is closed")
        return question.message

    def _read(self) -> None:
        decoder = MessageDecoder()
        try:
            while data := self._socket.recv(65536):
                for message in decoder.feed(data):
                    self._receive(message)
            self._fail(f"the controller at {self.address} closed the connection")
        except (OSError, ProtocolError) as error:
            self._fail(f"the connection to the controller at {self.address} broke ({error})")

    def _receive(self, message: Message) -> None:
        number = message.get("request")
        if message["type"] == "REGISTERED" or (
            number is None and not self._registered.answered.is_set()
        ):
            question: _Question | None = self._registered
        elif message["type"] == "RECALL":
            self._take_recall(_configuration(message), message["hold"])
            if message["reason"] is not None:
                self._notice(
                    tuple(message["members"]),
                    f"{message['reason']} during {_configuration(message).name}",
                )
            return
        elif message["type"] == "PING":
            self._send("PONG")
            return
        elif message["type"] == "GRANT":
            question = self._take_grant(message, number)
        elif number is None:
            self._notice(None, message["message"])
            return
        else:
            with self._lock:
                question = self._questions.pop(number, None)
        if question is not None:
            question.message = message
            question.answered.set()

    def _take_recall(self, configuration: Configuration, hold: int) -> None:
        with self._lock:
            report = self._holdings.recall(configuration, hold)
            if report is None:
                return
            with contextlib.suppress(FabricError):
                # A closed connection has given everything back.
                self._write(_recalled(configuration, report))
        if report.open and self._tell_given_back is not None:
            self._tell_given_back(report.open)

    def _take_grant(self, message: Message, number: int | None) -> _Question | None:
        """Note what is granted at once: a recall that follows has to report it."""
        key: OperationKey = (message["channel"], message["sequence"])
        configuration, hold = _configuration(message), message["hold"]
        message["granted_ns"] = time.monotonic_ns()
        if number is None:
            with self._lock:
                self._holdings.granted_late(key, configuration, hold)
            if self._granted_late is not None:
                self._granted_late(*key, _grant(message))
            return None
        with self._lock, contextlib.suppress(FabricError):
            question = self._questions.pop(number, None)
            if question is not None:
                self._holdings.granted(key, configuration, hold)
            elif number in self._forgotten:
                # Nobody waits for it any more.
                self._forgotten.remove(number)
                self._holdings.granted(key, configuration, hold)
                if self._holdings.end(key):
                    self._write(encode("RELEASE", channel=key[0], sequence=key[1]))
            return question
        return None

    def _fail(self, reason: str) -> None:
        """Nobody waits for ever: every open and every later question ends."""
        with self._lock:
            self._broken = self._broken or reason
            questions = [*self._questions.values(), self._registered]
            self._questions.clear()
        with self._noticed:
            self._noticed.notify_all()
        for question in questions:
            question.answered.set()


def _recalled(configuration: Configuration, report: Report) -> bytes:
    return encode(
        "RECALLED",
        kind=configuration.kind,
        members=configuration.members,
        hold=report.hold,
        begun=report.begun,
        open=sorted(report.open),
        operations=report.operations,
    )


def _configuration(message: Message) -> Configuration:
    return Configuration(message["kind"], tuple(message["members"]))


def _grant(message: Message) -> Grant:
    return Grant(
        generation=int(message["generation"]),
        granted_ns=int(message["granted_ns"]),
        wait_ns=int(message["wait_ns"]),
        stall_ns=int(message["stall_ns"]),
        reconfigured=int(message["reconfigured"]),
        mispredicted=bool(message["mispredicted"]),
    )


def _connect(address: str, timeout_s: float) -> socket.socket:
    try:
        return connect(address, timeout_s)
    except OSError as error:
        raise FabricError(
            f"no controller answers at {address} ({error.strerror or error})"
        ) from None
    except ValueError as error:
        raise FabricError(str(error)) from None
