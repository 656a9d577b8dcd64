"""Exact channel loads: the known bounds, every packet walked link by link,
conservation, and a count over shortest paths.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_routing, build_topology, family_of
from railx.network import NetworkSettings, StaticNetworkSettings, TrafficSettings
from railx.network.settings import ExpertTraffic, UniformTraffic
from railx.network.throughput import simulate_static, static_routings, uniform_lane_loads
from railx.settings import SettingsError, load, to_dict
from railx.vocabulary.routing.analysis import path_lengths, table_lane_loads
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology
from tests.builders import build, checked, choice, hyperx, topology_settings, with_node
from tests.network.shortest_paths import shortest_path_lane_loads

UNIFORM = UniformTraffic("uniform", 1.0)
COLUMNS = [
    "topology",
    "family",
    "chips",
    "nodes",
    "traffic",
    "routing",
    "ideal_flits_per_chip_cycle",
    "bound_flits_per_chip_cycle",
    "injection_gb_s_per_chip",
    "ideal_gb_s_per_chip",
    "bound_gb_s_per_chip",
    "bound_over_ideal",
    "mean_external_hops",
    "mean_internal_hops",
    "internal_width_needed",
    "busiest_link_kind",
    "fidelity",
]


def static(routing: str) -> Any:
    return checked("network", f"static_{routing}")


def simulate(topology: Topology, routing: str = "min") -> dict[str, Any]:
    return simulate_static(topology, UNIFORM, static(routing), "under test", seed=1)[0]


@pytest.mark.parametrize(
    ("m", "n", "chips", "ideal", "bound", "internal_width"),
    [
        (2, 2, 100, 2.475, 1.456, 1.01),
        (4, 1, 400, 0.623, 0.554, 1.61),
        (4, 2, 1_296, 1.124, 0.999, 1.56),
        (3, 2, 441, 1.552, 1.137, 1.12),
        (5, 3, 6_400, 1.280, 0.941, 1.73),
        (7, 9, 200_704, 2.612, 2.000, 2.03),
    ],
)
def test_hyperx_bounds_of_minimal_routing(
    m: int, n: int, chips: int, ideal: float, bound: float, internal_width: float
) -> None:
    row = simulate(build("railx_hyperx", m=m, n=n))
    assert row["chips"] == chips
    assert row["ideal_flits_per_chip_cycle"] == pytest.approx(ideal, abs=5.1e-4)
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(bound, abs=5.1e-4)
    assert row["internal_width_needed"] == pytest.approx(internal_width, abs=5.1e-3)
    external_hops = 2 * (chips - chips / (m * n + 1)) / (chips - 1)
    assert row["mean_external_hops"] == pytest.approx(external_hops)
    assert row["ideal_flits_per_chip_cycle"] == pytest.approx(4 * n / (m * external_hops))


def test_full_scale_hops_and_rates() -> None:
    row = simulate(build("railx_hyperx_full"))
    assert row["mean_internal_hops"] == pytest.approx(12.33, abs=0.005)
    assert row["mean_external_hops"] == pytest.approx(1.97, abs=0.005)
    assert row["injection_gb_s_per_chip"] == 1_800
    assert row["ideal_gb_s_per_chip"] == pytest.approx(130.6, abs=0.05)
    assert row["bound_gb_s_per_chip"] == pytest.approx(100, abs=0.05)


@pytest.mark.parametrize(
    ("m", "n", "of_minimal"), [(2, 2, 0.588), (4, 2, 0.889), (3, 2, 0.733), (5, 3, 0.735)]
)
def test_balanced_links_reach_the_ideal(m: int, n: int, of_minimal: float) -> None:
    topology = build("railx_hyperx", m=m, n=n)
    balanced = simulate(topology, "balanced")
    assert balanced["bound_over_ideal"] == pytest.approx(1)
    assert balanced["internal_width_needed"] < 1.4
    assert simulate(topology, "min")["bound_over_ideal"] == pytest.approx(of_minimal, abs=5e-4)


def test_balanced_links_at_full_scale() -> None:
    row = simulate(build("railx_hyperx_full"), "balanced")
    assert (row["chips"], row["bound_over_ideal"]) == (200_704, pytest.approx(1))
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(2.612, abs=5.1e-4)
    assert row["internal_width_needed"] == pytest.approx(1.300, abs=5.1e-4)
    assert (
        row["mean_internal_hops"]
        < simulate(build("railx_hyperx_full"), "min")["mean_internal_hops"]
    )


def test_equal_widths_cost_balanced_links_less() -> None:
    bound = {
        routing: simulate(build("railx_hyperx", m=4, n=2, internal_width=1.0), routing)
        for routing in ("min", "balanced")
    }
    assert bound["min"]["bound_over_ideal"] == pytest.approx(0.571, abs=5e-4)
    assert bound["balanced"]["bound_over_ideal"] == pytest.approx(0.752, abs=5e-4)


def test_narrow_internal_links_lower_the_bound() -> None:
    row = simulate(build("railx_hyperx", m=4, n=2, internal_width=1.0))
    assert row["busiest_link_kind"] == "internal"
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(
        simulate(build("railx_hyperx", m=4, n=2))["bound_flits_per_chip_cycle"] / 1.5556, rel=1e-4
    )


@pytest.mark.parametrize(
    ("m", "n", "rings"),
    [
        (2, 2, "directed"),
        (1, 4, "directed"),
        (3, 2, "directed"),
        (2, 4, "directed"),
        (3, 1, "undirected"),
        (1, 5, "undirected"),
    ],
)
def test_hyperx_loads_equal_every_packet_walked(m: int, n: int, rings: str) -> None:
    topology = build("railx_hyperx", m=m, n=n, rings=rings)
    assert uniform_lane_loads(topology, "min") == pytest.approx(
        _walk_every_packet(topology, m, n), abs=1e-12
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("torus_2d", {"x_scale": 5, "y_scale": 7, "n": 1}),
        ("torus_2d", {"x_scale": 2, "y_scale": 3}),
        ("railx_torus", {}),
        ("railx_torus", {"m": 1, "x_scale": 4, "y_scale": 3}),
        ("railx_torus", {"m": 3, "n": 1, "x_scale": 2, "y_scale": 3}),
        ("fat_tree", {"switch_radix": 4, "planes": 1}),
        ("fat_tree", {"switch_radix": 6, "planes": 2}),
        ("fat_tree", {"switch_radix": 6, "planes": 2, "leaf_down_ports": 4}),
        ("fat_tree", {"switch_radix": 7, "planes": 2, "tiers": 2, "leaf_down_ports": 5}),
    ],
)
def test_symmetric_families_equal_the_even_split_over_shortest_paths(
    name: str, changes: dict[str, Any]
) -> None:
    topology = build(name, **changes)
    for routing in ("min", "balanced"):
        assert uniform_lane_loads(topology, static(routing).routing) == pytest.approx(
            shortest_path_lane_loads(topology), abs=1e-12
        )


@pytest.mark.parametrize(("x_scale", "y_scale", "n"), [(6, 6, 2), (5, 8, 1), (4, 3, 1), (2, 4, 2)])
@pytest.mark.parametrize("routing", ["min", "balanced"])
def test_loads_of_a_torus_are_those_of_its_packets(
    x_scale: int, y_scale: int, n: int, routing: str
) -> None:
    """Ties included: half of the distances of an even ring's last step."""
    topology = build("torus_2d", x_scale=x_scale, y_scale=y_scale, n=n)
    table, chips = build_routing(topology, routing), topology.chips
    demand = np.full((chips, chips), 1 / (chips - 1))
    np.fill_diagonal(demand, 0)
    assert uniform_lane_loads(topology, routing) == pytest.approx(
        table_lane_loads(topology, table, demand), abs=1e-12
    )


