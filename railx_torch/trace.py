"""Traces: one event per computation, collective and wait for light paths.

``start_ns`` and ``end_ns`` are CLOCK_MONOTONIC, which all processes of a host share.
``busy_ns`` is the processor time of the recording thread, or on CUDA the time on the
device. It distinguishes ranks that share a core from ranks that wait.

A network operation has three more times, of the program that issues it: ``issued_ns``
at the call, ``waited_ns`` at the beginning and ``resumed_ns`` at the end of the
program's wait. The last two are null without a wait. An operation that the issuing
thread runs itself is waited for from the start. Each time has a reading of the
program's busy clock (``..._busy_ns``): the processor time of its threads so far. On
CUDA the times are those of the current stream on the device.

An event of kind ``iteration`` spans each iteration of a rank; its ``issued`` and
``resumed`` moments are the begin and the end.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from railx.fabric.circuits import COMMUNICATION
from railx.io import write_text

#: The kind of an event that waits for light paths.
RECONFIGURATION = "reconfiguration"
#: The kind of an event that spans an iteration of a rank.
ITERATION = "iteration"

#: The table of a trace; ``group`` holds the global ranks, joined by commas ("" where
#: the event has one rank). ``channel`` and ``sequence`` identify a network operation on
#: all its members ("" and -1 for other events).
SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("iteration", "rank")),
        *((name, pa.string()) for name in ("kind", "group")),
        *((name, pa.int64()) for name in ("bytes", "start_ns", "end_ns", "busy_ns")),
        *((name, pa.string()) for name in ("phase", "channel")),
        *((name, pa.int64()) for name in ("sequence", "issued_ns", "waited_ns", "resumed_ns")),
        *((f"{name}_busy_ns", pa.int64()) for name in ("issued", "waited", "resumed")),
    ]
)

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda

_Times = tuple[int, int, int]
#: A time of the program: on the host its two clocks, on CUDA an event on the current
#: stream.
_Mark = Any


@dataclass(eq=False)
class Issued:
    """A network operation; in the trace once it :meth:`ran`. Thread-safe."""

    recorder: Recorder
    iteration: int
    kind: str
    group: str
    bytes: int
    phase: str
    channel: str
    sequence: int
    issued: _Mark
    thread: int = field(default_factory=threading.get_ident)
    waited: _Mark = None
    resumed: _Mark = None
    times: _Times | None = None
    inline: bool = False

    def ran(self, start_ns: int, end_ns: int, busy_ns: int) -> None:
        """Set the times of the operation, which the calling thread has run."""
        self.times = (start_ns, end_ns, busy_ns)
        if threading.get_ident() == self.thread and self.waited is None:
            self.inline = True
            self.waited, self.resumed = self.issued, self.recorder.mark()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The program's wait for the operation; of several waits the first counts."""
        first = self.waited is None
        if first:
            self.waited = self.recorder.mark()
        try:
            yield
        finally:
            if first or self.inline:
                self.resumed, self.inline = self.recorder.mark(), False


@dataclass(frozen=True)
class _Event:
    iteration: int
    kind: str
    group: str
    bytes: int
    phase: str
    times: _Times | Callable[[], _Times]


