"""What happened when: one event per computation, collective and wait for light.

The clock is one that all processes of a host share: ``start_ns`` and ``end_ns`` are
CLOCK_MONOTONIC. ``busy_ns`` is the time that the recording thread itself spent on a
processor, or on CUDA the time on the device. Ranks that share a core can so be told
apart from ranks that wait.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from railx.fabric.replay import COMMUNICATION
from railx.io import write_text

__all__ = ["RECONFIGURATION", "SCHEMA", "Recorder", "write_chrome_trace"]

#: The kind of an event that waits for light paths.
RECONFIGURATION = "reconfiguration"

#: The table of a trace; ``group`` holds the global ranks, joined by commas ("" where
#: the event is one rank's own).
SCHEMA = pa.schema(
    [
        ("iteration", pa.int32()),
        ("rank", pa.int32()),
        ("kind", pa.string()),
        ("group", pa.string()),
        ("bytes", pa.int64()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("busy_ns", pa.int64()),
        ("phase", pa.string()),
    ]
)

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda

_Times = tuple[int, int, int]
_Event = tuple[int, str, str, int, str, _Times | Callable[[], _Times]]


class Recorder:
    """Collects the events of one rank; every method may be called from any thread."""

    def __init__(self, rank: int, *, device: str = "cpu") -> None:
        """Start to record.

        ``device`` "cuda" takes the times of spans from events on the current stream
        instead of from this thread.
        """
        self.rank = rank
        self._cuda = torch.device(device).type == "cuda"
        self._lock = threading.Lock()
        self._events: list[_Event] = []
        self._iteration = 0
        self._anchor: tuple[int, Any] | None = None

    def begin_iteration(self, i: int) -> None:
        """Events recorded from now on belong to iteration ``i``."""
        self._iteration = i

    @contextlib.contextmanager
    def span(
        self, kind: str, *, phase: str = "", group: tuple[int, ...] = (), bytes: int = 0
    ) -> Iterator[None]:
        """Record the block as one event, also where it ends in an error."""
        iteration = self._iteration
        begin = self._mark()
        try:
            yield
        finally:
            self._append(iteration, kind, group, bytes, phase, self._between(begin, self._mark()))

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
        """Record an event whose times are known.

        ``iteration`` where it is not the present one.
        """
        self._append(
            self._iteration if iteration is None else iteration,
            kind,
            group,
            bytes,
            phase,
            (start_ns, end_ns, busy_ns),
        )

    @property
    def iteration(self) -> int:
        """The present iteration."""
        return self._iteration

    def table(self) -> pa.Table:
        """All events so far, by start time.

        Waits for the device where spans are timed on it.
        """
        with self._lock:
            events = list(self._events)
        rows = []
        for iteration, kind, group, size, phase, times in events:
            start_ns, end_ns, busy_ns = times() if callable(times) else times
            rows.append((iteration, self.rank, kind, group, size, start_ns, end_ns, busy_ns, phase))
        rows.sort(key=lambda row: (row[5], -row[6]))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
        return pa.table(
            [
                pa.array(column, type=field.type)
                for column, field in zip(columns, SCHEMA, strict=True)
            ],
            schema=SCHEMA,
        )

    def _append(
        self,
        iteration: int,
        kind: str,
        group: tuple[int, ...],
        size: int,
        phase: str,
        times: _Times | Callable[[], _Times],
    ) -> None:
        with self._lock:
            self._events.append((iteration, kind, ",".join(map(str, group)), size, phase, times))

    def _mark(self) -> Any:
        if not self._cuda:
            return time.monotonic_ns(), time.thread_time_ns()
        if self._anchor is None:
            self._anchor = self._drop_anchor()
        event = _cuda.Event(enable_timing=True)
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
        """Note a moment known on both clocks.

        An idle device makes the event's time the host's time.
        """
        _cuda.synchronize()
        anchor = _cuda.Event(enable_timing=True)
        anchor.record()
        anchor.synchronize()
        return time.monotonic_ns(), anchor


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
        events.append(
            {
                "ph": "M",
                "name": "process_name",
                "pid": rank,
                "tid": 0,
                "args": {"name": f"rank {rank}"},
            }
        )
        for order, track in enumerate(("compute", "network", "reconfiguration")):
            mine = [row for row in rows if row["rank"] == rank and _track(row["kind"]) == track]
            for lane, lane_rows in enumerate(_lanes(mine)):
                thread = order * 100 + lane
                name = track if lane == 0 else f"{track} {lane + 1}"
                events.append(
                    {
                        "ph": "M",
                        "name": "thread_name",
                        "pid": rank,
                        "tid": thread,
                        "args": {"name": name},
                    }
                )
                events.append(
                    {
                        "ph": "M",
                        "name": "thread_sort_index",
                        "pid": rank,
                        "tid": thread,
                        "args": {"sort_index": thread},
                    }
                )
                events += [_chrome_event(row, thread, origin_ns) for row in lane_rows]
    write_text(
        path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    )


def _track(kind: str) -> str:
    if kind == RECONFIGURATION:
        return "reconfiguration"
    return "network" if kind in COMMUNICATION else "compute"


def _lanes(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Spread events so that in each lane two are either apart or one holds the other.

    That is what a viewer can draw.
    """
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
    """Whether an event lies behind or inside what is open.

    Ends that have passed are dropped.
    """
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