@pytest.mark.parametrize("node", [False, True])
@pytest.mark.parametrize("name", ["slim_fly", "polarfly", "topoopt", "hyperx"])
def test_loads_by_hops_are_those_of_the_table(name: str, node: bool) -> None:
    plain = topology_settings(name)
    topology = build_topology(with_node(plain) if node else plain)
    for routing in ("min", "balanced"):
        if routing in family_of(topology).routings:
            table = build_routing(topology, routing)
            assert uniform_lane_loads(topology, routing) == pytest.approx(
                table_lane_loads(topology, table), rel=1e-12, abs=1e-13
            )


@settings(deadline=None, max_examples=15)
@given(m=st.integers(1, 4), n=st.integers(1, 3), routing=st.sampled_from(["min", "balanced"]))
def test_what_enters_a_chip_leaves_it(m: int, n: int, routing: str) -> None:
    if m * n < 2:
        return
    topology = hyperx(m, n)
    flow = uniform_lane_loads(topology, static(routing).routing) * topology.links.lanes
    entering = np.bincount(topology.links.dst, weights=flow, minlength=topology.chips)
    leaving = np.bincount(topology.links.src, weights=flow, minlength=topology.chips)
    # Each chip sends 1 and receives 1, so that what passes in and out is equal, and at
    # least 1.
    assert entering == pytest.approx(leaving)
    assert (entering >= 1 - 1e-12).all()


