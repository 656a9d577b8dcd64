"""Programs in plain torch on the rails: their settings, a whole run, and what the stage
live makes of the rows and the trace that a program leaves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from railx.fabric.circuits import Configuration
from railx.io import read_rows, write_json
from railx.replay.changes import Switching
from railx.settings import SettingsError, load, to_dict
from tests.builders import choice
from tests.commands import python
from training import live, profile
from training.live_settings import LiveSettings, journal_path, live_blocks
from workflow.stages import STAGES

pytestmark = pytest.mark.system


def _settings(**changed: Any) -> LiveSettings:
    settings: LiveSettings = load(
        LiveSettings, {**choice("live", "dp2_pp2_tp2"), "seed": 1, **changed}
    )
    return settings


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"micro_batches": 1}, "micro_batches: got 1; allowed: at least 2, the stages"),
        ({"heads": 3}, "heads: got 3; allowed: a multiple of tensor_parallel, 2"),
        ({"width": 130}, "width: got 130; allowed: a multiple of heads, 4"),
        (
            {"tensor_parallel": 4},
            "fabric.gpus_per_server: got 2; allowed: tensor_parallel, 4",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(changed: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _settings(**changed)
    assert str(refused.value) == line


def test_blocks_are_every_mode_at_every_latency_and_the_restart_last() -> None:
    blocks = live_blocks(_settings(latencies_ms=[0, 10], restart_latency_ms=5))
    told = [
        (block.fabric.mode, block.fabric.reconfiguration_latency_ms, block.controller_restarted)
        for block in blocks
    ]
    assert told == [
        ("electrical", 0, False),
        ("on_demand", 0, False),
        ("on_demand", 10, False),
        ("provisioned", 0, False),
        ("provisioned", 10, False),
        ("provisioned", 5, True),
    ]
    assert len(live_blocks(_settings(latencies_ms=[0], restart_latency_ms=None))) == 3
    assert {block.fabric.controller_priority for block in blocks} == {"real_time"}


@pytest.mark.parametrize("module", [live, profile], ids=["live", "profile"])
def test_a_place_that_cannot_be_written_is_refused_first(
    module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main(["--config", "none.json", "--out", "/proc/out"]) == 2
    assert "--out: got /proc/out; allowed: a place that can be written" in capsys.readouterr().err


@pytest.mark.slow
def test_every_block_trains_alike_and_switches_six_times(tmp_path: Path) -> None:
    """FSDP2 over two replicas of two stages: the published six changes an iteration."""
    settings = _settings(
        tensor_parallel=1,
        fabric={**to_dict(_settings().fabric), "gpus_per_server": 1},
        width=32,
        tokens=16,
        iterations=3,
        latencies_ms=[0, 30],
        restart_latency_ms=20,
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps(to_dict(settings)))
    subprocess.run(
        [sys.executable, "-m", "training.live", "--config", config, "--out", tmp_path / "out"],
        check=True,
    )
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    losses: dict[int, set[float]] = {}
    for row in rows:
        losses.setdefault(row["iteration"], set()).add(row["loss"])
    assert all(len(values) == 1 for values in losses.values())
    plain = [row for row in rows if not row["controller_restarted"]]
    switched = [row for row in plain if row["mode"] != "electrical"]
    assert {row["reconfigurations"] for row in switched} == {6}
    on_demand = [
        row
        for row in switched
        if row["mode"] == "on_demand" and row["reconfiguration_latency_ms"] == 30
    ]
    assert all(row["stall_ms"] >= 6 * 30 for row in on_demand)
    priorities = {(row["mode"], row["controller_priority"]) for row in rows}
    assert ("electrical", None) in priorities
    # As the system permits, and alike for all controllers of a run.
    assert len({priority for mode, priority in priorities if mode != "electrical"} - {None}) == 1
    # The last iterations ran under the second controller.
    again = [row for row in rows if row["controller_restarted"]]
    assert {row["iteration"] for row in again} == {1, 2, 3}


def test_one_iteration_with_a_restart_and_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    changes = {
        "tensor_parallel": 1,
        "width": 8,
        "tokens": 4,
        "iterations": 1,
        "latencies_ms": [],
        "fabric": {**to_dict(_settings().fabric), "gpus_per_server": 1},
    }
    config = tmp_path / "config.json"
    command = ["-m", "training.live", "--config", config, "--out", tmp_path / "out"]
    for rate in (0.003, 1e18):
        config.write_text(json.dumps(to_dict(_settings(**changes, learning_rate=rate))))
        done = python(*command)
        assert (done.returncode, "Traceback" in done.stderr) == (0 if rate < 1 else 2, False)
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    assert [row["controller_restarted"] for row in rows] == [False] * 4 + [True] * 4
    assert done.stderr.splitlines()[-1] == (
        "training.live: error: learning_rate: got loss nan in step 2 with 1e+18; allowed: a rate"
        " with which it stays finite"
    )


Row = dict[str, Any]
LATENCY_MS = 100.0
MS = 1_000_000
#: The place of the block provisioned at that latency.
SWITCHED = 11
BLOCKS = (
    ("electrical", 0.0, "measured_cpu"),
    ("provisioned", 0.0, "emulated"),
    ("provisioned", LATENCY_MS, "emulated"),
)


def _block(mode: str, latency_ms: float, fidelity: str) -> Row:
    return {
        "mode": mode,
        "reconfiguration_latency_ms": latency_ms,
        "controller_restarted": False,
        "fidelity": fidelity,
    }


def _rows() -> list[Row]:
    """Two ranks, iterations 1 and 2; rank 1 and the second iteration take longer."""
    return [
        _block(*block)
        | {
            "iteration": iteration,
            "rank": rank,
            "iteration_ms": 100.0 * iteration + 10.0 * rank + block[1],
            "stall_ms": block[1] / 2,
            "wait_ms": 1.0,
            "requests": 2,
            "held": 3,
            "reconfigurations": 1 + rank,
            "phase_changes": 2,
            "mispredictions": 1,
            "loss": 2.0,
            "load_share": 0.25,
            "controller_priority": None if block[0] == "electrical" else "real_time",
        }
        for block in BLOCKS
        for iteration in (1, 2)
        for rank in (0, 1)
    ]


def _event(rank: int, iteration: int, phase: str, start_ns: int, end_ns: int) -> Row:
    moments = ("issued_ns", "waited_ns", "resumed_ns")
    return {
        "iteration": iteration,
        "rank": rank,
        "kind": "all_reduce",
        "group": phase.partition(" ")[2],
        "bytes": 8,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "busy_ns": 0,
        "phase": phase,
        "channel": phase,
        "sequence": iteration,
        **dict.fromkeys(moments, start_ns),
        **dict.fromkeys([name.replace("_ns", "_busy_ns") for name in moments], 0),
    }


def _trace() -> list[Row]:
    """A ring of 0 and 2, which ends at 40 ms, then a pair of 0 and 4 at 70 ms: a window
    of 30 ms. A warm-up iteration 0 that no row is timed of comes before.
    """
    events = []
    for block in BLOCKS:
        for iteration in (0, 1, 2):
            at = iteration * 1000 * MS
            own = [
                _event(rank, iteration, "ring 0,2", at + 10 * MS, at + 40 * MS) for rank in (0, 2)
            ]
            own += [
                _event(rank, iteration, "pair 0,4", at + 70 * MS, at + 80 * MS) for rank in (0, 4)
            ]
            # Rank 4 has something of its own that ended before.
            own += [_event(rank, iteration, "ring 4,6", at, at + 20 * MS) for rank in (4, 6)]
            events += [_block(*block) | event for event in own]
    return events


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Row]]:
    """The tables of the stage over a program that only leaves its files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def program(command: list[str], name: str) -> None:
        assert name == "program mine"
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        write_json(out / "rows.json", _rows())
        pq.write_table(pa.Table.from_pylist(_trace()), out / "trace.parquet")
        journal_path(out, SWITCHED).touch()

    def read(path: Path, _: Any) -> list[Switching]:
        assert path.name == f"journal.{SWITCHED}.jsonl"
        moments = (1041, 1143, 1070.5, 1070)
        pair = Configuration("pair", (0, 4))
        return [Switching(pair, *(round(moment * MS) for moment in moments))]

    monkeypatch.setattr("workflow.watch.run_program", program)
    monkeypatch.setattr("railx.replay.changes.switchings", read)
    stage = STAGES["live"]
    outputs = {key: tmp_path / stage.path(key, "mine") for key in stage.outputs}
    settings = {**choice("live", "dp2_pp2_tp2"), "seed": 1}
    stage.make(settings, item="mine", inputs={}, outputs=outputs)
    return {key: read_rows(path) for key, path in outputs.items() if path.suffix == ".parquet"}


