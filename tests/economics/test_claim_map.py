"""The map of the cost claims: its boundaries recomputed from bills, and the exact
statements behind them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railx.economics import (
    EconomicsSettings,
    claim_map,
    cost_summary,
    price_sensitivity,
    read_catalogue,
)
from railx.economics.catalogue import Catalogue, Price
from railx.settings import SettingsError
from workflow.config import compose_stage

ECONOMICS: EconomicsSettings = compose_stage(groups=["economics"])["economics"]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return claim_map(ECONOMICS)


def one(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1, wanted
    return found[0]


def line(
    rows: list[dict[str, Any]], claim: str, factor: str, level: float | None = None
) -> tuple[float, float]:
    row = one(rows, view="price_set", claim=claim, factor=factor, level=level, prices="opus_400g")
    return row["boundary_slope"], row["boundary_intercept"]


def test_named_price_sets_agree_with_the_sensitivity_table(rows: list[dict[str, Any]]) -> None:
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
            row = one(rows, view="price_set", factor="base", claim=claim, prices=other["prices"])
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
    rows: list[dict[str, Any]], claim: str, limit: float, x: float
) -> None:
    slope, intercept = line(rows, claim, "base")
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


def test_boundaries_are_the_closed_forms(rows: list[dict[str, Any]]) -> None:
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
        assert line(rows, "injection", factor, level) == pytest.approx((slope, slope - c / a))
        slope = hops / (share * 0.5 * a)
        assert line(rows, "all_to_all", factor, level) == pytest.approx((slope, slope - c / a))


def test_injection_boundary_falls_as_one_over_m_and_all_to_all_follows_the_hops(
    rows: list[dict[str, Any]],
) -> None:
    for m in ECONOMICS.claim_map.m:
        nodes = m * 9 + 1
        chips = nodes**2 * m**2
        assert line(rows, "injection", "m", m)[0] == pytest.approx(2 / m)
        assert line(rows, "all_to_all", "m", m)[0] == pytest.approx(
            0.8 * (1 - 1 / nodes) * chips / (chips - 1)
        )
    injection = {line(rows, "injection", "n", n) for n in ECONOMICS.claim_map.n}
    assert max(injection) == pytest.approx(min(injection))


@pytest.mark.parametrize("m", ECONOMICS.claim_map.m)
def test_all_to_all_binds_from_three_chips_a_side(rows: list[dict[str, Any]], m: int) -> None:
    row = one(rows, view="price_set", factor="m", level=m, claim="all_to_all", prices="opus_400g")
    assert row["binding"] == (m >= 3)


def test_cable_to_the_leaf_and_in_node_lanes_shift_the_line_alone(
    rows: list[dict[str, Any]],
) -> None:
    """A cable of k transceivers instead of two lifts the line by (2 - k) / a; a lane of
    price z by z l h / (u s q a).
    """
    slope, intercept = line(rows, "all_to_all", "base")
    for cable in ECONOMICS.claim_map.leaf_cable_over_transceiver:
        assert line(rows, "all_to_all", "leaf_cable_over_transceiver", cable) == pytest.approx(
            (slope, intercept + (2 - cable) / 5)
        )
    lanes_per_port = (2 * 6 * 9 * 4 / 7) / (36 / 7)
    for lane in ECONOMICS.claim_map.in_node_lane_over_transceiver:
        shifted = line(rows, "all_to_all", "in_node_lane_over_transceiver", lane)
        assert shifted == pytest.approx((slope, intercept + slope * lanes_per_port * lane))


def test_a_tapered_tree_is_compared_by_what_it_delivers(rows: list[dict[str, Any]]) -> None:
    """Half of the uplinks: 3 switch ports and 4 transceivers an end port, for 0.5 (N -
    1) / (N - d) of the all-to-all.
    """
    delivered = 0.5 * 200_703 / (200_704 - 85)
    hops = 2 * (200_704 - 200_704 / 64) / 200_703
    slope = hops * delivered / (0.5 * 3)
    assert line(rows, "all_to_all", "taper", 0.5) == pytest.approx((slope, slope - 4 / 3))


def test_points_hold_exactly_above_the_line(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["claim"] != "absolute":
            above = row["switch_port_over_transceiver"] > row["switch_port_at_boundary"]
            assert row["holds"] == above == (row["value"] < row["limit"])
            assert row["source"]
            assert row["fidelity"] == "analytic"


def test_absolute_claim_is_a_strip_of_optics_alone(rows: list[dict[str, Any]]) -> None:
    slope, intercept = line(rows, "absolute", "base")
    assert slope == -1
    assert intercept == pytest.approx(1.3e9 / 1_032_192)
    for row in rows:
        if row["claim"] == "absolute" and row["factor"] == "base":
            assert row["value"] == pytest.approx(
                1_032_192 * (row["transceiver_usd"] + row["ocs_port_usd"])
            )


def test_only_the_set_inferred_from_the_abstract_is_no_price(rows: list[dict[str, Any]]) -> None:
    named = {row["prices"] for row in rows if row["view"] == "price_set"}
    assert named == set(ECONOMICS.sensitivity.price_sets)
    assert all(
        "not a price" in row["source"] for row in rows if row["prices"] == "implied_by_abstract"
    )


def test_a_copper_tree_cannot_be_the_base() -> None:
    chosen = replace(ECONOMICS.sensitivity, fat_trees=("fat_tree_full_copper", "fat_tree_full"))
    with pytest.raises(SettingsError, match="transceivers to the leaf first") as error:
        claim_map(replace(ECONOMICS, sensitivity=chosen))
    assert error.value.key == "sensitivity.fat_trees"
