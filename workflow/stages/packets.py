"""Stage packets: one topology, one traffic pattern at one load -> packet by packet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.families import TopologySettings, build_routing, build_topology
from railx.io import write_table
from railx.network.packets import simulate_packets, summary_row
from railx.network.settings import PacketNetworkSettings, TrafficSettings

__all__ = ["run"]


def run(
    traffic: TrafficSettings,
    network: PacketNetworkSettings,
    *,
    seed: int,
    name: str,
    topology: TopologySettings,
    packets_path: Path | None = None,
) -> dict[str, Any]:
    """Simulate a window of cycles; write its row where a path is given and return it."""
    graph = build_topology(topology)
    table = build_routing(graph, network.routing)
    row = summary_row(
        graph, name, traffic, network, simulate_packets(graph, table, traffic, network, seed), seed
    )
    if packets_path is not None:
        write_table(packets_path, [row])
    return row
