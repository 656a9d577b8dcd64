"""Rates of groups on large networks are those of exact loads, and are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.design.rates import GroupRates, RateStore, folded
from railx.families import FAMILIES, build_topology, family_of
from railx.network.group_bandwidth import strided_groups
from railx.performance.topologies import ExactLoads
from railx.vocabulary.topology import FamilySettings, NodeSettings
from tests.builders import topology_settings, with_node

NAMES = [family.name for family in FAMILIES if family.name != "imported"]
PATTERNS = [("ring", 4, 1), ("next", 4, 2), ("direct", 4, 1), ("direct", 4, 2)]


def rates_of(settings: FamilySettings, ranks: int, store: RateStore | None = None) -> GroupRates:
    return GroupRates(
        settings,
        ranks,
        8,
        port_share=1.0,
        inside_share=1.0,
        store=store or RateStore(),
    )


@pytest.mark.parametrize("name", NAMES)
def test_planes_and_nodes_apart_give_the_loads_of_the_network(name: str) -> None:
    settings = with_node(topology_settings(name))
    topology = build_topology(settings)
    ranks = topology.chips
    exact = ExactLoads(topology, [r for r in family_of(settings).routings if r in STATIC])
    ours = rates_of(settings, ranks)
    assert (ours.chips == exact.chips).all()
    for algorithm, size, stride in PATTERNS:
        groups = strided_groups(exact.chips, size, stride)
        for routing in exact.routings:
            first, second = (net._way(algorithm, routing, groups, 1.0, 1) for net in (exact, ours))
            assert second.latency_ns == pytest.approx(first.latency_ns)
            for rate in ("between_gb_s", "inside_gb_s"):
                assert getattr(second.rates, rate) == pytest.approx(getattr(first.rates, rate))


STATIC = ("min", "balanced")


@pytest.mark.parametrize("name", ["slim_fly", "polarfly", "jellyfish", "dragonfly_plus"])
def test_detours_load_as_twice_uniform_traffic(name: str) -> None:
    """Routed detours may skip routers, so that they are a little faster."""
    settings = with_node(topology_settings(name))
    topology = build_topology(settings)
    exact, ours = ExactLoads(topology, ["valiant"]), rates_of(settings, topology.chips)
    groups = exact.chips[None, :]
    routed, closed = (
        net._way("direct", "valiant", groups, 1.0, 1).rates.between_gb_s for net in (exact, ours)
    )
    assert 0.9 * routed <= closed <= routed * (1 + 1e-9)


@pytest.mark.parametrize(
    ("algorithm", "stride", "crossing"),
    [("direct", 1, 4 / 7), ("direct", 2, 6 / 7), ("ring", 1, 0.5), ("ring", 4, 1), ("next", 1, 1)],
)
def test_the_share_that_leaves_a_node(algorithm: str, stride: int, crossing: float) -> None:
    """Of groups of eight in nodes of four, of the member that sends most out of its."""
    settings: Any = replace(topology_settings("torus_2d"), x_scale=8, y_scale=8)
    rates = rates_of(replace(settings, node=NodeSettings(4, "switch", 450.0)), 64)
    groups = strided_groups(rates.chips, 8, stride)
    assert rates._rates_of(algorithm, "min", groups).crossing == pytest.approx(crossing)


def test_rates_scale_with_ports_and_nodes() -> None:
    settings = with_node(topology_settings("slim_fly"))
    topology = build_topology(settings)
    groups = strided_groups(np.arange(topology.chips), 8, 1)
    plain = rates_of(settings, topology.chips)._way("ring", "min", groups, 1.0, 1).rates
    scaled = GroupRates(
        settings,
        topology.chips,
        8,
        port_share=0.25,
        inside_share=2.0,
        store=RateStore(),
    )
    rates = scaled._way("ring", "min", groups, 1.0, 1).rates
    assert rates.between_gb_s == pytest.approx(plain.between_gb_s / 4)
    assert rates.inside_gb_s == pytest.approx(2 * plain.inside_gb_s)
    assert {way.algorithm for way in scaled.ways(groups, "all_gather")} == {"direct", "ring"}
    assert {way.algorithm for way in scaled.ways(groups, "all_to_all")} == {"direct"}


def test_one_plane_has_the_rate_of_all() -> None:
    settings = topology_settings("fat_tree")
    plane: Any = folded(settings)
    assert (plane.planes, plane.port_gbps) == (1, settings.planes * settings.port_gbps)
    assert folded(plane) is plane


def test_kept_rates_are_read_again_and_damaged_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = topology_settings("torus_2d")
    first = rates_of(settings, 100, RateStore(tmp_path, "code"))
    groups = strided_groups(first.chips, 4, 1)
    way = first._way("ring", "min", groups, 1.0, 1)
    first.keep()
    (file,) = tmp_path.glob("*.json")
    with monkeypatch.context() as patch:
        patch.setattr(GroupRates, "_crossing", None)
        again = rates_of(settings, 100, RateStore(tmp_path, "code"))
        assert again._way("ring", "min", groups, 1.0, 1) == way
    for store in (RateStore(tmp_path, "other code"), RateStore(None, "code")):
        assert store.read(settings) == {}
    file.write_bytes(file.read_bytes().replace(b"ring", b"rung"))
    assert RateStore(tmp_path, "code").read(settings) == {}


def test_changes_of_circuits_take_time_and_no_new_rates(tmp_path: Path) -> None:
    still = topology_settings("mixnet")
    store = RateStore(tmp_path)
    groups = strided_groups(rates_of(still, 128).chips, 64, 1)
    latencies = []
    for settings in (still, replace(still, change_ms=40.0)):
        rates = rates_of(settings, 128, store)
        (way,) = rates.ways(groups, "all_to_all")
        assert way.routing == "min"
        assert {other.routing for other in rates.ways(groups, "all_gather")} == {"tree"}
        latencies.append(way.latency_ns)
        rates.keep()
    assert latencies[1] - latencies[0] == pytest.approx(1e7)
    assert len(list(tmp_path.iterdir())) == 1
