"""Runs and replays as a Chrome trace (Trace Event Format), which opens in Perfetto.

A process for each setting and mode, with threads for the computation, the messages and
the waits of each rank. Every process begins at 0, so that settings can be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from railx.exchange.programs import BEGIN, END, ISSUE, WAIT
from railx.fabric.circuits import COMMUNICATION
from railx.fabric.settings import Mode
from railx.replay.graph_runs import GraphRow
from railx.replay.graphs import NODE_KINDS
from railx.replay.programs import KINDS, Programs
from railx.replay.run import Replayed, prepare, replay_programs
from railx.replay.wiring import CircuitModel

#: The threads of a rank.
_TRACKS = ("compute", "network", "waits for light")
#: The kind of an event that waits for light paths, and of a whole iteration.
_LIGHT, _ITERATION = "reconfiguration", "iteration"
_MODES = get_args(Mode)
#: Threads that a rank may have, so that ranks keep their order.
_THREADS = 1000


@dataclass(frozen=True)
class Span:
    """A rank's activity over a time span."""

    rank: int
    track: str
    name: str
    start_ns: int
    end_ns: int
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    """All spans of one setting; ``fidelity`` is the origin of its times."""

    name: str
    fidelity: str
    spans: Sequence[Span]


@dataclass(frozen=True)
class Setting:
    """Mode and latency of a replay."""

    mode: Mode
    latency_ms: float = 0.0

    @property
    def name(self) -> str:
        """The name of its process."""
        return _setting_name(self.mode, self.latency_ms)


