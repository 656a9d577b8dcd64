"""The settings of the RailX optical layer: what each promises, against its own graph
and against another library's search.
"""

import dataclasses
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import family_of, railx_dragonfly, railx_split
from railx.network.metrics import check_optical_circuits, node_hop_counts, topology_metrics
from railx.settings import SettingsError
from railx.vocabulary.grid import rail_ports
from railx.vocabulary.line_parts import (
    LinePart,
    crossing_ports,
    line_parts,
    part_rings,
    part_wiring,
)
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Circuits, Topology
from tests.builders import build, topology_settings

SMALL = [
    "railx_twisted_torus",
    "railx_straight_torus",
    "railx_split",
    "railx_split_3d",
    "railx_dragonfly",
    "railx_mixed",
]
FULL = [
    "railx_twisted_torus_full",
    "railx_split_full",
    "railx_split_3d_full",
    "railx_dragonfly_full",
    "railx_mixed_full",
]


@pytest.mark.parametrize("name", [*SMALL, "railx_dragonfly_largest", "railx_twisted_torus_m4n2"])
def test_hops_and_cuts_agree_with_another_search(name: str) -> None:
    topology = build(name)
    check_optical_circuits(topology)
    counts = node_hop_counts(topology)
    assert counts is not None
    assert np.array_equal(counts, _searched_hops(topology))
    _assert_cut(topology)


@pytest.mark.parametrize("name", SMALL)
def test_paths_agree_with_another_library(name: str) -> None:
    topology = build(name)
    metrics = topology_metrics(topology)
    graph = _node_graph(topology)
    nodes = range(
        min(topology.nodes, 6)
    )  # rows, columns and kinds of nodes all occur among the first
    counts = {
        (a, b): len(list(nx.all_shortest_paths(graph, a, b)))
        for a in nodes
        for b in graph
        if a != b
    }
    assert metrics["minimal_paths_min"] <= min(counts.values())
    assert metrics["disjoint_paths_min"] == _edge_connectivity(graph)
    if name in (
        "railx_twisted_torus",
        "railx_straight_torus",
        "railx_split",
        "railx_split_3d",
    ):  # node 0 stands for all
        from_zero = [counts[0, b] for b in graph if b]
        assert metrics["minimal_paths_mean"] == pytest.approx(np.mean(from_zero))
        assert metrics["minimal_paths_min"] == min(from_zero)


def test_minimal_paths_without_the_product_agree_with_it() -> None:
    for name in ("railx_mixed", "railx_dragonfly"):
        topology = build(name)
        graph = _node_graph(topology)
        counts = [
            len(list(nx.all_shortest_paths(graph, a, b))) for a in graph for b in graph if a != b
        ]
        metrics = topology_metrics(topology)
        assert metrics["minimal_paths_mean"] == pytest.approx(np.mean(counts))
        assert metrics["minimal_paths_min"] == min(counts)


@pytest.mark.parametrize(
    ("name", "chips", "nodes", "diameter"),
    [
        ("railx_hyperx_full", 200_704, 4_096, 2),
        ("railx_dragonfly_full", 112_896, 2_304, 3),
        ("railx_split_3d_full", 200_704, 4_096, 3),
        ("railx_split_full", 200_704, 4_096, 4),
        ("railx_mixed_full", 200_704, 4_096, 10),
        ("railx_twisted_torus_full", 100_352, 2_048, 32),
    ],
)
def test_full_scale_settings(name: str, chips: int, nodes: int, diameter: int) -> None:
    topology = build(name)
    assert (topology.chips, topology.nodes) == (chips, nodes)
    assert topology.circuits is not None
    assert int(max(topology.circuits.port_a.max(), topology.circuits.port_b.max())) == 127
    check_optical_circuits(topology)
    counts = node_hop_counts(topology)
    assert counts is not None
    assert counts.sum() == chips**2
    assert len(counts) - 1 == diameter
    _assert_cut(topology)


def test_full_scale_split_has_the_mean_hops_of_its_coordinates() -> None:
    metrics = topology_metrics(build("railx_split_full"))
    chips = 200_704
    assert metrics["mean_node_hops"] == pytest.approx(4 * 7 / 8 * chips / (chips - 1))
    assert metrics["disjoint_paths_min"] == 4 * 63
    # 2 to 4 differing coordinates in any order: sum of C(4, k) 7^k k! over the pairs
    assert metrics["minimal_paths_mean"] == pytest.approx(
        (28 + 6 * 49 * 2 + 4 * 343 * 6 + 2401 * 24) / 4095
    )


