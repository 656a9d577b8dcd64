"""Fat trees of two and three tiers, rail networks, photonic rails and the torus of
cubes: counts, wiring, cuts, refusals.
"""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_topology, check_topology, family_of
from railx.families.torus_3d import Torus3DSettings
from railx.network.metrics import check_optical_circuits, chip_hop_counts, topology_metrics
from railx.settings import SettingsError
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology
from tests.builders import build, topology_settings


def external_ports(topology: Topology) -> np.ndarray:
    """Lanes that leave each vertex on links between nodes."""
    links = topology.links
    outside = links.kind != INTERNAL
    return np.bincount(
        links.src[outside], weights=links.lanes[outside], minlength=topology.vertices
    )


def check_cut(topology: Topology) -> dict[str, Any]:
    metrics = topology_metrics(topology)
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]
    return metrics


@pytest.mark.parametrize(
    ("name", "chips", "leaves", "spines"),
    [
        ("fat_tree_1250", 1_250, 50, 25),
        ("fat_tree_1271", 1_271, 41, 10),
        ("fat_tree_1292", 1_292, 38, 4),
    ],
)
def test_two_tier_trees_of_the_railx_simulator(
    name: str, chips: int, leaves: int, spines: int
) -> None:
    topology = build(name)
    assert (topology.chips, topology.switches) == (chips, 8 * (leaves + spines))
    kinds = np.bincount(topology.links.kind, minlength=len(LINK_KINDS)) // 2
    assert kinds[LINK_KINDS.index("leaf")] == 8 * chips
    assert (
        kinds[LINK_KINDS.index("aggregation")] == 8 * leaves * spines
    )  # each spine joins all leaves once
    assert set(np.unique(topology.links.latency_ns)) == {50.0, 100.0}  # 5 and 10 cycles of 10 ns


