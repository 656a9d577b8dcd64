"""The prediction of the next operation."""

from __future__ import annotations

from hypothesis import strategies as st

from railx.fabric.circuits import Configuration
from railx.fabric.cycle import CircuitSchedule

PIPELINE = Configuration("pair", (0, 1))
DATA = Configuration("ring", (0, 2))
CONFIGURATIONS = st.sampled_from([PIPELINE, DATA, Configuration("ring", (0, 1, 2, 3))])


def test_prediction_ends_with_the_iteration() -> None:
    schedule = CircuitSchedule({0: (PIPELINE, DATA), 1: (DATA,)})
    assert [schedule.following(0, issued) for issued in range(3)] == [PIPELINE, DATA, None]
    assert schedule.following(7, 0) is None
