"""Tables with a column for each group of destinations: the same routing, to the packet
and to the last bit, as over all pairs.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest

from railx.effort import LimitSettings
from railx.families import build_routing, family_of, registry
from railx.network.flows.paths import route_flows
from railx.network.packets import engine, layout
from railx.network.packets.effort import check_table
from railx.network.packets.layout import build_net
from railx.network.packets.simulate import simulate_packets, simulate_trace
from railx.network.packets.zero_load import zero_load_latency_cycles
from railx.network.settings import UniformTraffic
from railx.settings import SettingsError
from railx.vocabulary.routing import table as tables
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    class_loads,
    gather_loads,
    longest_paths,
    pair_loads,
    path_lengths,
    table_channel_loads,
)
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, Topology
from tests.builders import build
from tests.network.test_packets import burst, flat, model

#: A network of each family whose tables have groups. Lines differ in length where the
#: family lets them.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "railx_hyperx": ("railx_hyperx", {"m": 2, "n": 1}),
    "railx_hyperx of single chips": ("railx_hyperx", {"m": 1, "n": 4}),
    "railx_split": ("railx_split_3d", {}),
    "railx_dragonfly": ("railx_dragonfly", {"m": 2, "n": 1, "columns": 3, "rows": 7}),
    "torus_2d": ("torus_2d", {"x_scale": 5, "y_scale": 4}),
    "torus_3d": ("torus_3d", {}),
    "railx_torus": ("railx_torus", {"x_scale": 3, "y_scale": 2}),
    "tpu_v4": ("tpu_v4", {"cube_side": 2, "z_cubes": 1}),
    "slim_fly": ("slim_fly", {"q": 4, "planes": 2}),
    "fat_tree": ("fat_tree", {"switch_radix": 6, "leaf_down_ports": 4, "planes": 2}),
    "fat_tree of two tiers": ("fat_tree", {"tiers": 2, "switch_radix": 5, "leaf_down_ports": 3}),
    "hammingmesh": ("hammingmesh", {"m": 3, "n": 2, "x_scale": 2, "y_scale": 3}),
    "opus_rails": ("opus_rails", {"chips_per_server": 3, "servers": 6, "ocs_ports": 4}),
    "rail_optimised": ("rail_optimised", {"chips_per_server": 4, "planes": 2}),
    "rail_only": ("rail_only", {"chips_per_server": 3, "servers": 5, "planes": 2}),
    "rail_only of two tiers": (
        "rail_only",
        {"tiers": 2, "switch_radix": 4, "servers": 8, "chips_per_server": 3, "planes": 1},
    ),
    "hpn": ("hpn", {"chips_per_server": 3, "servers_per_segment": 2}),
}
#: The second routing of a case; that of the others is balanced.
SECOND = dict.fromkeys(("fat_tree", "rail_optimised", "rail_only", "hpn"), "adaptive")
SECOND["slim_fly"] = "valiant"
CASES = [
    (name, routing)
    for name, (conf, _) in NETWORKS.items()
    for routing in ("min", SECOND.get(conf, "balanced"))
]


@pytest.fixture(autouse=True)
def small_tables_keep_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MOST_PAIRS", 0)


def both(name: str, routing: str) -> tuple[Topology, RoutingTable, RoutingTable]:
    """A network, its table over groups, and the same over all pairs."""
    conf, changes = NETWORKS[name]
    topology = build(conf, **changes)
    grouped = build_routing(topology, routing, grouped=True)
    pairs = build_routing(topology, routing)
    assert grouped.groups is not None
    assert pairs.groups is None
    assert pairs.entry.shape == (grouped.states, topology.vertices, topology.chips)
    chip = np.arange(topology.chips)
    assert (pairs.entry[:, chip, chip] == -1).all()
    assert grouped.entry.shape[2] == grouped.groups.columns
    return topology, grouped, pairs


@pytest.mark.parametrize("name", ["railx_hyperx", "torus_3d"])
def test_the_core_finds_the_columns_that_the_groups_say(name: str) -> None:
    """First here, as a core that looks elsewhere reads beyond its arrays."""
    conf, changes = NETWORKS[name]
    topology = build(conf, **changes)
    shuffled = np.random.default_rng(3).permutation(topology.chips).astype(np.int32)
    table = build_routing(topology, "min", shuffled, grouped=True)
    assert table.groups is not None
    seen = table.groups.seen(0, topology.chips)
    net = build_net(topology, table, UniformTraffic("uniform", 1.0), model(), 1)
    for place, chip in enumerate(shuffled.tolist()):
        found = [engine.column_of(net, vertex, chip) for vertex in range(topology.vertices)]
        assert found == seen[:, place].tolist()


@pytest.mark.parametrize(("name", "routing"), CASES)
def test_every_packet_arrives_as_with_a_table_over_all_pairs(name: str, routing: str) -> None:
    topology, grouped, pairs = both(name, routing)
    trace, network = burst(topology, 1500, 100, 5), model(routing=routing, buffer_flits=8)
    arrivals = [
        simulate_trace(topology, table, trace, network, cycles=3000, seed=3)
        for table in (grouped, pairs)
    ]
    assert (arrivals[0] >= 0).all()
    assert np.array_equal(*arrivals)


@pytest.mark.parametrize(("name", "routing"), CASES)
def test_what_is_read_from_a_table_is_the_same_to_the_last_bit(
    name: str, routing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_BLOCK", 7)
    topology, grouped, pairs = both(name, routing)
    check_delivery(topology, grouped)
    check_deadlock_free(topology, grouped)
    demand = np.random.default_rng(1).random((topology.chips, topology.chips))
    network = model(routing=routing)
    for read in (
        lambda table: table_channel_loads(topology, table),
        lambda table: table_channel_loads(topology, table, demand),
        lambda table: class_loads(topology, table),
        lambda table: path_lengths(topology, table).external_links,
        lambda table: longest_paths(topology, table, topology.links.latency_ns, demand),
        lambda table: zero_load_latency_cycles(topology, table, network),
        lambda table: table.over_pairs().entry,
    ):
        assert np.array_equal(read(grouped), read(pairs))


@pytest.mark.parametrize(("name", "routing"), CASES)
def test_loads_of_some_pairs_are_those_of_their_demand_to_the_last_bit(
    name: str, routing: str
) -> None:
    topology, grouped, pairs = both(name, routing)
    rng = np.random.default_rng(2)
    demand = rng.random((topology.chips, topology.chips))
    demand[rng.random(demand.shape) > 0.1] = 0
    np.fill_diagonal(demand, 0)
    src, dst = np.nonzero(demand)
    loads = table_channel_loads(topology, pairs, demand)
    flights = longest_paths(topology, pairs, topology.links.latency_ns, demand)
    for table in (grouped, pairs):
        ours, flight_ns = pair_loads(topology, table, src, dst, demand[src, dst])
        assert np.array_equal(ours, loads)
        assert flight_ns == flights[demand > 0].max()


@pytest.mark.parametrize(("name", "routing"), CASES)
def test_loads_of_gathers_are_those_of_their_pairs(name: str, routing: str) -> None:
    """Groups of any chips, not all of them, of two to all members."""
    topology, grouped, pairs = both(name, routing)
    chips = np.random.default_rng(3).permutation(topology.chips)
    for size in (2, 3, topology.chips // 2, topology.chips):
        groups = chips[: topology.chips // size * size].reshape(-1, size)
        member, other = np.nonzero(~np.eye(size, dtype=bool))
        src, dst = groups[:, member].ravel(), groups[:, other].ravel()
        expected, flight_ns = pair_loads(
            topology, pairs, src, dst, np.full(len(src), 1 / (size - 1))
        )
        for table in (grouped, pairs):
            loads, longest_ns = gather_loads(topology, table, groups)
            assert np.allclose(loads, expected, rtol=1e-12, atol=0)
            assert longest_ns == flight_ns


def test_a_gather_that_gets_stuck_names_the_place() -> None:
    topology, grouped, _ = both("torus_2d", "min")
    assert grouped.groups is not None
    entry = grouped.entry.copy()
    entry[:, topology.chips - 6, grouped.groups.columns - 1] = -1
    broken = dataclasses.replace(grouped, entry=entry)
    with pytest.raises(ValueError, match=r"for chip 19 .* has nowhere to go"):
        gather_loads(topology, broken, np.arange(topology.chips)[None, :])


@pytest.mark.parametrize("name", ["railx_hyperx", "torus_2d"])
def test_tables_lie_in_memory_as_loops_are_compiled_for(name: str) -> None:
    _, grouped, pairs = both(name, "balanced")
    for _, entry in grouped.blocks():
        assert entry.flags.c_contiguous
    assert pairs.entry.flags.c_contiguous


def test_a_table_may_lead_nowhere() -> None:
    topology = build("torus_2d")
    table = build_routing(topology, "min", np.zeros(0, dtype=np.int32))
    assert table.entry.shape == (table.states, topology.vertices, 0)
    assert len(route_flows(topology, "min", [], []).link) == 0


def test_mistakes_are_found_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Towards one chip no circle closes, and only packets for the last one stop."""
    monkeypatch.setattr(tables, "_BLOCK", 1)
    topology, grouped, _ = both("torus_2d", "min")
    one_class = dataclasses.replace(grouped, pool_class=np.zeros_like(grouped.pool_class))
    with pytest.raises(ValueError, match="wait for each other in a circle"):
        check_deadlock_free(topology, one_class)
    assert grouped.groups is not None
    entry = grouped.entry.copy()
    # The chip before chip 19 in its column of nodes, for the row of chip 19.
    entry[:, topology.chips - 6, grouped.groups.columns - 1] = -1
    with pytest.raises(ValueError, match="for chip 19 "):
        check_delivery(topology, dataclasses.replace(grouped, entry=entry))


