"""Chrome traces: a process for each setting, named, whose blocks are what was replayed
or recorded.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.chrome import Setting, chrome_trace, recorded, replayed, replayed_graphs
from railx.exchange.programs import programs_of, read_source
from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.io import write_table
from railx.replay.graph_pricing import COUNTS, DeviceRates
from railx.replay.graph_runs import TwoRates, graph_rows
from railx.replay.programs import DOES, KINDS, write_programs
from railx.replay.run import prepare, replay_programs
from tests.exchange.drawn import job, rows, said
from tests.replay.plain_graphs import graphs_of_rows, row
from tests.replay.programs import Step, from_steps
from tests.replay.programs import programs as drawn_steps

MODES: tuple[Mode, ...] = ("electrical", "on_demand", "provisioned")
#: An electrical and a switched run of two ranks, as the columns of a trace have them.
SETTINGS = (("on_demand", 25.0), ("electrical", 0.0), ("on_demand", 5.0))


def events(**changed: Any) -> list[dict[str, Any]]:
    """Each rank computes 400 ns, reduces 1 kB for 300 ns, and computes 100 ns."""
    found = []
    for mode, latency_ms in SETTINGS:
        light_ns = round(latency_ms)
        for rank in range(2):
            base = {
                "rank": rank,
                "iteration": 0,
                "mode": mode,
                "reconfiguration_latency_ms": latency_ms,
                "fidelity": "measured_cpu" if mode == "electrical" else "emulated",
                **dict.fromkeys(("group", "phase", "channel"), ""),
                **dict.fromkeys(("bytes", "busy_ns", "sequence", "issued_ns"), 0),
                **dict.fromkeys(("waited_ns", "resumed_ns"), 0),
                **{f"{name}_busy_ns": 0 for name in ("issued", "waited", "resumed")},
            }
            end_ns = 1_800 + light_ns
            moments = {"issued_ns": 1_400, "waited_ns": 1_400, "resumed_ns": end_ns - 100}
            busy = {"issued_busy_ns": 400, "waited_busy_ns": 400, "resumed_busy_ns": 400}
            operation = {"group": "0,1", "channel": "0,1:data", "bytes": 1_000}
            whole = {"kind": "iteration", "start_ns": 1_000, "end_ns": end_ns, "busy_ns": 500}
            ends = {"issued_ns": 1_000, "resumed_ns": end_ns, "resumed_busy_ns": 500}
            found.append(base | whole | ends)
            spent = {"kind": "compute", "phase": "forward", "start_ns": 1_000, "end_ns": 1_400}
            found.append(base | spent)
            if light_ns:
                light = {"start_ns": 1_400, "end_ns": 1_400 + light_ns, "group": "0,1"}
                found.append(base | light | {"kind": "reconfiguration"})
            reduced = {"start_ns": 1_400 + light_ns, "end_ns": end_ns - 100}
            found.append(
                base | operation | moments | busy | reduced | {"kind": "all_reduce"} | changed
            )
    return found


def names(trace: dict[str, Any], what: str) -> dict[Any, str]:
    return {
        (event["pid"], event["tid"]) if what == "thread" else event["pid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == f"{what}_name"
    }


def blocks(trace: dict[str, Any]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Begin and end of the blocks of each thread, in microseconds."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return found


def test_a_recorded_run_has_a_process_for_each_setting() -> None:
    trace = chrome_trace(recorded(events()))
    json.dumps(trace, allow_nan=False)
    assert names(trace, "process") == {
        0: "electrical",
        1: "on_demand, 5 ms",
        2: "on_demand, 25 ms",
    }
    labels = {
        event["pid"]: event["args"]["labels"]
        for event in trace["traceEvents"]
        if event["name"] == "process_labels"
    }
    assert labels == {0: "measured_cpu", 1: "emulated", 2: "emulated"}
    threads = names(trace, "thread")
    assert Counter(threads.values()) == {
        "rank 0 compute": 3,
        "rank 1 compute": 3,
        "rank 0 network": 3,
        "rank 1 network": 3,
        "rank 0 waits for light": 2,
        "rank 1 waits for light": 2,
    }
    drawn = [
        (event["name"], threads[event["pid"], event["tid"]], event["ts"], event["dur"])
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["pid"] == 2 and "rank 1" in threads[2, event["tid"]]
    ]
    assert drawn == [
        ("iteration 0", "rank 1 compute", 0.0, 0.825),
        ("forward", "rank 1 compute", 0.0, 0.4),
        ("all_reduce", "rank 1 network", 0.425, 0.3),
        ("reconfiguration", "rank 1 waits for light", 0.4, 0.025),
    ]
    reduced = next(event for event in trace["traceEvents"] if event["name"] == "all_reduce")
    assert reduced["args"] == {"iteration": 0, "group": "0,1", "bytes": 1_000}


def test_programs_of_a_record_are_told_apart() -> None:
    both = [event | {"program": name} for name in ("b", "a") for event in events()]
    found = [process.name for process in recorded(both)]
    assert found[0] == "a, electrical"
    assert found[3:] == ["b, electrical", "b, on_demand, 5 ms", "b, on_demand, 25 ms"]


@settings(max_examples=40, deadline=None)
@given(
    steps=drawn_steps(10),
    seed=st.integers(0, 2**32),
    mode=st.sampled_from(MODES),
    latency_us=st.integers(0, 20),
)
def test_blocks_are_what_was_replayed(
    steps: dict[int, list[Step]], seed: int, mode: Mode, latency_us: int
) -> None:
    programs = said(from_steps(steps), seed)
    found = replay_programs(prepare(programs, Layout(2)), mode, latency_us * 1000)
    (process,) = replayed(programs, Layout(2), [Setting(mode, latency_us / 1000)])
    assert process.fidelity == "replay"
    columns = programs.columns
    computed: Counter[int] = Counter()
    operations: Counter[int] = Counter()
    for span in process.spans:
        assert span.end_ns >= span.start_ns
        if span.name == "compute":
            computed[span.rank] += span.end_ns - span.start_ns
        operations[span.rank] += span.track == "network"
    inside = columns["does"] != DOES.index("begin")
    gaps = np.bincount(columns["rank"][inside], columns["gap_ns"][inside])
    assert [computed[rank] for rank in range(programs.ranks)] == gaps.tolist()
    issues = columns["rank"][columns["does"] == DOES.index("issue")]
    assert sum(operations.values()) == len(issues)
    whole = {
        (span.rank, span.details["iteration"]): (span.start_ns, span.end_ns)
        for span in process.spans
        if span.name.startswith("iteration")
    }
    names = ("rank", "iteration", "begin_ns", "end_ns")
    rows = zip(*(found.table[name].tolist() for name in names), strict=True)
    assert whole == {(rank, iteration): (begin, end) for rank, iteration, begin, end in rows}
    for own in blocks(chrome_trace([process])).values():
        ends: list[float] = []
        for begin, end in sorted(own, key=lambda item: (item[0], -item[1])):
            while ends and ends[-1] <= begin + 1e-9:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-9, "a viewer draws no such blocks"
            ends.append(end)


def test_settings_stand_below_each_other_from_zero() -> None:
    chosen = [Setting("electrical"), Setting("provisioned", 10.0), Setting("on_demand", 2.5)]
    trace = chrome_trace(replayed(job((7, 100, 100, 100)), Layout(1), chosen))
    assert list(names(trace, "process").values()) == [
        "electrical",
        "provisioned, 10 ms",
        "on_demand, 2.5 ms",
    ]
    begins = {pid: min(own)[0] for (pid, _), own in sorted(blocks(trace).items(), reverse=True)}
    assert begins == {0: 0.0, 1: 0.0, 2: 0.0}
    # Both wait for the circuit, then the operation takes its 2.5 us.
    lasts = {
        event["pid"]: event["dur"]
        for event in trace["traceEvents"]
        if event["name"] == "iteration 0"
    }
    assert lasts[0] == pytest.approx(0.1 + 2.5 + 0.1)
    assert lasts[2] == pytest.approx(lasts[0] + 2_500)


# Files that are exported


def test_programs_are_those_of_the_electrical_part_of_a_trace(tmp_path: Path) -> None:
    write_table(tmp_path / "trace.parquet", pa.Table.from_pylist(events()))
    found = programs_of(tmp_path / "trace.parquet")
    assert found.ranks == 2
    own = [row for row in rows(found) if row[0] == 1]
    named = dict(zip(found.columns, zip(*own, strict=True), strict=True))
    assert named["does"] == (0, 1, 2, 3)
    assert named["gap_ns"] == (0, 400, 0, 100)
    assert named["lasts_ns"] == (0, 300, 0, 0)
    assert named["bytes"] == (0, 1_000, 0, 0)
    assert named["kind"] == (-1, KINDS.index("all_reduce"), -1, -1)
    assert isinstance(read_source(tmp_path / "trace.parquet"), list)


def test_a_trace_may_begin_after_the_first_operation_of_a_channel(tmp_path: Path) -> None:
    write_table(tmp_path / "all.parquet", pa.Table.from_pylist(events()))
    write_table(tmp_path / "later.parquet", pa.Table.from_pylist(events(sequence=5)))
    all_, later = (programs_of(tmp_path / f"{name}.parquet") for name in ("all", "later"))
    assert rows(later) == rows(all_)


def test_files_of_programs_are_taken_as_they_are(tmp_path: Path) -> None:
    write_programs(tmp_path / "job.parquet", job((1, 2, 3, 4)))
    assert rows(programs_of(tmp_path / "job.parquet")) == rows(job((1, 2, 3, 4)))
    unnamed = job()
    unnamed.columns["kind"][:] = -1
    write_programs(tmp_path / "unnamed.parquet", unnamed)
    with pytest.raises(ValueError, match=r"operations of no kind; allowed: all_reduce, "):
        programs_of(tmp_path / "unnamed.parquet")


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    for name, content in (("a.parquet", b"no"), ("b.json", b"{}")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"which is neither; allowed: a trace "):
            programs_of(tmp_path / name)
    write_table(tmp_path / "c.parquet", pa.table({"rank": [0], "kind": ["x"]}))
    with pytest.raises(ValueError, match=r"which is neither; allowed: a trace "):
        programs_of(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=r"got .*none: no such file; allowed: a trace or programs"):
        programs_of(tmp_path / "none")
    switched = [event for event in events() if event["mode"] != "electrical"]
    write_table(tmp_path / "d.parquet", pa.Table.from_pylist(switched))
    with pytest.raises(ValueError, match=r"with no electrical events; allowed: a trace that has"):
        programs_of(tmp_path / "d.parquet")


def test_replays_of_graphs_show_each_node_while_it_takes_its_time() -> None:
    """Rank 1 comes 30 ns later to a ring of 20 ns, and computes 7 ns longer."""
    graphs = graphs_of_rows(
        [
            row(0, "compute", duration_ns=10),
            row(0, "all_reduce", 0, group=0, bytes=200),
            row(1, "compute", duration_ns=40),
            row(1, "all_reduce", 2, group=0, bytes=200, number=9),
            row(1, "compute", 3, duration_ns=7),
        ],
        ((0, 1),),
    )
    runs = list(
        graph_rows(
            graphs,
            [TwoRates("two_level", 1, 10.0, 10.0)],
            ["electrical"],
            [0.0],
            device=DeviceRates(),
            counts=COUNTS["published"],
        )
    )
    (process,) = replayed_graphs(runs)
    assert (process.name, process.fidelity) == ("two_level, electrical", "replay")
    found = [(s.rank, s.track, s.name, s.start_ns, s.end_ns) for s in process.spans]
    assert found == [
        (0, "compute", "compute", 0, 10),
        (0, "network", "all_reduce", 40, 60),
        (1, "compute", "compute", 0, 40),
        (1, "network", "all_reduce", 40, 60),
        (1, "compute", "compute", 60, 67),
    ]
    assert process.spans[3].details == {"node": 9, "bytes": 200, "name": "all_reduce"}
    # Of large replays the rank that ends last.
    (short,) = replayed_graphs(runs, nodes=4)
    assert [span.rank for span in short.spans] == [1, 1, 1]
