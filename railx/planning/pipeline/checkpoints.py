"""Stage-aware chunk-level checkpointing: the layers that each backward recomputes.

InfiniPipe section III-C, eqs. 15-20, on arrays. A backward that recomputes c layers
delays the other stages by as much. So these may recompute c layers at no further cost
in the backwards of the same step of the schedule. Those form a diagonal: place b of the
backward order, on a stage with s later stages, has the count of diagonal b + s. With n
chunks and d stages there are n + d - 1 counts C instead of n d, and recomputing takes
the time of one layer times their sum. The integer programme is

    min Σ C,  0 <= C <= layers of a stage,  and on every stage at every step
    Σ over live chunks (stored - saved · C on its diagonal) <= capacity

A chunk is live between its forward and its backward (eqs. 6-7). Rows after the last
forward are redundant: the chunks live then were live before. Plans by default take
:func:`fast`; :func:`quick` is quick enough for every group's price.

Deviations: the paper prints no coefficients (the body of its algorithm 2); ``stored``
and ``saved`` follow from its eqs. 5 and 10. Its solver is SCIP to a gap of 2 %; here it
is HiGHS. Where stages have unequal layers a diagonal counts at most those of the
smallest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Pipeline
from railx.planning.format.schedule import shape_of
from railx.planning.packing import Floats, Integers
from railx.planning.pipeline.checkpoint_problem import SLACK, CheckpointProblem
from railx.planning.pipeline.chunks import Chunked

#: Tolerance of a solver's whole numbers.
_NEAR = 1e-6
#: Rules for the diagonal that recomputes more: longest live, most saved per layer, most
#: saved of the missing bytes anywhere.
_RULES = 3
#: HiGHS' status of a solved programme, and of one without a solution.
_OPTIMAL, _INFEASIBLE = 0, 2
#: Rounds of trades.
_TRADES = 3
#: Most diagonals for which the default runs the solver, and most nodes of its search.
_SMALL = 28
_NODES = 500


def problem_of_pipeline(pipeline: Pipeline, cost: PipelineCost) -> CheckpointProblem:
    """The problem of a pipeline of a plan."""
    tokens = np.array([chunk.tokens for chunk in pipeline.chunks])
    split = np.array([chunk.kind == "split" for chunk in pipeline.chunks])
    shape = shape_of(pipeline)
    return _problem(tokens, split, np.array(shape.backward), shape.longest, cost)


def problem_of(chunked: Chunked, first: int, end: int, cost: PipelineCost) -> CheckpointProblem:
    """The problem of a pipeline of chunks [first, end)."""
    span = slice(first, end)
    tokens, split = chunked.tokens[span], chunked.split[span]
    most_chunks = int(chunked.count[span].max())
    return _problem(tokens, split, chunked.backward_order(first, end), most_chunks, cost)


def _problem(
    tokens: Integers,
    split: npt.NDArray[np.bool_],
    backward: Integers,
    most_chunks: int,
    cost: PipelineCost,
) -> CheckpointProblem:
    stored, saved = token_bytes(cost)
    kind = split.astype(np.int64)
    return CheckpointProblem(
        # In rows: an index of columns would leave columns, another type to compile.
        stored=np.take(stored, kind, axis=1) * tokens,
        saved=saved[kind] * tokens,
        capacity=np.array(cost.capacities, dtype=np.float64),
        layers=min(cost.layer_counts),
        backward=backward,
        longest_split=most_chunks,
    )


@lru_cache(maxsize=8)
def token_bytes(cost: PipelineCost) -> tuple[Floats, Floats]:
    """Bytes of a token by stage [d, 2], and what a recomputed layer saves of it [2].

    First of chunks that are not one slice of a cut sequence, then of those that are.
    """
    kinds = np.array([False, True])
    stored = [cost.activation_bytes(1, kinds, stage) for stage in range(cost.shape.stages)]
    return np.array(stored), np.asarray(cost.layer_saving_bytes(1, kinds), dtype=np.float64)


def rows(problem: CheckpointProblem) -> tuple[Floats, Floats]:
    """The programme's rows: coefficients [r, n + d - 1] and lower bounds [r].

    Rows that are met without recomputing are left out.
    """
    coefficients, needed = [np.empty((0, problem.diagonals))], [np.empty(0)]
    order = np.arange(problem.chunks)
    for stage in range(problem.stages):
        #: Stages after this one, its forwards before the first pair, and its steps.
        after = problem.stages - 1 - stage
        warm = min(after + problem.longest_split - 1, problem.chunks)
        steps = np.arange(max(problem.chunks - warm, 1))
        live = (order <= warm + steps[:, None]) & (problem.position >= steps[:, None])
        missing = live @ problem.stored[stage] - problem.capacity[stage]
        broken = missing > SLACK * problem.capacity[stage]
        matrix = np.zeros((np.count_nonzero(broken), problem.diagonals))
        matrix[:, problem.position + after] = live[broken] * problem.saved
        coefficients.append(matrix)
        needed.append(missing[broken])
    return np.concatenate(coefficients), np.concatenate(needed)


def peak_bytes(problem: CheckpointProblem, layers: npt.ArrayLike = 0) -> Floats:
    """The peak bytes [d] of each stage with ``layers`` [d, n] recomputed."""
    # Planning alone loads Numba.
    from railx.planning.pipeline.kernels import live_bytes_of

    retained = np.ascontiguousarray(problem.stored - problem.saved * np.asarray(layers))
    return np.asarray(live_bytes_of(problem, retained).max(axis=1))


def fits(problem: CheckpointProblem, layers: npt.ArrayLike = 0) -> bool:
    """Whether every stage has enough memory at every step."""
    return bool(np.all(peak_bytes(problem, layers) <= problem.capacity * (1 + SLACK)))


def lp_bound(problem: CheckpointProblem) -> float:
    """Σ C of the relaxation, infinite where no counts suffice."""
    relaxed = _relaxed(problem)
    return math.inf if relaxed is None else float(relaxed.sum())


@dataclass(frozen=True)
class Solution:
    """Counts of the diagonals [n + d - 1] and a proven lower bound on their sum."""

    counts: Integers
    bound: float

    @property
    def gap(self) -> float:
        """Relative gap of the sum to the bound: 0 where proven optimal."""
        return max(0.0, float(self.counts.sum()) / self.bound - 1) if self.bound else 0.0


def exact(problem: CheckpointProblem, most_nodes: int | None = None) -> Solution | None:
    """The counts with the least sum; None where none suffice.

    The paper's programme, by HiGHS, to the optimum or a limit of search nodes, which
    makes the counts the same everywhere. At the limit the sum is at most that of
    :func:`quick`.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix, needed = rows(problem)
    if not len(needed):
        return Solution(np.zeros(problem.diagonals, dtype=np.int64), 0.0)
    scale = problem.saved.max()
    options: Any = {"mip_rel_gap": 0.0}
    if most_nodes is not None:
        options["node_limit"] = most_nodes
    result: Any = milp(
        np.ones(problem.diagonals),
        integrality=np.ones(problem.diagonals, dtype=np.int64),
        bounds=Bounds(0, problem.layers),
        constraints=LinearConstraint(matrix / scale, needed / scale, np.inf),
        options=options,
    )
    counts = None
    if result.x is not None:
        # The solver tolerates a millionth of a row, which the sweep corrects.
        counts = _swept(problem, np.round(result.x).astype(np.int64), 0)
    if result.status not in (_OPTIMAL, _INFEASIBLE):
        counts = _smallest([counts, quick(problem)])
    if counts is None:
        return None
    bound = result.mip_dual_bound
    proven = bound is not None and math.isfinite(bound)
    return Solution(counts, math.ceil(bound - _NEAR) if proven else lp_bound(problem))


