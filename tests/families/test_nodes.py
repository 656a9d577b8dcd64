"""Nodes of chips as a setting of any family: delivery, deadlock, loads and distances of
the composed network against the network alone and against brute force.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import (
    FAMILIES,
    TopologySettings,
    build_routing,
    build_topology,
    check_topology,
    family_named,
    family_of,
    links_inside,
    rank_placement,
    read_topology,
    write_topology,
)
from railx.network.group_bandwidth import routed_loads
from railx.network.metrics import topology_metrics
from railx.performance.topologies import ExactLoads, node_rates_gb_s
from railx.settings import SettingsError, load
from railx.vocabulary.nodes import block_order, run_order
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    pair_loads,
    path_lengths,
    table_lane_loads,
)
from railx.vocabulary.topology import INTERNAL, NodeSettings
from tests.builders import topology_settings
from tests.loops import for_every

#: Families whose chips stand alone, small: choice of conf/topology, changes and the
#: chips of a node.
ALONE: list[tuple[str, dict[str, Any], int]] = [
    ("torus_2d", {"x_scale": 4, "y_scale": 6}, 4),
    ("torus_3d", {"x_scale": 4, "y_scale": 4, "z_scale": 2}, 8),
    ("mesh_2d", {"x_scale": 4, "y_scale": 4}, 4),
    ("slim_fly", {"q": 3, "planes": 2}, 6),
    ("polarfly", {"q": 3, "planes": 1}, 2),
    ("topoopt", {"servers": 9, "chips_per_server": 2, "planes": 1}, 2),
    ("dragonfly", {"planes": 1}, 4),
    ("fat_tree", {"planes": 2, "switch_radix": 4}, 4),
    ("hyperx", {"shape": (4, 4)}, 4),
    ("hyperx", {"shape": (3, 3), "chips_per_switch": 2, "planes": 2}, 3),
    ("jellyfish", {"switches": 12, "degree": 3, "chips_per_router": 2, "planes": 1}, 8),
    ("polarstar", {"q": 2, "copy_degree": 3, "planes": 1}, 2),
    ("dragonfly_plus", {"planes": 1}, 4),
    ("cloudmatrix", {"leaves": 4, "spines": 2, "chips_per_leaf": 4, "planes": 1}, 8),
]

#: Families whose other settings describe nodes.
WITH_NODES: list[tuple[str, dict[str, Any]]] = [
    ("railx_hyperx", {}),
    ("railx_torus", {}),
    ("railx_twisted_torus", {}),
    ("railx_split", {}),
    ("railx_dragonfly", {}),
    ("railx_mixed", {}),
    ("hammingmesh", {}),
    ("rail_optimised", {}),
    ("rail_only", {}),
    ("opus_rails", {}),
    ("hpn", {}),
    ("mixnet", {}),
    ("tpu_v4", {}),
    ("ub_mesh", {}),
    ("khop_ring", {}),
]


def settings_of(name: str, changes: dict[str, Any]) -> Any:
    """Settings of a choice of conf/topology, or of a family's defaults."""
    if name == "mesh_2d":
        return load(TopologySettings, {"family": name, **changes})
    return topology_settings(name, **changes)


def name_of(case: tuple[Any, ...]) -> str:
    return f"{case[0]} {case[1]}"


def test_every_family_is_here() -> None:
    cases = [case[0] for case in [*ALONE, *WITH_NODES]]
    assert {family.name for family in FAMILIES} == {*cases, "imported"}
    for family in FAMILIES:
        assert family.has_nodes == (family.name in [name for name, _ in WITH_NODES]), family.name


