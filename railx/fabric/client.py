"""A rank's side of the protocol.

Questions block and may come from any thread. One thread reads, and nobody goes on
without an answer.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from railx.fabric.circuits import Configuration
from railx.fabric.protocol import Message, MessageDecoder, ProtocolError, encode

__all__ = ["FabricClient", "FabricError", "Grant"]

#: How long a rank that gave up waits for the controller to say why.
_REASON_TIMEOUT_S = 5.0


class FabricError(RuntimeError):
    """An operation that may not start or go on; one line that says why."""


@dataclass(frozen=True)
class Grant:
    """The controller's answer to one request.

    See :class:`railx.fabric.core.GrantAction`; the clock is CLOCK_MONOTONIC.
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


class FabricClient:
    """The connection of one rank; every method may be called from any thread.

    Use as a context manager or call ``close``.
    """

    def __init__(
        self, address: str, rank: int, *, gpus_per_server: int, timeout_s: float = 30.0
    ) -> None:
        """Connect and register.

        ``address`` is "host:port". Raises :class:`FabricError` where that fails within
        ``timeout_s``.
        """
        self.address = address
        self.rank = rank
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}
        self._registered = _Question()
        self._broken: str | None = None
        self._notice: str | None = None
        self._closing = False
        self._socket = _connect(address, timeout_s)
        self._reader = threading.Thread(target=self._read, name="fabric client", daemon=True)
        self._reader.start()
        self._send("REGISTER", rank=rank, gpus_per_server=gpus_per_server)
        if not self._registered.answered.wait(timeout_s):
            self._fail(f"the controller at {address} did not answer within {timeout_s:g} s")
        if self._broken is not None or self._registered.message["type"] == "ERROR":
            message = self._broken or self._registered.message["message"]
            self.close()
            raise FabricError(message)
        self.ranks = int(self._registered.message["ranks"])
        self.timeout_s = float(self._registered.message["timeout_s"])

    def __enter__(self) -> FabricClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def notice(self) -> str | None:
        """What the controller last said about an operation already granted, or None.

        Said where a peer died during it.
        """
        return self._notice

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
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        question, number = self._ask(
            "ACQUIRE",
            channel=channel,
            sequence=sequence,
            kind=configuration.kind,
            members=configuration.members,
        )
        if not question.answered.wait(limit_s):
            self._send("ABANDON", channel=channel, sequence=sequence)
            if not question.answered.wait(_REASON_TIMEOUT_S):
                self._forget(number)
                raise FabricError(
                    f"no answer from the controller at {self.address} within {limit_s:g} s for"
                    f" {configuration.name}"
                )
        answer = self._answer(question)
        if answer["type"] == "ERROR":
            raise FabricError(answer["message"])
        return Grant(
            generation=int(answer["generation"]),
            granted_ns=int(answer["granted_ns"]),
            wait_ns=int(answer["wait_ns"]),
            stall_ns=int(answer["stall_ns"]),
            reconfigured=int(answer["reconfigured"]),
            mispredicted=bool(answer["mispredicted"]),
        )

    def release(self, channel: str, sequence: int, *, prepare: Configuration | None = None) -> None:
        """This rank's part of a granted operation has ended.

        ``prepare``: what its next operation will need, if that is known.
        """
        data = encode("RELEASE", channel=channel, sequence=sequence)
        if prepare is not None:
            data += encode("PREPARE", kind=prepare.kind, members=prepare.members)
        self._write(data)

    def prepare(self, configuration: Configuration) -> None:
        """Hint what this rank's next operation will need."""
        self._send("PREPARE", kind=configuration.kind, members=configuration.members)

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
                self._socket.sendall(encode("LEAVE"))
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
        self._write(encode(message_type, **fields))

    def _write(self, data: bytes) -> None:
        with self._lock:
            if self._closing:
                raise FabricError("the connection to the controller is closed")
            try:
                self._socket.sendall(data)
            except OSError as error:
                broke = f"the connection to the controller at {self.address} broke"
                raise FabricError(self._broken or f"{broke} ({error.strerror})") from None

    def _forget(self, number: int) -> None:
        with self._lock:
            self._questions.pop(number, None)

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
        elif number is None:
            self._notice = message["message"]
            return
        else:
            with self._lock:
                question = self._questions.pop(number, None)
        if question is not None:
            question.message = message
            question.answered.set()

    def _fail(self, reason: str) -> None:
        """Nobody waits for ever: every open and every later question ends."""
        with self._lock:
            self._broken = self._broken or reason
            questions = [*self._questions.values(), self._registered]
            self._questions.clear()
        for question in questions:
            question.answered.set()


def _connect(address: str, timeout_s: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise FabricError(f"address of the controller: got {address!r}; allowed: host:port")
    try:
        connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    except OSError as error:
        raise FabricError(
            f"no controller answers at {address} ({error.strerror or error})"
        ) from None
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