@settings(deadline=None, max_examples=25)
@given(data=st.data(), tiers=st.sampled_from([2, 3]), planes=st.integers(1, 3))
def test_every_fat_tree_fills_its_switches(data: st.DataObject, tiers: int, planes: int) -> None:
    radix = data.draw(st.integers(2, 4)) * 2 if tiers == 3 else data.draw(st.integers(4, 9))
    down = data.draw(st.integers(1, radix - 1))
    topology = build(
        "fat_tree", tiers=tiers, switch_radix=radix, leaf_down_ports=down, planes=planes
    )
    up = radix - down
    assert topology.chips == (radix * down if tiers == 2 else radix * radix // 2 * down)
    assert topology.switches == planes * (
        (radix + up) if tiers == 2 else radix * (radix // 2 + up) + up * radix // 2
    )
    ports = external_ports(topology)
    assert (ports[: topology.chips] == planes).all()
    assert (ports[topology.chips :] == radix).all()
    check_cut(topology)


@pytest.mark.parametrize(("radix", "down"), [(6, None), (6, 4), (8, 2)])
def test_tree_hops_count_leaf_pod_and_rest(radix: int, down: int | None) -> None:
    topology = build("fat_tree", switch_radix=radix, leaf_down_ports=down, planes=1)
    below = down or radix // 2
    pod = below * radix // 2
    counts = chip_hop_counts(topology)
    assert counts is not None
    near = [1, 0, below - 1, 0, pod - below, 0, topology.chips - pod]
    assert np.array_equal(counts, topology.chips * np.array(near))


@settings(deadline=None, max_examples=20)
@given(
    g=st.integers(1, 4), pods=st.integers(1, 4), lanes=st.integers(1, 3), planes=st.integers(1, 2)
)
def test_rail_optimised_joins_equal_ranks_and_fills_its_switches(
    g: int, pods: int, lanes: int, planes: int
) -> None:
    radix = pods * g * lanes
    if pods * g % 2 or radix < 4:
        return
    topology = build(
        "rail_optimised", chips_per_server=g, pods=pods, switch_radix=radix, planes=planes
    )
    servers = pods * radix // 2
    assert (topology.chips, topology.nodes) == (servers * g, servers)
    assert topology.switches == servers + planes * (pods * g + pods * g // 2)
    ports = external_ports(topology)
    assert (ports[: topology.chips] == planes).all()
    assert (ports[topology.chips : topology.chips + servers] == 0).all()
    assert (ports[topology.chips + servers :] == radix).all()
    links = topology.links
    leaf = (links.kind == LINK_KINDS.index("leaf")) & (links.src < topology.chips)
    for switch in np.unique(links.dst[leaf]).tolist():
        below = links.src[leaf & (links.dst == switch)]
        assert len(np.unique(below % g)) == 1
        assert len(np.unique(below // g)) == radix // 2
    metrics = check_cut(topology)
    # Full bisection: the smaller half can send at the rate of all its ports.
    assert metrics["bisection_gb_s_per_chip"] == pytest.approx(planes * 50)


@settings(deadline=None, max_examples=15)
@given(g=st.integers(1, 4), servers=st.integers(2, 9), planes=st.integers(1, 3))
def test_rail_only_meets_in_one_switch_a_rank(g: int, servers: int, planes: int) -> None:
    topology = build("rail_only", chips_per_server=g, servers=servers, planes=planes)
    assert topology.switches == servers + g * planes
    assert (external_ports(topology)[topology.chips + servers :] == servers).all()
    metrics = check_cut(topology)
    assert metrics["diameter_node_hops"] == 2
    assert metrics["diameter_chip_hops"] == (4 if g > 1 else 2)


@settings(deadline=None, max_examples=15)
@given(g=st.integers(1, 4), servers=st.integers(2, 9), rings=st.integers(1, 3))
def test_photonic_rails_close_a_ring_on_every_switch(g: int, servers: int, rings: int) -> None:
    topology = build("opus_rails", chips_per_server=g, servers=servers, ocs_ports=2 * rings)
    check_optical_circuits(topology)
    circuits = topology.circuits
    assert circuits is not None
    assert len(circuits) == g * rings * servers
    ports = np.bincount(np.concatenate([circuits.ocs, circuits.ocs]))
    assert (ports == 2 * servers).all()
    for ocs in range(g * rings):
        own = circuits.ocs == ocs
        following = dict(
            zip(circuits.node_a[own].tolist(), circuits.node_b[own].tolist(), strict=True)
        )
        seen, server = [], 0
        for _ in range(servers):
            seen.append(server)
            server = following[server]
        assert (server, sorted(seen)) == (0, list(range(servers)))
    assert (external_ports(topology)[: topology.chips] == 2 * rings).all()
    metrics = check_cut(topology)
    assert metrics["optical_switches"] == g * rings
    assert metrics["diameter_node_hops"] == servers // 2


@pytest.mark.parametrize(
    ("side", "shape"),
    [(4, (2, 1, 1)), (1, (3, 4, 5)), (2, (1, 2, 3)), (3, (1, 1, 1)), (2, (2, 2, 2))],
)
def test_cubes_form_a_torus(side: int, shape: tuple[int, int, int]) -> None:
    x, y, z = shape
    topology = build("tpu_v4", cube_side=side, x_cubes=x, y_cubes=y, z_cubes=z, n=2)
    check_optical_circuits(topology)
    metrics = check_cut(topology)
    plain = build_topology(
        Torus3DSettings("torus_3d", n=2, x_scale=side * x, y_scale=side * y, z_scale=side * z)
    )
    assert (topology.chips, topology.nodes) == (plain.chips, x * y * z)
    cube, local = np.divmod(np.arange(topology.chips), side**3)
    at_x = cube % x * side + local % side
    at_y = cube // x % y * side + local // side % side
    at_z = cube // (x * y) * side + local // side**2
    place = (at_z * side * y + at_y) * side * x + at_x
    assert np.array_equal(_lanes(topology, place), _lanes(plain, np.arange(plain.chips)))
    assert np.array_equal(chip_hop_counts(topology), chip_hop_counts(plain))
    optical = topology.links.kind == LINK_KINDS.index("optical")
    assert (topology.links.kind[~optical] == INTERNAL).all()
    assert metrics["optical_switches"] == 3 * side**2 * 2
    assert metrics["circuits"] == optical.sum() // 2 == x * y * z * 3 * side**2 * 2
    assert (
        np.bincount(topology.links.src, weights=topology.links.lanes)
        == family_of(topology.settings).ports_per_chip(topology.settings)
    ).all()


def test_tpu_v4_at_full_scale() -> None:
    topology = build("tpu_v4_full")
    check_optical_circuits(topology)
    metrics = check_cut(topology)
    circuits = topology.circuits
    assert circuits is not None
    assert (metrics["chips"], metrics["nodes"], metrics["optical_switches"]) == (4_096, 64, 48)
    assert (np.bincount(np.concatenate([circuits.ocs, circuits.ocs])) == 128).all()
    assert metrics["diameter_node_hops"] == 6  # 4 x 4 x 4 cubes
    assert metrics["bisection_gbps"] == 2 * 16 * 16 * 400.0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fat_tree", {"tiers": 4}, r"topology\.tiers: got 4; allowed: 2, 3"),
        (
            "fat_tree_1250",
            {"switch_radix": 41},
            r"topology\.switch_radix: got 41; .*or leaf_down_ports.*are 40 and 42",
        ),
        (
            "fat_tree",
            {"switch_radix": 7, "leaf_down_ports": 4},
            r"topology\.switch_radix: got 7; .*nearest are 6 and 8",
        ),
        (
            "fat_tree_1250",
            {"leaf_down_ports": 50},
            r"topology\.leaf_down_ports: got 50; allowed: 1 to 49.*nearest is 49",
        ),
        (
            "rail_optimised",
            {"switch_radix": 15},
            r"topology\.switch_radix: got 15; allowed: an even number.*14 and 16",
        ),
        (
            "rail_optimised",
            {"pods": 3},
            r"topology\.pods: got 3; .*a divisor of switch_radix = 16.*the nearest is 2",
        ),
        (
            "rail_optimised",
            {"pods": 5, "switch_radix": 64},
            r"topology\.pods: got 5; .*the nearest are 4 and 8",
        ),
        (
            "rail_optimised",
            {"chips_per_server": 9, "switch_radix": 16},
            r"no number of pods.*is switch_radix 18 with 2 pods",
        ),
        (
            "rail_only",
            {"servers": 17},
            r"topology\.servers: got 17; allowed: 2 to switch_radix = 16.*nearest is 16, or",
        ),
        (
            "opus_rails",
            {"ocs_ports": 3},
            r"topology\.ocs_ports: got 3; allowed: an even number.*nearest are 2 and 4",
        ),
        (
            "opus_rails",
            {"ocs_radix": 30},
            r"topology\.ocs_radix: got 30; allowed: at least 32.*at most 15 servers",
        ),
        (
            "tpu_v4",
            {"ocs_radix": 14},
            r"topology\.ocs_radix: got 14; allowed: at least 16.*at most 7 cubes",
        ),
        (
            "tpu_v4",
            {"cube_side": 1, "y_cubes": 1},
            r"topology\.y_cubes: got 1 with cube_side = 1; .*nearest is 2",
        ),
        (
            "tpu_v4",
            {"x_cubes": 9999, "y_cubes": 9999, "ocs_radix": None},
            r"topology\.x_cubes: the topology would need",
        ),
    ],
)
def test_impossible_sizes_name_the_nearest_that_work(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_topology(topology_settings(name, **changes))


@pytest.mark.parametrize(("g", "radix"), [(8, 16), (9, 16), (3, 10), (5, 4), (1, 6)])
def test_the_sizes_that_are_named_do_work(g: int, radix: int) -> None:
    fits = [pods for pods in range(1, radix + 1) if pods * g % 2 == 0 and radix % (pods * g) == 0]
    for pods in fits:
        assert (
            topology_settings(
                "rail_optimised", chips_per_server=g, pods=pods, switch_radix=radix
            ).rail_switches
            == pods * g
        )
    for pods in sorted({1, 2, 3, 5, radix} - set(fits)):
        with pytest.raises(SettingsError, match=r"topology\.pods: .*the nearest") as refused:
            check_topology(
                topology_settings(
                    "rail_optimised", chips_per_server=g, pods=pods, switch_radix=radix
                )
            )
        named = [
            int(number)
            for number in re.findall(r"\d+", str(refused.value).rpartition("the nearest")[2])
        ]
        if fits:
            assert named == sorted(
                {
                    size
                    for size in (_last_below(fits, pods), _first_above(fits, pods))
                    if size is not None
                }
            )
        else:
            check_topology(
                topology_settings(
                    "rail_optimised", chips_per_server=g, switch_radix=named[0], pods=named[1]
                )
            )


def _last_below(sizes: list[int], size: int) -> int | None:
    return max((other for other in sizes if other < size), default=None)


def _first_above(sizes: list[int], size: int) -> int | None:
    return min((other for other in sizes if other > size), default=None)


def _lanes(topology: Topology, place: np.ndarray) -> np.ndarray:
    lanes = np.zeros((topology.chips, topology.chips), dtype=int)
    np.add.at(lanes, (place[topology.links.src], place[topology.links.dst]), topology.links.lanes)
    return lanes
