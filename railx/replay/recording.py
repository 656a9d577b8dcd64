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
from typing import Any, NamedTuple

import numpy as np

from railx.errors import UserError
from railx.fabric.circuits import COMMUNICATION, Configuration
from railx.fabric.holdings import OperationKey
from railx.replay.programs import DOES, KINDS, Programs

#: The phases of computation that a profile knows.
_PASSES = ("forward", "backward")
_BEGIN, _ISSUE, _WAIT, _END = map(DOES.index, ("begin", "issue", "wait", "end"))
#: The columns of programs that a recording fills.
_COLUMNS = (
    *("rank", "iteration", "does", "gap_ns", "channel", "sequence", "configuration"),
    *("lasts_ns", "alone", "pickup_ns", "resume_ns", "kind", "bytes"),
)
#: How long an operation takes once all are there: kind, bytes and members to ns.
Price = Callable[[str, int, tuple[int, ...]], float]

#: By rank and iteration the passes in their order: ``forward`` or ``backward``, and ms.
Passes = Mapping[tuple[int, int], Sequence[tuple[str, float]]]

_Event = Mapping[str, Any]
#: How long an operation takes each member in ns, and the members that wait for nobody.
_Lasts = tuple[Mapping[int, int], frozenset[int]]


def recorded_programs(events: Iterable[_Event], *, kinds: bool = False) -> Programs:
    """The programs of a recorded electrical run as it was.

    ``events`` are rows of a trace (columns of ``railx_torch.trace.SCHEMA``) of one run.
    Kinds other than collectives and messages of two or more ranks count as computation.
    ``kinds``: the steps say the kinds and bytes of their operations. Raises ValueError
    naming what the trace lacks.
    """
    recording = _Recording(events)
    return recording.programs(recording.as_recorded, wall=True, kinds=kinds)


def cluster_programs(
    events: Iterable[_Event],
    price: Price,
    passes: Passes | None = None,
    *,
    shared_device: bool = False,
) -> Programs:
    """The programs of a recorded electrical run on a cluster.

    Arguments and errors as of :func:`recorded_programs`; ``price`` says how long an
    operation takes, ``passes`` how long passes do (None: as long as they were busy).
    Neighbouring passes of one kind are told apart by nothing in a trace: their time is
    spread over their moments as it was. What is no pass lasts as long as it was busy,
    but where ranks shared a device (``shared_device``), whose clock is nobody's own: it
    is left out. ValueError where a rank ran other passes.
    """

    def priced(members: Mapping[int, _Event]) -> _Lasts:
        first = next(iter(members.values()))
        size = max(event["bytes"] for event in members.values())
        lasts_ns = round(price(first["kind"], size, _ranks(first)))
        return dict.fromkeys(members, lasts_ns), frozenset()

    return _Recording(events).programs(priced, passes, wall=False, shared=shared_device)


