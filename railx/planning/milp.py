"""The mixed-integer programme of one micro-batch (FlexSP), with HiGHS.

Given virtual groups of fixed degrees, choose which to use and how many sequences of
each length bucket each one gets, so that the slowest group ends soonest. Variables: the
makespan C (without the constant), counts A[q, p] of bucket q in group p, and m_p,
whether group p is used.

    every sequence once       Σ_p A[q, p] = size of bucket q
    token cap, or unused      Σ_q length_q A[q, p] <= cap d_p m_p
    makespan                  Σ_q time(q, d_p) A[q, p] <= C
    devices                   Σ_p d_p m_p <= N
    symmetry                  m_p >= m_p' for neighbours p, p' of equal degree
    device time               Σ_p d_p Σ_q time(q, d_p) A[q, p] <= N C

Pairs whose bucket does not fit the degree are left out. The last row follows from the
others for integer m, but not for fractional m; it is what makes the relaxation tight.
FlexSP demands Σ d_p m_p = N; "at most" allows idle devices as the paper has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import highspy
import numpy as np
import numpy.typing as npt
from scipy import sparse

from railx.planning.groups import Assignment, Lengths
from railx.workload.cost import CostModel

__all__ = ["Ending", "Solution", "SolverLimits", "solve_micro_batch", "virtual_groups"]

#: What ended a solve: the gap is closed, a limit was reached, or there is no solution.
Ending = Literal["gap", "nodes", "time_guard", "infeasible"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SolverLimits:
    """When the solver stops.

    Relative gap and nodes are deterministic, the time guard (s) is not. ``seed`` is
    what the solver breaks ties by.
    """

    relative_gap: float
    node_limit: int
    time_guard_s: float
    seed: int = 0


@dataclass(frozen=True)
class Solution:
    """The solver's answer; ``assignment`` is None where it found none.

    ``bound_ms`` bounds the rounded-up problem from below.
    """

    assignment: Assignment | None
    bound_ms: float
    nodes: int
    ended_by: Ending


def virtual_groups(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> tuple[int, ...]:
    """Degrees of the groups that the programme may use, ascending (FlexSP's pruning).

    With D the least degree that holds the longest sequence and c the number of
    sequences that need D: as many groups of a degree of at least D as devices allow,
    and of a smaller degree as are left beside c groups of D. The cut is a heuristic
    (sequences that need D may share a group), so one group of D is reserved where c of
    them do not fit the devices.
    """
    needed = [
        next((d for d in degrees if tokens <= d * cost.tokens_per_device), 0)
        for tokens in lengths.tolist()
    ]
    largest = max(needed)
    reserved = largest * needed.count(largest)
    if reserved > devices:
        reserved = largest
    return tuple(
        d for d in degrees for _ in range((devices if d >= largest else devices - reserved) // d)
    )


def solve_micro_batch(
    lengths: Lengths,
    buckets: list[npt.NDArray[np.int64]],
    groups: tuple[int, ...],
    devices: int,
    cost: CostModel,
    limits: SolverLimits,
    start: Assignment | None,
) -> Solution:
    """Solve for lengths [n] rounded up to ``buckets`` and virtual ``groups``.

    Buckets are positions by bucket, groups degrees, ascending. ``start`` is offered to
    the solver as a first solution. Sequences of a bucket are handed out longest first,
    each to the group with the least time among those that still get one. The times of
    the caller's true lengths can only be shorter than the programme's.
    """
    problem = _Problem.build(lengths, buckets, groups, cost)
    solver = _solver(limits)
    solver.passModel(_model(problem, devices))
    if start is not None:
        values = _start_values(problem, buckets, start)
        if values is not None:
            solution = highspy.HighsSolution()
            solution.col_value = values.tolist()
            solver.setSolution(solution)
    solver.run()
    return _read_solution(solver, problem, lengths, buckets, cost)


@dataclass(frozen=True)
class _Problem:
    """Arrays of the programme.

    Bucket bounds and sizes [q], group degrees [p], and the pairs (q, p) that exist [a].
    """

    bound: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    degree: npt.NDArray[np.int64]
    bucket: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    time: Floats
    cap: npt.NDArray[np.int64]
    constant_ms: float

    @staticmethod
    def build(
        lengths: Lengths,
        buckets: list[npt.NDArray[np.int64]],
        groups: tuple[int, ...],
        cost: CostModel,
    ) -> _Problem:
        bound = np.array([lengths[bucket].max() for bucket in buckets], dtype=np.int64)
        size = np.array([len(bucket) for bucket in buckets], dtype=np.int64)
        degree = np.array(groups, dtype=np.int64)
        cap = degree * cost.tokens_per_device
        bucket, group = np.nonzero(bound[:, None] <= cap[None, :])
        per_token = np.array([cost.all_to_all_ms[int(d)] for d in degree])
        time = cost.sequence_ms(bound)[bucket] / degree[group] + bound[bucket] * per_token[group]
        return _Problem(bound, size, degree, bucket, group, time, cap, cost.constant_ms)

    @property
    def pairs(self) -> int:
        return len(self.bucket)

    @property
    def columns(self) -> int:
        """A first, then m, then C."""
        return self.pairs + len(self.degree) + 1


def _model(problem: _Problem, devices: int) -> Any:
    """The programme for HiGHS, row-wise; columns are A, then m, then C."""
    pairs, groups, every = problem.pairs, len(problem.degree), np.arange(problem.pairs)
    by_bucket = sparse.csr_array(
        (np.ones(pairs), (problem.bucket, every)), shape=(len(problem.bound), pairs)
    )
    tokens = sparse.csr_array(
        (problem.bound[problem.bucket].astype(float), (problem.group, every)), shape=(groups, pairs)
    )
    times = sparse.csr_array((problem.time, (problem.group, every)), shape=(groups, pairs))
    degree = sparse.csr_array(problem.degree[None, :].astype(float))
    twins = np.flatnonzero(problem.degree[1:] == problem.degree[:-1])
    step = sparse.csr_array(sparse.eye_array(groups))
    ahead = step[twins] - step[twins + 1]
    blocks: list[list[Any]] = [
        [by_bucket, None, None],
        [tokens, -sparse.diags_array(problem.cap.astype(float)), None],
        [times, None, sparse.csr_array(-np.ones((groups, 1)))],
        [None, degree, None],
        [degree @ times, None, sparse.csr_array([[-float(devices)]])],
        [None, ahead, None],
    ]
    sizes, endless = problem.size.astype(float), np.full(len(twins), np.inf)
    upper = np.concatenate((sizes, np.zeros(2 * groups), [devices, 0.0], endless))
    lower = np.concatenate((sizes, np.full(2 * groups + 2, -np.inf), np.zeros(len(twins))))
    matrix = sparse.csr_array(sparse.block_array(blocks, format="csr"))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = problem.columns, matrix.shape[0]
    model.col_cost_ = np.append(np.zeros(problem.columns - 1), 1.0)
    model.col_lower_ = np.zeros(problem.columns)
    model.col_upper_ = np.concatenate(
        (problem.size[problem.bucket], np.ones(groups), [np.inf])
    ).astype(float)
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = (
        matrix.indptr,
        matrix.indices,
        matrix.data,
    )
    model.integrality_ = [highspy.HighsVarType.kInteger] * (problem.columns - 1) + [
        highspy.HighsVarType.kContinuous
    ]
    return model


def _solver(limits: SolverLimits) -> Any:
    solver = highspy.Highs()
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": limits.seed,
        "mip_rel_gap": limits.relative_gap,
        "mip_max_nodes": limits.node_limit,
        "time_limit": limits.time_guard_s,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    return solver


def _start_values(
    problem: _Problem, buckets: list[npt.NDArray[np.int64]], start: Assignment
) -> Floats | None:
    """Column values for an assignment of positions.

    None where it breaks the rounded-up problem's caps or has groups it lacks.
    """
    bucket_of = {
        int(position): index for index, bucket in enumerate(buckets) for position in bucket
    }
    counts = np.zeros((len(problem.bound), len(problem.degree)), dtype=np.int64)
    for degree in sorted(set(start.degrees)):
        columns = np.flatnonzero(problem.degree == degree)
        members = [
            group for size, group in zip(start.degrees, start.groups, strict=True) if size == degree
        ]
        if len(members) > len(columns):
            return None
        for column, group in zip(columns, members, strict=False):
            counts[:, column] = np.bincount(
                [bucket_of[position] for position in group], minlength=len(problem.bound)
            )
    if np.any(problem.bound @ counts > problem.cap):
        return None
    values = np.zeros(problem.columns)
    values[: problem.pairs] = counts[problem.bucket, problem.group]
    values[problem.pairs : -1] = counts.any(axis=0)
    values[-1] = np.bincount(problem.group, problem.time * values[: problem.pairs]).max()
    return values


def _read_solution(
    solver: Any,
    problem: _Problem,
    lengths: Lengths,
    buckets: list[npt.NDArray[np.int64]],
    cost: CostModel,
) -> Solution:
    info, status = solver.getInfo(), solver.getModelStatus()
    endings: dict[Any, Ending] = {
        highspy.HighsModelStatus.kOptimal: "gap",
        highspy.HighsModelStatus.kTimeLimit: "time_guard",
        highspy.HighsModelStatus.kInfeasible: "infeasible",
    }
    ended = endings.get(status, "nodes")
    bound = float(info.mip_dual_bound) + problem.constant_ms
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Solution(None, bound, int(info.mip_node_count), ended)
    counts = np.rint(np.array(solver.getSolution().col_value)[: problem.pairs]).astype(np.int64)
    return Solution(
        _hand_out(counts, problem, lengths, buckets, cost), bound, int(info.mip_node_count), ended
    )


def _hand_out(
    counts: npt.NDArray[np.int64],
    problem: _Problem,
    lengths: Lengths,
    buckets: list[npt.NDArray[np.int64]],
    cost: CostModel,
) -> Assignment:
    """Concrete sequences for the counts, longest first.

    Each goes to the group with least time so far among those that still get one.
    """
    left = np.zeros((len(problem.bound), len(problem.degree)), dtype=np.int64)
    left[problem.bucket, problem.group] = counts
    per_token = np.array([cost.all_to_all_ms[int(degree)] for degree in problem.degree])
    work, busy = cost.sequence_ms(lengths), np.zeros(len(problem.degree))
    groups: list[list[int]] = [[] for _ in problem.degree]
    for index, bucket in enumerate(buckets):
        for position in bucket[np.argsort(-lengths[bucket], kind="stable")].tolist():
            chosen = int(np.argmin(np.where(left[index] > 0, busy, np.inf)))
            left[index, chosen] -= 1
            busy[chosen] += (
                work[position] / problem.degree[chosen] + lengths[position] * per_token[chosen]
            )
            groups[chosen].append(position)
    used = [index for index, members in enumerate(groups) if members]
    return Assignment(
        tuple(int(problem.degree[index]) for index in used),
        tuple(tuple(groups[index]) for index in used),
    )