def quick(problem: CheckpointProblem) -> Integers | None:
    """Counts [n + d - 1] with a small sum, by no solver; None where none suffice.

    Sweeps over the steps add layers on few diagonals, by several rules, until memory
    suffices, then lower and trade counts.
    """
    nothing = np.zeros(problem.diagonals, dtype=np.int64)
    counts = _swept(problem, nothing, 0)
    if counts is None or not counts.any():
        return counts
    return _smallest([counts, *(_swept(problem, nothing, rule) for rule in range(1, _RULES))])


def fast(problem: CheckpointProblem) -> Integers | None:
    """Counts [n + d - 1] of a small sum, the least in small cases; None if none fit.

    Sweeps go on from the rounded relaxation too. The solver runs where these prove no
    optimum and the case is small.
    """
    counts = quick(problem)
    if counts is None or not counts.any():
        return counts
    relaxed = _relaxed(problem)
    assert relaxed is not None  # the relaxation holds whatever whole counts hold
    start = np.floor(relaxed + _NEAR).astype(np.int64)
    rounded = (_swept(problem, start, rule) for rule in range(_RULES))
    counts = _smallest([counts, *rounded])
    assert counts is not None
    proven = counts.sum() <= math.ceil(relaxed.sum() - _NEAR)
    if proven or problem.diagonals > _SMALL:
        return counts
    solved = exact(problem, most_nodes=_NODES)
    return _smallest([counts, None if solved is None else solved.counts])


def _smallest(candidates: Iterable[Integers | None]) -> Integers | None:
    """The counts with the least sum, the first of a tie."""
    return min((counts for counts in candidates if counts is not None), key=np.sum, default=None)


def _swept(problem: CheckpointProblem, start: Integers, rule: int) -> Integers | None:
    # Planning alone loads Numba.
    from railx.planning.pipeline.kernels import sweep

    counts = start.copy()
    in_rows = problem._replace(stored=np.ascontiguousarray(problem.stored))
    return counts if sweep(in_rows, rule, _TRADES, counts) else None


def _relaxed(problem: CheckpointProblem) -> Floats | None:
    """C of the relaxation; None where no counts suffice."""
    from scipy.optimize import linprog

    matrix, needed = rows(problem)
    if not len(needed):
        return np.zeros(problem.diagonals)
    scale = problem.saved.max()
    costs, bounds = np.ones(problem.diagonals), (0, problem.layers)
    result: Any = linprog(costs, -matrix / scale, -needed / scale, bounds=bounds, method="highs")
    return None if result.x is None else np.asarray(result.x)
