"""The packet simulator: against a second simulator that shares no code, exact latencies, conservation, known saturation points."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from railx.network.packets import (
    PacketResult,
    Trace,
    simulate_packets,
    simulate_trace,
    summary_row,
    sweep_loads,
    zero_load_latency_cycles,
)
from railx.network.packets.layout import build_net, build_state
from railx.network.packets.simulate import run_until
from railx.network.routing import RoutingTable, TableBuilder, build_routing, table_lane_loads
from railx.network.settings import (
    AllToAllTraffic,
    HotSpotTraffic,
    MatrixTraffic,
    NeighbourTraffic,
    PacketNetworkSettings,
    PermutationTraffic,
    SweepSettings,
    TrafficSettings,
    UniformTraffic,
)
from railx.settings import load
from railx.topology import Topology, TopologySettings, build_topology

CONF = Path(__file__).parents[2] / "conf"


def load_reference() -> ModuleType:
    """The module beside this one; tests are no package, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("reference_simulator", Path(__file__).with_name("reference_simulator.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


Reference = load_reference().Reference


def build(name: str, **changes: Any) -> Topology:
    plain = yaml.safe_load((CONF / "topology" / f"{name}.yaml").read_text()) | changes
    return build_topology(load(TopologySettings, plain, "topology"))


def model(**changes: Any) -> PacketNetworkSettings:
    plain = yaml.safe_load((CONF / "network" / "packet.yaml").read_text()) | changes
    return load(PacketNetworkSettings, plain, "network")


def burst(topology: Topology, packets: int, cycles: int, seed: int) -> Trace:
    """Random packets; the first half wants few destinations, so that queues form."""
    rng = np.random.default_rng(seed)
    src = rng.integers(topology.chips, size=packets)
    dst = rng.integers(topology.chips, size=packets)
    dst[::2] %= 2
    dst = np.where(dst == src, (dst + 1) % topology.chips, dst)
    return Trace(np.sort(rng.integers(cycles, size=packets)), src, dst)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "railx": ("railx_hyperx", {"m": 2, "n": 1}, {}),
    "railx tight": ("railx_hyperx", {"m": 2, "n": 1}, {"buffer_flits": 4}),
    "railx balanced": ("railx_hyperx", {"m": 2, "n": 1}, {"routing": "balanced", "buffer_flits": 8}),
    "railx adaptive": ("railx_hyperx", {"m": 2, "n": 1}, {"routing": "adaptive", "buffer_flits": 8}),
    "railx lanes adaptive": ("railx_hyperx", {"m": 1, "n": 4}, {"routing": "adaptive", "buffer_flits": 8}),
    "railx narrow": ("railx_hyperx", {"m": 2, "n": 1, "internal_width": 0.5}, {"buffer_flits": 9, "packet_flits": 3}),
    "torus": ("torus_2d", {"x_scale": 4, "y_scale": 3, "n": 2}, {"buffer_flits": 4}),
    "torus slow": ("torus_2d", {"x_scale": 4, "y_scale": 4, "n": 1, "latency_ns": 70}, {"source_cycles": 0}),
    "mesh": ("mesh_2d", {"x_scale": 4, "y_scale": 3, "n": 1}, {"buffer_flits": 4}),
    "mesh one port": ("mesh_2d", {"x_scale": 4, "y_scale": 3, "n": 2}, {"injection_ports": 1, "ejection_ports": 1, "buffer_flits": 8}),
    "torus ports": ("torus_2d", {"x_scale": 4, "y_scale": 4, "n": 3}, {"injection_ports": 2, "ejection_ports": 3, "buffer_flits": 4}),
    "railx ports": ("railx_hyperx", {"m": 2, "n": 1}, {"injection_ports": 3, "ejection_ports": 1, "buffer_flits": 4}),
    "fat tree": ("fat_tree", {"switch_radix": 4, "planes": 2}, {"buffer_flits": 4}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_packet_arrives_as_in_the_reference(case: str) -> None:
    name, sizes, changes = CASES[case]
    topology, network = build(name, **sizes), model(**changes)
    table = build_routing(topology, network.routing)
    trace = burst(topology, 360, 30, seed=3)
    reference = Reference(topology, table, network, seed=5)
    expected = reference.run(trace.cycle.tolist(), trace.src.tolist(), trace.dst.tolist(), 700)
    assert simulate_trace(topology, table, trace, network, cycles=700, seed=5).tolist() == expected
    assert min(expected) > 0
    # The case is worth its name only where packets had to wait.
    alone = zero_load_latency_cycles(topology, table, network)
    assert np.mean(np.array(expected) - trace.cycle) > 1.1 * alone
