"""A recorded run as programs for the replay.

The trace has the times at which each rank's program issued an operation, waited for it
and went on (``railx_torch.trace``); in between it computed. Two readings of it:

* as it was (:func:`recorded_programs`): computation lasts as long as it did on the wall
  clock, an operation as long as it did from the arrival of its last member, and the
  delays of threads (picking an operation up, waking up) stay. On an electrical fabric
  this gives the recording's own iteration times;
* on a cluster (:func:`cluster_programs`): computation lasts as long as the program's
  busy clock says (time on a processor, never wall time of one that ranks share), an
  operation as long as a network model says, and no thread is late. Forward and backward
  passes may last as long as a profile says instead (:mod:`railx.replay.cluster_time`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from railx.errors import UserError
from railx.fabric.circuits import COMMUNICATION, Configuration
from railx.fabric.holdings import OperationKey
from railx.replay.programs import ReplayedOperation, Step

__all__ = ["Passes", "Price", "cluster_programs", "recorded_programs"]

#: The phases of computation that a profile knows.
_PASSES = ("forward", "backward")
#: How long an operation takes once all are there: kind, bytes and members to ns.
Price = Callable[[str, int, tuple[int, ...]], float]

#: By rank and iteration the passes in their order: ``forward`` or ``backward``, and ms.
Passes = Mapping[tuple[int, int], Sequence[tuple[str, float]]]

_Event = Mapping[str, Any]


def recorded_programs(events: Iterable[_Event]) -> dict[int, list[Step]]:
    """The programs of a recorded electrical run as it was, by rank.

    ``events`` are rows of a trace (columns of ``railx_torch.trace.SCHEMA``) of one run.
    Kinds other than collectives and messages of two or more ranks count as computation.
    Raises ValueError naming what the trace lacks.
    """
    recording = _Recording(events)
    return recording.programs(recording.as_recorded, wall=True)


def cluster_programs(
    events: Iterable[_Event],
    price: Price,
    passes: Passes | None = None,
    *,
    shared_device: bool = False,
) -> dict[int, list[Step]]:
    """The programs of a recorded electrical run on a cluster, by rank.

    Arguments and errors as of :func:`recorded_programs`; ``price`` says how long an
    operation takes, ``passes`` how long passes do (None: as long as they were busy).
    Neighbouring passes of one kind are told apart by nothing in a trace: their time is
    spread over their moments as it was. What is no pass lasts as long as it was busy,
    but where ranks shared a device (``shared_device``), whose clock is nobody's own: it
    is left out. ValueError where a rank ran other passes.
    """
    recording = _Recording(events)

    def priced(members: Mapping[int, _Event]) -> tuple[dict[int, int], frozenset[int]]:
        first = next(iter(members.values()))
        size = max(event["bytes"] for event in members.values())
        lasts_ns = round(price(first["kind"], size, _ranks(first)))
        return dict.fromkeys(members, lasts_ns), frozenset()

    steps = recording.programs(priced, wall=False)
    return steps if passes is None else recording.profiled(steps, passes, shared=shared_device)


@dataclass(frozen=True)
class _Point:
    """A moment of a program: its time, the pause after it, and its step.

    ``busy_ns`` are the readings of the busy clock at both ends.
    """

    begin_ns: int
    end_ns: int
    begin_busy_ns: int
    end_busy_ns: int
    does: Any
    iteration: int
    event: _Event


class _Recording:
    def __init__(self, events: Iterable[_Event]) -> None:
        self._points: dict[int, list[_Point]] = defaultdict(list)
        #: The operations, with the event of each member.
        self._members: dict[OperationKey, dict[int, _Event]] = defaultdict(dict)
        #: On each rank the operations of a channel in their order.
        self._lanes: dict[tuple[int, str], list[_Event]] = defaultdict(list)
        #: Spans of passes by rank and iteration, in their order.
        self._spans: dict[tuple[int, int], list[_Event]] = defaultdict(list)
        begun: dict[int, int] = defaultdict(int)
        for event in events:
            self._add(event, begun)
        self._check(begun)
        #: When an operation had its turn on a rank, and when it ended there.
        self._turns = dict(self._find_turns())

    def programs(
        self,
        timed: Callable[[Mapping[int, _Event]], tuple[dict[int, int], frozenset[int]]],
        *,
        wall: bool,
    ) -> dict[int, list[Step]]:
        """The steps of every rank; ``timed`` says how long an operation takes whom."""
        operations = {}
        for channel, keys in itertools.groupby(sorted(self._members), key=lambda key: key[0]):
            # A trace may lack operations of a channel, which no rank waits for then.
            for number, key in enumerate(keys):
                members = self._members[key]
                needs = _configuration(next(iter(members.values())))
                operations[key] = ReplayedOperation((channel, number), needs, *timed(members))
        first = self._first_begins()
        return {
            rank: self._program(
                self._ordered(points), operations, self._pickups(), first, wall=wall
            )
            for rank, points in sorted(self._points.items())
        }

    def profiled(
        self, programs: Mapping[int, Sequence[Step]], passes: Passes, *, shared: bool
    ) -> dict[int, list[Step]]:
        """The programs with the passes' own times in place of what they were busy."""
        profiled = {}
        for rank, steps in programs.items():
            gaps = self._gaps(rank)
            rest = [0.0 if shared else float(step.gap_ns) for step in steps]
            added = [0.0] * len(steps)
            for iteration in sorted({step.iteration for step in steps}):
                numbers = [n for n, step in enumerate(steps) if step.iteration == iteration]
                spans = sorted(self._spans[rank, iteration], key=lambda span: span["start_ns"])
                lasts_ns = _spread(spans, passes.get((rank, iteration), ()), rank, iteration)
                for span, span_ns in zip(spans, lasts_ns, strict=True):
                    for number, share in _shares(span, numbers, gaps):
                        rest[number] -= share * span["busy_ns"]
                        added[number] += share * span_ns
            profiled[rank] = [
                replace(step, gap_ns=round(max(0.0, left) + more))
                for step, left, more in zip(steps, rest, added, strict=True)
            ]
        return profiled

    def _gaps(self, rank: int) -> list[tuple[int, int]]:
        """When the program computed before each of its steps, on the wall clock."""
        points = self._ordered(self._points[rank])
        return [(0, 0)] + [
            (0, 0) if point.does == "begin" else (last.end_ns, point.begin_ns)
            for last, point in itertools.pairwise(points)
        ]

    @staticmethod
    def _ordered(points: Iterable[_Point]) -> list[_Point]:
        """The points of a program from the begin of its first iteration on."""
        ordered = sorted(points, key=_order)
        begins = min((point.begin_ns for point in ordered if point.does == "begin"), default=0)
        return [point for point in ordered if point.begin_ns >= begins]

    def _first_begins(self) -> dict[int, int]:
        """When the first rank began each iteration."""
        first: dict[int, int] = {}
        for point in itertools.chain.from_iterable(self._points.values()):
            if point.does == "begin":
                first[point.iteration] = min(
                    point.begin_ns, first.get(point.iteration, point.begin_ns)
                )
        return first

    def as_recorded(self, members: Mapping[int, _Event]) -> tuple[dict[int, int], frozenset[int]]:
        """From the turn of the last member to the own end.

        A member that had ended by then depends on nobody: from its own turn.
        """
        turns = {rank: self._turns[rank, _key(event)] for rank, event in members.items()}
        arrived_ns = max(start_ns for start_ns, _ in turns.values())
        alone = frozenset(rank for rank, (_, end_ns) in turns.items() if end_ns < arrived_ns)
        return {
            rank: end_ns - (start_ns if rank in alone else arrived_ns)
            for rank, (start_ns, end_ns) in turns.items()
        }, alone

    def _find_turns(self) -> Iterator[tuple[tuple[int, OperationKey], tuple[int, int]]]:
        """Operations of a lane one after another, though they were begun together.

        An end that is seen only after that of a later one was no later than it.
        """
        for (rank, _), events in self._lanes.items():
            events.sort(key=lambda event: event["sequence"])
            ends = itertools.accumulate((event["end_ns"] for event in reversed(events)), min)
            free_ns = 0
            for event, end_ns in zip(events, reversed(list(ends)), strict=True):
                start_ns = max(free_ns, event["start_ns"])
                free_ns = max(start_ns, end_ns)
                yield (rank, _key(event)), (start_ns, free_ns)

    def _add(self, event: _Event, begun: dict[int, int]) -> None:
        rank, iteration = event["rank"], event["iteration"]
        if event["kind"] == "reconfiguration":
            raise UserError(
                "trace: it has reconfigurations; allowed: the trace of an electrical run"
            )
        if event["kind"] == "iteration":
            begun[rank] += 1
            for does, moment in (("begin", "issued"), ("end", "resumed")):
                at = (event[f"{moment}_ns"], event[f"{moment}_busy_ns"])
                self._points[rank].append(
                    _Point(at[0], at[0], at[1], at[1], does, iteration, event)
                )
        if event["kind"] == "compute" and event["phase"] in _PASSES:
            self._spans[rank, iteration].append(event)
        if event["kind"] not in COMMUNICATION or len(_ranks(event)) < 2:
            return
        if event["issued_busy_ns"] is None:
            raise UserError(
                f"trace: {event['kind']} of rank {rank} does not say when it was issued; allowed:"
                " a trace with the columns issued_ns, waited_ns and resumed_ns"
            )
        self._members[_key(event)][rank] = event
        self._lanes[rank, _key(event)[0]].append(event)
        issued = (event["issued_ns"], event["issued_busy_ns"])
        self._points[rank].append(
            _Point(issued[0], issued[0], issued[1], issued[1], "issue", iteration, event)
        )
        if event["waited_ns"] is not None and event["resumed_ns"] is not None:
            walls = (event["waited_ns"], event["resumed_ns"])
            busy = (event["waited_busy_ns"], event["resumed_busy_ns"])
            self._points[rank].append(_Point(*walls, *busy, "wait", iteration, event))

    def _check(self, begun: Mapping[int, int]) -> None:
        ranks = sorted({rank for members in self._members.values() for rank in members})
        for rank in ranks:
            if begun[rank] == 0:
                raise UserError(
                    f"trace: rank {rank} has no event of kind iteration; allowed: a trace that"
                    " spans its iterations"
                )
        for key, members in self._members.items():
            expected = _ranks(next(iter(members.values())))
            missing = sorted(set(expected) - set(members))
            if missing:
                raise UserError(
                    f"trace: operation {key[1]} of {key[0]} is there for ranks {sorted(members)},"
                    f" but not for {missing}"
                )

    def _pickups(self) -> dict[tuple[int, OperationKey], int]:
        """The delay of each operation after it was the first of its lane."""
        delays = {}
        for (rank, _), events in self._lanes.items():
            free_ns = 0
            for event in events:
                start_ns, end_ns = self._turns[rank, _key(event)]
                delays[rank, _key(event)] = max(0, start_ns - max(free_ns, event["issued_ns"]))
                free_ns = end_ns
        return delays

    def _program(
        self,
        points: Sequence[_Point],
        operations: Mapping[OperationKey, ReplayedOperation],
        pickups: Mapping[tuple[int, OperationKey], int],
        first_begins: Mapping[int, int],
        *,
        wall: bool,
    ) -> list[Step]:
        steps: list[Step] = []
        last: _Point | None = None
        for point in points:
            event = point.event
            operation = operations[_key(event)] if point.does in ("issue", "wait") else None
            gap_ns = pickup_ns = resume_ns = 0
            if last is not None and point.does != "begin":
                walls, busy = (last.end_ns, point.begin_ns), (last.end_busy_ns, point.begin_busy_ns)
                before, now = walls if wall else busy
                gap_ns = max(0, now - before)
            if wall and point.does == "begin":
                gap_ns = point.begin_ns - first_begins[point.iteration]
            if wall and point.does == "issue":
                pickup_ns = pickups[event["rank"], _key(event)]
            if wall and point.does == "wait":
                _, ended_ns = self._turns[event["rank"], _key(event)]
                resume_ns = max(0, point.end_ns - max(point.begin_ns, ended_ns))
            steps.append(Step(point.iteration, point.does, gap_ns, operation, pickup_ns, resume_ns))
            last = point
        return steps


