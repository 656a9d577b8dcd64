"""Networks of published systems: their sizes, wiring and limits, and rails of trees."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_routing, build_topology, check_topology, family_of
from railx.network.metrics import topology_metrics
from railx.settings import SettingsError
from railx.vocabulary.counts import Ports
from railx.vocabulary.line_rings import arcs
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    path_lengths,
    table_lane_loads,
)
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology
from tests.builders import build, topology_settings


def of_kind(topology: Topology, *kinds: str) -> np.ndarray:
    return np.isin(topology.links.kind, [LINK_KINDS.index(kind) for kind in kinds])


def check_routings(topology: Topology) -> None:
    for routing in family_of(topology).routings:
        table = build_routing(topology, routing)
        check_delivery(topology, table)
        check_deadlock_free(topology, table)


def ports_of(name: str, **changes: Any) -> Ports:
    of = topology_settings(name, **changes)
    bill = family_of(of).bill
    assert bill is not None
    return bill.ports(of)


# Rails of trees


@settings(deadline=None, max_examples=12)
@given(
    tiers=st.sampled_from([2, 3]),
    half=st.integers(1, 3),
    parts=st.integers(1, 6),
    g=st.integers(1, 3),
    planes=st.integers(1, 2),
)
def test_rails_of_trees_have_full_switches_and_full_bandwidth(
    tiers: int, half: int, parts: int, g: int, planes: int
) -> None:
    k, servers = 2 * half, half ** (tiers - 1) * parts
    sizes = {"switch_radix": k, "servers": servers, "chips_per_server": g, "planes": planes}
    if parts % 2 or k % parts or servers < 2:
        with pytest.raises(SettingsError, match=r"topology\.(servers|switch_radix): got"):
            check_topology(topology_settings("rail_only", tiers=tiers, **sizes))
        return
    topology = build("rail_only", tiers=tiers, **sizes)
    links = topology.links
    outside = links.kind != INTERNAL
    ports = np.bincount(links.src[outside], links.lanes[outside], minlength=topology.vertices)
    assert (ports[topology.chips + servers :] == k).all()
    assert topology.switches - servers == planes * g * servers * (2 * tiers - 1) // k
    check_routings(topology)
    loads = table_lane_loads(topology, build_routing(topology, "min"))
    assert loads[outside].max() <= 1 / planes + 1e-9
    for kind in np.unique(links.kind):
        assert np.ptp(loads[links.kind == kind]) < 1e-9
    metrics = topology_metrics(topology)
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]


def test_a_packet_changes_its_rank_in_its_server() -> None:
    topology = build("rail_only", tiers=2, switch_radix=4, servers=8, chips_per_server=2, planes=1)
    lengths = path_lengths(topology, build_routing(topology, "min"))
    server, rank = np.divmod(np.arange(topology.chips), 2)
    leaf = server // 2
    same_leaf, same_server = (at[:, None] == at for at in (leaf, server))
    along = np.where(same_server, 0, np.where(same_leaf, 2, 4))
    other = np.where(rank[:, None] == rank, 0, 2)
    assert np.array_equal(lengths.links, along + other)
    assert np.array_equal(lengths.external_links, along)


@pytest.mark.parametrize(
    ("name", "changes", "chips", "switches", "links"),
    [
        ("fat_tree", {"tiers": 2, "switch_radix": 64, "planes": 1}, 2_048, 96, 2_048),
        ("mpft_full", {}, 16_384, 768, 16_384),
        ("fat_tree", {"tiers": 3, "switch_radix": 64, "planes": 1}, 65_536, 5_120, 131_072),
    ],
)
def test_trees_of_the_cost_table_of_deepseek(
    name: str, changes: dict[str, Any], chips: int, switches: int, links: int
) -> None:
    ports = ports_of(name, **changes)
    assert ports.chips == chips
    assert ports.electrical_switch_ports == 64 * switches
    assert sum(ports.cables.values()) == 2 * (links + chips)
    if chips < 20_000:
        topology = build(name, **changes)
        between = of_kind(topology, "aggregation")
        assert topology.links.lanes[between].sum() == 2 * links
        assert topology.switches - (topology.nodes if name == "mpft_full" else 0) == switches


def test_the_dragonfly_of_the_cost_table_of_deepseek_counts_every_port() -> None:
    """511 of 513 groups: the links of the table are half of all ports between switches,
    more than can be joined in pairs of groups.
    """
    of = {"p": 16, "a": 32, "h": 16, "groups": 511, "planes": 1}
    ports, size = ports_of("dragonfly", **of), topology_settings("dragonfly", **of)
    assert (ports.chips, size.switches) == (261_632, 16_352)
    assert (ports.cables["local"] + ports.cables["global"]) // 2 == 384_272
    assert size.links_per_pair * 511 * 510 // 2 + ports.cables["local"] // 2 == 383_761


def test_the_slim_fly_of_the_cost_table_of_deepseek_is_arithmetic() -> None:
    """q = 28 is no power of a prime; the table follows from the formulas alone."""
    q = 28
    routers, degree = 2 * q * q, 3 * q // 2
    assert (routers, routers * degree // 2, routers * degree // 2) == (1_568, 32_928, 32_928)
    with pytest.raises(SettingsError, match="the nearest are 27 and 29"):
        topology_settings("slim_fly", q=q)


# Systems


def test_cloudmatrix_has_its_switches() -> None:
    topology = build("cloudmatrix")
    links = topology.links
    assert topology.chips == 384
    first = np.unique(links.dst[of_kind(topology, "leaf") & (links.src < 384)])
    assert (len(first), topology.switches - len(first)) == (336, 112)
    per_chip = links.capacity_gbps[links.src < 384].sum() / 384 / 8
    assert per_chip == 392.0
    # What comes in from the chips can go up.
    up = of_kind(topology, "router") & np.isin(links.src, first)
    assert links.capacity_gbps[up].sum() == links.capacity_gbps[links.src < 384].sum()


def test_ub_mesh_has_the_published_lanes_and_bound() -> None:
    topology = build("ub_mesh_1024")
    links, chips = topology.links, topology.chips
    lanes = np.bincount(links.src, links.lanes, minlength=topology.vertices)
    assert (lanes[:chips] == 72).all()
    # 1,024 lanes from the chips of a rack, 768 of them in use to its six neighbours.
    assert (lanes[chips:] == 64 * 16 + 6 * 128).all()
    between = of_kind(topology, "router")
    assert (links.lanes[between] == 128).all()
    joined = np.zeros((16, 16), dtype=bool)
    joined[links.src[between] - chips, links.dst[between] - chips] = True
    row, column = np.divmod(np.arange(16), 4)
    assert np.array_equal(joined, (row[:, None] == row) ^ (column[:, None] == column))
    # All links between racks are alike: a sixteenth of their load is to the first rack.
    table = build_routing(topology, "min", np.arange(64, dtype=np.int32))
    load = 16 * table_lane_loads(topology, table)[between].sum() / between.sum()
    bound = 1 / load
    assert bound == pytest.approx(7.99, abs=0.005)
    assert bound / 72 == pytest.approx(0.11, abs=0.002)


def test_racks_of_a_ub_mesh_borrow_the_high_radix_switch() -> None:
    """Two thirds borrow between racks in no line: bandwidths of both hops count.

    So the switch binds, with six pairs of racks on 256 lanes: 10.67 lanes a chip in
    place of 8. The best split of the same traffic would give 13.3.
    """
    topology = build("ub_mesh_1024", borrow_lanes=256)
    links, chips = topology.links, topology.chips
    assert (topology.switches, links.lanes[links.dst == chips + 16].sum()) == (17, 16 * 256)
    table = build_routing(topology, "min", np.arange(64, dtype=np.int32))
    loads = 16 * table_lane_loads(topology, table)
    rack = of_kind(topology, "router") & (np.maximum(links.src, links.dst) < chips + 16)
    share = 16 / 64 * 1023 / 1024
    assert 1 / loads[rack].mean() == pytest.approx(128 / 2 * share)
    # All up, each rack alike: the table is of the traffic to one rack.
    assert 1 / loads[links.dst == chips + 16].mean() == pytest.approx(256 / 6 * share)


def test_ub_mesh_with_links_between_chips_is_a_full_mesh_of_four_dimensions() -> None:
    topology = build("full_mesh_4d_1024")
    metrics = topology_metrics(topology)
    assert (metrics["ports_per_chip"], metrics["diameter_node_hops"]) == (20, 4)
    assert metrics["mean_node_hops"] == pytest.approx(3.253, abs=0.0005)


@settings(deadline=None, max_examples=10)
@given(board=st.integers(2, 3), boards=st.integers(2, 3), x=st.integers(1, 3), y=st.integers(1, 2))
def test_ub_meshes_of_any_shape_deliver(board: int, boards: int, x: int, y: int) -> None:
    shape = {"chips_per_board": board, "boards": boards, "rack_columns": x, "rack_rows": y}
    shape["borrow_lanes"] = board - 2
    topology = build("ub_mesh", **shape)
    check_routings(topology)
    rack, local = np.divmod(np.arange(topology.chips), board * boards)
    at, index = np.divmod(local, board)
    row, column = np.divmod(rack, x)
    differs = (part[:, None] != part for part in (row, column, at, index))
    rows, columns, ats, indices = differs
    apart = np.where(rows | columns, 2.0 + rows + columns, 0.0 + ats + indices)
    lengths = path_lengths(topology, build_routing(topology, "min")).links
    assert np.allclose(lengths, apart)


def test_hpn_has_its_segments() -> None:
    of = topology_settings("hpn_full")
    assert of.chips == 15 * 1_024
    assert of.planes * of.port_gbps == 400
    topology = build("hpn")
    check_routings(topology)
    links = topology.links
    up = of_kind(topology, "aggregation")
    assert (links.gbps[up] == 400).all()
    metrics = topology_metrics(topology)
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]


def test_cubes_of_tpu_v7_make_a_torus_of_9216_chips() -> None:
    of = topology_settings("tpu_v7_full")
    assert of.chips == 9_216
    assert 6 * of.n * of.port_gbps == 9_600
    assert family_of(of).ports_per_chip(of) == 6


def test_racks_of_nvl72_have_their_bandwidth() -> None:
    of = topology_settings("nvl72_rails")
    assert of.chips == 1_296
    both_ways = 2 * of.planes * of.port_gbps * of.scale_up_width * 72 / 8 / 1000
    assert both_ways == pytest.approx(130, rel=0.01)


def test_multi_plane_hyperx_has_full_bandwidth() -> None:
    ports = ports_of("mphx_1296")
    assert ports.chips == 1_296
    assert ports.all_to_all is not None
    assert min(ports.all_to_all, ports.injection) == pytest.approx(8, rel=0.001)


# K-hop ring


@settings(deadline=None, max_examples=30)
@given(
    nodes=st.integers(3, 12),
    reach=st.integers(1, 3),
    failed=st.sets(st.integers(0, 11), max_size=5),
)
def test_a_k_hop_ring_passes_failed_nodes(nodes: int, reach: int, failed: set[int]) -> None:
    failed = {node for node in failed if node < nodes}
    working = sorted(set(range(nodes)) - failed)
    if not working:
        return
    gaps = np.diff([*working, working[0] + nodes])
    runs = arcs(nodes, reach, failed)
    assert sorted(node for run in runs for node in run) == working
    assert len(runs) == max(1, int((gaps > reach).sum()))
    sizes = {"nodes": nodes, "reach": reach, "failed": sorted(failed), "chips_per_node": 2}
    if gaps.max() > reach or len(working) < 2:
        with pytest.raises(SettingsError, match=r"topology\.(reach|failed): got"):
            build("khop_ring", **sizes)
        return
    topology = build("khop_ring", **sizes)
    check_routings(topology)
    assert topology.chips == 2 * len(working)
    assert of_kind(topology, "optical").sum() == 2 * len(working)


@pytest.mark.parametrize(
    ("reach", "least", "most"), [(1, 0.04, 0.33), (2, 0.004, 0.040), (3, 0.004, 0.009)]
)
def test_waste_of_runs_of_8_nodes_is_that_of_the_facts(
    reach: int, least: float, most: float
) -> None:
    """720 nodes with 1 and 10 % of them failed; derived numbers of a simple model."""
    random = np.random.default_rng(4)

    def waste(share: float) -> float:
        wasted = []
        for _ in range(60):
            failed = np.flatnonzero(random.random(720) < share).tolist()
            runs = arcs(720, reach, failed)
            wasted.append(1 - sum(len(run) // 8 * 8 for run in runs) / (720 - len(failed)))
        return float(np.mean(wasted))

    assert waste(0.01) == pytest.approx(least, rel=0.35)
    assert waste(0.10) == pytest.approx(most, rel=0.35)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mpft_2048", {"servers": 200}, r"topology\.servers: got 200; .*nearest are 128 and 256"),
        ("rail_only", {"tiers": 4, "servers": 16}, r"topology\.tiers: got 4; allowed: 1, 2, 3"),
        ("hpn", {"segments": 16}, r"topology\.segments: got 16; .*nearest is 15"),
        ("khop_ring", {"failed": [16]}, r"topology\.failed: got 16; .*nearest is 15"),
        ("khop_ring", {"failed": [3, 4]}, r"topology\.reach: got 2 with 2 failed.*nearest is 3"),
    ],
)
def test_sizes_that_do_not_exist_name_the_nearest_that_do(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        build_topology(topology_settings(name, **changes))