@for_every("links", ["mesh", "switch"])
@for_every("case", ALONE, name=name_of)
def test_packets_stay_in_their_node_or_take_the_network(case: Any, links: Any) -> None:
    name, changes, size = case
    alone = settings_of(name, changes)
    of = replace(alone, node=NodeSettings(size, links, 750.0, 25.0))
    topology, bare = build_topology(of), build_topology(alone)
    assert topology.nodes == bare.chips // size
    assert node_rates_gb_s(topology) == pytest.approx((node_rates_gb_s(bare)[0], 750.0))
    family = family_of(of)
    assert family.routings == family_named(name).routings
    same = topology.chip_node[:, None] == topology.chip_node
    other = same & ~np.eye(topology.chips, dtype=bool)
    inside = nx.Graph()
    rows = topology.links.kind == INTERNAL
    inside.add_edges_from(zip(topology.links.src[rows], topology.links.dst[rows], strict=True))
    shortest = dict(nx.all_pairs_shortest_path_length(inside))
    for routing in family.routings:
        table, before = build_routing(topology, routing), build_routing(bare, routing)
        check_delivery(topology, table)
        check_deadlock_free(topology, table)
        assert table.virtual_channels == before.virtual_channels
        lengths, alone_lengths = path_lengths(topology, table), path_lengths(bare, before)
        assert np.allclose(lengths.links[~same], alone_lengths.links[~same])
        assert np.allclose(lengths.external_links[~same], alone_lengths.links[~same])
        assert not lengths.external_links[same].any()
        for a, b in np.argwhere(other):
            assert lengths.links[a, b] == shortest[a][b]
        # Traffic between nodes loads the network as before, and no link inside.
        demand = np.where(same, 0.0, 1.0)
        loads = table_lane_loads(topology, table, demand)
        assert np.allclose(loads[~rows], table_lane_loads(bare, before, demand))
        assert not loads[rows].any()
        some = np.array([topology.chips - 1, 0], dtype=np.int32)
        part = path_lengths(topology, build_routing(topology, routing, some)).links
        assert np.allclose(part, lengths.links[:, some])
    metrics = topology_metrics(topology)
    assert metrics["nodes"] == topology.nodes
    assert metrics["bisection_gbps"] is None


@for_every("links", ["mesh", "switch"])
@for_every("case", ALONE, name=name_of)
def test_loads_inside_and_between_nodes_are_those_of_the_table(case: Any, links: Any) -> None:
    """Pairs inside nodes alone, between them alone, and both; unequal amounts."""
    name, changes, size = case
    of = replace(settings_of(name, changes), node=NodeSettings(size, links, 750.0, 25.0))
    topology, draw = build_topology(of), np.random.default_rng(3)
    assert family_of(of).apart is not None
    same = topology.chip_node[:, None] == topology.chip_node
    itself = np.eye(topology.chips, dtype=bool)
    for routing in family_of(of).routings:
        loads, table = routed_loads(topology, routing), build_routing(topology, routing)
        for allowed in (same & ~itself, ~same, ~itself):
            src, dst = np.nonzero(allowed & (draw.random(same.shape) < 0.5))
            amount = draw.random(len(src))
            network, load, flight_ns = loads.of_pairs(src, dst, amount)
            expected, longest_ns = pair_loads(topology, table, src, dst, amount)
            assert network is topology
            assert np.allclose(load, expected, rtol=1e-12, atol=1e-13)
            assert flight_ns == pytest.approx(longest_ns)
        none = np.zeros(0, dtype=np.int64)
        assert loads.of_pairs(none, none, np.zeros(0))[2] == 0


