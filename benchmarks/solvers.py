"""Three solvers on the same programmes of FlexSP's planner.

    python benchmarks/solvers.py [--seconds 10] [--programmes 20] [SOLVER...]

Prints tables. In November 2026, of 20 programmes with 10 s each: the best solution
above the best of the three in the mean (most), programmes with the best one, the bound
below the strongest, and programmes closed to 0.1 %:

    SCIP 10.0 (pyscipopt 6.3.0)  1.4 % (13.4 %)  15  0.1 %  4
    CP-SAT (ortools 9.15)        1.2 % (11.5 %)  14  7.0 %  3
    HiGHS 1.15.1                 2.7 % (32.1 %)  13  6.7 %  4

Each solver gets the same programmes, starts
and processor seconds, one thread, in a process of its own (their libraries clash). The
project depends on one of them alone: to repeat the comparison install the others beside
it (`pip install --target FOLDER highspy ortools`, with FOLDER in PYTHONPATH).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batches import DEVICES, cases
from shared import describe, record

from railx.planning.sequence.blaster import bucket_lengths, cut_batch, fewest_micro_batches
from railx.planning.sequence.programme import (
    Programme,
    build_programme,
    homogeneous_fills,
    micro_batch_bound_ms,
)

#: Incumbent and bound in ms (None: no incumbent), and processor seconds.
Result = tuple[float | None, float, float]


def programmes(number: int) -> list[tuple[str, Programme, float]]:
    """Seeded choice of micro-batches of the first draws, each with a lower bound.

    Batches are cut into as few micro-batches as memory allows.
    """
    found = []
    for case in cases(draws=1):
        lengths, cap = case.batch.lengths, case.cost.tokens_per_device * DEVICES
        count = fewest_micro_batches(lengths, cap, "sorted")
        for index, run in enumerate(cut_batch(lengths, count, "sorted")):
            own = lengths[run]
            buckets = bucket_lengths(own, 16, (int(own.sum()) + cap) // 2, "least_error")
            degrees = case.cost.degrees
            found.append(
                (
                    f"{case.name}/{index}",
                    build_programme(own, buckets, DEVICES, degrees, case.cost, "at_most"),
                    micro_batch_bound_ms(own, DEVICES, degrees, case.cost),
                )
            )
    chosen = np.random.default_rng(1).choice(len(found), min(number, len(found)), replace=False)
    return [found[index] for index in sorted(chosen)]


def highs(programme: Programme, start: Any, seconds: float) -> tuple[float | None, float]:
    import highspy

    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    _, group, makespan = _columns(programme)
    columns = makespan + 1
    upper = np.full(columns, np.inf)
    upper[group] = 1
    model.addVars(columns, np.zeros(columns), upper)
    model.changeColCost(makespan, 1.0)
    for column in range(makespan):
        model.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    for lower, columns_, values, above in _rows(programme):
        model.addRow(lower, above, len(columns_), np.array(columns_), np.array(values, float))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = _values(programme, start)
        model.setSolution(solution)
    model.HandleUserInterrupt = True
    with _stopped(seconds, model.cancelSolve):
        model.run()
    info = model.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return (info.objective_function_value if found else None), info.mip_dual_bound


def scip(programme: Programme, start: Any, seconds: float) -> tuple[float | None, float]:
    from pyscipopt import Model, quicksum

    model = Model()
    model.hideOutput()
    model.setParam("timing/clocktype", 1)  # processor time
    model.setParam("limits/time", seconds)
    _, _, makespan = _columns(programme)
    group_first = makespan - len(programme.degrees)
    names = [
        model.addVar(vtype="C" if c == makespan else "B" if c >= group_first else "I", lb=0)
        for c in range(makespan + 1)
    ]
    model.setObjective(names[makespan])
    for lower, columns, values, above in _rows(programme):
        total = quicksum(v * names[c] for c, v in zip(columns, values, strict=True))
        if lower == above:
            model.addCons(total == lower)
        elif above == np.inf:
            model.addCons(total >= lower)
        else:
            model.addCons(total <= above)
    if start is not None:
        solution = model.createSol()
        for name, value in zip(names, _values(programme, start), strict=True):
            model.setSolVal(solution, name, value)
        model.addSol(solution)
    model.optimize()
    found = model.getNSols() > 0
    return (model.getObjVal() if found else None), model.getDualbound()


def cp_sat(programme: Programme, start: Any, seconds: float) -> tuple[float | None, float]:
    """Times are rounded up to microseconds: it counts in integers."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    _, group, makespan = _columns(programme)
    most = int(1000 * (programme.times_ms * programme.sizes[:, None]).sum(axis=0).max()) + 10**7
    names = [
        model.new_int_var(
            0, most if c == makespan else 1 if c in group else programme.sequences, ""
        )
        for c in range(makespan + 1)
    ]
    for lower, columns, values, above in _rows(programme):
        timed = makespan in columns
        scale = 1000 if timed else 1
        whole = [
            -1 if c == makespan else math.ceil(v * scale)
            for c, v in zip(columns, values, strict=True)
        ]
        total = sum(v * names[c] for c, v in zip(columns, whole, strict=True))
        if lower == above:
            model.add(total == int(lower))
        elif above == np.inf:
            model.add(total >= int(lower))
        else:
            model.add(total <= math.floor(above * scale))
    model.minimize(names[makespan])
    if start is not None:
        values = _values(programme, start)
        values[makespan] = math.ceil(values[makespan] * 1000) + programme.sequences
        for name, value in zip(names, values, strict=True):
            model.add_hint(name, int(value))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    with _stopped(seconds, solver.stop_search):
        status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return (solver.objective_value / 1000 if found else None), solver.best_objective_bound / 1000


