"""One function prices every network; links inside nodes are free or charged.
HammingMesh's cost table recomputed from counts and the same price list.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.economics import PricedNetwork, node_links, price, price_network, read_catalogue
from railx.economics.catalogue import Catalogue
from railx.errors import UserError
from railx.families import links_inside
from railx.settings import SettingsError, load
from railx.vocabulary.topology import NodeSettings
from tests.builders import CATALOGUE, published, topology_settings

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


SET = "hammingmesh_2022"
PUBLISHED = published("hammingmesh_cost.csv")


def priced(family: str, copper_links: list[str], **topology: Any) -> PricedNetwork:
    network: PricedNetwork = load(
        PricedNetwork,
        {
            "topology": {"family": family, "port_gbps": 400.0, **topology},
            "copper_links": copper_links,
            "price_set": SET,
            "copper_price_set": SET,
        },
    )
    return network


def fat_tree(chips: int, tiers: int, taper: float = 1.0) -> PricedNetwork:
    return priced(
        "fat_tree",
        ["leaf"],
        populated_chips=chips,
        planes=16,
        tiers=tiers,
        switch_radix=64,
        taper=taper,
        leaf_down_ports=None,
        leaf_latency_ns=0,
        global_latency_ns=0,
    )


def hammingmesh(m: int, boards: int) -> PricedNetwork:
    return priced(
        "hammingmesh",
        ["row"],
        m=m,
        n=4,
        x_scale=boards,
        y_scale=boards,
        switch_radix=64,
        internal_width=1,
        internal_latency_ns=0,
        external_latency_ns=0,
    )


def torus(nodes: int) -> PricedNetwork:
    return priced(
        "torus_2d", [], n=4, x_scale=2 * nodes, y_scale=2 * nodes, board_side=2, latency_ns=0
    )


@pytest.mark.parametrize(
    ("row", "network", "within"),
    [
        ("fat_tree_1k", fat_tree(1024, 2), 0.002),
        ("fat_tree_16k", fat_tree(16384, 3), 0.002),
        ("hyperx_1k", hammingmesh(1, 32), 0.003),
        ("hyperx_16k", hammingmesh(1, 128), 0.002),
        ("hx2_1k", hammingmesh(2, 16), 0.003),
        ("hx2_16k", hammingmesh(2, 64), 0.002),
        ("hx4_1k", hammingmesh(4, 8), 0.003),
        ("hx4_16k", hammingmesh(4, 32), 0.002),
        ("torus_1k", torus(16), 0.015),
        ("torus_16k", torus(64), 0.002),
        # Whole switches round the tapered trees up; ours are charged by the port.
        ("fat_tree_half_1k", fat_tree(1024, 2, 0.5), 0.06),
        ("fat_tree_quarter_1k", fat_tree(1024, 2, 0.25), 0.06),
    ],
)
def test_published_costs_follow_from_the_counts(
    row: str, network: PricedNetwork, within: float
) -> None:
    parts = price_network(row, network, SET, read_catalogue(CATALOGUE))
    assert network.chips == int(PUBLISHED[row]["accelerators"])
    assert sum(part["total_usd"] for part in parts) / 1e6 == pytest.approx(
        float(PUBLISHED[row]["million_usd"]), rel=within
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1\xff", "byte 4 is no text; allowed: a CSV price catalogue"),
        (b"9" * 200_000, "no CSV (field larger than"),
    ],
)
def test_a_file_that_is_no_catalogue_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError) as refused:
        read_catalogue(path)
    assert str(refused.value).startswith(f"{path}: {said}")