def test_changes_have_their_windows_and_both_stalls(made: dict[str, list[Row]]) -> None:
    pairs = [row for row in made["changes"] if row["circuits"] == "pair 0,4"]
    assert {row["iteration"] for row in made["changes"]} == {1, 2}
    assert {row["mode"] for row in made["changes"]} == {"provisioned"}
    assert {row["window_ms"] for row in pairs} == {30.0}
    predicted = {row["reconfiguration_latency_ms"]: row["predicted_stall_ms"] for row in pairs}
    assert predicted == {0.0: 0.0, LATENCY_MS: 70.0}


def test_changes_have_their_delays_where_a_journal_tells(made: dict[str, list[Row]]) -> None:
    names = [f"{name}_delay_ms" for name in ("switch", "begin", "question")]
    found = {
        tuple(row[name] for name in names)
        for row in made["changes"]
        if (row["reconfiguration_latency_ms"], row["iteration"], row["circuits"])
        == (LATENCY_MS, 1, "pair 0,4")
    }
    assert found == {(2.0, 1.0, 0.5)}
    unknown = [row for row in made["changes"] if row["reconfiguration_latency_ms"] == 0]
    assert {row[name] for row in unknown for name in names} == {None}


def test_blocks_are_medians_of_the_slowest_rank(made: dict[str, list[Row]]) -> None:
    electrical, level, switched = made["settings"]
    assert electrical["iteration_ms"] == 160.0
    assert (level["iteration_ms"], switched["iteration_ms"]) == (160.0, 260.0)
    assert (electrical["changes"], electrical["all_stalls_ms"]) == (0.0, 0.0)
    assert switched["reconfigurations"] == 2
    assert switched["mispredictions"] == 4
    assert switched["load_share"] == 0.25
    assert electrical["controller_priority"] is None
    assert switched["controller_priority"] == "real_time"
    own = [row for row in made["changes"] if row["reconfiguration_latency_ms"] == LATENCY_MS]
    assert switched["changes"] == len(own) / 2
    total = sum(row["predicted_stall_ms"] for row in own) / 2
    assert switched["all_predicted_stalls_ms"] == pytest.approx(total)


def test_the_iteration_by_the_rule_adds_what_the_rank_with_most_waits_for(
    made: dict[str, list[Row]],
) -> None:
    _, level, switched = made["settings"]
    own = [row for row in made["changes"] if row["reconfiguration_latency_ms"] == LATENCY_MS]
    first = [row for row in own if row["iteration"] == 1]
    by_rank = {
        rank: sum(
            row["predicted_stall_ms"]
            for row in first
            if rank in row["circuits"].partition(" ")[2].split(",")
        )
        for rank in "0246"
    }
    assert level["predicted_iteration_ms"] == level["iteration_ms"]
    expected = level["iteration_ms"] + max(by_rank.values())
    assert switched["predicted_iteration_ms"] == pytest.approx(expected)
