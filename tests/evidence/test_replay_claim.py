"""The check of the replay, on tables whose values are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.evidence import judge
from tests.builders import write_result
from workflow.resources import all_claims


@pytest.mark.parametrize(("off_ms", "verdict"), [(1.0, "reproduced"), (9.0, "not reproduced")])
def test_a_replay_may_be_two_percent_off(tmp_path: Path, off_ms: float, verdict: str) -> None:
    wanted = [claim for claim in all_claims() if claim.id == "opus_replay_gives_the_recorded_times"]
    rows: list[dict[str, Any]] = [
        {"topology": topology, "mode": mode, "iteration": iteration, "cluster_ms": ms}
        for topology, mode, ms in (
            ("recorded", "electrical", 100.0 + off_ms),
            ("recorded", "on_demand", 300.0),
            ("fat_tree", "electrical", 20.0),
        )
        for iteration in (1, 2)
    ]
    made = write_result(
        tmp_path,
        "replay.iterations",
        rows,
        "pipeline_stdlib",
        wall_ms=100.0,
        fidelity="replay",
    )
    (found,) = judge(wanted, tmp_path, [str(made.relative_to(tmp_path))])
    assert found["verdict"] == verdict
    assert found["ours"] == pytest.approx(off_ms / 100)
