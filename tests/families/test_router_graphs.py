"""Router graphs: constructions and sizes against their definitions, bounds against the
literature and brute force, and the routing that they share with networks from files.
"""

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from railx.families import FAMILIES, build_routing, family_of
from railx.families.polarstar import copy_pairs
from railx.families.topoopt import geometric_strides
from railx.network.group_bandwidth import routed_loads
from railx.network.metrics import chip_hop_counts, node_hop_counts, topology_metrics
from railx.settings import SettingsError
from railx.vocabulary.counts import count_ports
from railx.vocabulary.finite_fields import field, prime_power
from railx.vocabulary.routing import hop_paths
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    kernels,
    pair_loads,
    path_lengths,
    table_lane_loads,
)
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS, route_hops
from railx.vocabulary.topology import LINK_KINDS, Topology
from tests.builders import build, topology_settings
from tests.exchange.networks import drawn
from tests.loops import for_every
from tests.network.shortest_paths import shortest_path_lane_loads

#: Small networks of every family of routers: choice of conf/topology and changes.
NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("slim_fly", {"q": 3, "planes": 2}),
    ("slim_fly", {"q": 4, "planes": 1}),
    ("slim_fly", {"q": 5, "planes": 1}),
    ("polarfly", {"q": 2, "planes": 2}),
    ("polarfly", {"q": 4, "planes": 1}),
    ("jellyfish", {"switches": 12, "degree": 3, "chips_per_router": 2, "planes": 2}),
    ("jellyfish", {"switches": 9, "degree": 4, "chips_per_router": 1, "planes": 1, "seed": 5}),
    ("polarstar", {"q": 2, "copy_degree": 3, "planes": 1}),
    ("polarstar", {"q": 3, "copy_degree": 0, "planes": 2}),
    ("dragonfly_plus", {"groups": 5, "planes": 1}),
    ("cloudmatrix", {"leaves": 5, "spines": 3, "chips_per_leaf": 3, "planes": 2}),
    ("cloudmatrix", {"leaves": 4, "spines": 2, "chips_per_leaf": 1, "planes": 1}),
    ("dragonfly_plus", {"leaves": 2, "spines": 2, "h": 1, "groups": 3, "planes": 2}),
    ("topoopt", {"servers": 9, "chips_per_server": 2, "planes": 2}),
    ("topoopt", {"servers": 16, "chips_per_server": 4, "planes": 1}),
]
#: Others whose loads need no table of the network itself.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("ub_mesh", {}),
    ("hyperx", {"shape": (3, 4), "chips_per_switch": 2, "planes": 3}),
    ("hyperx", {"shape": (3, 2, 4), "lanes": 2}),
    ("hyperx", {"shape": (2, 3, 2, 2)}),
    ("dragonfly", {"planes": 2}),
]


def name_of(network: tuple[str, dict[str, Any]]) -> str:
    return f"{network[0]} {network[1]}"


def routers(topology: Topology) -> nx.Graph:
    """The graph of the routers of the first plane."""
    links = topology.links
    between = links.kind == LINK_KINDS.index("router")
    graph = nx.Graph()
    graph.add_edges_from(zip(links.src[between].tolist(), links.dst[between].tolist(), strict=True))
    first: set[int] = nx.node_connected_component(graph, topology.chips)
    return graph.subgraph(first)


def bound(name: str, **changes: Any) -> float:
    """Uniform traffic that the links carry, per unit of injection."""
    of = topology_settings(name, planes=1, **changes)
    bill = family_of(of).bill
    assert bill is not None
    all_to_all = bill.ports(of).all_to_all
    assert all_to_all is not None
    return all_to_all


