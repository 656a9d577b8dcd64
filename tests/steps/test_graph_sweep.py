"""Replays of published graphs: counts, switches and points of the artifact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railx.steps.graph_sweep import graph_time_rows
from railx.steps.settings import StepSettings
from tests.steps.jobs import chosen


def rows(name: str, *latencies_ms: float, **changes: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of settings of conf/step by counts, mode and latency."""
    settings = chosen(name)
    sweep = replace(settings.sweep, latencies_ms=latencies_ms, bandwidths_gb_s=())
    settings = replace(settings, sweep=sweep, **changes)
    keys = ("counts", "mode", "reconfiguration_latency_ms")
    found = list(graph_time_rows(name, settings))
    by_key = {tuple(row[key] for key in keys): row for row in found}
    assert len(by_key) == len(found), "jobs that differ in gradients alone are one graph"
    return by_key


def test_the_smoke_run_at_published_counts_is_the_published_one() -> None:
    smoke = rows("smoke", 0, 10)
    electrical = smoke["published", "electrical", 0]
    assert electrical["step_ms"] == pytest.approx(62_241.6, rel=0.02)
    assert smoke["published", "on_demand", 10]["added_ms"] == pytest.approx(20, abs=0.01)
    assert smoke["published", "provisioned", 10]["added_ms"] == pytest.approx(0, abs=0.01)
    parts = ("compute_ms", "exposed_ms", "waiting_ms")
    assert sum(electrical[part] for part in parts) == pytest.approx(electrical["step_ms"])
    hardware = smoke["hardware", "electrical", 0]
    assert hardware["compute_ms"] == pytest.approx(2 * electrical["compute_ms"], rel=1e-6)


def test_four_stages_switch_ten_times_on_demand_and_six_where_asked_for_ahead() -> None:
    fig12 = rows("h200_128", 500, 1000)
    for mode, switches in (("on_demand", 10), ("provisioned", 6)):
        added = [fig12["published", mode, latency_ms]["added_ms"] for latency_ms in (500, 1000)]
        assert added[1] - added[0] == pytest.approx(switches * 500, abs=0.1)
    assert fig12["published", "electrical", 0]["step_ms"] == pytest.approx(11_931.1, rel=0.05)


def test_settings_without_a_published_layer_have_no_graphs() -> None:
    settings: StepSettings = replace(chosen("smoke"), published=None)
    assert list(graph_time_rows("smoke", settings)) == []
