"""Bandwidth and latency of groups against what can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from railx.families import FAMILIES, build_topology, static_routing_names
from railx.network.group_bandwidth import (
    group_bandwidth,
    group_shapes,
    messages_of,
    ranks_in_order,
    routed_loads,
    strided_groups,
)
from railx.network.settings import BandwidthSettings
from railx.settings import SettingsError
from railx.vocabulary.topology import NodeSettings, Topology
from tests.builders import topology_settings, with_node
from tests.loops import for_every
from workflow.config import compose_stage


def built(name: str, **changes: Any) -> Topology:
    overrides = [f"topology={name}", *(f"topology.{key}={value}" for key, value in changes.items())]
    return build_topology(compose_stage(overrides, ("topology",))["topology"])


def table(topology: Topology, ranks: int, routing: str = "min") -> dict[tuple[Any, ...], Any]:
    settings = BandwidthSettings({"it": routing}, ranks, ("analytic", "flow"))
    return {
        (row["operation"], row["algorithm"], row["group_size"], row["stride"], row["fidelity"]): row
        for row in group_bandwidth(topology, settings, routing, "it")
    }


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_messages_of_a_group_are_those_of_its_algorithm(size: int) -> None:
    members = range(size)
    pairs = {
        "direct": {(one, other) for one in members for other in members if one != other},
        "ring": {(one, (one + step) % size) for one in members for step in (1, -1)},
        "next": {(one, one + 1) for one in members[:-1]},
    }
    for algorithm, expected in pairs.items():
        messages = messages_of(algorithm, size)
        got = list(zip(messages.member.tolist(), messages.other.tolist(), strict=True))
        assert got == sorted(expected)
        sent = np.bincount(messages.member, messages.share, size)
        # The last member of a pipeline has none to send to.
        assert sent == pytest.approx([1.0] * (size - 1) + [float(algorithm != "next")])


@for_every("family", FAMILIES, name=lambda family: family.name)
def test_gathers_load_every_network_as_their_pairs(family: Any) -> None:
    """All planes together, and tables to half of the chips alone."""
    if family.name == "imported":
        return
    settings = topology_settings(family.name)
    for topology in map(build_topology, dict.fromkeys((settings, with_node(settings)))):
        chips = np.sort(ranks_in_order(topology, topology.chips // 8 * 4))
        for size, stride in ((4, 1), (4, 2), (len(chips), 1)):
            groups = strided_groups(chips, size, stride)
            messages = messages_of("direct", size)
            src, dst = groups[:, messages.member].ravel(), groups[:, messages.other].ravel()
            share = np.tile(messages.share, len(groups))
            for routing in set(family.routings).intersection(static_routing_names()):
                loads = routed_loads(topology, routing, chips.astype(np.int32))
                if loads.of_gathers is None:
                    continue
                network, load, flight_ns = loads.of_gathers(groups)
                _, expected, longest_ns = loads.of_pairs(src, dst, share)
                assert network is topology
                assert np.allclose(load, expected, rtol=1e-11, atol=0)
                assert flight_ns == pytest.approx(longest_ns)


def test_the_longest_flight_of_a_gather_is_not_that_of_a_pair_in_one_node() -> None:
    """Chips 0 and 27 are corners of a node, six links of the torus apart; chip 4 of the
    next node is four links from both.
    """
    settings: Any = replace(topology_settings("torus_2d"), x_scale=8, y_scale=8)
    topology = build_topology(replace(settings, node=NodeSettings(16, "switch", 450.0)))
    loads, group = routed_loads(topology, "min"), np.array([[0, 4, 27]])
    assert topology.chip_node[group[0]].tolist() == [0, 1, 0]
    src, dst = np.array([0, 0, 4, 4, 27, 27]), np.array([4, 27, 0, 27, 0, 4])
    _, expected, longest_ns = loads.of_pairs(src, dst, np.full(6, 0.5))
    assert loads.of_gathers is not None
    _, load, flight_ns = loads.of_gathers(group)
    assert np.allclose(load, expected, rtol=1e-12, atol=0)
    corners = routed_loads(build_topology(settings), "min").of_pairs(src[1:2], dst[1:2], np.ones(1))
    assert flight_ns == longest_ns < corners[2]


@pytest.mark.parametrize(("family", "node"), [("dragonfly", False), ("slim_fly", True)])
def test_planes_hops_and_nodes_have_gathers(family: str, node: bool) -> None:
    """Else the test above says nothing of them."""
    settings = topology_settings(family)
    topology = build_topology(with_node(settings) if node else settings)
    assert node or topology.settings.planes > 1
    assert routed_loads(topology, "min").of_gathers is not None


def test_a_full_fat_tree_gives_every_group_all_ports_of_a_chip() -> None:
    topology = built("fat_tree", planes=2, switch_radix=4)
    rows = table(topology, 16)
    ports_gb_s = 2 * 400 / 8
    for size, stride in group_shapes(16):
        own = rows["all_to_all", "direct", size, stride, "analytic"]
        assert own["gb_s"] == pytest.approx(ports_gb_s * size / (size - 1))
        reduced = rows["all_reduce", "direct", size, stride, "analytic"]
        assert reduced["gb_s"] == pytest.approx(own["gb_s"] / 2)
        assert reduced["latency_us"] == pytest.approx(2 * own["latency_us"])
    assert rows["message", "direct", 2, 1, "analytic"]["gb_s"] == pytest.approx(ports_gb_s)
    # Two chips of a leaf are two short links apart.
    assert rows["message", "direct", 2, 1, "analytic"]["latency_us"] == pytest.approx(0.1)


def test_neighbours_on_a_torus_share_the_links_between_them() -> None:
    topology = built("torus_2d", x_scale=4, y_scale=4, n=2)
    rows = table(topology, 16)
    near = rows["message", "direct", 2, 1, "analytic"]
    assert near["gb_s"] == pytest.approx(2 * 400 / 8), "two ports to a neighbour"
    assert near["placement"] == "consecutive"
    assert rows["message", "direct", 2, 4, "analytic"]["placement"] == "strided"
    # A row of four as a ring: each message has a side of the chip for itself.
    ring = rows["all_gather", "ring", 4, 1, "analytic"]
    assert ring["gb_s"] == pytest.approx(2 * (2 * 400 / 8) * 4 / 3)
    assert ring["latency_us"] == pytest.approx(3 * near["latency_us"])


@pytest.mark.parametrize("name", ["railx_hyperx", "railx_torus"])
def test_fair_rates_are_never_above_exact_ones(name: str) -> None:
    rows = table(built(name), 16)
    for key, row in rows.items():
        if key[-1] == "flow":
            exact = rows[(*key[:-1], "analytic")]
            assert row["gb_s"] <= exact["gb_s"] * (1 + 1e-6)
            assert row["latency_us"] == pytest.approx(exact["latency_us"])
    inside = rows["all_to_all", "direct", 4, 1, "analytic"]
    across = rows["all_to_all", "direct", 4, 4, "analytic"]
    assert inside["gb_s"] > across["gb_s"], "the links inside a node are wider"


def test_ranks_fill_nodes_first_and_stand_on_chips_of_their_own() -> None:
    topology = built("railx_hyperx")
    chips = ranks_in_order(topology, 16)
    assert len(set(chips.tolist())) == 16
    nodes = topology.chip_node[chips].reshape(4, 4)
    assert (nodes == nodes[:, :1]).all()
    with pytest.raises(SettingsError, match="got 256; allowed on railx_hyperx of 100 chips: fewer"):
        ranks_in_order(topology, 256)