@for_every("network", NETWORKS, name=name_of)
def test_packets_arrive_and_cannot_block_each_other(network: tuple[str, dict[str, Any]]) -> None:
    topology = build(network[0], **network[1])
    shortest = chip_hop_counts(topology)
    assert shortest is not None
    diameter = len(shortest) - 3
    for routing in HOP_ROUTINGS:
        for grouped in (True, False):
            table = build_routing(topology, routing, grouped=grouped)
            check_delivery(topology, table)
            check_deadlock_free(topology, table)
            assert (table.groups is not None) == grouped
        ways = path_lengths(topology, table).links
        carried = (table_lane_loads(topology, table) * topology.links.lanes).sum()
        assert carried * (topology.chips - 1) == pytest.approx(ways.sum())
        some = np.array([topology.chips - 1, 0], dtype=np.int32)
        part = build_routing(topology, routing, some)
        assert np.allclose(path_lengths(topology, part).links, ways[:, some])
        if routing == "valiant":
            assert table.virtual_channels == 2 * diameter
        else:
            # The detours of UGAL have no weight in exact loads, but a channel.
            assert table.virtual_channels == diameter + (routing == "adaptive_ugal")
            assert ways.sum() == pytest.approx((shortest * np.arange(len(shortest))).sum())


@for_every("network", NETWORKS, name=name_of)
def test_minimal_loads_are_those_of_all_shortest_paths(network: tuple[str, dict[str, Any]]) -> None:
    topology = build(network[0], **network[1])
    loads = table_lane_loads(topology, build_routing(topology, "min"))
    expected = shortest_path_lane_loads(topology)
    assert np.allclose(loads, expected)
    family = family_of(topology)
    assert family.bill is not None
    ports = family.bill.ports(topology.settings)
    between = topology.links.kind == LINK_KINDS.index("router")
    assert ports.all_to_all == pytest.approx(
        min(family.ports_per_chip(topology.settings), 1 / loads[between].max())
    )


