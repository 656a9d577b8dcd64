"""The published simulation: its points, its announcements and its rings."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.places import SHIPPED
from railx.replay.graph_pricing import COUNTS
from railx.steps import published_run
from railx.steps.graph_sweep import graph_time_rows
from railx.steps.published_graphs import PublishedStep
from railx.steps.published_run import PublishedRun, Rings, announced, split_links, stage_times
from railx.steps.settings import StepSettings
from tests.steps.jobs import chosen

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
