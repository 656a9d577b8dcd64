"""Real recordings replayed: electrical ones give their own iteration times."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.fabric.circuits import Layout
from railx.io import read_rows, write_json
from railx.planning.format.files import write_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.replay.recording import cluster_programs, recorded_programs
from railx.settings import to_dict
from tests.builders import write_corpus
from tests.commands import environment, python
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.replay.programs import steps_of
from tests.replay.reference import replay
from workflow.config import compose_stage

LENGTHS = [190, 121, 80, 133, 57]


def sequence_parallel() -> Plan:
    """All four ranks together, and two groups of two."""
    together = micro_batch(((0, 1, 2, 3), {0: 190, 1: 121}))
    apart = micro_batch(((0, 1), {2: 80}), ((2, 3), {3: 133, 4: 57}))
    return sequence_parallel_plan(4, [together, apart], [apart, together])


def pipeline() -> Plan:
    """Two replicas of two stages."""
    split = (
        chunk((0, 0, 100, 190)),
        chunk((0, 100, 190, 190), (4, 0, 57, 57)),
        chunk((1, 0, 121, 121)),
    )
    whole = (chunk((2, 0, 80, 80)), chunk((3, 0, 133, 133)))
    return pipeline_plan(4, [Pipeline(2, 0, split), Pipeline(2, 1, whole)])


def settings(folder: Path, plan: Plan) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    texts = [generator.integers(0, 60, length, dtype=np.uint8).tobytes() for length in LENGTHS]
    write_corpus(folder / "corpus.parquet", texts, name="random")
    write_plan(folder / "plan.json", plan)
    chosen = compose_stage(
        [
            "training.device=cpu",
            "training.iterations=3",
            "training.disturbed_share=1.0",
            "training.on_demand_latencies_ms=[]",
            "training.provisioned_latencies_ms=[]",
        ],
        ("training", "fabric", "model"),
    )
    paths = {"plan": str(folder / "plan.json"), "corpus": str(folder / "corpus.parquet")}
    named = {"name": "run", "seed": 3, "plan_name": "by_hand"}
    return named | paths | {key: to_dict(value) for key, value in chosen.items()}


@pytest.fixture(
    scope="module", params=[sequence_parallel, pipeline], ids=lambda made: made.__name__
)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of an electrical run on four gloo ranks."""
    folder = tmp_path_factory.mktemp("recording")
    write_json(folder / "config.json", settings(folder, request.param()))
    arguments = ("--config", str(folder / "config.json"), "--out", str(folder / "out"))
    done = python("-m", "training.run", *arguments, env=environment())
    assert done.returncode == 0, done.stderr
    return folder / "out"


