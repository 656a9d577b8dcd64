"""What observers ask and order: the state, the counters, a switch that is to break."""

from __future__ import annotations

import time
from collections import Counter

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


class Observers(Door):
    """Answers people."""

    def _observe(self, connection: Connection, request: Observe) -> None:
        if connection.is_known:
            self._refuse(connection, "registered_twice", "OBSERVE of a connection in use")
        elif self._is_stranger(connection, request.token, "an observer came"):
            pass
        elif sum(item.observes for item in self._connections) >= OBSERVERS:
            message = f"{OBSERVERS} observers are here; allowed: no more"
            self._refuse(connection, "too_many_observers", message)
        else:
            self._become_known(connection)
            connection.observes = True
            connection.send(encode("OBSERVING"))

    def _observed(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Status):
            self._reply(connection, "STATUS", request.request, status=self.status())
        elif isinstance(request, Metrics):
            self._reply(connection, "METRICS", request.request, text=metrics_text(self.status()))
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
        self._reply(connection, "STATS", request.request, statistics=self.statistics())

    def statistics(self) -> dict[str, object]:
        """The core's counters, with the refusals of both."""
        return {**self.core.statistics(), "refusals": self._all_refusals()}

    def _all_refusals(self) -> dict[str, int]:
        return dict(sorted((self.refusals + Counter(self.core.refusals)).items()))

    def status(self) -> dict[str, object]:
        """What an observer sees."""
        return {
            **self.core.snapshot(),
            "statistics": self.core.statistics(),
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
                for rank, connection in sorted(self._ranks.items())
            },
            "journal": self._journal and self._journal.state(),
        }

    def _reply(self, connection: Connection, kind: str, request: int, **fields: object) -> None:
        """Answer a question for people; they get no more than a message can hold."""
        try:
            answer = encode(kind, request=request, **fields)
        except ProtocolError as error:
            self._refuse(connection, error.reason, str(error), request)
        else:
            connection.send(answer)
