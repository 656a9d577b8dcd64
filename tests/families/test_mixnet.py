"""MixNet: its circuits by brute force and by a literal reading of the algorithm, its
routing by conservation, and everything that asks circuits for their traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.families import build_routing, family_of
from railx.families.mixnet import CHANGES_MS, MixNetSettings, greedy_circuits
from railx.network.group_bandwidth import (
    group_bandwidth,
    member_rates,
    routed_loads,
    strided_groups,
)
from railx.network.metrics import check_optical_circuits
from railx.network.settings import (
    BandwidthSettings,
    ExpertTraffic,
    PermutationTraffic,
    StaticNetworkSettings,
    UniformTraffic,
)
from railx.network.throughput import simulate_static
from railx.network.traffic import circuits_for, traffic_flows
from railx.performance.topologies import ExactLoads, at_rates
from railx.settings import SettingsError
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    path_lengths,
    table_lane_loads,
)
from railx.vocabulary.topology import LINK_KINDS, Topology
from tests.builders import build
from tests.loops import for_every

NETWORKS: list[dict[str, Any]] = [
    {},
    {"servers_per_region": 3, "planes": 2},
    {"regions": 3, "servers_per_region": 5, "tree_chips": 3},
    {"servers_per_region": 2, "chips_per_server": 2, "tree_chips": 1},
]
PORT_GB_S = 50.0


@st.composite
def demands(draw: st.DrawFn, most: int = 8) -> np.ndarray:
    """Whole numbers between some servers, in both directions."""
    servers = draw(st.integers(2, most))
    numbers = st.lists(st.integers(0, 9), min_size=servers**2, max_size=servers**2)
    demand = np.array(draw(numbers), dtype=float).reshape(servers, servers)
    np.fill_diagonal(demand, 0)
    return demand


def pairs_of(demand: np.ndarray) -> dict[tuple[int, int], int]:
    both = demand + demand.T
    pairs = combinations(range(len(demand)), 2)
    return {(a, b): int(both[a, b]) for a, b in pairs if both[a, b]}


@given(demands(), st.integers(1, 6))
def test_circuits_take_free_ports_of_pairs_with_traffic(demand: np.ndarray, ports: int) -> None:
    circuits = greedy_circuits(demand, ports)
    assert (circuits == circuits.T).all()
    assert not circuits.diagonal().any()
    used = circuits.sum(axis=0)
    assert used.max(initial=0) <= ports
    sends = demand + demand.T > 0
    assert not circuits[~sends].any()
    free = used < ports
    # Nothing more fits: no two servers with traffic both have a port left.
    assert not (sends & free[:, None] & free).any()
    fewer = greedy_circuits(demand, ports, fills_ports=False)
    assert (fewer <= circuits).all()


def literal(demand: np.ndarray, ports: int) -> dict[tuple[int, int], int] | None:
    """The circuits by the letter; None where two pairs are the slowest at some time."""
    pairs = pairs_of(demand)
    circuits, free = dict.fromkeys(pairs, 0), dict.fromkeys(range(len(demand)), ports)
    while pairs:

        def time(pair: tuple[int, int]) -> tuple[bool, Fraction]:
            return circuits[pair] == 0, Fraction(pairs[pair], max(circuits[pair], 1))

        slowest = max(pairs, key=time)
        if sum(time(pair) == time(slowest) for pair in pairs) > 1:
            return None
        if not all(free[end] for end in slowest):
            break
        circuits[slowest] += 1
        for end in slowest:
            free[end] -= 1
    return circuits


@given(demands(5), st.integers(1, 6))
def test_the_slowest_pair_gets_the_next_circuit_or_ends_it(demand: np.ndarray, ports: int) -> None:
    expected = literal(demand, ports)
    if expected is not None:
        circuits = greedy_circuits(demand, ports, fills_ports=False)
        assert {pair: circuits[pair] for pair in expected} == expected
        assert circuits.sum() == 2 * sum(expected.values())


def bottleneck(pairs: Mapping[tuple[int, int], int], circuits: Mapping[Any, int]) -> Any:
    """The longest time; of pairs without circuits the largest demand."""
    return max(
        (number == 0, Fraction(pairs[pair], max(number, 1))) for pair, number in circuits.items()
    )


@for_every("case", [(3, 1), (3, 2), (3, 3), (3, 4), (4, 2), (4, 3)])
def test_no_other_circuits_have_a_faster_slowest_pair(case: tuple[int, int]) -> None:
    """All circuits of a few servers, for some demands."""
    servers, ports = case
    rng = np.random.default_rng(1)
    for _ in range(20):
        demand = np.triu(rng.integers(1, 20, (servers, servers)), 1).astype(float)
        pairs = pairs_of(demand)
        circuits = greedy_circuits(demand, ports)
        options = [
            dict(zip(pairs, numbers, strict=True))
            for numbers in product(range(ports + 1), repeat=len(pairs))
            if max(
                sum(k for k, p in zip(numbers, pairs, strict=True) if s in p)
                for s in range(servers)
            )
            <= ports
        ]
        best = min(bottleneck(pairs, option) for option in options)
        assert bottleneck(pairs, {pair: int(circuits[pair]) for pair in pairs}) == best


def test_uniform_demand_leaves_each_server_one_of_seven_peers() -> None:
    circuits = greedy_circuits(np.ones((8, 8)), 6)
    assert (circuits.sum(axis=0) == 6).all()
    assert circuits.max() == 1


@for_every("changes", NETWORKS, name=str)
def test_packets_arrive_over_one_link_between_servers(changes: dict[str, Any]) -> None:
    topology = build("mixnet", **changes)
    check_optical_circuits(topology)
    links, node = topology.links, topology.chip_node
    optical = links.kind == LINK_KINDS.index("optical")
    direct = set(zip(node[links.src[optical]], node[links.dst[optical]], strict=True))
    same = node[:, None] == node
    joined = np.array([[(a, b) in direct for b in node] for a in node])
    settings = topology.settings
    assert isinstance(settings, MixNetSettings)
    region = node // settings.servers_per_region
    for routing in ("min", "tree"):
        table = build_routing(topology, routing)
        check_delivery(topology, table)
        check_deadlock_free(topology, table)
        outside = path_lengths(topology, table).external_links
        assert not outside[same].any()
        circuits = joined & (routing == "min")
        far = region[:, None] != region
        assert np.allclose(outside[circuits], 1)
        assert np.allclose(outside[~circuits & ~same & ~far], 2)
        assert np.allclose(outside[far], 4)


@for_every("changes", NETWORKS, name=str)
def test_loads_conserve_traffic(changes: dict[str, Any]) -> None:
    """Circuits carry all between their two servers, the tree the rest."""
    topology = build("mixnet", **changes)
    flows = traffic_flows(topology, ExpertTraffic("experts", 1.0, 16, 0.9), 3)
    demand, node = flows.demand(), topology.chip_node
    topology = circuits_for(topology, ExpertTraffic("experts", 1.0, 16, 0.9), 3)
    links = topology.links
    load = table_lane_loads(topology, build_routing(topology, "min"), demand)
    of_nodes = np.zeros((topology.nodes, topology.nodes))
    np.add.at(of_nodes, (node[flows.src], node[flows.dst]), flows.share)
    carried, tree_bound = np.zeros_like(of_nodes), of_nodes.copy()
    np.fill_diagonal(tree_bound, 0)
    optical = np.flatnonzero(links.kind == LINK_KINDS.index("optical"))
    for row in optical:
        ends = node[links.src[row]], node[links.dst[row]]
        carried[ends] += load[row] * links.lanes[row]
        tree_bound[ends] = 0
    assert np.allclose(carried + tree_bound, of_nodes - np.diag(of_nodes.diagonal()))
    leaf = links.kind == LINK_KINDS.index("leaf")
    climbing = leaf & (links.src < topology.chips)
    climbed = np.bincount(node[links.src[climbing]], load[climbing], minlength=topology.nodes)
    assert np.allclose(climbed, tree_bound.sum(axis=1))


def rates(topology: Topology, routing: str, size: int, stride: int, algorithm: str) -> float:
    groups = strided_groups(np.arange(topology.chips), size, stride)
    loads = routed_loads(topology, routing)
    return member_rates(loads, groups, algorithm).between_gb_s


def test_an_all_to_all_takes_circuits_that_are_set_for_it() -> None:
    """Two servers alone have six circuits; eight have one for six of seven peers."""
    topology = build("mixnet")
    assert rates(topology, "min", 16, 1, "direct") == pytest.approx(PORT_GB_S * 6 * 15 / 64)
    assert rates(topology, "min", 64, 1, "direct") == pytest.approx(PORT_GB_S * 63 / 64)
    assert rates(topology, "tree", 64, 1, "direct") == pytest.approx(PORT_GB_S * 2 * 63 / 448)
    half = at_rates(topology, PORT_GB_S / 2, 450.0)
    assert rates(half, "min", 16, 1, "direct") == pytest.approx(PORT_GB_S * 3 * 15 / 64)


def test_fair_rates_of_an_all_to_all_have_the_same_circuits() -> None:
    topology = build("mixnet")
    settings = BandwidthSettings({"it": "min"}, 128, ("analytic", "flow"))
    rows = {
        row["fidelity"]: row["gb_s"]
        for row in group_bandwidth(topology, settings, "min", "it")
        if (row["operation"], row["group_size"], row["stride"]) == ("all_to_all", 16, 1)
    }
    assert rows["analytic"] == pytest.approx(PORT_GB_S * 6 * 15 / 64 * 16 / 15)
    assert rows["flow"] == pytest.approx(rows["analytic"])


def test_patterns_have_circuits_of_their_own() -> None:
    topology, uniform = build("mixnet"), UniformTraffic("uniform", 1.0)
    assert circuits_for(topology, uniform, 1) is topology
    # Every chip sends to the same rank of the next server: two circuits over the edge
    # of a region are none.
    shift = PermutationTraffic("permutation", 1.0, "shift", 8)
    circuits = circuits_for(topology, shift, 1).circuits
    assert circuits is not None
    pairs = {(a, b) for a, b in zip(circuits.node_a, circuits.node_b, strict=True)}
    assert pairs == {(a, a + 1) for a in range(15) if a != 7}
    # Servers at the ends of a region send to the next one over two ports of the tree.
    network = StaticNetworkSettings("static", "min")
    row, _ = simulate_static(topology, shift, network, "", seed=1)
    assert row["bound_gb_s_per_chip"] == pytest.approx(PORT_GB_S * 2 / 8)


def test_only_all_to_alls_take_circuits_and_wait_for_a_quarter_of_a_change() -> None:
    still, changing = (
        ExactLoads(build("mixnet", change_ms=change_ms), ["min"])
        for change_ms in (0.0, CHANGES_MS["blocked"])
    )
    groups = strided_groups(still.chips, 16, 1)
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "send"):
        ways = changing.ways(groups, kind)
        assert {way.routing for way in ways} == {"tree"}
        assert ways == still.ways(groups, kind)
    (before,), (after,) = (network.ways(groups, "all_to_all") for network in (still, changing))
    assert after.latency_ns - before.latency_ns == pytest.approx(25e6 / 4)
    assert after.rates == before.rates
    inside = strided_groups(still.chips, 8, 1)
    assert still.ways(inside, "all_to_all") == changing.ways(inside, "all_to_all")


def test_bills_have_a_port_of_each_kind_for_its_chips() -> None:
    """Two of eight ports take three switch ports and four transceivers."""
    topology = build("mixnet", planes=3)
    bill = family_of(topology).bill
    assert bill is not None
    ports = bill.ports(topology.settings)
    links = topology.links
    ends = {
        kind: int(links.lanes[links.kind == LINK_KINDS.index(kind)].sum())
        for kind in ("leaf", "aggregation", "optical")
    }
    assert ports.cables == {
        "leaf": ends["leaf"],
        "uplink": ends["aggregation"],
        "optical": ends["optical"],
    }
    assert ports.electrical_switch_ports == ends["leaf"] // 2 + ends["aggregation"]
    assert topology.circuits is not None
    assert ports.ocs_ports == 2 * 3 * len(topology.circuits) == 3 * 128 * 6 // 8
    large = bill.ports(bill.resize(topology.settings, 16384))
    assert large.electrical_switch_ports == 5 * 3 * 16384 // 4


@for_every(
    "case",
    [
        ({"tree_chips": 8}, r"topology\.tree_chips: got 8; allowed: 1 to 7, .*nearest is 7"),
        ({"regions": 65}, r"topology\.regions: got 65; .*the nearest is 64"),
    ],
    name=str,
)
def test_sizes_that_do_not_exist_name_the_nearest(case: tuple[dict[str, Any], str]) -> None:
    with pytest.raises(SettingsError, match=case[1]):
        build("mixnet", **case[0])
