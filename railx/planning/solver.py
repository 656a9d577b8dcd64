"""CP-SAT on the programme of a micro-batch.

It was the best of three solvers on these programmes (docs/benchmarks.md). It counts in
integers, so times are rounded to microseconds. One thread, so that the same programme,
seed and work limit give the same solution on any machine; a time limit does not.

The solver lives in processes of its own (:class:`SolverPool`): several programmes can
be solved side by side, and its library cannot be loaded beside HiGHS's.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from railx.planning.programme import Programme, homogeneous_fills

__all__ = ["Ending", "Solved", "SolverLimits", "SolverPool", "serve", "solve"]

#: What ended a programme: its optimum was proven, it has no solution, or a limit.
Ending = Literal["optimal", "infeasible", "work_limit", "time_limit"]

#: Integer units of time in a millisecond.
_PER_MS = 1000
#: How often the time limit is looked at.
_LOOK_S = 0.05
#: What a process of a pool runs.
_CHILD = (sys.executable, "-c", f"from {__name__} import serve; serve()")


@dataclass(frozen=True)
class SolverLimits:
    """When the solver ends a programme.

    ``work`` is CP-SAT's deterministic time, ``time_s`` processor seconds; None is no
    limit. ``seed`` is what the solver breaks ties by.
    """

    work: float | None
    time_s: float | None
    seed: int = 0


@dataclass(frozen=True)
class Solved:
    """The solver's answer to one programme.

    Counts [q, p], None where none were found, a bound on the programme's optimum in ms,
    what ended it, and the work done in CP-SAT's deterministic time.
    """

    counts: npt.NDArray[np.int64] | None
    bound_ms: float
    ended_by: Ending
    work: float


class SolverPool:
    """Processes that solve programmes, started when there is something to solve.

    Answers do not depend on how many there are. Use it in a ``with`` statement, which
    ends them.
    """

    def __init__(self, processes: int) -> None:
        self._threads = ThreadPoolExecutor(processes)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SolverPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._running:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def submit(self, programme: Programme, limits: SolverLimits) -> Future[Solved]:
        """The programme's answer, when it is there."""
        return self._threads.submit(self._ask, programme, limits)

    def solve(self, programme: Programme, limits: SolverLimits) -> Solved:
        """The programme's answer."""
        return self.submit(programme, limits).result()

    def _ask(self, programme: Programme, limits: SolverLimits) -> Solved:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = subprocess.Popen(_CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((programme, limits), process.stdin)
            process.stdin.flush()
            answer: Solved = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError(f"the solver's process ended with code {process.wait()}") from error
        self._idle.put(process)
        return answer


def solve(programme: Programme, limits: SolverLimits) -> Solved:
    """Solve in this process, from the best homogeneous fill on.

    An answer is never worse than that fill, which the paper hands to its solver.
    """
    from ortools.sat.python import cp_model

    fills = homogeneous_fills(programme)
    start = min(fills, key=programme.makespan_ms) if fills else None
    model, counts, used, makespan = _model(programme)
    if start is not None:
        _hint(model, programme, start, counts, used, makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed % 2**31
    if limits.work is not None:
        solver.parameters.max_deterministic_time = limits.work
    with _stopped_after(limits.time_s, solver.stop_search) as stopped:
        status = solver.solve(model)
    endings: dict[Any, Ending] = {
        cp_model.OPTIMAL: "optimal",
        cp_model.INFEASIBLE: "infeasible",
    }
    ended = endings.get(status, "time_limit" if stopped.is_set() else "work_limit")
    found = start
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        own = np.zeros_like(programme.times_ms, dtype=np.int64)
        own[programme.allowed] = [solver.value(variable) for variable in counts]
        if start is None or programme.makespan_ms(own) < programme.makespan_ms(start):
            found = own
    bound = solver.best_objective_bound / _PER_MS
    return Solved(found, bound, ended, float(solver.response_proto.deterministic_time))


def _model(programme: Programme) -> tuple[Any, list[Any], list[Any], Any]:
    """The programme for CP-SAT.

    With its variables: A in the order of ``allowed``, m, C.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    times = np.rint(programme.times_ms * _PER_MS).astype(np.int64)
    constant = round(programme.constant_ms * _PER_MS)
    longest = int((times * programme.sizes[:, None]).sum(axis=0).max()) + constant
    grid = np.full(programme.allowed.shape, None, dtype=object)
    for bucket, group in zip(*np.nonzero(programme.allowed), strict=True):
        grid[bucket, group] = model.new_int_var(0, int(programme.sizes[bucket]), "")
    used = [model.new_bool_var("") for _ in programme.degrees]
    makespan = model.new_int_var(0, longest, "")
    for bucket, size in enumerate(programme.sizes.tolist()):
        model.add(cp_model.LinearExpr.sum(_present(grid[bucket])) == size)
    for group, is_used in enumerate(used):
        own = _present(grid[:, group])
        inside = programme.allowed[:, group]
        total = cp_model.LinearExpr.sum(own)
        model.add(_weighted(own, programme.bounds[inside]) <= int(programme.caps[group]))
        model.add(_weighted(own, times[inside, group]) + constant <= makespan)
        model.add(total <= programme.sequences * is_used)
        model.add(total >= is_used)
    taken = _weighted(used, programme.degrees)
    if programme.use == "all":
        model.add(taken == programme.devices)
    else:
        model.add(taken <= programme.devices)
    model.minimize(makespan)
    return model, _present(grid[programme.allowed]), used, makespan


def _present(variables: npt.NDArray[Any]) -> list[Any]:
    return [variable for variable in variables if variable is not None]


def _weighted(variables: Sequence[Any], weights: npt.NDArray[np.int64]) -> Any:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum(list(variables), weights.tolist())


def _hint(
    model: Any,
    programme: Programme,
    start: npt.NDArray[np.int64],
    counts: list[Any],
    used: list[Any],
    makespan: Any,
) -> None:
    """Offers ``start`` as a first solution."""
    for variable, value in zip(counts, start[programme.allowed].tolist(), strict=True):
        model.add_hint(variable, value)
    for variable, value in zip(used, start.any(axis=0).astype(int).tolist(), strict=True):
        model.add_hint(variable, bool(value))
    times = np.rint(programme.times_ms * _PER_MS).astype(np.int64)
    busy = int((times * start).sum(axis=0).max()) + round(programme.constant_ms * _PER_MS)
    model.add_hint(makespan, busy)


@contextmanager
def _stopped_after(seconds: float | None, stop: Any) -> Iterator[threading.Event]:
    """Calls ``stop`` once this process has worked so long.

    The event tells that it has.
    """
    over, stopped = threading.Event(), threading.Event()
    if seconds is None:
        yield stopped
        return
    end = time.process_time() + seconds

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if time.process_time() >= end:
                stopped.set()
                stop()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield stopped
    finally:
        over.set()
        watcher.join()


def serve() -> None:
    """Solve the pickled programmes that arrive until the parent closes."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            programme, limits = pickle.load(source)
        except EOFError:
            return
        pickle.dump(solve(programme, limits), target)
        target.flush()
