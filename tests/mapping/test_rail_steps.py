"""Generated steps on circuits set once and switched, against the stage steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railx.fabric.circuits import Configuration
from railx.mapping.phases import Use
from railx.mapping.rail_steps import Exchange, TurnWiring, rail_step_rows
from railx.mapping.settings import LayoutSettings, RailStep, RailStepsSettings
from railx.settings import SettingsError, load, to_dict
from railx.steps.settings import StepSettings, SweepSettings, VariantSettings
from railx.steps.sweep import time_rows
from tests.builders import topology_settings
from tests.mapping.test_switched import settings_of
from tests.steps.jobs import EXPERTS, MODEL, small

SWEEP = SweepSettings(("circuits",), (0.0, 0.001), (), (), 2, False)
#: Servers of 4 GPUs whose flights take no time, so that times are bytes over rates.
SIZES = {"scale_up_latency_ns": 0.0, "chips_per_server": 4, "servers": 16}
LIGHT = SIZES | {"external_latency_ns": 0.0}
NETWORKS: dict[str, dict[str, Any]] = {
    "electrical": to_dict(topology_settings("rail_only", **SIZES, leaf_latency_ns=0.0, planes=1)),
    "photonic": to_dict(topology_settings("opus_rails", **LIGHT, ocs_ports=2, port_gbps=200)),
    "split": to_dict(
        topology_settings(
            "opus_rails", **LIGHT, ocs_ports=4, ocs_ports_per_transceiver=4, port_gbps=100
        )
    ),
    "railx": to_dict(
        topology_settings(
            "railx_torus",
            m=2,
            n=4,
            x_scale=4,
            y_scale=4,
            internal_latency_ns=0.0,
            external_latency_ns=0.0,
        )
    ),
}


def step_of(layouts: list[dict[str, Any]], experts: int = 1) -> dict[str, Any]:
    """A job of 4 replicas and 2 stages of tensor parallelism in servers of 4."""
    # Large enough that times are whole nanoseconds but for a thousandth.
    model = replace(MODEL, hidden=4000, attention_weights=40_000, dense_weights=80_000)
    if experts > 1:
        names = ("dense_layers", "experts_per_token", "expert_weights", "shared_weights")
        own = {name: getattr(EXPERTS, name) for name in names}
        model = replace(model, experts=16, **own)
    job = small(data=4, pipeline=2, tensor=4, model=model)
    job = replace(job, device=replace(job.device, scale_up_gb_s=1e6))
    variant = VariantSettings(4, 2, experts, 1, job.gradients)
    return {
        "step": to_dict(StepSettings(job, {"one": variant}, SWEEP)),
        "job": "one",
        "layouts": [{"mesh": {}, "x": {}, "y": {}} | layout for layout in layouts],
    }


PLAIN = step_of([{"x": {"data": 4}, "y": {"pipeline": 2}}])


def rows_of(step: dict[str, Any], latencies: tuple[float, ...] = (0.0, 0.001)) -> Any:
    generated = {
        "steps": {"one": step},
        "networks": {
            name: {"topology": topology, "routings": ["min", "balanced"], "counting": None}
            for name, topology in NETWORKS.items()
        },
        "reference": "photonic",
        "latencies_ms": latencies,
    }
    return list(rail_step_rows(settings_of(generated=generated)))


def picked(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return row


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows_of(PLAIN)
    return found


AT: dict[str, Any] = {"basis": "equal_bandwidth", "rule": "on_demand", "latency_ms": 0.0}


def test_electrical_rails_take_as_long_as_the_stage_steps_says(rows: list[dict[str, Any]]) -> None:
    step: StepSettings = load(StepSettings, PLAIN["step"], "step")
    expected = next(iter(time_rows("x", step)))
    row = picked(rows, network="electrical", **AT)
    assert row["mode"] == "packets"
    assert row["step_ms"] == pytest.approx(expected["electrical_ms"], rel=1e-3)
    assert row["stall_ms"] == row["reconfigurations"] == 0


def test_transfers_take_their_bytes_over_what_the_circuits_carry(
    rows: list[dict[str, Any]],
) -> None:
    times = {
        name: picked(rows, network=name, mode=mode, **AT)
        for name, mode in (
            *(("electrical", "packets"), ("photonic", "every_phase")),
            *(("split", "set_once"), ("railx", "set_once")),
        )
    }
    whole = times["electrical"]
    # A ring fills both ports, two stages face each other over both.
    for part in ("data_ms", "pipeline_ms"):
        assert times["photonic"][part] == pytest.approx(whole[part], rel=1e-3)
        # One of two rings for either, and a row or a column for either.
        assert times["split"][part] == pytest.approx(2 * whole[part], rel=1e-3)
        assert times["railx"][part] == pytest.approx(2 * whole[part], rel=1e-3)
    assert times["split"]["step_ms"] == pytest.approx(times["railx"]["step_ms"], rel=1e-3)
    assert times["photonic"]["expert_ms"] == 0
    assert whole["step_ms"] <= times["photonic"]["step_ms"] <= times["split"]["step_ms"]


def test_what_is_set_once_pays_no_latency_and_what_takes_turns_does(
    rows: list[dict[str, Any]],
) -> None:
    late = AT | {"latency_ms": 0.001}
    for name in ("split", "railx"):
        one = picked(rows, network=name, mode="set_once", **late)
        assert one["step_ms"] == picked(rows, network=name, mode="set_once", **AT)["step_ms"]
        assert one["stall_ms"] == one["reconfigurations"] == 0
    free = picked(rows, network="photonic", mode="every_phase", **AT)
    paid = picked(rows, network="photonic", mode="every_phase", **late)
    # Stages and replicas take turns twice a step: two changes, each of the latency.
    assert paid["reconfigurations"] == free["reconfigurations"] == 2
    assert paid["step_ms"] == pytest.approx(free["step_ms"] + 2 * 0.001)
    # Two ports cannot be set once.
    assert not [row for row in rows if (row["network"], row["mode"]) == ("photonic", "set_once")]


def test_the_best_is_no_worse_than_either_way(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["mode"] in ("set_once", "every_phase"):
            same = {key: row[key] for key in ("network", "basis", "rule", "latency_ms")}
            assert picked(rows, mode="where_it_pays", **same)["step_ms"] <= row["step_ms"]


def test_equal_cost_buys_other_rates(rows: list[dict[str, Any]]) -> None:
    at = AT | {"basis": "equal_cost"}
    costs = {row["cost_per_gpu_usd"] for row in rows if row["basis"] == "equal_cost"}
    assert max(costs) == pytest.approx(min(costs))
    cheap = picked(rows, network="electrical", **at)
    dear = picked(rows, network="electrical", **AT)
    share = cheap["gb_s_per_gpu"] / dear["gb_s_per_gpu"]
    assert share == pytest.approx(cheap["cost_per_gpu_usd"] / dear["cost_per_gpu_usd"])
    assert cheap["data_ms"] == pytest.approx(dear["data_ms"] / share, rel=1e-3)
    assert cheap["watts_per_gpu"] == pytest.approx(dear["watts_per_gpu"] * share)
    assert cheap["power_watts"] == pytest.approx(cheap["watts_per_gpu"] * cheap["gpus"])
    assert cheap["cost_usd"] == pytest.approx(cheap["cost_per_gpu_usd"] * cheap["gpus"])


def test_replicas_on_rows_and_columns_go_one_after_the_other() -> None:
    folded = step_of([{"x": {"data": 2}, "y": {"data": 2, "pipeline": 2}}])
    found = rows_of(folded)
    straight = picked(rows_of(PLAIN), network="railx", mode="set_once", **AT)
    turns = picked(found, network="railx", mode="every_phase", **AT)
    # 1/2 on the one, then half of 1/2 on the other, in place of 3/4 on one.
    assert turns["data_ms"] == pytest.approx(straight["data_ms"], rel=1e-3)
    assert turns["pipeline_ms"] == pytest.approx(straight["pipeline_ms"], rel=1e-3)
    assert turns["reconfigurations"] == 2
    shared = picked(found, network="railx", mode="set_once", **AT)
    assert shared["pipeline_ms"] > turns["pipeline_ms"]


def test_experts_go_round_the_ring_or_take_an_all_to_all_of_their_own() -> None:
    found = rows_of(step_of([{"x": {"data": 4}, "y": {"pipeline": 2}}], experts=16))
    packets = picked(found, network="electrical", **AT)
    ring = picked(found, network="photonic", mode="every_phase", **AT)
    # On a ring of 4 in both directions the mean of 4/3 hops is a third more traffic.
    assert ring["expert_ms"] == pytest.approx(4 / 3 * packets["expert_ms"], rel=1e-3)
    # Replicas and experts have the same ring: stages alone take turns with them.
    assert ring["circuits"] == "data/expert on x/y ring x1; then pipeline on x/y ring x1"
    railx = picked(found, network="railx", mode="where_it_pays", **AT)
    once = picked(found, network="railx", mode="set_once", **AT)
    assert railx["step_ms"] <= once["step_ms"]


def test_a_network_without_room_says_so() -> None:
    job = replace(small(data=16, pipeline=4, tensor=4), schedule="1f1b")
    large = PLAIN | {
        "step": to_dict(StepSettings(job, {"one": VariantSettings(16, 4, 1, 1, "at_end")}, SWEEP)),
        "layouts": [{"mesh": {}, "x": {"data": 16}, "y": {"pipeline": 4}}],
    }
    found = rows_of(large)
    assert {row["reason"] for row in found} == {"no room for 64 servers of 4"}
    assert all(row["step_ms"] is None for row in found)


def test_a_network_without_a_price_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = NETWORKS["electrical"] | {"port_gbps": 1600.0}
    monkeypatch.setitem(NETWORKS, "electrical", fast)
    key = r"^switched\.generated\.networks\.electrical\.topology\.port_gbps: got 1600 Gb/s"
    with pytest.raises(SettingsError, match=key):
        rows_of(PLAIN)


def test_wires_of_turns() -> None:
    data, stages = Use(("x", "y"), ("data",), 4), Use(("x", "y"), ("pipeline",), 2)
    layout = LayoutSettings(mesh={}, x={"data": 4}, y={"pipeline": 2})
    wiring = TurnWiring(layout, {data: (range(1), "ring"), stages: (range(1), "ring")})
    ring, pair = Configuration("ring", (0, 1, 2, 3)), Configuration("pair", (1, 5))
    assert [wire.name for wire in wiring.circuits(ring)] == [
        (0, 0, here, (here + 1) % 4, "ring") for here in range(4)
    ]
    assert {wire.name[2:4] for wire in wiring.circuits(pair)} == {(1, 5), (5, 1)}  # type: ignore[index]
    assert wiring.conflict(ring, pair)
    assert not wiring.conflict(ring, Configuration("ring", (4, 5, 6, 7)))
    # Rails of their own: nothing takes turns with anything.
    apart = TurnWiring(layout, {data: (range(1), "ring"), stages: (range(1, 2), "ring")})
    assert not apart.conflict(ring, pair)
    assert TurnWiring(layout, {}).is_scale_up((0, 1, 2, 3))


def test_experts_with_an_all_to_all_of_their_own_take_turns_with_the_replicas() -> None:
    data, experts = Use(("x",), ("data",), 4), Use(("x",), ("expert",), 4)
    layout = LayoutSettings(mesh={}, x={"data": 4}, y={"pipeline": 2})
    uses = {data: (range(8), "ring"), experts: (range(8), "all_to_all")}
    wiring = TurnWiring(layout, uses)
    ring, exchange = Configuration("ring", (0, 1, 2, 3)), Exchange("ring", (0, 1, 2, 3))
    assert ring != exchange
    assert wiring.conflict(ring, exchange)
    assert len(wiring.circuits(ring)) == len(wiring.circuits(exchange)) == 8 * 4
    # Stages are on columns, which are set for good.
    assert wiring.is_scale_up((0, 4))
    assert not wiring.is_scale_up((0, 1, 2, 3))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"job": "two"}, r"job: got 'two'; allowed: one"),
        ({"layouts": [{"mesh": {"tensor": 4}, "x": {}, "y": {}}]}, r"layouts\[0\]\.mesh: allowed"),
        ({"layouts": [{"mesh": {}, "x": {"data": 2}, "y": {"pipeline": 2}}]}, "data 2; allowed: 4"),
        (
            {"layouts": [{"mesh": {}, "x": {"data": 4, "tensor": 2}, "y": {"pipeline": 2}}]},
            "tensor 2; allowed: 1",
        ),
        ({"layouts": []}, "layouts"),
    ],
)
def test_what_is_no_step_on_rails(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load(RailStep, PLAIN | changes, "step")


def test_experts_lie_over_the_replicas_and_the_reference_is_a_network() -> None:
    half = step_of([{"x": {"data": 4}, "y": {"pipeline": 2}}], experts=8)
    with pytest.raises(SettingsError, match="experts over 2 servers; allowed: 1, or 4"):
        load(RailStep, half, "step")
    both = step_of([{"x": {"data": 2}, "y": {"data": 2, "pipeline": 2}}], experts=16)
    with pytest.raises(SettingsError, match="replicas too where experts span them"):
        load(RailStep, both, "step")
    plain = {"steps": {"one": PLAIN}, "reference": "other", "latencies_ms": [0]}
    network = {"topology": NETWORKS["railx"], "routings": ["min"], "counting": None}
    with pytest.raises(SettingsError, match="reference: got 'other'; allowed: railx"):
        load(RailStepsSettings, plain | {"networks": {"railx": network}}, "generated")
