"""What another switch would have meant for a recorded run.

It is found by formula from the run's windows, and by replaying it against the
controller.

The formula is Opus' (arXiv 2602.12521). A window W is the idle time of the network
between two phases. A switch asked for when the first of them ends costs max(0, L - W),
so that an iteration takes T(L) = T0 + sum of max(0, L - W). Asked for at first need,
nothing is hidden and it takes T0 + N * L.

The replay goes further than the formula. The operations of an electrical run, with the
computation between them, meet the controller's own state machine
(:class:`railx.fabric.core.ControllerCore`) under a virtual clock. So waits for peers,
conflicts between groups and hints that come too late have the effect that they would
have.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.core import (
    Action,
    ControllerCore,
    GrantAction,
    OperationKey,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.settings import Mode

__all__ = [
    "COMMUNICATION",
    "ReplayedIteration",
    "ReplayedOperation",
    "Step",
    "iteration_ms",
    "programs_of",
    "replay",
    "stall_ms",
    "utilisation",
]

#: The kinds of trace events that use the network; every other kind is computation.
COMMUNICATION = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"),
    *("reduce_scatter", "all_to_all", "barrier", "send", "recv"),
)


def stall_ms(latency_ms: float, windows_ms: Iterable[float]) -> float:
    """Time lost to switching, in ms: the sum of max(0, L - W) over the windows.

    A negative window hides nothing.
    """
    return sum(max(0.0, latency_ms - max(window_ms, 0.0)) for window_ms in windows_ms)


def iteration_ms(electrical_ms: float, latency_ms: float, windows_ms: Iterable[float]) -> float:
    """T(L) = T0 + sum of max(0, L - W), in ms.

    N windows of 0 give the on-demand time T0 + N * L.
    """
    return electrical_ms + stall_ms(latency_ms, windows_ms)


def utilisation(
    compute_ms: float, exposed_ms: float, latency_ms: float, windows_ms: Iterable[float]
) -> float:
    """Computation's share of an iteration.

    compute / (compute + exposed communication + stall).
    """
    return compute_ms / (compute_ms + exposed_ms + stall_ms(latency_ms, windows_ms))


@dataclass(frozen=True)
class ReplayedOperation:
    """One collective or message of a replay.

    It has its key (alike on all members), what it needs between servers, and its
    length.
    """

    key: OperationKey
    configuration: Configuration
    duration_ns: int


@dataclass(frozen=True)
class Step:
    """One thing a rank does.

    ``operation`` is None for the begin and for the end of an iteration. The step comes
    ``gap_ns`` after its anchor and not before all steps in ``needs`` have ended. The
    anchor is the end of the step ``after``, or the start of the step before this one
    where ``after`` is None. Steps are numbers in the rank's program.
    """

    iteration: int
    operation: ReplayedOperation | None
    gap_ns: int
    after: int | None = None
    needs: tuple[int, ...] = ()


@dataclass
class ReplayedIteration:
    """One rank's iteration in a replay, in ns of the virtual clock.

    The rest as in :class:`railx.fabric.core.GrantAction`.
    """

    iteration: int
    rank: int
    begin_ns: int
    end_ns: int
    stall_ns: int = 0
    wait_ns: int = 0
    requests: int = 0
    reconfigurations: int = 0
    mispredictions: int = 0

    @property
    def duration_ns(self) -> int:
        """From the begin to the end of the iteration."""
        return self.end_ns - self.begin_ns


def replay(
    programs: Mapping[int, Sequence[Step]], layout: Layout, mode: Mode, latency_ns: int
) -> list[ReplayedIteration]:
    """Carry out the programs (by rank) on a virtual clock that starts at 0.

    Returns one row per iteration and rank, in order. Raises ValueError where the
    programs cannot end, because a rank waits for an operation that another never comes
    to.
    """
    run = _Replay(programs, layout, mode, latency_ns)
    run.run()
    return run.rows()


@dataclass
class _Rank:
    steps: Sequence[Step]
    begun: list[int] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    planned: bool = False
    under_way: int = 0
    lanes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


class _Replay:
    def __init__(
        self, programs: Mapping[int, Sequence[Step]], layout: Layout, mode: Mode, latency_ns: int
    ) -> None:
        self._mode = mode
        self._latency_ns = latency_ns
        self._ranks = {rank: _Rank(steps) for rank, steps in programs.items()}
        self._core = ControllerCore(layout, max(programs, default=-1) + 1)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_ns = 0
        self._arrived: dict[OperationKey, dict[int, int]] = defaultdict(dict)
        self._results: dict[tuple[int, int], ReplayedIteration] = {}

    def run(self) -> None:
        """Carry out everything; ValueError where a rank cannot come to its end."""
        for rank in self._ranks:
            self._plan_next(rank)
        while self._events:
            self._now_ns, _, event = heapq.heappop(self._events)
            event()
        for rank, state in self._ranks.items():
            if len(state.ended) < len(state.steps):
                stuck = next(
                    number for number in range(len(state.steps)) if number not in state.ended
                )
                step = state.steps[stuck]
                what = (
                    "the end of the iteration"
                    if step.operation is None
                    else f"operation {step.operation.key}"
                )
                raise ValueError(
                    f"rank {rank} never ends step {stuck} (iteration {step.iteration}): {what}"
                )

    def rows(self) -> list[ReplayedIteration]:
        """What came of it, by iteration and rank."""
        return [self._results[key] for key in sorted(self._results)]

    def _at(self, time_ns: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_ns, next(self._order), event))

    def _asks(self, operation: ReplayedOperation) -> bool:
        return self._mode != "electrical" and not self._core.layout.is_scale_up(
            operation.configuration.members
        )

    def _result(self, rank: int, step: Step) -> ReplayedIteration:
        return self._results.setdefault(
            (step.iteration, rank),
            ReplayedIteration(step.iteration, rank, begin_ns=self._now_ns, end_ns=self._now_ns),
        )

    def _plan_next(self, rank: int) -> None:
        """Find out when the next step of a rank comes, once what it needs has ended."""
        state = self._ranks[rank]
        number = len(state.begun)
        if state.planned or number == len(state.steps):
            return
        step = state.steps[number]
        needs = (*step.needs, *(() if step.after is None else (step.after,)))
        if any(needed not in state.ended for needed in needs):
            return
        last_ns = state.begun[-1] if state.begun else 0
        anchor_ns = last_ns if step.after is None else state.ended[step.after]
        state.planned = True
        self._at(
            max(anchor_ns + step.gap_ns, last_ns, self._now_ns),
            functools.partial(self._begin, rank, number),
        )

    def _begin(self, rank: int, number: int) -> None:
        state = self._ranks[rank]
        state.planned = False
        state.begun.append(self._now_ns)
        operation = state.steps[number].operation
        if operation is None:
            state.ended[number] = self._now_ns
            self._result(rank, state.steps[number]).end_ns = self._now_ns
        else:
            lane = state.lanes[operation.key[0]]
            lane.append(number)
            if len(lane) == 1:
                self._arrive(rank, number, operation)
        self._plan_next(rank)

    def _arrive(self, rank: int, number: int, operation: ReplayedOperation) -> None:
        self._arrived[operation.key][rank] = number
        if self._asks(operation):
            state = self._ranks[rank]
            state.under_way += 1
            self._act(
                self._core.ask(rank, number, operation.key, operation.configuration, self._now_ns)
            )
        elif len(self._arrived[operation.key]) == len(operation.configuration.members):
            self._start(operation)

    def _act(self, actions: Sequence[Action]) -> None:
        started: dict[OperationKey, ReplayedOperation] = {}
        for action in actions:
            if isinstance(action, GrantAction):
                assert action.request is not None
                step = self._ranks[action.rank].steps[action.request]
                result = self._result(action.rank, step)
                result.requests += 1
                result.reconfigurations += int(action.reconfigured > 0)
                result.stall_ns += action.stall_ns
                result.wait_ns += action.wait_ns
                result.mispredictions += int(action.mispredicted)
                assert step.operation is not None
                started[action.key] = step.operation
            elif isinstance(action, RefuseAction):
                raise ValueError(action.message)
            elif isinstance(action, SwitchAction):
                self._at(
                    self._now_ns + self._latency_ns,
                    functools.partial(self._switched, action.command),
                )
        for operation in started.values():
            self._start(operation)

    def _switched(self, command: int) -> None:
        self._act(self._core.switched(command, self._now_ns))

    def _start(self, operation: ReplayedOperation) -> None:
        members = self._arrived.pop(operation.key)
        for rank, number in members.items():
            self._at(
                self._now_ns + operation.duration_ns, functools.partial(self._end, rank, number)
            )

    def _end(self, rank: int, number: int) -> None:
        state = self._ranks[rank]
        step = state.steps[number]
        operation = step.operation
        assert operation is not None
        state.ended[number] = self._now_ns
        lane = state.lanes[operation.key[0]]
        lane.pop(0)
        if self._asks(operation):
            state.under_way -= 1
            self._act(self._core.release(rank, operation.key, self._now_ns))
        if lane:
            waiting = state.steps[lane[0]].operation
            assert waiting is not None
            self._arrive(rank, lane[0], waiting)
        if self._asks(operation):
            following = self._following(state, step)
            if following is not None and following != operation.configuration:
                self._act(self._core.hint(rank, following, self._now_ns))
        self._plan_next(rank)

    def _following(self, state: _Rank, step: Step) -> Configuration | None:
        """What this rank's next operation of the iteration will need.

        None where that may not be announced now.
        """
        if self._mode != "provisioned" or state.under_way > 0:
            return None
        for later in state.steps[len(state.begun) :]:
            if later.iteration != step.iteration:
                return None
            if later.operation is not None and self._asks(later.operation):
                return later.operation.configuration
        return None


def programs_of(events: Iterable[Mapping[str, Any]]) -> dict[int, list[Step]]:
    """The programs of a recorded electrical run, by rank.

    ``events`` are rows of a trace (iteration, rank, kind, group, start_ns, end_ns) of
    one run. Kinds other than collectives and messages of two or more ranks count as
    computation. What the recording shows to have ended before a step is taken to be
    needed by it. An operation takes as long as it took from the arrival of its last
    member to the end of the last one. Raises ValueError naming the operation that some
    member did not record.
    """
    by_rank: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["kind"] == "reconfiguration":
            raise ValueError(
                "trace: it has reconfigurations; allowed: the trace of an electrical run"
            )
        by_rank[event["rank"]].append(event)
    keyed = {
        rank: _with_keys(rank, sorted(rows, key=lambda row: (row["iteration"], row["start_ns"])))
        for rank, rows in by_rank.items()
    }
    operations = _operations(keyed)
    origin_ns = min((row.start_ns for rows in keyed.values() for row in rows), default=0)
    return {rank: _program(rows, operations, origin_ns) for rank, rows in sorted(keyed.items())}


@dataclass(frozen=True)
class _Recorded:
    iteration: int
    start_ns: int
    end_ns: int
    key: OperationKey | None
    configuration: Configuration | None


def _with_keys(rank: int, rows: Sequence[Mapping[str, Any]]) -> list[_Recorded]:
    counts: dict[str, int] = defaultdict(int)
    found = []
    for row in rows:
        members = tuple(int(member) for member in row["group"].split(",")) if row["group"] else ()
        key, configuration = None, None
        if row["kind"] in COMMUNICATION and len(members) > 1:
            message = row["kind"] in ("send", "recv")
            configuration = Configuration("pair" if message else "ring", members)
            channel = f"{row['iteration']}:{row['group']}"
            if message:
                peer = next(member for member in members if member != rank)
                channel += f":{rank}>{peer}" if row["kind"] == "send" else f":{peer}>{rank}"
            key = (channel, counts[channel])
            counts[channel] += 1
        found.append(
            _Recorded(row["iteration"], row["start_ns"], row["end_ns"], key, configuration)
        )
    return found


def _operations(keyed: Mapping[int, Sequence[_Recorded]]) -> dict[OperationKey, ReplayedOperation]:
    parts: dict[OperationKey, dict[int, _Recorded]] = defaultdict(dict)
    for rank, rows in keyed.items():
        for row in rows:
            if row.key is not None:
                parts[row.key][rank] = row
    operations = {}
    for key, members in parts.items():
        first = next(iter(members.values()))
        assert first.configuration is not None
        if set(members) != set(first.configuration.members):
            missing = sorted(set(first.configuration.members) - set(members))
            raise ValueError(
                f"trace: operation {key[1]} of {key[0]} is there for ranks {sorted(members)}, but"
                f" not for {missing}"
            )
        arrived_ns = max(row.start_ns for row in members.values())
        duration_ns = max(0, max(row.end_ns for row in members.values()) - arrived_ns)
        operations[key] = ReplayedOperation(key, first.configuration, duration_ns)
    return operations


def _program(
    rows: Sequence[_Recorded], operations: Mapping[OperationKey, ReplayedOperation], origin_ns: int
) -> list[Step]:
    steps: list[Step] = []
    issued: list[tuple[int, _Recorded]] = []
    done: set[int] = set()
    last_ns = origin_ns
    for iteration, group in itertools.groupby(rows, key=lambda row: row.iteration):
        members = list(group)
        moments = [
            (members[0].start_ns, None),
            *((row.start_ns, row) for row in members if row.key is not None),
            (max(row.end_ns for row in members), None),
        ]
        for start_ns, row in moments:
            ended = [
                (number, other)
                for number, other in issued
                if number not in done and other.end_ns <= start_ns
            ]
            latest = max(ended, key=lambda item: item[1].end_ns, default=None)
            after = latest[0] if latest is not None and latest[1].end_ns >= last_ns else None
            anchor_ns = latest[1].end_ns if latest is not None and after is not None else last_ns
            operation = None if row is None or row.key is None else operations[row.key]
            steps.append(
                Step(
                    iteration,
                    operation,
                    start_ns - anchor_ns,
                    after,
                    tuple(number for number, _ in ended),
                )
            )
            done.update(number for number, _ in ended)
            if row is not None:
                issued.append((len(steps) - 1, row))
            last_ns = start_ns
    return steps