@settings(deadline=None, max_examples=10)
@given(m=st.integers(1, 3), n=st.integers(1, 2))
def test_minimal_routing_takes_no_fewer_links_than_the_shortest_paths(m: int, n: int) -> None:
    if m * n < 2:
        return
    topology = hyperx(m, n)
    lanes = topology.links.lanes
    assert (uniform_lane_loads(topology, "min") * lanes).sum() >= (
        shortest_path_lane_loads(topology) * lanes
    ).sum() - 1e-9


@settings(deadline=None, max_examples=15)
@given(k=st.integers(1, 10), n=st.integers(1, 3))
def test_torus_bound_is_8_n_over_k(k: int, n: int) -> None:
    side = 2 * k
    row = simulate(build("torus_2d", x_scale=side, y_scale=side, n=n), "balanced")
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(
        8 * n / side * (side**2 - 1) / side**2
    )
    assert row["bound_over_ideal"] == pytest.approx(1)
    assert row["internal_width_needed"] is None


def test_torus_of_36_by_36() -> None:
    row = simulate(build("railx_torus", m=4, n=2, x_scale=9, y_scale=9))
    assert row["chips"] == 1_296
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(0.444, abs=5e-4)
    assert row["internal_width_needed"] == pytest.approx(1)
    slow = simulate(build("railx_torus", m=4, n=2, x_scale=9, y_scale=9, internal_width=0.5))
    assert slow["bound_flits_per_chip_cycle"] == pytest.approx(
        row["bound_flits_per_chip_cycle"] / 2
    )
    assert slow["busiest_link_kind"] == "internal"


def test_internal_width_counts_external_links_by_their_rate() -> None:
    """Of the 95 other chips 7 are in the server, 24 on others of the segment.

    Links to the spine carry more than those of chips, but at twice their rate.
    """
    row = simulate(build("hpn"))
    assert row["busiest_link_kind"] == "leaf"
    assert row["internal_width_needed"] == pytest.approx((7 + 24 * 7 / 8) / (24 + 64))


def test_a_longer_dimension_binds_the_torus() -> None:
    row = simulate(build("torus_2d", x_scale=12, y_scale=4), "balanced")
    assert row["busiest_link_kind"] == "torus_x"
    assert row["bound_over_ideal"] == pytest.approx(1)