def _spread(
    spans: Sequence[_Event], passes: Sequence[tuple[str, float]], rank: int, iteration: int
) -> list[float]:
    """How long each span lasts in ns, by the passes that it is a part of."""
    runs = [list(run) for _, run in itertools.groupby(spans, key=lambda span: span["phase"])]
    planned = [
        (phase, sum(ms for _, ms in run))
        for phase, run in itertools.groupby(passes, key=lambda entry: entry[0])
    ]
    if [run[0]["phase"] for run in runs] != [phase for phase, _ in planned]:
        raise UserError(
            f"trace: rank {rank} ran {len(runs)} runs of passes in iteration {iteration}; allowed:"
            f" {len(planned)}, those of the plan"
        )
    lasts_ns = []
    for run, (_, run_ms) in zip(runs, planned, strict=True):
        busy_ns = sum(span["busy_ns"] for span in run)
        for span in run:
            share = span["busy_ns"] / busy_ns if busy_ns else 1 / len(run)
            lasts_ns.append(share * run_ms * 1e6)
    return lasts_ns


def _shares(
    span: _Event, steps: Sequence[int], gaps: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, float]]:
    """Which part of a span lies before which step; waiting is no part of it."""
    inside = {
        number: min(gaps[number][1], span["end_ns"]) - max(gaps[number][0], span["start_ns"])
        for number in steps
    }
    total_ns = sum(common for common in inside.values() if common > 0)
    if not total_ns:
        # A moment, or while the program waited: it counts to what follows.
        yield next((n for n in steps if gaps[n][1] >= span["start_ns"]), steps[-1]), 1.0
    for number, common in inside.items():
        if common > 0:
            yield number, common / total_ns


def _order(point: _Point) -> tuple[int, int, int]:
    """Moments in the order of a program, also where the clock shows the same."""
    rank_of_kind = ("begin", "issue", "wait", "end").index(point.does)
    return point.begin_ns, rank_of_kind, point.event["sequence"]


def _ranks(event: _Event) -> tuple[int, ...]:
    return tuple(int(member) for member in event["group"].split(",")) if event["group"] else ()


def _key(event: _Event) -> OperationKey:
    return f"{event['group']}:{event['channel']}", event["sequence"]


def _configuration(event: _Event) -> Configuration:
    kind = "pair" if event["kind"] in ("send", "recv") else "ring"
    return Configuration("pair" if kind == "pair" else "ring", _ranks(event))
