"""Networks behind one interface: textbook rings, two-level trees by exact loads, tables
of the bandwidth stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.fsdp_scaling import GridRing
from railx.performance.networks import Kind, Network, TwoLevelRing, ring_bytes
from railx.performance.topologies import ExactLoads
from tests.builders import build

KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


def seconds(network: Network, kind: Kind, size: float, members: int, inside: int) -> float:
    arguments = (np.array([number]) for number in (size, members, inside))
    return float(network.time_s(kind, *arguments)[0])


def slope_s(network: Network, kind: Kind, members: int, inside: int) -> float:
    """Seconds of a large transfer without its latency, for a gigabyte."""
    long, longer = (seconds(network, kind, size, members, inside) for size in (1e12, 2e12))
    return (longer - long) / 1e3


@pytest.mark.parametrize("n", [4, 8])
def test_a_ring_of_a_torus_is_the_textbooks(n: int) -> None:
    """A row of a torus is a ring in both directions: (n - 1) / n of the bytes at twice
    the rate of a side (Patarasuk and Yuan 2009), and n - 1 hops of latency.
    """
    torus = build("torus_2d", x_scale=n, y_scale=n)
    network = ExactLoads(torus, ["min"])
    side_gb_s = torus.settings.n * torus.settings.port_gbps / 8
    for kind, passes in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        expected = passes * (n - 1) / n / (2 * side_gb_s)
        assert slope_s(network, kind, n, 1) == pytest.approx(expected)
    direct, ring = network.ways(np.arange(n)[None], "all_gather")
    assert (direct.algorithm, ring.algorithm) == ("direct", "ring")
    assert ring.latency_ns == pytest.approx((n - 1) * torus.links.latency_ns[0])


def two_levels(**changes: Any) -> tuple[ExactLoads, TwoLevelRing]:
    rails = build("rail_optimised", **changes)
    links, chip = rails.links, rails.links.src == 0
    inside = links.kind == links.kind[chip][np.argmax(links.capacity_gbps[chip])]
    fast, slow = (float(links.capacity_gbps[chip & mask].sum()) / 8 for mask in (inside, ~inside))
    server = rails.chips // rails.nodes
    return ExactLoads(rails, ["min"]), TwoLevelRing(server, fast, slow, 0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(("members", "inside"), [(8, 8), (16, 8), (64, 8), (8, 1), (16, 2)])
def test_two_level_rings_are_the_exact_loads_of_a_two_level_tree(members: int, inside: int) -> None:
    exact, ring = two_levels()
    assert exact.node_devices == ring.node_devices
    assert slope_s(exact, "all_to_all", members, inside) == pytest.approx(
        slope_s(ring, "all_to_all", members, inside)
    )
    if inside == 1 or inside == members:
        for kind in ("all_gather", "reduce_scatter", "all_reduce"):
            assert slope_s(exact, kind, members, inside) == pytest.approx(
                slope_s(ring, kind, members, inside)
            )


@pytest.mark.parametrize(
    ("members", "inside", "slow"), [(4, 4, 0), (4, 2, 1), (8, 2, 3), (6, 4, 1), (4, 1, 3)]
)
def test_sends_along_a_ring_take_the_sum_of_its_boundaries(
    members: int, inside: int, slow: int
) -> None:
    ring = TwoLevelRing(8, 400.0, 50.0, 1e-6, 5e-6, 1.0, 1.0)
    between, in_node = 5e-6 + 1e9 / 50e9, 1e-6 + 1e9 / 400e9
    expected = slow * between + (members - 1 - slow) * in_node
    boundaries = members - 1
    assert boundaries * seconds(ring, "send", 1e9, members, inside) == pytest.approx(expected)


@pytest.mark.parametrize("ring", [TwoLevelRing, GridRing])
@pytest.mark.parametrize(("inside", "whole"), [(1.5, 1), (2.9, 2), (0.25, 1)])
def test_rings_take_whole_members_of_a_node(
    ring: type[TwoLevelRing], inside: float, whole: int
) -> None:
    network = ring(8, 400.0, 50.0, 1e-6, 5e-6, 1.0, 1.0)
    for kind in KINDS:
        members, size = np.array([8]), np.array([1e9])
        time_s = network.time_s(kind, size, members, np.array([inside]))
        assert time_s == network.time_s(kind, size, members, np.array([whole]))


@given(
    rates=st.tuples(*[st.sampled_from((20.0, 100.0, 450.0))] * 2),
    size=st.floats(1e3, 1e10),
    members=st.integers(2, 64),
    node=st.sampled_from((4, 6, 8)),
    data=st.data(),
)
def test_members_that_share_nodes_are_never_slower(
    rates: tuple[float, float], size: float, members: int, node: int, data: st.DataObject
) -> None:
    """Also where the links between nodes are faster: searches bound placements so.

    But for the latency of the steps of a ring that are inside nodes then.
    """
    network, latency_s = TwoLevelRing(node, *rates, 1e-6, 1e-5), 1e-6
    most = min(node, members)
    fewer = data.draw(st.integers(1, most))
    for kind in KINDS:
        together, apart = (
            seconds(network, kind, size, members, inside) for inside in (most, fewer)
        )
        steps = 0 if kind == "send" else 2 * (members / fewer - members / most)
        assert together <= apart + steps * latency_s + 1e-12 * apart


def test_a_rank_alone_sends_nothing() -> None:
    exact, ring = two_levels()
    for network in (exact, ring):
        for kind in KINDS[:-1]:
            assert seconds(network, kind, 1e9, 1, 1) == 0
    assert ring_bytes("all_reduce", 8.0, 4.0) == 12