@pytest.mark.parametrize(("k", "planes"), [(4, 1), (8, 8)])
def test_fat_tree_carries_full_injection(k: int, planes: int) -> None:
    row = simulate(build("fat_tree", switch_radix=k, planes=planes))
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(planes)
    assert row["bound_gb_s_per_chip"] == pytest.approx(row["injection_gb_s_per_chip"])
    assert row["bound_over_ideal"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["railx_hyperx", "railx_torus", "torus_2d", "fat_tree"])
def test_rows_have_the_agreed_columns(name: str) -> None:
    topology = build(name)
    row, channels = simulate_static(topology, UNIFORM, static("min"), "named", seed=1)
    assert list(row) == COLUMNS
    assert (row["topology"], row["family"], row["traffic"], row["routing"], row["fidelity"]) == (
        "named",
        name,
        "uniform",
        "min",
        "analytic",
    )
    assert list(channels) == ["src", "dst", "kind", "rail", "load", "fidelity"]
    assert all(len(column) == len(topology.links) for column in channels.values())
    external = np.array(channels["kind"].to_pylist()) != "internal"
    assert row["mean_external_hops"] == pytest.approx(
        (channels["load"] * topology.links.lanes)[external].sum() / topology.chips
    )
    busiest = channels["load"] / (topology.links.gbps / 400.0)
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(1 / busiest.max())


@pytest.mark.parametrize("name", ["hyperx", "dragonfly"])
def test_detours_are_counted_in_the_exact_loads(name: str) -> None:
    topology = build(name)
    row, channels = simulate_static(
        topology, UNIFORM, StaticNetworkSettings("static", "valiant"), name, seed=1
    )
    hops = path_lengths(topology, build_routing(topology, "valiant")).links
    pairs = topology.chips * (topology.chips - 1)
    carried = (channels["load"] * topology.links.lanes).sum() / topology.chips
    assert carried == pytest.approx(hops.sum() / pairs)
    assert row["bound_flits_per_chip_cycle"] > 0
    assert "valiant" in static_routings(topology)
    assert "adaptive" not in static_routings(topology)


def test_too_large_a_table_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"112,896 chips are too many .* family railx_dragonfly needs; allowed: at most 6,000",
    ):
        uniform_lane_loads(build("railx_dragonfly_full"), "min")


def test_too_large_a_graph_is_not_enumerated() -> None:
    with pytest.raises(ValueError, match="2500 vertices are too many"):
        shortest_path_lane_loads(build("torus_2d", x_scale=50, y_scale=50))


@pytest.mark.parametrize(
    ("group", "hint", "changes", "message"),
    [
        (
            "network/static_min",
            NetworkSettings,
            {"routing": "adaptive"},
            "network.routing: got 'adaptive'; allowed: min, balanced, min_inside, valiant, tree$",
        ),
        (
            "traffic/uniform",
            TrafficSettings,
            {"pattern": "tornado"},
            "traffic.pattern: got 'tornado'; allowed: uniform",
        ),
    ],
)
def test_unknown_choices_are_named(
    group: str, hint: Any, changes: dict[str, Any], message: str
) -> None:
    plain = choice(*group.split("/"))
    assert to_dict(load(hint, plain, group.split("/")[0])) == plain
    with pytest.raises(SettingsError, match=message):
        load(hint, plain | changes, group.split("/")[0])


def _walk_every_packet(topology: Topology, m: int, n: int) -> np.ndarray:
    """Loads by following each packet link by link through the link table, straight from
    the words of the routing rule.
    """
    walker = _Walker(topology, m, n)
    for source in range(topology.chips):
        for target in range(topology.chips):
            if source != target:
                walker.send(source, target, 1 / (topology.chips - 1))
    return walker.load / topology.links.lanes


