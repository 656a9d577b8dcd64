"""For which prices the cost claims hold, and their map: its boundaries recomputed from
bills, and the exact statements behind them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from railx.economics import (
    EconomicsSettings,
    PricedNetwork,
    claim_map,
    cost_summary,
    price_sensitivity,
    read_catalogue,
)
from railx.economics.catalogue import Catalogue, Price
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
    assert len(found) == 1, wanted
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


def test_a_tapered_tree_has_less_all_to_all_than_injection(economics: EconomicsSettings) -> None:
    """As in the claim map; so the claim holds at any price of a switch port."""
    chosen = replace(economics.sensitivity, fat_trees=("fat_tree_full_half_taper",))
    tapered = replace(economics, sensitivity=chosen)
    wanted = {"view": "price_set", "prices": "opus_400g"}
    row = one(price_sensitivity(tapered), all_to_all="ideal", **wanted)
    for claim in ("injection", "all_to_all"):
        mapped = one(claim_map(tapered), factor="base", claim=claim, **wanted)
        assert row[f"{claim}_cost_ratio"] == pytest.approx(mapped["value"])
    assert mapped["switch_port_at_boundary"] < 0
    assert row["break_even_switch_port_usd"] == 0


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


ECONOMICS: EconomicsSettings = compose_stage(groups=["economics"])["economics"]


@pytest.fixture(scope="module")
def map_rows() -> list[dict[str, Any]]:
    return claim_map(ECONOMICS)


def line(
    map_rows: list[dict[str, Any]], claim: str, factor: str, level: float | None = None
) -> tuple[float, float]:
    row = one(
        map_rows, view="price_set", claim=claim, factor=factor, level=level, prices="opus_400g"
    )
    return row["boundary_slope"], row["boundary_intercept"]


def test_named_price_sets_agree_with_the_sensitivity_table(map_rows: list[dict[str, Any]]) -> None:
    for other in price_sensitivity(ECONOMICS):
        if (
            other["view"] != "price_set"
            or other["reference"] != "fat_tree_full"
            or other["all_to_all"] != "ideal"
        ):
            continue
        for claim, column, holds in (
            ("injection", "injection_cost_ratio", "injection_claim_holds"),
            ("all_to_all", "all_to_all_cost_ratio", "all_to_all_claim_holds"),
            ("absolute", "cost_usd", "absolute_claim_holds"),
        ):
            row = one(
                map_rows, view="price_set", factor="base", claim=claim, prices=other["prices"]
            )
            assert row["value"] == pytest.approx(other[column])
            assert row["holds"] == other[holds]


def priced(transceiver: float, ocs: float, switch: float) -> Catalogue:
    """The catalogue with a set of these prices."""
    components = {"transceiver": transceiver, "ocs_port": ocs, "electrical_switch_port": switch}
    added = tuple(
        Price("own", name, 400, usd, None, "", "test", "2026", "low", "default")
        for name, usd in components.items()
    )
    catalogue = read_catalogue(ECONOMICS.catalogue)
    return Catalogue(catalogue.path, (*catalogue.prices, *added))


@pytest.mark.parametrize(
    ("claim", "limit", "x"),
    [
        ("injection", 0.1, 3.5),
        ("injection", 0.1, 6.0),
        ("all_to_all", 0.5, 0.7),
        ("all_to_all", 0.5, 3.0),
    ],
)
def test_on_the_boundary_the_bills_give_exactly_the_limit(
    map_rows: list[dict[str, Any]], claim: str, limit: float, x: float
) -> None:
    slope, intercept = line(map_rows, claim, "base")
    y = slope * x + intercept
    assert y > 0
    bills = {
        row["topology"]: row
        for row in cost_summary(replace(ECONOMICS, price_set="own"), priced(800, 800 * x, 800 * y))
    }
    column = f"usd_per_{claim}_gb_s"
    assert bills["railx_hyperx_full"][column] / bills["fat_tree_full"][column] == pytest.approx(
        limit
    )


def test_boundaries_are_the_closed_forms(map_rows: list[dict[str, Any]]) -> None:
    """slope = 1 / (m q a) or h / (s q a), intercept = slope - c / a, with a = 2 T - 1
    and c = 2 T for T full tiers.
    """
    hops = 2 * (200_704 - 200_704 / 64) / 200_703
    for factor, level, m, tiers, share in [
        ("base", None, 7, 3, 1.0),
        ("m", 7, 7, 3, 1.0),
        ("all_to_all_share", 0.766, 7, 3, 0.766),
        ("tiers", 1, 7, 1, 1.0),
        ("tiers", 2, 7, 2, 1.0),
        ("tiers", 4, 7, 4, 1.0),
    ]:
        a, c = 2 * tiers - 1, 2 * tiers
        slope = 1 / (m * 0.1 * a)
        assert line(map_rows, "injection", factor, level) == pytest.approx((slope, slope - c / a))
        slope = hops / (share * 0.5 * a)
        assert line(map_rows, "all_to_all", factor, level) == pytest.approx((slope, slope - c / a))


def test_injection_boundary_falls_as_one_over_m_and_all_to_all_follows_the_hops(
    map_rows: list[dict[str, Any]],
) -> None:
    for m in ECONOMICS.claim_map.m:
        nodes = m * 9 + 1
        chips = nodes**2 * m**2
        assert line(map_rows, "injection", "m", m)[0] == pytest.approx(2 / m)
        assert line(map_rows, "all_to_all", "m", m)[0] == pytest.approx(
            0.8 * (1 - 1 / nodes) * chips / (chips - 1)
        )
    injection = {line(map_rows, "injection", "n", n) for n in ECONOMICS.claim_map.n}
    assert max(injection) == pytest.approx(min(injection))


@pytest.mark.parametrize("m", ECONOMICS.claim_map.m)
def test_all_to_all_binds_from_three_chips_a_side(map_rows: list[dict[str, Any]], m: int) -> None:
    row = one(
        map_rows, view="price_set", factor="m", level=m, claim="all_to_all", prices="opus_400g"
    )
    assert row["binding"] == (m >= 3)


def test_cable_to_the_leaf_and_in_node_lanes_shift_the_line_alone(
    map_rows: list[dict[str, Any]],
) -> None:
    """A cable of k transceivers instead of two lifts the line by (2 - k) / a; a lane of
    price z by z l h / (u s q a).
    """
    slope, intercept = line(map_rows, "all_to_all", "base")
    for cable in ECONOMICS.claim_map.leaf_cable_over_transceiver:
        assert line(map_rows, "all_to_all", "leaf_cable_over_transceiver", cable) == pytest.approx(
            (slope, intercept + (2 - cable) / 5)
        )
    lanes_per_port = (2 * 6 * 9 * 4 / 7) / (36 / 7)
    for lane in ECONOMICS.claim_map.in_node_lane_over_transceiver:
        shifted = line(map_rows, "all_to_all", "in_node_lane_over_transceiver", lane)
        assert shifted == pytest.approx((slope, intercept + slope * lanes_per_port * lane))


def test_a_tapered_tree_is_compared_by_what_it_delivers(map_rows: list[dict[str, Any]]) -> None:
    """Half of the uplinks: 3 switch ports and 4 transceivers an end port, for 0.5 (N -
    1) / (N - d) of the all-to-all.
    """
    delivered = 0.5 * 200_703 / (200_704 - 85)
    hops = 2 * (200_704 - 200_704 / 64) / 200_703
    slope = hops * delivered / (0.5 * 3)
    assert line(map_rows, "all_to_all", "taper", 0.5) == pytest.approx((slope, slope - 4 / 3))


def test_points_hold_exactly_above_the_line(map_rows: list[dict[str, Any]]) -> None:
    for row in map_rows:
        if row["claim"] != "absolute":
            above = row["switch_port_over_transceiver"] > row["switch_port_at_boundary"]
            assert row["holds"] == above == (row["value"] < row["limit"])
            assert row["source"]
            assert row["fidelity"] == "analytic"


def test_absolute_claim_is_a_strip_of_optics_alone(map_rows: list[dict[str, Any]]) -> None:
    slope, intercept = line(map_rows, "absolute", "base")
    assert slope == -1
    assert intercept == pytest.approx(1.3e9 / 1_032_192)
    for row in map_rows:
        if row["claim"] == "absolute" and row["factor"] == "base":
            assert row["value"] == pytest.approx(
                1_032_192 * (row["transceiver_usd"] + row["ocs_port_usd"])
            )


def test_only_the_set_inferred_from_the_abstract_is_no_price(
    map_rows: list[dict[str, Any]],
) -> None:
    named = {row["prices"] for row in map_rows if row["view"] == "price_set"}
    assert named == set(ECONOMICS.sensitivity.price_sets)
    assert all(
        "not a price" in row["source"] for row in map_rows if row["prices"] == "implied_by_abstract"
    )


def test_a_copper_tree_cannot_be_the_base() -> None:
    chosen = replace(ECONOMICS.sensitivity, fat_trees=("fat_tree_full_copper", "fat_tree_full"))
    with pytest.raises(SettingsError, match="transceivers to the leaf first") as error:
        claim_map(replace(ECONOMICS, sensitivity=chosen))
    assert error.value.key == "sensitivity.fat_trees"
