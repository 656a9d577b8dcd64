"""Jobs on circuits set once and switched, against the step times of whole networks."""

from __future__ import annotations

from typing import Any

import pytest

from railx.families import build_topology
from railx.mapping.settings import JobSettings, SwitchedSettings
from railx.mapping.step import Basis, step_times
from railx.mapping.switched import switched_times
from railx.settings import SettingsError, load, to_dict
from tests.builders import CATALOGUE, SMALL_JOB, topology_settings

#: 16 nodes of 4 chips with 8 ports a chip, on each network.
NODES: dict[str, dict[str, Any]] = {
    "railx": to_dict(topology_settings("railx_torus", x_scale=4, y_scale=4)),
    "photonic": to_dict(
        topology_settings("opus_rails", chips_per_server=4, servers=16, ocs_ports=16, port_gbps=200)
    ),
    "electrical": to_dict(topology_settings("rail_only", chips_per_server=4, servers=16)),
}
LONG = SMALL_JOB | {
    "model": SMALL_JOB["model"] | {"hidden": 8192, "feed_forward": 16384},
    "layout": {
        "mesh": {"tensor": 4},
        "x": {"sequence": 4},
        "y": {"data": 2, "pipeline": 2},
    },
}


def settings_of(**changes: Any) -> SwitchedSettings:
    plain = {
        "jobs": {"small": SMALL_JOB, "long": LONG},
        "networks": {
            name: {"topology": topology, "routings": ["min", "balanced"], "counting": None}
            for name, topology in NODES.items()
        },
        "injection_gb_s_per_chip": 400.0,
        "reference": "railx",
        "latencies_ms": [0, 0.05, 1, 1000],
        "catalogue": str(CATALOGUE),
        "price_set": "opus_400g",
    }
    settings: SwitchedSettings = load(SwitchedSettings, plain | changes, "switched")
    return settings


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return switched_times(settings_of())


