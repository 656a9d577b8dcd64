"""Mesh, 3D torus, HyperX, Dragonfly and HammingMesh: counts, wiring, hops against a
search, cuts, refusals.
"""

from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import check_topology, family_of
from railx.network.metrics import chip_hop_counts, node_hop_counts, topology_metrics
from railx.settings import SettingsError
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology
from tests.builders import build, topology_settings


def lanes_between(topology: Topology) -> np.ndarray:
    lanes = np.zeros((topology.vertices, topology.vertices), dtype=int)
    np.add.at(lanes, (topology.links.src, topology.links.dst), topology.links.lanes)
    return lanes


def of_kind(topology: Topology, kind: str) -> np.ndarray:
    return topology.links.kind == LINK_KINDS.index(kind)


SIZES = st.one_of(
    st.tuples(
        st.just("mesh_2d"),
        st.fixed_dictionaries({"x_scale": st.integers(2, 7), "y_scale": st.integers(2, 7)}),
    ),
    st.tuples(
        st.just("torus_3d"),
        st.fixed_dictionaries({f"{axis}_scale": st.integers(2, 5) for axis in "xyz"}),
    ),
    st.tuples(
        st.just("hyperx"),
        st.fixed_dictionaries(
            {
                "shape": st.lists(st.integers(2, 5), min_size=1, max_size=3),
                "lanes": st.integers(1, 3),
            }
        ),
    ),
    st.tuples(
        st.just("hyperx"),
        st.fixed_dictionaries(
            {
                "shape": st.lists(st.integers(2, 4), min_size=1, max_size=3),
                "chips_per_switch": st.integers(1, 3),
                "planes": st.integers(1, 2),
            }
        ),
    ),
    st.tuples(
        st.just("dragonfly"),
        st.fixed_dictionaries(
            {
                "p": st.integers(1, 3),
                "a": st.integers(1, 4),
                "h": st.integers(1, 3),
                "groups": st.integers(2, 13),
                "planes": st.integers(1, 2),
            }
        ).filter(lambda sizes: sizes["groups"] <= sizes["a"] * sizes["h"] + 1),
    ),
    st.tuples(
        st.just("hammingmesh"),
        st.fixed_dictionaries(
            {
                "m": st.integers(1, 4),
                "n": st.integers(1, 2),
                "x_scale": st.integers(2, 5),
                "y_scale": st.integers(2, 5),
            }
        ),
    ),
)


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES)
def test_closed_forms_of_hops_and_cuts_are_what_the_graph_says(
    sizes: tuple[str, dict[str, Any]],
) -> None:
    topology = build(sizes[0], **sizes[1])
    metrics = topology_metrics(topology)
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]
    assert np.array_equal(
        topology.links.src[0::2], topology.links.dst[1::2]
    )  # both directions side by side
    assert np.array_equal(topology.links.dst[0::2], topology.links.src[1::2])
    if topology.nodes == topology.chips:
        assert np.array_equal(node_hop_counts(topology), chip_hop_counts(topology))
        assert metrics["diameter_node_hops"] == metrics["diameter_chip_hops"]
    else:
        vertex = np.concatenate([topology.chip_node, topology.nodes + np.arange(topology.switches)])
        outside = topology.links.kind != INTERNAL
        ends = (
            vertex[topology.links.src[outside]].tolist(),
            vertex[topology.links.dst[outside]].tolist(),
        )
        graph = nx.Graph(zip(*ends, strict=True))
        hops = [
            distance
            for node in range(topology.nodes)
            for other, distance in nx.single_source_shortest_path_length(graph, node).items()
            if other < topology.nodes
        ]
        per_node = topology.chips // topology.nodes
        assert np.array_equal(node_hop_counts(topology), np.bincount(hops) * per_node**2)