@settings(deadline=None, max_examples=20)
@given(a=st.integers(2, 9), m=st.integers(1, 3), n=st.integers(1, 2), twisted=st.booleans())
def test_twisted_torus_is_the_published_graph(a: int, m: int, n: int, twisted: bool) -> None:
    wrap = "twisted" if twisted else "straight"
    topology = build("railx_twisted_torus", m=m, n=n, x_scale=2 * a, y_scale=a, wrap=wrap)
    check_optical_circuits(topology)
    expected = nx.MultiGraph()
    for x in range(2 * a):
        for y in range(a):
            above = ((x + (a if twisted and y == a - 1 else 0)) % (2 * a), (y + 1) % a)
            for b in ((x + 1) % (2 * a) + 2 * a * y, above[0] + 2 * a * above[1]):
                expected.add_edges_from([(x + 2 * a * y, b)] * (m * n))
    assert (
        _lane_matrix(topology).tolist()
        == nx.to_numpy_array(expected, nodelist=range(2 * a * a)).tolist()
    )
    assert np.array_equal(node_hop_counts(topology), _searched_hops(topology))  # type: ignore[arg-type]
    _assert_cut(topology)


def test_a_pair_of_columns_shares_its_switches() -> None:
    topology = build("railx_twisted_torus")
    circuits = topology.circuits
    assert circuits is not None
    columns_of = {
        int(ocs): {int(node) % 8 for node in circuits.node_a[circuits.ocs == ocs]}
        for ocs in np.unique(circuits.ocs[circuits.dimension == 1])
    }
    assert sorted(map(sorted, columns_of.values())) == sorted([[c, c + 4] for c in range(4)] * 4)
    ports = np.bincount(circuits.ocs) * 2
    assert (ports == 16).all()  # rows and column pairs fill switches of the same radix, 2 x_scale