def picked(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_the_parts_make_up_the_step(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        parts = ("compute_ms", "inside_ms", "network_ms", "bubble_ms", "stall_ms")
        assert row["step_ms"] == pytest.approx(sum(row[part] for part in parts))
        assert all(row[part] >= 0 for part in parts)


@pytest.mark.parametrize("name", ["railx", "electrical"])
def test_without_switching_a_step_lasts_as_long_as_on_the_whole_network(
    rows: list[dict[str, Any]], name: str
) -> None:
    # One use on rows and one on columns; packets have nothing to set.
    mode = "set_once" if name == "railx" else "packets"
    topology = build_topology(settings_of().networks[name].topology)
    job: JobSettings = settings_of().jobs["small"]
    whole = step_times(
        topology, ["min"], {"small": job}, [Basis("equal_bandwidth", 1, 1, None)], name
    )
    for row in picked(rows, network=name, job="small", basis="equal_bandwidth", mode=mode):
        assert row["step_ms"] == pytest.approx(whole[0]["step_ms"])
        assert row["changes"] == row["stall_ms"] == 0


def test_a_gather_over_rows_and_columns_goes_one_after_the_other() -> None:
    both = LONG | {"layout": {"mesh": {"tensor": 4}, "x": {"sequence": 4}, "y": {"data": 4}}}
    settings = settings_of(jobs={"both": both}, latencies_ms=[0])
    topology = build_topology(settings.networks["railx"].topology)
    basis = Basis("equal_bandwidth", 1, 1, None)
    whole = step_times(topology, ["min", "balanced"], settings.jobs, [basis], "railx")
    (row, *_) = picked(
        switched_times(settings), network="railx", basis="equal_bandwidth", mode="set_once"
    )
    assert row["step_ms"] == pytest.approx(whole[0]["step_ms"])


def test_what_shares_rails_is_slower_and_dearer_ports_are_slower_at_equal_cost(
    rows: list[dict[str, Any]],
) -> None:
    at = {"rule": "on_demand", "latency_ms": 0, "job": "long"}
    (shared,) = picked(rows, network="photonic", mode="set_once", basis="equal_bandwidth", **at)
    (alone,) = picked(rows, network="photonic", mode="every_phase", basis="equal_bandwidth", **at)
    # Three uses on eight rails: at best (a^.5 + b^.5 + c^.5)^2 in place of a + b + c.
    assert 1.5 * alone["network_ms"] < shared["network_ms"] < 3.5 * alone["network_ms"]
    (equal,) = picked(rows, network="electrical", basis="equal_bandwidth", **at)
    (cheap,) = picked(rows, network="electrical", basis="equal_cost", **at)
    slower = equal["cost_per_gpu_usd"] / cheap["cost_per_gpu_usd"]
    assert slower > 3
    assert cheap["network_ms"] == pytest.approx(slower * equal["network_ms"], rel=0.02)
    assert cheap["inside_ms"] == pytest.approx(equal["inside_ms"])


def test_the_best_plan_is_no_worse_than_either_way(rows: list[dict[str, Any]]) -> None:
    modes: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("network", "job", "basis", "rule", "latency_ms"))
        modes.setdefault(key, {})[row["mode"]] = row["step_ms"]
    for key, times in modes.items():
        if key[0] != "electrical":
            best = times["where_it_pays"]
            assert best <= min(times["set_once"], times["every_phase"])
            if key[-1] == 0:
                assert best == pytest.approx(times["every_phase"])


def test_photonic_rails_without_latency_are_electrical_ones_but_for_halved_neighbours(
    rows: list[dict[str, Any]],
) -> None:
    at = {"basis": "equal_bandwidth", "rule": "on_demand", "latency_ms": 0, "job": "long"}
    (photonic,) = picked(rows, network="photonic", mode="every_phase", **at)
    (electrical,) = picked(rows, network="electrical", mode="packets", **at)
    # Two stages face each other over all ports, and rings of gathers fill both sides.
    assert photonic["network_ms"] == pytest.approx(electrical["network_ms"], rel=0.01)


def test_changes_are_counted_and_paid(rows: list[dict[str, Any]]) -> None:
    at = {"basis": "equal_bandwidth", "latency_ms": 1000, "job": "long", "network": "photonic"}
    (demanded,) = picked(rows, mode="every_phase", rule="on_demand", **at)
    # Layers, stages, layers, stages in each of 3 micro-batches; then the gradients.
    assert demanded["changes"] == 3 * 4 + 1
    # One further micro-batch is waited for, of two stages.
    assert demanded["stall_ms"] == pytest.approx(1000 * (13 + 4))
    (provisioned,) = picked(rows, mode="every_phase", rule="provisioned", **at)
    assert 0 < provisioned["stall_ms"] < demanded["stall_ms"]
    (railx,) = picked(rows, mode="every_phase", rule="on_demand", **(at | {"network": "railx"}))
    # Columns alone take turns: stages for the micro-batches, replicas at the end.
    assert railx["changes"] == 2


def test_equal_cost_is_equal(rows: list[dict[str, Any]]) -> None:
    same = picked(rows, basis="equal_cost")
    assert len({round(row["cost_per_gpu_usd"], 6) for row in same}) == 1
    for row in picked(rows, basis="equal_bandwidth", latency_ms=0, rule="on_demand"):
        (other,) = picked(
            rows,
            basis="equal_cost",
            **{key: row[key] for key in ("network", "job", "mode", "rule", "latency_ms")},
        )
        ratio = other["cost_per_gpu_usd"] / row["cost_per_gpu_usd"]
        assert other["watts_per_gpu"] == pytest.approx(ratio * row["watts_per_gpu"])


def test_a_job_without_room_says_so() -> None:
    large = SMALL_JOB | {"layout": {"mesh": {"tensor": 4}, "x": {"data": 8}, "y": {"pipeline": 4}}}
    found = switched_times(settings_of(jobs={"large": large}, latencies_ms=[0]))
    assert {row["network"] for row in found if row["reason"]} == set(NODES)
    assert all(row["step_ms"] is None for row in found)


def test_only_priced_networks_with_lines() -> None:
    with pytest.raises(SettingsError, match="reference: got 'other'; allowed: railx, photonic"):
        settings_of(reference="other")
    torus = to_dict(topology_settings("torus_2d"))
    with pytest.raises(SettingsError, match=r"topology\.family: got 'torus_2d'; .*rail_only"):
        settings_of(networks={"torus": {"topology": torus, "routings": ["min"], "counting": None}})


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_lasts_as_long_as_on_the_whole_network(recompute: str) -> None:
    settings = settings_of(jobs={"again": SMALL_JOB | {"recompute": recompute}}, latencies_ms=[0])
    topology = build_topology(settings.networks["railx"].topology)
    basis = Basis("equal_bandwidth", 1, 1, None)
    whole = step_times(topology, ["min"], settings.jobs, [basis], "railx")
    (row, *_) = picked(
        switched_times(settings), network="railx", basis="equal_bandwidth", mode="set_once"
    )
    assert row["step_ms"] == pytest.approx(whole[0]["step_ms"])


def test_nothing_overlaps_where_circuits_switch() -> None:
    with pytest.raises(SettingsError, match=r"jobs\.late\.overlaps_data: got true; allowed: false"):
        settings_of(jobs={"late": SMALL_JOB | {"overlaps_data": True}})
