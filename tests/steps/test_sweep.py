"""Tables of a sweep: their rows, and times against the formula; the published
simulation: its points, its announcements and its rings.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.places import SHIPPED
from railx.replay.graph_pricing import COUNTS
from railx.steps import published_run, sweep
from railx.steps.published_graphs import PublishedStep
from railx.steps.published_run import (
    PublishedRun,
    Rings,
    announced,
    graph_time_rows,
    split_links,
    stage_times,
)
from railx.steps.settings import StepSettings, SweepSettings, VariantSettings
from railx.steps.sweep import phase_rows, time_rows, traffic_rows, window_rows
from tests.replay.reference import replay_prepared
from tests.steps.jobs import EXPERTS, chosen, small

SWEEP = SweepSettings(("circuits", "stage_bits"), (0.0, 1e-6), (0.5,), (1e-6,), 1, False)


@pytest.fixture
def plain_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "replay_programs", replay_prepared)


def settings(**changes: object) -> StepSettings:
    job = small(data=2, pipeline=2, micro_batches=1, **changes)
    variants = {
        "both": VariantSettings(2, 2, 1, 1, "at_end"),
        "alone": VariantSettings(1, 2, 1, 1, "at_end"),
    }
    return StepSettings(job, variants, SWEEP)


@pytest.mark.usefixtures("plain_engine")
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


@pytest.mark.usefixtures("plain_engine")
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


@pytest.mark.usefixtures("plain_engine")
def test_the_first_step_is_left_out() -> None:
    """It finds no circuits; a pipeline alone never waits for light again."""
    own = replace(settings(), sweep=replace(SWEEP, iterations=2))
    alone = [row for row in time_rows("one", own) if row["job"] == "alone"]
    assert {(row["stall_ms"], row["added_ms"]) for row in alone} == {(0.0, 0.0)}


@pytest.mark.usefixtures("plain_engine")
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


AXES = ("data", "tensor", "pipeline")
SMOKE = PublishedStep(data=2, tensor=2, pipeline=2)


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


def published(file: str) -> list[dict[str, str]]:
    with (SHIPPED / "resources" / "published" / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def run_of(row: dict[str, str], links: Any = None) -> tuple[PublishedStep, Any]:
    """The step of a published row and its stages, on links at its rates."""
    step = PublishedStep(
        data=int(row["dp"]),
        tensor=int(row["tp"]),
        pipeline=int(row["pp"]),
        layer="llama" if row["figure"] == "fig12" else "dense",
    )
    up, out = float(row["scale_up_bw_GBps"]), float(row["scale_out_bw_GBps"])
    device = chosen("gb200_512" if row["platform"] == "GB200" else "h200_128").job.device
    rates: Any = links(step, up, out) if links else dict(zip(AXES, (out, up, out), strict=True))
    return step, stage_times(step, device, rates, COUNTS["published"])


def test_every_published_electrical_step_and_static_split_comes_out() -> None:
    of_system = {"eps_full_bw_analytical": None, "ideal_static_bw_split": split_links}
    compared = 0
    for row in published("opus_simulation_latency.csv") + published("opus_simulation_sweeps.csv"):
        if row["system"] not in of_system or int(row["dp"]) > 8:
            continue
        run = PublishedRun(*run_of(row, of_system[row["system"]]))
        step_ns, given_ns = run.ended_ns[run.last_rank], int(row["last_rank_cycles_ns"])
        # Rates of the split are rounded in its files.
        tolerance_ns = 5_000 if row["system"].startswith("eps") else 1e-6 * given_ns
        assert step_ns == pytest.approx(given_ns, abs=tolerance_ns), row["id"]
        if row.get("last_rank_exposed_comm_ns") and row["system"].startswith("eps"):
            assert step_ns - run.compute_ns(0) == int(row["last_rank_exposed_comm_ns"])
        compared += 1
    assert compared == 30


@pytest.mark.parametrize("figure", ["fig12", "fig13"])
def test_published_steps_on_rails_come_out(figure: str) -> None:
    of_latency: dict[float, list[dict[str, str]]] = {10: [], 1000: []}
    for row in published("opus_simulation_latency.csv"):
        if row["figure"] == figure and float(row["reconfig_latency_ms"] or -1) in of_latency:
            of_latency[float(row["reconfig_latency_ms"])].append(row)
    step, stages = run_of(of_latency[10][0])
    for latency_ms, (demanded, provisioned) in of_latency.items():
        on_demand = PublishedRun(step, stages, round(latency_ms * 1e6))
        ahead = PublishedRun(step, stages, round(latency_ms * 1e6), announced(on_demand))
        for run, row in ((on_demand, demanded), (ahead, provisioned)):
            given_ns = int(row["last_rank_cycles_ns"])
            assert max(run.ended_ns) == pytest.approx(given_ns, rel=3e-4), row["id"]
            assert run.circuits is not None
            assert run.circuits.commands == 10


def test_the_smoke_run_at_published_counts_is_the_published_one() -> None:
    smoke = rows("smoke", 0, 1, 10, 50)
    for row in published("opus_simulation_smoke.csv"):
        for mode, column in (("on_demand", "on_demand"), ("provisioned", "provision")):
            step_ms = smoke["published", mode, float(row["reconfig_latency_ms"])]["step_ms"]
            assert step_ms == pytest.approx(1e3 * float(row[f"{column}_step_s"]), rel=5e-5)
    electrical = smoke["published", "electrical", 0]
    assert smoke["published", "on_demand", 0]["step_ms"] == pytest.approx(62_241.6, rel=5e-5)
    assert electrical["step_ms"] < 61_700, "nobody waits for the others to try"
    assert smoke["published", "on_demand", 10]["added_ms"] == pytest.approx(20, abs=0.01)
    hardware = smoke["hardware", "electrical", 0]
    assert hardware["compute_ms"] == pytest.approx(2 * electrical["compute_ms"], rel=1e-6)


def test_ranks_announce_after_the_operations_of_the_published_files() -> None:
    """examples/stg_dp2_pp2_tp2_*/rank_comm_groups.yaml: 289, and 530 and 529."""
    _, stages = smoke_stages()
    on_demand = PublishedRun(SMOKE, stages, 10_000_000)
    first, then = {0: 1, 289: -1}, {0: -1, 530: 0}
    last = {0: -1, 529: 0}
    assert announced(on_demand) == [first] * 4 + [then, last] * 2


def test_circuits_change_once_no_collective_is_in_flight() -> None:
    circuits = published_run._Circuits(100, [0, 0, 0])
    circuits.in_flight = 1
    assert circuits.ask(5, (0,), 0), "the rings are there"
    assert not circuits.ask(5, (0, 1), 1)
    assert (circuits.bits, circuits.lit, circuits.commands) == ([1, 1, 0], (0, 0, 0), 0)
    circuits.in_flight = 0
    assert circuits.ask(7, (1, 2), 1), "a bit stays set where the switch refused it"
    assert circuits.commands == 1
    pairs = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)}
    assert circuits.ready_ns == dict.fromkeys({*pairs, (0,), (1,), (2,)}, 108)


def smoke_stages() -> tuple[PublishedStep, Any]:
    row = {"dp": "2", "tp": "2", "pp": "2", "figure": "", "platform": "H200"}
    return run_of({**row, "scale_up_bw_GBps": "450", "scale_out_bw_GBps": "50"})


def test_two_tensor_ranks_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    step = PublishedStep(data=3, tensor=4, pipeline=2, batch=6, length=1024, layers=4)
    rates: Any = dict(zip(AXES, (10, 100, 10), strict=True))
    stages = stage_times(step, chosen("smoke").job.device, rates, COUNTS["published"])
    steps = []
    for tensor_ranks in (2, 4):
        monkeypatch.setattr(published_run, "_TENSOR_RANKS", tensor_ranks)
        on_demand = PublishedRun(step, stages, 1_000_000)
        ahead = PublishedRun(step, stages, 1_000_000, announced(on_demand))
        steps.append([max(run.ended_ns) for run in (on_demand, ahead)])
    assert steps[0] == steps[1]


@given(st.integers(2, 40), st.integers(1, 10**9), st.sampled_from([1.0, 50.0, 1800.0]))
def test_rings_take_their_bytes_their_latencies_and_their_sums(
    members: int, part: int, gb_s: float
) -> None:
    rings, size = Rings(), 4 * members * part
    gather, scatter, reduce = (
        rings.collective_ns(
            kind, size // (members if kind == "all_gather" else 1), members, gb_s, m
        )
        for kind, m in (("all_gather", 1.0), ("reduce_scatter", 8000.0), ("all_reduce", 8000.0))
    )
    sent_ns = part / (gb_s * 2**30 / 1e9)
    steps = 4 * (members - 1)
    assert gather == pytest.approx(steps * (sent_ns + 2 * 936.25) - 936.25, abs=3 * steps + 11)
    summed_ns = max(936.25, 10 + 3 * int(part / 8000))
    assert scatter == pytest.approx(
        steps * (sent_ns + 936.25 + summed_ns), abs=3 * steps + 4 * (summed_ns + 950)
    )
    assert reduce == pytest.approx(gather + scatter, abs=6 * steps + 8 * (summed_ns + 950))


def test_settings_without_a_published_layer_have_no_graphs() -> None:
    settings: StepSettings = replace(chosen("smoke"), published=None)
    assert list(graph_time_rows("smoke", settings)) == []
