"""Collectives on sub-grids and with messages on the links: rings link by link, both fidelities, hierarchy, all-to-all."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.network import CollectiveSettings, simulate_collectives
from railx.network.rail_rings import chip_rings, node_rings
from railx.network.routing import build_routing, table_lane_loads
from railx.settings import SettingsError, load
from railx.topology import Topology, TopologySettings, build_topology

CONF = Path(__file__).parents[2] / "conf"
RINGS = ["ring_all_reduce", "reduce_scatter", "all_gather", "hierarchical_all_reduce"]
PORT = 50.0


def build(name: str, **changes: Any) -> Topology:
    plain = yaml.safe_load((CONF / "topology" / f"{name}.yaml").read_text()) | changes
    return build_topology(load(TopologySettings, plain, "topology"))


def collective(**changes: Any) -> CollectiveSettings:
    plain = yaml.safe_load((CONF / "collective" / "all.yaml").read_text())
    return load(CollectiveSettings, plain | changes, "collective")


def times(topology: Topology, payload: int = 10**15, **changes: Any) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Rows by collective, scope and fidelity."""
    rows = simulate_collectives(
        topology, collective(**({"collectives": RINGS, "payload_bytes": [payload]} | changes)), "under test"
    )
    found = {(row["collective"], row["scope"], row["fidelity"]): row for row in rows}
    assert len(found) == len(rows)
    return found


# Rings, link by link --------------------------------------------------------------------------------------------------------------


