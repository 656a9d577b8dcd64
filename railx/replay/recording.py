"""A recorded run as programs for the replay.

The trace says when each rank's program issued an operation, waited for it and went on
(``training.trace``). Between these moments it computed. Two readings of a recording:

* as it was (:func:`recorded_programs`): computation lasts as long as it did on the wall
  clock, an operation as long as it did from the arrival of its last member, and the
  delays of threads (picking an operation up, waking up) stay. On an electrical fabric
  this gives the recording's own iteration times;
* on a cluster (:func:`cluster_programs`): computation lasts as long as the program's
  busy clock says (time on a processor, never wall time of one that ranks share), an
  operation as long as a network model says, and no thread is late.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railx.fabric.circuits import Configuration
from railx.fabric.core import OperationKey
from railx.fabric.operation_kinds import COMMUNICATION
from railx.replay.engine import ReplayedOperation, Step

__all__ = ["Price", "cluster_programs", "recorded_programs"]

#: How long an operation takes once all are there: kind, bytes and members to ns.
Price = Callable[[str, int, tuple[int, ...]], float]

_Event = Mapping[str, Any]


def recorded_programs(events: Iterable[_Event]) -> dict[int, list[Step]]:
    """The programs of a recorded electrical run as it was, by rank.

    ``events`` are rows of a trace (columns of ``training.trace.SCHEMA``) of one run.
    Kinds other than collectives and messages of two or more ranks count as computation.
    Raises ValueError naming what the trace lacks.
    """
    recording = _Recording(events)
    return recording.programs(recording.as_recorded, wall=True)


def cluster_programs(events: Iterable[_Event], price: Price) -> dict[int, list[Step]]:
    """The programs of a recorded electrical run on a cluster, by rank.

    Arguments and errors as of :func:`recorded_programs`; ``price`` says how long an
    operation takes.
    """
    recording = _Recording(events)

    def priced(members: Mapping[int, _Event]) -> tuple[dict[int, int], frozenset[int]]:
        first = next(iter(members.values()))
        size = max(event["bytes"] for event in members.values())
        lasts_ns = round(price(first["kind"], size, _ranks(first)))
        return dict.fromkeys(members, lasts_ns), frozenset()

    return recording.programs(priced, wall=False)


@dataclass(frozen=True)
class _Point:
    """A moment of a program: when, for how long it then stood still, and its step.

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
        for key, members in self._members.items():
            event = next(iter(members.values()))
            operations[key] = ReplayedOperation(key, _configuration(event), *timed(members))
        first = self._first_begins()
        return {
            rank: self._program(
                sorted(points, key=_order), operations, self._pickups(), first, wall=wall
            )
            for rank, points in sorted(self._points.items())
        }

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
            raise ValueError(
                "trace: it has reconfigurations; allowed: the trace of an electrical run"
            )
        if event["kind"] == "iteration":
            begun[rank] += 1
            for does, moment in (("begin", "issued"), ("end", "resumed")):
                at = (event[f"{moment}_ns"], event[f"{moment}_busy_ns"])
                self._points[rank].append(
                    _Point(at[0], at[0], at[1], at[1], does, iteration, event)
                )
        if event["kind"] not in COMMUNICATION or len(_ranks(event)) < 2:
            return
        if event["issued_busy_ns"] is None:
            raise ValueError(
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
                raise ValueError(
                    f"trace: rank {rank} has no event of kind iteration; allowed: a trace that"
                    " spans its iterations"
                )
        for key, members in self._members.items():
            wanted = _ranks(next(iter(members.values())))
            missing = sorted(set(wanted) - set(members))
            if missing:
                raise ValueError(
                    f"trace: operation {key[1]} of {key[0]} is there for ranks {sorted(members)},"
                    f" but not for {missing}"
                )

    def _pickups(self) -> dict[tuple[int, OperationKey], int]:
        """How long each operation, first of its lane, took to begin."""
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
        begins = min((point.begin_ns for point in points if point.does == "begin"), default=0)
        for point in points:
            if point.begin_ns < begins:
                continue
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


def _order(point: _Point) -> tuple[int, int, int]:
    """Moments in the order of a program, also where the clock shows the same."""
    place = ("begin", "issue", "wait", "end").index(point.does)
    return point.begin_ns, place, point.event["sequence"]


def _ranks(event: _Event) -> tuple[int, ...]:
    return tuple(int(member) for member in event["group"].split(",")) if event["group"] else ()


def _key(event: _Event) -> OperationKey:
    return f"{event['group']}:{event['channel']}", event["sequence"]


def _configuration(event: _Event) -> Configuration:
    kind = "pair" if event["kind"] in ("send", "recv") else "ring"
    return Configuration("pair" if kind == "pair" else "ring", _ranks(event))