@for_every("case", WITH_NODES, name=name_of)
def test_nodes_that_a_family_has_read_as_any_other(case: Any) -> None:
    name, changes = case
    of = topology_settings(name, **changes)
    topology = build_topology(of)
    (node,) = links_inside(of)
    assert node.chips == topology.chips // topology.nodes
    assert node.gb_s == pytest.approx(node_rates_gb_s(topology)[1])
    inside = topology.links.kind == INTERNAL
    assert set(topology.links.latency_ns[inside]) == {node.latency_ns}
    at_switch = (topology.links.dst[inside] >= topology.chips).any()
    assert node.links == ("switch" if at_switch else "mesh")
    # Said in the words of `node`, it is the same network.
    again = build_topology(replace(of, node=node))
    assert np.allclose(again.links.gbps, topology.links.gbps)
    assert links_inside(replace(of, node=node))[0].gb_s == pytest.approx(node.gb_s)
    for changed, key in (
        (replace(node, chips=node.chips + 1), "chips"),
        (replace(node, links="mesh" if at_switch else "switch"), "links"),
    ):
        with pytest.raises(SettingsError, match=rf"topology.node.{key}: got .*; allowed: "):
            build_topology(replace(of, node=changed))


@pytest.mark.parametrize("name", ["railx_hyperx", "hammingmesh", "rail_only", "opus_rails"])
def test_node_sets_the_rate_inside(name: str) -> None:
    of = topology_settings(name)
    (node,) = links_inside(of)
    faster = replace(node, gb_s=3 * node.gb_s, latency_ns=77.0)
    topology = build_topology(replace(of, node=faster))
    assert node_rates_gb_s(topology)[1] == pytest.approx(3 * node.gb_s)
    inside = topology.links.kind == INTERNAL
    assert set(topology.links.latency_ns[inside]) == {77.0}


def test_single_chips_of_railx_have_no_links_inside() -> None:
    of = topology_settings("railx_torus", m=1)
    assert links_inside(of) == []
    with pytest.raises(SettingsError, match=r"topology.node: allowed: null on railx_torus"):
        check_topology(replace(of, node=NodeSettings(16)))


def test_a_torus_may_have_boards_and_nodes() -> None:
    of = topology_settings("torus_2d", x_scale=8, y_scale=8, board_side=4)
    boards = links_inside(of)
    assert [(part.chips, part.links) for part in boards] == [(16, "mesh")]
    # 24 neighbours on a board of 4 x 4 chips, n = 2 ports of 50 GB/s both ways.
    assert boards[0].gb_s == pytest.approx(2 * 24 * 2 * 50 / 16)
    assert links_inside(replace(of, node=NodeSettings(16))) == [*boards, NodeSettings(16)]


@given(
    st.lists(st.sampled_from([2, 3, 4, 6]), min_size=2, max_size=3), st.sampled_from([2, 4, 6, 8])
)
@settings(max_examples=40, deadline=None)
def test_blocks_of_a_grid_are_boxes_of_neighbours(scales: list[int], size: int) -> None:
    shape = tuple(scales)
    try:
        order = block_order(shape, size)
    except SettingsError as error:
        nearest = int(str(error).rsplit(" ", 1)[1])
        assert math.prod(block_order(shape, nearest).shape) == nearest
        return
    assert np.array_equal(np.sort(order.chips.ravel()), np.arange(math.prod(shape)))
    assert math.prod(order.shape) == size
    place = np.stack(np.unravel_index(order.chips, shape[::-1]), axis=-1)[..., ::-1]
    assert np.array_equal(place - place[:, :1], np.broadcast_to(order.coordinates, place.shape))
    assert order.grid is not None
    columns, rows = order.grid
    assert columns * rows == len(order.chips)


@given(st.integers(2, 40))
def test_a_mesh_is_walked_along_shortest_paths(size: int) -> None:
    order = run_order(2 * size, size)
    mesh = nx.Graph(order.pairs().tolist())
    assert sorted(mesh) == list(range(size))
    step, shortest = order.next_places(), dict(nx.all_pairs_shortest_path_length(mesh))
    for a in range(size):
        for b in range(size):
            after = int(step[a, b])
            assert shortest[after][b] == max(0, shortest[a][b] - 1)
            assert a == b or mesh.has_edge(a, after)