class Recorder:
    """Collects the events of one rank; all methods are thread-safe."""

    def __init__(self, rank: int, *, device: str = "cpu", keep: bool = True) -> None:
        """Start to record.

        ``device`` "cuda" takes the times of spans from events on the current stream
        instead of the host's clock. ``keep`` False discards all events.
        """
        self.rank = rank
        self._cuda = torch.device(device).type == "cuda"
        self._keep = keep
        self._lock = threading.Lock()
        self._events: list[_Event | Issued] = []
        self._iteration = 0
        self._begin: _Mark = None
        self._began_ns = 0
        self._anchor: tuple[int, Any] | None = None
        self._busy_ns = 0
        #: The last reading of each thread's clock; a later thread may have its number.
        self._thread = threading.local()

    def begin_iteration(self, i: int) -> None:
        """Events recorded from now on belong to iteration ``i``."""
        self._iteration = i
        self._begin = self.mark()
        self._began_ns = self._host_ns(self._begin)

    def end_iteration(self) -> int:
        """End the iteration, whose number stays; return its duration in ns."""
        end = self.mark()
        if self._begin is not None:
            span = Issued(self, self._iteration, ITERATION, "", 0, "", "", -1, self._begin)
            span.waited = span.resumed = end
            self._append(span)
            self._begin = None
        return self._host_ns(end) - self._began_ns

    @contextlib.contextmanager
    def span(self, kind: str, *, phase: str = "") -> Iterator[None]:
        """Record the block as one event, also where it ends in an error."""
        iteration = self._iteration
        begin = self._span_mark()
        try:
            yield
        finally:
            times = self._between(begin, self._span_mark())
            self._append(_Event(iteration, kind, "", 0, phase, times))

    def add(
        self,
        kind: str,
        group: tuple[int, ...],
        bytes: int,
        start_ns: int,
        end_ns: int,
        busy_ns: int,
        phase: str,
        *,
        iteration: int | None = None,
    ) -> None:
        """Record an event with its times, by default in the current iteration."""
        number = self._iteration if iteration is None else iteration
        times = (start_ns, end_ns, busy_ns)
        self._append(_Event(number, kind, _joined(group), bytes, phase, times))

    def issue(
        self,
        kind: str,
        group: tuple[int, ...],
        bytes: int,
        phase: str,
        *,
        channel: str,
        sequence: int,
        iteration: int | None = None,
    ) -> Issued:
        """Record an issued operation; the result records its run and the waits."""
        number = self._iteration if iteration is None else iteration
        issued = Issued(
            self, number, kind, _joined(group), bytes, phase, channel, sequence, self.mark()
        )
        self._append(issued)
        return issued

    @property
    def records(self) -> bool:
        """Whether events are recorded."""
        return self._keep

    @property
    def iteration(self) -> int:
        """The current iteration."""
        return self._iteration

    def mark(self) -> _Mark:
        """The current time of the calling program."""
        if not self._keep:
            return None
        if self._cuda:
            return self._event()
        busy_ns = time.thread_time_ns()
        since_ns = busy_ns - getattr(self._thread, "read_ns", busy_ns)
        self._thread.read_ns = busy_ns
        with self._lock:
            self._busy_ns += since_ns
            return time.monotonic_ns(), self._busy_ns

    def _host_ns(self, mark: _Mark) -> int:
        """The host's time of a mark that has just been taken."""
        here: int = time.monotonic_ns() if self._cuda or mark is None else mark[0]
        return here

    def table(self) -> pa.Table:
        """All events that ran, by start time; waits for the device's spans."""
        with self._lock:
            events = list(self._events)
        rows = [row for event in events if (row := self._row(event)) is not None]
        rows.sort(key=lambda row: (row[5], -row[6]))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
        return pa.table(
            [
                pa.array(column, type=field.type)
                for column, field in zip(columns, SCHEMA, strict=True)
            ],
            schema=SCHEMA,
        )

    def _row(self, event: _Event | Issued) -> tuple[Any, ...] | None:
        head = (event.iteration, self.rank, event.kind, event.group, event.bytes)
        if isinstance(event, _Event):
            times = event.times() if callable(event.times) else event.times
            return (*head, *times, event.phase, "", -1, times[0], *(None,) * 5)
        marks = [self._moment(mark) for mark in (event.issued, event.waited, event.resumed)]
        if event.kind == ITERATION:
            (begin_ns, begin_busy), _, (end_ns, end_busy) = marks
            span = (begin_ns, end_ns, end_busy - begin_busy)
        elif event.times is None:
            return None
        else:
            span = event.times
        walls, busy = zip(*marks, strict=True)
        return (*head, *span, event.phase, event.channel, event.sequence, *walls, *busy)

    def _moment(self, mark: _Mark) -> tuple[Any, Any]:
        """A mark on wall and busy clock; on CUDA the device's time for both."""
        if mark is None:
            return None, None
        if not self._cuda:
            return mark[0], mark[1]
        assert self._anchor is not None
        anchor_ns, anchor = self._anchor
        mark.synchronize()
        since_ns = round(anchor.elapsed_time(mark) * 1e6)
        return anchor_ns + since_ns, since_ns

    def _append(self, event: _Event | Issued) -> None:
        if self._keep:
            with self._lock:
                self._events.append(event)

    def _span_mark(self) -> Any:
        return self._event() if self._cuda else (time.monotonic_ns(), time.thread_time_ns())

    def _event(self) -> Any:
        if self._anchor is None:
            self._anchor = self._drop_anchor()
        event = _cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> _Times | Callable[[], _Times]:
        if not self._cuda:
            return begin[0], end[0], end[1] - begin[1]
        assert self._anchor is not None
        anchor_ns, anchor = self._anchor

        def times() -> _Times:
            end.synchronize()
            start_ns = anchor_ns + round(anchor.elapsed_time(begin) * 1e6)
            busy_ns = round(begin.elapsed_time(end) * 1e6)
            return start_ns, start_ns + busy_ns, busy_ns

        return times

    @staticmethod
    def _drop_anchor() -> tuple[int, Any]:
        """A point in time on both clocks: an event that the device is just passing."""
        idle, anchor = (_cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        idle.record()
        idle.synchronize()
        before_ns = time.monotonic_ns()
        anchor.record()
        anchor.synchronize()
        return (before_ns + time.monotonic_ns()) // 2, anchor


def join_traces(earlier: pa.Table, later: pa.Table) -> pa.Table:
    """Join the traces of two launches of a block.

    Numbers and times of the second follow the first, also after a machine's restart.
    """
    counted = (pc.max(earlier["sequence"]).as_py() or 0) + 1
    gap_ns = (pc.max(earlier["end_ns"]).as_py() or 0) - (pc.min(later["start_ns"]).as_py() or 0)
    for name in ("start_ns", "end_ns", "issued_ns", "waited_ns", "resumed_ns"):
        later = _with(later, name, pc.add(later[name], max(gap_ns, 0)))
    network = pc.greater_equal(later["sequence"], 0)
    on = pc.if_else(network, pc.add(later["sequence"], counted), later["sequence"])
    return pa.concat_tables([earlier, _with(later, "sequence", on)])


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _joined(group: Sequence[int]) -> str:
    return ",".join(map(str, group))


def write_chrome_trace(path: str | Path, table: pa.Table) -> None:
    """Write events as a Chrome trace, which opens in Perfetto.

    They have the columns of :data:`SCHEMA`, of one or more ranks. One process per rank
    with the threads compute, network and reconfiguration; events that overlap without
    one holding the other go to further threads of the same name. Times are microseconds
    from the first event.
    """
    rows = table.select(SCHEMA.names).to_pylist()
    origin_ns = min((row["start_ns"] for row in rows), default=0)
    events: list[dict[str, Any]] = []
    for rank in sorted({row["rank"] for row in rows}):
        events.append(_metadata("process_name", rank, 0, name=f"rank {rank}"))
        for order, track in enumerate(("compute", "network", "reconfiguration")):
            mine = [row for row in rows if row["rank"] == rank and _track(row["kind"]) == track]
            for lane, lane_rows in enumerate(_lanes(mine)):
                thread = order * 100 + lane
                name = track if lane == 0 else f"{track} {lane + 1}"
                events.append(_metadata("thread_name", rank, thread, name=name))
                events.append(_metadata("thread_sort_index", rank, thread, sort_index=thread))
                events += [_chrome_event(row, thread, origin_ns) for row in lane_rows]
    write_text(
        path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    )


def _metadata(event: str, rank: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": rank, "tid": thread, "args": arguments}


def _track(kind: str) -> str:
    if kind == RECONFIGURATION:
        return "reconfiguration"
    return "network" if kind in COMMUNICATION else "compute"


def _lanes(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Distribute events over lanes in which they are disjoint or nested."""
    lanes: list[tuple[list[Mapping[str, Any]], list[int]]] = []
    for row in sorted(rows, key=lambda item: (item["start_ns"], -item["end_ns"])):
        lane = next(
            (lane for lane in lanes if _fits(lane[1], row["start_ns"], row["end_ns"])), None
        )
        if lane is None:
            lane = ([], [])
            lanes.append(lane)
        lane[0].append(row)
        lane[1].append(row["end_ns"])
    return [placed for placed, _ in lanes]


def _fits(open_ends: list[int], start_ns: int, end_ns: int) -> bool:
    """Whether an event is after or inside open events; drops the ended ones."""
    while open_ends and open_ends[-1] <= start_ns:
        open_ends.pop()
    return not open_ends or end_ns <= open_ends[-1]


def _chrome_event(row: Mapping[str, Any], thread: int, origin_ns: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": row["kind"],
        "cat": _track(row["kind"]),
        "pid": row["rank"],
        "tid": thread,
        "ts": (row["start_ns"] - origin_ns) / 1e3,
        "dur": (row["end_ns"] - row["start_ns"]) / 1e3,
        "args": {name: row[name] for name in ("iteration", "group", "bytes", "busy_ns", "phase")},
    }
