"""Curves from rows: ranks become one number, repeats a median and an interval."""

from __future__ import annotations

from typing import Any

import pytest

from railx.tracking.results import Curve
from railx.tracking.stage_results import read_curves

STEPS: dict[str, Any] = {"step": "iteration", "curve": "{mode}_{latency:g}ms"}


def row(iteration: int, ms: float, loss: float = 1.0, **other: Any) -> dict[str, Any]:
    return {
        "mode": "on_demand",
        "latency": 50.0,
        "iteration": iteration,
        "ms": ms,
        "loss": loss,
        **other,
    }


def test_the_rows_of_a_step_become_one_number() -> None:
    rows = [row(2, 5.0), row(1, 3.0, 2.0, rank=0), row(1, 4.0, 4.0, rank=1)]
    found = read_curves(rows, **STEPS, values={"ms": "max", "loss": "mean"})
    assert found.curves == (
        Curve("on_demand_50ms/ms", "iteration", ((1.0, 4.0), (2.0, 5.0))),
        Curve("on_demand_50ms/loss", "iteration", ((1.0, 3.0), (2.0, 1.0))),
    )
    assert (found.intervals, found.points) == ({}, {})


def test_repeats_have_curves_of_their_own_and_a_median() -> None:
    rows = [
        row(1, ms + iteration, repeat=repeat, disturbed=disturbed) | {"iteration": iteration}
        for repeat, (ms, disturbed) in enumerate(
            ((10, False), (12, False), (90, True), (11, False))
        )
        for iteration in (1, 2)
    ]
    found = read_curves(rows, **STEPS, values={"ms": "max"}, repeat="repeat", aside="disturbed")
    curves = {curve.name: curve.points for curve in found.curves}
    assert curves["on_demand_50ms/ms"] == ((1.0, 12.0), (2.0, 13.0))
    assert curves["on_demand_50ms/repeat_2/ms"] == ((1.0, 91.0), (2.0, 92.0))
    assert len(curves) == 5
    assert found.intervals == {"on_demand_50ms.ms": (11.5, 13.5)}


def test_where_all_repeats_were_disturbed_they_are_drawn_without_an_interval() -> None:
    rows = [row(1, ms, repeat=ms, disturbed=True) for ms in (10, 30, 20)]
    found = read_curves(rows, **STEPS, values={"ms": "max"}, repeat="repeat", aside="disturbed")
    assert found.curves[0].points == ((1.0, 20.0),)
    assert found.intervals == {}


def test_one_repeat_or_none_is_the_curve_itself() -> None:
    for rows in ([row(1, 3.0, repeat=0)], [row(1, 3.0)]):
        found = read_curves(rows, **STEPS, values={"ms": "max"}, repeat="repeat")
        assert [curve.name for curve in found.curves] == ["on_demand_50ms/ms"]
        assert found.intervals == {}


def test_steps_that_are_settings_are_numbers_of_their_own() -> None:
    rows = [
        {"load": load, "seed": seed, "latency": load * 10 + seed}
        for load in (0.5, 1.25)
        for seed in (1, 2, 3)
    ]
    found = read_curves(
        rows, step="load", curve="sweep", values={"latency": "mean"}, repeat="seed", settings=True
    )
    assert found.points == {"sweep.latency@0.5": 7.0, "sweep.latency@1.25": 14.5}
    assert found.intervals == {"sweep.latency@0.5": (6.0, 8.0), "sweep.latency@1.25": (13.5, 15.5)}


def test_what_is_no_number_is_left_out_and_an_unknown_word_refused() -> None:
    rows = [row(1, float("nan")), row(2, 3.0), {**row(3, 1.0), "ms": None}]
    found = read_curves(rows, **STEPS, values={"ms": "max"})
    assert found.curves == (Curve("on_demand_50ms/ms", "iteration", ((2.0, 3.0),)),)
    with pytest.raises(ValueError, match="history: got sum; allowed: max, mean"):
        read_curves(rows, **STEPS, values={"ms": "sum"})
