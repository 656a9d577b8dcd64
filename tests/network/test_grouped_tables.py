"""Tables with a column for each group of destinations: the same routing, to the packet
and to the last bit, as over all pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from railx.families import build_routing, family_of, registry
from railx.network.packets import simulate_packets, simulate_trace, zero_load_latency_cycles
from railx.network.packets.layout import build_net
from railx.network.settings import UniformTraffic
from railx.vocabulary.routing import table as tables
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    class_loads,
    longest_paths,
    path_lengths,
    table_channel_loads,
)
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology
from tests.builders import build
from tests.network.test_packets import burst, flat, model

#: A network of each family whose tables have groups. Lines differ in length where the
#: family lets them.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "railx_hyperx": ("railx_hyperx", {"m": 2, "n": 1}),
    "railx_hyperx of single chips": ("railx_hyperx", {"m": 1, "n": 4}),
    "railx_split": ("railx_split_3d", {}),
    "torus_2d": ("torus_2d", {"x_scale": 5, "y_scale": 4}),
    "torus_3d": ("torus_3d", {}),
    "railx_torus": ("railx_torus", {"x_scale": 3, "y_scale": 2}),
    "tpu_v4": ("tpu_v4", {"cube_side": 2, "z_cubes": 1}),
}
CASES = [(name, routing) for name in NETWORKS for routing in ("min", "balanced")]


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


def test_families_say_which_of_their_tables_have_groups() -> None:
    networks = [build(conf, **changes) for conf, changes in NETWORKS.values()]
    for topology in networks:
        family = family_of(topology)
        for routing in family.routings:
            table = build_routing(topology, routing, grouped=True)
            assert (table.groups is not None) == (routing in family.grouped_routings)
    named = {topology.family for topology in networks}
    assert {family.name for family in registry.FAMILIES if family.grouped_routings} == named
