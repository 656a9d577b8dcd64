"""What ranks ask and tell: their requests, their lives and their signs of life."""

from __future__ import annotations

import asyncio
import math
import time

from railx.fabric.connections import Connection
from railx.fabric.protocol import encode
from railx.fabric.requests import (
    Abandon,
    Acquire,
    Listen,
    Prepare,
    Present,
    Recalled,
    Register,
    Release,
    Unlisten,
)
from railx.fabric.serving.door import Door
from railx.fabric.serving.words import LONGEST

__all__ = ["Ranks"]


class Ranks(Door):
    """Brings what ranks say to the core."""

    def _watch(self) -> None:
        """From now on ranks that say nothing, or do not come back, are missed."""
        settings = self.settings
        self._recovery: asyncio.TimerHandle | None = None
        if self.core.recovering:
            lit, ranks = len(self.core.lit), self.core.ranks
            self._log(f"recovering: {lit} circuits carry light, waiting for {ranks} ranks")
            # Sooner than the patience of those that came back ends.
            self._recovery = self._loop.call_later(settings.timeout_s / 2, self._end_recovery)
        # A rank that answers none of so many questions for a sign of life is dead.
        self._patience = max(3, math.ceil(settings.timeout_s / settings.heartbeat_s))
        self._beat = self._loop.call_later(settings.heartbeat_s, self._heartbeat)

    def _register(self, connection: Connection, request: Register) -> None:
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
            why = self.core.gone(rank) if rank < self.core.ranks else None
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
                # What its last life was part of needs it no more.
                returned = encode("RETURNED", rank=rank)
                for other in self._ranks.values():
                    other.send(returned)
            self._ranks[rank] = connection
            connection.rank = rank
            settings = self.settings
            connection.send(
                encode(
                    "REGISTERED",
                    ranks=self.core.ranks,
                    reconfiguration_latency_ms=settings.reconfiguration_latency_ms,
                    timeout_s=settings.timeout_s,
                    heartbeat_timeout_s=self._patience * settings.heartbeat_s,
                    reconnect_s=self._reconnect_s,
                    incarnation=self.incarnation,
                    recovering=self.core.recovering,
                )
            )

    def _present(self, connection: Connection, request: Present) -> None:
        if connection.rank is None:
            self._refuse(connection, "not_a_rank", "PRESENT of an observer")
        elif not self.core.recovering:
            self._refuse(connection, "not_recovering", "PRESENT, but nothing is recovered")
        else:
            now_ns = time.monotonic_ns()
            self._act(self.core.present(connection.rank, request.presentation, now_ns))

    def _acquire(self, connection: Connection, request: Acquire) -> None:
        assert connection.rank is not None
        self._act(
            self.core.ask(
                connection.rank,
                request.request,
                request.key,
                request.configuration,
                time.monotonic_ns(),
                can_hold=True,
            )
        )

    def _release(self, connection: Connection, request: Release) -> None:
        assert connection.rank is not None
        self._act(self.core.release(connection.rank, request.key, time.monotonic_ns()))

    def _recalled(self, connection: Connection, request: Recalled) -> None:
        assert connection.rank is not None
        self._act(
            self.core.recalled(
                connection.rank, request.configuration, request.report, time.monotonic_ns()
            )
        )

    def _prepare(self, connection: Connection, request: Prepare) -> None:
        assert connection.rank is not None
        self._act(self.core.hint(connection.rank, request.configuration, time.monotonic_ns()))

    def _listen(self, connection: Connection, request: Listen) -> None:
        assert connection.rank is not None
        self._act(
            self.core.listen(
                connection.rank, request.request, request.channels, time.monotonic_ns()
            )
        )

    def _unlisten(self, connection: Connection, request: Unlisten) -> None:
        assert connection.rank is not None
        self.core.unlisten(connection.rank, request.request)

    def _abandon(self, connection: Connection, request: Abandon) -> None:
        assert connection.rank is not None
        self._act(self.core.abandon(connection.rank, request.key, time.monotonic_ns()))

    def _heartbeat(self) -> None:
        self._beat = self._loop.call_later(self.settings.heartbeat_s, self._heartbeat)
        ping = encode("PING")
        for rank, connection in list(self._ranks.items()):
            if self._ranks.get(rank) is not connection:
                continue
            if connection.missed >= self._patience:
                silent_s = connection.missed * self.settings.heartbeat_s
                self._count("silent", f"rank {rank} has been silent for {silent_s:g} s")
                self._lost(connection, f"has been silent for {silent_s:g} s")
                connection.abort()
                continue
            connection.missed += 1
            connection.send(ping)

    def _end_recovery(self) -> None:
        if not self.core.recovering:
            return
        late = sorted(self.core.awaited)
        self._log(f"ranks {', '.join(map(str, late))} did not come back"[:LONGEST])
        self._act(self.core.end_recovery(time.monotonic_ns()))
        for rank in late:
            connection = self._ranks.get(rank)
            if connection is not None:
                self._forget(connection)
                connection.close()