def test_destinations_in_any_order_are_found() -> None:
    topology, network = build("railx_hyperx", m=2, n=1), model()
    traffic = UniformTraffic("uniform", 1.0)
    shuffled = np.random.default_rng(2).permutation(topology.chips).astype(np.int32)
    runs = [
        simulate_packets(topology, table, traffic, network, 4)
        for table in (
            build_routing(topology, "min"),
            build_routing(topology, "min", shuffled),
            build_routing(topology, "min", shuffled, grouped=True),
        )
    ]
    assert flat(runs[0]) == flat(runs[1]) == flat(runs[2])
    grouped, pairs = (
        build_routing(topology, "min", shuffled, grouped=grouped) for grouped in (True, False)
    )
    assert zero_load_latency_cycles(topology, grouped, network) == zero_load_latency_cycles(
        topology, pairs, network
    )


def test_a_table_of_groups_grows_with_the_sides_of_the_grid() -> None:
    """10,000 chips: columns for 25 columns of nodes, 25 rows and 16 chips of a node."""
    topology = build("railx_hyperx", m=4, n=6)
    table = build_routing(topology, "min", grouped=True)
    assert table.entry.shape == (1, 10_000, 25 + 25 + 16)
    net = build_net(topology, table, UniformTraffic("uniform", 1.0), model(), 1)
    assert net.entry.shape == table.entry.shape
    assert sum(array.nbytes for array in net if array is not None) < 32 * 2**20


