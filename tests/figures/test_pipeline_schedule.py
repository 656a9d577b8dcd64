"""Pipelines of a schedule on one clock."""

from __future__ import annotations

import pandas as pd

from railx.figures import pipelines


def test_pipelines_follow_one_another_in_both_ways_of_counting() -> None:
    own_start = pd.DataFrame(
        {
            "replica": [0, 0, 0],
            "pipeline": [0, 0, 1],
            "start_ms": [0.0, 4.0, 0.0],
            "end_ms": [4.0, 9.0, 5.0],
        }
    )
    batch_start = own_start.assign(start_ms=[0.0, 4.0, 9.0], end_ms=[4.0, 9.0, 14.0])
    for table in (own_start, batch_start):
        moved = pipelines._in_sequence(table)
        assert moved[["start_ms", "end_ms"]].to_numpy().tolist() == [
            [0.0, 4.0],
            [4.0, 9.0],
            [9.0, 14.0],
        ]