@settings(deadline=None, max_examples=15)
@given(x=st.integers(2, 6), y=st.integers(2, 6), n=st.integers(1, 3))
def test_mesh_is_the_torus_without_its_wrap_links(x: int, y: int, n: int) -> None:
    mesh, torus = (
        build("mesh_2d", x_scale=x, y_scale=y, n=n),
        build("torus_2d", x_scale=x, y_scale=y, n=n),
    )
    place = np.arange(mesh.chips)
    apart = np.abs(place[:, None] % x - place % x) + np.abs(place[:, None] // x - place // x)
    own = lanes_between(mesh)
    assert np.array_equal(own, n * (apart == 1))
    assert (own <= lanes_between(torus)).all()


@settings(deadline=None, max_examples=15)
@given(x=st.integers(2, 5), y=st.integers(2, 5), z=st.integers(2, 5), n=st.integers(1, 2))
def test_every_layer_of_the_3d_torus_is_a_2d_torus(x: int, y: int, z: int, n: int) -> None:
    solid, layer = (
        build("torus_3d", x_scale=x, y_scale=y, z_scale=z, n=n),
        build("torus_2d", x_scale=x, y_scale=y, n=n),
    )
    lanes = lanes_between(solid).reshape(z, x * y, z, x * y)
    for at in range(z):
        assert np.array_equal(lanes[at, :, at, :], lanes_between(layer))
    column = lanes[:, 0, :, 0]
    steps = (np.arange(z)[:, None] - np.arange(z)) % z
    assert np.array_equal(column, n * ((steps == 1).astype(int) + (steps == z - 1)))


@settings(deadline=None, max_examples=15)
@given(shape=st.lists(st.integers(2, 4), min_size=1, max_size=4), lanes=st.integers(1, 3))
def test_hyperx_joins_what_differs_in_one_dimension(shape: list[int], lanes: int) -> None:
    place = np.array(np.unravel_index(np.arange(np.prod(shape)), shape[::-1]))
    differs = (place[:, :, None] != place[:, None, :]).sum(axis=0)
    assert np.array_equal(
        lanes_between(build("hyperx", shape=shape, lanes=lanes)), lanes * (differs == 1)
    )
    switched = build("hyperx", shape=shape, lanes=lanes, chips_per_switch=2, planes=3)
    for plane in range(3):
        own = slice(
            switched.chips + plane * len(differs), switched.chips + (plane + 1) * len(differs)
        )
        assert np.array_equal(lanes_between(switched)[own, own], lanes * (differs == 1))
        assert (lanes_between(switched)[own, : switched.chips].sum(axis=1) == 2).all()


def test_hyperx_of_1296_chips_has_the_radix_it_says() -> None:
    topology = build("hyperx_1296")
    assert (topology.chips, topology.switches) == (1_296, 8 * 144)
    ports = np.bincount(topology.links.src, weights=topology.links.lanes)
    assert (ports[: topology.chips] == 8).all()
    assert (ports[topology.chips :] == 31).all()


@pytest.mark.parametrize(
    ("name", "chips", "switches", "radix", "ways"),
    [
        ("dragonfly", 72, 36, 7, 1),
        ("dragonfly_1056", 1_056, 264, 15, 1),
        ("dragonfly_1300", 1_300, 260, 19, 2),
    ],
)
def test_balanced_dragonflies_use_every_port(
    name: str, chips: int, switches: int, radix: int, ways: int
) -> None:
    topology = build(name)
    assert (topology.chips, topology.switches) == (chips, 8 * switches)
    ports = np.bincount(topology.links.src, weights=topology.links.lanes)
    assert (ports[: topology.chips] == 8).all()
    assert (ports[topology.chips :] == radix).all()
    assert topology.settings.links_per_pair == ways  # type: ignore[union-attr]


@settings(deadline=None, max_examples=25)
@given(a=st.integers(1, 5), h=st.integers(1, 4), groups=st.integers(2, 12))
def test_dragonfly_joins_all_groups_alike_and_no_switch_beyond_its_ports(
    a: int, h: int, groups: int
) -> None:
    if groups > a * h + 1:
        return
    topology = build("dragonfly", p=1, a=a, h=h, groups=groups, planes=1)
    lanes = lanes_between(topology)[topology.chips :, topology.chips :].reshape(
        groups, a, groups, a
    )
    between = lanes.sum(axis=(1, 3))
    inside = np.eye(groups, dtype=bool)
    assert (between[~inside] == a * h // (groups - 1)).all()
    assert (between[inside] == a * (a - 1)).all()
    far = lanes.sum(axis=3)
    far[inside.nonzero()[0], :, inside.nonzero()[1]] = 0
    used = far.sum(axis=2)
    assert used.max() <= h
    assert used.max() - used.min() <= 1
    turned = np.roll(np.roll(lanes, 1, axis=0), 1, axis=2)
    assert np.array_equal(turned, lanes)  # rotating the groups is a symmetry


def test_hammingmesh_of_the_comparison_has_its_counts() -> None:
    topology = build("hammingmesh_1296")
    assert (topology.chips, topology.nodes, topology.switches) == (1_296, 81, 144)
    ports = np.bincount(topology.links.src, weights=topology.links.lanes)
    assert (ports[: topology.chips] == 8).all()
    assert (ports[topology.chips :] == 18).all()
    outside = topology.links.kind != INTERNAL
    assert (
        int(topology.links.lanes[outside].sum()) // 2 == 81 * 4 * 4 * 2
    )  # 4 m n ports of each board
    metrics = topology_metrics(topology)
    assert metrics["bisection_gb_s_per_chip"] == pytest.approx(2 * 2 / 4 * 50)  # 2 n b / m


@settings(deadline=None, max_examples=15)
@given(m=st.integers(1, 3), n=st.integers(1, 2), x=st.integers(2, 4), y=st.integers(2, 4))
def test_hammingmesh_switches_join_one_chip_line_of_all_boards_of_a_line(
    m: int, n: int, x: int, y: int
) -> None:
    topology = build("hammingmesh", m=m, n=n, x_scale=x, y_scale=y)
    board, local = np.divmod(np.arange(topology.chips), m * m)
    lanes = lanes_between(topology)
    for kind, line, beside, ends, boards in (
        ("row", board // x, local // m, local % m, x),
        ("column", board % x, local % m, local // m, y),
    ):
        rows = of_kind(topology, kind) & (topology.links.src < topology.chips)
        switches = np.unique(topology.links.dst[rows])
        assert len(switches) == (topology.nodes // boards) * m * n
        for switch in switches:
            joined = np.flatnonzero(lanes[switch])
            assert lanes[switch].sum() == 2 * boards
            assert len(np.unique(board[joined])) == boards
            assert len(np.unique(line[joined])) == len(np.unique(beside[joined])) == 1
            assert set(ends[joined]) == {0, m - 1}


@pytest.mark.parametrize(("x", "y"), [(4, 2), (3, 4), (3, 3)])
def test_the_cut_of_hammingmesh_is_the_smallest_with_these_chips_apart(x: int, y: int) -> None:
    topology = build("hammingmesh", m=2, n=1, x_scale=x, y_scale=y, internal_width=4.0)
    half = family_of(topology).halves(topology.settings)
    graph = nx.DiGraph()
    links = topology.links
    for src, dst, gbps in zip(
        links.src.tolist(), links.dst.tolist(), links.capacity_gbps.tolist(), strict=True
    ):
        before = graph.get_edge_data(src, dst, {"capacity": 0.0})["capacity"]
        graph.add_edge(src, dst, capacity=before + gbps)
    for chip in range(topology.chips):
        graph.add_edge(*(("from", chip) if half[chip] == 0 else (chip, "to")))
    assert (
        nx.maximum_flow_value(graph, "from", "to") == topology_metrics(topology)["bisection_gbps"]
    )


def test_metrics_are_known_at_large_sizes() -> None:
    sizes: list[tuple[str, dict[str, Any], int, int]] = [
        ("torus_3d", {"x_scale": 50, "y_scale": 60, "z_scale": 60}, 180_000, 25 + 30 + 30),
        ("dragonfly", {"p": 8, "a": 16, "h": 8, "groups": 129, "planes": 1}, 16_512, 5),
        (
            "hammingmesh",
            {"m": 4, "n": 1, "x_scale": 64, "y_scale": 64, "switch_radix": 128},
            65_536,
            4,
        ),
        ("hyperx", {"shape": [40, 40], "chips_per_switch": 40, "planes": 1}, 64_000, 4),
        ("mesh_2d", {"x_scale": 200, "y_scale": 100}, 20_000, 298),
    ]
    for name, changes, chips, diameter in sizes:
        metrics = topology_metrics(build(name, **changes))
        assert (metrics["chips"], metrics["diameter_node_hops"]) == (chips, diameter)
        assert 1 < metrics["mean_node_hops"] < diameter


def test_mean_hops_of_the_8_by_8_mesh() -> None:
    assert topology_metrics(build("mesh_2d"))["mean_node_hops"] == pytest.approx(
        16 / 3
    )  # (2 / 3) k for pairs of distinct chips
    pairs = combinations(range(64), 2)
    steps = [abs(a % 8 - b % 8) + abs(a // 8 - b // 8) for a, b in pairs]
    assert np.mean(steps) == pytest.approx(16 / 3)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mesh_2d", {"x_scale": 1}, r"topology\.x_scale: got 1; allowed: at least 2"),
        (
            "mesh_2d",
            {"x_scale": 10_000, "y_scale": 10_000},
            r"topology\.x_scale: the topology would need",
        ),
        ("torus_3d", {"z_scale": 1}, r"topology\.z_scale: got 1; allowed: at least 2"),
        (
            "torus_3d",
            {"x_scale": 1000, "y_scale": 1000, "z_scale": 1000},
            r"topology\.x_scale: the topology would need",
        ),
        ("hyperx", {"shape": []}, r"topology\.shape: got \(\); allowed: not empty"),
        ("hyperx", {"shape": [3, 1]}, r"topology\.shape\[1\]: got 1; allowed: at least 2"),
        (
            "hyperx",
            {"planes": 2},
            r"topology\.planes: got 2; allowed: 1 where the chips are the routers",
        ),
        ("hyperx", {"shape": [2000, 2000]}, r"topology\.shape: the topology would need"),
        (
            "dragonfly",
            {"groups": 10},
            r"topology\.groups: got 10; allowed: 2 to .* = 9, .*nearest is 9 \(or h = 3 for 10",
        ),
        ("dragonfly", {"groups": 1}, r"topology\.groups: got 1; allowed: at least 2"),
        (
            "dragonfly",
            {"p": 100, "a": 200, "h": 100, "groups": 1000},
            r"topology\.groups: the topology would need",
        ),
        (
            "hammingmesh",
            {"x_scale": 6},
            r"topology\.switch_radix: got 10; allowed: at least 12, .*at most 5 for this radix",
        ),
        (
            "hammingmesh",
            {"x_scale": 3000, "y_scale": 3000, "switch_radix": 6000},
            r"topology\.x_scale: the topology would need",
        ),
    ],
)
def test_impossible_sizes_name_the_key_and_what_works(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_topology(topology_settings(name, **changes))
