"""Compute spans are closed during communication and carry the phase around it; events
in, table and Chrome trace out.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx_torch.trace import SCHEMA, Recorder, join_traces, write_chrome_trace
from training.timeline import Timeline


def test_spans_are_recorded_on_the_shared_clock() -> None:
    recorder = Recorder(3)
    recorder.begin_iteration(7)
    before = time.monotonic_ns()
    with recorder.span("forward", phase="compute"):
        sum(range(1000))
    after = time.monotonic_ns()
    (row,) = recorder.table().to_pylist()
    assert {key: row[key] for key in ("iteration", "rank", "kind", "group", "bytes", "phase")} == {
        "iteration": 7,
        "rank": 3,
        "kind": "forward",
        "group": "",
        "bytes": 0,
        "phase": "compute",
    }
    assert before <= row["start_ns"] <= row["end_ns"] <= after
    assert row["busy_ns"] > 0


def test_a_block_that_fails_is_recorded_too() -> None:
    recorder = Recorder(0)
    with pytest.raises(KeyError), recorder.span("forward"):
        raise KeyError("x")
    assert recorder.table()["kind"].to_pylist() == ["forward"]


def test_table_is_typed_and_in_order_even_when_empty() -> None:
    recorder = Recorder(0)
    assert recorder.table().schema == SCHEMA
    assert recorder.table().num_rows == 0
    recorder.add("send", (0, 1), 4, 20, 30, 1, "pair 0,1")
    recorder.add("recv", (0, 1), 4, 10, 40, 1, "pair 0,1", iteration=5)
    table = recorder.table()
    assert table.schema == SCHEMA
    assert table["start_ns"].to_pylist() == [10, 20]
    assert table["iteration"].to_pylist() == [5, 0]
    assert table["group"].to_pylist() == ["0,1", "0,1"]


def traced(iteration: int, sequence: int, start_ns: int) -> pa.Table:
    """An operation and a computation of two ranks."""
    columns: dict[str, Any] = dict.fromkeys(SCHEMA.names, start_ns)
    columns |= {"kind": "send", "group": "0,1", "phase": "", "channel": "0:0>1"}
    columns |= {"iteration": iteration, "rank": 0, "sequence": sequence, "waited_ns": None}
    columns["end_ns"] = start_ns + 5
    own = {"kind": "forward", "channel": "", "sequence": -1, "waited_ns": start_ns}
    return pa.Table.from_pylist([columns, {**columns, **own}], schema=SCHEMA)


@pytest.mark.parametrize(("later_ns", "shift_ns"), [(100, 0), (3, 12)])
def test_two_launches_make_one_trace(later_ns: int, shift_ns: int) -> None:
    """Whose operations have numbers of their own, and whose times go on."""
    joined = join_traces(traced(1, 4, 10), traced(2, 0, later_ns))
    assert joined.schema == SCHEMA
    assert joined["sequence"].to_pylist() == [4, -1, 5, -1]
    begin_ns = later_ns + shift_ns
    assert joined["start_ns"].to_pylist() == [10, 10, begin_ns, begin_ns]
    assert joined["end_ns"].to_pylist() == [15, 15, begin_ns + 5, begin_ns + 5]
    assert joined["waited_ns"].to_pylist() == [None, 10, None, begin_ns]
    assert joined["busy_ns"].to_pylist() == [10, 10, later_ns, later_ns]


def test_many_threads_lose_nothing() -> None:
    recorder = Recorder(0)

    def add() -> None:
        for _ in range(200):
            recorder.add("send", (0, 1), 1, 0, 1, 0, "")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.table().num_rows == 800


def test_the_busy_clock_goes_on_where_a_thread_has_the_number_of_one_that_ended() -> None:
    recorder = Recorder(0)
    read_ns: list[int] = []

    def compute() -> None:
        read_ns.append(recorder.mark()[1])
        begin_ns = time.thread_time_ns()
        while time.thread_time_ns() - begin_ns < 5_000_000:
            pass
        read_ns.append(recorder.mark()[1])

    for _ in range(5):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert read_ns[-1] >= 5 * 5_000_000
    assert read_ns == sorted(read_ns)


def chrome(path: Path, table: pa.Table) -> list[dict[str, Any]]:
    write_chrome_trace(path, table)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_chrome_trace_has_a_process_for_each_rank_and_a_thread_for_each_part(
    tmp_path: Path,
) -> None:
    tables = []
    for rank in range(2):
        recorder = Recorder(rank)
        recorder.add("forward", (), 0, 1000, 2000, 900, "compute")
        recorder.add("reconfiguration", (0, 1), 0, 2000, 3000, 0, "ring 0,1")
        recorder.add("all_reduce", (0, 1), 64, 3000, 4500, 10, "ring 0,1")
        tables.append(recorder.table())
    events = chrome(tmp_path / "trace.json", pa.concat_tables(tables))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "rank 0",
        "rank 1",
    ]
    drawn = [event for event in events if event["ph"] == "X"]
    assert [
        (event["name"], names[event["pid"], event["tid"]], event["ts"], event["dur"])
        for event in drawn
        if event["pid"] == 1
    ] == [
        ("forward", "compute", 0.0, 1.0),
        ("all_reduce", "network", 2.0, 1.5),
        ("reconfiguration", "reconfiguration", 1.0, 1.0),
    ]
    assert drawn[1]["args"] == {
        "iteration": 0,
        "group": "0,1",
        "bytes": 64,
        "busy_ns": 10,
        "phase": "ring 0,1",
    }


@given(spans=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=20))
def test_events_of_a_thread_are_apart_or_one_holds_the_other(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    recorder = Recorder(0)
    for start, length in spans:
        recorder.add("send", (0, 1), 0, start, start + length, 0, "")
    events = [
        event
        for event in chrome(tmp_path_factory.mktemp("trace") / "trace.json", recorder.table())
        if event["ph"] == "X"
    ]
    assert len(events) == len(spans)
    for one in events:
        for other in events:
            if one is other or one["tid"] != other["tid"]:
                continue
            first, second = sorted((one, other), key=lambda event: (event["ts"], -event["dur"]))
            apart = second["ts"] >= first["ts"] + first["dur"] - 1e-9
            inside = second["ts"] + second["dur"] <= first["ts"] + first["dur"] + 1e-9
            assert apart or inside


class Log:
    """A recorder that writes down what begins and ends."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def span(
        self, kind: str, *, phase: str, group: tuple[int, ...] = (), bytes: int = 0
    ) -> Iterator[None]:
        self.events.append(f"{kind} {phase} begins")
        yield
        self.events.append(f"{kind} {phase} ends")


def test_communication_parts_a_phase() -> None:
    log = Log()
    timeline = Timeline(log)
    with timeline.phase("forward"), timeline.communication():
        log.events.append("communication")
    with timeline.communication():
        log.events.append("outside")
    assert log.events == [
        *(
            "compute forward begins",
            "compute forward ends",
            "communication",
            "compute forward begins",
            "compute forward ends",
        ),
        "outside",
    ]


def test_a_failed_phase_is_closed() -> None:
    log = Log()
    timeline = Timeline(log)
    with pytest.raises(RuntimeError), timeline.phase("backward"):
        raise RuntimeError
    with timeline.communication():
        pass
    assert log.events == ["compute backward begins", "compute backward ends"]


def test_without_a_recorder_nothing_is_kept() -> None:
    timeline, ran = Timeline(), []
    with timeline.phase("forward"), timeline.communication():
        ran.append(True)
    assert ran == [True]
