"""Collectives on sub-grids and with messages on the links: rings link by link, both
fidelities, hierarchy, all-to-all.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import (
    build_routing,
    family_of,
)
from railx.network import CollectiveSettings
from railx.network.collectives import simulate_collectives
from railx.settings import SettingsError
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.line_rings import ChannelIndex, LineRings
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.topology import INTERNAL, Topology
from tests.builders import build, checked, choice
from workflow.config import choices

RINGS = ["ring_all_reduce", "reduce_scatter", "all_gather", "hierarchical_all_reduce"]
PORT = 50.0


def grid_rings_of(topology: Topology) -> GridRings:
    grid_rings = family_of(topology).grid_rings
    assert grid_rings is not None
    return grid_rings(topology.settings, topology)


def chip_lines(topology: Topology) -> tuple[LineRings, ...] | None:
    known = family_of(topology).chip_rings
    assert known is not None
    return known(topology.settings)


def collective(**changes: Any) -> CollectiveSettings:
    settings: CollectiveSettings = checked("collective", "all", **changes)
    return settings


def times(
    topology: Topology, payload: int = 10**15, **changes: Any
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Rows by collective, scope and fidelity."""
    rows = simulate_collectives(
        topology,
        collective(**({"collectives": RINGS, "payload_bytes": [payload]} | changes)),
        "under test",
    )
    found = {(row["collective"], row["scope"], row["fidelity"]): row for row in rows}
    assert len(found) == len(rows)
    return found


# Rings, link by link
# --------------------------------------------------------------------------------------


def check_rings(
    topology: Topology, rings: Any, participants: set[int], of: Any, by_rail: bool = True
) -> None:
    """Every ring is a closed walk over real links; its messages lead from each
    participant to another, each once.

    ``of`` maps a chip to the participant that it belongs to in the first line.
    ``by_rail``: links name their rails, none of which is used twice in the same
    direction.
    """
    entry_src, entry_dst = rings.ends(0)
    rails = topology.links.rail if by_rail else np.full(len(topology.links), -1)
    links = {
        (int(a), int(b), int(r))
        for a, b, r in zip(topology.links.src, topology.links.dst, rails, strict=True)
    }
    used: set[tuple[int, int, int]] = set()
    for ring in range(rings.rings):
        senders, ends = [], []
        for place in range(rings.participants):
            own = rings.message == ring * rings.participants + place
            path = list(
                zip(
                    entry_src[own].tolist(),
                    entry_dst[own].tolist(),
                    rings.rail[own].tolist(),
                    strict=True,
                )
            )
            assert path
            for (_, arrived, _), (left, _, _) in itertools.pairwise(path):
                assert arrived == left
            for link in path:
                assert link in links
                if link[2] >= 0:
                    assert link not in used
                    used.add(link)
            senders.append(path[0][0])
            ends.append(path[-1][1])
        # A message starts where the one before has ended.
        assert senders[1:] + senders[:1] == ends
        assert sorted(of(chip) for chip in senders) == sorted(participants)


