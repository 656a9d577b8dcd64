"""Tables of a sweep: their rows, and times against the formula."""

from __future__ import annotations

from dataclasses import replace

import pytest

from railx.steps import sweep
from railx.steps.settings import StepSettings, SweepSettings, VariantSettings
from railx.steps.sweep import phase_rows, time_rows, traffic_rows, window_rows
from tests.replay.reference import replay_prepared
from tests.steps.jobs import EXPERTS, small

SWEEP = SweepSettings(("circuits", "stage_bits"), (0.0, 1e-6), (0.5,), (1e-6,), 1, False)


@pytest.fixture(autouse=True)
def plain_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "replay_programs", replay_prepared)


def settings(**changes: object) -> StepSettings:
    job = small(data=2, pipeline=2, micro_batches=1, **changes)
    variants = {
        "both": VariantSettings(2, 2, 1, 1, "at_end"),
        "alone": VariantSettings(1, 2, 1, 1, "at_end"),
    }
    return StepSettings(job, variants, SWEEP)


def test_a_row_for_each_job_bandwidth_rule_mode_and_latency() -> None:
    rows = list(time_rows("one", settings()))
    # Electrical, and two rules, modes and latencies; one latency at another bandwidth.
    assert len(rows) == 2 * ((1 + 2 * 2 * 2) + (1 + 2 * 2))
    assert {row["step"] for row in rows} == {"one"}
    assert {row["ranks_replayed"] for row in rows if row["job"] == "both"} == {4}
    for row in rows:
        assert row["added_ms"] == pytest.approx(row["step_ms"] - row["electrical_ms"])
        assert row["compute_ms"] == pytest.approx(row["utilisation"] * row["step_ms"])
        if row["mode"] == "electrical":
            assert row["added_ms"] == 0
    slow, fast = (
        min(row["step_ms"] for row in rows if row["scale_out_gb_s"] == rate) for rate in (0.5, 1.0)
    )
    assert slow > fast


def test_a_nanosecond_of_latency_adds_as_many_as_there_are_switches() -> None:
    rows = [
        row
        for row in time_rows("one", settings(sequence_tokens=64))
        if row["reconfiguration_latency_ms"] > 0 and row["scale_out_gb_s"] == 1.0
    ]
    added = {(row["job"], row["mode"]): row["added_ms"] for row in rows}
    assert added["both", "on_demand"] == pytest.approx(2e-6)
    assert added["both", "provisioned"] == pytest.approx(1e-6)
    # A first step brings its pipeline up.
    assert added["alone", "on_demand"] == pytest.approx(1e-6)


def test_the_first_step_is_left_out() -> None:
    """It finds no circuits; a pipeline alone never waits for light again."""
    own = replace(settings(), sweep=replace(SWEEP, iterations=2))
    alone = [row for row in time_rows("one", own) if row["job"] == "alone"]
    assert {(row["stall_ms"], row["added_ms"]) for row in alone} == {(0.0, 0.0)}


def test_other_tables_name_their_job() -> None:
    own = settings()
    experts = replace(
        own,
        job=replace(own.job, model=EXPERTS),
        variants={"spread": VariantSettings(2, 2, 2, 1, "at_end")},
    )
    for rows in (window_rows, phase_rows, traffic_rows):
        made = list(rows("one", experts))
        assert {(row["step"], row["job"], row["expert"]) for row in made} == {("one", "spread", 2)}
    sent = {(row["scope"], row["parallelism"]) for row in traffic_rows("one", experts)}
    assert {("rail", "EP"), ("rail", "PP"), ("rail", "DP"), ("pipeline", "EP")} <= sent