@contextmanager
def _stopped(seconds: float, stop: Callable[[], object]) -> Iterator[None]:
    """Calls ``stop`` when the work inside has taken so many processor seconds."""
    end, over = time.process_time() + seconds, threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if time.process_time() >= end:
                stop()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


SOLVERS: dict[str, tuple[str, str, Callable[..., tuple[float | None, float]]]] = {
    "highs": ("HiGHS", "highspy", highs),
    "scip": ("SCIP", "pyscipopt", scip),
    "cp_sat": ("CP-SAT", "ortools", cp_sat),
}


def _columns(programme: Programme) -> tuple[Any, range, int]:
    """Columns of the counts (-1: fixed to 0), of the groups and of the makespan."""
    count = np.full(programme.allowed.shape, -1)
    count[programme.allowed] = np.arange(programme.allowed.sum())
    first = int(programme.allowed.sum())
    return count, range(first, first + len(programme.degrees)), first + len(programme.degrees)


def _rows(programme: Programme) -> list[tuple[float, list[int], list[float], float]]:
    count, group, makespan = _columns(programme)
    rows: list[tuple[float, list[int], list[float], float]] = []
    for bucket, size in enumerate(programme.sizes.tolist()):
        own = [int(c) for c in count[bucket] if c >= 0]
        rows.append((size, own, [1.0] * len(own), size))
    for index in range(len(programme.degrees)):
        inside = np.flatnonzero(count[:, index] >= 0)
        own = count[inside, index].tolist()
        ones = [1.0] * len(own)
        tokens = programme.bounds[inside].astype(float).tolist()
        times = programme.times_ms[inside, index].tolist()
        rows += [
            (-np.inf, own, tokens, float(programme.caps[index])),
            (-np.inf, [*own, makespan], [*times, -1.0], -programme.constant_ms),
            (-np.inf, [*own, group[index]], [*ones, -float(programme.sequences)], 0.0),
            (0.0, [*own, group[index]], [*ones, -1.0], np.inf),
        ]
    least = float(programme.devices) if programme.use == "all" else -np.inf
    rows.append((least, list(group), programme.degrees.astype(float).tolist(), programme.devices))
    return rows