@settings(deadline=None, max_examples=25)
@given(
    data=st.data(),
    family=st.sampled_from(["railx_hyperx", "railx_torus"]),
    dimension=st.integers(0, 1),
)
def test_rings_over_any_joined_nodes_of_a_line(
    data: st.DataObject, family: str, dimension: int
) -> None:
    m, n = data.draw(st.sampled_from([(1, 4), (2, 2), (3, 2), (2, 4)]))
    length = m * n + 1
    size = {} if family == "railx_hyperx" else {"x_scale": length, "y_scale": length}
    topology = build(family, m=m, n=n, **size)
    if family == "railx_hyperx":
        positions = data.draw(
            st.lists(st.integers(0, length - 1), min_size=2, max_size=length, unique=True).map(
                sorted
            )
        )
        expected = 2 * (len(positions) - 1)
    else:
        start, count = data.draw(st.integers(0, length - 1)), data.draw(st.integers(2, length))
        positions = [(start + k) % length for k in range(count)]
        expected = 2 * m * n if count == length else m * n
    line = data.draw(st.integers(0, length - 1))
    nodes = [line * length + p if dimension == 0 else p * length + line for p in positions]
    rings = grid_rings_of(topology).node_rings(positions, dimension, [line])
    assert (rings.participants, rings.rings) == (len(positions), expected)
    check_rings(topology, rings, set(nodes), lambda chip: chip // m**2)


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize(
    ("family", "count", "rings"),
    [("railx_hyperx", 7, 4), ("railx_torus", 7, 4), ("railx_torus", 4, 2)],
)
def test_rings_through_chips(family: str, count: int, rings: int, dimension: int) -> None:
    m, n = 3, 2
    topology = build(
        family, m=m, n=n, **({} if family == "railx_hyperx" else {"x_scale": 7, "y_scale": 7})
    )
    found = grid_rings_of(topology).chip_rings(list(range(count)), dimension, [2])
    assert found is not None
    nodes = [2 * 7 + p if dimension == 0 else p * 7 + 2 for p in range(count)]
    chips = {
        node * m**2 + (place if dimension == 0 else place * m)
        for node in nodes
        for place in range(m)
    }
    assert (found.participants, found.rings) == (m * count, rings)
    check_rings(topology, found, chips, int)


def test_a_ring_of_two_uses_both_links_of_the_pair() -> None:
    torus = build("torus_2d", x_scale=2, y_scale=3, n=1)
    row = times(torus, fidelities=["analytic", "flow"])
    assert row["reduce_scatter", "row", "flow"]["time_ms"] * 1e6 == pytest.approx(
        10**15 / 2 / (2 * PORT)
    )


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize(
    ("m", "n", "positions"),
    [(1, 2, [0, 1, 2]), (2, 2, [0, 1, 2, 3]), (3, 1, [0, 2]), (4, 2, [3, 0, 1])],
)
def test_rings_over_boards_and_their_switches(
    m: int, n: int, positions: list[int], dimension: int
) -> None:
    topology = build("hammingmesh", m=m, n=n, x_scale=4, y_scale=4)
    boards = [4 + p if dimension == 0 else p * 4 + 1 for p in positions]
    rings = grid_rings_of(topology).node_rings(positions, dimension, [1])
    assert (rings.participants, rings.rings) == (len(positions), 2 * m * n)
    check_rings(topology, rings, set(boards), lambda chip: chip // m**2, by_rail=False)
    flat = grid_rings_of(topology).chip_rings(positions, dimension, [1])
    assert flat is not None
    chips = {
        board * m**2 + (place if dimension == 0 else place * m)
        for board in boards
        for place in range(m)
    }
    assert (flat.participants, flat.rings) == (m * len(positions), 2 * n)
    check_rings(topology, flat, chips, int, by_rail=False)


@pytest.mark.parametrize(
    ("name", "sizes", "shape"),
    [
        ("torus_3d", {"x_scale": 2, "y_scale": 3, "z_scale": 4, "n": 2}, (2, 3, 4)),
        ("torus_3d", {"x_scale": 5, "y_scale": 2, "z_scale": 2, "n": 1}, (5, 2, 2)),
        ("tpu_v4", {"cube_side": 2, "x_cubes": 1, "y_cubes": 2, "z_cubes": 3, "n": 2}, (2, 4, 6)),
        ("tpu_v4", {"cube_side": 1, "x_cubes": 2, "y_cubes": 3, "z_cubes": 2, "n": 2}, (2, 3, 2)),
    ],
)
def test_rings_of_three_dimensions_pass_every_chip_once(
    name: str, sizes: dict[str, int], shape: tuple[int, int, int]
) -> None:
    topology = build(name, **sizes)
    found = chip_lines(topology)
    assert found is not None
    for rings, length in zip(found, shape, strict=True):
        assert (rings.participants, rings.rings) == (length, 2 * sizes["n"])
        assert rings.vertices.shape == (topology.chips // length, length)
        assert np.array_equal(np.sort(rings.vertices, axis=None), np.arange(topology.chips))
        check_rings(topology, rings, set(rings.vertices[0].tolist()), int, by_rail=False)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("hammingmesh", {"m": 1, "n": 2, "x_scale": 3, "y_scale": 2, "switch_radix": 6}),
        ("hammingmesh", {"m": 2, "n": 2, "x_scale": 2, "y_scale": 3, "switch_radix": 6}),
        ("hammingmesh", {"m": 3, "n": 1, "x_scale": 2, "y_scale": 2}),
        ("torus_2d", {"x_scale": 2, "y_scale": 3}),
        ("torus_3d", {"x_scale": 2, "y_scale": 3, "z_scale": 4, "n": 2}),
        ("tpu_v4", {"cube_side": 2, "x_cubes": 1, "y_cubes": 2, "z_cubes": 1, "n": 2}),
        ("tpu_v4", {"cube_side": 1, "x_cubes": 2, "y_cubes": 2, "z_cubes": 3, "n": 3}),
        ("hyperx", {"shape": [2, 3, 4]}),
        ("hyperx", {"shape": [6, 5]}),
        ("railx_hyperx", {}),
        ("railx_torus", {}),
    ],
)
def test_a_step_uses_every_port_once(name: str, sizes: dict[str, Any]) -> None:
    """All rings of all lines of all dimensions together: each channel outside the nodes
    is filled, and none twice.
    """
    topology = build(name, **sizes)
    index, family = ChannelIndex(topology), family_of(topology)
    if family.chip_rings is not None:
        found = chip_lines(topology)
    else:
        grid = grid_rings_of(topology)
        found = tuple(
            grid.node_rings(range(grid.length(d)), d, range(grid.length(1 - d))) for d in (0, 1)
        )
    rows = np.concatenate(
        [index.rows(rings, line) for rings in found for line in range(len(rings.vertices))]
    )
    carried = np.bincount(rows, minlength=len(topology.links))
    links = topology.links
    ports = links.kind != INTERNAL if name != "tpu_v4" else np.ones(len(links), dtype=bool)
    each = 2 if name == "hyperx" else 1  # rings of half a link each
    assert np.array_equal(carried[ports], each * links.lanes[ports])
    assert {rings.ports for rings in found} == {1 / each}
    if (
        name == "hammingmesh"
    ):  # a board passes on what it takes in along its own chip rows and lanes
        assert np.array_equal(carried, links.lanes)


# Fidelities
# --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=12)
@given(
    shape=st.sampled_from([(1, 2), (1, 4), (2, 2), (3, 2), (2, 4)]),
    internal=st.integers(0, 50),
    external=st.integers(1, 300),
    payload=st.integers(1, 10**9),
)
def test_messages_on_the_links_take_as_long_as_the_closed_form(
    shape: tuple[int, int], internal: int, external: int, payload: int
) -> None:
    """All hops of rings over nodes are alike, and rings share no port, so the steps add
    up to the closed form.
    """
    m, n = shape
    latencies = {
        "internal_latency_ns": float(min(internal, external)),
        "external_latency_ns": float(external),
    }
    found = times(build("railx_hyperx", m=m, n=n, **latencies), payload)
    for kind, scope in [
        (kind, scope) for kind in RINGS[:3] for scope in ("row", "column", "nodes")
    ]:
        flow, analytic = (found[kind, scope, fidelity] for fidelity in ("flow", "analytic"))
        assert flow["time_ms"] == pytest.approx(analytic["time_ms"])
    for kind, scope in (("ring_all_reduce", "chips"), ("hierarchical_all_reduce", "chips")):
        # Steps that wait for the slowest hop cannot be faster than a chain that does
        # not.
        assert found[kind, scope, "flow"]["time_ms"] >= found[kind, scope, "analytic"][
            "time_ms"
        ] * (1 - 1e-9)
    for scope in ("row", "nodes", "chips"):
        halves = [
            found[kind, scope, "flow"]["time_ms"] for kind in ("reduce_scatter", "all_gather")
        ]
        assert sum(halves) == pytest.approx(found["ring_all_reduce", scope, "flow"]["time_ms"])


def test_narrow_links_inside_the_nodes_are_seen_by_the_messages_alone() -> None:
    """Through a chip row pass n rings of one port each and direction, over n lanes of
    half a port.
    """
    wide, narrow = (
        times(build("railx_hyperx", m=2, n=2, internal_width=width)) for width in (1.0, 0.5)
    )
    key = ("ring_all_reduce", "row", "flow")
    assert wide[key]["time_ms"] == pytest.approx(
        wide["ring_all_reduce", "row", "analytic"]["time_ms"], rel=1e-6
    )
    assert narrow[key]["time_ms"] == pytest.approx(2 * wide[key]["time_ms"], rel=1e-6)


@pytest.mark.parametrize("setting", ["all_to_all", "torus"])
def test_full_scale_is_the_same_in_both_settings(setting: str) -> None:
    """m = 7, n = 9: 2 D (P - 1) / P / (4 r b) over 4,096 nodes, whether the rails make
    an all-to-all or plain rings.
    """
    size: dict[str, Any] = {"m": 7, "n": 9, "ocs_radix": 128}
    topology = (
        build("railx_hyperx", **size)
        if setting == "all_to_all"
        else build("railx_torus", **size, x_scale=64, y_scale=64)
    )
    payload = 10**15
    found = times(topology, payload, collectives=["ring_all_reduce", "hierarchical_all_reduce"])
    for fidelity in ("analytic", "flow"):
        nodes = found["ring_all_reduce", "nodes", fidelity]
        assert (nodes["participants"], nodes["rings"]) == (4096, 252)
        assert nodes["time_ms"] * 1e6 == pytest.approx(
            2 * payload * 4095 / 4096 / (4 * 63 * PORT), rel=1e-6
        )
        flat = found["ring_all_reduce", "chips", fidelity]
        assert flat["time_ms"] * 1e6 == pytest.approx(
            2 * payload * 200_703 / 200_704 / (36 * PORT), rel=1e-3
        )
        # Meshes of 7 x 7 chips with 9 lanes of 4 ports in both dimensions, then the
        # nodes.
        mesh = payload * 48 / 49 / (2 * 9 * 4 * PORT)
        hierarchy = 2 * mesh + 2 * payload * 4095 / 4096 / (4 * 63 * PORT)
        assert found["hierarchical_all_reduce", "chips", fidelity][
            "time_ms"
        ] * 1e6 == pytest.approx(hierarchy, rel=1e-6)


@settings(deadline=None, max_examples=12)
@given(
    m=st.integers(1, 3), n=st.integers(1, 2), side=st.integers(2, 4), payload=st.integers(1, 10**9)
)
def test_hammingmesh_takes_as_long_as_the_torus_of_railx(
    m: int, n: int, side: int, payload: int
) -> None:
    """Over a switch a ring is a ring with twice the latency between boards: the same
    rings, on the same ports.
    """
    mesh = times(
        build("hammingmesh", m=m, n=n, x_scale=side, y_scale=side, external_latency_ns=35.0),
        payload,
    )
    torus = times(
        build(
            "railx_torus",
            m=m,
            n=n,
            x_scale=side,
            y_scale=side,
            external_latency_ns=70.0,
            internal_width=1.0,
        ),
        payload,
    )
    assert set(mesh) == set(torus)
    for key, row in mesh.items():
        if key[1] != "chips":  # hops over nodes are alike, so that nothing waits for a slower one
            assert row["time_ms"] == pytest.approx(mesh[(*key[:2], "analytic")]["time_ms"])
        assert row["time_ms"] == pytest.approx(torus[key]["time_ms"])
        assert (row["rings"], row["participants"], row["algorithm"]) == tuple(
            torus[key][column] for column in ("rings", "participants", "algorithm")
        )


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("hammingmesh", {"m": 1, "n": 1, "x_scale": 3, "y_scale": 3}),
        ("hammingmesh", {}),
        ("hammingmesh", {"m": 4, "n": 2, "x_scale": 2, "y_scale": 2, "internal_width": 4.0}),
        ("torus_2d", {}),
        ("torus_3d", {}),
        ("torus_3d", {"x_scale": 2, "y_scale": 2, "z_scale": 2, "n": 3}),
        ("tpu_v4", {"x_cubes": 1, "y_cubes": 1, "z_cubes": 1}),
        ("tpu_v4", {"cube_side": 1, "x_cubes": 3, "y_cubes": 3, "z_cubes": 3, "n": 2}),
        ("railx_torus", {}),
        ("fat_tree", {}),
        ("fat_tree_1250", {}),
        ("dragonfly", {}),
        ("hyperx", {"shape": [3, 3], "chips_per_switch": 2, "planes": 8}),
        ("hyperx", {}),
        ("hyperx", {"shape": [4, 4, 4], "lanes": 2}),
        ("hyperx", {"shape": [2, 2, 2, 2], "lanes": 3}),
        ("hyperx", {"shape": [6]}),
        ("rail_only", {}),
        ("opus_rails", {}),
    ],
)
def test_large_payloads_use_all_ports_of_every_network(name: str, sizes: dict[str, Any]) -> None:
    """2 D (P - 1) / P / (ports * b), chips of servers with scale-up links twice as
    fast: each boundary has two chips' ports.
    """
    topology = build(name, **sizes)
    found = times(topology, 10**15, collectives=["ring_all_reduce"])
    ports, chips = family_of(topology.settings).ports_per_chip(topology.settings), topology.chips
    ideal = 2 * 10**15 * (chips - 1) / chips / (ports * PORT) / (2 if name == "rail_only" else 1)
    for fidelity in ("analytic", "flow"):
        row = found["ring_all_reduce", "chips", fidelity]
        assert row["time_ms"] * 1e6 == pytest.approx(ideal, rel=1e-5)
        if row["algorithm"].startswith("chip_order"):
            assert row["algorithm"] == f"chip_order_ring_{ports}_of_{ports}_ports"


