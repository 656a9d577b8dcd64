"""Bills of rails: the published ones to the cent, arrangements of switches, the map."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.economics import EconomicsSettings, cost_summary, rail_economics, rail_map
from railx.economics.rails import OpticalRail, optical_rails
from railx.settings import SettingsError
from workflow.config import compose_stage

ECONOMICS: EconomicsSettings = compose_stage(groups=["economics"])["economics"]
PUBLISHED = Path("resources/published/opus_cost_power.csv")
TECHNOLOGIES = Path("resources/published/opus_ocs_technologies.csv")
PLATFORMS = {
    "H200_400G_fig15_trx879": "h200_400g",
    "GB200_800G_fig15_trx879": "gb200_800g",
    "H100_400G_notebook_trx219": "h100_400g_notebook",
}
NAMES = {"fat_tree": "fat_tree", "electrical_rails": "rail_opt", "photonic_rails": "opus"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return rail_economics(ECONOMICS)


def artifact(rows: list[dict[str, Any]], platform: str, gpus: int) -> dict[str, dict[str, Any]]:
    """The networks of the artifact with one transceiver a GPU."""
    return {
        row["network"]: row
        for row in rows
        if (row["platform"], row["gpus"], row["counting"]) == (platform, gpus, "artifact")
        and row["transceivers_per_gpu"] == 1
    }


def test_every_published_bill_comes_out(rows: list[dict[str, Any]]) -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as lines:
        published = list(csv.DictReader(lines))
    assert len(published) == 14
    for bill in published:
        ours = artifact(rows, PLATFORMS[bill["config"]], int(bill["gpus"]))
        for network, theirs in NAMES.items():
            row = ours[network]
            assert row["cost_usd"] == pytest.approx(float(bill[f"cost_{theirs}_usd"]), abs=0.0051)
            assert row["power_watts"] == pytest.approx(float(bill[f"power_{theirs}_w"]), abs=0.0051)
            assert row["servers"] == int(bill["servers"])
        assert ours["fat_tree"]["electrical_switch_ports"] == int(bill["fat_tree_switch_ports"])
        assert ours["electrical_rails"]["electrical_switch_ports"] == int(
            bill["rail_opt_switch_ports"]
        )
        assert ours["photonic_rails"]["ocs_ports"] == int(bill["ocs_ports"])


@pytest.mark.parametrize(("platform", "suffix"), [("h200_400g", "h200"), ("gb200_800g", "gb200")])
def test_the_bills_of_the_families_agree(
    rows: list[dict[str, Any]], platform: str, suffix: str
) -> None:
    own = artifact(rows, platform, 512)
    summary = {row["topology"]: row for row in cost_summary(ECONOMICS)}
    for network, family in (
        ("electrical_rails", "rail_optimised"),
        ("photonic_rails", "opus_rails"),
    ):
        for key in ("cost_usd", "power_watts"):
            assert own[network][key] == pytest.approx(summary[f"{family}_{suffix}"][key])


def test_switches_are_as_large_as_the_table_says() -> None:
    with TECHNOLOGIES.open(encoding="utf-8", newline="") as lines:
        ports = {row["id"]: row["ports"].split()[0] for row in csv.DictReader(lines)}
    assert ECONOMICS.rails.switches == {name: int(ports[name]) for name in ECONOMICS.rails.switches}


@pytest.mark.parametrize(
    ("servers", "radix", "expected"),
    [
        (96, 192, [OpticalRail("one", 1, 192, 1)]),
        # one server more: two switches of half the ports each, or leaves and spines
        (
            97,
            192,
            [
                OpticalRail("parallel", 2, 194, 1),
                OpticalRail("clos", 3 + 96, 194 + 2 * 3 * 96, 3),
                OpticalRail("clos_strict", 4 + 127, 194 + 2 * 4 * 127, 3),
            ],
        ),
        (
            9216,
            192,
            [OpticalRail("clos", 192 + 96, 18432 * 3, 3)],
        ),
        (9217, 192, []),
    ],
)
def test_arrangements(servers: int, radix: int, expected: list[OpticalRail]) -> None:
    assert optical_rails(servers, radix) == expected


def test_the_table_has_a_size_of_one_server_more_than_a_switch_joins(
    rows: list[dict[str, Any]],
) -> None:
    """Else `opus_job_of_a_switch` holds for larger limits too."""
    one = {
        row["gpus"]: row["arrangement"] == "one"
        for row in rows
        if row["platform"] == "h200_400g" and row["switch"] == "polatis_6000n"
    }
    assert (one[768], one[768 + 8]) == (True, False)


@given(st.integers(1, 5000), st.integers(2, 1100))
def test_every_arrangement_has_room(servers: int, radix: int) -> None:
    found = optical_rails(servers, radix)
    for rail in found:
        assert rail.ports >= 2 * servers
        assert rail.ports <= rail.switches * radix
    assert all(rail.arrangement != "one" for rail in found) == (2 * servers > radix)


def test_only_the_switch_of_the_catalogue_has_a_sourced_price(rows: list[dict[str, Any]]) -> None:
    switched = [row for row in rows if row["switch"] is not None]
    assert {
        (row["switch"], row["ocs_port_price_factor"])
        for row in switched
        if row["ocs_port_price"] == "sourced"
    } == {("polatis_6000n", 1)}
    assert {row["ocs_port_price"] for row in rows if row["switch"] is None} == {None}


def test_dearer_optical_ports_change_cost_alone(rows: list[dict[str, Any]]) -> None:
    by_factor = {
        row["ocs_port_price_factor"]: row
        for row in rows
        if (row["platform"], row["gpus"], row["switch"]) == ("h200_400g", 512, "polatis_6000n")
        and row["transceivers_per_gpu"] == 1
    }
    assert by_factor[2]["cost_usd"] - by_factor[1]["cost_usd"] == 512 * 2 * 520
    assert by_factor[4]["power_watts"] == by_factor[0.5]["power_watts"]


def test_the_map_passes_through_the_published_point_and_its_boundary() -> None:
    points = {
        (
            row["platform"],
            row["transceivers_per_gpu"],
            row["claim"],
            row["transceiver"],
            row["switch_ports_per_gpu"],
        ): row
        for row in rail_map(ECONOMICS)
    }
    assert points["h200_400g", 1, "cost", 879, 5]["ratio"] == pytest.approx(4.2668, abs=1e-4)
    assert points["h200_400g", 1, "power", 10, 5]["ratio"] == pytest.approx(23.855, abs=1e-3)
    assert points["gb200_800g", 1, "cost", 879, 5]["ratio"] == pytest.approx(3.1710, abs=1e-4)
    for row in points.values():
        assert row["holds"] == (row["switch_ports_per_gpu"] >= row["ports_at_boundary"])


def test_a_platform_at_another_port_speed_is_refused() -> None:
    rails = ECONOMICS.rails
    slow = replace(rails.platforms["h200_400g"], port_gbps=200)
    changed = replace(ECONOMICS, rails=replace(rails, platforms={"slow": slow}))
    with pytest.raises(SettingsError, match=r"rails\.platforms.slow\.port_gbps: got 200"):
        rail_economics(changed)
    unpowered = replace(rails.platforms["h200_400g"], price_set="hammingmesh_2022")
    changed = replace(ECONOMICS, rails=replace(rails, platforms={"dark": unpowered}))
    with pytest.raises(SettingsError, match=r"rails\.platforms.dark\.price_set: .* no power"):
        rail_economics(changed)


def test_the_priced_switch_is_one_of_the_switches() -> None:
    with pytest.raises(SettingsError, match="priced_switch: got 'other'; allowed: polatis_6000n"):
        replace(ECONOMICS.rails, priced_switch="other")
