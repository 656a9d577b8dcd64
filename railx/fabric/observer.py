"""An observer's connection to the controller, for people and tools.

It reads the state and the counters, and can make an emulated switch fail.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

from railx.errors import UserError
from railx.fabric.circuits import Port
from railx.fabric.protocol import TOKEN, Message, MessageDecoder, ProtocolError, connect, encode

__all__ = ["Observer", "ObserverError"]


class ObserverError(UserError, ConnectionError):
    """The controller does not answer, or refuses; one line with the reason."""


class Observer:
    """Asks one question after another; use as a context manager or call ``close``."""

    def __init__(self, address: str, token: str | None = None, *, timeout_s: float = 10.0) -> None:
        """Connect to "host:port" or "unix:/path".

        ``token``: the controller's secret; by default the environment's
        (``RAILX_TOKEN``). Raises :class:`ObserverError`.
        """
        self.address = address
        self._numbers = itertools.count()
        self._decoder = MessageDecoder()
        self._messages: list[Message] = []
        self._timeout_s = timeout_s
        try:
            self._socket = connect(address, timeout_s)
        except OSError as error:
            reason = error.strerror or "it does not answer"
            raise ObserverError(f"no controller answers at {address} ({reason})") from None
        except ValueError as error:
            raise ObserverError(str(error)) from None
        try:
            self._socket.settimeout(timeout_s)
            self._send("OBSERVE", token=os.environ.get(TOKEN) if token is None else token)
            self._answer("OBSERVING", None)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()

    def status(self) -> dict[str, Any]:
        """The state of the controller; docs/fabric.md says what is in it."""
        status: dict[str, Any] = self._ask("STATUS", "STATUS")["status"]
        return status

    def metrics(self) -> str:
        """The counters in Prometheus' text format."""
        return str(self._ask("METRICS", "METRICS")["text"])

    def fail_ports(self, ports: Iterable[Port], reason: str) -> None:
        """Have an emulated switch lose ports."""
        self._ask("FAIL_PORTS", "DONE", ports=list(ports), reason=reason)

    def restore_ports(self, ports: Iterable[Port]) -> None:
        """Have an emulated switch bring ports back."""
        self._ask("RESTORE_PORTS", "DONE", ports=list(ports))

    def fail_commands(self, count: int, reason: str) -> None:
        """Have an emulated switch fail the next ``count`` commands."""
        self._ask("FAIL_COMMANDS", "DONE", count=count, reason=reason)

    def shut_down(self) -> None:
        """End the controller, and so every rank's connection."""
        self._send("SHUTDOWN")

    def _ask(self, question: str, answer: str, /, **fields: Any) -> Message:
        number = next(self._numbers)
        self._send(question, request=number, **fields)
        return self._answer(answer, number)

    def _send(self, message_type: str, /, **fields: Any) -> None:
        try:
            self._socket.sendall(encode(message_type, **fields))
        except OSError as error:
            raise ObserverError(self._broke(error)) from None

    def _answer(self, expected: str, number: int | None) -> Message:
        while True:
            while not self._messages:
                self._messages += self._received()
            message = self._messages.pop(0)
            if message["type"] == "ERROR" and message.get("request") in (None, number):
                raise ObserverError(str(message.get("message")))
            if message["type"] == expected and message.get("request") == number:
                return message

    def _received(self) -> list[Message]:
        try:
            data = self._socket.recv(65536)
            messages = self._decoder.feed(data)
        except TimeoutError:
            waited = f"within {self._timeout_s:g} s"
            raise ObserverError(
                f"no answer from the controller at {self.address} {waited}"
            ) from None
        except (OSError, ProtocolError) as error:
            raise ObserverError(self._broke(error)) from None
        if not data:
            raise ObserverError(f"the controller at {self.address} closed the connection")
        return messages

    def _broke(self, error: Exception) -> str:
        why = getattr(error, "strerror", None) or error
        return f"the connection to the controller at {self.address} broke ({why})"
