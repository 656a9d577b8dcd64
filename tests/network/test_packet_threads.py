"""A run of the packet simulator in parts, on a thread each: the run of one thread."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from railx.families import build_routing
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import (
    AllToAllTraffic,
    HotSpotTraffic,
    PermutationTraffic,
    TrafficSettings,
    UniformTraffic,
)
from railx.settings import SettingsError
from tests.builders import build, checked

NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("railx_hyperx", {"m": 2, "n": 1}),
    ("railx_hyperx", {"m": 1, "n": 2}),
    ("mesh_2d", {"x_scale": 4, "y_scale": 3, "n": 1}),
    ("torus_2d", {"x_scale": 5, "y_scale": 5, "n": 2}),
    ("hammingmesh", {}),
]


def outcome(
    name: str, sizes: dict[str, Any], traffic: TrafficSettings, seed: int, **changes: Any
) -> dict[str, Any]:
    """All that a run says, but for how fast it was."""
    network = checked("network", "packet", **changes)
    topology = build(name, **sizes)
    result = simulate_packets(
        topology, build_routing(topology, network.routing), traffic, network, seed
    )
    return {
        key: np.asarray(value).tolist()
        for key, value in dataclasses.asdict(result).items()
        if not key.endswith("per_second")
    }


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    st.sampled_from(NETWORKS),
    st.sampled_from([0.1, 0.6, 3.0]),
    st.sampled_from([1, 2, 16]),
    st.integers(2, 5),
    st.integers(0, 2**16),
)
def test_any_number_of_threads_gives_the_same_run(
    network: tuple[str, dict[str, Any]], load: float, packets_a_buffer: int, threads: int, seed: int
) -> None:
    """From a quiet network to one whose queues outgrow the rows for packets."""
    changes: dict[str, Any] = {
        "buffer_flits": 4 * packets_a_buffer,
        "warmup_cycles": 50,
        "measured_cycles": 300,
        "batches": 5,
    }
    runs = [
        outcome(*network, UniformTraffic("uniform", load), seed, **changes, threads=number)
        for number in (1, threads)
    ]
    assert runs[0]["delivered"] > 0
    assert runs[1] == runs[0]


@pytest.mark.parametrize(
    "traffic",
    [
        AllToAllTraffic("all_to_all", 1.0),
        PermutationTraffic("permutation", 1.0, permutation="complement", offset=1),
        HotSpotTraffic("hot_spot", 1.0, hot_share=0.3, hot_chips=3),
    ],
    ids=lambda traffic: traffic.pattern,
)
def test_every_traffic_is_the_same_on_more_threads(traffic: TrafficSettings) -> None:
    runs = [
        outcome("railx_hyperx", {}, traffic, 3, measured_cycles=400, threads=number)
        for number in (1, 2, 3)
    ]
    assert runs[0]["queued"] > 100
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]


def test_more_threads_than_chips_leave_some_without_work() -> None:
    size = {"x_scale": 2, "y_scale": 2, "n": 1}
    traffic = UniformTraffic("uniform", 0.5)
    runs = [
        outcome("mesh_2d", size, traffic, 1, measured_cycles=200, threads=number)
        for number in (1, 6)
    ]
    assert runs[1] == runs[0]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "railx_hyperx",
            {"router": "railx_simulator"},
            "router: got railx_simulator; allowed with threads above 1: in_order",
        ),
        (
            "railx_hyperx",
            {"routing": "adaptive"},
            "routing: got adaptive; allowed with threads above 1: a routing that is not adaptive",
        ),
        (
            "railx_hyperx",
            {"ejection_ports": 2},
            "ejection_ports: got 2; allowed with threads above 1: null",
        ),
        (
            "railx_hyperx",
            {"source_cycles": 0},
            "source_cycles: got 0; allowed with threads above 1: at least 1",
        ),
        (
            "railx_hyperx",
            {"routing": "balanced"},
            "threads: got 2; allowed with a routing that draws among ways: 1",
        ),
        (
            "mesh_2d",
            {"cycle_ns": 1000.0},
            "threads: got 2; allowed with links shorter than a cycle: 1",
        ),
    ],
)
def test_packets_of_two_threads_that_meet_within_a_cycle_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"{message}$"):
        outcome(name, {}, UniformTraffic("uniform", 0.1), 1, threads=2, **changes)
