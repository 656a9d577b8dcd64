"""Hops and bisection against closed forms and against another library's search."""

import dataclasses
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.network.metrics import chip_hop_counts, node_hop_counts, topology_metrics
from railx.vocabulary.topology import INTERNAL, Links
from tests.builders import build, hyperx


@settings(deadline=None, max_examples=12)
@given(m=st.integers(1, 3), n=st.integers(1, 3))
def test_hyperx_metrics_have_their_closed_forms(m: int, n: int) -> None:
    if m * n < 2:
        return
    metrics = topology_metrics(hyperx(m, n))
    side, chips = m * n + 1, metrics["chips"]
    assert metrics["diameter_node_hops"] == 2
    assert metrics["mean_node_hops"] == pytest.approx(2 * (chips - chips / side) / (chips - 1))
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]
    assert metrics["bisection_equal_halves"] == (side % 2 == 0)
    if side % 2 == 0:  # RailX: (r + 1) b / m^2 per chip of one half
        assert metrics["bisection_gb_s_per_chip"] == pytest.approx(side * 50 / m**2)


def test_hyperx_at_full_scale() -> None:
    metrics = topology_metrics(build("railx_hyperx_full"))
    assert (metrics["chips"], metrics["optical_switches"], metrics["optical_ports"]) == (
        200_704,
        8_064,
        1_032_192,
    )
    assert metrics["diameter_node_hops"] == 2
    assert metrics["mean_node_hops"] == pytest.approx(2 * (200_704 - 200_704 / 64) / 200_703)
    assert metrics["injection_gb_s_per_chip"] == 1_800
    assert metrics["bisection_gb_s_per_chip"] == pytest.approx(65.306, abs=0.001)
    assert metrics["mean_chip_hops"] is None


@settings(deadline=None, max_examples=12)
@given(x=st.integers(2, 9), y=st.integers(2, 9), n=st.integers(1, 3))
def test_torus_metrics_have_their_closed_forms(x: int, y: int, n: int) -> None:
    metrics = topology_metrics(build("torus_2d", x_scale=x, y_scale=y, n=n))
    distances = [min(dx, x - dx) + min(dy, y - dy) for dx in range(x) for dy in range(y)]
    assert metrics["diameter_node_hops"] == metrics["diameter_chip_hops"] == x // 2 + y // 2
    assert metrics["mean_node_hops"] == pytest.approx(sum(distances) / (x * y - 1))
    assert metrics["mean_chip_hops"] == pytest.approx(metrics["mean_node_hops"])
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]
    assert metrics["bisection_equal_halves"] == (max(x, y) % 2 == 0)
    assert metrics["disjoint_paths_min"] == 4 * n


@pytest.mark.parametrize(("k", "planes"), [(4, 1), (4, 3), (6, 2), (8, 1)])
def test_fat_tree_metrics_have_their_closed_forms(k: int, planes: int) -> None:
    metrics = topology_metrics(build("fat_tree", switch_radix=k, planes=planes))
    chips, half = k**3 // 4, k // 2
    assert (metrics["chips"], metrics["switches"]) == (chips, 5 * half**2 * planes)
    near, pod = half - 1, half**2 - half
    mean = (2 * near + 4 * pod + 6 * (chips - half**2)) / (chips - 1)
    assert (metrics["diameter_node_hops"], metrics["diameter_chip_hops"]) == (6, 6)
    assert metrics["mean_node_hops"] == pytest.approx(mean)
    assert metrics["mean_chip_hops"] == pytest.approx(mean)
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"]
    assert metrics["bisection_gb_s_per_chip"] == pytest.approx(planes * 50)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("railx_hyperx", {}),
        ("railx_hyperx", {"m": 3, "n": 1, "rings": "undirected"}),
        ("railx_torus", {"x_scale": 4, "y_scale": 3}),
        ("railx_torus", {"m": 1, "x_scale": 2, "y_scale": 5}),
        ("fat_tree", {"switch_radix": 4, "planes": 2}),
    ],
)
def test_hop_counts_agree_with_networkx(name: str, changes: dict[str, Any]) -> None:
    topology = build(name, **changes)
    links = topology.links
    chips = nx.Graph(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    counted = _counts(chips, range(topology.chips))
    assert chip_hop_counts(topology) is not None
    assert np.array_equal(chip_hop_counts(topology), counted)
    external = links.kind != INTERNAL
    vertex = np.concatenate([topology.chip_node, topology.nodes + np.arange(topology.switches)])
    nodes = nx.Graph(
        zip(vertex[links.src[external]].tolist(), vertex[links.dst[external]].tolist(), strict=True)
    )
    per_node = topology.chips // topology.nodes
    assert np.array_equal(
        node_hop_counts(topology), _counts(nodes, range(topology.nodes)) * per_node**2
    )


def test_a_cut_network_is_noticed() -> None:
    topology = build("fat_tree", switch_radix=4, planes=1)
    keep = (topology.links.src != 0) & (topology.links.dst != 0)
    links = Links(
        **{
            field.name: getattr(topology.links, field.name)[keep]
            for field in dataclasses.fields(Links)
        }
    )
    with pytest.raises(ValueError, match="not connected"):
        chip_hop_counts(dataclasses.replace(topology, links=links))


def test_graphs_too_large_to_search_say_nothing() -> None:
    metrics = topology_metrics(build("fat_tree", switch_radix=16, planes=8))
    assert metrics["diameter_node_hops"] is None
    assert metrics["mean_chip_hops"] is None
    assert metrics["chips"] == 1_024


def _counts(graph: Any, sources: range) -> np.ndarray:
    hops = [
        length
        for source in sources
        for target, length in nx.single_source_shortest_path_length(graph, source).items()
        if target in sources
    ]
    return np.bincount(hops)
