"""What observers ask and order: the state, the counters, a switch that is to break."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from railx.fabric.connections import Connection
from railx.fabric.metrics import metrics_text
from railx.fabric.protocol import ProtocolError, encode
from railx.fabric.requests import (
    FailCommands,
    FailPorts,
    Metrics,
    Observe,
    Request,
    RestorePorts,
    Stats,
    Status,
)
from railx.fabric.serving.door import Door
from railx.fabric.serving.state import OBSERVERS
from railx.fabric.switches import FaultySwitch

__all__ = ["Observers"]

#: Entries of a table in an answer, as many as fit; halved until all of it fits.
_ENTRIES = 1 << 13
#: Answers to a rank's questions for the counters in one turn of the loop.
_TURN_BYTES = 1 << 14


class Observers(Door):
    """Answers people."""

    def _observe(self, connection: Connection, request: Observe) -> None:
        if connection.is_admitted:
            self._refuse(connection, "registered_twice", "OBSERVE of a connection in use")
        elif self._is_stranger(connection, request.token, "an observer came"):
            pass
        else:
            # Whoever knows the token gets in, to end the controller at least.
            if len(self._observers) >= OBSERVERS:
                self._dismiss("too_many_observers", f"more than {OBSERVERS} observers have come")
            self._admit(connection)
            self._observers[connection] = None
            connection.observes = True
            connection.send(encode("OBSERVING"))

    def _observed(self, connection: Connection, request: Request) -> None:
        del self._observers[connection]
        self._observers[connection] = None
        if isinstance(request, Status):
            self._reply(connection, "STATUS", request.request, "status", self.status)
        elif isinstance(request, Metrics):
            self._reply(connection, "METRICS", request.request, "text", self._metrics)
        elif isinstance(request, FailPorts | RestorePorts | FailCommands):
            try:
                self._break(request)
            except ValueError as error:
                self._refuse(connection, "order", str(error), request.request)
            else:
                connection.send(encode("DONE", request=request.request))
        else:
            name, number = type(request).__name__.upper(), getattr(request, "request", None)
            self._refuse(connection, "not_a_rank", f"{name} of an observer", number)

    def _break(self, order: FailPorts | RestorePorts | FailCommands) -> None:
        """Have an emulated switch fail; ValueError where it cannot."""
        if not isinstance(self._switch, FaultySwitch):
            driver = self.settings.switch.driver
            raise ValueError(f"the {driver} driver does not fail on order")
        if isinstance(order, FailPorts):
            self._switch.fail_ports(order.ports, order.reason)
        elif isinstance(order, RestorePorts):
            self._switch.restore_ports(order.ports)
        else:
            self._switch.fail_commands(order.commands, order.reason)

    def _stats(self, connection: Connection, request: Stats) -> None:
        self._reply(connection, "STATS", request.request, "statistics", self.statistics)

    def statistics(self, most: int | None = None) -> dict[str, object]:
        """The core's counters, with the refusals of both; of ``most`` ranks."""
        return {**self.core.statistics(most), "refusals": self._all_refusals()}

    def _all_refusals(self) -> dict[str, int]:
        return dict(sorted((self.refusals + Counter(self.core.refusals)).items()))

    def _metrics(self, most: int) -> str:
        status = self.status()
        heard = status["last_heard_s"]
        assert isinstance(heard, dict)
        if len(heard) > most:
            # All else are counts, which are those of all ranks.
            del status["last_heard_s"]
        return metrics_text(status)

    def status(self, most: int | None = None) -> dict[str, object]:
        """What an observer sees; of each table the first ``most`` entries."""
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
        """Answer a question for people; they get no more than a message can hold.

        ``account`` makes the answer, of so many entries of each table at most.
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
        # The state of a large job takes long, and so do many answers to one rank.
        if connection.observes or connection.unsent_bytes > _TURN_BYTES:
            connection.rest()
