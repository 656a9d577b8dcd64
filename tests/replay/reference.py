"""The reference of the compiled replay: programs against the controller's own core.

In the optical modes operations meet the controller's state machine
(:class:`railx.fabric.core.ControllerCore`). So waits for peers, conflicts between
groups and late hints have their real effect.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from railx.errors import UserError
from railx.fabric.circuits import Configuration, Layout
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import (
    Action,
    GrantAction,
    RecallAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.holdings import Holdings, OperationKey
from railx.fabric.settings import Mode
from railx.replay.programs import IMPATIENT_NS, PATIENCE_NS, stuck_message
from railx.replay.run import Prepared, Replayed
from railx.replay.wiring import CircuitModel
from tests.replay.programs import Logged, ReplayedOperation, Step, steps_of

__all__ = ["ReplayedIteration", "replay", "replay_prepared", "rows_of"]


@dataclass
class ReplayedIteration:
    """One rank's iteration in a replay, in ns of the virtual clock.

    ``compute_ns`` is what its program computed. ``communication_ns`` is the time in
    which any of its operations was under way, all members there and circuits up;
    ``hidden_ns`` the part of it in which the program computed. The rest as in
    :class:`railx.fabric.decisions.state.GrantAction`.
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


def rows_of(replayed: Replayed) -> list[ReplayedIteration]:
    """The table of a replay as objects, by iteration and rank."""
    columns = {name: values.tolist() for name, values in replayed.table.items()}
    rows = [
        ReplayedIteration(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]
    return sorted(rows, key=lambda row: (row.iteration, row.rank))


def replay(
    programs: Mapping[int, Sequence[Step]],
    layout: CircuitModel,
    mode: Mode,
    latency_ns: int,
    *,
    log: list[Logged] | None = None,
    keep_leases: bool = False,
    message_ns: int = 0,
) -> list[ReplayedIteration]:
    """Carry out the programs (by rank) on a virtual clock that starts at 0.

    Returns one row per iteration and rank, in order. Decisions are added to ``log``.
    ``keep_leases``: leases stay with their members until they are recalled, as in a
    run, and an operation on them sends no question. Where messages take no time, this
    changes the number of questions; it changes a time only where groups contend for
    ports at one moment, because an operation on held circuits waits in no queue.
    ``message_ns``: time of a message from a rank to the controller, or back, with the
    threads that wake up for it; a measured value, 0 without one.
    Raises ValueError where the programs cannot end, because a rank waits for an
    operation that another rank never comes to.
    """
    run = _Replay(
        programs, layout, mode, latency_ns, log, keep_leases=keep_leases, message_ns=message_ns
    )
    run.run()
    return run.rows()


def replay_prepared(
    prepared: Prepared,
    mode: Mode,
    latency_ns: int,
    *,
    keep_leases: bool = False,
    message_ns: int = 0,
) -> Replayed:
    """:func:`replay` with the arguments of :func:`railx.replay.run.replay_programs`."""
    log: list[Logged] = []
    rows = replay(
        steps_of(prepared.programs),
        prepared.model,
        mode,
        latency_ns,
        log=log,
        keep_leases=keep_leases,
        message_ns=message_ns,
    )
    names = list(ReplayedIteration.__dataclass_fields__)
    table = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in names}
    none = np.full(len(prepared.programs), -1, np.int64)
    commands = sum(item.decision == "switch" for item in log)
    return Replayed(table, none, none, 0, commands)


_Interval = tuple[int, int]