def test_a_ring_in_chip_order_says_how_many_ports_it_fills() -> None:
    mesh = times(build("mesh_2d", x_scale=4, y_scale=4, n=2), collectives=["ring_all_reduce"])
    assert mesh["ring_all_reduce", "chips", "flow"]["algorithm"] == "chip_order_ring_2_of_8_ports"


@settings(deadline=None, max_examples=8)
@given(
    shape=st.tuples(*[st.integers(2, 4)] * 3),
    n=st.integers(1, 2),
    payload=st.integers(1, 10**9),
    latency=st.integers(0, 90),
)
def test_three_dimensions_work_at_once(
    shape: tuple[int, int, int], n: int, payload: int, latency: int
) -> None:
    """Third k of the payload goes along dimensions k, k + 1, k + 2 in turn, and every
    phase waits for its slowest dimension.
    """
    sizes = dict(zip(("x_scale", "y_scale", "z_scale"), shape, strict=True))
    found = times(build("torus_3d", n=n, latency_ns=float(latency), **sizes), payload)
    expected = 0.0
    for phase in range(3):
        slowest = 0.0
        for dimension, length in enumerate(shape):
            done = [shape[(dimension - back) % 3] for back in range(1, phase + 1)]
            share = payload / 3 / np.prod(done)
            slowest = max(slowest, (length - 1) * (latency + share / length / (2 * n * PORT)))
        expected += slowest
    for fidelity in ("analytic", "flow"):
        for kind, halves in (("ring_all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)):
            row = found[kind, "chips", fidelity]
            assert row["time_ms"] * 1e6 == pytest.approx(halves * expected)
            assert (row["algorithm"], row["rings"]) == ("ring_3d", 6 * n)
        for scope, length in zip(("row", "column", "pillar"), shape, strict=True):
            line = found["reduce_scatter", scope, fidelity]["time_ms"] * 1e6
            assert line == pytest.approx(
                (length - 1) * (latency + payload / length / (2 * n * PORT))
            )


def test_optical_links_of_a_tpu_v4_are_the_slowest_hops() -> None:
    """Four cubes of 2 x 2 x 2 chips in a ring of 8: 7 of 8 hops, 3 of the 4 shorter
    ones inside a cube.
    """
    topology = build(
        "tpu_v4",
        cube_side=2,
        x_cubes=4,
        y_cubes=1,
        z_cubes=1,
        internal_latency_ns=10.0,
        external_latency_ns=100.0,
    )
    found = times(topology, 1)
    assert found["reduce_scatter", "row", "analytic"]["time_ms"] * 1e6 == pytest.approx(
        4 * 100 + 3 * 10, rel=1e-3
    )
    assert found["reduce_scatter", "row", "flow"]["time_ms"] * 1e6 == pytest.approx(
        7 * 100, rel=1e-3
    )


def test_hierarchy_of_single_chips_is_the_ring_over_nodes() -> None:
    found = times(build("railx_hyperx", m=1, n=4))
    for fidelity in ("analytic", "flow"):
        assert found["hierarchical_all_reduce", "chips", fidelity]["time_ms"] == pytest.approx(
            found["ring_all_reduce", "nodes", fidelity]["time_ms"]
        )


def test_other_families_send_a_ring_over_their_own_routing() -> None:
    """128 chips of a fat tree: one ring in each of 8 planes, whichever way it is
    counted.
    """
    found = times(build("fat_tree"), collectives=["ring_all_reduce"])
    for fidelity in ("analytic", "flow"):
        row = found["ring_all_reduce", "chips", fidelity]
        assert row["algorithm_gb_s"] == pytest.approx(8 * PORT / 2 * 128 / 127, rel=1e-6)
    plain = times(
        build("hyperx", shape=[3, 3], chips_per_switch=2, planes=2), collectives=["ring_all_reduce"]
    )
    assert plain["ring_all_reduce", "chips", "flow"]["time_ms"] == pytest.approx(
        plain["ring_all_reduce", "chips", "analytic"]["time_ms"], rel=1e-6
    )


def test_most_messages_limits_the_flow_model() -> None:
    topology = build("railx_hyperx")
    all_lines, one_line, none = (
        times(topology, 10**6, most_messages=most) for most in (20_000, 40, 39)
    )
    key = ("ring_all_reduce", "row", "flow")
    assert all_lines[key]["time_ms"] == pytest.approx(one_line[key]["time_ms"])
    assert key not in none
    assert ("ring_all_reduce", "row", "analytic") in none


# Sub-grids
# --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(columns=st.sets(st.integers(0, 6), min_size=1), rows=st.sets(st.integers(0, 6), min_size=1))
def test_any_sub_grid_of_an_all_to_all_setting(columns: set[int], rows: set[int]) -> None:
    """c of 7 columns keep 2 (c - 1) rings; the job's own links are all it uses."""
    topology = build("railx_hyperx", m=3, n=2)
    payload = 10**14
    found = times(topology, payload, rows=list(rows), columns=list(columns))
    c, r = len(columns), len(rows)
    for scope, length in (("row", c), ("column", r)):
        assert (("ring_all_reduce", scope, "flow") in found) == (length > 1)
        for fidelity in ("analytic", "flow"):
            if length > 1:
                row = found["ring_all_reduce", scope, fidelity]
                assert (row["participants"], row["rings"]) == (length, 2 * (length - 1))
                assert row["time_ms"] * 1e6 == pytest.approx(
                    2 * payload / length / (2 * PORT), rel=1e-5
                )
    hierarchy = found["hierarchical_all_reduce", "chips", "flow"]
    assert hierarchy["participants"] == 9 * c * r
    if c * r > 1:
        assert found["ring_all_reduce", "nodes", "flow"]["participants"] == c * r


@settings(deadline=None, max_examples=8)
@given(columns=st.sets(st.integers(0, 4), min_size=1), rows=st.sets(st.integers(0, 4), min_size=1))
def test_any_boards_of_a_hammingmesh_keep_all_their_rings(
    columns: set[int], rows: set[int]
) -> None:
    """A switch joins any of its ports, so that a job on some columns and rows has the
    rings of a network of its size.
    """
    payload = 10**9
    part = times(build("hammingmesh"), payload, rows=list(rows), columns=list(columns))
    c, r = len(columns), len(rows)
    for scope, length in (("row", c), ("column", r)):
        assert (("ring_all_reduce", scope, "flow") in part) == (length > 1)
    assert part["hierarchical_all_reduce", "chips", "flow"]["participants"] == 4 * c * r
    if min(c, r) > 1:
        own = times(build("hammingmesh", x_scale=c, y_scale=r), payload)
        assert set(own) == set(part)
        for key, row in own.items():
            assert part[key]["time_ms"] == pytest.approx(row["time_ms"])


def test_a_chain_of_a_torus_has_half_the_rings() -> None:
    torus = build("railx_torus")
    part = times(torus, rows=[0, 1], columns=[4, 0, 1])
    assert part["ring_all_reduce", "row", "analytic"]["rings"] == 4
    assert part["ring_all_reduce", "chips", "analytic"]["participants"] == 24
    for fidelity in ("analytic", "flow"):
        assert part["ring_all_reduce", "row", fidelity]["time_ms"] * 1e6 == pytest.approx(
            2 * 10**15 * 2 / 3 / (4 * PORT), rel=1e-5
        )


def test_all_to_all_within_a_sub_grid_equals_the_loads_of_its_traffic() -> None:
    topology = build("railx_hyperx")
    chosen = {"rows": [1, 3], "columns": [0, 2, 4]}
    found = times(topology, 10**12, collectives=["all_to_all"], **chosen)
    node = [5 * row + column for row in chosen["rows"] for column in chosen["columns"]]
    chips = np.array([4 * one + k for one in node for k in range(4)])
    demand = np.zeros((100, 100))
    demand[np.ix_(chips, chips)] = 1 / (len(chips) - 1)
    np.fill_diagonal(demand, 0)
    loads = table_lane_loads(topology, build_routing(topology, "min"), demand)
    width = topology.links.gbps / 400
    bound = (width[loads > 0] / loads[loads > 0]).min() * PORT
    for fidelity in ("analytic", "flow"):
        row = found["all_to_all", "chips", fidelity]
        assert row["participants"] == 24
        assert row["time_ms"] * 1e6 == pytest.approx(10**12 * 23 / 24 / bound, rel=1e-4)


def test_all_to_all_among_boards_of_a_hammingmesh() -> None:
    """Six boards of 2 x 2 chips on wide internal links, so that the ports to the
    switches of the rows are full first.
    """
    topology = build("hammingmesh", internal_width=4.0)
    found = times(topology, 10**15, collectives=["all_to_all"], rows=[0, 3], columns=[1, 2, 4])
    for fidelity in ("analytic", "flow"):
        row = found["all_to_all", "chips", fidelity]
        assert row["participants"] == 24
        # Of 24 shares a chip sends 16 to other columns, over the two lanes at its own
        # end of its chip row.
        assert row["time_ms"] * 1e6 == pytest.approx(10**15 / 24 * 16 / (2 * PORT), rel=1e-4)


def test_all_to_all_has_no_closed_form_on_a_large_hammingmesh() -> None:
    topology = build("hammingmesh", m=4, n=1, x_scale=10, y_scale=10, switch_radix=20)
    assert times(topology, 10**9, collectives=["all_to_all"]) == {}


@settings(deadline=None, max_examples=10)
@given(payload=st.integers(1, 10**9), routing=st.sampled_from(["min", "balanced"]))
def test_messages_of_an_all_to_all_are_not_faster_than_its_bottleneck(
    payload: int, routing: str
) -> None:
    topology = build("railx_hyperx", m=2, n=1)
    found = times(topology, payload, collectives=["all_to_all"], routing=routing)
    flow, analytic = (
        found["all_to_all", "chips", fidelity]["time_ms"] * 1e6 for fidelity in ("flow", "analytic")
    )
    longest = found["all_to_all", "chips", "analytic"]["time_ms"] * 1e6 - flow
    assert longest <= 2 * 100 + 6 * 10
    assert flow >= analytic - (2 * 100 + 6 * 10)


def test_all_to_all_at_full_scale() -> None:
    """2 flits per chip and cycle under the published routing at m = 7, n = 9: 100
    GB/s.
    """
    topology = build("railx_hyperx_full")
    found = times(topology, 10**15, collectives=["all_to_all"])
    assert list(found) == [("all_to_all", "chips", "analytic")]
    assert found["all_to_all", "chips", "analytic"]["algorithm_gb_s"] == pytest.approx(
        100, rel=1e-3
    )


# Bad input
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        (
            "railx_hyperx",
            {"rows": []},
            r"collective\.rows: got an empty list; allowed: null for all, or at least one position",
        ),
        (
            "railx_hyperx",
            {"rows": [1, 1, 0]},
            r"collective\.rows: got \[1, 1, 0\]; allowed: distinct positions, .* \[0, 1\]",
        ),
        (
            "railx_hyperx",
            {"columns": [-1]},
            r"collective\.columns\[0\]: got -1; allowed: 0 or greater",
        ),
        ("railx_hyperx", {"columns": [5]}, r"columns: got 5; allowed: 0 to 4, the nearest is 4"),
        (
            "railx_torus",
            {"columns": [0, 2]},
            r"columns: got \[0, 2\], which no links .* the nearest are \[0, 1, 2\]",
        ),
        (
            "railx_torus",
            {"rows": [4, 1]},
            r"rows: got \[4, 1\], which no links .* the nearest are \[0, 1, 4\]",
        ),
        (
            "torus_2d",
            {"rows": [3], "columns": [3]},
            r"columns: got a single chip; allowed: at least two chips",
        ),
        ("hammingmesh", {"columns": [5, 0]}, r"columns: got 5; allowed: 0 to 4, the nearest is 4"),
        (
            "torus_3d",
            {"rows": [0]},
            r"rows: got a list; allowed: null, torus_3d is no grid of nodes",
        ),
        (
            "fat_tree",
            {"rows": [0]},
            r"rows: got a list; allowed: null, fat_tree is no grid of nodes",
        ),
        (
            "railx_hyperx",
            {"collectives": ["gossip"]},
            r"collective\.collectives\[0\]: got 'gossip'; allowed: ring_all_reduce",
        ),
        (
            "railx_hyperx",
            {"routing": "valiant"},
            r"routing: got 'valiant'; allowed on railx_hyperx: min",
        ),
    ],
)
def test_bad_settings_are_named(family: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        simulate_collectives(build(family), collective(**change), "under test")


def test_shipped_settings_list_every_field() -> None:
    for name in choices("collective"):
        shipped: CollectiveSettings = checked("collective", name)
        assert set(choice("collective", name)) == set(CollectiveSettings.__dataclass_fields__)
        assert shipped.collectives
