"""A random stream of jobs on a grid with failures: use, waiting times and rejections.

The simulation is event-driven and deterministic: arrivals, finishes, failures and
repairs come in order of time, each followed by an attempt to start waiting jobs. It
counts nodes and simulates no network. The paper prints no such numbers; sizes, arrivals
and durations are drawn by our settings.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field, fields

import numpy as np

from railx.families.family import PlaceRule
from railx.tenancy.allocate import Lines, find_nodes
from railx.tenancy.settings import FitPolicy, Queue, StreamSettings
from railx.vocabulary.arrays import BoolArray, FloatArray, IntArray

# Events at the same time: those that free nodes come first.
_FINISH, _REPAIR, _FAILURE, _ARRIVAL = range(4)


@dataclass(frozen=True, eq=False)
class Stream:
    """Jobs by arrival: index among the settings' jobs, arrival, duration in hours."""

    kind: IntArray
    arrival_hours: FloatArray
    duration_hours: FloatArray


@dataclass(frozen=True, eq=False)
class Failures:
    """Node ``nodes[i]`` (row, column) fails at ``hours[i]``; hours ascend."""

    hours: FloatArray
    nodes: IntArray


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of every job, and the use of the grid.

    * ``start_hours`` and ``end_hours`` are NaN for a job that never started or ended,
      ``remaining_hours`` is its unfinished work.
    * The averages count from ``from_hours`` to ``to_hours``. ``busy_node_hours`` and
      ``healthy_node_hours`` are integrals over that time, ``total_node_hours`` is the
      busy one over the whole run.
    * ``lost_node_hours``: work since the last checkpoint undone by failures (whole
      run).
    * ``blocked_hours``: time in which the job at the head of the queue waited although
      as many nodes were free as it needs.
    """

    start_hours: FloatArray
    end_hours: FloatArray
    remaining_hours: FloatArray
    rejected: BoolArray
    rejected_by_shape: BoolArray
    interruptions: int
    from_hours: float
    to_hours: float
    busy_node_hours: float
    healthy_node_hours: float
    total_node_hours: float
    lost_node_hours: float
    blocked_hours: float


def draw_stream(
    settings: StreamSettings, nodes: int, load: float, rng: np.random.Generator
) -> Stream:
    """A stream for ``nodes`` nodes; ``load`` only stretches the arrivals of a draw."""
    weights = np.array([job.weight for job in settings.jobs])
    sizes = np.array([job.nodes for job in settings.jobs])
    share = weights / weights.sum()
    gaps = rng.exponential(size=settings.arrivals)
    kind = rng.choice(len(sizes), size=settings.arrivals, p=share).astype(np.int64)
    normal = rng.standard_normal(settings.arrivals)
    duration = settings.mean_hours * np.exp(
        settings.duration_sigma * normal - settings.duration_sigma**2 / 2
    )
    jobs_per_hour = load * nodes / (float(share @ sizes) * settings.mean_hours)
    return Stream(kind, np.cumsum(gaps) / jobs_per_hour, duration)


def draw_failures(
    side: int, mean_hours: float | None, until_hours: float, rng: np.random.Generator
) -> Failures:
    """Poisson failures of side^2 nodes, ``mean_hours`` apart per node (None: none)."""
    if mean_hours is None:
        return Failures(np.zeros(0), np.zeros((0, 2), dtype=np.int64))
    expected = until_hours * side**2 / mean_hours
    hours = np.sort(rng.uniform(0, until_hours, size=rng.poisson(expected)))
    return Failures(hours, rng.integers(0, side, size=(len(hours), 2)))


def simulate_stream(
    settings: StreamSettings,
    stream: Stream,
    healthy: BoolArray,
    failures: Failures,
    *,
    rule: PlaceRule,
    policy: FitPolicy,
    queue: Queue,
) -> Outcome:
    """Run the stream to its last finish on the nodes of ``healthy`` (bool[side, side]).

    The averages end with the last arrival. A job that fits nowhere even on the idle
    grid never starts; it counts as rejected, as with fifo it would block all others.
    """
    run = _Run(settings, stream, healthy.copy(), rule, policy, queue)
    run.from_hours = float(stream.arrival_hours[int(settings.warmup_share * len(stream.kind))])
    run.to_hours = float(stream.arrival_hours[-1])
    for job, hours in enumerate(stream.arrival_hours):
        run.push(float(hours), _ARRIVAL, job, 0)
    for hours, (row, column) in zip(failures.hours, failures.nodes, strict=True):
        run.push(float(hours), _FAILURE, int(row), int(column))
    while run.events:
        run.step()
    return Outcome(**{field.name: getattr(run, field.name) for field in fields(Outcome)})


@dataclass(eq=False)
class _Run:
    """The state of the grid and the queue between two events."""

    settings: StreamSettings
    stream: Stream
    healthy: BoolArray
    rule: PlaceRule
    policy: FitPolicy
    queue: Queue
    now: float = 0.0
    from_hours: float = 0.0
    to_hours: float = 0.0
    busy_node_hours: float = 0.0
    healthy_node_hours: float = 0.0
    total_node_hours: float = 0.0
    lost_node_hours: float = 0.0
    blocked_hours: float = 0.0
    interruptions: int = 0
    order: int = 0
    events: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, tuple[Lines, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        jobs, self.kind = self.settings.jobs, self.stream.kind.tolist()
        count = len(self.kind)
        self.free = self.healthy.copy()
        self.owner = np.full(self.healthy.shape, -1, dtype=np.int64)
        self.remaining_hours = self.stream.duration_hours.copy()
        self.runs = np.zeros(count, dtype=np.int64)
        self.start_hours, self.end_hours = np.full((2, count), np.nan)
        self.rejected, self.rejected_by_shape = np.zeros((2, count), dtype=np.bool_)
        # Kinds of job that fit on the idle grid.
        self.possible = [self._find(kind) is not None for kind in range(len(jobs))]
        # Kinds of job without enough free nodes; the free nodes only shrink until a
        # release or repair.
        self.failed: set[int] = set()
        sides = [sorted((job.rows, job.columns)) for job in jobs]
        # A job that contains one without room has no room either.
        self.contains = [
            {k for k, (c, d) in enumerate(sides) if c >= a and d >= b} for a, b in sides
        ]

    def push(self, hours: float, event: int, first: int, second: int) -> None:
        heapq.heappush(self.events, (hours, event, self.order, first, second))
        self.order += 1

    def step(self) -> None:
        hours, event, _, first, second = heapq.heappop(self.events)
        if event == _FINISH and self.runs[first] != second:
            return  # the run that would have ended here was interrupted
        self._pass_time(hours)
        if event == _FINISH:
            self._release(first)
            self.failed.clear()
            self.end_hours[first] = hours
            self.remaining_hours[first] = 0.0
        elif event == _REPAIR:
            self.healthy[first, second] = self.free[first, second] = True
            self.failed.clear()
        elif event == _FAILURE:
            self._fail(first, second)
        elif self.possible[self.kind[first]]:
            self.waiting.append(first)
        else:
            self.rejected[first] = self.rejected_by_shape[first] = True
        self._dispatch()

    def _pass_time(self, hours: float) -> None:
        used = int((self.owner >= 0).sum())
        self.total_node_hours += used * (hours - self.now)
        inside = max(0.0, min(hours, self.to_hours) - max(self.now, self.from_hours))
        if inside > 0:
            self.busy_node_hours += used * inside
            self.healthy_node_hours += int(self.healthy.sum()) * inside
            head = self.waiting[0] if self.waiting else None
            if head is not None and int(self.free.sum()) >= self._nodes(head):
                self.blocked_hours += inside
        self.now = hours

    def _nodes(self, job: int) -> int:
        nodes: int = self.settings.jobs[self.kind[job]].nodes
        return nodes

    def _find(self, kind: int) -> Lines | None:
        shape = self.settings.jobs[kind]
        return find_nodes(self.free, shape.rows, shape.columns, self.rule, self.policy)

    def _start(self, job: int) -> bool:
        lines = self._find(self.kind[job])
        if lines is None:
            return False
        block = np.ix_(*lines)
        self.free[block] = False
        self.owner[block] = job
        self.running[job] = (lines, self.now)
        self.runs[job] += 1
        if math.isnan(self.start_hours[job]):
            self.start_hours[job] = self.now
        self.push(self.now + float(self.remaining_hours[job]), _FINISH, job, int(self.runs[job]))
        return True

    def _release(self, job: int) -> float:
        """Free the job's nodes; returns the start of its run."""
        lines, began = self.running.pop(job)
        block = np.ix_(*lines)
        self.free[block] = self.healthy[block]
        self.owner[block] = -1
        return began

    def _fail(self, row: int, column: int) -> None:
        if not self.healthy[row, column]:
            return
        job = int(self.owner[row, column])
        self.healthy[row, column] = self.free[row, column] = False
        self.push(self.now + self.settings.repair_hours, _REPAIR, row, column)
        if job < 0:
            return
        ran, every = self.now - self._release(job), self.settings.checkpoint_hours
        self.failed.clear()
        saved = math.floor(ran / every) * every
        self.lost_node_hours += (ran - saved) * self._nodes(job)
        self.remaining_hours[job] -= saved
        self.runs[job] += 1
        self.interruptions += 1
        self.waiting.appendleft(job)

    def _dispatch(self) -> None:
        failed = self.failed
        free = int(self.free.sum())
        still: deque[int] = deque()
        while self.waiting and (len(failed) < len(self.contains) or self.queue == "reject"):
            job = self.waiting.popleft()
            kind = self.kind[job]
            enough = self._nodes(job) <= free
            if enough and kind not in failed and self._start(job):
                free -= self._nodes(job)
                continue
            failed |= self.contains[kind]
            if self.queue == "reject":
                self.rejected[job], self.rejected_by_shape[job] = True, enough
                continue
            still.append(job)
            if self.queue == "fifo":
                break
        still.extend(self.waiting)
        self.waiting = still
