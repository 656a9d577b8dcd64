"""SCIP on the programme of a micro-batch, the solver that the paper uses too.

Of three solvers it proved the strongest bounds on these programmes, at about the best
solutions (docs/benchmarks.md). One thread; work is counted in simplex iterations, so
that the same programme, seed and limit give the same solution on any machine. A time
limit does not.

:class:`SolverPool` solves several programmes side by side, in processes that end with
it.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from railx.planning.sequence.programme import Programme, homogeneous_fills

__all__ = ["Ending", "Solved", "SolverLimits", "SolverPool", "serve", "solve"]

#: End of a programme: proven optimum, infeasible, or a limit.
Ending = Literal["optimal", "infeasible", "work_limit", "time_limit"]

#: The program of a process of a pool.
_CHILD = (sys.executable, "-c", f"from {__name__} import serve; serve()")


@dataclass(frozen=True)
class SolverLimits:
    """Limits of the solver on a programme.

    ``work``: simplex iterations, ``time_s``: processor seconds; None is no limit.
    ``seed`` breaks ties.
    """

    work: int | None
    time_s: float | None
    seed: int = 0


@dataclass(frozen=True)
class Solved:
    """The solver's answer to a programme.

    Counts [q, p] or None, a bound on the optimum in ms, the end of the search, and the
    simplex iterations.
    """

    counts: npt.NDArray[np.int64] | None
    bound_ms: float
    ended_by: Ending
    work: int


class SolverPool:
    """Solves programmes, in this process or in child processes.

    Answers do not depend on their number. Use it in a ``with`` statement, which ends
    them.
    """

    def __init__(self, processes: int) -> None:
        self._threads = ThreadPoolExecutor(processes) if processes > 1 else None
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SolverPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._running:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def solve(
        self, programmes: Iterable[Programme], limits: SolverLimits
    ) -> Generator[Solved, None, None]:
        """Answers in order; where possible, those not consumed are never begun."""
        if self._threads is None:
            for programme in programmes:
                yield solve(programme, limits)
            return
        asked = [self._threads.submit(self._ask, programme, limits) for programme in programmes]
        try:
            for answer in asked:
                yield answer.result()
        finally:
            for answer in asked:
                answer.cancel()

    def _ask(self, programme: Programme, limits: SolverLimits) -> Solved:
        """The answer of an idle process, or of a new one."""
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


def solve(programme: Programme, limits: SolverLimits) -> Solved:
    """Solve one programme, from homogeneous fills on as the paper does."""
    model, counts, used, makespan = _model(programme)
    model.setParam("randomization/randomseedshift", limits.seed % 2**31)
    if limits.work is not None:
        _interrupt_after(model, limits.work)
    if limits.time_s is not None:
        model.setParam("timing/clocktype", 1)  # processor time
        model.setParam("limits/time", limits.time_s)
    for fill in homogeneous_fills(programme):
        start = model.createSol()
        for variable, value in zip(counts, fill[programme.allowed].tolist(), strict=True):
            model.setSolVal(start, variable, value)
        for variable, value in zip(used, np.any(fill, axis=0).astype(int).tolist(), strict=True):
            model.setSolVal(start, variable, float(value))
        model.setSolVal(start, makespan, programme.makespan_ms(fill))
        model.addSol(start)
    model.optimize()
    endings: dict[str, Ending] = {
        "optimal": "optimal",
        "infeasible": "infeasible",
        "userinterrupt": "work_limit",
        "timelimit": "time_limit",
    }
    solution = None
    if model.getNSols() > 0:
        best = model.getBestSol()
        solution = np.zeros_like(programme.times_ms, dtype=np.int64)
        solution[programme.allowed] = [round(model.getSolVal(best, count)) for count in counts]
        # The solver tolerates a millionth of a row; memory does not.
        solution = solution if programme.holds(solution) else None
    ended = endings[model.getStatus()]
    return Solved(solution, float(model.getDualbound()), ended, int(model.getNLPIterations()))


def _model(programme: Programme) -> tuple[Any, list[Any], list[Any], Any]:
    """The programme for SCIP, with its variables: A in the order of
    ``allowed``, m, C.
    """
    # The solver is large: planning alone loads it.
    from pyscipopt import Model, quicksum

    model = Model()
    model.hideOutput()
    grid = np.full(programme.allowed.shape, None, dtype=object)
    for bucket, group in zip(*np.nonzero(programme.allowed), strict=True):
        grid[bucket, group] = model.addVar(vtype="I", lb=0, ub=int(programme.sizes[bucket]))
    used = [model.addVar(vtype="B") for _ in programme.degrees]
    makespan = model.addVar(vtype="C", lb=0)
    for bucket, size in enumerate(programme.sizes.tolist()):
        model.addCons(quicksum(_present(grid[bucket])) == size)
    for group, is_used in enumerate(used):
        inside = programme.allowed[:, group]
        group_counts = _present(grid[:, group])
        tokens = _weighted(group_counts, programme.bounds[inside])
        times = _weighted(group_counts, programme.times_ms[inside, group])
        model.addCons(tokens <= float(programme.caps[group]))
        model.addCons(times + programme.constant_ms <= makespan)
        model.addCons(quicksum(group_counts) <= programme.sequences * is_used)
        model.addCons(quicksum(group_counts) >= is_used)
    taken = _weighted(used, programme.degrees)
    if programme.use == "all":
        model.addCons(taken == programme.devices)
    else:
        model.addCons(taken <= programme.devices)
    model.setObjective(makespan)
    return model, _present(grid[programme.allowed]), used, makespan


def _present(variables: npt.NDArray[Any]) -> list[Any]:
    return [variable for variable in variables if variable is not None]


def _weighted(variables: Sequence[Any], weights: npt.NDArray[Any]) -> Any:
    from pyscipopt import quicksum

    return quicksum(w * v for v, w in zip(variables, weights.tolist(), strict=True))


def _interrupt_after(model: Any, iterations: int) -> None:
    """Ends the search where it has done so many simplex iterations.

    They are counted after each relaxation, and between them whenever a cut joins it.
    """
    from pyscipopt import SCIP_EVENTTYPE, Eventhdlr

    looks = SCIP_EVENTTYPE.FIRSTLPSOLVED | SCIP_EVENTTYPE.LPSOLVED | SCIP_EVENTTYPE.ROWADDEDLP

    class WorkLimit(Eventhdlr):  # type: ignore[misc]
        def eventinit(self) -> None:
            self.model.catchEvent(looks, self)

        def eventexit(self) -> None:
            self.model.dropEvent(looks, self)

        def eventexec(self, event: Any) -> None:
            if self.model.getNLPIterations() >= iterations:
                self.model.interruptSolve()

    model.includeEventhdlr(WorkLimit(), "work_limit", "ends the search after so much work")
