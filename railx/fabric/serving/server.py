"""The controller's server: connections on one side, core and switch on the other.

Everything runs on one event loop. The server refuses, counts and logs every message
that a peer may not send, and no other peer notices. An error of the server's own ends
it with a message, so that no rank waits for an answer that never comes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from railx.fabric.circuits import Configuration
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import Action, State
from railx.fabric.holdings import OperationKey
from railx.fabric.protocol import ProtocolError, Request, encode
from railx.fabric.serving.base import MAXIMUM_LINE, OBSERVERS, Connection, ServerBase
from railx.fabric.settings import FabricSettings
from railx.fabric.switches.emulated import EmulatedSwitch

#: By channel, the sender and the number of the first operation that may be meant.
Senders = Mapping[str, tuple[int, int]]


class FirstSender(NamedTuple):
    """``source`` waits for ``key``, an operation with the rank that asks."""

    source: int
    key: OperationKey


class Refusal(NamedTuple):
    """Why no sender will come, and a word to count by."""

    message: str
    reason: str


def first_sender(core: State, rank: int, senders: Senders) -> FirstSender | Refusal | None:
    """The sender of the operation that became known first; None while nobody waits."""
    for source, _ in sorted(senders.values()):
        if source == rank or not 0 <= source < core.ranks:
            allowed = f"another rank, 0 to {core.ranks - 1}"
            return Refusal(f"rank {rank} listens for rank {source}; allowed: {allowed}", "listen")
        if source in core.gone:
            why = f"rank {source} {core.gone[source]}"
            return Refusal(f"{why}, but rank {rank} receives from any source", "lost")
    if core.recovering:
        return None
    waiting = [
        (operation.serial, operation.key, source)
        for channel, (source, first) in senders.items()
        for number, operation in core.by_channel.get(channel, {}).items()
        if number >= first and source in operation.asked and rank not in operation.asked
        # An earlier one of the channel may have begun under the lease.
        if operation.configuration not in core.holds
    ]
    if waiting:
        _, (channel, number), source = min(waiting)
        # A later one may be known first, where the earlier began under a lease.
        number = min(key[1] for _, key, _ in waiting if key[0] == channel)
        return FirstSender(source, (channel, number))
    return failed_before(core, rank, senders)


def failed_before(core: State, rank: int, senders: Senders) -> Refusal | None:
    """The error of an operation that failed before ``rank`` came to it."""
    for (channel, number), tombstone in core.tombstones.items():
        if channel in senders and number >= senders[channel][1] and rank in tombstone.untold:
            return Refusal(tombstone.message, tombstone.reason)
    return None


def unseen(core: State, rank: int, senders: Senders) -> list[Configuration]:
    """The pairs whose leases may carry a send to ``rank`` already."""
    pairs = {Configuration("pair", (rank, source)) for source, _ in senders.values()}
    return sorted(
        (pair for pair in pairs & core.holds.keys() if not core.holds[pair].recalled),
        key=lambda pair: pair.name,
    )


#: Entries of a table in an answer at first; halved until the answer fits a message.
_ENTRIES = 1 << 13
#: Answers to a rank's questions for the counters in one turn of the loop.
_TURN_BYTES = 1 << 14

#: The event of the core for each request of a rank: core, rank, request, time in ns.
_EVENTS: dict[str, Callable[[ControllerCore, int, Request, int], Sequence[Action]]] = {
    "ACQUIRE": lambda core, rank, asked, now_ns: core.ask(
        rank, asked.request, asked.key, asked.configuration, now_ns, can_hold=True
    ),
    "RELEASE": lambda core, rank, ended, now_ns: core.release(rank, ended.key, now_ns),
    "RECALLED": lambda core, rank, answer, now_ns: core.recalled(
        rank, answer.configuration, answer.report, now_ns
    ),
    "PREPARE": lambda core, rank, hint, now_ns: core.hint(rank, hint.configuration, now_ns),
    "ABANDON": lambda core, rank, asked, now_ns: core.abandon(rank, asked.key, now_ns),
}


class Server(ServerBase):
    """Brings requests, heartbeats and time-outs to the core, and answers observers."""

    def __init__(
        self,
        settings: FabricSettings,
        ranks: int,
        token: str,
        log: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(settings, ranks, token, log)
        self._recovery: asyncio.TimerHandle | None = None
        if self.core.recovering:
            lit, ranks = len(self.core.lit), self.core.ranks
            self._log(f"recovering: {lit} circuits carry light, waiting for {ranks} ranks")
            # Before the ranks that came back time out.
            self._recovery = self._loop.call_later(settings.timeout_s / 2, self._end_recovery)
        # A rank that answers none of so many heartbeats is dead.
        self._patience = max(3, math.ceil(settings.timeout_s / settings.heartbeat_s))
        self._beat = self._loop.call_later(settings.heartbeat_s, self._heartbeat)

    def close(self) -> None:
        """Stop the switch and close every connection."""
        self._beat.cancel()
        if self._recovery is not None:
            self._recovery.cancel()
        self._switch.close()
        for connection in list(self._connections):
            self._forget(connection)
            connection.close()
        if self._journal is not None:
            self._journal.close()

    def received(self, connection: Connection, request: Request) -> None:
        """Called by a connection."""
        event = _EVENTS.get(request.type)
        if event is not None and connection.rank is not None:
            self._act(event(self.core, connection.rank, request, time.monotonic_ns()))
        elif request.type == "LISTEN" and connection.rank is not None:
            self._find_sender(connection, connection.rank, request)
        elif request.type == "STATS" and connection.rank is not None:
            self._reply(connection, "STATS", request.request, "statistics", self.statistics)
        else:
            self._received_seldom(connection, request)

    def _find_sender(self, connection: Connection, rank: int, request: Request) -> None:
        """Answer a receive from any source; the rank repeats it while nobody waits."""
        answer = first_sender(self.core, rank, request.channels)
        if isinstance(answer, Refusal):
            self.refusals[answer.reason] += 1
            connection.send(encode("ERROR", request=request.request, **answer._asdict()))
            return
        source, (channel, sequence) = answer or (None, (None, None))
        waits = {"source": source, "channel": channel, "sequence": sequence}
        connection.send(encode("FOUND", request=request.request, **waits))
        for pair in unseen(self.core, rank, request.channels) if answer is None else ():
            self._act(self.core.recall(pair, time.monotonic_ns()))

    def _received_seldom(self, connection: Connection, request: Request) -> None:
        if request.type == "REGISTER":
            self._register(connection, request)
        elif request.type == "OBSERVE":
            self._observe(connection, request)
        elif not connection.is_admitted:
            self._refuse(connection, "not_registered", f"{request.type} before REGISTER")
        elif request.type == "PING":
            connection.send(encode("PONG"))
        elif request.type == "PONG":
            pass
        elif request.type == "LEAVE":
            self._lost(connection, "has left")
            connection.close()
        elif request.type == "SHUTDOWN":
            self.stopped.set()
        elif request.type == "PRESENT":
            self._present(connection, request)
        elif connection.observes:
            self._observed(connection, request)
        else:
            number = getattr(request, "request", None)
            self._refuse(connection, "not_observing", f"{request.type} of a rank", number)

    def _register(self, connection: Connection, request: Request) -> None:
        rank = request.rank
        if connection.is_admitted:
            self._refuse(connection, "registered_twice", "a second REGISTER")
        elif self._is_stranger(connection, request.token, f"rank {rank} registered"):
            pass
        elif request.gpus_per_server != self.settings.gpus_per_server:
            message = (
                f"rank {rank} has gpus_per_server {request.gpus_per_server}; allowed:"
                f" {self.settings.gpus_per_server}, as the controller"
            )
            self._refuse(connection, "layout", message)
        elif request.controller == self.incarnation:
            why = self.core.gone.get(rank) if rank < self.core.ranks else None
            message = f"rank {rank} {why or 'is already registered'}; allowed: a new process"
            self._refuse(connection, "declared_dead", message)
        else:
            returning = request.controller is not None
            again = rank in self._seen
            problem = self.core.register(rank, request.incarnation, returning=returning)
            if problem is not None:
                self._refuse(connection, "rank_taken" if rank in self._ranks else "rank", problem)
                return
            self._admit(connection)
            self._seen.add(rank)
            if again:
                # Operations of the rank's former process do not wait for it any more.
                returned = encode("RETURNED", rank=rank)
                for other in self._ranks.values():
                    other.send(returned)
            self._ranks[rank] = connection
            connection.rank = rank
            registered = encode(
                "REGISTERED",
                ranks=self.core.ranks,
                reconfiguration_latency_ms=self.settings.reconfiguration_latency_ms,
                timeout_s=self.settings.timeout_s,
                heartbeat_timeout_s=self._patience * self.settings.heartbeat_s,
                reconnect_s=self._reconnect_s,
                incarnation=self.incarnation,
                recovering=self.core.recovering,
            )
            connection.send(registered)

    def _present(self, connection: Connection, request: Request) -> None:
        if connection.rank is None:
            self._refuse(connection, "not_a_rank", "PRESENT of an observer")
        elif not self.core.recovering:
            self._refuse(connection, "not_recovering", "PRESENT, but nothing is recovered")
        else:
            now_ns = time.monotonic_ns()
            self._act(self.core.present(connection.rank, request.presentation, now_ns))

    def _heartbeat(self) -> None:
        self._beat = self._loop.call_later(self.settings.heartbeat_s, self._heartbeat)
        ping = encode("PING")
        for rank, connection in list(self._ranks.items()):
            if self._ranks.get(rank) is not connection:
                continue
            if connection.missed >= self._patience:
                silent = f"has been silent for {connection.missed * self.settings.heartbeat_s:g} s"
                self._count("silent", f"rank {rank} {silent}")
                self._lost(connection, silent)
                connection.abort()
                continue
            connection.missed += 1
            connection.send(ping)

    def _end_recovery(self) -> None:
        if not self.core.recovering:
            return
        late = sorted(self.core.awaited)
        self._log(f"ranks {', '.join(map(str, late))} did not come back"[:MAXIMUM_LINE])
        self._act(self.core.end_recovery(time.monotonic_ns()))
        for rank in late:
            connection = self._ranks.get(rank)
            if connection is not None:
                self._forget(connection)
                connection.close()

    def _observe(self, connection: Connection, request: Request) -> None:
        if connection.is_admitted:
            self._refuse(connection, "registered_twice", "OBSERVE of a connection in use")
        elif self._is_stranger(connection, request.token, "an observer came"):
            pass
        else:
            # A peer with the token always gets in: it may have to end the controller.
            if len(self._observers) >= OBSERVERS:
                self._dismiss("too_many_observers", f"more than {OBSERVERS} observers have come")
            self._admit(connection)
            self._observers[connection] = None
            connection.observes = True
            connection.send(encode("OBSERVING"))

    def _observed(self, connection: Connection, request: Request) -> None:
        del self._observers[connection]
        self._observers[connection] = None
        if request.type == "STATUS":
            self._reply(connection, "STATUS", request.request, "status", self.status)
        elif request.type == "METRICS":
            self._answer_metrics(connection, request)
        elif request.type in ("FAIL_PORTS", "RESTORE_PORTS", "FAIL_COMMANDS"):
            try:
                self._break(request)
            except ValueError as error:
                self._refuse(connection, "order", str(error), request.request)
            else:
                connection.send(encode("DONE", request=request.request))
        else:
            number = getattr(request, "request", None)
            self._refuse(connection, "not_a_rank", f"{request.type} of an observer", number)

    def _break(self, order: Request) -> None:
        """Have an emulated switch fail; ValueError where it cannot."""
        if not isinstance(self._switch, EmulatedSwitch):
            driver = self.settings.switch.driver
            raise ValueError(f"the {driver} driver does not fail on order")
        if order.type == "FAIL_PORTS":
            self._switch.fail_ports(order.ports, order.reason)
        elif order.type == "RESTORE_PORTS":
            self._switch.restore_ports(order.ports)
        else:
            self._switch.fail_commands(order.commands, order.reason)

    def statistics(self, most: int | None = None) -> dict[str, object]:
        """The core's counters, with the refusals of both; of ``most`` ranks."""
        return {**self.core.statistics(most), "refusals": self._all_refusals()}

    def _all_refusals(self) -> dict[str, int]:
        return dict(sorted((self.refusals + Counter(self.core.refusals)).items()))

    def _answer_metrics(self, connection: Connection, request: Request) -> None:
        try:
            from railx.fabric.serving.metrics import metrics_text
        except ImportError:
            message = "METRICS needs prometheus_client, which is not installed; allowed: STATUS"
            self._refuse(connection, "not_installed", message, request.request)
            return

        def text(most: int) -> str:
            status = self.status()
            heard = status["last_heard_s"]
            assert isinstance(heard, dict)
            if len(heard) > most:
                # All else are counts, which are those of all ranks.
                del status["last_heard_s"]
            return metrics_text(status)

        self._reply(connection, "METRICS", request.request, "text", text)

    def status(self, most: int | None = None) -> dict[str, object]:
        """The state for observers; of each table the first ``most`` entries."""
        return {
            **self.core.snapshot(most),
            "statistics": self.core.statistics(most),
            "refusals": self._all_refusals(),
            "controller": {
                "incarnation": self.incarnation,
                "up_s": (time.monotonic_ns() - self._began_ns) / 1e9,
                "connections": len(self._connections),
                "driver": self.settings.switch.driver,
                "ranks": self.core.ranks,
                "gpus_per_server": self.settings.gpus_per_server,
                "latency_ms": self.settings.reconfiguration_latency_ms,
            },
            "last_heard_s": {
                str(rank): connection.missed * self.settings.heartbeat_s
                for rank, connection in sorted(self._ranks.items())[:most]
            },
            "journal": self._journal and self._journal.state(),
        }

    def _reply(
        self,
        connection: Connection,
        kind: str,
        request: int,
        field: str,
        account: Callable[[int], object],
    ) -> None:
        """Answer an observer's question within the size of a message.

        ``account`` returns the answer for a maximum number of entries of each table.
        """
        most = _ENTRIES
        while True:
            try:
                answer = encode(kind, request=request, **{field: account(most)})
            except ProtocolError as error:
                if most == 1:
                    self._refuse(connection, error.reason, str(error), request)
                    return
                most //= 2
            else:
                connection.send(answer)
                break
        # The state of a large job takes long to encode, as do many answers to one rank.
        if connection.observes or connection.unsent_bytes > _TURN_BYTES:
            connection.rest()
