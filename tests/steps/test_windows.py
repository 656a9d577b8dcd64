"""Windows, volumes and traffic against the published tables, to the last digit."""

from __future__ import annotations

import csv

import pytest

from railx.steps.programs import templates
from railx.steps.sweep import all_phases, per_pipeline, phases, traffic, window_statistics
from tests.builders import PUBLISHED
from tests.steps.jobs import EXPERTS, chosen, small


def test_windows_of_deepseek_are_the_published_ones() -> None:
    (job,) = chosen("deepseek_236b").jobs().values()
    found = {
        (row["transition"], row["direction"]): row
        for row in window_statistics(job)
        if not row["within_layer"]
    }
    names = {"fwd": "forward", "bwd": "backward", "": ""}
    with (PUBLISHED / "opus_deepseek236b_windows.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "all" not in row["transition"]]
    assert len(rows) == len(found) == 8
    for row in rows:
        transition, _, direction = row["transition"].removesuffix(" (same type)").partition(" ")
        own = found[transition, names[direction]]
        assert own["count"] == int(row["count_per_step"])
        for key in ("mean_ms", "min_ms", "max_ms"):
            if row[key.replace("ms", "window_ms")]:
                assert own[key] == pytest.approx(
                    float(row[key.replace("ms", "window_ms")]), abs=6e-5
                )


def test_volumes_of_deepseek_are_the_published_ones() -> None:
    (job,) = chosen("deepseek_236b").jobs().values()
    assert per_pipeline(job) == {
        "EP": 1_900_523_028_480,
        "PP": 2_684_354_560,
        "DP": 10_437_611_520,
    }


def test_traffic_of_the_smoke_run_is_the_logged_one() -> None:
    """GB of 2-byte weights; the log says 8,248 of TP, 2 parts in 10,000 more."""
    for job in chosen("smoke").jobs().values():
        found = {name: round(size / 1e9, 2) for name, size in traffic(job).items()}
        assert found == {"DP": 143.83, "PP": 17.18, "TP": 8246.34}


def test_phases_of_fsdp_over_two_stages() -> None:
    """Sixteen layers and a table are 17 units, as in the published runs."""
    for job in chosen("perlmutter_llama").jobs().values():
        first, _ = all_phases(job)
        assert first == [
            ("DP", 54), ("PP", 1), ("DP", 17), ("PP", 2), ("DP", 17), ("PP", 1)
        ]  # fmt: skip
    (alone,) = chosen("perlmutter_pipeline").jobs().values()
    assert [len(runs) for runs in all_phases(alone)] == [1, 1, 1, 1]


def test_a_job_of_one_stage_has_no_pipeline_traffic() -> None:
    job = small(data=4, tensor=2)
    assert set(traffic(job)) == {"DP", "TP"}
    # Every weight once, in both directions of an all-reduce over four.
    assert traffic(job)["DP"] == 4 * 2 * 3 / 4 * (4 * 30 / 2) * 2


def test_experts_inside_the_server_have_no_windows() -> None:
    inside = small(model=EXPERTS, data=2, tensor=4, expert=4)
    across = small(model=EXPERTS, data=2, tensor=4, expert=8)
    assert not any("EP" in row["transition"] for row in window_statistics(inside))
    rows = [row for row in window_statistics(across) if row["transition"] == "EP->EP"]
    # Three layers with experts: one window inside each, one between neighbours.
    assert {(row["within_layer"], row["count"]) for row in rows} == {(True, 6), (False, 4)}


def test_phases_join_over_the_end_of_a_step() -> None:
    job = small(data=2, pipeline=2, parameters="sharded")
    (first, last) = templates(job, electrical=True)
    assert phases(first)[0][0] == "DP"
    assert [name for name, _ in phases(last)] == ["PP", "DP", "PP", "DP"]
