"""An observer's connection to the controller, its status as text, its metrics by HTTP.

An observer reads the state and the counters, and can make an emulated switch fail.
"""

from __future__ import annotations

import http.server
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from railx.errors import UserError
from railx.fabric.circuits import Port
from railx.fabric.protocol import TOKEN, Message, MessageDecoder, ProtocolError, connect, encode
from railx.text import aligned


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
            silent = f"no answer from the controller at {self.address}"
            raise ObserverError(f"{silent} within {self._timeout_s:g} s") from None
        except (OSError, ProtocolError) as error:
            raise ObserverError(self._broke(error)) from None
        if not data:
            raise ObserverError(f"the controller at {self.address} closed the connection")
        return messages

    def _broke(self, error: Exception) -> str:
        why = getattr(error, "strerror", None) or error
        return f"the connection to the controller at {self.address} broke ({why})"


#: Rows of one table; --json has all of them.
_ROWS = 40


def status_text(status: Mapping[str, Any]) -> str:
    """A controller's status for the terminal."""
    controller, statistics = status["controller"], status["statistics"]
    if status["recovering"]:
        doing = "recovering: waits for its ranks"
    else:
        doing = (
            f"{statistics['requests']} requests, {statistics['grants']} grants,"
            f" {statistics['reconfigurations']} switch commands,"
            f" {statistics['held']} operations under held leases"
        )
    name = (
        f"controller {controller['incarnation']:x}, up {_seconds(controller['up_s'])},"
        f" {controller['driver']} switches, {controller['latency_ms']:g} ms,"
        f" {controller['connections']} connections"
    )
    lines = [name, doing]
    rails = [
        (rail, state["generation"], _circuits(state["circuits"]), _circuits(state["moving"]))
        for rail, state in status["rails"].items()
    ]
    lines += _table("rails", ("rail", "changes", "circuits with light", "coming up"), rails)
    lines += _table("leases", ("circuit", "operations", "held by"), _leases(status))
    queue = [(item["configuration"], _operation(item["operation"])) for item in status["queue"]]
    lines += _table("queue", ("needs", "operation"), queue)
    waiting = [
        (item["configuration"], _operation(item["operation"]), *map(_numbers, members))
        for item in status["waiting"]
        for members in [(item["asked"], item["missing"])]
    ]
    heads = ("needs", "operation", "asked", "missing")
    lines += _table("waiting for members", heads, waiting)
    heard = {rank: f"{_seconds(past_s)} ago" for rank, past_s in status["last_heard_s"].items()}
    ranks = [
        (
            rank,
            "-" if state["incarnation"] is None else f"{state['incarnation']:x}",
            "present" if state["present"] else state["gone"] or "gone",
            heard.get(rank, "-"),
        )
        for rank, state in sorted(status["ranks"].items(), key=lambda item: int(item[0]))
    ]
    lines += _table("ranks", ("rank", "incarnation", "state", "last heard"), ranks)
    lines += _table("refusals", ("reason", "count"), sorted(status["refusals"].items()))
    lost = [(f"{port['gpu']}.{port['side']}", port["reason"]) for port in status["lost_ports"]]
    lines += _table("failed ports", ("port", "reason"), lost)
    left_out = status.get("left_out")
    if left_out:
        counts = ", ".join(f"{count} of {table}" for table, count in left_out.items())
        lines += ["", f"left out, as all of it is more than a message holds: {counts}"]
    journal = status.get("journal")
    if journal:
        ended = f", ended: {journal['stopped']}" if journal["stopped"] else ""
        lines += ["", f"journal {journal['path']}: {journal['events']} events{ended}"]
    return "\n".join(_printable(line) for line in lines)


def _leases(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """A row of each circuit; held leases have their names in a table of their own."""
    names = {hold["hold"]: hold["configuration"] for hold in status.get("holds", ())}
    rows = []
    for lease in status["leases"]:
        operations = ", ".join(_operation(key) for key in lease["operations"]) or "-"
        holds = "; ".join(sorted(names.get(hold, f"lease {hold}") for hold in lease["holds"]))
        rows += [(circuit, operations, holds or "-") for circuit in lease["circuits"]]
    return [
        (_circuits([circuit]), operations, holds) for circuit, operations, holds in sorted(rows)
    ]


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return ["", f"{title}: none"]
    shown = cells[:_ROWS]
    lines = aligned([heads, *shown])
    if len(cells) > _ROWS:
        lines.append(f"... and {len(cells) - _ROWS} more (--json has them)")
    return ["", title, *(f"  {line}" for line in lines)]


def _printable(line: str) -> str:
    """A line without the control characters that a rank's names may hold."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _circuits(circuits: Iterable[Sequence[int]]) -> str:
    return ", ".join(f"{right}>{left}" for right, left in circuits) or "-"


def _operation(key: Sequence[Any]) -> str:
    return f"{key[0]} #{key[1]}"


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def serve_metrics(address: str, token: str | None, port: int) -> int:
    """Serve the metrics over HTTP to this machine alone, until Ctrl-C.

    Each scrape asks the controller anew; while it does not answer, scrapes get 503.
    """
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    def text() -> str:
        with Observer(address, token) as observer:
            return observer.metrics()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "allowed: /metrics\n")
                return
            try:
                self._answer(200, text())
            except ObserverError as error:
                self._answer(503, f"{error}\n")

        def log_message(self, format: str, *arguments: Any) -> None:
            """Scrapes are not worth a line each."""

        def _answer(self, status: int, body: str) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    # A token or an address that is wrong is told now, and not to Prometheus.
    text()
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/metrics (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0
