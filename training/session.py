"""One rank's standing with the fabric under one setting.

Its connection, its counts, and what it needed when.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

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
from training.trace import RECONFIGURATION, Recorder

__all__ = ["BackendOptions", "Operation", "Session", "Statistics"]


@dataclass(frozen=True)
class BackendOptions:
    """What the process groups created from now on stand on.

    ``controller`` is "host:port", None in electrical mode; ``token`` what it asks for,
    if anything.
    """

    inner: Literal["gloo", "nccl"]
    controller: str | None
    mode: Mode
    gpus_per_server: int
    token: str | None = None

    def __post_init__(self) -> None:
        if (self.mode == "electrical") != (self.controller is None):
            message = f"controller: got {self.controller} in mode {self.mode}"
            raise ValueError(
                f"{message}; allowed: none in mode electrical, host:port in the other modes"
            )


@dataclass(frozen=True)
class Statistics:
    """What this rank's operations met since the last reset.

    As the controller accounts it:

    * ``requests``: operations that asked.
    * ``reconfigurations``: those for which circuits were switched, ahead or while they
      waited.
    * ``stall_ns``: waiting for light paths.
    * ``wait_ns``: waiting for other members and for ports in use.
    * ``mispredictions``: operations that were not what had been announced.
    """

    requests: int = 0
    reconfigurations: int = 0
    stall_ns: int = 0
    wait_ns: int = 0
    mispredictions: int = 0


@dataclass(eq=False)
class Operation:
    """One collective or message of this rank.

    ``channel`` and ``sequence`` name it, alike on all its members; ``group`` holds
    their global ranks; ``ready`` is the CUDA event that has passed when the device has
    come to it.
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

    @property
    def phase(self) -> str:
        """The name of the circuits that it needs."""
        return SCALE_UP if self.configuration is None else self.configuration.name


class Session:
    """One rank's connection, counts and schedule under one fabric setting."""

    def __init__(self, options: BackendOptions, recorder: Recorder) -> None:
        self.options = options
        self.recorder = recorder
        self.layout = Layout(options.gpus_per_server)
        self.schedule: CircuitSchedule | None = None
        self.statistics = Statistics()
        self.open_groups: set[object] = set()
        self.client: FabricClient | None = None
        if options.controller is not None:
            self.client = FabricClient(
                options.controller, recorder.rank, gpus_per_server=options.gpus_per_server
            )
        self._lock = threading.Lock()
        self._iteration = recorder.iteration
        self._issued: dict[int, list[Configuration]] = {}
        self._not_asked: list[Operation] = []
        self._under_way = 0

    def close(self) -> None:
        """End the connection; RuntimeError while process groups still stand on it."""
        if self.open_groups:
            raise RuntimeError(
                "railx: process groups of the last setting are still open; call"
                " destroy_process_group before configure"
            )
        self.disconnect()

    def disconnect(self) -> None:
        """End the connection whatever still stands on it.

        Waiting operations end in an error.
        """
        if self.client is not None:
            self.client.close()

    def begin_iteration(self, i: int) -> None:
        """Operations issued from now on belong to iteration ``i``."""
        with self._lock:
            self._iteration = i
        self.recorder.begin_iteration(i)

    def recorded_schedule(self) -> CircuitSchedule:
        """What the operations issued so far needed, per iteration."""
        with self._lock:
            return CircuitSchedule(
                {iteration: tuple(operations) for iteration, operations in self._issued.items()}
            )

    def reset_statistics(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.statistics = Statistics()

    def issue(self, operation: Operation) -> None:
        """Note an operation in the order of issue."""
        with self._lock:
            operation.iteration = self._iteration
            if operation.configuration is not None:
                self._issued.setdefault(self._iteration, []).append(operation.configuration)
                self._not_asked.append(operation)

    def drop(self, operation: Operation) -> None:
        """An operation that will not be carried out after all."""
        with self._lock, contextlib.suppress(ValueError):
            self._not_asked.remove(operation)

    @contextlib.contextmanager
    def circuits(self, operation: Operation) -> Iterator[None]:
        """Hold the circuits of an operation, if it needs any.

        Raises FabricError where they cannot be had.
        """
        if operation.configuration is None:
            yield
            return
        with self._lock:
            self._not_asked.remove(operation)
            self._under_way += 1
        granted = False
        try:
            if self.client is not None:
                grant = self.client.acquire(
                    operation.channel,
                    operation.sequence,
                    operation.configuration,
                    timeout_s=min(operation.timeout_s, self.client.timeout_s),
                )
                granted = True
                self._account(operation, grant)
            yield
        finally:
            self._end(operation, granted)

    def _account(self, operation: Operation, grant: Grant) -> None:
        with self._lock:
            now = self.statistics
            self.statistics = replace(
                now,
                requests=now.requests + 1,
                reconfigurations=now.reconfigurations + int(grant.reconfigured > 0),
                stall_ns=now.stall_ns + grant.stall_ns,
                wait_ns=now.wait_ns + grant.wait_ns,
                mispredictions=now.mispredictions + int(grant.mispredicted),
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

    def _end(self, operation: Operation, granted: bool) -> None:
        # The announcement is decided and sent under the lock, so that it cannot
        # overtake the question that follows it.
        with self._lock:
            self._under_way -= 1
            if self.client is None or not granted:
                return
            with contextlib.suppress(FabricError):
                # A controller that is gone is reported to whoever asks next; the
                # operation itself has ended.
                self.client.release(
                    operation.channel, operation.sequence, prepare=self._following(operation)
                )

    def _following(self, ended: Operation) -> Configuration | None:
        if self.options.mode != "provisioned" or self.schedule is None or self._under_way > 0:
            return None
        if self._not_asked:
            following = self._not_asked[0].configuration
        else:
            following = self.schedule.following(
                self._iteration, len(self._issued.get(self._iteration, ()))
            )
        return following if following != ended.configuration else None
