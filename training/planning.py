"""Planning of the next batch while the ranks train the current one.

A planner process beside rank 0 (``railx.planning.replan``) plans the batches of a plan
again, from the inputs stored in the plan. Rank 0 requests a batch one step ahead and
broadcasts it. Notable:

* the trained batch is the answer of the process, which must equal the batch in the
  file: the same groups with the same sequences;
* the waiting time of a rank begins after a barrier, so that it measures planning alone;
* where the process ends or refuses, every rank raises the same error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from railx.fabric.launch import stop
from railx.places import CODE
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import Batch, Plan
from railx.planning.replan import Answer, check_inputs
from railx.settings import SettingsError, to_dict
from training.settings import RunSettings

#: Time limit for the end of a planner process.
_STOP_S = 10.0
#: Keys of a batch that describe the solver and its bounds, not the training. They may
#: differ between machines in the last bits.
_SOLVER_KEYS = ("solver", "lower_bound_ms", "solved_by", "effort")


class PlannerFailed(RuntimeError):
    """The planner process has ended; the message names the process and the batch."""


@dataclass(frozen=True)
class Planned:
    """A batch, the time of its planning, and the wait of this rank for it."""

    batch: Batch
    planning_ms: float
    waited_ms: float


def check_planning(settings: RunSettings, plan: Plan) -> None:
    """Refuse planning during training without inputs of the plan; SettingsError."""
    if settings.training.planning == "file":
        return
    try:
        check_inputs(plan)
    except PlanError as error:
        raise SettingsError(
            "training.planning", f"got while_training, but {error}; allowed here: file"
        ) from None


class Planning:
    """A plan whose batches a process on rank 0 plans one by one.

    Rank 0 requests a batch ahead (:meth:`ask`), all ranks take it (:meth:`take`).
    """

    def __init__(
        self, plan: Plan, process: subprocess.Popen[bytes] | None, timeout_s: float
    ) -> None:
        self.plan, self.process, self.timeout_s = plan, process, timeout_s
        self._asked: int | None = None

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of this rank's planner processes."""
        return () if self.process is None else (self.process.pid,)

    def ask(self, iteration: int) -> None:
        """Start planning the batch of a step on rank 0; a no-op on other ranks."""
        index = iteration % len(self.plan.batches)
        if self.process is None or self._asked == index:
            return
        assert self.process.stdin is not None
        self._asked = index
        # ``take`` reports a process that has ended.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"%d\n" % index)
            self.process.stdin.flush()

    def take(self, iteration: int, following: int | None, control: dist.ProcessGroup) -> Planned:
        """The batch of a step on every rank, or its error; asks the ``following``."""
        self.ask(iteration)
        dist.barrier(control)
        begin = time.perf_counter()
        message: list[Any] = [None]
        if self.process is not None:
            try:
                message = [self._answer(self.process)]
            except (PlannerFailed, SettingsError) as error:
                message = [error]
            else:
                if following is not None:
                    self.ask(following)
        dist.broadcast_object_list(message, src=0, group=control)
        if isinstance(message[0], Exception):
            raise message[0]
        answer: Answer = message[0]
        assert answer.batch is not None
        return Planned(answer.batch, answer.planning_ms, (time.perf_counter() - begin) * 1e3)

    def _answer(self, process: subprocess.Popen[bytes]) -> Answer:
        index, self._asked = self._asked, None
        assert index is not None
        assert process.stdout is not None
        batch = self.plan.batches[index]
        # A shorter limit than that of the other ranks, so that the reason is reported.
        ready, _, _ = select.select([process.stdout], [], [], 0.8 * self.timeout_s)
        if not ready:
            raise PlannerFailed(
                f"the planner process takes longer for batch {batch.iteration} than"
                f" training.timeout_s, {self.timeout_s:g}, allows; allowed: more, or"
                " training.planning=file"
            )
        try:
            answer = Answer(*pickle.load(process.stdout))
        except (EOFError, pickle.UnpicklingError):
            raise PlannerFailed(_gone(process, batch)) from None
        if answer.batch is None:
            raise SettingsError(
                "training.planning", f"got while_training, but {answer.error}; allowed here: file"
            )
        if _trained(answer.batch) != _trained(batch):
            raise PlannerFailed(
                f"batch {batch.iteration}, planned while training, is not that of the plan;"
                f" allowed: a planner that plans a batch always and alone alike, not"
                f" {self.plan.planner}"
            )
        return answer


@contextlib.contextmanager
def planning_ahead(settings: RunSettings, plan: Plan, rank: int) -> Iterator[Planning | None]:
    """A planner process on rank 0 for a ``with`` block; None with planning "file"."""
    if settings.training.planning == "file":
        yield None
        return
    process = _start(settings.plan) if rank == 0 else None
    try:
        yield Planning(plan, process, settings.training.timeout_s)
    finally:
        if process is not None:
            stop(process)


def _start(path: str) -> subprocess.Popen[bytes]:
    search = os.pathsep.join([str(CODE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "railx.planning.replan", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search},
    )


def _gone(process: subprocess.Popen[bytes], batch: Batch) -> str:
    try:
        code = process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        code = 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"the planner process (pid {process.pid}) {how} while it planned batch {batch.iteration}"


def _trained(batch: Batch) -> Any:
    """The parts of a batch that determine the training."""
    return _without(to_dict(batch))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without(item)
            for key, item in value.items()
            if key not in _SOLVER_KEYS and not key.startswith("predicted")
        }
    if isinstance(value, list | tuple):
        return [_without(item) for item in value]
    return value
