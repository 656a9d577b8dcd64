"""Routers of mesh, tori, HyperX, Dragonfly and HammingMesh: delivery, deadlocks,
lengths and loads against closed forms.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_routing, family_of
from railx.families.hammingmesh import FAMILY as HAMMINGMESH
from railx.families.railx_torus import chip_grid
from railx.network.metrics import chip_hop_counts
from railx.settings import SettingsError
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


def loads(topology: Topology, routing: str, demand: np.ndarray | None = None) -> np.ndarray:
    return table_lane_loads(topology, build_routing(topology, routing), demand)


def of_kind(topology: Topology, *kinds: str) -> np.ndarray:
    return np.isin(topology.links.kind, [LINK_KINDS.index(kind) for kind in kinds])


def apart(topology: Topology) -> np.ndarray:
    """Links of a shortest path between every two chips, by the powers of the adjacency
    matrix.
    """
    joined = np.zeros((topology.vertices, topology.vertices), dtype=bool)
    joined[topology.links.src, topology.links.dst] = True
    hops, reached = np.zeros(joined.shape, dtype=int), np.eye(topology.vertices, dtype=bool)
    while not reached.all():
        hops += ~reached
        reached = reached | (reached.astype(np.float32) @ joined.astype(np.float32) > 0)
    return hops[: topology.chips, : topology.chips]


MESHES = st.tuples(
    st.just("mesh_2d"),
    st.fixed_dictionaries(
        {"x_scale": st.integers(2, 5), "y_scale": st.integers(2, 5), "n": st.integers(1, 2)}
    ),
)
TORI = st.one_of(
    st.tuples(
        st.just("torus_2d"),
        st.fixed_dictionaries({f"{axis}_scale": st.integers(2, 6) for axis in "xy"}),
    ),
    st.tuples(
        st.just("torus_3d"),
        st.fixed_dictionaries({f"{axis}_scale": st.integers(2, 4) for axis in "xyz"}),
    ),
)
HYPERXS = st.tuples(
    st.just("hyperx"),
    st.one_of(
        st.fixed_dictionaries(
            {
                "shape": st.lists(st.integers(2, 4), min_size=1, max_size=3),
                "lanes": st.integers(1, 2),
            }
        ),
        st.fixed_dictionaries(
            {
                "shape": st.lists(st.integers(2, 3), min_size=1, max_size=3),
                "chips_per_switch": st.integers(1, 2),
                "planes": st.integers(1, 2),
            }
        ),
    ),
)
DRAGONFLIES = st.tuples(
    st.just("dragonfly"),
    st.fixed_dictionaries(
        {
            "p": st.integers(1, 2),
            "a": st.integers(1, 4),
            "h": st.integers(1, 3),
            "groups": st.integers(2, 9),
            "planes": st.integers(1, 2),
        }
    ).filter(lambda sizes: sizes["groups"] <= sizes["a"] * sizes["h"] + 1),
)
HAMMINGMESHES = st.tuples(
    st.just("hammingmesh"),
    st.fixed_dictionaries(
        {
            "m": st.integers(1, 4),
            "n": st.integers(1, 2),
            "x_scale": st.integers(2, 3),
            "y_scale": st.integers(2, 3),
        }
    ),
)


@settings(deadline=None, max_examples=80)
@given(sizes=st.one_of(MESHES, TORI, HYPERXS, DRAGONFLIES, HAMMINGMESHES), data=st.data())
def test_packets_arrive_and_cannot_block_each_other(
    sizes: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    topology = build(sizes[0], **sizes[1])
    routing = data.draw(st.sampled_from(family_of(topology).routings))
    table = build_routing(topology, routing)
    check_delivery(topology, table)
    check_deadlock_free(topology, table)
    # What all packets do is the sum over the links: load of all lanes times (chips - 1)
    # = links of the ways.
    carried = (table_lane_loads(topology, table) * topology.links.lanes).sum() * (
        topology.chips - 1
    )
    ways = path_lengths(topology, table).links
    assert carried == pytest.approx(ways.sum())
    some = np.array([topology.chips - 1, 0], dtype=np.int32)
    part = build_routing(topology, routing, some)
    assert np.allclose(path_lengths(topology, part).links, ways[:, some])


@settings(deadline=None, max_examples=40)
@given(sizes=st.one_of(MESHES, TORI, HYPERXS), data=st.data())
def test_minimal_routings_take_shortest_paths(
    sizes: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    topology = build(sizes[0], **sizes[1])
    routing = data.draw(
        st.sampled_from([name for name in family_of(topology).routings if name != "valiant"])
    )
    assert np.allclose(
        path_lengths(topology, build_routing(topology, routing)).links, apart(topology)
    )


@settings(deadline=None, max_examples=20)
@given(
    x=st.integers(2, 9),
    y=st.integers(2, 9),
    n=st.integers(1, 3),
    routing=st.sampled_from(["min", "balanced", "adaptive"]),
)
def test_mesh_loads_have_their_closed_form(x: int, y: int, n: int, routing: str) -> None:
    topology = build("mesh_2d", x_scale=x, y_scale=y, n=n)
    low = np.minimum(topology.links.src, topology.links.dst)
    along_x = of_kind(topology, "torus_x")
    # XY: everything on one side of a row boundary goes to everything beyond it, through
    # the row of its source; columns alike.
    place, length, across = (
        np.where(along_x, low % x, low // x),
        np.where(along_x, x, y),
        np.where(along_x, y, x),
    )
    expected = (place + 1) * (length - 1 - place) * across / (x * y - 1) / n
    assert np.allclose(loads(topology, routing), expected)


def test_the_8_by_8_mesh_is_bound_by_its_bisection() -> None:
    assert 1 / loads(build("mesh_2d"), "min").max() == pytest.approx(0.5 * 63 / 64)


@settings(deadline=None, max_examples=15)
@given(half=st.integers(1, 4), n=st.integers(1, 3), dimensions=st.sampled_from([2, 3]))
def test_even_tori_reach_8n_over_k(half: int, n: int, dimensions: int) -> None:
    k = 2 * half
    if dimensions == 3 and k > 6:
        return
    topology = build(
        f"torus_{dimensions}d", n=n, **{f"{axis}_scale": k for axis in "xyz"[:dimensions]}
    )
    bound = 8 * n / k * (topology.chips - 1) / topology.chips
    balanced = loads(topology, "balanced")
    assert np.allclose(balanced, 1 / bound)  # every link alike
    assert np.allclose(balanced, shortest_path_lane_loads(topology))
    # All ties upwards: (k / 2 + 1) / (k / 2) times as much on the links that go up (at
    # k = 2 both ways are one pool).
    assert loads(topology, "min").max() == pytest.approx(
        (1 / bound) * (1 if k == 2 else (half + 1) / half)
    )


@settings(deadline=None, max_examples=15)
@given(k=st.sampled_from([3, 5, 7]), n=st.integers(1, 2), dimensions=st.sampled_from([2, 3]))
def test_odd_tori_need_no_ties(k: int, n: int, dimensions: int) -> None:
    if dimensions == 3 and k > 5:
        return
    topology = build(
        f"torus_{dimensions}d", n=n, **{f"{axis}_scale": k for axis in "xyz"[:dimensions]}
    )
    expected = (k * k - 1) / 8 / k / n * topology.chips / (topology.chips - 1)
    for routing in ("min", "balanced"):
        assert np.allclose(loads(topology, routing), expected)
    assert np.allclose(shortest_path_lane_loads(topology), expected)


#: Rings of every length from 2 to 9, even and odd ones beside each other.
RINGS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("torus_2d", {"x_scale": x, "y_scale": y, "n": 1})
        for x, y in [(2, 9), (9, 2), (3, 8), (7, 4), (5, 6), (9, 9)]
    ),
    *(
        ("torus_3d", {"x_scale": x, "y_scale": y, "z_scale": z})
        for x, y, z in [(2, 3, 4), (5, 2, 3), (4, 4, 4), (6, 2, 7)]
    ),
    ("tpu_v4", {"cube_side": 2, "x_cubes": 1, "y_cubes": 2, "z_cubes": 3}),
    *(
        ("railx_torus", {"m": m, "n": 1, "x_scale": x, "y_scale": y})
        for m, x, y in [(1, 2, 5), (2, 2, 3), (3, 3, 2)]
    ),
    *(
        ("railx_twisted_torus", {"m": m, "n": 1, "x_scale": 2 * y, "y_scale": y})
        for m, y in [(1, 2), (1, 3), (2, 2), (3, 3)]
    ),
    ("opus_rails", {}),
]


@pytest.mark.parametrize(("name", "sizes"), RINGS)
def test_packets_that_take_no_wrap_draw_their_channel_and_close_no_circle(
    name: str, sizes: dict[str, Any]
) -> None:
    topology = build(name, **sizes)
    drawn, fixed = (build_routing(topology, routing) for routing in ("balanced", "min"))
    check_delivery(topology, drawn)
    check_deadlock_free(topology, drawn)
    assert np.allclose(path_lengths(topology, drawn).links, path_lengths(topology, fixed).links)


def first_channels(table: RoutingTable, chip: int, to: int) -> list[float]:
    """Share of the packets of a pair on each virtual channel of their first hop."""
    choices = slice(*table.set_start[table.entry[0, chip, to] + np.array([0, 1])])
    pools = table.choice_pool[choices]
    shares: list[float] = np.bincount(
        table.pool_class[pools], table.choice_weight[choices], minlength=2
    ).tolist()
    return shares


@pytest.mark.parametrize(
    ("name", "length"), [("torus_2d", 5), ("torus_2d", 6), ("torus_3d", 5), ("railx_torus", 10)]
)
def test_who_takes_the_wrap_has_no_choice_of_channel(name: str, length: int) -> None:
    topology = build(name, **({"x_scale": length} if name != "railx_torus" else {}))
    drawn, fixed = (build_routing(topology, routing) for routing in ("balanced", "min"))
    row = chip_grid(2, 5, 5)[0].tolist() if name == "railx_torus" else range(length)
    assert first_channels(drawn, row[1], row[2]) == [0.5, 0.5]  # up, and down
    assert first_channels(drawn, row[2], row[1]) == [0.5, 0.5]
    assert first_channels(fixed, row[1], row[2]) == [0, 1]
    for table in (drawn, fixed):
        assert first_channels(table, row[1], row[-1]) == [
            0,
            1,
        ]  # two hops down, the second over the wrap
        assert first_channels(table, row[0], row[-1]) == [1, 0]
        assert first_channels(table, row[-1], row[0]) == [1, 0]


@settings(deadline=None, max_examples=20)
@given(sizes=HYPERXS)
def test_hyperx_loads_have_their_closed_forms(sizes: tuple[str, dict[str, Any]]) -> None:
    topology = build(sizes[0], **sizes[1])
    configured = topology.settings
    shape, per_switch = configured.shape, max(1, configured.chips_per_switch)
    routers = int(np.prod(shape))
    length = np.array(shape)[np.maximum(topology.links.rail, 0)]
    flat = configured.lanes * configured.planes
    expected = routers / length * per_switch**2 / (topology.chips - 1) / flat
    leaf = of_kind(topology, "leaf")
    expected = np.where(leaf, 1 / configured.planes, expected)
    for routing in ("min", "balanced", "adaptive"):
        assert np.allclose(loads(topology, routing), expected)
    assert np.allclose(shortest_path_lane_loads(topology), expected)
    # By way of a random router of the line: on average 2 - 2 / s hops for each
    # dimension that differs, so much more load.
    assert np.allclose(
        loads(topology, "valiant"), np.where(leaf, expected, expected * (2 - 2 / length))
    )


def test_valiant_levels_a_hyperx_under_shifted_traffic() -> None:
    topology = build("hyperx", shape=[8], lanes=1)
    shifted = np.roll(np.eye(8), 1, axis=1)
    assert loads(topology, "min", shifted).max() == pytest.approx(1)
    assert loads(topology, "valiant", shifted).max() == pytest.approx(2 / 8)


@settings(deadline=None, max_examples=20)
@given(sizes=DRAGONFLIES)
def test_dragonfly_ways_and_global_loads_have_their_closed_forms(
    sizes: tuple[str, dict[str, Any]],
) -> None:
    topology = build(sizes[0], **sizes[1])
    p, a, groups, planes = (sizes[1][key] for key in ("p", "a", "groups", "planes"))
    switches = a * groups
    links = np.zeros((switches, switches), dtype=int)
    far = (
        of_kind(topology, "global")
        & (topology.links.src < topology.chips + switches)
        & (topology.links.src >= topology.chips)
    )
    np.add.at(
        links,
        (topology.links.src[far] - topology.chips, topology.links.dst[far] - topology.chips),
        1,
    )
    by_switch = np.zeros((switches, switches))
    for source, target in np.ndindex(switches, switches):
        same_group = source // a == target // a
        own = links[source].reshape(groups, a)[target // a]
        group = links[
            source // a * a : source // a * a + a, target // a * a : target // a * a + a
        ].sum(axis=0)
        ways = own if own.any() else group
        if same_group:
            by_switch[source, target] = 2 + (source != target)
        else:
            by_switch[source, target] = 3 + (not own.any()) + 1 - ways[target % a] / ways.sum()
    switch = np.arange(topology.chips) // p
    expected = by_switch[np.ix_(switch, switch)]
    np.fill_diagonal(expected, 0)
    for routing in ("min", "adaptive"):  # in static loads the adaptive one goes as ``min``
        lengths = path_lengths(topology, build_routing(topology, routing)).links
        assert np.allclose(lengths, expected)
    assert (lengths > apart(topology) - 1e-9).all()
    per_link = (a * p) ** 2 / (topology.chips - 1) / planes / (a * sizes[1]["h"] // (groups - 1))
    carried = loads(topology, "min")[of_kind(topology, "global")]
    assert carried.mean() == pytest.approx(per_link)
    if groups == a * sizes[1]["h"] + 1:
        assert np.allclose(carried, per_link)


def test_valiant_levels_a_dragonfly_when_groups_send_to_the_next_one() -> None:
    topology = build("dragonfly", planes=1)
    group = np.arange(topology.chips) // 8
    to_next = ((group[:, None] + 1) % 9 == group).astype(float) / 8
    far = of_kind(topology, "global")
    assert loads(topology, "min", to_next)[far].max() == pytest.approx(
        8
    )  # one link for the 8 chips of a group
    # Every packet takes the 8 links of its group evenly: one goes straight there, the
    # others meet again on the way in.
    spread = loads(topology, "valiant", to_next)[far]
    assert spread.max() <= 2 + 1e-9
    assert spread.sum() == pytest.approx(topology.chips * (2 - 1 / 8))


def test_the_adaptive_dragonfly_chooses_between_minimal_and_own_links() -> None:
    topology = build("dragonfly", planes=1)
    table = build_routing(topology, "adaptive")
    assert table.selection == "adaptive"
    own = table.entry[0, topology.chips, topology.chips - 1]  # the first switch, far destination
    choices = slice(table.set_start[own], table.set_start[own + 1])
    probes = table.choice_probe[choices]
    assert (topology.links.kind[probes] == LINK_KINDS.index("global")).all()
    minimal = table.choice_weight[choices] > 0
    assert minimal.sum() == 1
    assert len(minimal) in (2, 3)  # the way of ``min``, and those of two own links that are not it
    assert (
        table.choice_delay_ns[choices][minimal] < table.choice_delay_ns[choices][~minimal].min()
    ).all()


@settings(deadline=None, max_examples=20)
@given(sizes=HAMMINGMESHES)
def test_hammingmesh_ways_and_port_loads_have_their_closed_forms(
    sizes: tuple[str, dict[str, Any]],
) -> None:
    topology = build(sizes[0], **sizes[1])
    m, n, columns, rows = (sizes[1][key] for key in ("m", "n", "x_scale", "y_scale"))
    board, local = np.divmod(np.arange(topology.chips), m * m)
    expected = np.zeros((topology.chips, topology.chips))
    for place, line in ((local % m, board % columns), (local // m, board // columns)):
        to_end = np.minimum(place, m - 1 - place)
        same = line[:, None] == line
        expected += np.where(same, np.abs(place[:, None] - place), to_end[:, None] + 2 + to_end)
    for routing in HAMMINGMESH.routings:
        assert np.allclose(path_lengths(topology, build_routing(topology, routing)).links, expected)
    chips = topology.chips
    for kind, boards in (("row", columns), ("column", rows)):
        crossing = (chips - chips / boards) / (chips - 1)
        ports = of_kind(topology, kind)
        assert np.allclose(
            loads(topology, "balanced")[ports], m * crossing / (2 * n)
        )  # 2 n b / m for many boards
        busiest = (
            (m + 1) // 2 * crossing / n
        )  # the middle chip of an odd m always to the minus side
        assert loads(topology, "min")[ports].max() == pytest.approx(busiest)


def test_hammingmesh_of_the_comparison_is_bound_by_its_ports() -> None:
    topology = build("hammingmesh_1296")
    own = loads(topology, "min")
    crossing = (1296 - 144) / 1295
    assert 1 / own.max() == pytest.approx(2 * 2 / (4 * crossing))
    assert 1 / own.max() == pytest.approx(1.1241, abs=1e-4)
    assert (
        own[topology.links.kind == INTERNAL].max() < own.max()
    )  # though internal lanes are as narrow as ports


def test_transposed_traffic_gains_from_both_orders_in_a_mesh() -> None:
    topology = build("mesh_2d", x_scale=6, y_scale=6)
    place = np.arange(36)
    transposed = np.zeros((36, 36))
    transposed[place, place % 6 * 6 + place // 6] = 1
    np.fill_diagonal(transposed, 0)
    one, both = (loads(topology, routing, transposed).max() for routing in ("min", "balanced"))
    assert one == pytest.approx(5)  # all of a row but its diagonal chip turns on the diagonal
    assert both < one


def test_mean_hops_agree_with_the_search_at_larger_sizes() -> None:
    for name in ("mesh_2d", "torus_2d", "torus_3d", "hyperx"):
        topology = build(name)
        counts = chip_hop_counts(topology)
        assert counts is not None
        total = path_lengths(topology, build_routing(topology, "min")).links.sum()
        assert total == pytest.approx((np.arange(len(counts)) * counts).sum())


@pytest.mark.parametrize(
    ("name", "routing"),
    [
        ("mesh_2d", "valiant"),
        ("torus_3d", "adaptive"),
        ("dragonfly", "balanced"),
        ("hammingmesh", "valiant"),
    ],
)
def test_routings_that_a_family_lacks_are_refused(name: str, routing: str) -> None:
    with pytest.raises(SettingsError, match=f"got '{routing}'; allowed on {name}: min"):
        build_routing(build(name), routing)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dragonfly_1300", "hammingmesh_1296", "hyperx_1296", "torus_3d_1331"]
)
def test_networks_of_the_comparison_are_free_of_deadlocks(name: str) -> None:
    topology = build(name)
    table = build_routing(topology, "min", np.arange(0, topology.chips, 7, dtype=np.int32))
    check_delivery(topology, table)
    check_deadlock_free(topology, table)
