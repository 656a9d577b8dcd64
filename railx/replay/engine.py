"""Programs of ranks, carried out on a virtual clock.

A program is what a rank does in order: it computes, hands operations over, and waits
for some of them. Operations run on lanes, one for each channel, one after another,
while the program goes on. In the optical modes they meet the controller's own state
machine (:class:`railx.fabric.core.ControllerCore`). So waits for peers, conflicts
between groups and hints that come too late have the effect that they would have.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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

__all__ = ["ReplayedIteration", "ReplayedOperation", "Step", "replay"]


@dataclass(frozen=True)
class ReplayedOperation:
    """One collective or message of a replay.

    It has its key (alike on all members), what it needs between servers, and how long
    it takes a member (``lasts_ns``) once all have come and its circuits are up. Members
    in ``alone`` wait for nobody else, as the sender of a message that is buffered.
    """

    key: OperationKey
    configuration: Configuration
    lasts_ns: Mapping[int, int]
    alone: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Step:
    """One thing that a program does, ``gap_ns`` after the step before it.

    * ``begin`` an iteration: all together, ``gap_ns`` after the last rank is there.
    * ``issue`` an operation. It begins ``pickup_ns`` after it is the first of its lane.
    * ``wait`` for an operation. The program goes on ``resume_ns`` after it has ended.
    * ``end`` of the iteration.
    """

    iteration: int
    does: Literal["begin", "issue", "wait", "end"]
    gap_ns: int = 0
    operation: ReplayedOperation | None = None
    pickup_ns: int = 0
    resume_ns: int = 0


@dataclass
class ReplayedIteration:
    """One rank's iteration in a replay, in ns of the virtual clock.

    ``compute_ns`` is what its program computed. ``communication_ns`` is the time in
    which any of its operations was under way, all members there and circuits up;
    ``hidden_ns`` the part of it in which the program computed. The rest as in
    :class:`railx.fabric.core.GrantAction`.
    """

    iteration: int
    rank: int
    begin_ns: int
    end_ns: int
    compute_ns: int = 0
    communication_ns: int = 0
    hidden_ns: int = 0
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


_Interval = tuple[int, int]


@dataclass
class _Rank:
    steps: Sequence[Step]
    next: int = 0
    clock_ns: int = 0
    waits_for: OperationKey | None = None
    at_begin: bool = False
    ended: set[OperationKey] = field(default_factory=set)
    #: Operations by lane that have not ended, with the step that issued each.
    lanes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    asking: int = 0
    computed: list[_Interval] = field(default_factory=list)
    transferred: dict[int, list[_Interval]] = field(default_factory=lambda: defaultdict(list))


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
        #: Members that stand before an operation, with the step that issued it.
        self._arrived: dict[OperationKey, dict[int, int]] = defaultdict(dict)
        self._results: dict[tuple[int, int], ReplayedIteration] = {}

    def run(self) -> None:
        """Carry out everything; ValueError where a rank cannot come to its end."""
        for rank in self._ranks:
            self._go_on(rank)
        while self._events:
            self._now_ns, _, event = heapq.heappop(self._events)
            event()
        for rank, state in self._ranks.items():
            left = [step for lane in state.lanes.values() for step in lane]
            stuck = state.next if state.next < len(state.steps) else min(left, default=None)
            if stuck is not None:
                step = state.steps[stuck]
                what = "" if step.operation is None else f" operation {step.operation.key}"
                raise ValueError(
                    f"rank {rank} never ends step {stuck} (iteration {step.iteration}):"
                    f" {step.does}{what}"
                )

    def rows(self) -> list[ReplayedIteration]:
        """What came of it, by iteration and rank."""
        for result in self._results.values():
            state = self._ranks[result.rank]
            span = [(result.begin_ns, result.end_ns)]
            computed = _shared(_union(state.computed), span)
            transferred = _shared(_union(state.transferred[result.iteration]), span)
            result.compute_ns = _length(computed)
            result.communication_ns = _length(transferred)
            result.hidden_ns = _length(_shared(computed, transferred))
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

    # The program of a rank

    def _go_on(self, rank: int) -> None:
        """Plan the next step of a program that waits for nothing."""
        state = self._ranks[rank]
        state.clock_ns = self._now_ns
        if state.next == len(state.steps):
            return
        step = state.steps[state.next]
        if step.does == "begin":
            state.at_begin = True
            self._begin_together()
        else:
            if step.gap_ns:
                state.computed.append((self._now_ns, self._now_ns + step.gap_ns))
            self._at(self._now_ns + step.gap_ns, functools.partial(self._take, rank))

    def _begin_together(self) -> None:
        """Begin the iteration once all ranks that still have one are there."""
        waiting = [state for state in self._ranks.values() if state.next < len(state.steps)]
        if not all(state.at_begin for state in waiting):
            return
        for rank, state in self._ranks.items():
            if state.at_begin:
                state.at_begin = False
                gap_ns = state.steps[state.next].gap_ns
                self._at(self._now_ns + gap_ns, functools.partial(self._take, rank))

    def _take(self, rank: int) -> None:
        """The next step of a program happens now."""
        state = self._ranks[rank]
        number = state.next
        step = state.steps[number]
        if step.does == "wait":
            assert step.operation is not None
            state.waits_for = step.operation.key
            if step.operation.key in state.ended:
                self._resume(rank)
            return
        state.next += 1
        if step.operation is not None:
            lane = state.lanes[step.operation.key[0]]
            lane.append(number)
            if len(lane) == 1:
                self._at(
                    self._now_ns + step.pickup_ns, functools.partial(self._arrive, rank, number)
                )
        elif step.does == "end":
            self._result(rank, step).end_ns = self._now_ns
        else:
            self._result(rank, step)
        self._go_on(rank)
        if state.next == len(state.steps):
            self._begin_together()

    def _resume(self, rank: int) -> None:
        state = self._ranks[rank]
        state.waits_for = None
        resume_ns = state.steps[state.next].resume_ns
        state.next += 1
        self._at(self._now_ns + resume_ns, functools.partial(self._go_on, rank))

    # An operation

    def _arrive(self, rank: int, number: int) -> None:
        operation = self._operation(rank, number)
        arrived = self._arrived[operation.key]
        arrived[rank] = number
        if self._asks(operation):
            self._ranks[rank].asking += 1
            self._act(
                self._core.ask(rank, number, operation.key, operation.configuration, self._now_ns)
            )
            return
        if rank in operation.alone:
            self._start(rank, number)
        if len(arrived) == len(operation.configuration.members):
            self._start_others(operation)

    def _operation(self, rank: int, number: int) -> ReplayedOperation:
        operation = self._ranks[rank].steps[number].operation
        assert operation is not None
        return operation

    def _start_others(self, operation: ReplayedOperation) -> None:
        for rank, number in self._arrived.pop(operation.key).items():
            if self._asks(operation) or rank not in operation.alone:
                self._start(rank, number)

    def _start(self, rank: int, number: int) -> None:
        step, operation = self._ranks[rank].steps[number], self._operation(rank, number)
        end_ns = self._now_ns + operation.lasts_ns[rank]
        self._ranks[rank].transferred[step.iteration].append((self._now_ns, end_ns))
        self._at(end_ns, functools.partial(self._end, rank, number))

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
            self._start_others(operation)

    def _switched(self, command: int) -> None:
        self._act(self._core.switched(command, self._now_ns))

    def _end(self, rank: int, number: int) -> None:
        state, operation = self._ranks[rank], self._operation(rank, number)
        state.ended.add(operation.key)
        lane = state.lanes[operation.key[0]]
        lane.pop(0)
        if self._asks(operation):
            state.asking -= 1
            self._act(self._core.release(rank, operation.key, self._now_ns))
        if lane:
            pickup_ns = state.steps[lane[0]].pickup_ns
            self._at(self._now_ns + pickup_ns, functools.partial(self._arrive, rank, lane[0]))
        elif self._asks(operation):
            following = self._following(state, number)
            if following is not None and following != operation.configuration:
                self._act(self._core.hint(rank, following, self._now_ns))
        if state.waits_for == operation.key:
            self._resume(rank)

    def _following(self, state: _Rank, number: int) -> Configuration | None:
        """What this rank's next operation of the iteration will need.

        None where that may not be announced now.
        """
        if self._mode != "provisioned" or state.asking > 0:
            return None
        for later in state.steps[state.next :]:
            if later.iteration != state.steps[number].iteration:
                return None
            if later.does == "issue" and later.operation and self._asks(later.operation):
                return later.operation.configuration
        return None


def _union(intervals: Sequence[_Interval]) -> list[_Interval]:
    """The same moments in intervals that do not overlap, in order."""
    joined: list[_Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _shared(ones: Sequence[_Interval], others: Sequence[_Interval]) -> list[_Interval]:
    """The moments in both; each has intervals in order that do not overlap."""
    found, i, j = [], 0, 0
    while i < len(ones) and j < len(others):
        begin, end = max(ones[i][0], others[j][0]), min(ones[i][1], others[j][1])
        if begin < end:
            found.append((begin, end))
        if ones[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(intervals: Sequence[_Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
