"""The flow model and the packet simulator deliver the same where both apply."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.families import build_routing, write_topology
from railx.network.agreement import agreement_rows
from railx.network.packets.seed_sweeps import sweep_seeds
from railx.network.settings import AgreementSettings, StaticNetworkSettings, SweepSettings
from railx.network.throughput import simulate_static
from railx.network.traffic import repeat_seeds, traffic_flows
from railx.vocabulary.routing.analysis import table_lane_loads
from tests.builders import build, checked

SMALL = {
    "railx_hyperx": {"m": 2, "n": 1, "rings": "directed"},
    "torus_2d": {"x_scale": 6, "y_scale": 5},
    "hyperx": {},
}


def agreement(**changes: Any) -> AgreementSettings:
    settings: AgreementSettings = checked("agreement", "small", **changes)
    return dataclasses.replace(
        settings,
        network=dataclasses.replace(settings.network, warmup_cycles=1000, measured_cycles=3000),
    )


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    settings = agreement(loads_over_bound=[0.5, 2.0], repeats=1)
    return [
        row
        for name, changes in SMALL.items()
        for row in agreement_rows(build(name, **changes), settings, 3, name)
    ]


def test_everything_is_compared(rows: list[dict[str, Any]]) -> None:
    settings = agreement()
    seen = {
        (row["topology"], row["traffic"], row["routing"], row["load_over_bound"]) for row in rows
    }
    assert (
        len(seen) == len(rows) == len(SMALL) * len(settings.traffics) * len(settings.routings) * 2
    )
    for row in rows:
        assert row["offered_flits_per_chip_cycle"] == pytest.approx(
            row["load_over_bound"] * row["static_bound_flits_per_chip_cycle"]
        )
        assert row["ratio"] == pytest.approx(
            row["packet_flits_per_chip_cycle"] / row["flow_flits_per_chip_cycle"]
        )
        assert (row["flow_fidelity"], row["packet_fidelity"]) == ("flow", "packet")


def test_below_the_bound_both_deliver_what_is_offered(rows: list[dict[str, Any]]) -> None:
    for row in (row for row in rows if row["load_over_bound"] < 1):
        assert row["flow_flits_per_chip_cycle"] == pytest.approx(
            row["offered_flits_per_chip_cycle"]
        )
        assert row["packet_flits_per_chip_cycle"] == pytest.approx(
            row["offered_flits_per_chip_cycle"], rel=0.02
        )


def test_overloaded_flows_between_neighbours_share_alike(rows: list[dict[str, Any]]) -> None:
    """No packet waits for another that wants a different link: max-min fair rates, to
    the accuracy of the window.
    """
    own = [row for row in rows if row["load_over_bound"] > 1 and row["traffic"] == "neighbour"]
    assert own
    for row in own:
        assert row["packet_flits_per_chip_cycle"] == pytest.approx(
            row["flow_flits_per_chip_cycle"], rel=0.02
        )


def test_overloaded_permutations_on_railx_share_alike(rows: list[dict[str, Any]]) -> None:
    own = [
        row
        for row in rows
        if row["topology"] == "railx_hyperx"
        and row["routing"] == "min"
        and row["traffic"] in ("permutation", "tornado")
    ]
    assert len(own) == 4
    for row in own:
        assert row["packet_flits_per_chip_cycle"] == pytest.approx(
            row["flow_flits_per_chip_cycle"], rel=0.03
        )


def test_buffers_can_only_cost_where_paths_are_fixed(rows: list[dict[str, Any]]) -> None:
    """Single paths: what packets deliver in sum stays below the flows (3 % for unequal
    shares), and within blocking's reach.
    """
    for row in (row for row in rows if row["routing"] == "min"):
        assert 0.3 < row["ratio"] < 1.03


def test_static_bound_equals_the_loads_of_the_table(rows: list[dict[str, Any]]) -> None:
    topology = build("railx_hyperx", **SMALL["railx_hyperx"])
    traffics = agreement().traffics
    for row in (row for row in rows if row["topology"] == "railx_hyperx"):
        demand = traffic_flows(topology, traffics[row["traffic"]], 3).demand()
        loads = table_lane_loads(topology, build_routing(topology, row["routing"]), demand)
        width = topology.links.gbps / 400
        bound = np.min(width[loads > 0] / loads[loads > 0])
        assert row["static_bound_flits_per_chip_cycle"] == pytest.approx(bound)


def test_equal_seeds_give_equal_rows() -> None:
    settings = agreement(loads_over_bound=[1.5], routings=["min"])
    topology = build("torus_2d", x_scale=4, y_scale=4)
    rows = agreement_rows(topology, settings, 7, "t")
    assert rows == agreement_rows(topology, settings, 7, "t")
    seeds = repeat_seeds(7, settings.repeats)
    assert settings.repeats >= 3
    assert list(dict.fromkeys(row["seed"] for row in rows)) == list(seeds)
    alone = dataclasses.replace(settings, repeats=1)
    assert rows == [row for seed in seeds for row in agreement_rows(topology, alone, seed, "t")]
    drawn = [row for row in rows if row["traffic"] == "permutation"]
    assert len({row["flow_flits_per_chip_cycle"] for row in drawn}) > 1, "a permutation a seed"


def test_routings_that_a_family_lacks_are_left_out() -> None:
    settings = agreement(
        repeats=1,
        loads_over_bound=[0.5],
        traffics={"neighbour": {"pattern": "neighbour", "load": 1.0}},
    )
    topology = build("fat_tree", switch_radix=4, planes=1)
    assert [row["routing"] for row in agreement_rows(topology, settings, 1, "tree")] == ["min"]


def test_circuits_follow_the_traffic_of_each_seed(tmp_path: Path) -> None:
    mixnet, graph = build("mixnet", tree_chips=5), tmp_path / "graph"
    settings = agreement(repeats=2, loads_over_bound=[0.5], routings=["min"])
    drawn = settings.traffics["permutation"]
    settings = dataclasses.replace(settings, traffics={"permutation": drawn})
    network = dataclasses.replace(settings.network, warmup_cycles=10, measured_cycles=100)
    write_topology(graph, mixnet)
    sweep = SweepSettings("t", drawn, network, (0.1,), precision=0.5, repeats=2)
    rows, seeds = agreement_rows(mixnet, settings, 2, "t"), repeat_seeds(2, 2)
    static = StaticNetworkSettings("static", "min")
    for seed, row, swept in zip(seeds, rows, sweep_seeds(graph, sweep, 2, seeds), strict=True):
        summary, _ = simulate_static(mixnet, drawn, static, "t", seed=seed)
        bound = pytest.approx(summary["bound_flits_per_chip_cycle"])
        assert row["static_bound_flits_per_chip_cycle"] == bound
        assert swept.summary["bound_flits_per_chip_cycle"] == bound