@pytest.mark.parametrize(
    ("name", "changes", "size", "words"),
    [
        ("dragonfly", {}, 16, "got 16 on 72 chips; allowed: a divisor of them; the nearest is 18"),
        ("torus_2d", {"x_scale": 6, "y_scale": 6}, 16, "blocks that divide it; the nearest is 18"),
        ("fat_tree", {"tiers": 2, "switch_radix": 50}, 16, "or a network of 1248 or 1264 chips"),
    ],
)
def test_nodes_that_do_not_divide_name_the_nearest(
    name: str, changes: dict[str, Any], size: int, words: str
) -> None:
    of = replace(topology_settings(name, **changes), node=NodeSettings(size))
    with pytest.raises(SettingsError, match=r"^topology.node.chips: got") as refused:
        check_topology(of)
    assert words in str(refused.value)


def test_ranks_fill_nodes_and_rings_close_in_them() -> None:
    torus = topology_settings("torus_2d", x_scale=8, y_scale=8)
    topology = build_topology(replace(torus, node=NodeSettings(16, "mesh")))
    placed = rank_placement(topology, (16, 2, 2))
    assert placed.kind == "grid"
    node = topology.chip_node[placed.chips]
    assert (node == node[:1]).all()
    assert len(np.unique(node[0])) == 4
    x, y = placed.chips % 8, placed.chips // 8
    step = abs(np.diff(np.concatenate([x, x[:1]]), axis=0)) + abs(
        np.diff(np.concatenate([y, y[:1]]), axis=0)
    )
    assert (step == 1).all()
    # Nodes hold several smaller meshes where there are too few.
    small = rank_placement(topology, (8, 4, 2))
    node = topology.chip_node[small.chips]
    assert (node == node[:1]).all()
    assert np.array_equal(np.bincount(node[0].ravel()), [2] * 4)
    assert len(np.unique(small.chips)) == 64
    # A mesh of several nodes lies as without nodes.
    bare = rank_placement(build_topology(torus), (32, 2, 1))
    assert np.array_equal(rank_placement(topology, (32, 2, 1)).chips, bare.chips)
    with pytest.raises(SettingsError, match=r"^layout: got 16 x 5 x 1"):
        rank_placement(topology, (16, 5, 1))


def test_plans_take_the_composed_nodes_for_theirs() -> None:
    tree = topology_settings("fat_tree", planes=1)
    node = NodeSettings(8, "switch", 900.0, 10.0)
    loads = ExactLoads(build_topology(replace(tree, node=node)), ["min"])
    assert loads.node_devices == 8
    (inside,) = [way for way in loads.job_ways("all_gather", 8, 8) if way.algorithm == "direct"]
    # 7 of 8 parts leave a chip at its rate to the switch.
    assert inside.gb_s == pytest.approx(900.0 * 8 / 7)
    assert inside.latency_ns == pytest.approx(20.0)
    alone = ExactLoads(build_topology(tree), ["min"])
    (outside,) = [way for way in alone.job_ways("all_gather", 8, 8) if way.algorithm == "direct"]
    assert outside.gb_s <= 50.0 * 8 / 7 * (1 + 1e-9)


def test_files_keep_the_nodes(tmp_path: Path) -> None:
    torus = replace(topology_settings("torus_2d", x_scale=4, y_scale=4), node=NodeSettings(4))
    topology = build_topology(torus)
    write_topology(tmp_path / "graph.parquet", topology)
    read = read_topology(tmp_path / "graph.parquet")
    assert read.settings == torus
    assert np.array_equal(read.chip_node, topology.chip_node)
    assert read.switches == topology.switches == 4


def test_sizes_are_those_that_nodes_divide() -> None:
    of = replace(topology_settings("slim_fly", q=5), node=NodeSettings(16))
    bill = family_of(of).bill
    assert bill is not None
    sized = bill.resize(of, 300)
    assert bill.ports(sized).chips % 16 == 0
    assert sized.node == of.node
    with pytest.raises(SettingsError, match=r"^node.chips: got 16 on 200 chips"):
        bill.check(of)
