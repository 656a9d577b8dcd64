"""For which prices the cost claims hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from railx.economics import EconomicsSettings, PricedNetwork, cost_summary, price_sensitivity
from railx.economics.sensitivity import in_node_lanes_of
from railx.settings import SettingsError
from tests.builders import published
from workflow.config import compose_stage


@pytest.fixture(scope="module")
def economics() -> EconomicsSettings:
    settings: EconomicsSettings = compose_stage(groups=["economics"])["economics"]
    return settings


@pytest.fixture(scope="module")
def rows(economics: EconomicsSettings) -> list[dict[str, Any]]:
    return price_sensitivity(economics)


def one(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1
    return found[0]


def test_the_default_prices_give_the_ratios_of_the_summary(
    economics: EconomicsSettings, rows: list[dict[str, Any]]
) -> None:
    summary = {row["topology"]: row for row in cost_summary(economics)}
    grid = summary["railx_hyperx_full"]
    for tree in ("fat_tree_full", "fat_tree_full_copper"):
        row = one(rows, prices="opus_400g", reference=tree, all_to_all="ideal")
        assert row["injection_cost_ratio"] == pytest.approx(
            grid["usd_per_injection_gb_s"] / summary[tree]["usd_per_injection_gb_s"]
        )
        assert row["all_to_all_cost_ratio"] == pytest.approx(
            grid["usd_per_all_to_all_gb_s"] / summary[tree]["usd_per_all_to_all_gb_s"]
        )
        assert row["cost_usd"] == pytest.approx(grid["cost_usd"])


def test_prices_implied_by_the_abstract_meet_all_three_claims(rows: list[dict[str, Any]]) -> None:
    row = one(rows, prices="implied_by_abstract", reference="fat_tree_full", all_to_all="ideal")
    assert row["injection_claim_holds"]
    assert row["all_to_all_claim_holds"]
    assert row["absolute_claim_holds"]
    assert row["cost_usd"] == pytest.approx(1.30e9, rel=2e-3)
    assert row["injection_cost_ratio"] == pytest.approx(0.032, abs=5e-4)
    assert row["all_to_all_cost_ratio"] == pytest.approx(0.44, abs=5e-3)
    assert "implied by the abstract" in row["source"]


def test_published_routing_costs_more_per_all_to_all(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["all_to_all"] == "published_routing":
            ideal = one(rows, prices=row["prices"], reference=row["reference"], all_to_all="ideal")
            assert row["all_to_all_cost_ratio"] == pytest.approx(
                ideal["all_to_all_cost_ratio"] / 0.766
            )
            assert row["injection_cost_ratio"] == ideal["injection_cost_ratio"]


def test_break_even_switch_port_price_is_where_the_claim_tips(
    economics: EconomicsSettings, rows: list[dict[str, Any]]
) -> None:
    row = one(rows, prices="opus_400g", reference="fat_tree_full", all_to_all="published_routing")
    share = row["break_even_switch_port_usd"] / row["transceiver_usd"]
    chosen = replace(
        economics.sensitivity,
        ocs_port_over_transceiver=(row["ocs_port_usd"] / row["transceiver_usd"],),
        switch_port_over_transceiver=(share,),
    )
    tipped = [
        item
        for item in price_sensitivity(replace(economics, sensitivity=chosen))
        if item["view"] == "ratio"
    ]
    assert one(tipped, reference="fat_tree_full", all_to_all="published_routing")[
        "all_to_all_cost_ratio"
    ] == pytest.approx(0.5)


def test_break_even_lane_price_is_where_the_first_relative_claim_tips(
    economics: EconomicsSettings, rows: list[dict[str, Any]]
) -> None:
    row = one(rows, prices="opus_400g", reference="fat_tree_full", all_to_all="ideal")
    grid = economics.networks["railx_hyperx_full"]
    chip_usd = row["cost_usd"] / 200_704
    dearer = 1 + in_node_lanes_of(grid) * row["break_even_in_node_lane_usd"] / chip_usd
    assert max(
        row["injection_cost_ratio"] * dearer / 0.1, row["all_to_all_cost_ratio"] * dearer / 0.5
    ) == pytest.approx(1)


def test_dearer_switch_ports_favour_railx(rows: list[dict[str, Any]]) -> None:
    """Along the grid, with the optics held, both ratios fall with the price of an
    electrical switch port.
    """
    grid = [
        row
        for row in rows
        if row["view"] == "ratio"
        and row["reference"] == "fat_tree_full"
        and row["all_to_all"] == "ideal"
    ]
    for ocs in {row["ocs_port_usd"] for row in grid}:
        line = sorted(
            (row for row in grid if row["ocs_port_usd"] == ocs),
            key=lambda row: row["electrical_switch_port_usd"],
        )
        for cheaper, dearer in pairwise(line):
            assert dearer["injection_cost_ratio"] < cheaper["injection_cost_ratio"]
            assert dearer["all_to_all_cost_ratio"] < cheaper["all_to_all_cost_ratio"]


def test_the_limits_of_the_config_are_the_published_ones(economics: EconomicsSettings) -> None:
    stated = published("railx.csv").items()
    numbers = {name: float(row["value"]) for name, row in stated if row["value"]}
    full = published("railx_uniform_bounds.csv")["m7_n9"]
    chosen = economics.sensitivity
    assert chosen.injection_cost_limit == numbers["injection_cost_ratio"]
    assert chosen.all_to_all_cost_limit == numbers["all_to_all_cost_ratio"]
    assert chosen.absolute_cost_usd == numbers["absolute_cost"]
    routed = float(full["min_bound_flits_per_chip_cycle"]) / float(
        full["ideal_flits_per_chip_cycle"]
    )
    assert chosen.routed_over_ideal == pytest.approx(routed, abs=5e-4)


def test_unknown_price_set_in_the_view_is_named(economics: EconomicsSettings) -> None:
    chosen = replace(economics.sensitivity, price_sets=("opus_400g", "gold"))
    with pytest.raises(SettingsError, match="gold") as error:
        price_sensitivity(replace(economics, sensitivity=chosen))
    assert error.value.key == "sensitivity.price_sets"


def test_a_node_of_one_chip_has_no_break_even_lane(economics: EconomicsSettings) -> None:
    railx = economics.networks["railx_hyperx_full"]
    assert railx.bill.square is not None
    single = PricedNetwork(railx.bill.square(railx.topology, 1, 63))
    changed = replace(economics, networks={**economics.networks, "railx_hyperx_full": single})
    assert all(row["break_even_in_node_lane_usd"] is None for row in price_sensitivity(changed))