@for_every("network", [*NETWORKS, *OTHERS], name=name_of)
def test_loads_without_a_table_are_those_of_the_table(network: tuple[str, dict[str, Any]]) -> None:
    """One pair, few and most pairs, which send unequal amounts."""
    topology, draw = build(network[0], **network[1]), np.random.default_rng(1)
    chips = topology.chips
    family = family_of(topology)
    for routing in {"min", "valiant", *family.hop_loads}.intersection(family.routings):
        loads = routed_loads(topology, routing)
        table = build_routing(topology, routing, grouped=True)
        for number in (1, 7, chips * chips // 2):
            pairs = draw.permutation(chips * chips)[: number + chips]
            src, dst = np.stack(np.divmod(pairs, chips))[:, pairs // chips != pairs % chips]
            src, dst = src[:number], dst[:number]
            amount = draw.random(len(src))
            expected, flight_ns = pair_loads(topology, table, src, dst, amount)
            _, load, longest_ns = loads.of_pairs(src, dst, amount)
            assert np.allclose(load, expected, rtol=1e-12, atol=1e-13)
            assert longest_ns == pytest.approx(flight_ns)


@for_every("network", NETWORKS, name=name_of)
def test_bills_and_hops_count_the_graph(network: tuple[str, dict[str, Any]]) -> None:
    topology = build(network[0], **network[1])
    family, links = family_of(topology), topology.links
    assert family.bill is not None
    components = count_ports(family.bill.ports(topology.settings)).components
    at_switch = links.src >= topology.chips
    # Ports of another rate count by their bandwidth.
    ports = links.capacity_gbps / topology.settings.port_gbps
    if topology.family == "topoopt":
        # Servers forward: a circuit has two ports of an optical switch, a chip none.
        between = ports[links.kind == LINK_KINDS.index("router")].sum()
        assert components == {"ocs_port": between, "transceiver": between}
    else:
        assert components == {
            "electrical_switch_port": ports[at_switch].sum(),
            "transceiver": ports.sum(),
        }
    closed = node_hop_counts(topology)
    searched = chip_hop_counts(topology)
    assert closed is not None
    assert searched is not None
    assert closed.tolist() == searched.tolist()
    metrics = topology_metrics(topology)
    assert [value for key, value in metrics.items() if key.startswith("bisection")] == [None] * 4
    assert family.groups is not None
    table = build_routing(topology, "min", grouped=True)
    assert family.groups(topology.settings, "min") == table.entry.shape[2]


def test_every_family_on_the_shared_routing_is_tested() -> None:
    named = {topology_settings(name).family for name, _ in NETWORKS}
    shared = {family.name for family in FAMILIES if family.routings == HOP_ROUTINGS}
    # Networks of files and UB-Mesh have tests of their own.
    assert shared - {"imported", "ub_mesh"} == named


def test_valiant_reaches_the_destination_by_every_other_router() -> None:
    """PolarFly has one path between two routers, so lengths follow from distances."""
    topology = build("polarfly", q=4, planes=1, chips_per_router=1)
    graph = routers(topology)
    apart = dict(nx.all_pairs_shortest_path(graph))
    first = topology.chips
    lengths = path_lengths(topology, build_routing(topology, "valiant")).links
    for source in range(topology.chips):
        for target in set(range(topology.chips)) - {source}:
            expected = []
            for via in set(range(topology.chips)) - {source}:
                there = apart[first + source][first + via]
                if first + target in there:
                    expected.append(there.index(first + target))
                else:
                    expected.append(len(there) - 1 + len(apart[first + via][first + target]) - 1)
            assert lengths[source, target] == pytest.approx(2 + np.mean(expected))


@pytest.mark.parametrize(
    ("pairs", "chips", "switches"),
    [
        ([(0, 3), (1, 3), (2, 3)], 3, 1),
        # Switch 5 is further from chip 1 than any chip is.
        ([(0, 3), (0, 5), (1, 3), (2, 4), (2, 5), (3, 4), (4, 5)], 3, 3),
        ([(0, 2), (0, 5), (1, 3), (2, 4), (3, 5), (4, 5)], 2, 4),
    ],
)
def test_chips_of_one_or_several_switches_reach_each_other(
    pairs: list[tuple[int, int]], chips: int, switches: int
) -> None:
    topology = drawn(pairs, chips, switches)
    for routing in HOP_ROUTINGS:
        table = build_routing(topology, routing)
        check_delivery(topology, table)
        check_deadlock_free(topology, table)


def test_parallel_links_of_unequal_rates_share_traffic_by_them() -> None:
    """Packets take the first that is empty, so the fastest stands first."""
    topology = drawn([(0, 2), (1, 3), (2, 3), (2, 3)], 2, 2, gbps=[400.0, 400.0, 100.0, 300.0])
    table = build_routing(topology, "min")
    assert table_lane_loads(topology, table) == pytest.approx([1, 1, 1, 1, 0.25, 0.25, 0.75, 0.75])
    joined = [row for row in np.split(table.pool_link, table.pool_start[1:-1]) if len(row) > 1]
    assert {tuple(topology.links.gbps[rows]) for rows in joined} == {(300.0, 100.0)}


def test_valiant_takes_each_of_the_switches_of_a_chip() -> None:
    """Chip 1 sends to 2 by 0, which is on both 5 and 6, or directly."""
    topology = drawn([(1, 3), (3, 4), (4, 5), (4, 6), (0, 5), (0, 6), (5, 7), (2, 7)], 3, 5)
    lengths = path_lengths(topology, build_routing(topology, "valiant")).links
    assert lengths[1, 2] == pytest.approx(2 + (3 + 2 + (1 + 3) / 2) / 2)


def test_valiant_levels_what_crowds_minimal_paths() -> None:
    """All chips of a router send to those of the next router."""
    topology = build("slim_fly", planes=1)
    demand = np.zeros((topology.chips, topology.chips))
    chip = np.arange(topology.chips)
    demand[chip, (chip + 4) % topology.chips] = 1.0
    minimal, valiant = (
        table_lane_loads(topology, build_routing(topology, routing), demand).max()
        for routing in ("min", "valiant")
    )
    assert valiant < minimal / 1.5


def test_a_table_of_valiant_paths_that_exceeds_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = build("polarfly")
    monkeypatch.setattr(hop_paths, "_MOST_ENTRIES", 100_000)
    with pytest.raises(SettingsError, match=r"routing: got 'valiant' .*allowed: min, adaptive"):
        route_hops(topology, "valiant")


# Fields


@pytest.mark.parametrize("q", [q for q in range(2, 33) if prime_power(q)])
def test_fields_keep_the_axioms(q: int) -> None:
    over, every = field(q), np.arange(q)
    add, multiply = over.add, over.multiply
    for table in (add, multiply[1:, 1:]):
        assert np.array_equal(table, table.T)
        assert all(len(set(row)) == len(row) for row in table.tolist())
    assert np.array_equal(add[0], every)
    assert np.array_equal(multiply[1], every)
    a, b, c = np.meshgrid(every, every, every, indexing="ij")
    assert np.array_equal(multiply[multiply[a, b], c], multiply[a, multiply[b, c]])
    assert np.array_equal(multiply[a, add[b, c]], add[multiply[a, b], multiply[a, c]])
    assert sorted(over.powers.tolist()) == list(range(1, q))


def test_only_powers_of_primes_have_fields() -> None:
    sympy = pytest.importorskip("sympy")
    for q in range(200):
        factors = sympy.factorint(q) if q > 1 else {}
        assert prime_power(q) == (next(iter(factors.items())) if len(factors) == 1 else None)
    with pytest.raises(ValueError, match="q: got 6; allowed: a power of a prime"):
        field(6)


# Slim Fly, PolarFly, Jellyfish


@pytest.mark.parametrize("q", [3, 4, 5, 7, 8, 9, 11])
def test_slim_fly_is_regular_with_diameter_2(q: int) -> None:
    topology = build("slim_fly", q=q, planes=1, chips_per_router=1)
    graph = routers(topology)
    degree = {0: 3 * q, 1: 3 * q - 1, 3: 3 * q + 1}[q % 4] // 2
    assert len(graph) == 2 * q * q
    assert {d for _, d in graph.degree()} == {degree}
    assert nx.diameter(graph) == 2


@pytest.mark.parametrize("q", [2, 3, 4, 5, 7, 8, 9])
def test_polarfly_has_one_path_of_at_most_two_hops(q: int) -> None:
    topology = build("polarfly", q=q, planes=1, chips_per_router=1)
    joined = nx.to_numpy_array(routers(topology), sorted(routers(topology))).astype(int)
    degrees = joined.sum(axis=0)
    assert len(joined) == q * q + q + 1
    assert (np.sort(degrees)[: q + 1] == q).all()
    assert (np.sort(degrees)[q + 1 :] == q + 1).all()
    # A point that is orthogonal to itself is a step of a path that stays there.
    loops = joined + np.diag((degrees == q).astype(int))
    assert np.array_equal(loops @ loops, np.ones_like(loops) + np.diag([q] * len(loops)))


@pytest.mark.parametrize("degree", [0, 3, 4, 7, 8, 11])
def test_copies_of_polarstar_have_the_property_of_the_paper(degree: int) -> None:
    near: list[set[int]] = [set() for _ in range(2 * degree + 2)]
    for a, b in copy_pairs(degree).tolist():
        near[a].add(b)
        near[b].add(a)
    for i, beside in enumerate(near):
        assert len(beside) == degree
        images = {i, i ^ 1} | beside | {end ^ 1 for end in near[i ^ 1]}
        assert images == set(range(len(near)))


@pytest.mark.parametrize(
    ("q", "copy_degree", "degree", "size"),
    [(5, 3, 9, 248), (5, 4, 10, 310), (7, 3, 11, 456), (11, 4, 16, 1_330)],
)
def test_polarstar_has_the_published_sizes_and_diameter_3(
    q: int, copy_degree: int, degree: int, size: int
) -> None:
    of = {"q": q, "copy_degree": copy_degree, "planes": 1, "chips_per_router": 1}
    topology = build("polarstar", **of)
    graph = routers(topology)
    assert len(graph) == size
    assert {d for _, d in graph.degree()} == {degree}
    counts = node_hop_counts(topology)
    assert counts is not None
    assert len(counts) - 3 == 3


def test_dragonfly_plus_joins_all_groups_alike() -> None:
    topology = build("dragonfly_plus", planes=1)
    links, chips, size = topology.links, topology.chips, 8
    between = links.kind == LINK_KINDS.index("router")
    a, b = (ends[between] - chips for ends in (links.src, links.dst))
    inside = a // size == b // size
    # Inside a group leaves join spines alone.
    assert ((a % size < 4) != (b % size < 4))[inside].all()
    assert ((a % size >= 4) & (b % size >= 4))[~inside].all()
    groups = np.zeros((9, 9), dtype=int)
    np.add.at(groups, (a[~inside] // size, b[~inside] // size), 1)
    assert np.array_equal(groups, 2 * (1 - np.eye(9, dtype=int)))
    assert np.bincount(a[~inside]).max() == 4
    assert links.src[~between & (links.src >= chips)].max() - chips == 9 * size - 5


@pytest.mark.parametrize(
    ("name", "changes", "chips", "expected"),
    [
        ("slim_fly", {"q": 5}, 200, 0.957),
        ("slim_fly", {"q": 7, "chips_per_router": 5}, 490, 1.0),
        ("slim_fly", {"q": 8, "chips_per_router": 8}, 1_024, 0.727),
        ("slim_fly_1296", {}, 1_296, 0.809),
        ("slim_fly", {"q": 9}, 1_134, 0.925),
        ("slim_fly", {"q": 11, "chips_per_router": 5}, 1_210, 1.0),
        ("polarfly", {"q": 7}, 228, 1.0),
        ("polarfly", {"q": 8, "chips_per_router": 5}, 365, 0.910),
        ("polarfly_1281", {}, 1_281, 1.0),
    ],
)
def test_bounds_are_those_of_the_literature(
    name: str, changes: dict[str, Any], chips: int, expected: float
) -> None:
    assert topology_settings(name, **changes).chips == chips
    assert bound(name, **changes) == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize(("name", "expected"), [("slim_fly_1296", 1.909), ("polarfly_1281", 1.914)])
def test_mean_hops_are_those_of_the_literature(name: str, expected: float) -> None:
    metrics = topology_metrics(build(name, planes=1))
    assert metrics["mean_node_hops"] - 2 == pytest.approx(expected, rel=0.001)


@settings(deadline=None, max_examples=30)
@given(half=st.integers(2, 20), degree=st.integers(3, 9), seed=st.integers(0, 5))
def test_jellyfish_is_regular_and_the_same_for_a_seed(half: int, degree: int, seed: int) -> None:
    changes = {"switches": 2 * half, "degree": min(degree, 2 * half - 1), "seed": seed}
    try:
        topology = build("jellyfish", planes=1, chips_per_router=1, **changes)
    except SettingsError:
        reject()
    assert {d for _, d in routers(topology).degree()} == {changes["degree"]}
    again = build("jellyfish", planes=1, chips_per_router=1, **changes)
    assert np.array_equal(topology.links.dst, again.links.dst)


def test_jellyfish_is_near_the_literature() -> None:
    """Other random graphs of these sizes have mean 2.222 and bounds 0.537 and 0.666."""
    metrics = topology_metrics(build("jellyfish_1296", planes=1))
    assert metrics["diameter_node_hops"] == 5
    assert metrics["mean_node_hops"] - 2 == pytest.approx(2.222, rel=0.01)
    seeds = [bound("jellyfish_1296", seed=seed) for seed in range(5)]
    assert min(seeds) < 0.537 < max(seeds)
    assert len(set(seeds)) == 5


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("slim_fly", {"q": 28}, r"topology\.q: got 28; .*the nearest are 27 and 29"),
        ("slim_fly", {"q": 10}, r"topology\.q: got 10; .*the nearest are 9 and 11"),
        ("slim_fly", {"q": 500}, r"topology\.q: got 500; .*the nearest is 128"),
        ("polarfly", {"q": 6}, r"topology\.q: got 6; .*the nearest are 5 and 7"),
        ("jellyfish", {"switches": 7, "degree": 7}, r"topology\.degree: got 7; .*nearest is 6"),
        ("polarstar", {"q": 12}, r"topology\.q: got 12; .*the nearest are 11 and 13"),
        ("polarstar", {"copy_degree": 6}, r"topology\.copy_degree: got 6; .*are 4 and 7"),
        ("dragonfly_plus", {"groups": 18}, r"topology\.groups: got 18; .*nearest is 17"),
        ("jellyfish", {"switches": 9, "degree": 3}, r"topology\.switches: got 9 .*are 8 and 10"),
    ],
)
def test_sizes_that_do_not_exist_name_the_nearest_that_do(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        topology_settings(name, **changes)


def test_a_random_graph_in_parts_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"seed: its graph joins \d+ of 200 routers"):
        build("jellyfish", switches=200, degree=2)


@pytest.mark.parametrize(
    ("name", "chips", "expected"),
    [
        ("slim_fly", 1_025, 1_134),
        ("polarfly", 1_000, 1_281),
        ("jellyfish", 997, 1_000),
        ("polarstar", 745, 1_368),
        ("dragonfly_plus", 161, 176),
    ],
)
def test_resizing_takes_the_next_size(name: str, chips: int, expected: int) -> None:
    of = topology_settings(name)
    bill = family_of(of).bill
    assert bill is not None
    assert bill.ports(bill.resize(of, chips)).chips == expected


@pytest.mark.parametrize(
    ("servers", "strides", "diameter", "mean"),
    [
        (64, (1, 3, 9, 23), 4, 2.444),
        (1296, (1, 5, 7, 13, 35, 89, 215, 529), 6, 3.63),
    ],
)
def test_rings_of_geometric_strides_lead_anywhere_in_few_hops(
    servers: int, strides: tuple[int, ...], diameter: int, mean: float
) -> None:
    """Of the public planner's strides (TopoOpt)."""
    settings = topology_settings(
        "topoopt", servers=servers, chips_per_server=1, planes=1, strides=list(strides)
    )
    hops = family_of(settings).node_hop_counts
    assert hops is not None
    counts = hops(settings)[2:]  # without the links to both servers
    away = np.arange(1, len(counts) + 1) - 1
    assert away.max() == diameter
    assert (away * counts).sum() / counts[1:].sum() == pytest.approx(mean, abs=0.005)
    if servers == 1296:
        assert geometric_strides(servers, 8) == strides


def test_every_stride_is_a_ring_over_all_servers() -> None:
    for servers in range(3, 40):
        for stride in geometric_strides(servers, 4):
            assert len({k * stride % servers for k in range(servers)}) == servers
    with pytest.raises(SettingsError, match="coprime to 64 servers"):
        topology_settings("topoopt", servers=64, strides=[2])


def test_a_packet_of_valiant_s_ends_at_its_destination_on_the_way() -> None:
    """Three routers in a row: from the first to the second, whatever third is drawn."""
    left = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    drawn, taken_off = np.zeros((3, 3)), np.zeros((3, 3))
    drawn[0, 1] = 0.5
    assert kernels().valiant_legs(left, np.ones((3, 3)), drawn, taken_off) == 1
    np.fill_diagonal(taken_off, 0)
    assert np.array_equal(taken_off, [[0, 0, 0], [0, 0, 0.5], [0, 0, 0]])