def check_rings(topology: Topology, rings: Any, participants: set[int], of: Any) -> None:
    """Every ring is a closed walk over real links; its messages lead from each participant to another, each once.

    ``of`` maps a chip to the participant that it belongs to. No rail is used twice in the same direction.
    """
    links = {(int(a), int(b), int(r)) for a, b, r in zip(topology.links.src, topology.links.dst, topology.links.rail, strict=True)}
    used: set[tuple[int, int, int]] = set()
    for ring in range(rings.rings):
        senders, ends = [], []
        for place in range(rings.participants):
            own = rings.message == ring * rings.participants + place
            path = list(zip(rings.src[own].tolist(), rings.dst[own].tolist(), rings.rail[own].tolist(), strict=True))
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
@given(data=st.data(), family=st.sampled_from(["railx_hyperx", "railx_torus"]), dimension=st.integers(0, 1))
def test_rings_over_any_joined_nodes_of_a_line(data: st.DataObject, family: str, dimension: int) -> None:
    m, n = data.draw(st.sampled_from([(1, 4), (2, 2), (3, 2), (2, 4)]))
    length = m * n + 1
    size = {} if family == "railx_hyperx" else {"x_scale": length, "y_scale": length}
    topology = build(family, m=m, n=n, **size)
    if family == "railx_hyperx":
        positions = data.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=length, unique=True).map(sorted))
        expected = 2 * (len(positions) - 1)
    else:
        start, count = data.draw(st.integers(0, length - 1)), data.draw(st.integers(2, length))
        positions = [(start + k) % length for k in range(count)]
        expected = 2 * m * n if count == length else m * n
    line = data.draw(st.integers(0, length - 1))
    nodes = [line * length + p if dimension == 0 else p * length + line for p in positions]
    rings = node_rings(topology, positions, dimension, line)
    assert (rings.participants, rings.rings) == (len(positions), expected)
    check_rings(topology, rings, set(nodes), lambda chip: chip // m**2)


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize(("family", "count", "rings"), [("railx_hyperx", 7, 4), ("railx_torus", 7, 4), ("railx_torus", 4, 2)])
def test_rings_through_chips(family: str, count: int, rings: int, dimension: int) -> None:
    m, n = 3, 2
    topology = build(family, m=m, n=n, **({} if family == "railx_hyperx" else {"x_scale": 7, "y_scale": 7}))
    found = chip_rings(topology, list(range(count)), dimension, 2)
    assert found is not None
    nodes = [2 * 7 + p if dimension == 0 else p * 7 + 2 for p in range(count)]
    chips = {node * m**2 + (place if dimension == 0 else place * m) for node in nodes for place in range(m)}
    assert (found.participants, found.rings) == (m * count, rings)
    check_rings(topology, found, chips, int)


def test_a_ring_of_two_uses_both_links_of_the_pair() -> None:
    torus = build("torus_2d", x_scale=2, y_scale=3, n=1)
    row = times(torus, fidelities=["analytic", "flow"])
    assert row["reduce_scatter", "row", "flow"]["time_ms"] * 1e6 == pytest.approx(10**15 / 2 / (2 * PORT))


# Fidelities -----------------------------------------------------------------------------------------------------------------------


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
    """All hops of rings over nodes are alike, and rings share no port, so the steps add up to the closed form."""
    m, n = shape
    latencies = {"internal_latency_ns": float(min(internal, external)), "external_latency_ns": float(external)}
    found = times(build("railx_hyperx", m=m, n=n, **latencies), payload)
    for kind, scope in [(kind, scope) for kind in RINGS[:3] for scope in ("row", "column", "nodes")]:
        flow, analytic = (found[kind, scope, fidelity] for fidelity in ("flow", "analytic"))
        assert flow["time_ms"] == pytest.approx(analytic["time_ms"])
    for kind, scope in (("ring_all_reduce", "chips"), ("hierarchical_all_reduce", "chips")):
        # Steps that wait for the slowest hop cannot be faster than a chain that does not.
        assert found[kind, scope, "flow"]["time_ms"] >= found[kind, scope, "analytic"]["time_ms"] * (1 - 1e-9)
    for scope in ("row", "nodes", "chips"):
        halves = [found[kind, scope, "flow"]["time_ms"] for kind in ("reduce_scatter", "all_gather")]
        assert sum(halves) == pytest.approx(found["ring_all_reduce", scope, "flow"]["time_ms"])


def test_narrow_links_inside_the_nodes_are_seen_by_the_messages_alone() -> None:
    """Through a chip row pass n rings of one port each and direction, over n lanes of half a port."""
    wide, narrow = (times(build("railx_hyperx", m=2, n=2, internal_width=width)) for width in (1.0, 0.5))
    key = ("ring_all_reduce", "row", "flow")
    assert wide[key]["time_ms"] == pytest.approx(wide["ring_all_reduce", "row", "analytic"]["time_ms"], rel=1e-6)
    assert narrow[key]["time_ms"] == pytest.approx(2 * wide[key]["time_ms"], rel=1e-6)


@pytest.mark.parametrize("setting", ["all_to_all", "torus"])
def test_full_scale_is_the_same_in_both_settings(setting: str) -> None:
    """m = 7, n = 9: 2 D (P - 1) / P / (4 r b) over 4,096 nodes, whether the rails make an all-to-all or plain rings."""
    size: dict[str, Any] = {"m": 7, "n": 9, "ocs_radix": 128}
    topology = build("railx_hyperx", **size) if setting == "all_to_all" else build("railx_torus", **size, x_scale=64, y_scale=64)
    payload = 10**15
    found = times(topology, payload, collectives=["ring_all_reduce", "hierarchical_all_reduce"])
    for fidelity in ("analytic", "flow"):
        nodes = found["ring_all_reduce", "nodes", fidelity]
        assert (nodes["participants"], nodes["rings"]) == (4096, 252)
        assert nodes["time_ms"] * 1e6 == pytest.approx(2 * payload * 4095 / 4096 / (4 * 63 * PORT), rel=1e-6)
        flat = found["ring_all_reduce", "chips", fidelity]
        assert flat["time_ms"] * 1e6 == pytest.approx(2 * payload * 200_703 / 200_704 / (36 * PORT), rel=1e-3)
        # Meshes of 7 x 7 chips with 9 lanes of 4 ports in both dimensions, then the nodes.
        mesh = payload * 48 / 49 / (2 * 9 * 4 * PORT)
        hierarchy = 2 * mesh + 2 * payload * 4095 / 4096 / (4 * 63 * PORT)
        assert found["hierarchical_all_reduce", "chips", fidelity]["time_ms"] * 1e6 == pytest.approx(hierarchy, rel=1e-6)


def test_hierarchy_of_single_chips_is_the_ring_over_nodes() -> None:
    found = times(build("railx_hyperx", m=1, n=4))
    for fidelity in ("analytic", "flow"):
        assert found["hierarchical_all_reduce", "chips", fidelity]["time_ms"] == pytest.approx(
            found["ring_all_reduce", "nodes", fidelity]["time_ms"]
        )


def test_other_families_send_a_ring_over_their_own_routing() -> None:
    """128 chips of a fat tree: one ring in each of 8 planes, whichever way it is counted."""
    found = times(build("fat_tree"), collectives=["ring_all_reduce"])
    for fidelity in ("analytic", "flow"):
        row = found["ring_all_reduce", "chips", fidelity]
        assert row["algorithm_gb_s"] == pytest.approx(8 * PORT / 2 * 128 / 127, rel=1e-6)
    plain = times(build("hyperx"), collectives=["ring_all_reduce"])
    assert plain["ring_all_reduce", "chips", "flow"]["time_ms"] == pytest.approx(
        plain["ring_all_reduce", "chips", "analytic"]["time_ms"], rel=1e-6
    )


def test_a_family_without_a_routing_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(family: str) -> tuple[str, ...]:
        raise KeyError(family)

    monkeypatch.setattr("railx.network.collectives.routings_of", none)
    assert simulate_collectives(build("hyperx"), collective(), "under test") == []


def test_most_messages_limits_the_flow_model() -> None:
    topology = build("railx_hyperx")
    all_lines, one_line, none = (times(topology, 10**6, most_messages=most) for most in (20_000, 40, 39))
    key = ("ring_all_reduce", "row", "flow")
    assert all_lines[key]["time_ms"] == pytest.approx(one_line[key]["time_ms"])
    assert key not in none
    assert ("ring_all_reduce", "row", "analytic") in none


# Sub-grids ------------------------------------------------------------------------------------------------------------------------


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
                assert row["time_ms"] * 1e6 == pytest.approx(2 * payload / length / (2 * PORT), rel=1e-5)
    hierarchy = found["hierarchical_all_reduce", "chips", "flow"]
    assert hierarchy["participants"] == 9 * c * r
    if c * r > 1:
        assert found["ring_all_reduce", "nodes", "flow"]["participants"] == c * r


def test_a_chain_of_a_torus_has_half_the_rings() -> None:
    torus = build("railx_torus")
    part = times(torus, rows=[0, 1], columns=[4, 0, 1])
    assert part["ring_all_reduce", "row", "analytic"]["rings"] == 4
    assert part["ring_all_reduce", "chips", "analytic"]["participants"] == 24
    for fidelity in ("analytic", "flow"):
        assert part["ring_all_reduce", "row", fidelity]["time_ms"] * 1e6 == pytest.approx(2 * 10**15 * 2 / 3 / (4 * PORT), rel=1e-5)


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


@settings(deadline=None, max_examples=10)
@given(payload=st.integers(1, 10**9), routing=st.sampled_from(["min", "balanced"]))
def test_messages_of_an_all_to_all_are_not_faster_than_its_bottleneck(payload: int, routing: str) -> None:
    topology = build("railx_hyperx", m=2, n=1)
    found = times(topology, payload, collectives=["all_to_all"], routing=routing)
    flow, analytic = (found["all_to_all", "chips", fidelity]["time_ms"] * 1e6 for fidelity in ("flow", "analytic"))
    longest = found["all_to_all", "chips", "analytic"]["time_ms"] * 1e6 - flow
    assert longest <= 2 * 100 + 6 * 10
    assert flow >= analytic - (2 * 100 + 6 * 10)


def test_all_to_all_at_full_scale() -> None:
    """2 flits a chip and cycle under the published routing at m = 7, n = 9: 100 GB/s."""
    topology = build("railx_hyperx_full")
    found = times(topology, 10**15, collectives=["all_to_all"])
    assert list(found) == [("all_to_all", "chips", "analytic")]
    assert found["all_to_all", "chips", "analytic"]["algorithm_gb_s"] == pytest.approx(100, rel=1e-3)


# Bad input ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("railx_hyperx", {"rows": []}, r"collective\.rows: got an empty list; allowed: null for all, or at least one position"),
        ("railx_hyperx", {"rows": [1, 1, 0]}, r"collective\.rows: got \[1, 1, 0\]; allowed: distinct positions, .* \[0, 1\]"),
        ("railx_hyperx", {"columns": [-1]}, r"collective\.columns\[0\]: got -1; allowed: 0 or greater"),
        ("railx_hyperx", {"columns": [5]}, r"columns: got 5; allowed: 0 to 4, the nearest is 4"),
        ("railx_torus", {"columns": [0, 2]}, r"columns: got \[0, 2\], which no links .* the nearest are \[0, 1, 2\]"),
        ("railx_torus", {"rows": [4, 1]}, r"rows: got \[4, 1\], which no links .* the nearest are \[0, 1, 4\]"),
        ("torus_2d", {"rows": [3], "columns": [3]}, r"columns: got a single chip; allowed: at least two chips"),
        ("fat_tree", {"rows": [0]}, r"rows: got a list; allowed: null, fat_tree is no grid of nodes"),
        ("railx_hyperx", {"collectives": ["gossip"]}, r"collective\.collectives\[0\]: got 'gossip'; allowed: ring_all_reduce"),
        ("railx_hyperx", {"routing": "valiant"}, r"routing: got 'valiant'; allowed on railx_hyperx: min"),
    ],
)
def test_bad_settings_are_named(family: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        simulate_collectives(build(family), collective(**change), "under test")


def test_shipped_settings_list_every_field() -> None:
    for path in (CONF / "collective").glob("*.yaml"):
        plain = yaml.safe_load(path.read_text())
        shipped: CollectiveSettings = load(CollectiveSettings, plain, "collective")
        assert set(plain) == set(CollectiveSettings.__dataclass_fields__)
        assert shipped.collectives