def test_the_core_reads_small_tables_over_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, grouped, pairs = both("torus_2d", "min")
    entries = pairs.entry.size
    for most, expected in ((entries, pairs), (entries - 1, grouped)):
        monkeypatch.setattr(layout, "_MOST_PAIRS", most)
        net = build_net(topology, grouped, UniformTraffic("uniform", 1.0), model(), 1)
        assert net.entry.shape == expected.entry.shape


def test_rails_of_one_pod_have_no_column_for_each_chip() -> None:
    topology = build("rail_only", chips_per_server=4, servers=16, planes=1)
    for routing in ("min", "adaptive"):
        table = build_routing(topology, routing, grouped=True)
        assert table.entry.shape[2] == 4 + 4 + 16  # rail switches, ranks, servers


def test_families_say_which_of_their_tables_have_groups() -> None:
    networks = [build(conf, **changes) for conf, changes in NETWORKS.values()]
    for topology in networks:
        family = family_of(topology)
        assert family.groups is not None
        for routing in family.routings:
            table = build_routing(topology, routing, grouped=True)
            assert (table.groups is not None) == (routing in family.grouped_routings)
            if table.groups is not None:
                assert family.groups(topology.settings, routing) == table.groups.columns
    named = {topology.family for topology in networks}
    # Router graphs share one routing.
    routers = {family.name for family in registry.FAMILIES if family.routings == HOP_ROUTINGS}
    grouped = {family.name for family in registry.FAMILIES if family.grouped_routings}
    assert grouped - routers == named - routers


