"""A rank's side of the protocol.

Questions block and may come from any thread; one thread reads the answers. Where the
controller may be restarted, the client connects again after a loss: the rank presents
the operations that it has begun, repeats its open questions, and the callers go on
waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.holdings import Holdings, OperationKey, Presentation, Report
from railx.fabric.protocol import TOKEN, Message, MessageDecoder, ProtocolError, connect, encode

#: How long a rank that gave up waits for the controller's reason.
_REASON_TIMEOUT_S = 5.0
#: How long a failed operation waits for the controller's message about its members.
_NOTICE_TIMEOUT_S = 1.0
#: The first and the longest pause between attempts to reach a lost controller.
_PAUSE_S = (0.02, 0.5)
#: The first and the longest pause between questions for a sender.
_LISTEN_PAUSE_S = (0.001, 0.02)


class FabricError(RuntimeError):
    """An operation that may not start or go on; one line with the reason."""


#: The ranks that an error of the controller names as missing.
_MISSING = re.compile(r": rank ([\d, ]+) has not asked for it")


class OperationTimeout(FabricError):
    """An operation that this rank or a member of its group gave up waiting for.

    ``limit_s`` is how long this rank waited, None where another rank gave up;
    ``missing`` are the ranks that had not asked for the operation.
    """

    def __init__(self, message: str, limit_s: float | None) -> None:
        super().__init__(message)
        self.limit_s = limit_s
        named = _MISSING.search(message)
        self.missing = tuple(map(int, named[1].split(", "))) if named else ()


@dataclass(frozen=True)
class Grant:
    """The controller's answer to one request.

    See :class:`railx.fabric.decisions.state.GrantAction`. ``granted_ns`` is when the
    answer came, on this process's CLOCK_MONOTONIC.
    """

    generation: int
    granted_ns: int
    wait_ns: int
    stall_ns: int
    reconfigured: int
    mispredicted: bool


class _Lost(Exception):
    """A connection that broke or was closed; one line."""


@dataclass
class _Question:
    """``data`` is the message, sent again on a new connection."""

    data: bytes = b""
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
        reconnect_s: float | None = None,
        granted_late: Callable[[str, int, Grant], None] | None = None,
        given_back: Callable[[Collection[OperationKey]], None] | None = None,
    ) -> None:
        """Connect and register.

        ``address`` is "host:port" or "unix:/path", ``token`` the controller's secret
        (None: the one of the environment). ``reconnect_s``: how long to try to reach
        the controller again when the connection breaks (None: the controller's value).
        The reading thread calls ``granted_late`` for circuits that came for an
        operation begun under a lease recalled since, with its channel, its number and
        the account of its wait; and ``given_back`` with the operations under way when a
        lease was recalled: their end needs a message. Raises :class:`FabricError` where
        connecting fails within ``timeout_s``.
        """
        self.address = address
        self.rank = rank
        self.timeout_s = timeout_s
        self._gpus_per_server = gpus_per_server
        self._token = os.environ.get(TOKEN) if token is None else token
        #: Distinguishes the processes of a rank.
        self._incarnation = secrets.randbits(63)
        self._controller: int | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}
        self._holdings = Holdings(Layout(gpus_per_server))
        self._granted_late = granted_late
        self._tell_given_back = given_back
        self._broken: str | None = None
        # Errors of a member of these groups, or (None) of an operation under way.
        self._notices: dict[tuple[int, ...] | None, str] = {}
        self._noticed = threading.Condition()
        self._closed = threading.Event()
        self._connected_at = time.monotonic()
        self._heartbeat_timeout_s: float | None = None
        self._socket = _connect(address, timeout_s)
        self._decoder = MessageDecoder()
        try:
            answer, early = self._enter(time.monotonic() + timeout_s)
        except (_Lost, FabricError) as error:
            self._closed.set()
            self._socket.close()
            raise FabricError(str(error)) from None
        self.ranks = int(answer["ranks"])
        self.timeout_s = float(answer["timeout_s"])
        if reconnect_s is None:
            reconnect_s = float(answer.get("reconnect_s", 0))
        self._reconnect_s = reconnect_s
        self._connected = True
        if answer.get("recovering"):
            self._write(_presented(self._holdings.present()))
        self._reader = threading.Thread(
            target=self._run, args=(early,), name="fabric client", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> FabricClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reason_of_failure(
        self, members: tuple[int, ...], timeout_s: float = _NOTICE_TIMEOUT_S
    ) -> str | None:
        """The controller's error about an operation of ``members`` that had begun.

        The controller knows which member died, where the others only see a connection
        close, but its message may take a moment. None if it sends none within
        ``timeout_s``, nor before its next answer.
        """
        about: set[tuple[int, ...] | None] = {members, None}
        with self._noticed:
            noticed = self._noticed.wait_for(
                lambda: self._broken is not None or not about.isdisjoint(self._notices), timeout_s
            )
        if not noticed:
            # A busy controller may not have handled the loss yet.
            with contextlib.suppress(FabricError):
                self.statistics()
        with self._noticed:
            return self._notices.get(members, self._notices.get(None))

    def _notice(self, members: tuple[int, ...] | None, text: str) -> None:
        with self._noticed:
            # Members that leave because of the first loss are not its reason.
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
        asked = (channel, sequence), configuration
        question, number = self._ask("ACQUIRE", asked, **_question(*asked))
        return Asked(channel, sequence, configuration, number, question)

    def granted(self, asked: Asked, *, timeout_s: float | None = None) -> Grant:
        """Wait until an operation may start that was asked for, as ``acquire`` does.

        The client returns a grant that comes after giving up: the operation must not
        start.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        question = asked.question
        given_up = False
        if not self._wait(question, limit_s):
            with self._lock:
                given_up = self._holdings.give_up(asked.number)
                if given_up:
                    self._write(encode("ABANDON", channel=asked.channel, sequence=asked.sequence))
            silent = (
                f"no answer from the controller at {self.address} within {limit_s:g} s for"
                f" {asked.configuration.name}"
            )
            if not question.answered.wait(_REASON_TIMEOUT_S):
                with self._lock:
                    self._questions.pop(asked.number, None)
                raise OperationTimeout(silent, limit_s)
        answer = self._answer(question)
        if answer["type"] == "ERROR":
            if answer["reason"] == "abandoned":
                raise OperationTimeout(answer["message"], limit_s if given_up else None)
            raise FabricError(answer["message"])
        if given_up:
            raise OperationTimeout(silent, limit_s)
        return _grant(answer)

    def abandon(self, asked: Asked) -> None:
        """An operation that was asked for will not be carried out after all."""
        with self._lock:
            given_up = self._holdings.give_up(asked.number)
            if given_up:
                self._questions.pop(asked.number, None)
                self._write(encode("ABANDON", channel=asked.channel, sequence=asked.sequence))
                return
        # The answer is here, or the reading thread is storing it.
        asked.question.answered.wait(_REASON_TIMEOUT_S)
        if asked.question.message.get("type") == "GRANT":
            self.release(asked.channel, asked.sequence)

    def _wait(self, question: _Question, limit_s: float) -> bool:
        """Wait for an answer; a connection that was made again gives it more time."""
        asked = time.monotonic()
        while True:
            with self._lock:
                since = max(asked, self._connected_at) if self._connected else None
            if since is None:
                left_s = max(limit_s, _PAUSE_S[1])
            else:
                left_s = since + limit_s - time.monotonic()
                if left_s <= 0:
                    return question.answered.is_set()
            if question.answered.wait(left_s):
                return True

    def listen(
        self, channels: Mapping[str, tuple[int, int]], *, timeout_s: float | None = None
    ) -> tuple[str, int]:
        """Wait until one of several senders stands before an operation with this rank.

        ``channels``: by channel, the sender and the number of the next operation.
        Returns channel and number of one that was begun, to be asked for then. Raises
        :class:`FabricError` as ``acquire`` does.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        began, pause_s = time.monotonic(), _LISTEN_PAUSE_S[0]
        while True:
            answer = self._answered("LISTEN", channels=channels)
            if answer["source"] is not None:
                return str(answer["channel"]), int(answer["sequence"])
            # A connection that was made again gives more time.
            if time.monotonic() - max(began, self._connected_at) >= limit_s:
                raise FabricError(f"no rank has sent within {limit_s:g} s")
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _LISTEN_PAUSE_S[1])

    def begin(self, channel: str, sequence: int, configuration: Configuration) -> bool:
        """Begin an operation on circuits that this rank still holds.

        Returns whether it has begun; otherwise ``acquire`` has to ask. Neither sends
        nor waits. The operations of a channel have to begin in their order.
        """
        with self._lock:
            # Without a controller no lease could be recalled.
            return self._connected and self._holdings.begin((channel, sequence), configuration)

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
        """Hint what the next operation needs; leases in the way are given back."""
        with self._lock:
            data = self._prepared(configuration)
            if data:
                self._write(data)

    def _prepared(self, configuration: Configuration) -> bytes:
        if self._holdings.holds(configuration):
            return b""
        given_back = map(self._given_back, self._holdings.in_the_way_of(configuration))
        return b"".join([*given_back, encode("PREPARE", **_needs(configuration))])

    def _given_back(self, configuration: Configuration) -> bytes:
        report = self._holdings.recall(configuration)
        return b"" if report is None else _recalled(configuration, report)

    def statistics(self) -> dict[str, Any]:
        """See :meth:`railx.fabric.core.ControllerCore.statistics`."""
        statistics: dict[str, Any] = self._answered("STATS")["statistics"]
        return statistics

    def _answered(self, message_type: str, /, **fields: Any) -> Message:
        """The controller's answer to a question about its state."""
        question, number = self._ask(message_type, None, **fields)
        if not self._wait(question, self.timeout_s):
            with self._lock:
                self._questions.pop(number, None)
            raise FabricError(
                f"no answer from the controller at {self.address} within {self.timeout_s:g} s"
            )
        answer = self._answer(question)
        if answer["type"] == "ERROR":
            raise FabricError(answer["message"])
        return answer

    def close(self) -> None:
        """Leave in order and close the connection; may be called again."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            # A controller that is gone already needs no farewell.
            with contextlib.suppress(OSError):
                given_back = list(map(self._given_back, self._holdings.all()))
                if self._connected:
                    self._socket.sendall(b"".join([*given_back, encode("LEAVE")]))
                self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._socket.close()

    def _ask(
        self,
        message_type: str,
        asked: tuple[OperationKey, Configuration] | None,
        /,
        **fields: Any,
    ) -> tuple[_Question, int]:
        number = next(self._numbers)
        question = _Question(encode(message_type, request=number, **fields))
        with self._lock:
            if self._broken is not None:
                raise FabricError(self._broken)
            self._questions[number] = question
            if asked is not None:
                self._holdings.ask(number, *asked)
            self._write(question.data)
        return question, number

    def _write(self, data: bytes) -> None:
        """Send; under the lock, so that messages go out in the order of events.

        Nothing goes out while the connection is down: what matters is presented, or
        asked again, on the next one.
        """
        if self._closed.is_set():
            raise FabricError("the connection to the controller is closed")
        if self._broken is not None:
            raise FabricError(self._broken)
        if not self._connected:
            return
        try:
            self._socket.sendall(data)
        except OSError as error:
            if self._reconnect_s > 0:
                # A message may have gone out in part: the reading thread begins anew.
                self._connected = False
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                return
            broke = f"the connection to the controller at {self.address} broke"
            raise FabricError(f"{broke} ({error.strerror})") from None

    def _answer(self, question: _Question) -> Message:
        if not question.message:
            raise FabricError(self._broken or "the connection to the controller is closed")
        return question.message

    # Connections

    def _enter(self, deadline: float) -> tuple[Message, list[Message]]:
        """Register on a new connection; returns the answer and what came behind it.

        Raises _Lost where the connection ends or stays silent, FabricError where the
        controller refuses.
        """
        who: dict[str, Any] = {"rank": self.rank, "gpus_per_server": self._gpus_per_server}
        who |= {"token": self._token, "incarnation": self._incarnation}
        with contextlib.suppress(OSError):
            self._socket.sendall(encode("REGISTER", **who, controller=self._controller))
        messages: list[Message] = []
        while not messages:
            messages = self._receive_some(deadline - time.monotonic())
        answer = messages[0]
        if answer["type"] != "REGISTERED":
            raise FabricError(answer.get("message") or f"a {answer['type']} answered REGISTER")
        self._controller = answer.get("incarnation")
        heartbeat_s = answer.get("heartbeat_timeout_s")
        self._heartbeat_timeout_s = None if heartbeat_s is None else float(heartbeat_s)
        # A sender holds the lock, for ever where the controller does not read.
        limit_us = round(1e6 * float(answer["timeout_s"]))
        limit = struct.pack("ll", *divmod(limit_us, 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return answer, messages[1:]

    def _receive_some(self, limit_s: float | None) -> list[Message]:
        """The next messages, perhaps none; raises _Lost where there will be none."""
        where = f"the controller at {self.address}"
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(None if limit_s is None else max(0.0, 1000 * limit_s)):
                silent_s = self.timeout_s if limit_s is None else limit_s
                raise _Lost(f"{where} did not answer within {max(0.0, silent_s):g} s")
            data = self._socket.recv(65536)
            if not data:
                raise _Lost(f"{where} closed the connection")
            return self._decoder.feed(data)
        except (OSError, ProtocolError) as error:
            raise _Lost(f"the connection to {where} broke ({error})") from None

    def _run(self, messages: list[Message]) -> None:
        """The reading thread: messages until the connection ends, for good."""
        while True:
            try:
                while True:
                    for message in messages:
                        self._receive(message)
                    messages = self._receive_some(self._heartbeat_timeout_s)
            except _Lost as error:
                reason = str(error)
            try:
                messages = self._come_back(reason)
            except FabricError as error:
                self._fail(str(error))
                return

    def _come_back(self, reason: str) -> list[Message]:
        """Reach the controller that was started anew, and present what was begun.

        Raises FabricError, with the first reason where it was only not reached.
        """
        with self._lock:
            self._connected = False
        deadline = time.monotonic() + self._reconnect_s
        pause_s, longest_s = _PAUSE_S
        while not self._closed.is_set() and time.monotonic() < deadline:
            try:
                connection = _connect(self.address, deadline - time.monotonic())
            except FabricError:
                self._closed.wait(min(pause_s, max(0.0, deadline - time.monotonic())))
                pause_s = min(2 * pause_s, longest_s)
                continue
            with self._lock:
                self._socket.close()
                self._socket, self._decoder = connection, MessageDecoder()
            if self._closed.is_set():
                break
            try:
                answer, early = self._enter(deadline)
            except _Lost:
                self._closed.wait(pause_s)
                continue
            if not answer.get("recovering"):
                raise FabricError(
                    f"{reason}; the one that answers now did not wait for rank {self.rank}"
                )
            with self._lock:
                again = {number: question.data for number, question in self._questions.items()}
                # The end goes first, so that the question cannot be granted any more.
                for number, key, configuration in self._holdings.given_up():
                    asked = encode("ACQUIRE", request=number, **_question(key, configuration))
                    again[number] = encode("ABANDON", channel=key[0], sequence=key[1]) + asked
                presentation = self._holdings.present()
                self._connected, self._connected_at = True, time.monotonic()
                questions = [data for _, data in sorted(again.items())]
                self._write(b"".join([_presented(presentation), *questions]))
            if presentation.open and self._tell_given_back is not None:
                self._tell_given_back(presentation.open)
            return early
        raise FabricError(reason)

    def _receive(self, message: Message) -> None:
        number = message.get("request")
        if message["type"] == "PING":
            with contextlib.suppress(FabricError), self._lock:
                self._write(encode("PONG"))
            return
        if message["type"] == "RETURNED":
            with self._lock:
                self._holdings.returned(message["rank"])
            return
        if message["type"] == "RECALL":
            configuration, reason = _configuration(message), message["reason"]
            self._take_recall(configuration, message["hold"])
            if reason is not None:
                members = tuple(message["members"])
                self._notice(members, f"{reason} during {configuration.name}")
            return
        if message["type"] == "GRANT":
            question = self._take_grant(message, number)
        elif number is None:
            if message["type"] == "ERROR":
                self._notice(None, message["message"])
            return
        else:
            with self._lock:
                question = self._questions.pop(number, None)
                self._holdings.refused(number)
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
        """Store a grant on the reading thread: a following recall has to report it."""
        key: OperationKey = (message["channel"], message["sequence"])
        configuration, hold = _configuration(message), message["hold"]
        message["granted_ns"] = time.monotonic_ns()
        if number is None:
            with self._lock:
                number = self._holdings.question(key)
                if number is None:
                    self._holdings.granted_late(key, configuration, hold)
            if number is None:
                if self._granted_late is not None:
                    self._granted_late(*key, _grant(message))
                return None
        with self._lock, contextlib.suppress(FabricError):
            question = self._questions.pop(number, None)
            if self._holdings.answer(number, key, configuration, hold) == "release":
                self._write(encode("RELEASE", channel=key[0], sequence=key[1]))
        return question

    def _fail(self, reason: str) -> None:
        """End every open and every later question with an error."""
        with self._lock:
            self._broken = self._broken or reason
            self._connected = False
            questions = list(self._questions.values())
            self._questions.clear()
        with self._noticed:
            self._noticed.notify_all()
        for question in questions:
            question.answered.set()


def _needs(configuration: Configuration) -> dict[str, Any]:
    return {"kind": configuration.kind, "members": configuration.members}


def _question(key: OperationKey, configuration: Configuration) -> dict[str, Any]:
    """The fields of ACQUIRE but its number."""
    return {"channel": key[0], "sequence": key[1], **_needs(configuration)}


def _recalled(configuration: Configuration, report: Report) -> bytes:
    fields = {"hold": report.hold, "begun": report.begun, "open": sorted(report.open)}
    return encode("RECALLED", **_needs(configuration), **fields, operations=report.operations)


def _presented(presentation: Presentation) -> bytes:
    needs = list(dict.fromkeys(configuration for configuration, _ in presentation.begun.values()))
    index_of = {configuration: index for index, configuration in enumerate(needs)}
    return encode(
        "PRESENT",
        configurations=[[item.kind, item.members] for item in needs],
        begun=[
            [channel, number, index_of[configuration], presentation.over.get(channel, -1)]
            for channel, (configuration, number) in presentation.begun.items()
        ],
        open=sorted(presentation.open),
        operations=presentation.operations,
    )


def _configuration(message: Message) -> Configuration:
    return Configuration(message["kind"], tuple(message["members"]))


def _grant(message: Message) -> Grant:
    return Grant(**{item.name: message[item.name] for item in fields(Grant)})


def _connect(address: str, timeout_s: float) -> socket.socket:
    try:
        return connect(address, timeout_s)
    except OSError as error:
        why = error.strerror or error
        raise FabricError(f"no controller answers at {address} ({why})") from None
    except ValueError as error:
        raise FabricError(str(error)) from None
