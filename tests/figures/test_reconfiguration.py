"""What a picture of iteration times cannot show to be right."""

from __future__ import annotations

import pandas as pd

from railx.figures import reconfiguration


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    rows = [
        {
            "iteration": i,
            "rank": r,
            "iteration_ms": 100.0 + 10 * r,
            "stall_ms": stall,
            "reconfiguration_latency_ms": None,
        }
        for i in range(2)
        for r, stall in ((0, 50.0), (1, None))
    ]
    frame = pd.DataFrame(rows).assign(
        parallelism="pipeline", plan="p", device="cpu", mode="electrical", run="r"
    )
    steps = reconfiguration._steps(frame)
    assert steps["iteration_ms"].tolist() == [110.0, 110.0]
    assert steps["stall_percent"].tolist() == [25.0, 25.0]
    assert steps["reconfiguration_latency_ms"].tolist() == [0.0, 0.0]