def test_balanced_packets_take_every_channel_of_a_rail_by_their_next_turn() -> None:
    topology, grouped, pairs = both("railx_hyperx", "balanced")
    used = np.unique(pairs.entry[pairs.entry >= 0])
    choices = np.concatenate([np.arange(*grouped.set_start[one : one + 2]) for one in used])
    pools = np.unique(grouped.choice_pool[choices])
    over_rails = topology.links.kind[grouped.pool_link[grouped.pool_start[pools]]] != INTERNAL
    assert set(grouped.pool_class[pools[over_rails]].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "routing", "changes"),
    [
        ("railx_hyperx", "adaptive", {"m": 3, "n": 2}),
        ("mesh_2d", "balanced", {"x_scale": 24, "y_scale": 24}),
        ("dragonfly", "valiant", {"p": 3, "a": 6, "h": 3, "groups": 19, "planes": 1}),
    ],
)
def test_memory_of_a_table_over_all_pairs_is_estimated_with_its_states(
    name: str, routing: str, changes: dict[str, Any]
) -> None:
    topology = build(name, **changes)
    tracemalloc.start()
    assert build_routing(topology, routing).entry_codes.size
    peak_gib = tracemalloc.get_traced_memory()[1] / 2**30
    tracemalloc.stop()
    given = ("topology", name, topology.settings, routing)
    check_table(*given, LimitSettings(memory_gib=3 * peak_gib))
    with pytest.raises(SettingsError, match=f"the routing table of {routing} would take"):
        check_table(*given, LimitSettings(memory_gib=peak_gib / 3))


@pytest.mark.parametrize(
    ("name", "routing", "changes"),
    [
        ("dragonfly_plus", "valiant", {"groups": 17, "planes": 1}),
        ("torus_2d", "min", {"x_scale": 2, "y_scale": 400}),
    ],
)
def test_memory_of_a_table_over_groups_is_estimated_with_its_states(
    name: str, routing: str, changes: dict[str, Any]
) -> None:
    topology = build(name, **changes)
    # What the first table loads or compiles is not its own.
    build_routing(topology, routing, grouped=True)
    tracemalloc.start()
    build_routing(topology, routing, grouped=True)
    peak_gib = tracemalloc.get_traced_memory()[1] / 2**30
    tracemalloc.stop()
    given = ("topology", name, topology.settings, routing)
    check_table(*given, LimitSettings(memory_gib=5 * peak_gib))
    with pytest.raises(SettingsError, match=f"the routing table of {routing} would take"):
        check_table(*given, LimitSettings(memory_gib=peak_gib / 2))
