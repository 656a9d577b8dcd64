"""Counts and bandwidths of every design against the built topologies, and the two
consequences of RailX's cost model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from railx.economics import (
    CubesSettings,
    DragonflySettings,
    FatTreeSettings,
    HammingMeshSettings,
    HyperXSettings,
    NetworkDesign,
    OpusRailsSettings,
    RailsSettings,
    RailXSettings,
    TorusSettings,
    chips_of,
    count_network,
    optical_switches,
    railx_external_hops,
)
from railx.families import TopologySettings, build_routing, build_topology, family_of
from railx.settings import load
from railx.vocabulary.routing.analysis import path_sums, table_lane_loads
from railx.vocabulary.topology import INTERNAL, Topology

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


def railx(
    setting: str, m: int, n: int, row: tuple[int, ...], column: tuple[int, ...]
) -> RailXSettings:
    return load(
        RailXSettings,
        {
            "design": "railx", "setting": setting, "m": m, "n": n, "optical_switch_radix": 128, "row": row, "column": column,
            "port_gbps": GBPS, "in_node_width": 4.0, "price_set": None,
        },
    )  # fmt: skip


def hammingmesh(
    m: int, n: int, row: int, column: int, radix: int = 64, **changes: Any
) -> HammingMeshSettings:
    plain = {
        "design": "hammingmesh", "m": m, "n": n, "row_boards": row, "column_boards": column, "switch_radix": radix, "taper": 1.0,
        "copper_rows": False, "port_gbps": GBPS, "price_set": None, "copper_price_set": None,
    }  # fmt: skip
    return load(HammingMeshSettings, {**plain, **changes})


@dataclass(frozen=True)
class Case:
    """A design, the topology that it describes, and a routing of it whose uniform loads
    are even (None: none is).
    """

    design: NetworkDesign
    topology: Mapping[str, Any]
    routing: str | None


CASES = {
    "railx_hyperx": Case(railx("hyperx", 2, 2, (5,), (5,)), {**_RAILX, "family": "railx_hyperx"}, "balanced"),
    "railx_split": Case(
        railx("hyperx", 2, 2, (4, 2), (4, 2)),
        {
            **_RAILX, "family": "railx_split", "rings": "undirected",
            "sizes_x": [4, 2], "split_x": [3, 1], "sizes_y": [4, 2], "split_y": [3, 1],
        },
        "balanced",
    ),
    "railx_torus": Case(
        railx("torus", 2, 2, (6,), (4,)),
        {**_GRID, "family": "railx_torus", "x_scale": 6, "y_scale": 4, "ocs_radix": None},
        "balanced",
    ),
    "railx_twisted_torus": Case(
        railx("twisted_torus", 2, 2, (8,), (4,)),
        {**_GRID, "family": "railx_twisted_torus", "x_scale": 8, "y_scale": 4, "wrap": "twisted", "ocs_radix": None},
        "balanced",
    ),
    "railx_dragonfly": Case(
        railx("dragonfly", 2, 2, (5,), (11,)), {**_RAILX, "family": "railx_dragonfly", "columns": 5, "rows": 11}, None
    ),
    "hammingmesh": Case(
        hammingmesh(2, 2, 6, 4),
        {**_GRID, "family": "hammingmesh", "x_scale": 6, "y_scale": 4, "switch_radix": 64},
        "balanced",
    ),
    "torus_2d": Case(
        TorusSettings("torus", 1, 2, (8, 6), GBPS, None),
        {"family": "torus_2d", "n": 2, "x_scale": 8, "y_scale": 6, "port_gbps": GBPS, "latency_ns": 10.0},
        "balanced",
    ),
    "torus_3d": Case(
        TorusSettings("torus", 1, 2, (6, 4, 4), GBPS, None),
        {"family": "torus_3d", "n": 2, "x_scale": 6, "y_scale": 4, "z_scale": 4, "port_gbps": GBPS, "latency_ns": 10.0},
        "balanced",
    ),
    "tpu_v4": Case(
        CubesSettings("tpu_v4", 4, 1, (2, 2, 2), 136, GBPS, None),
        {
            "family": "tpu_v4", "cube_side": 4, "x_cubes": 2, "y_cubes": 2, "z_cubes": 2, "n": 1, "ocs_radix": 136,
            "port_gbps": GBPS, "internal_latency_ns": 10.0, "external_latency_ns": 100.0,
        },
        "balanced",
    ),
    "fat_tree": Case(
        FatTreeSettings("fat_tree", 128, 2, GBPS, 3, 8, 1.0, False, None, None),
        {**_TREE, "family": "fat_tree", "tiers": 3, "switch_radix": 8, "leaf_down_ports": None, "planes": 2},
        "min",
    ),
    "fat_tree_two_tiers": Case(
        FatTreeSettings("fat_tree", 32, 2, GBPS, 2, 8, 1.0, False, None, None),
        {**_TREE, "family": "fat_tree", "tiers": 2, "switch_radix": 8, "leaf_down_ports": None, "planes": 2},
        "min",
    ),
    "fat_tree_tapered": Case(
        FatTreeSettings("fat_tree", 96, 2, GBPS, 2, 12, 0.5, False, None, None),
        {**_TREE, "family": "fat_tree", "tiers": 2, "switch_radix": 12, "leaf_down_ports": 8, "planes": 2},
        "min",
    ),
    "rail_optimised": Case(
        RailsSettings("rails", True, 128, 8, 2, GBPS, 2, 16, None),
        {**_SERVERS, **_TREE, "family": "rail_optimised", "chips_per_server": 8, "pods": 2, "switch_radix": 16, "planes": 2},
        "min",
    ),
    "rail_only": Case(
        RailsSettings("rails", False, 128, 8, 2, GBPS, 1, 16, None),
        {
            **_SERVERS, "family": "rail_only", "chips_per_server": 8, "servers": 16, "switch_radix": 16, "planes": 2,
            "leaf_latency_ns": 50.0,
        },
        "min",
    ),
    "dragonfly": Case(
        DragonflySettings("dragonfly", 9, 2, 3, GBPS, False, None, None),
        {**_TREE, "family": "dragonfly", "p": 2, "a": 4, "h": 2, "groups": 9, "planes": 3, "local_latency_ns": 50.0},
        "min",
    ),
    "hyperx": Case(
        HyperXSettings("hyperx", 2, 4, 3, 16, 2, GBPS, None),
        {
            "family": "hyperx", "shape": [4, 4], "lanes": 1, "chips_per_switch": 3, "planes": 2, "port_gbps": GBPS,
            "leaf_latency_ns": 50.0, "latency_ns": 100.0,
        },
        "min",
    ),
    "opus_rails": Case(
        OpusRailsSettings("opus_rails", 16, 8, 1, GBPS, 2, 1, 192, None),
        {
            **_SERVERS, "family": "opus_rails", "chips_per_server": 8, "servers": 16, "ocs_ports": 2, "ocs_radix": None,
            "external_latency_ns": 100.0,
        },
        None,
    ),
}  # fmt: skip


def built(case: Case) -> tuple[Any, Topology]:
    settings = load(TopologySettings, dict(case.topology))
    return settings, build_topology(settings)


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
    case = CASES[name]
    settings, topology = built(case)
    counts = count_network(case.design)
    expected = counted(topology)
    if name == "opus_rails":
        expected["transceiver"] //= 2  # the artifact counts one for the two OCS ports of a GPU
    else:
        assert (
            counts.injection_gb_s_per_chip
            == family_of(settings).ports_per_chip(settings) * PORT_GB_S
        )
    assert counts.chips == chips_of(case.design) == topology.chips
    assert counts.components == expected


@pytest.mark.parametrize("name", [name for name in CASES if name != "opus_rails"])
def test_bisection_is_that_of_the_topology(name: str) -> None:
    case = CASES[name]
    settings, topology = built(case)
    counts = count_network(case.design)
    assert counts.bisection_gb_s_per_chip == pytest.approx(
        family_of(settings).bisection_ports(settings) * PORT_GB_S / (topology.chips / 2)
    )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.routing is not None])
def test_all_to_all_is_what_balanced_routing_reaches(name: str) -> None:
    """The busiest lane between nodes is full at the closed form (where servers talk
    inside, at the injection bandwidth).
    """
    case = CASES[name]
    assert case.routing is not None
    _, topology = built(case)
    loads = table_lane_loads(topology, build_routing(topology, case.routing))
    outside = topology.links.kind != INTERNAL
    counts, reached = count_network(case.design), PORT_GB_S / loads[outside].max()
    assert counts.all_to_all_gb_s_per_chip == pytest.approx(
        min(reached, counts.injection_gb_s_per_chip), rel=1e-6
    )


@pytest.mark.parametrize("name", ["railx_torus", "railx_twisted_torus", "railx_split"])
def test_external_hops_are_those_of_minimal_ways(name: str) -> None:
    case = CASES[name]
    assert isinstance(case.design, RailXSettings)
    _, topology = built(case)
    outside = (topology.links.kind != INTERNAL).astype(float)
    hops = path_sums(topology, build_routing(topology, "balanced"), outside)
    assert railx_external_hops(case.design) == pytest.approx(
        np.sum(hops) / (topology.chips * (topology.chips - 1))
    )


def test_every_rail_of_every_line_has_a_switch() -> None:
    settings, topology = built(CASES["railx_hyperx"])
    assert topology.circuits is not None
    design = CASES["railx_hyperx"].design
    assert isinstance(design, RailXSettings)
    assert optical_switches(design) == len(set(topology.circuits.ocs.tolist()))
    assert family_of(settings).ports_per_chip(settings) == 8


@hypothesis_settings(deadline=None)
@given(st.integers(1, 7), st.integers(1, 9), st.data())
def test_railx_beats_hammingmesh_by_one_end_against_a_switch_port_and_two(
    m: int, n: int, data: st.DataObject
) -> None:
    """Same boards, same bandwidths; an external port costs c_t + c_o in RailX, 2 c_t +
    c_s in HammingMesh.
    """
    lines = st.sampled_from(
        [copies + 1 for copies in range(1, min(m * n, 31) + 1) if m * n % copies == 0]
    )
    row, column = data.draw(lines), data.draw(lines)
    ours, theirs = (
        count_network(railx("hyperx", m, n, (row,), (column,))),
        count_network(hammingmesh(m, n, row, column)),
    )
    ports = ours.components["ocs_port"]
    assert ours.components == {"transceiver": ports, "ocs_port": ports}
    assert theirs.components == {"transceiver": 2 * ports, "electrical_switch_port": ports}
    assert ours.chips == theirs.chips
    assert ours.injection_gb_s_per_chip == theirs.injection_gb_s_per_chip
    assert ours.all_to_all_gb_s_per_chip == pytest.approx(theirs.all_to_all_gb_s_per_chip)


@hypothesis_settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 20))
def test_cost_per_injection_falls_as_one_over_m_and_per_all_to_all_does_not(m: int, n: int) -> None:
    """In optical ports (c_t + c_o) per port of bandwidth: exactly 1/m, and exactly the
    hops h = 2 (1 - 1/k) N / (N - 1).
    """
    line = m * n + 1
    counts = count_network(railx_of(m, n, line))
    ports = counts.components["ocs_port"] / counts.chips
    assert counts.all_to_all_gb_s_per_chip is not None
    assert ports / (counts.injection_gb_s_per_chip / PORT_GB_S) == pytest.approx(1 / m, rel=1e-12)
    hops = 2 * (1 - 1 / line) * counts.chips / (counts.chips - 1)
    assert ports / (counts.all_to_all_gb_s_per_chip / PORT_GB_S) == pytest.approx(hops, rel=1e-12)
    assert 1 < hops < 2 or line == 2


def railx_of(m: int, n: int, line: int) -> RailXSettings:
    return RailXSettings("railx", "hyperx", m, n, 2 * line, (line,), (line,), GBPS, 4.0, None)


@pytest.mark.parametrize("setting", ["hyperx", "torus", "dragonfly"])
def test_every_setting_costs_the_same(setting: str) -> None:
    design = railx(setting, 7, 9, (64,), (64,))
    assert count_network(design).components == {"transceiver": 1_032_192, "ocs_port": 1_032_192}
    assert count_network(design).injection_gb_s_per_chip == 1800.0


def test_full_scale_torus_is_sixteen_times_slower_at_all_to_all() -> None:
    """8 n / K for a torus of K = 448 chips a side (times (N - 1) / N) against 130.6
    GB/s of the same hardware as a HyperX.
    """
    torus = count_network(railx("torus", 7, 9, (64,), (64,))).all_to_all_gb_s_per_chip
    assert torus == pytest.approx(8 * 9 / 448 * PORT_GB_S * (1 - 1 / 200_704))
    hyperx = count_network(railx("hyperx", 7, 9, (64,), (64,))).all_to_all_gb_s_per_chip
    assert hyperx is not None
    assert hyperx / torus == pytest.approx(16.25, abs=0.01)


def test_dragonfly_ports() -> None:
    """4 - 1/p switch ports and 5 - 1/p transceivers an end port; copper inside the
    group leaves one transceiver.
    """
    p, ends = 8, 2 * 8**2 * 40 * 36
    optical = count_network(
        DragonflySettings("dragonfly", 40, p, 36, GBPS, False, None, None)
    ).components
    assert optical == {
        "electrical_switch_port": (4 * p - 1) * ends // p,
        "transceiver": (5 * p - 1) * ends // p,
    }
    copper = count_network(
        DragonflySettings("dragonfly", 40, p, 36, GBPS, True, None, "hammingmesh_2022")
    ).components
    assert copper["transceiver"] == ends
    assert copper["copper_cable"] == ends + ends * (2 * p - 1) // (2 * p)


def test_tpu_v4_has_one_and_a_half_optical_ports_a_chip() -> None:
    """64 cubes of 4 x 4 x 4: 96 face links a cube, on 48 switches of which 128 ports
    are used.
    """
    counts = count_network(CubesSettings("tpu_v4", 4, 1, (4, 4, 4), 136, GBPS, None))
    assert counts.chips == 4096
    assert counts.components == {"transceiver": 48 * 128, "ocs_port": 48 * 128}
    assert counts.components["ocs_port"] / counts.chips == 1.5
