"""Streams of jobs: node-hours are conserved, nothing overlaps, equal seeds give equal
tables, bad settings end in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.io import read_json, read_rows
from railx.settings import SettingsError, load
from railx.tenancy import TenancySettings
from railx.tenancy.settings import place_rule
from railx.tenancy.stream import (
    Failures,
    Outcome,
    Stream,
    draw_failures,
    draw_stream,
    simulate_stream,
)
from railx.tenancy.study import fault_table, mix_of_jobs, utilisation_table
from tests.builders import choice
from workflow.stages import tenancy

NONE = Failures(np.zeros(0), np.zeros((0, 2), dtype=np.int64))


def plain(name: str = "small", **stream: Any) -> dict[str, Any]:
    settings_ = choice("tenancy", name)
    settings_["stream"] |= stream
    return settings_


def run(
    kinds: list[tuple[int, int]],
    stream: Stream,
    healthy: Any,
    failures: Failures = NONE,
    **choices: Any,
) -> Outcome:
    jobs = [{"rows": a, "columns": b, "setting": "torus", "weight": 1.0} for a, b in kinds]
    changed = plain(jobs=jobs, warmup_share=0.0, repair_hours=5.0, checkpoint_hours=1.0)
    settings_: TenancySettings = load(TenancySettings, changed)
    how: dict[str, Any] = {"rule": "lines", "policy": "best_fit", "queue": "fifo"} | choices
    return simulate_stream(settings_.stream, stream, healthy, failures, **how)


@given(
    st.integers(0, 2**32),
    st.sampled_from(["railx", "hammingmesh", "torus"]),
    st.sampled_from(["first_fit", "best_fit"]),
    st.sampled_from(["reject", "fifo", "backfill"]),
    st.sampled_from([None, 200.0, 40.0]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_node_hours_are_conserved(
    seed: int, system: str, policy: str, queue: str, mtbf: float | None, load_: float
) -> None:
    """The grid was busy with what the jobs got done and what failures undid."""
    changed = plain(arrivals=60, warmup_share=0.2, repair_hours=24.0, checkpoint_hours=1.0)
    configured: TenancySettings = load(TenancySettings, changed)
    rng = np.random.default_rng(seed)
    drawn = draw_stream(configured.stream, 81, load_, rng)
    failures = draw_failures(9, mtbf, float(drawn.arrival_hours[-1]), rng)
    healthy = np.ones(81, dtype=np.bool_)
    healthy[rng.choice(81, 5, replace=False)] = False
    outcome = simulate_stream(
        configured.stream,
        drawn,
        healthy.reshape(9, 9),
        failures,
        rule=place_rule(system),  # type: ignore[arg-type]
        policy=policy,  # type: ignore[arg-type]
        queue=queue,  # type: ignore[arg-type]
    )
    nodes = np.array([job.nodes for job in configured.stream.jobs])[drawn.kind]
    done = float((nodes * (drawn.duration_hours - outcome.remaining_hours)).sum())
    assert outcome.total_node_hours == pytest.approx(done + outcome.lost_node_hours, rel=1e-9)
    assert (outcome.remaining_hours >= 0).all()
    ended = ~np.isnan(outcome.end_hours)
    assert (outcome.remaining_hours[ended] == 0).all()
    assert not (ended & outcome.rejected).any()
    assert (outcome.start_hours[ended] >= drawn.arrival_hours[ended]).all()
    ran = outcome.end_hours[ended] - outcome.start_hours[ended]
    assert (ran >= drawn.duration_hours[ended] - 1e-9).all()
    if mtbf is None:
        assert outcome.interruptions == outcome.lost_node_hours == 0
        assert ran == pytest.approx(drawn.duration_hours[ended])
    if queue != "reject" and mtbf is None:
        assert (ended | outcome.rejected).all()
    assert outcome.busy_node_hours <= outcome.healthy_node_hours + 1e-9


def test_jobs_wait_for_their_turn_and_freed_nodes_serve_again() -> None:
    """Two jobs that each need the whole grid run one after the other; a small one
    passes only where backfill lets it.
    """
    stream = Stream(np.array([0, 0, 1]), np.array([0.0, 1.0, 2.0]), np.array([10.0, 10.0, 1.0]))
    healthy = np.ones((3, 3), dtype=np.bool_)
    fifo = run([(3, 3), (1, 1)], stream, healthy)
    assert fifo.start_hours.tolist() == [0, 10, 20]
    assert fifo.total_node_hours == 9 * 20 + 1
    reject = run([(3, 3), (1, 1)], stream, healthy, queue="reject")
    assert reject.rejected.tolist() == [False, True, True]
    assert not reject.rejected_by_shape.any()  # there were no free nodes at all
    stream = Stream(np.array([0, 1, 2]), np.array([0.0, 1.0, 2.0]), np.array([10.0, 10.0, 1.0]))
    assert run([(2, 3), (3, 3), (1, 3)], stream, healthy).start_hours.tolist() == [0, 10, 20]
    assert run(
        [(2, 3), (3, 3), (1, 3)], stream, healthy, queue="backfill"
    ).start_hours.tolist() == [0, 10, 2]


def test_a_failure_throws_its_job_back_to_the_last_checkpoint() -> None:
    stream = Stream(np.array([0, 0]), np.array([0.0, 9.0]), np.array([6.0, 1.0]))
    healthy = np.ones((2, 2), dtype=np.bool_)
    failures = Failures(np.array([2.5]), np.array([[0, 0]]))
    outcome = run([(2, 2)], stream, healthy, failures)
    # It ran 2.5 h of which 2 h are kept, waits 5 h for the repair, and runs the other 4
    # h.
    assert outcome.end_hours[0] == 2.5 + 5 + 4
    assert outcome.lost_node_hours == 0.5 * 4
    assert outcome.interruptions == 1
    assert run([(2, 2)], stream, healthy, failures, queue="reject").rejected.tolist() == [
        True,
        False,
    ]
    # Where another node is free, the job goes on at once.
    assert run([(1, 1)], stream, healthy, failures).interruptions <= 1
    assert (
        run(
            [(1, 2)], stream, healthy, Failures(np.array([2.5, 2.5]), np.array([[0, 0], [0, 1]]))
        ).end_hours[0]
        <= 6.5
    )


def test_railx_goes_around_a_failure_where_the_torus_cannot() -> None:
    healthy = np.ones((6, 6), dtype=np.bool_)
    healthy[[0, 2, 4], [0, 2, 4]] = False
    stream = Stream(np.array([0]), np.array([1.0]), np.array([3.0]))
    assert not run([(5, 4)], stream, healthy).rejected.any()
    blocked = run([(5, 4)], stream, healthy, rule="blocks")
    assert blocked.rejected.all()
    assert blocked.rejected_by_shape.all()


def test_hammingmesh_equals_railx_and_both_see_the_same_stream() -> None:
    configured: TenancySettings = load(TenancySettings, plain(arrivals=60))
    rows = utilisation_table(configured, 7)
    assert rows == utilisation_table(configured, 7)
    assert rows != utilisation_table(configured, 8)
    by_system = {
        system: [
            {k: v for k, v in row.items() if k != "system"}
            for row in rows
            if row["system"] == system
        ]
        for system in ("railx", "hammingmesh", "torus")
    }
    assert by_system["railx"] == by_system["hammingmesh"]
    assert len(by_system["torus"]) == len(by_system["railx"]) == 6 * configured.stream.samples
    for row in rows:
        assert 0 < row["utilisation"] <= row["utilisation_of_healthy"] + 1e-12 <= 1 + 2e-12
        assert row["rejected_by_shape_share"] <= row["rejected_share"]


def test_mix_places_all_jobs_of_the_shipped_settings_around_failures() -> None:
    summary = mix_of_jobs(load(TenancySettings, plain("full_scale")), 1)["summary"]
    assert summary["jobs_placed"] == summary["jobs"] == 12
    assert summary["wirings"] == 3
    assert [
        summary[key]
        for key in (
            "ports_shared",
            "failed_nodes_used",
            "failed_rails_used",
            "failed_switches_used",
        )
    ] == [0] * 4


def test_fault_table_bounds_each_other() -> None:
    rows = fault_table(load(TenancySettings, plain()), 3)
    for row in rows:
        assert row["usable_share"] <= row["healthy_share"] + 1e-12
        if row["system"] == "railx":
            assert (
                row["lines_out"] >= row["lines_needed"] - 0
            )  # a cover is no smaller than a matching
            # Every failure costs one line at most, so distinct lines are the worst
            # case.
            side, failed = 9, row["failed_nodes"]
            assert row["usable_nodes"] >= (side - failed // 2) * (side - (failed + 1) // 2)


def test_stage_writes_the_tables_that_it_sums_up(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.parquet" for name in ("faults", "utilisation", "degraded")}
    summary = tenancy.STAGE.make(
        {"tenancy": plain(arrivals=60), "seed": 1},
        outputs={**paths, "summary": tmp_path / "summary.json"},
    )
    assert read_json(tmp_path / "summary.json") == summary
    for path in paths.values():
        rows = read_rows(path)
        assert rows
        assert {row["fidelity"] for row in rows} == {"analytic"}
    own = [
        row
        for row in read_rows(paths["faults"])
        if row["system"] == "railx" and row["failed_nodes"] == 4
    ]
    shares = [row["usable_share"] for row in own if row["placement"] == "random"]
    assert summary["faults.4.railx_share"] == pytest.approx(np.mean(shares))
    assert summary["nodes"] == 81


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("ocs_radix",),
            17,
            (
                "tenancy.ocs_radix: got 17; allowed: an even number, two ports per node (the"
                " nearest are 16 and 18)"
            ),
        ),
        (("ocs_radix",), 4, "tenancy.ocs_radix: got 4; allowed: at least 6"),
        (
            ("mix", "jobs"),
            [{"rows": 10, "columns": 2, "setting": "torus"}],
            (
                "tenancy.mix.jobs[0].rows: got 10; allowed: at most 9, the nodes of a line of the"
                " grid, the nearest is 9"
            ),
        ),
        (
            ("faults", "counts"),
            [90],
            "tenancy.faults.counts: got 90; allowed: at most 80 nodes, the nearest is 80",
        ),
        (
            ("degraded", "failures"),
            [8],
            "tenancy.degraded.failures: got 8; allowed: at most 7 of the 8 rails of a line",
        ),
        (
            ("stream", "queues"),
            ["reject", "reject"],
            "tenancy.stream.queues: got ['reject', 'reject']; allowed: each value once",
        ),
        (("n",), 3, "tenancy.degraded"),
    ],
)
def test_bad_settings_end_in_one_line(path: tuple[str, ...], value: Any, message: str) -> None:
    settings_ = plain()
    inner = settings_
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    if path == ("n",):
        settings_["degraded"]["failures"] = [6]
        message = "tenancy.degraded.failures: got 6; allowed: at most 5"
    with pytest.raises(SettingsError) as error:
        load(TenancySettings, settings_, "tenancy")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_an_all_to_all_longer_than_the_rails_allow_names_what_works() -> None:
    settings_ = plain()
    settings_["ocs_radix"] = 24
    settings_["mix"]["jobs"] = [{"rows": 2, "columns": 11, "setting": "hyperx"}]
    with pytest.raises(
        SettingsError,
        match=r"mix.jobs\[0\].columns: an all-to-all of 11 nodes needs 10 rails .*nearest is 9",
    ):
        load(TenancySettings, settings_, "tenancy")
