"""One design point: its plan, its price and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.design.point import evaluate, setting_on
from railx.design.rates import GroupRates, RateStore
from railx.design.settings import PointSettings
from railx.design.sizes import sized_for, with_device_node
from railx.economics import PricedNetwork, read_catalogue
from railx.errors import UserError
from railx.performance.advice import setting_of
from railx.performance.devices import device_named
from railx.performance.search import Job, candidates, price, search
from tests.builders import topology_settings

JOB = PointSettings(gpus=64, model="llama3_8b", global_batch=64, fault_samples=2)


@pytest.mark.parametrize("name", ["torus_2d", "slim_fly", "rail_only", "railx_hyperx"])
def test_the_plan_is_the_best_of_all_plans(name: str) -> None:
    network = topology_settings(name)
    point = evaluate(name, network, JOB, most_chips=4.0)
    setting = setting_of(JOB.advice)
    sized = sized_for(with_device_node(network, setting.device), 64, 256)
    on_network, bound = setting_on(sized, setting, JOB, RateStore())
    job = Job(64, 64, JOB.tokens, JOB.memory_share)
    plans = search(replace(setting, network=bound), job).plans
    every = price(on_network, plans).times.total_s
    assert point.step_s == every.min()
    assert point.step_s <= price(on_network, plans).times.total_s[0]
    assert len(candidates(setting.model, job, 8)) > len(plans) > 100
    assert sum(point.parts_s.values()) == pytest.approx(point.step_s)


def test_dollars_and_watts_are_counts_times_prices() -> None:
    point = evaluate("torus", topology_settings("torus_2d"), JOB, most_chips=4.0)
    catalogue = read_catalogue(JOB.catalogue)
    counts = PricedNetwork(point.network).counts.components
    # 64 chips with 450 GB/s each inside nodes, at assumed prices with a range.
    assert point.cost.components == {**counts, "node_switch_gb_s": 64 * 450}
    node = catalogue.price("node_assumed", "node_switch_gb_s")
    by_set = {
        key: sum(n * catalogue.price(key, part).unit_usd for part, n in counts.items())
        for key in (JOB.price_set, *JOB.price_sets)
    }
    assert point.usd == pytest.approx(by_set["opus_400g"] + 64 * 450 * node.unit_usd)
    assert point.cost.usd_low == pytest.approx(min(by_set.values()) / 64 + 450 * node.low_usd)
    assert point.cost.usd_high == pytest.approx(max(by_set.values()) / 64 + 450 * node.high_usd)
    free = evaluate(
        "torus", topology_settings("torus_2d"), replace(JOB, node_price_set=None), most_chips=4.0
    )
    assert free.usd == pytest.approx(by_set["opus_400g"])
    watts = sum(
        n * (catalogue.price("opus_400g", part).unit_watts or 0) for part, n in counts.items()
    )
    assert point.watts == pytest.approx(watts)
    assert point.joules == pytest.approx((watts + 64 * 700) * point.step_s)


def test_all_rates_of_a_point_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its plans, and of an all-to-all that has no closed form."""
    network = topology_settings("mixnet")
    first = evaluate("mixnet", network, JOB, most_chips=4.0, store=RateStore(tmp_path))
    assert "all-to-all by exact loads" in first.notes
    monkeypatch.setattr(GroupRates, "_computed", None)
    again = evaluate("mixnet", network, JOB, most_chips=4.0, store=RateStore(tmp_path))
    assert again.row() == first.row()


def test_a_point_says_what_it_rests_on() -> None:
    point = evaluate("fly", topology_settings("slim_fly"), JOB, most_chips=4.0)
    row = point.row()
    assert row["fidelity"] == "analytic"
    assert "detours in closed form" in row["notes"]
    assert row["step_low_s"] < row["step_s"] < row["step_high_s"]
    assert row["step_high_s"] == pytest.approx(row["step_s"] * (1 + row["expected_error"]))
    assert row["binds"].split()[0] in point.parts_s
    assert row["all_to_all_gb_s"] <= row["injection_gb_s"] == 400


def test_a_partly_filled_tree_is_computed_on_a_full_one() -> None:
    tree = with_device_node(topology_settings("fat_tree", switch_radix=16), device_named("h100"))
    sized = sized_for(tree, 200, 500)
    graph: Any = sized.graph
    assert sized.chips == 200
    assert (graph.populated_chips, graph.switch_radix) == (None, 12)
    point = evaluate("tree", tree, replace(JOB, gpus=256))
    assert point.notes == ("loads of a full tree of 432 chips",)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("khop_ring", {}, "bill: got none of khop_ring; allowed: networks with prices"),
        ("rail_only", {"gpus": 20}, "chips: got 24 for 20; allowed: at most 22 (most_chips)"),
        ("rail_only", {"gpus": 8192}, "chips: got 8192; allowed: at most 128"),
        ("torus_2d", {"model": "llama3_405b"}, "gpus: got 64; llama3_405b fits no plan"),
        ("torus_2d", {"price_set": "opus_800g"}, "allowed: 800, the port speed of price set"),
        ("torus_2d", {"price_sets": ("gold",)}, "price_sets: got 'gold'"),
    ],
)
def test_what_cannot_be_is_one_line(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        evaluate(name, topology_settings(name), replace(JOB, **changes), most_chips=1.1)
    assert message in str(error.value)


def test_draws_of_faults_are_those_of_the_seed() -> None:
    shares = [
        evaluate("x", topology_settings("railx_hyperx", m=4), JOB, most_chips=4.0).usable.share
        for _ in range(2)
    ]
    assert shares[0] == shares[1] <= 1
    assert np.isfinite(shares[0])
