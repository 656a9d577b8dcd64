"""Networks resized at equal injection bandwidth, and their costs over the number of
chips.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.economics import EconomicsSettings, bill_of_materials, cost_by_scale, cost_summary
from railx.families.fat_tree import FatTreeSettings
from railx.families.railx_split import RailXSplitSettings
from railx.settings import SettingsError, load, to_dict
from workflow.config import compose_stage

ECONOMICS: EconomicsSettings = compose_stage(groups=["economics"])["economics"]
SCALED = ECONOMICS.scale.networks
#: Where a family of the configuration ends below 260,000 chips.
LARGEST = {
    "railx_hyperx_full": 200_704,
    "railx_split_full": 200_704,
    "railx_dragonfly_full": 200_704,
    "railx_torus_full": 200_704,
    "railx_twisted_torus_full": 100_352,
    "railx_hyperx_m4": 21_904,
    "tpu_v4": 4352,
    "opus_rails_equal": 6912,
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return cost_by_scale(ECONOMICS)


@given(st.sampled_from(SCALED), st.integers(2, 260_000))
def test_a_resized_network_is_large_enough_and_injects_as_much(name: str, chips: int) -> None:
    network = ECONOMICS.networks[name]
    largest = LARGEST.get(name, 10**9)
    if chips > largest:
        with pytest.raises(SettingsError, match=f"the nearest is {largest}$"):
            network.at_scale(chips)
        return
    counts = network.at_scale(chips).counts
    assert counts.chips >= chips
    assert counts.injection_gb_s_per_chip == ECONOMICS.scale.injection_gb_s_per_chip
    assert (
        counts.all_to_all_gb_s_per_chip is None
        or 0 < counts.all_to_all_gb_s_per_chip <= counts.injection_gb_s_per_chip
    )


@pytest.mark.parametrize("name", SCALED)
def test_full_scale_sizes_are_their_own(name: str) -> None:
    network = ECONOMICS.networks[name]
    chips = network.chips
    assert network.at_scale(chips).chips in range(chips, int(1.1 * chips) + 1)


def test_the_smallest_railx_grid_is_found_by_trying_all() -> None:
    """m = 7, n = 9: lines whose all-to-all uses all 63 rails have 2, 4, 8, 10, 22 or 64
    nodes.
    """
    lines = (2, 4, 8, 10, 22, 64)
    for chips in (100, 1024, 3000, 20_000, 69_000, 200_000):
        sized = ECONOMICS.networks["railx_hyperx_full"].at_scale(chips)
        assert sized.chips == min(49 * a * b for a in lines for b in lines if 49 * a * b >= chips)
        if sized.chips == 200_704:
            assert sized == ECONOMICS.networks["railx_hyperx_full"]
            continue
        topology = sized.topology
        assert isinstance(topology, RailXSplitSettings)
        assert all(63 % (size - 1) == 0 for size in (*topology.sizes_x, *topology.sizes_y))


@pytest.mark.parametrize(
    ("chips", "tiers"), [(100, 1), (128, 1), (129, 2), (8192, 2), (8193, 3), (524_288, 3)]
)
def test_trees_take_the_fewest_tiers(chips: int, tiers: int) -> None:
    sized = ECONOMICS.networks["fat_tree_full"].at_scale(chips)
    assert isinstance(sized.topology, FatTreeSettings)
    assert (sized.chips, sized.topology.tiers) == (chips, tiers)


@pytest.mark.parametrize(("name", "largest"), [*LARGEST.items(), ("fat_tree_full", 524_288)])
def test_where_a_family_ends_is_named(name: str, largest: int) -> None:
    assert ECONOMICS.networks[name].at_scale(largest).chips == largest
    with pytest.raises(
        SettingsError, match=f"allowed: at most {largest} .*; the nearest is {largest}$"
    ) as error:
        ECONOMICS.networks[name].at_scale(largest + 1)
    assert error.value.key == "chips"
    with pytest.raises(SettingsError, match="at least 2"):
        ECONOMICS.networks[name].at_scale(1)


def test_rows_are_every_network_size_and_price_set(rows: list[dict[str, Any]]) -> None:
    keys = [(row["topology"], row["target_chips"], row["price_set"]) for row in rows]
    assert len(keys) == len(set(keys))
    assert {key[0] for key in keys} == set(SCALED)
    assert {key[2] for key in keys} == set(ECONOMICS.scale.price_sets)
    whole = [key for key in keys if key[0] == "railx_hyperx_full"]
    assert len(whole) == len(ECONOMICS.scale.chips) * len(ECONOMICS.scale.price_sets)
    assert all(
        row["injection_gb_s_per_chip"] == 1800.0 and row["fidelity"] == "analytic" for row in rows
    )
    assert list(rows[0]) == [
        "topology",
        "target_chips",
        "price_set",
        "chips",
        "injection_gb_s_per_chip",
        "all_to_all_gb_s_per_chip",
        "bisection_gb_s_per_chip",
        "cost_usd",
        "cost_per_chip_usd",
        "usd_per_injection_gb_s",
        "usd_per_all_to_all_gb_s",
        "power_watts",
        "watts_per_chip",
        "reference",
        "injection_cost_over_reference",
        "all_to_all_cost_over_reference",
        "watts_over_reference",
        "fidelity",
    ]


def test_the_largest_size_is_the_summary(rows: list[dict[str, Any]]) -> None:
    summary = {row["topology"]: row for row in cost_summary(ECONOMICS)}
    found = [
        row
        for row in rows
        if row["price_set"] == "opus_400g" and row["chips"] == summary[row["topology"]]["chips"]
    ]
    assert {row["topology"] for row in found} >= {
        "railx_hyperx_full",
        "hammingmesh_full",
        "torus_2d_full",
        "tpu_v4",
        "hyperx_full",
    }
    for row in found:
        for key in ("cost_usd", "usd_per_injection_gb_s", "usd_per_all_to_all_gb_s", "power_watts"):
            expected = summary[row["topology"]][key]
            assert row[key] == (None if expected is None else pytest.approx(expected)), (
                row["topology"],
                key,
            )


def test_a_row_is_the_bill_of_the_resized_network(rows: list[dict[str, Any]]) -> None:
    for row in rows[::7]:
        if row["price_set"] != "opus_400g":
            continue
        sized = ECONOMICS.networks[row["topology"]].at_scale(row["target_chips"])
        bill = bill_of_materials(replace(ECONOMICS, networks={**ECONOMICS.networks, "one": sized}))
        parts = [part for part in bill if part["topology"] == "one"]
        assert row["chips"] == parts[0]["chips"]
        assert row["cost_usd"] == pytest.approx(sum(part["total_usd"] for part in parts))
        assert row["power_watts"] == pytest.approx(sum(part["total_watts"] for part in parts))


def test_the_reference_is_the_tree_of_the_same_chips(rows: list[dict[str, Any]]) -> None:
    """With 128-port switches two tiers (3 c_s + 4 c_t a port) reach 8,192 chips and
    three (5 c_s + 6 c_t) the rest.
    """
    for row in rows:
        if row["price_set"] == "opus_400g" and row["chips"] > 128:
            port = 3 * 582.796875 + 4 * 879 if row["chips"] <= 8192 else 5 * 582.796875 + 6 * 879
            assert row["injection_cost_over_reference"] == pytest.approx(
                row["usd_per_injection_gb_s"] / (port / 50)
            )
        if row["topology"] == "fat_tree_full":
            assert (
                row["injection_cost_over_reference"] == row["all_to_all_cost_over_reference"] == 1
            )


def test_railx_costs_the_same_a_chip_at_every_size(rows: list[dict[str, Any]]) -> None:
    found = [
        row
        for row in rows
        if row["topology"] == "railx_hyperx_full" and row["price_set"] == "opus_400g"
    ]
    assert [row["cost_per_chip_usd"] for row in found] == pytest.approx(
        [4 * 9 / 7 * (879 + 520)] * len(ECONOMICS.scale.chips)
    )


def test_hammingmesh_at_full_scale_costs_more_by_the_price_of_its_port(
    rows: list[dict[str, Any]],
) -> None:
    by = {
        row["topology"]: row
        for row in rows
        if row["price_set"] == "opus_400g" and row["target_chips"] == 200_000
    }
    ratio = by["railx_hyperx_full"]["cost_usd"] / by["hammingmesh_full"]["cost_usd"]
    assert ratio == pytest.approx((879 + 520) / (2 * 879 + 582.796875))


def test_power_is_empty_where_no_source_has_it(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert (row["power_watts"] is None) == (row["price_set"] == "hammingmesh_2022")
        without = row["topology"] in ("opus_rails_equal", "mixnet_full")
        assert (row["usd_per_all_to_all_gb_s"] is None) == without


def test_unequal_injection_is_named() -> None:
    chosen = replace(ECONOMICS.scale, networks=(*SCALED, "opus_rails_h200"))
    with pytest.raises(
        SettingsError,
        match="opus_rails_h200 has 50 GB/s of injection a chip; allowed: networks with 1800",
    ) as error:
        cost_by_scale(replace(ECONOMICS, scale=chosen))
    assert error.value.key == "scale.networks"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"networks": ["nothing"]}, "scale.networks"),
        ({"reference": "torus_2d_full"}, "scale.reference"),
    ],
)
def test_scale_names_networks_that_exist(change: dict[str, Any], key: str) -> None:
    plain = to_dict(ECONOMICS)
    with pytest.raises(SettingsError) as error:
        load(EconomicsSettings, {**plain, "scale": {**plain["scale"], **change}})
    assert error.value.key == key
