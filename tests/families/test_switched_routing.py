"""Routers of trees, rails and cubes: every packet arrives, none can block each other,
loads as in closed forms.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_routing, build_topology, family_of
from railx.families.torus_3d import Torus3DSettings
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    path_lengths,
    table_lane_loads,
)
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology
from tests.builders import build
from tests.network.shortest_paths import shortest_path_lane_loads


def routed(topology: Topology, routing: str) -> RoutingTable:
    """The table, after the checks that every router must pass."""
    table = build_routing(topology, routing)
    check_delivery(topology, table)
    check_deadlock_free(topology, table)
    return table


def of_kind(topology: Topology, values: np.ndarray, kind: str) -> np.ndarray:
    return values[topology.links.kind == LINK_KINDS.index(kind)]


def ring_distance(length: int) -> int:
    return sum(min(step, length - step) for step in range(length))


@settings(deadline=None, max_examples=15)
@given(
    data=st.data(),
    tiers=st.sampled_from([2, 3]),
    planes=st.integers(1, 3),
    routing=st.sampled_from(["min", "adaptive"]),
)
def test_fat_tree_loads_have_their_closed_forms(
    data: st.DataObject, tiers: int, planes: int, routing: str
) -> None:
    radix = data.draw(st.sampled_from([4, 6])) if tiers == 3 else data.draw(st.integers(4, 9))
    down = data.draw(st.integers(1, radix - 1))
    topology = build(
        "fat_tree", tiers=tiers, switch_radix=radix, leaf_down_ports=down, planes=planes
    )
    loads = table_lane_loads(topology, routed(topology, routing))
    # A packet climbs to the lowest switch above both chips; the taper concentrates what
    # leaves a leaf on radix - down ports.
    others, taper = topology.chips - 1, down / (radix - down)
    assert of_kind(topology, loads, "leaf") == pytest.approx(1 / planes)
    assert of_kind(topology, loads, "aggregation") == pytest.approx(
        (topology.chips - down) / others / planes * taper
    )
    if tiers == 3:
        assert of_kind(topology, loads, "core") == pytest.approx(
            (topology.chips - down * radix // 2) / others / planes * taper
        )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fat_tree", {"switch_radix": 4, "planes": 2}),
        ("fat_tree", {"switch_radix": 6, "leaf_down_ports": 4, "planes": 1}),
        ("fat_tree_1292", {"switch_radix": 7, "leaf_down_ports": 5, "planes": 3}),
        ("opus_rails", {"chips_per_server": 1, "servers": 6}),
        ("opus_rails", {"chips_per_server": 1, "servers": 7, "ocs_ports": 4}),
    ],
)
def test_loads_equal_the_even_split_over_shortest_paths(name: str, changes: dict[str, Any]) -> None:
    topology = build(name, **changes)
    routing = "balanced" if "balanced" in family_of(topology).routings else "min"
    loads = table_lane_loads(topology, routed(topology, routing))
    # A server of one chip never needs its scale-up switch.
    assert loads == pytest.approx(shortest_path_lane_loads(topology), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("fat_tree_1250", 8.0),
        ("fat_tree_1271", 8 * 10 / 31 * 1_270 / (1_271 - 31)),
        ("fat_tree_1292", 8 * 4 / 34 * 1_291 / (1_292 - 34)),
    ],
)
@pytest.mark.parametrize("routing", ["min", "adaptive"])
def test_uniform_bounds_of_the_railx_simulators_trees(
    name: str, bound: float, routing: str
) -> None:
    topology = build(name)
    table = build_routing(topology, routing)
    assert 1 / table_lane_loads(topology, table).max() == pytest.approx(bound)


def test_the_tree_tapered_to_railx_by_its_own_count() -> None:
    # With packets to oneself it would be 8 * 4 / 34 * 38 / 37 = 0.967; uniform traffic
    # leaves those out.
    topology = build("fat_tree_1292")
    some = np.arange(
        0, topology.chips, 34, dtype=np.int32
    )  # one chip of each leaf stands for all 34
    table = build_routing(topology, "min", some)
    demand = np.full((topology.chips, len(some)), 34 / (topology.chips - 1))
    demand[np.arange(topology.chips), np.arange(topology.chips) // 34] = 0.0
    up = topology.links.src < topology.links.dst
    busiest = of_kind(
        topology, np.where(up, table_lane_loads(topology, table, demand), 0.0), "aggregation"
    ).max()
    assert 1 / busiest == pytest.approx(0.966, abs=5e-4)


def test_a_plane_is_kept_and_ports_are_equal_choices() -> None:
    topology = build("fat_tree", switch_radix=4, planes=3)
    table = routed(topology, "min")
    first = table.entry[0, 0, 5]
    weights = table.choice_weight[table.set_start[first] : table.set_start[first + 1]]
    assert weights == pytest.approx(np.full(3 * table.virtual_channels, 1 / 9))
    adaptive = routed(topology, "adaptive")
    assert adaptive.selection == "adaptive"
    chosen = slice(*adaptive.set_start[adaptive.entry[0, 0, 5] :][:2])
    rows = adaptive.pool_link[adaptive.pool_start[adaptive.choice_pool[chosen]]]
    assert (topology.links.src[rows] == 0).all()
    assert sorted(np.unique(topology.links.dst[rows], return_counts=True)[1]) == [
        3,
        3,
        3,
    ]  # each plane on each virtual channel


@settings(deadline=None, max_examples=10)
@given(
    g=st.integers(1, 4), pods=st.integers(1, 3), lanes=st.integers(1, 2), planes=st.integers(1, 2)
)
def test_rail_optimised_loads_have_their_closed_forms(
    g: int, pods: int, lanes: int, planes: int
) -> None:
    radix = pods * g * lanes
    if radix < 4 or pods * g % 2:
        return
    topology = build(
        "rail_optimised", chips_per_server=g, pods=pods, switch_radix=radix, planes=planes
    )
    table = routed(topology, "min")
    loads = table_lane_loads(topology, table)
    others, pod = topology.chips - 1, radix // 2 * g
    assert of_kind(topology, loads, "leaf") == pytest.approx((topology.chips - g) / others / planes)
    assert of_kind(topology, loads, "aggregation") == pytest.approx(
        (topology.chips - pod) / others / planes
    )
    assert of_kind(topology, loads, "internal") == pytest.approx(
        (pod - radix // 2) / others / planes
    )
    hops = path_lengths(topology, table)
    chip = np.arange(topology.chips)
    server, rail_pod = chip // g, chip // pod
    wanted = np.where(server[:, None] == server, 0, np.where(rail_pod[:, None] == rail_pod, 2, 4))
    assert hops.external_links == pytest.approx(wanted)


@settings(deadline=None, max_examples=10)
@given(
    g=st.integers(1, 4),
    servers=st.integers(2, 6),
    planes=st.integers(1, 3),
    routing=st.sampled_from(["min", "adaptive"]),
)
def test_rail_only_loads_have_their_closed_forms(
    g: int, servers: int, planes: int, routing: str
) -> None:
    topology = build("rail_only", chips_per_server=g, servers=servers, planes=planes)
    table = routed(topology, routing)
    loads = table_lane_loads(topology, table)
    others = topology.chips - 1
    assert of_kind(topology, loads, "leaf") == pytest.approx((topology.chips - g) / others / planes)
    assert of_kind(topology, loads, "internal") == pytest.approx(
        (topology.chips - servers) / others / planes
    )
    chip = np.arange(topology.chips)
    wanted = 2 * (chip[:, None] % g != chip % g) + 2 * (chip[:, None] // g != chip // g)
    assert path_lengths(topology, table).links == pytest.approx(wanted)


@pytest.mark.parametrize(("pods", "radix"), [(1, 8), (2, 8), (1, 4)])
def test_adaptive_rails_fall_back_on_the_spine_inside_a_pod(pods: int, radix: int) -> None:
    topology = build("rail_optimised", chips_per_server=4, pods=pods, switch_radix=radix, planes=2)
    table = routed(topology, "adaptive")
    own = slice(
        *table.set_start[table.entry[0, 0, 5] :][:2]
    )  # from rank 0 of server 0 to rank 1 of server 1
    rows = table.pool_link[table.pool_start[table.choice_pool[own]]]
    internal = topology.links.kind[rows] == INTERNAL
    assert (internal.sum(), (~internal).sum()) == (3, 2 * 3)
    assert (table.choice_delay_ns[own] == np.where(internal, 0, 2 * (100 - 10))).all()
    assert table.choice_weight[own][internal].sum() == pytest.approx(1)
    # Packets that take the way over the spine arrive too, and exact loads count the
    # other way alone.
    assert table_lane_loads(topology, table) == pytest.approx(
        table_lane_loads(topology, build_routing(topology, "min"))
    )


@settings(deadline=None, max_examples=12)
@given(g=st.integers(1, 3), servers=st.integers(2, 9), rings=st.integers(1, 2))
def test_photonic_rail_loads_have_their_closed_forms(g: int, servers: int, rings: int) -> None:
    topology = build("opus_rails", chips_per_server=g, servers=servers, ocs_ports=2 * rings)
    routed(topology, "min")
    loads = table_lane_loads(topology, routed(topology, "balanced"))
    others = topology.chips - 1
    # g chips of a server send to each server over the ring of the destination's rank;
    # two ways round, `rings` links each way.
    assert of_kind(topology, loads, "optical") == pytest.approx(
        g * ring_distance(servers) / (2 * others) / rings
    )
    assert of_kind(topology, loads, "internal") == pytest.approx(
        (topology.chips - servers) / others / (2 * rings)
    )


@pytest.mark.parametrize(
    ("side", "shape"),
    [(2, (2, 1, 1)), (1, (2, 3, 4)), (2, (1, 2, 3)), (3, (1, 1, 1)), (4, (1, 1, 2))],
)
def test_cube_loads_are_those_of_a_plain_torus(side: int, shape: tuple[int, int, int]) -> None:
    x, y, z = shape
    topology = build("tpu_v4", cube_side=side, x_cubes=x, y_cubes=y, z_cubes=z)
    lengths = (side * x, side * y, side * z)
    x, y, z = lengths
    plain = build_topology(Torus3DSettings("torus_3d", x_scale=x, y_scale=y, z_scale=z))
    for routing in ("min", "balanced"):
        table = routed(topology, routing)
        loads = table_lane_loads(topology, table)
        others = table_lane_loads(plain, build_routing(plain, routing))
        assert np.sort(loads) == pytest.approx(np.sort(others))
        assert np.array_equal(
            np.sort(path_lengths(topology, table).links),
            np.sort(path_lengths(plain, build_routing(plain, routing)).links),
        )
    # Balanced: every ring of a dimension of length L carries chips / L * (sum of ring
    # distances) over two directions.
    busiest = max(
        topology.chips / length * ring_distance(length) / 2 / (topology.chips - 1)
        for length in lengths
    )
    assert loads.max() == pytest.approx(busiest)


def test_512_chips_of_tpu_v4_and_their_bound() -> None:
    topology = build("tpu_v4")
    table = build_routing(topology, "balanced")
    loads = table_lane_loads(topology, table)
    # 8 x 8 x 8 chips: 64 * 16 / (2 * 511) on every link; the ports of a chip over its
    # mean distance of 3 * 2 * 512 / 511 hops.
    assert loads == pytest.approx(64 * 16 / (2 * 511))
    check_deadlock_free(topology, table)
    external = path_lengths(topology, table).external_links
    assert external.sum() / (512 * 511) == pytest.approx(
        (loads * (topology.links.kind != INTERNAL)).sum() / 512
    )


@pytest.mark.parametrize(
    "name", ["fat_tree", "rail_optimised", "rail_only", "opus_rails", "tpu_v4"]
)
def test_some_destinations_are_routed_as_all_are(name: str) -> None:
    topology = build(
        name, **({"x_cubes": 1, "y_cubes": 1, "z_cubes": 2} if name == "tpu_v4" else {})
    )
    some = np.array([3, 17, 64, 101], dtype=np.int32)
    for routing in family_of(topology).routings:
        whole, part = build_routing(topology, routing), build_routing(topology, routing, some)
        check_delivery(topology, part)
        assert np.array_equal(part.destinations, some)
        assert path_lengths(topology, part).links == pytest.approx(
            path_lengths(topology, whole).links[:, some]
        )
