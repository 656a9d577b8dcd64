"""The bill of every family against its own built graph, the closed forms behind it, and
resizing.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.families import (
    FAMILIES,
    TopologySettings,
    build_routing,
    build_topology,
    check_topology,
    family_of,
)
from railx.families.railx_dragonfly import RailXDragonflySettings
from railx.families.railx_hyperx import RailXHyperXSettings
from railx.settings import SettingsError, load
from railx.vocabulary.counts import NetworkCounts, count_ports, dragonfly_hops
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.topology import INTERNAL, FamilySettings, Topology

GBPS = 400.0
PORT_GB_S = GBPS / 8
_GRID = {
    "m": 2,
    "n": 2,
    "port_gbps": GBPS,
    "internal_width": 4.0,
    "internal_latency_ns": 10.0,
    "external_latency_ns": 100.0,
}
_RAILX = {**_GRID, "rings": "directed", "ocs_radix": None}
_TREE = {"port_gbps": GBPS, "leaf_latency_ns": 50.0, "global_latency_ns": 100.0}
_SERVERS = {"port_gbps": GBPS, "scale_up_width": 9.0, "scale_up_latency_ns": 10.0}


def network(family: str, **settings: Any) -> FamilySettings:
    loaded: FamilySettings = load(TopologySettings, {"family": family, **settings})
    return loaded


def counts_of(settings: FamilySettings, copper: tuple[str, ...] = ()) -> NetworkCounts:
    bill = family_of(settings).bill
    assert bill is not None
    ports = bill.ports(settings)
    assert bill.chips(settings) == ports.chips
    return count_ports(ports, copper)


def sized(settings: FamilySettings, chips: int) -> FamilySettings:
    bill = family_of(settings).bill
    assert bill is not None
    return bill.resize(settings, chips)


def grid(family: str, m: int, n: int, **sizes: Any) -> FamilySettings:
    rings = {} if "torus" in family else {"rings": "undirected"}
    return network(family, **_GRID | {"m": m, "n": n, "ocs_radix": None} | rings | sizes)


def lines(m: int, n: int, row: int, column: int) -> FamilySettings:
    """A RailX grid of whole all-to-alls."""
    return grid(
        "railx_split", m, n, sizes_x=[row], split_x=[m * n], sizes_y=[column], split_y=[m * n]
    )


def hammingmesh(m: int, n: int, row: int, column: int, **changes: Any) -> FamilySettings:
    sizes = {"m": m, "n": n, "x_scale": row, "y_scale": column, "switch_radix": 64}
    return network("hammingmesh", **_GRID | sizes | changes)


def fat_tree(**changes: Any) -> FamilySettings:
    return network(
        "fat_tree",
        **_TREE
        | {"tiers": 3, "switch_radix": 128, "leaf_down_ports": None, "planes": 36}
        | changes,
    )


def dragonfly(p: int, groups: int, planes: int) -> FamilySettings:
    return network(
        "dragonfly", **_TREE, local_latency_ns=50.0, p=p, a=2 * p, h=p, groups=groups, planes=planes
    )


#: A network of each family, and a routing of it whose uniform loads are even, None
#: where none is.
CASES: dict[str, tuple[FamilySettings, str | None]] = {
    "railx_hyperx": (network("railx_hyperx", **_RAILX), "balanced"),
    "railx_split": (
        grid("railx_split", 2, 2, sizes_x=[4, 2], split_x=[3, 1], sizes_y=[4, 2], split_y=[3, 1]),
        "balanced",
    ),
    "railx_split_equal_copies": (
        grid("railx_split", 2, 2, sizes_x=[4, 2], split_x=None, sizes_y=[2], split_y=None),
        "balanced",
    ),
    "railx_torus": (grid("railx_torus", 2, 2, x_scale=6, y_scale=4), "balanced"),
    "railx_twisted_torus": (
        grid("railx_twisted_torus", 2, 2, x_scale=8, y_scale=4, wrap="twisted"),
        "balanced",
    ),
    "railx_straight_torus": (
        grid("railx_twisted_torus", 2, 2, x_scale=8, y_scale=4, wrap="straight"),
        "balanced",
    ),
    "railx_dragonfly": (grid("railx_dragonfly", 2, 2, columns=5, rows=11), None),
    "hammingmesh": (hammingmesh(2, 2, 6, 4), "balanced"),
    "torus_2d": (
        network("torus_2d", n=2, x_scale=8, y_scale=6, port_gbps=GBPS, latency_ns=10.0),
        "balanced",
    ),
    "torus_3d": (
        network("torus_3d", n=2, x_scale=6, y_scale=4, z_scale=4, port_gbps=GBPS, latency_ns=10.0),
        "balanced",
    ),
    "tpu_v4": (
        network(
            "tpu_v4",
            cube_side=4,
            x_cubes=2,
            y_cubes=2,
            z_cubes=2,
            n=1,
            ocs_radix=136,
            port_gbps=GBPS,
            internal_latency_ns=10.0,
            external_latency_ns=100.0,
        ),
        "balanced",
    ),
    "fat_tree": (fat_tree(switch_radix=8, planes=2), "min"),
    "fat_tree_two_tiers": (fat_tree(tiers=2, switch_radix=8, planes=2), "min"),
    "fat_tree_tapered": (fat_tree(tiers=2, switch_radix=12, leaf_down_ports=8, planes=2), "min"),
    "fat_tree_whole_taper": (fat_tree(tiers=2, switch_radix=12, taper=0.5, planes=2), "min"),
    "rail_optimised": (
        network(
            "rail_optimised",
            **_SERVERS | _TREE,
            chips_per_server=8,
            pods=2,
            switch_radix=16,
            planes=2,
        ),
        "min",
    ),
    "rails of two tiers": (
        network("rail_only", chips_per_server=2, servers=8, switch_radix=8, planes=2, tiers=2),
        "min",
    ),
    "rails of three tiers": (
        network("rail_only", chips_per_server=2, servers=8, switch_radix=4, planes=1, tiers=3),
        "min",
    ),
    "hpn": (
        network("hpn", segments=2, chips_per_server=2, servers_per_segment=2, port_gbps=GBPS),
        "min",
    ),
    "rail_only": (
        network(
            "rail_only",
            **_SERVERS,
            chips_per_server=8,
            servers=16,
            switch_radix=16,
            planes=2,
            leaf_latency_ns=50.0,
        ),
        "min",
    ),
    "dragonfly": (dragonfly(2, 9, 3), "min"),
    "hyperx": (
        network(
            "hyperx",
            shape=[4, 4],
            lanes=1,
            chips_per_switch=3,
            planes=2,
            port_gbps=GBPS,
            leaf_latency_ns=50.0,
            latency_ns=100.0,
        ),
        "min",
    ),
    "hyperx_of_chips": (
        network(
            "hyperx",
            shape=[4, 4],
            lanes=2,
            chips_per_switch=0,
            planes=1,
            port_gbps=GBPS,
            leaf_latency_ns=50.0,
            latency_ns=100.0,
        ),
        "min",
    ),
    "opus_rails": (
        network(
            "opus_rails",
            **_SERVERS,
            chips_per_server=8,
            servers=16,
            ocs_ports=2,
            ocs_radix=None,
            external_latency_ns=100.0,
        ),
        None,
    ),
}


def counted(topology: Topology) -> dict[str, int]:
    """Components of a built topology: every end of a link between nodes is a
    transceiver, an end at a switch also a switch port.
    """
    links = topology.links
    outside = links.kind != INTERNAL
    at_switch = outside & (links.src >= topology.chips)
    circuits = 0 if topology.circuits is None else 2 * len(topology.circuits.ocs)
    found = {
        "electrical_switch_port": int(links.lanes[at_switch].sum()),
        "transceiver": int(links.lanes[outside].sum()),
        "ocs_port": circuits,
    }
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("name", CASES)
def test_counts_are_those_of_the_built_topology(name: str) -> None:
    settings, _ = CASES[name]
    topology, counts = build_topology(settings), counts_of(settings)
    expected = counted(topology)
    if name == "opus_rails":
        expected["transceiver"] //= 2  # the artifact counts one for the two OCS ports of a GPU
    assert (
        counts.injection_gb_s_per_chip == family_of(settings).ports_per_chip(settings) * PORT_GB_S
    )
    assert counts.chips == topology.chips
    assert counts.components == expected


@pytest.mark.parametrize("name", [name for name in CASES if name != "opus_rails"])
def test_bisection_is_that_of_the_topology(name: str) -> None:
    settings, _ = CASES[name]
    counts, ports = counts_of(settings), family_of(settings).bisection_ports
    assert ports is not None
    assert counts.bisection_gb_s_per_chip == pytest.approx(
        ports(settings) * PORT_GB_S / (counts.chips / 2)
    )


@pytest.mark.parametrize("name", [name for name, (_, routing) in CASES.items() if routing])
def test_all_to_all_is_what_balanced_routing_reaches(name: str) -> None:
    """The busiest lane between nodes is full at the closed form (where servers talk
    inside, at the injection bandwidth).
    """
    settings, routing = CASES[name]
    assert routing is not None
    topology = build_topology(settings)
    loads = table_lane_loads(topology, build_routing(topology, routing))
    outside = topology.links.kind != INTERNAL
    counts, reached = counts_of(settings), PORT_GB_S / loads[outside].max()
    assert counts.all_to_all_gb_s_per_chip == pytest.approx(
        min(reached, counts.injection_gb_s_per_chip), rel=1e-6
    )


def test_a_dragonfly_of_nodes_crosses_groups_once_at_most() -> None:
    """Two of ten other groups' packets take one hop between groups; inside the near and
    the far group four of five nodes are not the one that leaves.
    """
    settings, _ = CASES["railx_dragonfly"]
    chips = 5 * 11 * 4
    between = 10 / 11 * chips / (chips - 1)
    inside = 4 / 5 * chips / (chips - 1) / 11 + 2 * between * 4 / 5
    assert isinstance(settings, RailXDragonflySettings)
    hops = dragonfly_hops(settings.columns, settings.rows, settings.m**2)
    assert sum(hops) == pytest.approx(inside + between)


def test_every_rail_of_every_line_has_a_switch() -> None:
    settings, _ = CASES["railx_hyperx"]
    topology = build_topology(settings)
    assert topology.circuits is not None
    assert isinstance(settings, RailXHyperXSettings)
    grid = settings.grid
    assert (grid.columns + grid.rows) * grid.rails == len(set(topology.circuits.ocs.tolist()))


@given(st.integers(1, 7), st.integers(1, 9), st.data())
def test_railx_beats_hammingmesh_by_one_end_against_a_switch_port_and_two(
    m: int, n: int, data: st.DataObject
) -> None:
    """Same boards, same bandwidths; an external port costs c_t + c_o in RailX, 2 c_t +
    c_s in HammingMesh.
    """
    sizes = st.sampled_from(
        [copies + 1 for copies in range(1, min(m * n, 31) + 1) if m * n % copies == 0]
    )
    row, column = data.draw(sizes), data.draw(sizes)
    ours, theirs = counts_of(lines(m, n, row, column)), counts_of(hammingmesh(m, n, row, column))
    ports = ours.components["ocs_port"]
    assert ours.components == {"transceiver": ports, "ocs_port": ports}
    assert theirs.components == {"transceiver": 2 * ports, "electrical_switch_port": ports}
    assert ours.chips == theirs.chips
    assert ours.injection_gb_s_per_chip == theirs.injection_gb_s_per_chip
    assert ours.all_to_all_gb_s_per_chip == pytest.approx(theirs.all_to_all_gb_s_per_chip)


@given(st.integers(1, 12), st.integers(1, 20))
def test_cost_per_injection_falls_as_one_over_m_and_per_all_to_all_does_not(m: int, n: int) -> None:
    """In optical ports (c_t + c_o) per port of bandwidth: exactly 1/m, and exactly the
    hops h = 2 (1 - 1/k) N / (N - 1).
    """
    line = m * n + 1
    counts = counts_of(lines(m, n, line, line))
    ports = counts.components["ocs_port"] / counts.chips
    assert counts.all_to_all_gb_s_per_chip is not None
    assert ports / (counts.injection_gb_s_per_chip / PORT_GB_S) == pytest.approx(1 / m, rel=1e-12)
    hops = 2 * (1 - 1 / line) * counts.chips / (counts.chips - 1)
    assert ports / (counts.all_to_all_gb_s_per_chip / PORT_GB_S) == pytest.approx(hops, rel=1e-12)
    assert 1 < hops < 2 or line == 2


FULL = {
    "hyperx": grid("railx_hyperx", 7, 9),
    "torus": grid("railx_torus", 7, 9, x_scale=64, y_scale=64),
    "dragonfly": grid("railx_dragonfly", 7, 9, columns=64, rows=64),
}


@pytest.mark.parametrize("setting", FULL)
def test_every_setting_costs_the_same(setting: str) -> None:
    counts = counts_of(FULL[setting])
    assert counts.components == {"transceiver": 1_032_192, "ocs_port": 1_032_192}
    assert counts.injection_gb_s_per_chip == 1800.0


def test_full_scale_torus_is_sixteen_times_slower_at_all_to_all() -> None:
    """8 n / K for a torus of K = 448 chips per side (times (N - 1) / N) against 130.6
    GB/s of the same hardware as a HyperX.
    """
    torus = counts_of(FULL["torus"]).all_to_all_gb_s_per_chip
    assert torus == pytest.approx(8 * 9 / 448 * PORT_GB_S * (1 - 1 / 200_704))
    hyperx = counts_of(FULL["hyperx"]).all_to_all_gb_s_per_chip
    assert hyperx is not None
    assert torus is not None
    assert hyperx / torus == pytest.approx(16.25, abs=0.01)


def test_dragonfly_ports() -> None:
    """4 - 1/p switch ports and 5 - 1/p transceivers an end port; copper inside the
    group leaves one transceiver.
    """
    p, ends = 8, 2 * 8**2 * 40 * 36
    assert counts_of(dragonfly(p, 40, 36)).components == {
        "electrical_switch_port": (4 * p - 1) * ends // p,
        "transceiver": (5 * p - 1) * ends // p,
    }
    copper = counts_of(dragonfly(p, 40, 36), ("leaf", "local")).components
    assert copper["transceiver"] == ends
    assert copper["copper_cable"] == ends + ends * (2 * p - 1) // (2 * p)


def test_tpu_v4_has_one_and_a_half_optical_ports_a_chip() -> None:
    """64 cubes of 4 x 4 x 4: 96 face links a cube, on 48 switches of which 128 ports
    are used.
    """
    cubes = network(
        "tpu_v4",
        cube_side=4,
        x_cubes=4,
        y_cubes=4,
        z_cubes=4,
        n=1,
        ocs_radix=136,
        port_gbps=GBPS,
        internal_latency_ns=10.0,
        external_latency_ns=100.0,
    )
    counts = counts_of(cubes)
    assert counts.chips == 4096
    assert counts.components == {"transceiver": 48 * 128, "ocs_port": 48 * 128}


def test_links_on_a_board_need_no_transceiver() -> None:
    """Boards of 4 x 4: a quarter of the links in each dimension leaves its board."""
    plain = {"n": 2, "x_scale": 36, "y_scale": 36, "port_gbps": GBPS, "latency_ns": 10.0}
    chips, boards = network("torus_2d", **plain), network("torus_2d", **plain, board_side=4)
    assert counts_of(chips).components == {"transceiver": 36 * 36 * 8}
    assert counts_of(boards).components == {"transceiver": 36 * 36 * 8 // 4}
    assert counts_of(boards).all_to_all_gb_s_per_chip == counts_of(chips).all_to_all_gb_s_per_chip
    with pytest.raises(
        SettingsError, match=r"whole boards of 5 chips per side .* 35 and 40"
    ) as error:
        network("torus_2d", **plain, board_side=5)
    assert error.value.key == "x_scale"


def test_left_over_rails_of_a_split_line_are_charged_and_carry_nothing() -> None:
    """63 rails over 8 x 8 nodes: 4 whole copies of each all-to-all, 7 rails in none."""
    sizes = {"sizes_x": [8, 8], "sizes_y": [8, 8]}
    whole = grid("railx_split", 7, 9, **sizes, split_x=[35, 28], split_y=[35, 28])
    equal = grid("railx_split", 7, 9, **sizes, split_x=None, split_y=None)
    assert counts_of(equal) == counts_of(whole)
    with pytest.raises(SettingsError, match="leaves 7 of 63 rails in no part"):
        check_topology(equal)
    with pytest.raises(SettingsError, match=r"together at most m \* n = 63"):
        grid("railx_split", 7, 9, **sizes | {"sizes_x": [64, 2]}, split_x=None, split_y=None)


#: What only a bill may be asked of, and how a graph of it is refused.
ONLY_BILLS: dict[str, tuple[FamilySettings, str]] = {
    "in part": (
        fat_tree(switch_radix=8, planes=2, populated_chips=100),
        "populated_chips: got 100; allowed: null or 128",
    ),
    "taper": (
        fat_tree(tiers=2, switch_radix=128, planes=2, taper=0.5),
        "taper: got 0.5; allowed: whole ports",
    ),
    "one tier": (fat_tree(tiers=1, switch_radix=8, planes=2), "tiers: got 1; allowed: 2, 3"),
    "many planes": (fat_tree(populated_chips=None), "switch_radix: the topology would need"),
    "long lines": (hammingmesh(1, 2, 40, 40), "switch_radix: got 64; allowed: at least 80"),
    "rails of trees": (
        network(
            "rail_only",
            **_SERVERS,
            chips_per_server=8,
            servers=20,
            switch_radix=16,
            planes=2,
            leaf_latency_ns=50.0,
            tiers=2,
        ),
        "servers: got 20; allowed with 2 tiers: 8 times an even divisor of switch_radix = 16",
    ),
    "joined trees": (
        network(
            "rail_optimised",
            **_SERVERS | _TREE,
            chips_per_server=8,
            pods=4,
            switch_radix=16,
            planes=2,
            tiers=3,
        ),
        "tiers: got 3; allowed: 2",
    ),
    "part of a pod": (
        network(
            "rail_optimised",
            **_SERVERS | _TREE,
            chips_per_server=8,
            pods=2,
            switch_radix=16,
            planes=2,
            populated_servers=12,
        ),
        "populated_servers: got 12; allowed: null or 16",
    ),
}


@pytest.mark.parametrize("name", ONLY_BILLS)
def test_graphs_of_what_only_a_bill_can_tell_are_refused_in_one_line(name: str) -> None:
    settings, message = ONLY_BILLS[name]
    assert counts_of(settings).chips > 0
    with pytest.raises(SettingsError) as error:
        build_topology(settings)
    assert str(error.value).startswith(f"topology.{message}")
    assert "\n" not in str(error.value)


def test_a_full_scale_bill_is_asked_of_settings_that_no_graph_is_built_of() -> None:
    tree = fat_tree(populated_chips=200_704)
    assert counts_of(tree).chips == 200_704
    assert counts_of(tree).injection_gb_s_per_chip == 1800.0
    with pytest.raises(SettingsError, match=r"^topologies\.big\.populated_chips: got 200704"):
        check_topology(tree, "topologies.big")


def test_every_family_but_five_has_a_bill() -> None:
    without = {family.name for family in FAMILIES if family.bill is None}
    assert without == {"mesh_2d", "railx_mixed", "imported", "ub_mesh", "khop_ring"}


RESIZED = sorted({name for name in CASES if name != "hyperx_of_chips"} | {"in part"})


@given(st.sampled_from(RESIZED), st.integers(2, 3000))
def test_a_resized_network_is_large_enough_and_keeps_its_ports(name: str, chips: int) -> None:
    settings = CASES[name][0] if name in CASES else ONLY_BILLS[name][0]
    refused: SettingsError | None = None
    try:
        other = sized(settings, chips)
    except SettingsError as error:
        refused = error
    if refused is not None:
        assert refused.key == "chips"
        largest = int(str(refused).rpartition("the nearest is ")[2])
        assert largest < chips
        assert counts_of(sized(settings, largest)).chips == largest
        return
    before, after = counts_of(settings), counts_of(other)
    assert after.chips >= chips
    assert after.injection_gb_s_per_chip == before.injection_gb_s_per_chip
    assert after.port_gbps == before.port_gbps
    assert after.all_to_all_gb_s_per_chip is None or after.all_to_all_gb_s_per_chip > 0


def test_the_shape_of_a_hyperx_of_chips_fixes_its_size() -> None:
    settings, _ = CASES["hyperx_of_chips"]
    assert sized(settings, 16) == settings
    with pytest.raises(SettingsError, match="at most 16"):
        sized(settings, 17)


def test_resized_grids_can_be_built() -> None:
    """Another RailX HyperX than the full square is a grid of whole all-to-alls."""
    other = sized(grid("railx_hyperx", 2, 3), 70)
    topology = build_topology(other)
    assert topology.chips == counts_of(other).chips == 84  # 7 x 3 nodes of 4 chips
    assert counts_of(other).components == counted(topology)
    assert sized(grid("railx_hyperx", 2, 3), 190) == grid("railx_hyperx", 2, 3)
