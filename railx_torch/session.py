"""The session of one rank with the fabric: its connection, statistics and schedule."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from railx.errors import UserError
from railx.fabric import (
    SCALE_UP,
    CircuitSchedule,
    Configuration,
    FabricClient,
    FabricError,
    Grant,
    Layout,
    Mode,
)
from railx.fabric.client import Asked
from railx.fabric.cycle import CycleFinder
from railx_torch.trace import RECONFIGURATION, Issued, Recorder

#: After this many operations whose end nobody waits for, their ends are watched.
_UNSEEN = 64
#: The longest and the shortest wait of a collective behind a message whose receiver has
#: not arrived.
_PATIENCE_S = 2.0
_IMPATIENT_S = 0.02


@dataclass(frozen=True)
class BackendOptions:
    """Options of the process groups created from now on.

    ``controller`` is "host:port", None in electrical mode. ``token`` is the secret that
    the controller requires, by default RAILX_TOKEN.
    """

    inner: Literal["gloo", "nccl"]
    controller: str | None
    mode: Mode
    gpus_per_server: int
    token: str | None = field(
        default_factory=lambda: os.environ.get("RAILX_TOKEN") or None, repr=False
    )

    def __post_init__(self) -> None:
        if (self.mode == "electrical") != (self.controller is None):
            message = f"controller: got {self.controller} in mode {self.mode}"
            raise UserError(
                f"{message}; allowed: none in mode electrical, host:port in the other modes"
            )


@dataclass(frozen=True)
class Statistics:
    """Counts of this rank's operations since the last reset, as the controller defines:

    * ``requests``: operations that requested their circuits.
    * ``held``: operations that ran on circuits that the group still held, without a
      request. Operations whose lease was recalled before all peers had begun count as
      requests.
    * ``reconfigurations``: operations for which circuits were switched, ahead or during
      their wait.
    * ``stall_ns``: wait for light paths.
    * ``wait_ns``: wait for other members and for ports in use.
    * ``mispredictions``: operations, in the order of issue, that differ from the
      announced one.
    * ``phase_changes``: operations that need other circuits than the operation issued
      before them, switched or not (in electrical mode too).
    """

    requests: int = 0
    reconfigurations: int = 0
    stall_ns: int = 0
    wait_ns: int = 0
    mispredictions: int = 0
    held: int = 0
    phase_changes: int = 0


@dataclass(eq=False, slots=True)
class Operation:
    """One collective or message of this rank.

    ``channel`` and ``sequence`` identify it on all members; ``group`` has their global
    ranks; ``ready`` is the CUDA event that precedes it on the current stream.
    """

    kind: str
    group: tuple[int, ...]
    configuration: Configuration | None
    channel: str
    sequence: int
    bytes: int
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    timeout_s: float
    device: torch.device
    iteration: int = 0
    ready: Any = None
    record: Issued | None = None
    #: Its number among all operations of the rank, in the order of issue.
    issue_index: int = 0
    #: The request for its circuits, once it is sent.
    asked: Asked | None = None

    @property
    def phase(self) -> str:
        """The name of its circuits."""
        return SCALE_UP if self.configuration is None else self.configuration.name


class Watched(Protocol):
    """A handle that can watch the end of an operation that nobody waits for."""

    def have_watched(self) -> None:
        """Watch the end from now on, in another thread; does not wait."""


class Session:
    """One rank's connection, counts and schedule under one fabric setting."""

    def __init__(self, options: BackendOptions, recorder: Recorder) -> None:
        self.options = options
        self.recorder = recorder
        self.layout = Layout(options.gpus_per_server)
        self.schedule: CircuitSchedule | None = None
        self._counts: Counter[str] = Counter()
        self.open_groups: set[Any] = set()
        self.client: FabricClient | None = None
        if options.controller is not None:
            self.client = FabricClient(
                options.controller,
                recorder.rank,
                gpus_per_server=options.gpus_per_server,
                token=options.token,
                granted_late=self._granted_late,
                given_back=self._given_back,
            )
        self._lock = threading.Lock()
        self._iteration = recorder.iteration
        self._issued: dict[int, list[Configuration]] = {}
        self._last_issued: Configuration | None = None
        self._cycle = CycleFinder()
        # An ordered set, in the order of issue.
        self._not_begun: dict[Operation, None] = {}
        # Operations under way without a request, by channel and sequence.
        self._on_leased_circuits: dict[tuple[str, int], tuple[Operation, Watched | None]] = {}
        # Operations with an open request, in the order of issue.
        self._asked: dict[Operation, None] = {}
        self._answered = threading.Condition(self._lock)
        # Wait of a collective behind a message, where an earlier wait was in vain.
        self._patience: dict[tuple[Configuration, Configuration], float] = {}
        self._announced: Configuration | None = None
        # Number of operations that hold their circuits.
        self._under_way = 0
        self._issue_indices = itertools.count()
        # By the name of a group, how many groups had it.
        self._uses: Counter[str] = Counter()
        # The issue index of the last collective that has ended.
        self._passed = -1

    def close(self) -> None:
        """End the connection; RuntimeError while process groups use it."""
        if self.open_groups:
            raise RuntimeError(
                "railx: process groups of the last setting are still open; call"
                " destroy_process_group before configure"
            )
        self.disconnect()

    def disconnect(self) -> None:
        """End the connection; waiting operations raise an error."""
        if self.client is not None:
            self.client.close()

    def begin_iteration(self, i: int) -> None:
        """Operations issued from now on belong to iteration ``i``."""
        with self._lock:
            self._iteration = i
        self.recorder.begin_iteration(i)

    def recorded_schedule(self) -> CircuitSchedule:
        """The circuits of operations so far, per iteration, if these are recorded."""
        with self._lock:
            return CircuitSchedule(
                {iteration: tuple(operations) for iteration, operations in self._issued.items()}
            )

    @property
    def cycle(self) -> CycleFinder:
        """The detected cycle of this rank (mode provisioned without a schedule)."""
        return self._cycle

    @property
    def statistics(self) -> Statistics:
        """The counts since the last reset."""
        with self._lock:
            return Statistics(**self._counts)

    def reset_statistics(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._counts.clear()

    def next_use(self, name: str) -> int:
        """How often this rank has used a group's name before."""
        with self._lock:
            return self._uses[name]

    def used(self, name: str, number: int) -> None:
        """A group of this name is the members' use ``number`` (from 0) of it."""
        with self._lock:
            self._uses[name] = number + 1

    def issue(self, operation: Operation) -> None:
        """Register an operation; called in the order of issue."""
        with self._lock:
            operation.iteration, operation.issue_index = self._iteration, next(self._issue_indices)
            if operation.configuration is not None:
                if self.recorder.records or self.schedule is not None:
                    # Unbounded otherwise: a program may run for days.
                    self._issued.setdefault(self._iteration, []).append(operation.configuration)
                self._not_begun[operation] = None
                if self._announced not in (None, operation.configuration):
                    self._counts.update(mispredictions=1)
                self._announced = None
                if self._last_issued not in (None, operation.configuration):
                    self._counts.update(phase_changes=1)
                self._last_issued = operation.configuration
                if self.options.mode == "provisioned" and self.schedule is None:
                    self._cycle.add(operation.configuration)
        if self.recorder.records:
            operation.record = self.recorder.issue(
                operation.kind,
                operation.group,
                operation.bytes,
                operation.phase,
                channel=operation.channel,
                sequence=operation.sequence,
                iteration=operation.iteration,
            )

    def count(self, configuration: Configuration) -> None:
        """Count an operation without circuits, recorder or controller."""
        with self._lock:
            if self._last_issued is not configuration:
                self._counts["phase_changes"] += self._last_issued not in (None, configuration)
                self._last_issued = configuration

    def drop(self, operation: Operation) -> None:
        """Withdraw an operation that will not run."""
        with self._answered:
            self._not_begun.pop(operation, None)
            waits = operation in self._asked
            self._asked.pop(operation, None)
            self._answered.notify_all()
        if waits and self.client is not None and operation.asked is not None:
            with contextlib.suppress(FabricError):
                self.client.abandon(operation.asked)

    def try_hold(self, operation: Operation, work: Watched | None = None) -> bool:
        """Begin an operation at once, where it needs no message and no waiting.

        True where it needs no circuits, where the fabric is electrical, and where this
        rank still holds the circuits: the operation has then begun, and ``end`` must
        follow when this rank's part has ended (on the device too), from any thread.
        False: nothing has changed; call ``circuits``, which may wait, in a thread that
        may block.

        The operations of a channel begin in their order: call this only where every
        operation before it on the channel has begun (they need not have ended).
        ``work`` watches the end if a recall makes that necessary.
        """
        configuration = operation.configuration
        if configuration is None:
            return True
        many: list[Watched] = []
        with self._lock:
            if self.client is not None:
                if self._ahead_of(operation) is not None:
                    return False
                if not self.client.begin(operation.channel, operation.sequence, configuration):
                    return False
                self._on_leased_circuits[operation.channel, operation.sequence] = operation, work
                self._counts["held"] += 1
                if len(self._on_leased_circuits) % _UNSEEN == 0:
                    # The program may never wait for them.
                    many = self._unseen()
            self._not_begun.pop(operation, None)
            self._under_way += 1
        for item in many:
            item.have_watched()
        return True

    def end_matters(self, operation: Operation) -> bool:
        """Whether the end of an operation that ``try_hold`` began must be watched.

        It must for the trace, and where the end announces the next circuits. Otherwise
        no thread waits for it; after a recall of its lease the end is watched.
        """
        if self.recorder.records:
            return True
        if self.client is None or operation.configuration is None:
            return False
        if self.options.mode != "provisioned":
            return False
        with self._lock:
            if self._upcoming() in (None, operation.configuration):
                return False
            earlier = self._unseen()
        for item in earlier:
            item.have_watched()
        return True

    def watch_unseen(self) -> None:
        """Watch the ends of all operations under way."""
        with self._lock:
            unseen = self._unseen()
        for item in unseen:
            item.have_watched()

    def _unseen(self) -> list[Watched]:
        return [work for _, work in self._on_leased_circuits.values() if work is not None]

    def _given_back(self, open_: Collection[tuple[str, int]]) -> None:
        """On the client's thread: report the ends of operations of a lease."""
        with self._lock:
            works = [
                self._on_leased_circuits[key][1] for key in open_ if key in self._on_leased_circuits
            ]
        for work in works:
            if work is not None:
                work.have_watched()

    def end(self, operation: Operation) -> None:
        """This rank's part has ended; sends nothing while the group has circuits."""
        if operation.configuration is not None:
            self._end(operation)

    @contextlib.contextmanager
    def circuits(self, operation: Operation) -> Iterator[None]:
        """Hold the circuits of an operation, if it needs any; or FabricError."""
        if operation.asked is None:
            self._wait_behind_messages(operation)
            if self.try_hold(operation):
                try:
                    yield
                finally:
                    self.end(operation)
                return
            self._ask(operation)
        assert self.client is not None
        assert operation.asked is not None
        granted = False
        try:
            grant = self.client.granted(
                operation.asked, timeout_s=min(operation.timeout_s, self.client.timeout_s)
            )
            granted = True
            with self._answered:
                self._asked.pop(operation, None)
                self._under_way += 1
                self._answered.notify_all()
            self._account(operation, grant)
            yield
        finally:
            if granted:
                self._end(operation)
            else:
                with self._answered:
                    self._asked.pop(operation, None)
                    self._answered.notify_all()

    def ask_ahead(self, operation: Operation) -> None:
        """Request circuits after ``try_hold`` failed, in the thread that issues.

        So requests reach the controller in program order, independent of the thread
        that waits for the grant. Call it where every operation before it on the channel
        has begun. Does nothing where the operation waits behind a message (see
        ``circuits``) or where the controller is gone.
        """
        if operation.configuration is None or self.client is None:
            return
        with self._lock:
            behind = self._ahead_of(operation)
        if behind is None:
            with contextlib.suppress(FabricError):
                # The thread that waits for the circuits gets the error.
                self._ask(operation)

    def _ask(self, operation: Operation) -> None:
        assert self.client is not None
        assert operation.configuration is not None
        with self._lock:
            self._not_begun.pop(operation, None)
            self._asked[operation] = None
        try:
            operation.asked = self.client.ask(
                operation.channel, operation.sequence, operation.configuration
            )
        except FabricError:
            with self._lock:
                self._asked.pop(operation, None)
            raise

    def _ahead_of(self, operation: Operation) -> Operation | None:
        """The message that a collective has to wait behind; the caller holds the lock.

        A message that this rank sent before, whose receiver has not arrived, and which
        needs the same ports. If the collective went first, the message would interrupt
        the following collectives and cause switches that program order does not need.
        Messages do not wait.
        """
        configuration = operation.configuration
        if configuration is None or configuration.kind != "ring":
            return None
        for other in (*self._asked, *self._not_begun):
            if (
                other.kind == "send"
                and other.issue_index < operation.issue_index
                and other.configuration is not None
                and not (other.asked is not None and other.asked.answered)
                and self.layout.conflict(other.configuration, configuration)
                and self._patience.get((other.configuration, configuration), _PATIENCE_S) > 0
            ):
                return other
        return None

    def _wait_behind_messages(self, operation: Operation) -> None:
        """Let earlier messages go first.

        The receiver may arrive only after the collective. So the wait is limited, and
        halved after each wait in vain.
        """
        if operation.configuration is None:
            return
        with self._answered:
            while (other := self._ahead_of(operation)) is not None:
                assert other.configuration is not None
                both = other.configuration, operation.configuration
                limit_s = self._patience.get(both, _PATIENCE_S)
                if self._answered.wait_for(functools.partial(self._is_granted, other), limit_s):
                    self._patience.pop(both, None)
                else:
                    self._patience[both] = limit_s / 2 if limit_s > _IMPATIENT_S else 0.0
                    return

    def _is_granted(self, operation: Operation) -> bool:
        return operation not in self._asked and operation not in self._not_begun

    def _granted_late(self, channel: str, sequence: int, grant: Grant) -> None:
        """On the client's thread: an operation of a recalled lease had to wait."""
        with self._lock:
            operation, _ = self._on_leased_circuits.pop((channel, sequence), (None, None))
            if operation is None:
                return
            self._counts["held"] -= 1
        self._account(operation, grant)

    def _account(self, operation: Operation, grant: Grant) -> None:
        with self._lock:
            self._counts.update(
                requests=1,
                reconfigurations=int(grant.reconfigured > 0),
                stall_ns=grant.stall_ns,
                wait_ns=grant.wait_ns,
            )
        if grant.stall_ns > 0:
            begin_ns = grant.granted_ns - grant.stall_ns
            self.recorder.add(
                RECONFIGURATION,
                operation.group,
                0,
                begin_ns,
                grant.granted_ns,
                0,
                operation.phase,
                iteration=operation.iteration,
            )

    def _end(self, operation: Operation) -> None:
        # The announcement is decided and sent under the lock, so that it precedes the
        # next request.
        with self._lock:
            self._under_way -= 1
            self._on_leased_circuits.pop((operation.channel, operation.sequence), None)
            if operation.kind not in ("send", "recv"):
                self._passed = max(self._passed, operation.issue_index)
            if self.client is None:
                return
            with contextlib.suppress(FabricError):
                # The next request reports a lost controller; this operation has ended.
                following = self._following(operation)
                # The circuits of an issued operation are no prediction.
                self._announced = None if self._not_begun else following
                self.client.release(operation.channel, operation.sequence, prepare=following)

    def _following(self, ended: Operation) -> Configuration | None:
        """The circuits to announce after an operation: the next, if different."""
        if self.options.mode != "provisioned" or self._under_way > 0:
            return None
        if any(asked.issue_index > self._passed for asked in self._asked):
            # Open requests come first, except receives that later collectives have
            # overtaken.
            return None
        following = self._upcoming()
        return following if following != ended.configuration else None

    def _upcoming(self) -> Configuration | None:
        """The circuits of the next operation to begin; None where unknown."""
        if self._not_begun:
            return next(iter(self._not_begun)).configuration
        if self.schedule is None:
            return self._cycle.following()
        return self.schedule.following(self._iteration, len(self._issued.get(self._iteration, ())))
