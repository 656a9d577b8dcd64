"""Routing on every RailX setting: delivery, deadlocks, hops, and loads of the tables
against closed forms.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from railx.families import build_routing, family_of
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import UniformTraffic
from railx.network.throughput import uniform_lane_loads
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    longest_paths,
    path_lengths,
    table_channel_loads,
    table_lane_loads,
)
from railx.vocabulary.routing.line_phases import even_shares, mesh_distance, mesh_steps
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology
from tests.builders import build, checked, hyperx


def part(kind: str, rails: int, size: int, stride: int) -> dict[str, Any]:
    return {"kind": kind, "rails": rails, "size": size, "stride": stride}


#: Name, changes, virtual channels of min.
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("railx_hyperx", {"m": 1, "n": 2}, 3),
    ("railx_hyperx", {"m": 3, "n": 1, "rings": "undirected"}, 3),
    ("railx_hyperx", {"m": 3, "n": 2}, 3),
    ("railx_torus", {}, 2),
    ("railx_torus", {"m": 1, "x_scale": 2, "y_scale": 3}, 2),
    ("railx_torus", {"m": 3, "n": 1, "x_scale": 2, "y_scale": 4}, 2),
    ("railx_twisted_torus", {}, 2),
    ("railx_twisted_torus", {"m": 1, "n": 2, "x_scale": 4, "y_scale": 2}, 2),
    ("railx_twisted_torus", {"m": 3, "n": 1, "x_scale": 6, "y_scale": 3}, 2),
    ("railx_straight_torus", {}, 2),
    ("railx_split", {"m": 1, "n": 4}, 5),
    (
        "railx_split",
        {"m": 1, "n": 4, "sizes_x": [3], "split_x": [4], "sizes_y": [2, 3], "split_y": [2, 2]},
        4,
    ),
    ("railx_split_3d", {}, 4),
    ("railx_dragonfly", {"rows": 7}, 4),
    ("railx_dragonfly", {"m": 2, "n": 2, "columns": 3, "rows": 6}, 4),
    ("railx_dragonfly", {"m": 1, "n": 2, "columns": 2, "rows": 2}, 4),
    ("railx_dragonfly", {"m": 1, "n": 2, "columns": 3, "rows": 13}, 4),
    ("railx_mixed", {}, 5),
    ("railx_mixed", {"parts_x": [part("ring", 4, 6, 1)], "parts_y": [part("ring", 4, 5, 1)]}, 6),
    ("railx_mixed", {"parts_x": [part("all_to_all", 2, 3, 1), part("ring", 2, 2, 3)]}, 4),
]


@pytest.mark.parametrize("routing", ["balanced", "adaptive"])
def test_packets_for_a_rail_keep_to_a_lane_of_their_own(routing: str) -> None:
    topology = hyperx(2, 2)
    table = build_routing(topology, routing)
    alone = table.pool_lane >= 0
    assert set(table.pool_lane[alone].tolist()) == {0, 1}
    # The walks to the rails of a row and of a column (channels 0 and 1) do, the last
    # walk to the chip (channel 2) uses any lane.
    assert set(table.pool_class[alone].tolist()) == {0, 1}
    inside = topology.links.kind[table.pool_link[table.pool_start[:-1]]] == INTERNAL
    assert (table.pool_class[inside & ~alone] == 2).all()
    by_lane = table_channel_loads(topology, table)
    lanes = topology.links.lanes.astype(np.int64)
    busiest = np.maximum.reduceat(by_lane, np.cumsum(lanes) - lanes)
    # Rails are used alike, so that no lane has to carry much more than its neighbour.
    used = table_lane_loads(topology, table)
    assert (busiest <= 1.3 * used + 1e-12).all()
    assert (build_routing(topology, "min").pool_lane == -1).all()


@pytest.mark.parametrize(("name", "changes", "channels"), CASES)
def test_packets_arrive_and_cannot_block_each_other(
    name: str, changes: dict[str, Any], channels: int
) -> None:
    topology = build(name, **changes)
    for routing in family_of(topology).routings:
        table = build_routing(topology, routing)
        check_delivery(topology, table)
        check_deadlock_free(topology, table)
        assert table.virtual_channels == channels
        # What is sent arrives: each chip receives 1 beside what passes through, and
        # sends as much.
        flow = table_lane_loads(topology, table) * topology.links.lanes
        arriving, leaving = (
            np.bincount(ends, weights=flow, minlength=topology.chips)
            for ends in (topology.links.dst, topology.links.src)
        )
        assert arriving == pytest.approx(leaving)
        external = topology.links.kind != INTERNAL
        assert flow[external].sum() == pytest.approx(
            path_lengths(topology, table).external_links.sum() / (topology.chips - 1)
        )


@settings(deadline=None, max_examples=10)
@given(
    m=st.integers(1, 3),
    n=st.integers(1, 3),
    routing=st.sampled_from(["min", "balanced", "adaptive"]),
)
def test_every_hyperx_is_minimal_and_free_of_deadlocks(m: int, n: int, routing: str) -> None:
    if not 2 <= m * n <= 4:
        return
    topology = hyperx(m, n)
    table = build_routing(topology, routing)
    check_deadlock_free(topology, table)
    assert path_lengths(topology, table).external_links == pytest.approx(
        coordinates_apart(topology, [m * n + 1] * 2)
    )


@settings(deadline=None, max_examples=12)
@given(
    columns=st.sampled_from([2, 3, 5]),
    rows=st.integers(2, 9),
    routing=st.sampled_from(["min", "balanced"]),
)
def test_dragonflies_take_the_fewest_rails_or_any_column(
    columns: int, rows: int, routing: str
) -> None:
    topology = build("railx_dragonfly", m=2, n=2, columns=columns, rows=rows)
    table = build_routing(topology, routing)
    check_deadlock_free(topology, table)
    node, links = topology.chip_node, topology.links
    joined = np.zeros((topology.nodes, topology.nodes))
    np.add.at(joined, (node[links.src], node[links.dst]), 1)
    column, other = np.arange(columns), 1 - np.eye(columns)
    # Links from row to row in each column, int[row, 1, row, 1, column].
    up = joined.reshape(rows, columns, rows, columns)[:, column, :, column].transpose(1, 2, 0)
    up = up[:, None, :, None]
    on_rows = (other[:, None] + other)[:, None]  # [1, from, 1, to, column] but for the first
    ranked = on_rows if routing == "min" else np.minimum(on_rows, 1)
    taken = np.where(up > 0, ranked, 9)
    weight = np.where(taken == taken.min(axis=-1, keepdims=True), up, 0)
    rails = 1 + (weight * on_rows).sum(axis=-1) / np.maximum(weight.sum(axis=-1), 1)
    for row in range(rows):
        rails[row, :, row] = other
    rails = rails.reshape(topology.nodes, topology.nodes)
    assert rails.max() <= 3
    measured = path_lengths(topology, table).external_links
    assert measured == pytest.approx(rails[node[:, None], node])


@settings(deadline=None, max_examples=12)
@given(
    m=st.integers(1, 3), n=st.integers(1, 2), x_scale=st.integers(2, 5), y_scale=st.integers(2, 5)
)
def test_every_torus_takes_the_shortest_ways(m: int, n: int, x_scale: int, y_scale: int) -> None:
    topology = build("railx_torus", m=m, n=n, x_scale=x_scale, y_scale=y_scale)
    table = build_routing(topology, "min")
    check_deadlock_free(topology, table)
    assert path_lengths(topology, table).links == pytest.approx(links_apart(topology))
    assert table_lane_loads(topology, table) == pytest.approx(
        uniform_lane_loads(topology, "min"), abs=1e-12
    )


@pytest.mark.parametrize("m", [1, 2, 3])
def test_no_path_on_a_torus_takes_longer_than_its_bound(m: int) -> None:
    topology = build("railx_torus", m=m, x_scale=3, y_scale=4)
    bound = family_of(topology).longest_path_ns
    assert bound is not None
    flights = longest_paths(topology, build_routing(topology, "min"), topology.links.latency_ns)
    assert bound(topology.settings) >= flights.max()


@pytest.mark.parametrize(
    ("m", "y_scale", "wrap"),
    [(1, 2, "twisted"), (1, 4, "twisted"), (2, 3, "twisted"), (3, 2, "straight")],
)
def test_twisted_torus_takes_the_shortest_ways(m: int, y_scale: int, wrap: str) -> None:
    topology = build(
        "railx_twisted_torus", m=m, n=1, x_scale=2 * y_scale, y_scale=y_scale, wrap=wrap
    )
    table = build_routing(topology, "balanced")
    assert path_lengths(topology, table).links == pytest.approx(links_apart(topology))
    # Ties in equal shares load all links alike, as far as the two dimensions are.
    loads = table_lane_loads(topology, table)
    assert loads == pytest.approx(uniform_lane_loads(topology, "balanced"), abs=1e-12)
    assert len(np.unique(np.round(loads, 9))) == (1 if wrap == "twisted" else 2)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("railx_hyperx", {"m": 2, "n": 2}),
        ("railx_hyperx", {"m": 2, "n": 2, "rings": "undirected"}),
        ("railx_hyperx", {"m": 4, "n": 1}),
        ("railx_hyperx", {"m": 1, "n": 5, "rings": "undirected"}),
        ("railx_hyperx", {"m": 3, "n": 2}),
        ("railx_split", {}),
        ("railx_split_3d", {}),
        (
            "railx_split",
            {"m": 2, "n": 3, "sizes_x": [3, 3], "split_x": [2, 4], "sizes_y": [7], "split_y": [6]},
        ),
    ],
)
@pytest.mark.parametrize("routing", ["min", "balanced"])
def test_loads_of_the_table_equal_the_closed_form(
    name: str, changes: dict[str, Any], routing: Any
) -> None:
    topology = build(name, **changes)
    assert table_lane_loads(topology, build_routing(topology, routing)) == pytest.approx(
        uniform_lane_loads(topology, routing), abs=1e-12
    )


@pytest.mark.parametrize(("m", "n", "bound"), [(2, 2, 1.456), (4, 2, 0.999)])
def test_minimal_tables_reach_the_bound_of_the_simulator(m: int, n: int, bound: float) -> None:
    topology = hyperx(m, n)
    loads = table_lane_loads(topology, build_routing(topology, "min"))
    assert 1 / loads[topology.links.kind != INTERNAL].max() == pytest.approx(bound, abs=5.1e-4)


@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 2), (3, 2), (3, 1)])
def test_balanced_links_of_a_pair_carry_half_each(m: int, n: int) -> None:
    topology = hyperx(m, n)
    loads = table_lane_loads(topology, build_routing(topology, "balanced"))
    external = topology.links.kind != INTERNAL
    pair = (
        topology.chip_node[topology.links.src].astype(np.int64) * topology.nodes
        + topology.chip_node[topology.links.dst]
    )
    _, number = np.unique(pair[external], return_inverse=True)
    assert (np.bincount(number) == 2).all()
    mean = np.bincount(number, weights=loads[external]) / 2
    assert loads[external] == pytest.approx(mean[number], abs=1e-12)
    # All pairs are alike under uniform traffic: the ideal.
    hops = coordinates_apart(topology, [m * n + 1] * 2).sum() / (
        topology.chips * (topology.chips - 1)
    )
    assert 1 / loads[external].max() == pytest.approx(4 * n / (m * hops))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("railx_dragonfly", {"columns": 5, "rows": 11}),
        ("railx_dragonfly", {"m": 2, "n": 1, "columns": 3, "rows": 13, "rings": "undirected"}),
        ("railx_split", {}),
    ],
)
def test_balanced_rails_of_a_dimension_are_alike(name: str, changes: dict[str, Any]) -> None:
    topology = build(name, **changes)
    loads = uniform_lane_loads(topology, "balanced")
    for kind in ("rail_x", "rail_y"):
        own = loads[topology.links.kind == LINK_KINDS.index(kind)]
        assert own == pytest.approx(np.full(len(own), own.mean()), rel=1e-9)
        if name == "railx_dragonfly" and kind == "rail_x":  # more rails of rows on purpose
            continue
        least = uniform_lane_loads(topology, "min")[topology.links.kind == LINK_KINDS.index(kind)]
        assert own.mean() == pytest.approx(least.mean())
        assert own.max() <= least.max() + 1e-12


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), links=st.integers(2, 5))
def test_even_shares_fill_every_link_and_two_links_with_the_shortest_walks(
    seed: int, links: int
) -> None:
    random = np.random.default_rng(seed)
    flow = random.uniform(0.1, 2, 9)
    steps = mesh_distance(3)[:, random.choice(9, links, replace=False)]
    shares = even_shares(flow[None, None], steps[None, :, None])[0, 0, :, 0]
    assert shares.sum(axis=1) == pytest.approx(np.ones(9))
    assert (shares >= -1e-12).all()
    assert flow @ shares == pytest.approx(np.full(links, flow.sum() / links))
    # Independently: the cheapest even transport as a linear program.
    fill = np.kron(flow, np.eye(links))
    whole = np.kron(np.eye(9), np.ones(links))
    cost = (flow[:, None] * steps).ravel()
    best = linprog(
        cost,
        A_eq=np.vstack([fill, whole]),
        b_eq=np.concatenate([np.full(links, flow.sum() / links), np.ones(9)]),
    )
    walked = float((flow[:, None] * steps * shares).sum())
    assert walked >= best.fun - 1e-7
    if links == 2:
        assert walked == pytest.approx(best.fun, abs=1e-7)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), lines=st.integers(1, 3), length=st.integers(1, 4))
def test_chips_take_a_group_of_links_by_detour_until_its_quota_is_full(
    seed: int, lines: int, length: int
) -> None:
    random = np.random.default_rng(seed)
    weight = random.uniform(0, 2, (lines, length, 9, length))
    distance = random.integers(0, 4, (length, 9, length, 2))
    shares = even_shares(weight, distance)
    detour = distance[..., 0] - distance[..., 1]
    for line, a, b in np.ndindex(lines, length, length):
        left, expected = 0.5 * weight[line, a, :, b].sum(), np.zeros(9)
        for steps in np.unique(detour[a, :, b]):
            equal = detour[a, :, b] == steps
            flow = weight[line, a, equal, b].sum()
            expected[equal] = np.clip(left / flow, 0, 1)
            left -= flow
        assert shares[line, a, :, b, 0] == pytest.approx(expected, abs=1e-12)
    assert shares.flags.c_contiguous


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_walks_are_shortest(order: Any) -> None:
    m = 4
    step, distance = mesh_steps(m, order), mesh_distance(m)
    c, d = np.indices((m * m, m * m))
    assert (distance[step, d] == np.maximum(distance - 1, 0)).all()
    moves_x = step // m == c // m
    first = (c % m != d % m) if order == "xy" else (c // m == d // m)
    assert (moves_x == (first | (c == d)))[c != d].all()


def test_adaptive_packets_choose_among_both_links_of_both_dimensions() -> None:
    topology = hyperx(2, 2)
    table = build_routing(topology, "adaptive")
    apart = coordinates_apart(topology, [5, 5])
    choices = np.diff(table.set_start)
    own = table.entry[0]
    assert (choices[own[apart == 2]] == 4).all()
    assert (choices[own[apart == 1]] == 2).all()
    several = np.repeat(choices > 1, choices)
    kinds = topology.links.kind[table.choice_probe[several]]
    assert (kinds != INTERNAL).all()
    # Probed rails start in the node where the packet stands; the best way has no delay.
    for chip, to in ((0, 99), (37, 4), (12, 13)):
        first, last = table.set_start[own[chip, to]], table.set_start[own[chip, to] + 1]
        if last - first > 1:
            assert (
                topology.chip_node[topology.links.src[table.choice_probe[first:last]]]
                == topology.chip_node[chip]
            ).all()
            assert table.choice_delay_ns[first:last].min() == 0
    loads = table_lane_loads(topology, table)
    assert loads[topology.links.kind != INTERNAL].max() == pytest.approx(1 / 2.475)


def test_tables_of_a_block_of_destinations_are_part_of_the_whole() -> None:
    for name in (
        "railx_hyperx",
        "railx_dragonfly",
        "railx_mixed",
        "railx_twisted_torus",
        "railx_split_3d",
    ):
        topology = build(name, **({"rows": 5} if name == "railx_dragonfly" else {}))
        for routing in family_of(topology).routings:
            whole = table_lane_loads(topology, build_routing(topology, routing))
            blocks = np.split(np.arange(topology.chips, dtype=np.int32), [30])
            parts = [
                table_lane_loads(topology, build_routing(topology, routing, block))
                for block in blocks
            ]
            assert np.sum(parts, axis=0) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("routing", ["balanced", "adaptive"])
def test_packets_reach_nine_tenths_of_the_ideal(routing: str) -> None:
    topology = build("railx_hyperx")
    changes = {"routing": routing, "warmup_cycles": 2000, "measured_cycles": 2000}
    network = checked("network", "packet", **changes)
    result = simulate_packets(
        topology,
        build_routing(topology, routing),
        UniformTraffic("uniform", 2.475),
        network,
        seed=1,
    )
    assert result.accepted_flits_per_chip_cycle >= 0.9 * 2.475
    assert result.accepted_flits_per_chip_cycle <= 2.475 * 1.01


def coordinates_apart(topology: Topology, sizes: list[int]) -> np.ndarray:
    """In how many coordinates the nodes of two chips differ."""
    node = topology.chip_node.astype(np.int64)
    apart = np.zeros((topology.chips, topology.chips), dtype=np.int64)
    for size in sizes:
        apart += node[:, None] % size != node % size
        node = node // size
    return apart


def links_apart(topology: Topology) -> np.ndarray:
    ones = csr_array(
        (np.ones(len(topology.links)), (topology.links.src, topology.links.dst)),
        shape=(topology.chips,) * 2,
    )
    ones.data[:] = 1
    hops: np.ndarray = shortest_path(ones, unweighted=True)
    return hops