def slowest(pairs: list[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for iteration, value in pairs:
        found[iteration] = max(value, found[iteration])
    return found


def test_an_electrical_replay_gives_the_recorded_iteration_times(recording: Path) -> None:
    trace = read_rows(recording / "trace.parquet")
    measured = read_rows(recording / "iterations.parquet")
    rows = replay(steps_of(recorded_programs(trace)), Layout(1), "electrical", 0)
    replayed = {(row.iteration, row.rank): row.duration_ns / 1e6 for row in rows}
    assert len(measured) == 4 * 3
    for row in measured:
        ours = replayed[row["iteration"], row["rank"]]
        assert ours == pytest.approx(row["iteration_ms"], rel=0.02)
    assert slowest([(key[0], value) for key, value in replayed.items() if key[0] > 0]) == (
        pytest.approx(
            slowest([(row["iteration"], row["iteration_ms"]) for row in measured]), rel=0.02
        )
    )


def test_a_cluster_is_no_slower_than_ranks_that_share_cores(recording: Path) -> None:
    trace = read_rows(recording / "trace.parquet")
    wall = {(row["iteration"], row["rank"]): row for row in trace if row["kind"] == "iteration"}
    free = replay(steps_of(cluster_programs(trace, lambda *_: 0.0)), Layout(1), "electrical", 0)
    slow = replay(steps_of(cluster_programs(trace, lambda *_: 1e6)), Layout(1), "electrical", 0)
    for one, other in zip(free, slow, strict=True):
        span = wall[one.iteration, one.rank]
        assert 0 < one.compute_ns <= span["busy_ns"] <= span["end_ns"] - span["start_ns"]
        assert one.communication_ns == 0
        assert other.duration_ns >= one.duration_ns + 1e6, "something is always exposed"
        assert other.compute_ns == one.compute_ns
        assert 0 <= other.hidden_ns <= other.communication_ns
    hidden = sum(row.hidden_ns for row in slow) / sum(row.communication_ns for row in slow)
    if any(row["kind"] == "send" for row in trace):
        assert hidden > 0, "a stage computes while what it sent is under way"
    else:
        assert hidden < 0.25, "all is waited for as soon as it is issued"


def test_moments_of_the_program_are_in_order(recording: Path) -> None:
    operations = [row for row in read_rows(recording / "trace.parquet") if row["channel"]]
    assert operations
    for row in operations:
        assert row["issued_ns"] <= row["start_ns"] <= row["end_ns"]
        if row["waited_ns"] is None:
            assert row["kind"] == "send"
            continue
        assert row["issued_ns"] <= row["waited_ns"] <= row["resumed_ns"]
        assert row["end_ns"] <= row["resumed_ns"]
        assert row["issued_busy_ns"] <= row["waited_busy_ns"] <= row["resumed_busy_ns"]


def event(kind: str, rank: int, **values: Any) -> dict[str, Any]:
    names = ("start", "end", "issued", "waited", "resumed")
    empty = {f"{name}_ns": 0 for name in names} | {f"{name}_busy_ns": 0 for name in names[2:]}
    head = {"iteration": 0, "rank": rank, "kind": kind, "group": "", "bytes": 0, "channel": ""}
    return head | {"sequence": -1} | empty | values


def test_what_a_recording_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="allowed: the trace of an electrical run"):
        recorded_programs([event("reconfiguration", 0)])
    sent = event("send", 0, group="0,1", channel="0:0>1:0", sequence=0)
    begun = [event("iteration", rank) for rank in range(2)]
    with pytest.raises(ValueError, match=r"operation 0 of 0,1:0:0>1:0 .* \[0\], but not for \[1\]"):
        recorded_programs([*begun, sent])
    with pytest.raises(ValueError, match="rank 0 has no event of kind iteration"):
        recorded_programs([sent, sent | {"rank": 1, "kind": "recv"}])
    with pytest.raises(ValueError, match="does not say when it was issued"):
        recorded_programs([*begun, sent | {"issued_busy_ns": None}])


def test_a_sender_that_was_buffered_waits_for_nobody() -> None:
    """Rank 0 sends early and goes on; rank 1 comes later and takes what is there."""
    message = {"group": "0,1", "channel": "0:0>1:0", "sequence": 0}
    begun = [
        event("iteration", 0, issued_ns=0, resumed_ns=9),
        event("iteration", 1, issued_ns=1, resumed_ns=40),
    ]
    early = {"issued_ns": 2, "waited_ns": 2, "start_ns": 3, "end_ns": 5, "resumed_ns": 6}
    late = {"issued_ns": 30, "waited_ns": 30, "start_ns": 31, "end_ns": 33, "resumed_ns": 35}
    sent = [event("send", 0, **message, **early), event("recv", 1, **message, **late)]
    programs = steps_of(recorded_programs([*begun, *sent]))
    rows = replay(programs, Layout(1), "electrical", 0)
    assert [row.duration_ns for row in rows] == [9, 39]
    operations = [step.operation for steps in programs.values() for step in steps]
    for operation in filter(None, operations):
        assert operation.alone == {0}
        assert operation.lasts_ns == {0: 2, 1: 2}


def test_operations_of_a_lane_that_were_begun_together_take_turns() -> None:
    """Waited for in the other order, so that the end of the first one is seen late."""
    ring = {"group": "0,1", "channel": "0"}
    begun = [event("iteration", rank, issued_ns=0, resumed_ns=50) for rank in range(2)]
    first = {"issued_ns": 1, "start_ns": 1, "waited_ns": 30, "end_ns": 31, "resumed_ns": 32}
    second = {"issued_ns": 2, "start_ns": 2, "waited_ns": 5, "end_ns": 28, "resumed_ns": 29}
    moments = [(0, first), (1, second)]
    both = [
        event("all_gather", rank, **ring, sequence=sequence, **own)
        for rank in range(2)
        for sequence, own in moments
    ]
    rows = replay(steps_of(recorded_programs([*begun, *both])), Layout(1), "electrical", 0)
    assert [row.duration_ns for row in rows] == [50, 50]


def test_operations_that_a_trace_lacks_leave_no_gap(recording: Path) -> None:
    """So that a lease's report, the last number begun, speaks of none of them."""
    trace = read_rows(recording / "trace.parquet")
    sparse = [event | {"sequence": 3 * event["sequence"] + 2} for event in trace]
    assert steps_of(recorded_programs(sparse)) == steps_of(recorded_programs(trace))
