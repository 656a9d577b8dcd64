"""HammingMesh's cost table recomputed from counts and the same price list.

Table and prices are both from memory and unverified; that one follows from the other to
three digits speaks for both. 16 ports per chip, of which the torus and the boards have
4 on each side; 64-port switches; copper from chips to leaves and to row switches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.economics import PricedNetwork, price_network, read_catalogue
from railx.settings import load
from tests.builders import CATALOGUE, published

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