class _Walker:
    def __init__(self, topology: Topology, m: int, n: int) -> None:
        self.m, self.side = m, m * n + 1
        self.load = np.zeros(len(topology.links))
        links = topology.links
        self.mesh = {}
        self.rails: dict[tuple[str, int, int], list[tuple[bool, int, int, int]]] = defaultdict(list)
        for row, (src, dst, kind, rail) in enumerate(
            zip(
                links.src.tolist(),
                links.dst.tolist(),
                links.kind.tolist(),
                links.rail.tolist(),
                strict=True,
            )
        ):
            if kind == INTERNAL:
                self.mesh[src, dst] = row
            else:
                # Rows come in pairs: even rows leave on the plus side, odd rows on the
                # minus side.
                plus = (row - int((links.kind == INTERNAL).sum())) % 2 == 0
                self.rails[LINK_KINDS[kind], src // m**2, dst // m**2].append(
                    (plus, rail, src, row)
                )
        self.links = links
        for choices in self.rails.values():
            choices.sort()
            assert len(choices) == 2

    def send(self, chip: int, target: int, share: float) -> None:
        node, goal = chip // self.m**2, target // self.m**2
        corner = goal // self.side * self.side + node % self.side
        if node % self.side != goal % self.side:
            self.ride(
                "rail_x", chip, node // self.side * self.side + goal % self.side, target, share
            )
        elif node != goal:
            assert corner == goal
            self.ride("rail_y", chip, goal, target, share)
        else:
            self.walk(chip, target, share)

    def ride(self, kind: str, chip: int, next_node: int, target: int, share: float) -> None:
        first, second = self.rails[kind, chip // self.m**2, next_node]
        # At equal distance the first, which is the one on the minus side.
        choice = (
            first if self.distance(chip, first[2]) <= self.distance(chip, second[2]) else second
        )
        self.walk(chip, choice[2], share)
        self.load[choice[3]] += share
        self.send(int(self.links.dst[choice[3]]), target, share)

    def walk(self, chip: int, target: int, share: float) -> None:
        while chip != target:
            x, goal = chip % self.m**2 % self.m, target % self.m**2 % self.m
            step = int(np.sign(goal - x)) if goal != x else int(np.sign(target - chip)) * self.m
            self.load[self.mesh[chip, chip + step]] += share
            chip += step

    def distance(self, a: int, b: int) -> int:
        (ay, ax), (by, bx) = (divmod(chip % self.m**2, self.m) for chip in (a, b))
        return abs(ax - bx) + abs(ay - by)


@pytest.mark.parametrize("name", ["railx_hyperx", "torus_2d", "hammingmesh"])
def test_other_patterns_are_loads_of_their_own(name: str) -> None:
    topology = build(name)
    pattern = load(
        TrafficSettings,
        {"pattern": "permutation", "load": 1.0, "permutation": "complement", "offset": 1},
        "traffic",
    )
    row, channels = simulate_static(topology, pattern, static("min"), "under test", seed=1)
    demand = np.zeros((topology.chips, topology.chips))
    chip = np.arange(topology.chips)
    demand[chip, topology.chips - 1 - chip] = 1
    expected = table_lane_loads(topology, build_routing(topology, "min"), demand)
    assert channels["load"] == pytest.approx(expected)
    assert row["traffic"] == "permutation"
    assert row["bound_flits_per_chip_cycle"] < simulate(topology)["bound_flits_per_chip_cycle"]


def test_other_patterns_need_a_table() -> None:
    pattern = load(TrafficSettings, {"pattern": "neighbour", "load": 1.0}, "traffic")
    with pytest.raises(
        ValueError, match=r"6,400 chips are too many .*, which neighbour traffic needs; allowed"
    ):
        simulate_static(
            build("railx_hyperx", m=5, n=3), pattern, static("min"), "under test", seed=1
        )


@pytest.mark.filterwarnings("error")
def test_links_without_traffic_set_no_limit() -> None:
    """Experts in servers of 8 chips, each with 8 ports of 9 times the rate."""
    topology = build("rail_only")
    traffic = ExpertTraffic("experts", 1.0, group=8, skew=0.0)
    row, _ = simulate_static(topology, traffic, static("min"), "under test", seed=1)
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(72)
    assert row["ideal_flits_per_chip_cycle"] == row["internal_width_needed"] == np.inf