def _values(programme: Programme, counts: Any) -> list[float]:
    return [
        *counts[programme.allowed].astype(float).tolist(),
        *counts.any(axis=0).astype(float).tolist(),
        programme.makespan_ms(counts) + 1e-6,
    ]


def measure(name: str, number: int, seconds: float) -> Iterator[Result]:
    """The programmes with one solver; the first call of a process is not counted."""
    solve = SOLVERS[name][2]
    for index, (_, programme, _) in enumerate(programmes(number)):
        start = _best_fill(programme)
        if index == 0:
            solve(programme, start, 0.1)
        begin = time.process_time()
        value, proven = solve(programme, start, seconds)
        yield value, max(proven, 0.0), time.process_time() - begin


def _best_fill(programme: Programme) -> Any:
    fills = homogeneous_fills(programme)
    return min(fills, key=programme.makespan_ms) if fills else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("solvers", nargs="*", metavar="SOLVER", help=f"{', '.join(SOLVERS)}")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--programmes", type=int, default=20)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.solvers) - set(SOLVERS)
    if unknown:
        parser.error(f"SOLVER: got {', '.join(sorted(unknown))}; allowed: {', '.join(SOLVERS)}")
    if options.measure:
        for result in measure(options.solvers[0], options.programmes, options.seconds):
            print(json.dumps(result), flush=True)
        return
    chosen = [
        name
        for name in options.solvers or SOLVERS
        if options.solvers or importlib.util.find_spec(SOLVERS[name][1])
    ]
    print(describe(), end="\n\n")
    rest = ["--measure", "--seconds", str(options.seconds), "--programmes"]
    results: dict[str, list[Result]] = {}
    for name in chosen:
        command = [sys.executable, __file__, name, *rest, str(options.programmes)]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[name] = [tuple(json.loads(line)) for line in made.splitlines()]
    heads = " | ".join(SOLVERS[name][0] for name in chosen)
    print(f"| programme | counts | bound on the micro-batch | start | {heads} |")
    print("|---" * (4 + len(chosen)) + "|")
    every = programmes(options.programmes)
    for index, (title, programme, bound) in enumerate(every):
        cells = " | ".join(_cell(results[name][index]) for name in chosen)
        fill = _best_fill(programme)
        start = "none" if fill is None else f"{programme.makespan_ms(fill):.0f}"
        print(f"| {title} | {programme.allowed.sum()} | {bound:.0f} | {start} | {cells} |")
    print()
    print(
        "| solver | incumbent above the best | best incumbent | bound below the strongest |"
        " closed |"
    )
    print("|---|---|---|---|---|")
    values = {n: [math.inf if v is None else v for v, _, _ in results[n]] for n in chosen}
    best = [min(values[n][i] for n in chosen) for i in range(len(every))]
    strongest = [max(results[n][i][1] for n in chosen) for i in range(len(every))]
    for name in chosen:
        found = [(v, b) for v, b in zip(values[name], best, strict=True) if v < math.inf]
        behind = mean(v / b - 1 for v, b in found)
        weak = mean(1 - r[1] / b for r, b in zip(results[name], strongest, strict=True))
        closed = sum(v is not None and v - b <= 1e-3 * v for v, b, _ in results[name])
        first = sum(v <= b * (1 + 1e-4) for v, b in found)
        # Programmes end by processor seconds: a busy machine solves less.
        record(f"{name}, above the best", behind, "", clock="processor")
        record(f"{name}, closed", closed, "programmes", better="more", clock="processor")
        print(
            f"| {SOLVERS[name][0]} | {behind:.2%} | {first} of {len(every)} | {weak:.2%} |"
            f" {closed} of {len(every)} |"
        )


def _cell(result: Result) -> str:
    value, proven, seconds = result
    return f"{'none' if value is None else f'{value:.0f}'} / {proven:.0f} in {seconds:.1f} s"


if __name__ == "__main__":
    main()
