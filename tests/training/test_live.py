"""Programs in plain torch on the rails: their settings, and a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railx.settings import SettingsError, load, to_dict
from tests.builders import choice
from training.live_settings import LiveSettings, live_blocks

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
