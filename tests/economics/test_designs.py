"""Counts and bandwidths of every design against the built topologies, and the two consequences of RailX's cost model."""

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
from railx.network.routing import build_routing, path_sums, table_lane_loads
from railx.settings import load
from railx.topology import INTERNAL, Topology, TopologySettings, bisection_ports, build_topology, ports_per_chip

GBPS = 400.0
PORT_GB_S = GBPS / 8
_GRID = {"port_gbps": GBPS, "internal_width": 4.0, "internal_latency_ns": 10.0, "external_latency_ns": 100.0}
_RAILX = {**_GRID, "rings": "directed", "ocs_radix": None}
_TREE = {"port_gbps": GBPS, "leaf_latency_ns": 50.0, "global_latency_ns": 100.0}
_SERVERS = {"port_gbps": GBPS, "scale_up_width": 9.0, "scale_up_latency_ns": 10.0}


def railx(setting: str, m: int, n: int, row: tuple[int, ...], column: tuple[int, ...]) -> RailXSettings:
    return load(
        RailXSettings,
        {
            "design": "railx", "setting": setting, "m": m, "n": n, "optical_switch_radix": 128, "row": row, "column": column,
            "port_gbps": GBPS, "in_node_width": 4.0, "price_set": None,
        },
    )  # fmt: skip


def hammingmesh(m: int, n: int, row: int, column: int, radix: int = 64, **changes: Any) -> HammingMeshSettings:
    plain = {
        "design": "hammingmesh", "m": m, "n": n, "row_boards": row, "column_boards": column, "switch_radix": radix, "taper": 1.0,
        "copper_rows": False, "port_gbps": GBPS, "price_set": None, "copper_price_set": None,
    }  # fmt: skip
    return load(HammingMeshSettings, {**plain, **changes})


@dataclass(frozen=True)
class Case:
    """A design, the topology that it describes, and a routing of it whose uniform loads are even (None: none is)."""

    design: NetworkDesign
    topology: Mapping[str, Any]
    routing: str | None


CASES = {
    "railx_hyperx": Case(
        railx("hyperx", 2, 2, (5,), (5,)), {**_RAILX, "family": "railx_hyperx", "m": 2, "n": 2}, "balanced"
    ),
    "railx_split": Case(
        railx("hyperx", 2, 2, (3, 3), (3, 3)),
        {**_RAILX, "family": "railx_split", "m": 2, "n": 2, "sizes_x": [3, 3], "split_x": [2, 2], "sizes_y": [3, 3], "split_y": [2, 2]},
        "balanced",
    ),
    "railx_torus": Case(
        railx("torus", 2, 2, (6,), (4,)), {**_GRID, "family": "railx_torus", "m": 2, "n": 2, "x_scale": 6, "y_scale": 4, "ocs_radix": None}, "balanced"
    ),
    "railx_twisted_torus": Case(
        railx("twisted_torus", 2, 2, (8,), (4,)),
        {**_GRID, "family": "railx_twisted_torus", "m": 2, "n": 2, "x_scale": 8, "y_scale": 4, "wrap": "twisted", "ocs_radix": None},
        None,
    ),
    "railx_dragonfly": Case(
        railx("dragonfly", 2, 2, (5,), (11,)), {**_RAILX, "family": "railx_dragonfly", "m": 2, "n": 2, "columns": 5, "rows": 11}, None
    ),
    "hammingmesh": Case(
        hammingmesh(2, 2, 6, 4),
        {**_GRID, "family": "hammingmesh", "m": 2, "n": 2, "x_scale": 6, "y_scale": 4, "switch_radix": 64},
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
    "rail_optimised": Case(
        RailsSettings("rails", True, 128, 8, 2, GBPS, 2, 16, None),
        {**_SERVERS, **_TREE, "family": "rail_optimised", "chips_per_server": 8, "pods": 2, "switch_radix": 16, "planes": 2},
        None,
    ),
    "rail_only": Case(
        RailsSettings("rails", False, 128, 8, 2, GBPS, 1, 16, None),
        {
            **_SERVERS, "family": "rail_only", "chips_per_server": 8, "servers": 16, "switch_radix": 16, "planes": 2,
            "leaf_latency_ns": 50.0,
        },
        None,
    ),
    "dragonfly": Case(
        DragonflySettings("dragonfly", 9, 2, 3, GBPS, False, None, None),
        {**_TREE, "family": "dragonfly", "p": 2, "a": 4, "h": 2, "groups": 9, "planes": 3, "local_latency_ns": 50.0},
        None,
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
    """Components of a built topology: every end of a link between nodes is a transceiver, an end at a switch also a switch port."""
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
        assert counts.injection_gb_s_per_chip == ports_per_chip(settings) * PORT_GB_S
    assert counts.chips == chips_of(case.design) == topology.chips
    assert counts.components == expected


@pytest.mark.parametrize("name", [name for name in CASES if name != "opus_rails"])
def test_bisection_is_that_of_the_topology(name: str) -> None:
    case = CASES[name]
    settings, topology = built(case)
    counts = count_network(case.design)
    assert counts.bisection_gb_s_per_chip == pytest.approx(bisection_ports(settings) * PORT_GB_S / (topology.chips / 2))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.routing is not None])
def test_all_to_all_is_what_balanced_routing_reaches(name: str) -> None:
    """The busiest lane between nodes is full at the closed form; where chips feed the network, their own port is the first."""
    case = CASES[name]
    assert case.routing is not None
    _, topology = built(case)
    loads = table_lane_loads(topology, build_routing(topology, case.routing))
    outside = topology.links.kind != INTERNAL
    busiest = loads[outside].max()
    assert count_network(case.design).all_to_all_gb_s_per_chip == pytest.approx(PORT_GB_S / busiest, rel=1e-6)