def test_the_twist_doubles_the_bisection_and_shortens_the_way() -> None:
    twisted, straight = (
        topology_metrics(build("railx_twisted_torus_m4n2", wrap=wrap))
        for wrap in ("twisted", "straight")
    )
    assert twisted["bisection_gbps"] == 2 * straight["bisection_gbps"]
    assert (twisted["diameter_node_hops"], straight["diameter_node_hops"]) == (6, 9)


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([2, 3, 4, 5, 6, 7]), min_size=1, max_size=2),
    other=st.lists(st.sampled_from([2, 3, 4, 5]), min_size=1, max_size=2),
    rings=st.sampled_from(["directed", "undirected"]),
    spare=st.integers(0, 2),
)
def test_split_joins_nodes_that_differ_in_one_coordinate(
    sizes: list[int], other: list[int], rings: str, spare: int
) -> None:
    """The number of links between two nodes is 2 copies where one logical coordinate
    differs, else none.
    """
    if rings == "directed" and {4, 6} & {*sizes, *other}:
        return
    rails = sum(size - 1 for size in sizes) + spare * (sizes[0] - 1)
    fit = railx_split._fit(tuple(other), rails)
    if fit is None or rails > 16:
        return
    first = [(1 + spare) * (sizes[0] - 1), *(size - 1 for size in sizes[1:])]
    topology = build(
        "railx_split",
        m=1,
        n=rails,
        sizes_x=sizes,
        split_x=first,
        sizes_y=other,
        split_y=list(fit),
        rings=rings,
    )
    check_optical_circuits(topology)
    all_sizes, copies = (
        [*sizes, *other],
        [r // (s - 1) for r, s in zip([*first, *fit], [*sizes, *other], strict=True)],
    )
    places = np.stack(np.unravel_index(np.arange(topology.nodes), all_sizes[::-1]))[::-1]
    differs = places[:, :, None] != places[:, None, :]
    expected = (differs * 2 * np.array(copies)[:, None, None]).sum(axis=0) * (
        differs.sum(axis=0) == 1
    )
    assert np.array_equal(_lane_matrix(topology), expected)
    _assert_cut(topology)
    counts = node_hop_counts(topology)
    assert counts is not None
    assert len(counts) - 1 == len(all_sizes)


@settings(deadline=None, max_examples=25)
@given(
    rails=st.integers(1, 6),
    divisor=st.integers(0, 5),
    rows=st.integers(2, 30),
    rings=st.sampled_from(["directed", "undirected"]),
)
def test_dragonfly_joins_all_rows_evenly_within_three_hops(
    rails: int, divisor: int, rows: int, rings: str
) -> None:
    sizes = [d + 1 for d in range(1, rails + 1) if rails % d == 0]
    columns = sizes[divisor % len(sizes)]
    rows = min(rows, 2 * rails * columns + 1)
    if rings == "directed" and columns in (4, 6):
        return
    topology = build("railx_dragonfly", m=1, n=rails, columns=columns, rows=rows, rings=rings)
    check_optical_circuits(topology)
    counts = node_hop_counts(topology)
    assert counts is not None
    assert len(counts) <= 4
    assert np.array_equal(counts, _searched_hops(topology))
    _assert_cut(topology)
    between = np.zeros((rows, rows), dtype=int)
    lanes = _lane_matrix(topology)
    node = np.arange(topology.nodes)
    np.add.at(between, (node[:, None] // columns, node[None, :] // columns), lanes)
    links = between[~np.eye(rows, dtype=bool)]
    assert links.min() >= 1
    if rows % 2:
        assert links.max() - links.min() <= 1
    else:
        assert (
            links.max() - links.min() <= 2
        )  # the difference of half the rows joins its pairs twice at once


@pytest.mark.parametrize("name", ["railx_dragonfly", "railx_dragonfly_largest", "railx_split_3d"])
def test_settings_of_three_hops(name: str) -> None:
    assert topology_metrics(build(name))["diameter_node_hops"] == 3


def test_dragonfly_reaches_rows_that_a_hyperx_cannot() -> None:
    largest = build("railx_dragonfly_largest")
    assert largest.nodes == 5 * 41
    between = np.zeros((41, 41), dtype=int)
    node = np.arange(largest.nodes) // 5
    np.add.at(between, (node[:, None], node[None, :]), _lane_matrix(largest))
    assert np.array_equal(
        between - np.diag(np.diag(between)), 1 - np.eye(41, dtype=int)
    )  # every pair exactly once
    columns = railx_dragonfly.row_differences(largest.settings)  # type: ignore[arg-type]
    assert (
        len({frozenset(column.tolist()) for column in columns}) == 5
    )  # each column is set to another graph


@settings(deadline=None, max_examples=25)
@given(
    groups=st.integers(1, 4),
    size=st.sampled_from([2, 3, 5, 7]),
    rings_on=st.integers(1, 3),
    copies=st.integers(1, 2),
    strided=st.booleans(),
)
def test_mixed_lines_are_what_their_parts_say(
    groups: int, size: int, rings_on: int, copies: int, strided: bool
) -> None:
    length, rails = groups * size, rings_on + copies * (size - 1)
    parts = [
        {"kind": "ring", "rails": rings_on, "size": length, "stride": 1},
        {
            "kind": "all_to_all",
            "rails": copies * (size - 1),
            "size": size,
            "stride": groups if strided else 1,
        },
    ]
    column = [{"kind": "ring", "rails": rails, "size": 3, "stride": 1}]
    topology = build(
        "railx_mixed", m=1, n=rails, x_scale=length, y_scale=3, parts_x=parts, parts_y=column
    )
    check_optical_circuits(topology)
    position = np.arange(length)
    group = position % groups if strided else position // size
    expected = 2 * copies * ((group[:, None] == group) & (position[:, None] != position))
    np.add.at(expected, (position, (position + 1) % length), rings_on)
    np.add.at(expected, ((position + 1) % length, position), rings_on)
    assert np.array_equal(_lane_matrix(topology)[:length, :length], expected)
    _assert_cut(topology)
    assert np.array_equal(node_hop_counts(topology), _searched_hops(topology))  # type: ignore[arg-type]


def test_mixed_holds_the_torus_and_the_hyperx() -> None:
    ring = [{"kind": "ring", "rails": 4, "size": 5, "stride": 1}]
    mixed = build("railx_mixed", x_scale=5, y_scale=5, parts_x=ring, parts_y=ring)
    assert np.array_equal(_lane_matrix(mixed), _lane_matrix(build("railx_torus")))
    full = [{"kind": "all_to_all", "rails": 4, "size": 5, "stride": 1}]
    mixed = build("railx_mixed", x_scale=5, y_scale=5, parts_x=full, parts_y=full)
    assert np.array_equal(_lane_matrix(mixed), _lane_matrix(build("railx_hyperx")))


@pytest.mark.parametrize("name", SMALL)
def test_rail_ports_name_the_links_behind_each_port(name: str) -> None:
    topology = build(name)
    ports, links, n = rail_ports(topology), topology.links, topology.settings.n
    m = topology.settings.m
    assert (ports.link >= 0).all()
    assert np.array_equal(np.sort(ports.link.ravel()), np.flatnonzero(links.kind != INTERNAL))
    dimension, node, rail, side = np.indices(ports.link.shape)
    row = ports.link
    assert np.array_equal(
        links.kind[row],
        np.array([LINK_KINDS.index("rail_x"), LINK_KINDS.index("rail_y")])[dimension],
    )
    assert np.array_equal(links.rail[row], rail)
    assert np.array_equal(topology.chip_node[links.src[row]], node)
    assert np.array_equal(topology.chip_node[links.dst[row]], ports.neighbour)
    local, beside, edge = links.src[row] % m**2, rail // n, side * (m - 1)
    assert np.array_equal(local, np.where(dimension == 0, beside * m + edge, edge * m + beside))


@pytest.mark.parametrize("rings", ["directed", "undirected"])
def test_part_wiring_lists_the_rails_of_each_pair(rings: Any) -> None:
    part = LinePart("all_to_all", 8, 5, 3, first_rail=2)
    wiring, cycles = part_wiring(part, rings), part_rings(part, rings)
    assert wiring.rail.shape == (5, 5, 4)
    for a in range(5):
        for b in range(5):
            for rail, plus in zip(wiring.rail[a, b], wiring.plus[a, b], strict=True):
                if a == b:
                    assert rail == -1
                else:
                    ring = cycles[rail - 2].tolist()
                    tail, head = (a, b) if plus else (b, a)
                    assert ring[(ring.index(tail) + 1) % 5] == head
    with pytest.raises(ValueError, match="allowed: an all_to_all part"):
        part_wiring(LinePart("ring", 1, 5, 1, 0), rings)


def test_part_moves_within_its_sub_line() -> None:
    part = LinePart("all_to_all", 2, 3, 2, 0)
    position = np.arange(12)
    assert part.coordinate(position).tolist() == [0, 0, 1, 1, 2, 2] * 2
    for to in range(3):
        moved = part.move(position, np.full(12, to))
        assert (part.coordinate(moved) == to).all()
        assert {frozenset(line) for line in part.sub_lines(12).tolist()} == {
            frozenset(p for p in range(12) if part.move(np.array(p), np.array(0)) == first)
            for first in (0, 1, 6, 7)
        }


def test_crossing_counts_whole_sub_lines_as_nothing() -> None:
    parts = line_parts(tuple(topology_settings("railx_mixed_full").parts_x))
    assert (
        crossing_ports(parts, 64) == 2 * 7
    )  # only the ring crosses the middle, the groups of 8 end there


def test_checks_notice_damage() -> None:
    topology = build("railx_split")
    assert topology.circuits is not None
    other = build("railx_split", sizes_x=[9], split_x=[8], sizes_y=[9], split_y=[8], m=2, n=4)
    with pytest.raises(ValueError, match="only positions of one sub-line"):
        check_optical_circuits(dataclasses.replace(topology, circuits=other.circuits))
    with pytest.raises(ValueError, match=r"is not one of node \d+'s ports"):
        check_optical_circuits(
            dataclasses.replace(
                topology,
                circuits=_with(topology.circuits, node_b=topology.circuits.node_b[::-1].copy()),
            )
        )
    straight = build("railx_straight_torus")
    with pytest.raises(ValueError, match=r"nodes 24 and 0 are joined, which are no neighbours"):
        check_optical_circuits(
            dataclasses.replace(straight, settings=build("railx_twisted_torus").settings)
        )
    flyer = build("railx_dragonfly")
    assert flyer.circuits is not None
    keep = (flyer.circuits.dimension == 0) | (
        abs(flyer.circuits.port_a // 2 - flyer.circuits.port_b // 2) != 5
    )
    keep &= (flyer.circuits.dimension == 0) | (
        abs(flyer.circuits.port_a // 2 - flyer.circuits.port_b // 2) != 6
    )
    fewer = {
        name: getattr(flyer.circuits, name)[keep] for name in flyer.circuits.__dataclass_fields__
    }
    with pytest.raises(ValueError, match="no column joins rows 0 and 5"):
        check_optical_circuits(dataclasses.replace(flyer, circuits=type(flyer.circuits)(**fewer)))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "railx_twisted_torus",
            {"x_scale": 9},
            r"topology\.x_scale: got 9 .* nearest are 8 x 4 and 10 x 5",
        ),
        (
            "railx_twisted_torus",
            {"ocs_radix": 14},
            r"topology\.ocs_radix: got 14; allowed: at least 16.*or 6 x 3 nodes",
        ),
        (
            "railx_split",
            {"split_x": [2, 1]},
            r"topology\.split_x: got 2 \+ 1 = 3 rails; allowed: m \* n = 4, such as \[2, 2\]",
        ),
        (
            "railx_split",
            {"split_x": [3, 1]},
            r"topology\.split_x: got 3 rails for 3 nodes; allowed: a multiple of 2 .*\[2, 2\]",
        ),
        (
            "railx_split",
            {"split_x": [4]},
            r"topology\.split_x: got 1 parts; allowed: one for each of the 2 sizes",
        ),
        (
            "railx_split",
            {"n": 3, "sizes_x": [8, 8]},
            r"topology\.split_x: .*no split does .*nearest numbers of rails .* 14 and 21",
        ),
        (
            "railx_split",
            {"n": 3, "sizes_x": [4, 4], "split_x": [3, 3], "sizes_y": [3, 3], "split_y": [4, 2]},
            (
                r"topology\.sizes_x\[0\]: .* no directed .*rings=undirected, or another size; the"
                r" nearest are 3 and 5"
            ),
        ),
        (
            "railx_split",
            {"ocs_radix": 16},
            r"topology\.ocs_radix: got 16; allowed: at least 18.*at most 8 nodes",
        ),
        (
            "railx_dragonfly",
            {"columns": 4},
            r"topology\.columns: got 4; .*divides m \* n = 4 rails; the nearest are 3 and 5",
        ),
        ("railx_dragonfly", {"rows": 42}, r"topology\.rows: got 42; allowed: at most 41"),
        (
            "railx_dragonfly",
            {"rows": 41, "ocs_radix": 64},
            r"topology\.ocs_radix: got 64; allowed: at least 82",
        ),
        (
            "railx_mixed",
            {"n": 3},
            r"topology\.parts_x: the parts take 4 rails; allowed: exactly m \* n = 6",
        ),
        (
            "railx_mixed",
            {"x_scale": 7},
            r"topology\.parts_x\[0\]\.size: got 6 .* nearest sizes are 7",
        ),
        (
            "railx_mixed",
            {"parts_x": [{"kind": "all_to_all", "rails": 4, "size": 3, "stride": 1}]},
            (
                r"topology\.parts_x: the parts leave the line of 6 nodes in 2 separate pieces;"
                r" .*size 2 with stride 3"
            ),
        ),
        (
            "railx_mixed",
            {"parts_x": [{"kind": "all_to_all", "rails": 4, "size": 6, "stride": 1}]},
            (
                r"topology\.parts_x\[0\]\.rails: got 4; allowed: a multiple of size - 1 = 5"
                r" .*nearest are 5 and 10"
            ),
        ),
        (
            "railx_mixed",
            {"parts_x": [{"kind": "ring", "rails": 4, "size": 3, "stride": 4}]},
            (
                r"topology\.parts_x\[0\]\.size: .*no size fits this stride, the nearest strides are"
                r" 2 and 3"
            ),
        ),
    ],
)
def test_impossible_settings_name_the_key_and_what_works(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        topology_settings(name, **changes)


def _with(circuits: Circuits, **columns: Any) -> Circuits:
    return dataclasses.replace(circuits, **columns)


def _lane_matrix(topology: Topology) -> np.ndarray:
    links = topology.links
    outside = links.kind != INTERNAL
    lanes = np.zeros((topology.nodes, topology.nodes), dtype=int)
    np.add.at(
        lanes,
        (topology.chip_node[links.src[outside]], topology.chip_node[links.dst[outside]]),
        links.lanes[outside],
    )
    return lanes


def _node_graph(topology: Topology) -> nx.Graph:
    lanes = _lane_matrix(topology)
    graph = nx.Graph()
    graph.add_nodes_from(range(topology.nodes))
    graph.add_weighted_edges_from(
        (int(a), int(b), int(lanes[a, b])) for a, b in np.argwhere(lanes) if a < b
    )
    return graph


def _searched_hops(topology: Topology) -> np.ndarray:
    hops = [
        h
        for _, targets in nx.all_pairs_shortest_path_length(_node_graph(topology))
        for h in targets.values()
    ]
    return np.bincount(hops) * (topology.chips // topology.nodes) ** 2


def _edge_connectivity(graph: nx.Graph) -> int:
    return int(nx.stoer_wagner(graph)[0])


def _assert_cut(topology: Topology) -> None:
    configured, links = topology.settings, topology.links
    half = family_of(configured).halves(configured)
    assert links.lanes[(half[links.src] == 0) & (half[links.dst] == 1)].sum() == family_of(
        configured
    ).bisection_ports(configured)