def chrome_trace(processes: Iterable[Process]) -> dict[str, Any]:
    """The trace as plain data; times are microseconds."""
    events: list[dict[str, Any]] = []
    for number, process in enumerate(processes):
        named = {"name": process.name, "labels": process.fidelity, "sort_index": number}
        events += [
            _metadata(number, 0, f"process_{what}", {what: value}) for what, value in named.items()
        ]
        origin_ns = min((span.start_ns for span in process.spans), default=0)
        for name, thread, spans in _threads(process.spans):
            events.append(_metadata(number, thread, "thread_name", {"name": name}))
            events.append(_metadata(number, thread, "thread_sort_index", {"sort_index": thread}))
            events += [
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.track,
                    "pid": number,
                    "tid": thread,
                    "ts": (span.start_ns - origin_ns) / 1e3,
                    "dur": (span.end_ns - span.start_ns) / 1e3,
                    "args": dict(span.details),
                }
                for span in spans
            ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _metadata(process: int, thread: int, name: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": details}


def _threads(spans: Iterable[Span]) -> Iterator[tuple[str, int, list[Span]]]:
    """Name, number and spans of every thread.

    Spans of one track that overlap without nesting get separate threads, because
    viewers draw no others.
    """
    of_track: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        of_track[span.rank, span.track].append(span)
    for rank, track in sorted(of_track, key=lambda key: (key[0], _TRACKS.index(key[1]))):
        first = rank * _THREADS + _TRACKS.index(track) * (_THREADS // len(_TRACKS))
        for lane, lane_spans in enumerate(_lanes(of_track[rank, track])):
            name = f"rank {rank} {track}"
            yield name if not lane else f"{name} {lane + 1}", first + lane, lane_spans


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Lanes in which spans are disjoint or nested, by a greedy assignment."""
    lanes: list[list[Span]] = []
    open_ends: list[list[int]] = []
    for span in sorted(spans, key=lambda item: (item.start_ns, -item.end_ns)):
        number = 0
        for ends in open_ends:
            while ends and ends[-1] <= span.start_ns:
                ends.pop()
            if not ends or span.end_ns <= ends[-1]:
                break
            number += 1
        else:
            lanes.append([])
            open_ends.append([])
        lanes[number].append(span)
        open_ends[number].append(span.end_ns)
    return lanes


def recorded(events: Iterable[Mapping[str, Any]]) -> list[Process]:
    """The settings of a recorded trace: electrical ones first, then by latency."""
    of_setting: dict[tuple[Any, ...], list[Span]] = defaultdict(list)
    fidelity: dict[tuple[Any, ...], str] = {}
    for event in events:
        setting = (
            event.get("program"),
            event.get("mode", "electrical"),
            event.get("reconfiguration_latency_ms", 0.0),
        )
        fidelity[setting] = event.get("fidelity", "")
        names = ("iteration", "group", "bytes", "phase")
        details = {name: event[name] for name in names if event.get(name) not in (None, "")}
        track, start_ns, end_ns = _track(event["kind"]), event["start_ns"], event["end_ns"]
        span = Span(event["rank"], track, _name(event), start_ns, end_ns, details)
        of_setting[setting].append(span)
    several = len({program for program, _, _ in of_setting}) > 1
    processes = []
    for key in sorted(of_setting, key=lambda key: (key[0] or "", _MODES.index(key[1]), key[2])):
        program, mode, latency_ms = key
        name = _setting_name(mode, latency_ms, program if several else None)
        processes.append(Process(name, fidelity[key], of_setting[key]))
    return processes


def _name(event: Mapping[str, Any]) -> str:
    """The name of a block: a pass by its phase, everything else by its kind."""
    kind = str(event["kind"])
    if kind == _ITERATION:
        return f"{kind} {event['iteration']}"
    return event["phase"] or kind if kind == "compute" else kind


def _track(kind: str) -> str:
    if kind == _LIGHT:
        return "waits for light"
    return "network" if kind in COMMUNICATION else "compute"


def _setting_name(mode: str, latency_ms: float, program: str | None = None) -> str:
    name = mode if mode == "electrical" else f"{mode}, {latency_ms:g} ms"
    return name if program is None else f"{program}, {name}"


def replayed(programs: Programs, model: CircuitModel, settings: Iterable[Setting]) -> list[Process]:
    """Replays of programs: operations under way, and computation between steps."""
    prepared = prepare(programs, model)
    processes = []
    for setting in settings:
        run = replay_programs(prepared, setting.mode, round(setting.latency_ms * 1e6))
        processes.append(Process(setting.name, "replay", list(_spans(programs, run))))
    return processes


def replayed_graphs(rows: Iterable[GraphRow], nodes: int = 200_000) -> Iterator[Process]:
    """Replays of graphs: of all ranks where they have so many nodes at most together,
    otherwise of the rank that ends last.

    Nodes are shown while they take their time, without the wait before them.
    """
    rows = list(rows)
    all_ranks = sum(len(row.replayed.graph) for row in rows) <= nodes
    for row in rows:
        ranks = row.replayed.graph.columns["rank"]
        shown = np.flatnonzero(all_ranks | (ranks == row.replayed.last_rank))
        name = f"{row.network}, {_setting_name(row.mode, row.latency_ms)}"
        yield Process(name, "replay", list(_node_spans(row, shown)))


def _node_spans(row: GraphRow, shown: Any) -> Iterator[Span]:
    graph = row.replayed.graph
    columns = {name: values[shown].tolist() for name, values in graph.columns.items()}
    starts, ends = row.replayed.started_ns[shown].tolist(), row.replayed.ended_ns[shown].tolist()
    for number, node in enumerate(shown.tolist()):
        kind = NODE_KINDS[columns["kind"][number]]
        details: dict[str, Any] = {"node": columns["number"][number]}
        name = graph.names[node] if graph.names else kind
        if kind != "compute":
            details |= {"bytes": columns["bytes"][number], "name": name}
            name = kind
        if ends[number] > starts[number]:
            rank = int(row.rank_of[columns["rank"][number]])
            yield Span(rank, _track(kind), name, starts[number], ends[number], details)


def _spans(programs: Programs, replayed: Replayed) -> Iterator[Span]:
    columns = {name: values.tolist() for name, values in programs.columns.items()}
    begun = (replayed.table[name].tolist() for name in ("rank", "iteration", "begin_ns"))
    begins = {(rank, iteration): ns for rank, iteration, ns in zip(*begun, strict=True)}
    started, ended = replayed.started_ns.tolist(), replayed.ended_ns.tolist()
    issued = {
        (columns["rank"][row], columns["channel"][row], columns["sequence"][row]): row
        for row in np.flatnonzero(programs.columns["does"] == ISSUE).tolist()
    }
    now_ns = 0
    for row, rank in enumerate(columns["rank"]):
        does, iteration = columns["does"][row], columns["iteration"][row]
        if does == BEGIN:
            now_ns = begun_ns = begins[rank, iteration]
            continue
        gap_ns = columns["gap_ns"][row]
        details = {"iteration": iteration}
        if gap_ns:
            yield Span(rank, "compute", "compute", now_ns, now_ns + gap_ns, details)
            now_ns += gap_ns
        if does == END:
            yield Span(rank, "compute", f"iteration {iteration}", begun_ns, now_ns, details)
        if does == WAIT:
            key = rank, columns["channel"][row], columns["sequence"][row]
            now_ns = max(now_ns, ended[issued[key]]) + columns["resume_ns"][row]
        if does == ISSUE:
            kind = columns["kind"][row]
            name = KINDS[kind] if kind >= 0 else "operation"
            details = details | {"channel": programs.channels[columns["channel"][row]]}
            details["bytes"] = columns["bytes"][row]
            yield Span(rank, "network", name, started[row], ended[row], details)