class _Point(NamedTuple):
    """A moment of a program with the pause after it, on the wall and the busy clock."""

    begin_ns: int
    end_ns: int
    busy_ns: tuple[int, int]
    does: int
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
        #: When the first rank began each iteration.
        self._begins: dict[int, int] = {}
        for event in events:
            self._add(event)
        self._check()
        #: When an operation had its turn on a rank, and when it ended there.
        self._turns = dict(self._find_turns())

    def programs(
        self,
        timed: Callable[[Mapping[int, _Event]], _Lasts],
        passes: Passes | None = None,
        *,
        wall: bool,
        shared: bool = False,
        kinds: bool = False,
    ) -> Programs:
        """The steps of every rank; ``timed`` says how long an operation takes whom.

        ``wall``: on the wall clock, with the delays of threads.
        """
        operations = {}
        for _, keys in itertools.groupby(sorted(self._members), key=lambda key: key[0]):
            # A trace may lack operations of a channel, which no rank waits for then.
            for number, key in enumerate(keys):
                operations[key] = number, *timed(self._members[key])
        pickups = self._pickups() if wall else {}
        channels: dict[str, int] = {}
        configurations: dict[Configuration, int] = {}
        rows = []
        for rank in sorted(self._points):
            points = self._ordered(rank)
            gaps = self._gaps(points, wall=wall)
            if passes is not None:
                gaps = self._profiled(rank, points, gaps, passes, shared=shared)
            for (begin_ns, end_ns, _, does, event), gap_ns in zip(points, gaps, strict=True):
                channel = number = configuration = -1
                lasts_ns = alone = pickup_ns = resume_ns = size = 0
                kind = -1
                if does in (_ISSUE, _WAIT):
                    key, needs = _key(event), _configuration(event)
                    number, lasting, buffered = operations[key]
                    channel = channels.setdefault(key[0], len(channels))
                    configuration = configurations.setdefault(needs, len(configurations))
                if does == _ISSUE:
                    lasts_ns, alone = lasting[rank], int(rank in buffered)
                    pickup_ns = pickups.get((rank, key), 0)
                    if kinds:
                        kind, size = KINDS.index(event["kind"]), event["bytes"]
                elif does == _WAIT and wall:
                    resume_ns = max(0, end_ns - max(begin_ns, self._turns[rank, key][1]))
                step = rank, event["iteration"], does, gap_ns, channel, number, configuration
                rows.append((*step, lasts_ns, alone, pickup_ns, resume_ns, kind, size))
        columns = np.array(rows, np.int64).reshape(-1, len(_COLUMNS)).T
        named = dict(zip(_COLUMNS, columns, strict=True))
        return Programs.from_columns(named, list(channels), list(configurations))

    def _ordered(self, rank: int) -> list[_Point]:
        """A program's points from its first iteration on, in the program's order."""
        ordered = sorted(
            self._points[rank], key=lambda item: (item.begin_ns, item.does, item.event["sequence"])
        )
        begins = min((point.begin_ns for point in ordered if point.does == _BEGIN), default=0)
        return [point for point in ordered if point.begin_ns >= begins]

    def _gaps(self, points: Sequence[_Point], *, wall: bool) -> list[int]:
        """How long a program computed before each of its points."""
        gaps = [0] * len(points)
        for number, point in enumerate(points):
            if point.does == _BEGIN and wall:
                gaps[number] = point.begin_ns - self._begins[point.event["iteration"]]
            elif point.does != _BEGIN and number > 0:
                last = points[number - 1]
                walls, busy = (last.end_ns, point.begin_ns), (last.busy_ns[1], point.busy_ns[0])
                before, now = walls if wall else busy
                gaps[number] = max(0, now - before)
        return gaps

    def _profiled(
        self,
        rank: int,
        points: Sequence[_Point],
        busy_ns: Sequence[int],
        passes: Passes,
        *,
        shared: bool,
    ) -> list[int]:
        """The gaps with the passes' own times in place of what they were busy."""
        # When the program computed before each point, on the wall clock.
        spent = [(0, 0)] + [
            (0, 0) if point.does == _BEGIN else (last.end_ns, point.begin_ns)
            for last, point in itertools.pairwise(points)
        ]
        rest = [0.0 if shared else float(gap_ns) for gap_ns in busy_ns]
        added = [0.0] * len(points)
        iterations = [point.event["iteration"] for point in points]
        for iteration in sorted(set(iterations)):
            numbers = [n for n, of_point in enumerate(iterations) if of_point == iteration]
            spans = sorted(self._spans[rank, iteration], key=lambda span: span["start_ns"])
            lasts_ns = _spread(spans, passes.get((rank, iteration), ()), rank, iteration)
            for span, span_ns in zip(spans, lasts_ns, strict=True):
                for number, share in _shares(span, numbers, spent):
                    rest[number] -= share * span["busy_ns"]
                    added[number] += share * span_ns
        return [round(max(0.0, left) + more) for left, more in zip(rest, added, strict=True)]

    def as_recorded(self, members: Mapping[int, _Event]) -> _Lasts:
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

    def _add(self, event: _Event) -> None:
        rank, iteration = event["rank"], event["iteration"]
        if event["kind"] == "reconfiguration":
            raise UserError(
                "trace: it has reconfigurations; allowed: the trace of an electrical run"
            )
        if event["kind"] == "iteration":
            self._point(event, _BEGIN, "issued")
            self._point(event, _END, "resumed")
            begun_ns = event["issued_ns"]
            self._begins[iteration] = min(begun_ns, self._begins.get(iteration, begun_ns))
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
        self._point(event, _ISSUE, "issued")
        if event["waited_ns"] is not None and event["resumed_ns"] is not None:
            self._point(event, _WAIT, "waited", "resumed")

    def _point(self, event: _Event, does: int, *moments: str) -> None:
        """Add the point between two moments of an event, or at one."""
        walls = [event[f"{moment}_ns"] for moment in moments]
        busy = [event[f"{moment}_busy_ns"] for moment in moments]
        point = _Point(walls[0], walls[-1], (busy[0], busy[-1]), does, event)
        self._points[event["rank"]].append(point)

    def _check(self) -> None:
        for rank in sorted({rank for members in self._members.values() for rank in members}):
            if not any(point.does == _BEGIN for point in self._points[rank]):
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


def _ranks(event: _Event) -> tuple[int, ...]:
    return tuple(int(member) for member in event["group"].split(",")) if event["group"] else ()


def _key(event: _Event) -> OperationKey:
    return f"{event['group']}:{event['channel']}", event["sequence"]


def _configuration(event: _Event) -> Configuration:
    return Configuration("pair" if event["kind"] in ("send", "recv") else "ring", _ranks(event))
