"""One function prices every network; links inside nodes are free or charged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.economics import PricedNetwork, node_links, price, price_network, read_catalogue
from railx.economics.catalogue import Catalogue
from railx.errors import UserError
from railx.families import links_inside
from railx.settings import SettingsError
from railx.vocabulary.topology import NodeSettings
from tests.builders import CATALOGUE, topology_settings

PRICES = "opus_400g"
MESH = NodeSettings(16, "mesh", 1200.0, 10.0)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return read_catalogue(CATALOGUE)


def railx(**changes: Any) -> Any:
    return topology_settings("railx_hyperx", m=4, **changes)


def test_links_inside_nodes_are_free_unless_asked_for(catalogue: Catalogue) -> None:
    free = price(railx(), PRICES, catalogue)
    charged = price(railx(), PRICES, catalogue, node_price_set="node_assumed")
    unit = catalogue.price("node_assumed", "node_mesh_gb_s")
    (node,) = links_inside(railx())
    assert node.gb_s == 1200.0
    added = charged.per_chip.usd - free.per_chip.usd
    assert added == pytest.approx(1200 * unit.unit_usd)
    low, high = (
        end - free.per_chip.usd for end in (charged.per_chip.low_usd, charged.per_chip.high_usd)
    )
    assert (low, high) == pytest.approx((0.0, 1200 * 2.72))
    assert free.per_chip.low_usd == free.per_chip.usd == free.per_chip.high_usd
    # No source gives the power of links inside a node.
    assert charged.cost.watts is None
    assert free.cost.watts is not None
    assert charged.usd_per_injection_gb_s == pytest.approx(
        charged.cost.usd / charged.counts.chips / charged.counts.injection_gb_s_per_chip
    )


def test_the_same_node_costs_the_same_on_every_network(catalogue: Catalogue) -> None:
    added = []
    for of in (railx(node=None), topology_settings("torus_2d", x_scale=8, y_scale=8)):
        with_node = replace(of, node=MESH)
        bills = [
            price(with_node, PRICES, catalogue, node_price_set=nodes).per_chip.usd
            for nodes in (None, "node_assumed")
        ]
        added.append(bills[1] - bills[0])
    assert added[0] == pytest.approx(added[1]) == pytest.approx(1200 * 1.36)


def test_boards_of_a_torus_are_charged_too() -> None:
    torus = topology_settings("torus_2d", x_scale=8, y_scale=8, board_side=4)
    assert node_links(torus) == {"node_mesh_gb_s": pytest.approx(300.0)}
    servers = topology_settings("rail_only", chips_per_server=8, planes=1, scale_up_width=9.0)
    assert node_links(servers) == {"node_switch_gb_s": pytest.approx(450.0)}
    both = replace(torus, node=MESH)
    assert node_links(both) == {"node_mesh_gb_s": pytest.approx(1500.0)}


def test_bills_say_what_they_charge(catalogue: Catalogue) -> None:
    rails = topology_settings("rail_optimised", planes=1)
    by_port = price_network("rails", PricedNetwork(rails), PRICES, catalogue, "node_assumed")
    assert {row["charges"] for row in by_port} == {"used_ports"}
    (assumed,) = [row for row in by_port if row["component"] == "node_switch_gb_s"]
    assert "no source" in assumed["source"]
    assert "an assumption" in assumed["source"]
    assert assumed["total_low_usd"] < assumed["total_usd"] < assumed["total_high_usd"]
    script = PricedNetwork(rails, counting="opus_artifact")
    assert price(script, PRICES, catalogue).charges == "opus_artifact"


@pytest.mark.parametrize(
    ("name", "changes", "switches"),
    [
        # DeepSeek's cost table (arXiv 2505.09343): full switches of 64 ports.
        ("fat_tree", {"tiers": 2, "switch_radix": 64, "planes": 1}, 96),
        ("fat_tree", {"tiers": 3, "switch_radix": 64, "planes": 1}, 5120),
        ("mpft_full", {}, 768),
        # 50 chips: two leaves of 32 down and a spine for their links; a switch a plane.
        ("fat_tree", {"tiers": 2, "switch_radix": 64, "planes": 1, "populated_chips": 50}, 3),
        ("fat_tree", {"tiers": 1, "switch_radix": 64, "planes": 2, "populated_chips": 50}, 2),
        # Ten servers on each of 8 rails of a plane.
        ("rail_only", {"servers": 10, "switch_radix": 64, "planes": 1}, 8),
    ],
)
def test_whole_switches_are_charged_on_request(
    catalogue: Catalogue, name: str, changes: dict[str, Any], switches: int
) -> None:
    of = topology_settings(name, **changes)
    bill = price(PricedNetwork(of, counting="whole_switches"), PRICES, catalogue)
    assert bill.charges == "whole_switches"
    radix = 64
    assert bill.counts.components["electrical_switch_port"] == switches * radix
    used = price(of, PRICES, catalogue).counts.components
    assert used["electrical_switch_port"] <= switches * radix
    assert used["transceiver"] == bill.counts.components["transceiver"]


def test_a_set_without_such_links_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(SettingsError, match=r"^node_price_set: 'opus_400g' has no price for a"):
        price(railx(), PRICES, catalogue, node_price_set=PRICES)
    with pytest.raises(SettingsError, match=r"^topology.node.chips: got 9 on 200 chips"):
        PricedNetwork(replace(topology_settings("slim_fly", q=5), node=NodeSettings(9)))
    with pytest.raises(SettingsError, match=r"^topology.node.links: got switch; allowed: mesh"):
        PricedNetwork(replace(railx(), node=NodeSettings(16, "switch")))


def test_assumed_prices_are_marked_and_have_a_range(catalogue: Catalogue) -> None:
    """Prices of links inside nodes that no source gives, and only those."""
    for unit in catalogue.prices:
        assert (unit.role == "assumption") == (unit.price_set == "node_assumed")
        if unit.role == "assumption":
            assert unit.source.startswith("no source")
            assert unit.confidence == "low"
            assert unit.low_usd is not None
            assert unit.high_usd is not None
            assert unit.low_usd < unit.unit_usd < unit.high_usd
    # The dearest switch link is a switch port and a copper cable, per GB/s of 400 Gb/s.
    port = catalogue.price(PRICES, "electrical_switch_port").unit_usd
    cable = catalogue.price("hammingmesh_2022", "copper_cable").unit_usd
    assumed = catalogue.components("node_assumed")
    assert assumed["node_switch_gb_s"].high_usd == pytest.approx((port + cable) / 50, abs=0.05)
    assert assumed["node_mesh_gb_s"].high_usd == pytest.approx(cable / 50 / 2)
    optics = catalogue.price("node_optics_nvl72", "node_switch_gb_s")
    assert optics.unit_usd == pytest.approx(550_800 / 72 / 900)
    assert optics.unit_watts == pytest.approx(19_400 / 72 / 900)


def test_a_range_holds_its_price(tmp_path: Path) -> None:
    lines = CATALOGUE.read_text().splitlines()
    bad = [lines[0], lines[1].removesuffix(",,") + ",900,1000"]
    (tmp_path / "prices.csv").write_text("\n".join(bad) + "\n")
    with pytest.raises(UserError, match=r"line 2, low_usd: got 900.0 to 1000.0 around 879;"):
        read_catalogue(tmp_path / "prices.csv")
    # A catalogue without the two columns has no ranges.
    plain = ["\n".join(line.rsplit(",", 2)[0] for line in lines[:2])]
    (tmp_path / "plain.csv").write_text("\n".join(plain) + "\n")
    assert read_catalogue(tmp_path / "plain.csv").prices[0].low_usd is None
