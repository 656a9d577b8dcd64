"""What a picture of iteration times cannot show to be right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from railx.figures import added_time
from railx.figures.repeats import medians, per_repeat, repeats_words
from railx.intervals import estimate


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of a run, each of one rank in one iteration."""
    return pd.DataFrame(rows).assign(
        run="r", plan="p", parallelism="pipeline", device="cpu", fidelity="emulated"
    )


def row(mode: str, repeat: int, iteration_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "mode": mode,
        "reconfiguration_latency_ms": None if mode == "electrical" else 10.0,
        "repeat": repeat,
        "iteration": 1,
        "rank": 0,
        "iteration_ms": iteration_ms,
        "stall_ms": None,
        "disturbed": False,
        **more,
    }


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    ranks = [
        row("electrical", 0, 100.0, stall_ms=50.0),
        row("electrical", 0, 110.0, rank=1),
        row("electrical", 0, 400.0, iteration=2),
        row("electrical", 0, 100.0, iteration=3),
    ]
    one = per_repeat(frame(ranks)).iloc[0]
    assert one["iteration_ms"] == 110.0
    assert one["iterations"] == 3
    assert one["stall_percent"] == 0.0
    assert one["reconfiguration_latency_ms"] == 0.0
    both = per_repeat(frame(ranks[:2])).iloc[0]
    assert both["stall_percent"] == 25.0


def test_a_repeat_is_held_against_the_electrical_runs_of_the_same_repeat() -> None:
    rows = per_repeat(
        frame(
            [
                row("electrical", 0, 100.0),
                row("electrical", 1, 200.0),
                row("electrical", 2, 900.0, disturbed=True),
                row("on_demand", 0, 150.0),
                row("on_demand", 1, 250.0),
                row("on_demand", 2, 300.0),
            ]
        )
    )
    # The third has no electrical run that counts: the median of the others.
    assert rows["over_electrical"].tolist()[3:] == [1.5, 1.25, 2.0]


def test_medians_leave_out_what_was_disturbed_and_say_so() -> None:
    rows = per_repeat(
        frame(
            [
                row("electrical", 0, 100.0),
                row("on_demand", 0, 150.0),
                row("on_demand", 1, 170.0),
                row("on_demand", 2, 990.0, disturbed=True),
            ]
        )
    )
    points = medians(rows, ["iteration_ms"], 0.95)
    own = points[(points["mode"] == "on_demand") & (points["shows"] == "iteration_ms")].iloc[0]
    assert own["median"] == 160.0
    assert own["repeats"] == 2
    assert np.isnan(own["low"])
    words = repeats_words(rows)
    assert "1 to 2 repeats of 1 timed iterations: too few for an interval" in words
    assert "1 of 4 set aside" in words


def test_what_was_run_again_counts_and_what_never_was_calm_is_shown_and_said() -> None:
    rows = per_repeat(
        frame(
            [
                row("electrical", 0, 100.0),
                row("on_demand", 0, 990.0, disturbed=True),
                row("on_demand", 0, 150.0),
                row("provisioned", 0, 120.0, disturbed=True),
            ]
        )
    )
    points = medians(rows, ["iteration_ms"], 0.95)
    drawn = points.set_index("mode")["median"]
    assert drawn.to_dict() == {"electrical": 100.0, "on_demand": 150.0, "provisioned": 120.0}
    words = repeats_words(rows)
    assert "1 of 4 set aside" in words
    assert "1 of 3 settings are shown although other work on the machine disturbed all" in words


def test_intervals_of_three_repeats_are_those_of_the_claims() -> None:
    times = [100.0, 110.0, 130.0]
    rows = per_repeat(
        frame(
            [row("electrical", number, 100.0) for number in range(3)]
            + [row("on_demand", number, ms) for number, ms in enumerate(times)]
        )
    )
    points = medians(rows, ["iteration_ms"], 0.95)
    shown = points[points["shows"] == "iteration_ms"].set_index("mode")
    drawn = shown.loc["on_demand"]
    assert (drawn["median"], drawn["low"], drawn["high"]) == (110.0, *estimate(times).ends)
    assert drawn["low"] < 100.0
    assert drawn["high"] > 130.0
    assert tuple(shown.loc["electrical", ["low", "high"]]) == (100.0, 100.0)
    added = added_time._overhead_ours(rows, 0.95)
    (median,) = added[added["source"] == "ours"].to_dict("records")
    ends = median["low_percent"], median["high_percent"]
    assert ends == pytest.approx(estimate([0.0, 10.0, 30.0]).ends)
