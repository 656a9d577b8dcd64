"""Bills of materials: published counts, closed forms, and sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from railx.economics import (
    EconomicsSettings,
    PricedNetwork,
    bill_of_materials,
    cost_summary,
    read_catalogue,
)
from railx.economics.sensitivity import in_node_lanes_of
from railx.families import FAMILIES, TopologySettings
from railx.families.railx_hyperx import RailXHyperXSettings
from railx.settings import SettingsError, load, to_dict
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS
from railx.vocabulary.topology import FamilySettings
from tests.builders import CATALOGUE, published
from workflow.config import choices, compose_stage


@cache
def settings(name: str = "full_scale") -> EconomicsSettings:
    composed: EconomicsSettings = compose_stage([f"economics={name}"], ["economics"])["economics"]
    return composed


def grid(m: int, n: int, **changes: Any) -> RailXHyperXSettings:
    base = settings().networks["railx_hyperx_full"].topology
    assert isinstance(base, RailXHyperXSettings)
    size: dict[str, Any] = {"m": m, "n": n, "rings": "undirected", "ocs_radix": None}
    return replace(base, **size | changes)


def railx(m: int, n: int, **changes: Any) -> PricedNetwork:
    return PricedNetwork(grid(m, n, **changes))


def fat_tree(topology: Mapping[str, Any] | None = None, **changes: Any) -> PricedNetwork:
    """The full tree with a changed topology and changed entries beside it."""
    base = settings().networks["fat_tree_full"]
    changed: FamilySettings = load(TopologySettings, to_dict(base.topology) | dict(topology or {}))
    return replace(base, topology=changed, **changes)


def test_railx_full_scale_has_the_published_counts() -> None:
    counts, numbers = railx(7, 9).counts, published("railx.csv")
    assert counts.chips == int(numbers["chips_full_scale"]["value"]) == 200_704
    assert counts.components == {"transceiver": 1_032_192, "ocs_port": 1_032_192}
    assert counts.components["ocs_port"] == int(numbers["optical_ports_full_scale"]["value"])
    full = grid(7, 9).grid
    assert (
        (full.columns + full.rows) * full.rails
        == int(numbers["optical_switches_full_scale"]["value"])
        == 8_064
    )
    assert (
        counts.injection_gb_s_per_chip == float(numbers["injection_full_scale"]["value"]) == 1800.0
    )


def test_a_flat_layer_serves_a_square_of_half_the_radix() -> None:
    radix = 128
    full = grid(7, 9, ocs_radix=radix)
    assert PricedNetwork(full).counts.components["ocs_port"] == (radix // 2) ** 2 * 4 * 7 * 9
    with pytest.raises(SettingsError, match="at least 128, two ports for each of 64 nodes"):
        grid(7, 9, ocs_radix=radix - 2)


@pytest.mark.parametrize(
    "row", published("railx_uniform_bounds.csv").values(), ids=lambda row: row["id"]
)
def test_ideal_all_to_all_matches_the_published_table(row: dict[str, str]) -> None:
    network = railx(int(row["m"]), int(row["n"]))
    assert network.chips == int(row["chips"])
    assert network.ports.all_to_all == pytest.approx(
        float(row["ideal_flits_per_chip_cycle"]), abs=6e-4
    )


def external_hops(settings: RailXHyperXSettings) -> float:
    """2 (N - N/(r+1)) / (N-1) hops between nodes of N chips (bandwidth formulas)."""
    nodes = settings.m * settings.n + 1
    chips = (nodes * settings.m) ** 2
    return 2 * (chips - chips / nodes) / (chips - 1)


def test_external_hops_match_the_simulator() -> None:
    numbers = published("railx.csv")
    assert external_hops(grid(2, 2)) == pytest.approx(
        float(numbers["external_hops_m2_n2"]["value"]), abs=5e-4
    )
    assert external_hops(grid(4, 2)) == pytest.approx(
        float(numbers["external_hops_m4_n2"]["value"]), abs=5e-4
    )


def test_full_scale_bandwidths_of_the_closed_form() -> None:
    counts = railx(7, 9).counts
    assert counts.all_to_all_gb_s_per_chip == pytest.approx(130.6, abs=0.05)
    assert counts.all_to_all_gb_s_per_chip is not None
    share = counts.all_to_all_gb_s_per_chip / counts.injection_gb_s_per_chip
    assert share == pytest.approx(
        float(published("railx.csv")["all_to_all_over_injection_full_scale"]["value"]), rel=1e-5
    )


@given(st.integers(1, 9), st.integers(1, 9))
def test_railx_prices_per_bandwidth_follow_the_cost_model(m: int, n: int) -> None:
    """Cost per injection falls as 1/m; cost per all-to-all is (c_t + c_o) h / b, near 2
    (c_t + c_o) / b whatever m and n.
    """
    assume(m * n > 1)  # one rail closes no ring over its two nodes
    economics = replace(settings(), networks={**settings().networks, "grid": railx(m, n)})
    row = next(row for row in cost_summary(economics) if row["topology"] == "grid")
    optics, port_gb_s = 879 + 520, 50
    assert row["cost_per_chip_usd"] == pytest.approx(4 * n / m * optics)
    assert row["usd_per_injection_gb_s"] == pytest.approx(optics / m / port_gb_s)
    assert row["usd_per_all_to_all_gb_s"] == pytest.approx(
        optics * external_hops(grid(m, n)) / port_gb_s
    )
    assert optics / port_gb_s <= row["usd_per_all_to_all_gb_s"] <= 2 * optics / port_gb_s


def test_fat_tree_costs_five_switch_ports_and_six_transceivers_a_port() -> None:
    end_ports = 200_704 * 36
    assert fat_tree().counts.components == {
        "electrical_switch_port": 5 * end_ports,
        "transceiver": 6 * end_ports,
    }
    copper = fat_tree(copper_links=("leaf",), copper_price_set="hammingmesh_2022")
    assert copper.counts.components == {
        "electrical_switch_port": 5 * end_ports,
        "transceiver": 4 * end_ports,
        "copper_cable": end_ports,
    }


def test_fat_tree_port_count_is_that_of_whole_switches_at_full_scale() -> None:
    leaves = aggregation = 200_704 // 64
    cores = 200_704 // 128
    assert 64 * 64 * 49 == 200_704  # whole pods
    assert fat_tree({"planes": 1}).counts.components["electrical_switch_port"] == 128 * (
        leaves + aggregation + cores
    )


def test_copper_at_one_tier_leaves_no_transceiver() -> None:
    single = fat_tree(
        {"populated_chips": None, "tiers": 1},
        copper_links=("leaf",),
        copper_price_set="hammingmesh_2022",
    )
    assert single.counts.components == {
        "electrical_switch_port": 128 * 36,
        "copper_cable": 128 * 36,
    }


def priced(name: str, topology: Mapping[str, Any], **changes: Any) -> PricedNetwork:
    """A network of the file with a changed topology and changed entries beside it."""
    base = settings().networks[name]
    changed: FamilySettings = load(TopologySettings, to_dict(base.topology) | dict(topology))
    return replace(base, topology=changed, **changes)


@pytest.mark.parametrize(
    "row", published("opus_cost_power.csv").values(), ids=lambda row: row["id"]
)
def test_opus_and_rail_optimised_match_the_artifact_to_the_cent(row: dict[str, str]) -> None:
    servers, gpus = int(row["servers"]), int(row["gpus"])
    slow = "400G" in row["config"]
    price_set = (
        "opus_400g_notebook"
        if "notebook" in row["config"]
        else "opus_400g"
        if slow
        else "opus_800g"
    )
    gbps = 400.0 if slow else 800.0
    rails, opus = (
        priced(
            base,
            {"chips_per_server": gpus // servers, **changes},
            price_set=price_set,
            counting=counting,
        )
        for base, changes, counting in (
            (
                "rail_optimised_h200",
                {
                    "switch_radix": 2 * servers,
                    "pods": 1,
                    "port_gbps": gbps,
                },
                "opus_artifact_both_ends" if slow else "opus_artifact",
            ),
            (
                "opus_rails_h200",
                {"servers": servers, "ocs_radix": 2048, "port_gbps": gbps / 2},
                None,
            ),
        )
    )
    economics = replace(settings(), networks={**settings().networks, "rails": rails, "opus": opus})
    rows = {summary["topology"]: summary for summary in cost_summary(economics)}
    assert rails.counts.components["electrical_switch_port"] == int(row["rail_opt_switch_ports"])
    assert opus.counts.components["ocs_port"] == int(row["ocs_ports"])
    assert rows["rails"]["cost_usd"] == pytest.approx(float(row["cost_rail_opt_usd"]), abs=0.01)
    assert rows["opus"]["cost_usd"] == pytest.approx(float(row["cost_opus_usd"]), abs=0.01)
    assert rows["rails"]["power_watts"] == pytest.approx(float(row["power_rail_opt_w"]), abs=0.01)
    assert rows["opus"]["power_watts"] == pytest.approx(float(row["power_opus_w"]), abs=0.01)


@pytest.mark.parametrize("name", ["full_scale", "full_scale_cheap_optics"])
def test_summary_is_the_sum_of_the_bill(name: str) -> None:
    economics = settings(name)
    bill = bill_of_materials(economics)
    for row in cost_summary(economics):
        parts = [part for part in bill if part["topology"] == row["topology"]]
        assert row["cost_usd"] == pytest.approx(
            sum(part["count"] * part["unit_usd"] for part in parts)
        )
        assert row["power_watts"] == pytest.approx(
            sum(part["count"] * part["unit_watts"] for part in parts)
        )
        assert row["cost_per_chip_usd"] * row["chips"] == pytest.approx(row["cost_usd"])
        assert row["fidelity"] == "analytic"
    assert all(
        part["source"] and part["total_usd"] == part["count"] * part["unit_usd"] for part in bill
    )


def test_columns_are_the_agreed_ones() -> None:
    assert list(bill_of_materials(settings())[0]) == [
        "topology",
        "chips",
        "component",
        "count",
        "unit_usd",
        "total_usd",
        "total_low_usd",
        "total_high_usd",
        "unit_watts",
        "total_watts",
        "charges",
        "source",
        "fidelity",
    ]
    assert list(cost_summary(settings())[0]) == [
        "topology",
        "chips",
        "injection_gb_s_per_chip",
        "all_to_all_gb_s_per_chip",
        "cost_usd",
        "cost_per_chip_usd",
        "usd_per_injection_gb_s",
        "usd_per_all_to_all_gb_s",
        "power_watts",
        "charges",
        "fidelity",
    ]


def test_equal_injection_bandwidth_and_chips_at_full_scale() -> None:
    rows = {row["topology"]: row for row in cost_summary(settings())}
    grid = rows["railx_hyperx_full"]
    for name in ("fat_tree_full", "fat_tree_full_copper"):
        assert rows[name]["chips"] == grid["chips"]
        assert rows[name]["injection_gb_s_per_chip"] == grid["injection_gb_s_per_chip"]
    assert rows["opus_rails_h200"]["usd_per_all_to_all_gb_s"] is None


def test_power_is_empty_where_a_component_has_no_sourced_power() -> None:
    economics = replace(
        settings(),
        networks={
            **settings().networks,
            "railx_hyperx_full": replace(railx(7, 9), price_set="hammingmesh_2022"),
        },
    )
    rows = {row["topology"]: row for row in cost_summary(economics)}
    assert rows["railx_hyperx_full"]["power_watts"] is None
    assert rows["railx_hyperx_full"]["cost_usd"] > 0


def test_in_node_lanes() -> None:
    assert in_node_lanes_of(railx(1, 3)) == 0
    assert (
        in_node_lanes_of(railx(2, 1, internal_width=1.0)) == 1.0
    )  # 4 pairs, one link each, 4 chips
    assert in_node_lanes_of(fat_tree()) == 0


@pytest.mark.parametrize(
    ("change", "key", "allowed"),
    [
        ({"price_set": "gold"}, "price_set", "opus_400g"),
        ({"price_set": "implied_by_abstract"}, "price_set", "sourced price sets"),
        ({"price_set": "opus_800g"}, "networks.railx_hyperx_full.topology.port_gbps", "800"),
    ],
)
def test_unusable_price_sets_are_named(change: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as error:
        bill_of_materials(replace(settings(), **change))
    assert error.value.key == key
    assert allowed in error.value.message


def test_a_set_without_the_component_names_those_that_have_it() -> None:
    tree = fat_tree(copper_links=("leaf",), copper_price_set="opus_400g")
    with pytest.raises(SettingsError, match="copper_cable; allowed: hammingmesh_2022") as error:
        bill_of_materials(replace(settings(), networks={**settings().networks, "tree": tree}))
    assert error.value.key == "networks.tree.copper_price_set"


@pytest.mark.parametrize(
    ("network", "change", "key", "allowed"),
    [
        ("railx_hyperx_full", {"n": 10}, "ocs_radix", "at least 142"),
        ("railx_split_full", {"sizes_x": [64, 8]}, "split_x", "no split does"),
        ("railx_dragonfly_full", {"columns": 60}, "columns", "divides m * n = 63 rails"),
        ("railx_torus_full", {"x_scale": 65}, "ocs_radix", "at least 130"),
        ("railx_twisted_torus_full", {"x_scale": 60}, "x_scale", "60 x 30 and 64 x 32"),
        ("hammingmesh_full", {"x_scale": 5000}, "x_scale", "at most 4096 boards per line"),
        ("rail_only_full", {"servers": 600_000}, "servers", "2 to 524288 with 3 tiers"),
        ("rail_optimised_full", {"tiers": 2}, "tiers", "at most 1024 servers with 2 tiers"),
        ("dragonfly_full", {"groups": 3000}, "groups", "2 to a * h + 1 = 2049"),
        ("hyperx_full", {"chips_per_switch": 70}, "chips_per_switch", "at most 65"),
        ("torus_2d_full", {"x_scale": 450}, "x_scale", "the nearest are 448 and 455"),
        ("tpu_v4", {"x_cubes": 5}, "ocs_radix", "at least 160"),
        ("opus_rails_equal", {"servers": 97}, "ocs_radix", "at most 96 servers"),
        ("opus_rails_equal", {"ocs_ports_per_transceiver": 5}, "ocs_ports_per_transceiver", "72"),
        ("fat_tree_full", {"switch_radix": 64}, "populated_chips", "at most 65536"),
        ("fat_tree_full", {"switch_radix": 127}, "switch_radix", "an even number"),
        ("fat_tree_full", {"tiers": 9}, "tiers", "from 1 to 5"),
        ("fat_tree_full_half_taper", {"leaf_down_ports": 64}, "taper", "null in one of them"),
        ("fat_tree_full", {"family": "ring"}, "family", "khop_ring, "),
        ("fat_tree_full", {"family": "mesh_2d"}, "tiers", "unknown key"),
    ],
)
def test_impossible_networks_are_one_clear_line(
    network: str, change: dict[str, object], key: str, allowed: str
) -> None:
    plain = to_dict(settings())
    plain["networks"][network]["topology"].update(change)
    with pytest.raises(SettingsError) as error:
        load(EconomicsSettings, plain, "economics")
    assert error.value.key == f"economics.networks.{network}.topology.{key}"
    assert allowed in error.value.message
    assert "\n" not in str(error.value)


MESH = {
    "family": "mesh_2d",
    "n": 1,
    "x_scale": 8,
    "y_scale": 8,
    "port_gbps": 400.0,
    "latency_ns": 10.0,
}


@pytest.mark.parametrize(
    ("network", "change", "key", "allowed"),
    [
        ("fat_tree_full", {"topology": MESH}, "topology.family", "railx_hyperx, railx_torus"),
        ("fat_tree_full", {"copper_links": ["row"]}, "copper_links", "on fat_tree: leaf"),
        ("railx_hyperx_full", {"copper_links": ["leaf"]}, "copper_links", "on railx_hyperx: none"),
        (
            "hammingmesh_full",
            {"copper_links": ["row"]},
            "copper_price_set",
            "a price set with a copper_cable",
        ),
        (
            "fat_tree_full",
            {"counting": "opus_artifact"},
            "counting",
            "on fat_tree: whole_switches, null",
        ),
        (
            "rail_optimised_h200",
            {"counting": "whole"},
            "counting",
            "opus_artifact, opus_artifact_both_ends, null",
        ),
    ],
)
def test_entries_beside_a_topology_are_what_its_family_knows(
    network: str, change: dict[str, object], key: str, allowed: str
) -> None:
    plain = to_dict(settings())
    plain["networks"][network].update(change)
    with pytest.raises(SettingsError) as error:
        load(EconomicsSettings, plain, "economics")
    assert error.value.key == f"economics.networks.{network}.{key}"
    assert allowed in error.value.message


@pytest.mark.parametrize(
    ("key", "value"), [("railx", "fat_tree_full"), ("fat_trees", ["railx_hyperx_full"])]
)
def test_sensitivity_names_networks_of_the_right_kind(key: str, value: object) -> None:
    plain = to_dict(settings())
    plain["sensitivity"][key] = value
    with pytest.raises(SettingsError) as error:
        load(EconomicsSettings, plain)
    assert error.value.key == f"sensitivity.{key}"


@pytest.mark.parametrize("name", choices("economics"))
def test_files_of_the_group_price_every_family_that_has_a_bill(name: str) -> None:
    """Router graphs need no entry: a family of them is one file."""
    priced_families = {network.topology.family for network in settings(name).networks.values()}
    unpriced = {family.name for family in FAMILIES if family.routings == HOP_ROUTINGS} | {"hpn"}
    with_bill = {family.name for family in FAMILIES if family.bill is not None}
    assert priced_families - unpriced == with_bill - unpriced


def test_catalogue_prices_are_the_published_ones() -> None:
    catalogue, rows = read_catalogue(CATALOGUE), published("opus_component_prices.csv")
    for row_id, price_set, component in [
        ("400g_transceiver", "opus_400g", "transceiver"),
        ("400g_transceiver_notebook", "opus_400g_notebook", "transceiver"),
        ("400g_electrical_switch_port", "opus_400g", "electrical_switch_port"),
        ("400g_ocs_port", "opus_400g", "ocs_port"),
        ("800g_transceiver", "opus_800g", "transceiver"),
        ("800g_electrical_switch_port", "opus_800g", "electrical_switch_port"),
        ("800g_ocs_port", "opus_800g", "ocs_port"),
    ]:
        price = catalogue.price(price_set, component)
        assert price.unit_usd == pytest.approx(float(rows[row_id]["unit_cost_usd"]), abs=6e-4)
        assert price.unit_watts == pytest.approx(float(rows[row_id]["unit_power_w"]), abs=6e-5)
    assert all(price.source and price.date and price.confidence for price in catalogue.prices)
    assert {price.price_set for price in catalogue.prices if price.role == "sensitivity"} == {
        "implied_by_abstract"
    }


HEADER = (
    "price_set,component,port_gbps,unit_usd,unit_watts,derivation,source,date,confidence,role\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price_set,component\n", "columns price_set, component; allowed: price_set"),
        (
            HEADER + "a,magnet,400,1,1,,here,2026,high,default\n",
            "line 2, component: got 'magnet'; allowed: transceiver",
        ),
        (HEADER + "a,ocs_port,400,-1,1,,here,2026,high,default\n", "line 2, unit_usd: got '-1'"),
        (HEADER + "a,ocs_port,400,,1,,here,2026,high,default\n", "line 2, unit_usd: is empty"),
        (HEADER + "a,ocs_port,400,1,x,,here,2026,high,default\n", "line 2, unit_watts: got 'x'"),
        (HEADER + "a,ocs_port,400,1,1,,,2026,high,default\n", "line 2, source: is empty"),
        (HEADER + "a,ocs_port,400,1,1,,here,2026,high,maybe\n", "line 2, role: got 'maybe'"),
        (HEADER + "a,ocs_port,400\n", "line 2: wrong number of cells"),
        (HEADER + 2 * "a,ocs_port,400,1,1,,here,2026,high,default\n", "a lists ocs_port twice"),
    ],
)
def test_broken_catalogues_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        read_catalogue(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_missing_catalogue_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_catalogue(tmp_path / "none.csv")