@dataclass
class _Rank:
    steps: Sequence[Step]
    holdings: Holdings
    next: int = 0
    waits_for: OperationKey | None = None
    at_begin: bool = False
    ended: set[OperationKey] = field(default_factory=set)
    #: Operations by lane that have not ended, with the step that issued each.
    lanes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: Operations that need circuits: every one before this step has asked.
    unasked: int = 0
    #: Those that have asked (or hold their circuits), of them those that were not
    #: granted yet, and those that were.
    asked: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    #: Those whose grant is in the results; a recall may be followed by a second one.
    accounted: set[int] = field(default_factory=set)
    #: How many were granted and have not ended.
    under_way: int = 0
    #: The last collective that has ended, by its step.
    passed: int = -1
    #: Messages that were sent and not granted yet, in the order of issue.
    unsent: dict[int, None] = field(default_factory=dict)
    #: Collectives that wait behind such a message.
    behind: dict[int, int] = field(default_factory=dict)
    patience_ns: dict[Configuration, int] = field(default_factory=dict)
    computed: list[_Interval] = field(default_factory=list)
    transferred: dict[int, list[_Interval]] = field(default_factory=lambda: defaultdict(list))


class _Replay:
    def __init__(
        self,
        programs: Mapping[int, Sequence[Step]],
        layout: CircuitModel,
        mode: Mode,
        latency_ns: int,
        log: list[Logged] | None,
        *,
        keep_leases: bool,
        message_ns: int,
    ) -> None:
        self._mode = mode
        self._latency_ns = latency_ns
        self._log = log
        self._layout = layout
        self._keep_leases = keep_leases
        self._message_ns = message_ns
        self._ranks = {
            rank: _Rank(steps, Holdings(cast("Layout", layout))) for rank, steps in programs.items()
        }
        # A circuit model has all that the core asks of a layout.
        self._core = ControllerCore(cast("Layout", layout), max(programs, default=-1) + 1)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_ns = 0
        #: Members that stand before an operation, with the step that issued it.
        self._arrived: dict[OperationKey, dict[int, int]] = defaultdict(dict)
        #: Those of them that may begin: granted, or on circuits that they hold.
        self._ready: dict[OperationKey, set[int]] = defaultdict(set)
        self._results: dict[tuple[int, int], ReplayedIteration] = {}

    def run(self) -> None:
        """Run all events; ValueError where a rank cannot finish."""
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
                key = None if step.operation is None else step.operation.key
                raise UserError(stuck_message(rank, stuck, step.iteration, step.does, key))

    def rows(self) -> list[ReplayedIteration]:
        """The results by iteration and rank."""
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
        return self._mode != "electrical" and not self._layout.is_scale_up(
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
            if step.operation.sender == rank and self._asks(step.operation):
                state.unsent[number] = None
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
        if self._asks(operation):
            self._ask_in_turn(rank, number)
            return
        arrived = self._arrived[operation.key]
        arrived[rank] = number
        if rank in operation.alone:
            self._start(rank, number)
        if len(arrived) == len(operation.configuration.members):
            self._start_others(operation)

    def _ask_in_turn(self, rank: int, number: int) -> None:
        """Ask for circuits, behind messages that have to go first."""
        state = self._ranks[rank]
        other = self._ahead_of(rank, number)
        if other is None:
            self._ask(rank, number)
            return
        configuration = self._operation(rank, number).configuration
        limit_ns = state.patience_ns.get(configuration, PATIENCE_NS)
        state.behind[number] = other
        self._at(
            self._now_ns + limit_ns, functools.partial(self._lose_patience, rank, number, other)
        )

    def _ahead_of(self, rank: int, number: int) -> int | None:
        """The message that a collective waits behind, as ranks of a run do.

        An earlier one of this rank that needs the same ports and whose receiver has not
        come yet. If the collective went first, the message would interrupt the next
        ones.
        """
        state = self._ranks[rank]
        configuration = self._operation(rank, number).configuration
        if configuration.kind != "ring" or state.patience_ns.get(configuration, 1) <= 0:
            return None
        for other in state.unsent:
            if other < number and self._layout.conflict(
                self._operation(rank, other).configuration, configuration
            ):
                return other
        return None

    def _lose_patience(self, rank: int, number: int, other: int) -> None:
        """The receiver may come only after the collective, which then goes first."""
        state = self._ranks[rank]
        if state.behind.get(number) != other:
            return
        del state.behind[number]
        configuration = self._operation(rank, number).configuration
        limit_ns = state.patience_ns.get(configuration, PATIENCE_NS)
        state.patience_ns[configuration] = limit_ns // 2 if limit_ns > IMPATIENT_NS else 0
        self._ask(rank, number)

    def _go_ahead(self, rank: int, number: int, other: int) -> None:
        """The message that a collective waited behind was granted."""
        state = self._ranks[rank]
        if state.behind.get(number) != other:
            return
        del state.behind[number]
        state.patience_ns.pop(self._operation(rank, number).configuration, None)
        self._ask_in_turn(rank, number)

    def _ask(self, rank: int, number: int) -> None:
        state, operation = self._ranks[rank], self._operation(rank, number)
        key, configuration = operation.key, operation.configuration
        self._arrived[key][rank] = number
        state.asked.add(number)
        if self._keep_leases and state.holdings.begin(key, configuration):
            self._may_begin(rank, number)
            self._start_if_ready(operation)
            return
        state.waiting.add(number)
        self._tell(
            lambda now_ns: self._core.ask(
                rank, number, key, configuration, now_ns, can_hold=self._keep_leases
            )
        )

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

    # Messages

    def _tell(self, message: Callable[[int], Sequence[Action]]) -> None:
        """A rank's message gets to the controller, in the order of sending."""
        if self._message_ns:
            self._at(self._now_ns + self._message_ns, lambda: self._act(message(self._now_ns)))
        else:
            self._act(message(self._now_ns))

    def _act(self, actions: Sequence[Action]) -> None:
        """Execute the controller's actions: switches now, ranks a message later."""
        if not self._message_ns:
            self._carry_out(actions)
            return
        kinds = (GrantAction, RecallAction)
        self._carry_out([action for action in actions if not isinstance(action, kinds)])
        to_ranks = [action for action in actions if isinstance(action, kinds)]
        if to_ranks:
            self._at(self._now_ns + self._message_ns, functools.partial(self._carry_out, to_ranks))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        granted: dict[OperationKey, set[int]] = {}
        left = deque(actions)
        while left:
            action = left.popleft()
            if isinstance(action, GrantAction):
                self._take_grant(action)
                if action.key not in granted:
                    self._note("grant", action.key)
                granted.setdefault(action.key, set()).add(action.rank)
            elif isinstance(action, RecallAction):
                report = self._give_back(action.rank, action.configuration, action.hold)
                if report is not None and self._message_ns:
                    self._tell(report)
                elif report is not None:
                    # What follows from it comes after what was decided before.
                    left += report(self._now_ns)
            elif isinstance(action, RefuseAction):
                raise UserError(action.message)
            elif isinstance(action, SwitchAction):
                self._note("switch", (action.rail, *action.connect))
                self._at(
                    self._now_ns + self._latency_ns,
                    functools.partial(self._switched, action.command),
                )
        for key, members in granted.items():
            arrived = self._arrived[key]
            for rank, number in arrived.items():
                if rank in members:
                    self._may_begin(rank, number)
            self._start_if_ready(self._operation(*next(iter(arrived.items()))))

    def _take_grant(self, action: GrantAction) -> None:
        rank = self._ranks[action.rank]
        number = self._arrived[action.key][action.rank]
        if number not in rank.accounted:
            rank.accounted.add(number)
            result = self._result(action.rank, rank.steps[number])
            result.requests += 1
            result.reconfigurations += int(action.reconfigured > 0)
            result.stall_ns += action.stall_ns
            result.wait_ns += action.wait_ns
            result.mispredictions += int(action.mispredicted)
        note = rank.holdings.granted if action.request is not None else rank.holdings.granted_late
        note(action.key, action.configuration, action.hold)

    def _give_back(
        self, rank: int, configuration: Configuration, hold: int | None = None
    ) -> Callable[[int], Sequence[Action]] | None:
        """A rank gives a held lease back; operations not begun on it have to wait.

        Returns the message to the controller, None without a lease.
        """
        report = self._ranks[rank].holdings.recall(configuration, hold)
        if report is None:
            return None
        for key in report.open:
            if key in self._arrived:
                self._ready[key].discard(rank)
        return lambda now_ns: self._core.recalled(rank, configuration, report, now_ns)

    def _note(self, decision: Literal["grant", "switch"], what: tuple[Any, ...]) -> None:
        if self._log is not None:
            self._log.append(Logged(self._now_ns, decision, what))

    def _may_begin(self, rank: int, number: int) -> None:
        state = self._ranks[rank]
        self._ready[self._operation(rank, number).key].add(rank)
        if number in state.begun:
            return
        state.begun.add(number)
        state.waiting.discard(number)
        state.under_way += 1
        if number in state.unsent:
            del state.unsent[number]
            for behind, other in state.behind.items():
                if other == number:
                    self._at(self._now_ns, functools.partial(self._go_ahead, rank, behind, other))

    def _start_if_ready(self, operation: ReplayedOperation) -> None:
        if len(self._ready[operation.key]) == len(operation.configuration.members):
            del self._ready[operation.key]
            self._start_others(operation)

    def _switched(self, command: int) -> None:
        self._act(self._core.switched(command, self._now_ns))

    def _end(self, rank: int, number: int) -> None:
        state, operation = self._ranks[rank], self._operation(rank, number)
        state.ended.add(operation.key)
        lane = state.lanes[operation.key[0]]
        lane.pop(0)
        if self._asks(operation):
            state.under_way -= 1
            if operation.configuration.kind == "ring":
                state.passed = max(state.passed, number)
            if state.holdings.end(operation.key):
                self._tell(lambda now_ns: self._core.release(rank, operation.key, now_ns))
        if lane:
            pickup_ns = state.steps[lane[0]].pickup_ns
            self._at(self._now_ns + pickup_ns, functools.partial(self._arrive, rank, lane[0]))
        if self._asks(operation):
            following = self._following(state)
            if following is not None and following != operation.configuration:
                self._announce(rank, following)
        if state.waits_for == operation.key:
            self._resume(rank)

    def _announce(self, rank: int, following: Configuration) -> None:
        """Announce the next configuration; conflicting leases are given back."""
        holdings = self._ranks[rank].holdings
        if holdings.holds(following):
            return
        for configuration in holdings.in_the_way_of(following):
            report = self._give_back(rank, configuration)
            if report is not None:
                self._tell(report)
        self._tell(lambda now_ns: self._core.hint(rank, following, now_ns))

    def _following(self, state: _Rank) -> Configuration | None:
        """What to announce when an operation has ended, as ranks of a run do.

        What the first one needs that has not asked yet, be it issued or the next of the
        iteration. None while another is under way, or has asked and comes first. (A
        receive that was posted long ago, so that collectives have overtaken it, does
        not come first.)
        """
        if self._mode != "provisioned" or state.under_way > 0:
            return None
        if any(number > state.passed for number in state.waiting):
            return None
        while state.unasked < len(state.steps):
            step = state.steps[state.unasked]
            if (
                step.does == "issue"
                and step.operation is not None
                and self._asks(step.operation)
                and state.unasked not in state.asked
            ):
                reached = (
                    state.unasked < state.next
                    or step.iteration == state.steps[state.next - 1].iteration
                )
                return step.operation.configuration if reached else None
            state.unasked += 1
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
    common, i, j = [], 0, 0
    while i < len(ones) and j < len(others):
        begin, end = max(ones[i][0], others[j][0]), min(ones[i][1], others[j][1])
        if begin < end:
            common.append((begin, end))
        if ones[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return common


def _length(intervals: Sequence[_Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
